"""What is told of where a client's tables are."""

from __future__ import annotations

from dataclasses import replace

import duckdb

from sqlfl.contract.schema import Place
from sqlfl.udfs.connection import files
from sqlfl.udfs.numbering import keys


def told_apart(
    cursor: duckdb.DuckDBPyConnection, places: tuple[Place, ...], instance: str, secret: bytes
) -> tuple[Place, ...]:
    """With what tells, among the clients of a party, that two have one database open: a hash under
    their `secret`. `instance` tells the client's instance of DuckDB from the others'."""
    found = files(cursor)
    return tuple(
        replace(place, database=keys.derive(secret, "database", name).hex()[:32])
        for place in places
        for name in [found.get(place.catalog) or f"{instance}:{place.catalog}"]
    )
