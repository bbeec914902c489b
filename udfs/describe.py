"""What a party tells a planner of its tables: names and types, never values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from sqlglot import exp

from sqlfl.schema import Column, Place, Table
from sqlfl.udfs import sql

OWN_SCHEMA = "sqlfl"
_OWN_DATABASES = ("system", "temp")
_OWN_SCHEMAS = ("information_schema", "pg_catalog", OWN_SCHEMA)
_ENUM = re.compile(r"ENUM\((?:'(?:[^']|'')*'(?:, )?)*\)")


def list_places(con: sql.Connection) -> tuple[Place, ...]:
    """The schemas of all databases of the connection, the current one first.

    Those of the databases `system` and `temp`, DuckDB's own and the schema `sqlfl` are left out.
    """
    writable = {name: not readonly for name, readonly in sql.fetch(con, _databases())}
    current = _current(con)
    found = sorted(
        {current, *sql.fetch(con, _schemas())}, key=lambda place: (place != current, place)
    )
    return tuple(
        Place(catalog, schema, writable.get(catalog, False))
        for catalog, schema in found
        if schema.lower() not in _OWN_SCHEMAS
    )


def list_tables(con: sql.Connection) -> tuple[Table, ...]:
    """The tables and views of all databases of the connection, the current one first.

    Those of the current schema have neither schema nor catalog, those of the current database's
    other schemas have no catalog. Internal ones, temporary ones and those of schemas called `sqlfl`
    are left out. `rows` is the database's estimate; None for views.
    """
    current = _current(con)
    found: dict[tuple[str, str, str], int | None] = {}
    for kind in ("table", "view"):
        found |= {tuple(row[:3]): row[3] for row in sql.fetch(con, _relations(kind))}
    columns: dict[tuple[str, str, str], list[Column]] = {}
    for catalog, schema, name, column, kind in sql.fetch(con, _columns()):
        columns.setdefault((catalog, schema, name), []).append(Column(column, _type(kind)))
    return tuple(
        Table(
            None if (catalog, schema) == current else schema,
            name,
            tuple(columns[catalog, schema, name]),
            rows,
            None if catalog == current[0] else catalog,
        )
        for (catalog, schema, name), rows in sorted(
            found.items(), key=lambda item: (item[0][0] != current[0], item[0])
        )
        # a view over a table that is gone has no columns
        if (catalog, schema, name) in columns
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


def _current(con: sql.Connection) -> tuple[str, str]:
    database, schema = sql.fetch(con, _current_names())[0]
    return str(database), str(schema)


@lru_cache(maxsize=1)
def _current_names() -> exp.Var:
    return sql.constant(exp.select(sql.call("current_database"), sql.call("current_schema")))


@lru_cache(maxsize=1)
def _databases() -> exp.Var:
    wanted = [sql.column("database_name"), sql.column("readonly")]
    return sql.constant(sql.select(_function("duckdb_databases"), wanted))


@lru_cache(maxsize=1)
def _schemas() -> exp.Var:
    names = [sql.column("database_name"), sql.column("schema_name")]
    return sql.constant(_outside(sql.select(_function("duckdb_schemas"), names)))


@lru_cache(maxsize=2)
def _relations(kind: str) -> exp.Var:
    """Names of the tables, or of the views, and their estimated rows."""
    size = sql.column("estimated_size") if kind == "table" else exp.Null()
    names = [sql.column(c) for c in ("database_name", "schema_name", f"{kind}_name")]
    query = _outside(sql.select(_function(f"duckdb_{kind}s"), [*names, size]))
    hidden = [sql.column("internal"), sql.column("temporary")]
    return sql.constant(query.where(*(exp.Not(this=column) for column in hidden)))


@lru_cache(maxsize=1)
def _columns() -> exp.Var:
    place = ["database_name", "schema_name", "table_name"]
    wanted = [sql.column(c) for c in (*place, "column_name", "data_type")]
    order = [sql.column(c) for c in (*place, "column_index")]
    query = _outside(sql.select(_function("duckdb_columns"), wanted))
    return sql.constant(query.order_by(*order))


def _type(kind: str) -> str:
    """The type's text; of an ENUM without its values, which are data."""
    return _ENUM.sub("ENUM", kind)


def _function(name: str) -> exp.Table:
    return exp.Table(this=sql.call(name))


def _outside(query: exp.Select) -> exp.Select:
    """Without what is DuckDB's and sqlfl's own."""
    for column, own in (("database_name", _OWN_DATABASES), ("schema_name", _OWN_SCHEMAS)):
        names = [sql.string(name) for name in own]
        lowered = sql.call("lower", sql.column(column))
        query = query.where(exp.Not(this=exp.In(this=lowered, expressions=names)))
    return query
