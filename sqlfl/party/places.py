"""Locations of a client's tables, as the client reports them."""

from __future__ import annotations

from dataclasses import replace

import duckdb

from sqlfl.contract.schema import Place
from sqlfl.udfs.connection import files
from sqlfl.udfs.numbering import keys


def told_apart(
    cursor: duckdb.DuckDBPyConnection, places: tuple[Place, ...], instance: str, secret: bytes
) -> tuple[Place, ...]:
    """Return places with keyed hashes of their databases. Clients of a party use them to detect
    that two have one database open.

    secret: key of the hashes. instance: distinguishes the client's instance of DuckDB from the
    others'.
    """
    paths = files(cursor)
    return tuple(
        replace(place, database=keys.derive(secret, "database", name).hex()[:32])
        for place in places
        for name in [paths.get(place.catalog) or f"{instance}:{place.catalog}"]
    )
