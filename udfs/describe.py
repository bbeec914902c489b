"""What a party tells a planner of its tables: names and types, never values."""

from __future__ import annotations

import re

from sqlglot import exp

from sqlfl.schema import Column, Table
from sqlfl.udfs import sql

_OWN_SCHEMA = "sqlfl"
_ENUM = re.compile(r"ENUM\((?:'(?:[^']|'')*'(?:, )?)*\)")


def list_tables(con: sql.Connection) -> tuple[Table, ...]:
    """The tables and views of the connection's current database, by schema and name.

    Those of the current schema have schema None. Internal ones, temporary ones and those of the
    schema `sqlfl` are left out. `rows` is the database's estimate; None for views.
    """
    current = sql.fetch(con, exp.select(sql.call("current_schema")))[0][0]
    found: dict[tuple[str, str], int | None] = {}
    for kind, size in (("table", sql.column("estimated_size")), ("view", exp.Null())):
        names = [sql.column("schema_name"), sql.column(f"{kind}_name"), size]
        hidden = [sql.column("internal"), sql.column("temporary")]
        query = _of_database(exp.select(*names), f"duckdb_{kind}s")
        query = query.where(*(exp.Not(this=column) for column in hidden))
        found |= {(schema, name): rows for schema, name, rows in sql.fetch(con, query)}
    wanted = ["schema_name", "table_name", "column_name", "data_type"]
    query = _of_database(exp.select(*(sql.column(c) for c in wanted)), "duckdb_columns")
    order = [sql.column(c) for c in ("schema_name", "table_name", "column_index")]
    columns: dict[tuple[str, str], list[Column]] = {}
    for schema, name, column, kind in sql.fetch(con, query.order_by(*order)):
        columns.setdefault((schema, name), []).append(Column(column, _without_values(kind)))
    return tuple(
        Table(None if schema == current else schema, name, tuple(columns[schema, name]), rows)
        for (schema, name), rows in sorted(found.items(), key=lambda item: item[0])
        # a view over a table that is gone has no columns
        if schema != _OWN_SCHEMA and (schema, name) in columns
    )


def describe(con: sql.Connection, select: str) -> tuple[Column, ...]:
    """Names and types of the columns of a query; it is bound, not run.

    Raises ModelError if the text is not one SELECT, duckdb.Error if it cannot be bound.
    """
    query = exp.Describe(this=sql.verbatim(con, select))
    return tuple(Column(row[0], _without_values(row[1])) for row in sql.fetch(con, query))


def _without_values(kind: str) -> str:
    """The type's text; of an ENUM without its values, which are data."""
    return _ENUM.sub("ENUM", kind)


def _of_database(query: exp.Select, function: str) -> exp.Select:
    here = sql.equal(sql.column("database_name"), sql.call("current_database"))
    return query.from_(exp.Table(this=sql.call(function))).where(here)
