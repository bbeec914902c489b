"""What a party tells a planner of its tables: names and types, never values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from sqlglot import exp

from sqlfl.schema import Column, Place, Table
from sqlfl.udfs import sql

OWN_SCHEMA = "sqlfl"
_OWN_DATABASES = ("system", "temp")
_OWN_SCHEMAS = ("information_schema", "pg_catalog", OWN_SCHEMA)
_ENUM = re.compile(r"ENUM\((?:'(?:[^']|'')*'(?:, )?)*\)")


class Listings:
    """The listing of a connection's cursors, kept while nothing that it tells of has changed.

    DuckDB takes most of the time of a listing for the columns of its own views. What tells that a
    table was changed, on any connection, takes a third: how it would be made. What the columns of
    a view are follows from more than the database tells: where there is one, nothing is kept.
    """

    def __init__(self) -> None:
        self._kept: tuple[object, Listing] | None = None

    def listing(self, con: sql.Connection) -> Listing:
        """As `listing`."""
        state = sorted(sql.fetch(con, _state()), key=repr)
        if self._kept is not None and self._kept[0] == state:
            return self._kept[1]
        found = listing(con)  # what changes in between makes another state the next time
        views = any(kind == "view" for kind, *_ in state)
        self._kept = None if views else (state, found)
        return found


Listing: TypeAlias = tuple[tuple[Place, ...], tuple[Table, ...]]


def listing(con: sql.Connection) -> Listing:
    """The schemas of all databases of the connection, and the tables and views in them, of one
    instant; those of the current schema, and of its database, first.

    Tables of the current schema have neither schema nor catalog, those of the current database's
    other schemas have no catalog. `rows` is the database's estimate; None for views. Left out are
    the databases `system` and `temp`, what is internal or temporary, DuckDB's own schemas and those
    called `sqlfl`.
    """
    rows: dict[str, list[tuple[Any, ...]]] = {kind: [] for kind in _KINDS}
    for kind, *row in sql.fetch(con, _listing()):
        rows[kind].append(tuple(row))
    (current,) = [(catalog, schema) for catalog, schema, *_ in rows["current"]]
    writable = {catalog: not readonly for catalog, *_, readonly in rows["database"]}
    schemas = {current, *((catalog, schema) for catalog, schema, *_ in rows["schema"])}
    places = tuple(
        Place(catalog, schema, writable.get(catalog, False))
        for catalog, schema in sorted(schemas, key=lambda place: (place != current, place))
        if schema.lower() not in _OWN_SCHEMAS
    )
    return places, _tables(current, rows["table"], rows["column"])


def _tables(
    current: tuple[str, str], tables: list[tuple[Any, ...]], columns: list[tuple[Any, ...]]
) -> tuple[Table, ...]:
    found: dict[tuple[str, str, str], list[Column]] = {}
    for *table, name, kind, _ in sorted(columns, key=lambda row: row[-1]):
        found.setdefault((table[0], table[1], table[2]), []).append(Column(name, _type(kind)))
    return tuple(
        Table(
            None if (catalog, schema) == current else schema,
            name,
            tuple(found[catalog, schema, name]),
            rows,
            None if catalog == current[0] else catalog,
        )
        for catalog, schema, name, *_, rows in sorted(
            tables, key=lambda row: (row[0] != current[0], row[:3])
        )
        # a view over a table that is gone has no columns
        if (catalog, schema, name) in found
    )


def describe(con: sql.Connection, select: str) -> tuple[Column, ...]:
    """Names and types of the columns of a query; it is bound, not run.

    Raises ModelError if the text is not one SELECT, duckdb.Error if it cannot be bound.
    """
    query = exp.Describe(this=sql.verbatim(con, select))
    return tuple(Column(row[0], _type(row[1])) for row in sql.fetch(con, query))


def current_place(con: sql.Connection) -> tuple[str, str]:
    """Database and schema that names without them mean on `con`, as USE has set them.

    Nothing runs on `con`, so that a result that its owner has open stays open: DuckDB decides
    while it binds which of the columns of a SELECT have the current name.
    """
    cursor = sql.waiting(con.cursor)
    try:
        query = sql.select(
            _function("duckdb_schemas"),
            [sql.column("database_name"), sql.column("schema_name")],
        )
        known = sql.fetch(cursor, query)
    finally:
        cursor.close()
    database = _chosen(con, "current_database", sorted({place[0] for place in known}))
    schemas = sorted({schema for name, schema in known if name == database})
    return database, _chosen(con, "current_schema", schemas)


def use(con: sql.Connection, place: tuple[str, str]) -> None:
    """Let names without database and schema mean those of `place`.

    Raises duckdb.CatalogException where there is no such place any more.
    """
    catalog, schema = place
    sql.run(con, _use(catalog, schema))


@lru_cache(maxsize=64)
def _use(catalog: str, schema: str) -> exp.Var:
    return sql.constant(exp.Use(this=exp.table_(schema, db=catalog, quoted=True)))


def _chosen(con: sql.Connection, function: str, names: Sequence[str]) -> str:
    query = _choice(function, tuple(names))
    found = sql.waiting(lambda: con.sql(query).columns)
    return str(found[0])


@lru_cache(maxsize=64)
def _choice(function: str, names: tuple[str, ...]) -> str:
    """A query whose only column is that of the names which the function gives."""
    match = sql.equal(sql.column("name"), sql.call(function))
    wanted = exp.Columns(this=exp.Lambda(this=match, expressions=[exp.to_identifier("name")]))
    given = exp.select(*(sql.named(sql.number(1), name) for name in names)).subquery("given")
    return sql.to_sql(exp.select(wanted).from_(given))


_KINDS = ("current", "database", "schema", "table", "column")


@lru_cache(maxsize=1)
def _listing() -> exp.Var:
    """All that is listed, in one query: each takes DuckDB as long as a small join.

    Rows are of one of `_KINDS`. Left out is what is DuckDB's and sqlfl's own.
    """
    query = sql.query(
        """SELECT kind, a, b, c, d, e, n
        FROM (
          SELECT 'current' AS kind, current_database() AS a, current_schema() AS b
          UNION ALL BY NAME
          SELECT 'database' AS kind, database_name AS a, CAST(readonly AS BIGINT) AS n
          FROM duckdb_databases()
          UNION ALL BY NAME
          SELECT 'schema' AS kind, database_name AS a, schema_name AS b FROM duckdb_schemas()
          UNION ALL BY NAME
          SELECT 'table' AS kind, database_name AS a, schema_name AS b, table_name AS c,
            estimated_size AS n
          FROM duckdb_tables() WHERE NOT internal AND NOT temporary
          UNION ALL BY NAME
          SELECT 'table' AS kind, database_name AS a, schema_name AS b, view_name AS c
          FROM duckdb_views() WHERE NOT internal AND NOT temporary
          UNION ALL BY NAME
          SELECT 'column' AS kind, database_name AS a, schema_name AS b, table_name AS c,
            column_name AS d, data_type AS e, column_index AS n
          FROM duckdb_columns()
        ) AS l
        WHERE kind IN ('current', 'database')
          OR NOT lower(a) IN ($databases) AND NOT lower(b) IN ($schemas)""",
        databases=[sql.string(name) for name in _OWN_DATABASES],
        schemas=[sql.string(name) for name in _OWN_SCHEMAS],
    )
    return sql.constant(query)


@lru_cache(maxsize=1)
def _state() -> exp.Var:
    """What there is, as it would be made: other rows where `listing` would be another."""
    query = sql.query(
        """SELECT kind, a, b, c, n, o
        FROM (
          SELECT 'current' AS kind, current_database() AS a, current_schema() AS b
          UNION ALL BY NAME
          SELECT 'database' AS kind, database_name AS a, CAST(readonly AS BIGINT) AS n
          FROM duckdb_databases()
          UNION ALL BY NAME
          SELECT 'schema' AS kind, database_name AS a, schema_name AS b FROM duckdb_schemas()
          UNION ALL BY NAME
          SELECT 'table' AS kind, database_name AS a, schema_name AS b, sql AS c,
            estimated_size AS n, table_oid AS o
          FROM duckdb_tables() WHERE NOT internal AND NOT temporary
          UNION ALL BY NAME
          SELECT 'view' AS kind, database_name AS a, schema_name AS b, view_name AS c
          FROM duckdb_views() WHERE NOT internal AND NOT temporary
        ) AS l"""
    )
    return sql.constant(query)


def _type(kind: str) -> str:
    """The type's text; of an ENUM without its values, which are data."""
    return _ENUM.sub("ENUM", kind)


def _function(name: str) -> exp.Table:
    return exp.Table(this=sql.call(name))
