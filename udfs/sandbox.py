"""A database in memory with synthetic tables, isolated from everything else."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import duckdb
from sqlglot import exp

from sqlfl.udfs import sql
from sqlfl.udfs.synthetic import ColumnUse, made_up

SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "threads": "1",
        "memory_limit": "1GB",
        "temp_directory": "",
        "autoload_known_extensions": "false",
        "autoinstall_known_extensions": "false",
        "python_enable_replacements": "false",
    }
)
"""Settings for few rows; they forbid loading extensions and reading files."""
_IN_MEMORY = "memory"
"""DuckDB's name for the first database of such a connection."""


def staged(
    tables: Mapping[tuple[str, str, str], Mapping[str, tuple[str, ColumnUse]]],
    place: tuple[str, str],
) -> sql.Connection:
    """Return a connection to a new database with these tables: (database, schema, name) -> column
    name -> type and use.

    Names without them belong to `place`, a database and a schema. Raises Error for a type without
    synthetic values.
    """
    con = duckdb.connect(":memory:", config=dict(SETTINGS))
    try:
        places = {place, *((table[0], table[1]) for table in tables)}
        for catalog in sorted({catalog.lower(): catalog for catalog, _ in places}.values()):
            if catalog.lower() != _IN_MEMORY:
                _run(con, "ATTACH ':memory:' AS", exp.to_identifier(catalog, quoted=True))
        for catalog, schema in sorted(places):
            named = exp.table_(schema, db=catalog, quoted=True)
            _run(con, "CREATE SCHEMA IF NOT EXISTS", named)
        for table, columns in tables.items():
            catalog, schema, name = table
            named = exp.table_(name, db=schema, catalog=catalog, quoted=True)
            _run(con, "CREATE TABLE", named, made_up(columns, ".".join(table)))
        _run(con, "USE", exp.table_(place[1], db=place[0], quoted=True))
        _run(con, "SET enable_external_access = false")
        _run(con, "SET lock_configuration = true")
    except BaseException:
        con.close()
        raise
    return con


def _run(con: sql.Connection, words: str, what: exp.Expr | None = None,
         rows: exp.Select | None = None) -> None:  # fmt: skip
    named = "" if what is None else f" {sql.to_sql(what)}"
    made = "" if rows is None else f" AS {sql.to_sql(rows)}"
    sql.run(con, exp.Var(this=f"{words}{named}{made}"))
