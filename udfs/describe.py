"""Descriptions of a party's tables for the planner: names and types, never values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import lru_cache, reduce
from typing import Any, TypeAlias

import duckdb
from sqlglot import exp

from sqlfl.base.errors import InternalError
from sqlfl.contract.schema import Column, Place, Table
from sqlfl.udfs import sql

OWN_SCHEMA = "sqlfl"
_OWN_DATABASES = ("system", "temp")
_OWN_SCHEMAS = ("information_schema", "pg_catalog", OWN_SCHEMA)
_ENUM = re.compile(r"ENUM\((?:'(?:[^']|'')*'(?:, )?)*\)")


class ListingCache:
    """Cache of a connection's listing, valid while the listed objects are unchanged.

    A changed definition shows that a table has changed, on any connection. The columns of a view
    depend on more than the database reports, so nothing is cached if there is a view.
    """

    def __init__(self) -> None:
        self._kept: tuple[_Rows, Listing] | None = None

    def listing(self, con: sql.Connection, place: tuple[str, str]) -> Listing:
        """Return the schemas of all databases of the connection, with their tables and views, at
        one instant; the current schema and database first. `place`: that of the connection.

        Tables of the current schema have neither schema nor catalog; those in other schemas of the
        current database have no catalog. `rows` is the database's estimate; None for views. The
        databases `system` and `temp`, internal and temporary objects, DuckDB's own schemas and
        those called `sqlfl` are left out.

        `con` looks up names among DuckDB's own; if there are views, in `place` too afterwards.
        Raise duckdb.CatalogException if `place` does not exist.
        """
        entries = _sorted(_others(con, _entries(), place))
        if self._kept is not None and self._kept[0] == entries:
            return self._kept[1]
        if _has_view(entries) or not any(entry[:3] == ("schema", *place) for entry in entries):
            use(con, place)  # DuckDB binds views for their columns
        entries, tables = _listed(con, entries, place)
        self._kept = None if _has_view(entries) else (entries, tables)
        return tables


Listing: TypeAlias = tuple[tuple[Place, ...], tuple[Table, ...]]
_Rows: TypeAlias = list[tuple[Any, ...]]


def _has_view(entries: _Rows) -> bool:
    return any(kind == "view" for kind, *_ in entries)


def _listed(con: sql.Connection, entries: _Rows, place: tuple[str, str]) -> tuple[_Rows, Listing]:
    """Return the listing with its entries: these, or newer ones."""
    columns = _columns_of(con, entries)
    if columns is None:
        newer = list(_others(con, _with_columns(), place))
        entries = _sorted(row[:_ENTRY] for row in newer if row[0] != "column")
        columns = [(a, b, c, d, e, n) for kind, a, b, c, n, _, _, d, e in newer if kind == "column"]
    rows: dict[str, _Rows] = {kind: [] for kind in _KINDS}
    for row in entries:
        rows[row[0]].append(row)
    (here,) = [(catalog, schema) for _, catalog, schema, *_ in rows["current"]]
    writable = {catalog: not readonly for _, catalog, _, _, readonly, *_ in rows["database"]}
    schemas = {here, *((catalog, schema) for _, catalog, schema, *_ in rows["schema"])}
    places = tuple(
        Place(catalog, schema, writable.get(catalog, False))
        for catalog, schema in sorted(schemas, key=lambda place: (place != here, place))
        if schema.lower() not in _OWN_SCHEMAS
    )
    tables = [(a, b, c, n) for _, a, b, c, n, *_ in [*rows["table"], *rows["view"]]]
    return entries, (places, _tables(here, tables, columns))


def _columns_of(con: sql.Connection, entries: _Rows) -> _Rows | None:
    """Return the columns of a few tables, each requested by name: catalog, schema, table, column,
    type, number.

    DuckDB binds all of its own views before it lists the columns of everything. None if there are
    views, which may be broken, or many tables, or if one has gone meanwhile.
    """
    named = tuple(row[1:4] for row in entries if row[0] == "table")
    if len(named) > _FEW or _has_view(entries):
        return None
    if not named:
        return []
    try:
        rows = sql.fetch(con, _of_tables(named))
    except (duckdb.CatalogException, duckdb.BinderException):
        return None
    return [(*named[place], *row) for place, *row in rows]


def _sorted(rows: Iterable[tuple[Any, ...]]) -> _Rows:
    return sorted(rows, key=repr)


def _others(
    con: sql.Connection, query: exp.Expr, place: tuple[str, str]
) -> Iterator[tuple[Any, ...]]:
    """Yield the current place and the query's rows, without databases and schemas of DuckDB's or
    sqlfl's own.
    """
    rows = sql.fetch(con, query)
    yield ("current", *place, *[None] * (len(rows[0]) - 3))
    for row in rows:
        kind, catalog, schema, *_ = row
        inside = kind != "database"
        if not inside or not (catalog.lower() in _OWN_DATABASES or schema.lower() in _OWN_SCHEMAS):
            yield row


def _tables(
    current: tuple[str, str], tables: list[tuple[Any, ...]], columns: list[tuple[Any, ...]]
) -> tuple[Table, ...]:
    by_table: dict[tuple[str, str, str], list[Column]] = {}
    for *table, name, kind, _ in sorted(columns, key=lambda row: row[-1]):
        by_table.setdefault((table[0], table[1], table[2]), []).append(Column(name, _type(kind)))
    return tuple(
        Table(
            None if (catalog, schema) == current else schema,
            name,
            tuple(by_table[catalog, schema, name]),
            rows,
            None if catalog == current[0] else catalog,
        )
        for catalog, schema, name, rows in sorted(
            tables, key=lambda row: (row[0] != current[0], row[:3])
        )
        # a view over a missing table has no columns
        if (catalog, schema, name) in by_table
    )


def describe(con: sql.Connection, select: str) -> tuple[Column, ...]:
    """Return names and types of a query's columns; it is bound, not run. Raise ModelError unless
    the text is one SELECT, and duckdb.Error if it cannot be bound.
    """
    return columns_of(con, sql.verbatim(con, select))


def columns_of(con: sql.Connection, select: exp.Var) -> tuple[Column, ...]:
    """Return those of a text that is known to be one SELECT."""
    return described((row[0], row[1]) for row in sql.fetch(con, exp.Describe(this=select)))


def described(rows: Iterable[tuple[str, str]]) -> tuple[Column, ...]:
    """Columns of names and types as DuckDB describes them."""
    return tuple(Column(name, _type(kind)) for name, kind in rows)


def types_of(con: sql.Connection, table: tuple[str, str, str]) -> dict[str, str]:
    """The columns of a table or view, by its database, schema and name, and their types."""
    catalog, schema, name = table
    quoted = sql.to_sql(exp.table_(name, db=schema, catalog=catalog, quoted=True))
    rows = sql.fetch(con, _TYPED, {"name": quoted})
    return {column: _type(kind) for column, kind in rows}


def current_place(con: sql.Connection) -> tuple[str, str]:
    """Return the database and schema that USE has set on `con`.

    No query runs on `con`, so a result that its owner has open stays open: while binding, DuckDB
    decides which columns of a SELECT have the current name.
    """
    with closing(sql.system_cursor(con)) as cursor:
        known = sql.fetch(cursor, _schemas())
    names = [f"d{database}" for database, _ in known] + [f"s{schema}" for _, schema in known]
    chosen = bound(con, _current(tuple({name.lower(): name for name in names}.values())))
    wanted = tuple(name[1:].lower() for name in sorted(chosen))
    return next(
        (database, schema)
        for database, schema in known
        if (database.lower(), schema.lower()) == wanted
    )


def use(con: sql.Connection, place: tuple[str, str]) -> None:
    """Make names of functions and operators mean DuckDB's own, and other names objects of `place`.

    A macro of the database with the name of a function then hides nothing; views still use the
    macros of their own schema. `schema.table` means one of the place's database. Raises
    duckdb.CatalogException if the place no longer exists.
    """
    known = sql.fetch(con, _schemas())
    sql.search(con, [place, *(p for p in known if p[0] == place[0] and p != place)])


def place_of(con: sql.Connection) -> tuple[str, str]:
    """Return the database and schema of a cursor's search path, after DuckDB's own."""
    ((path, catalog, schema),) = sql.fetch(con, _path())
    first_place, _, rest = path.partition(",")
    if first_place != sql.OWN_PLACE or not rest:
        return catalog, schema
    first, second = _PART.match(rest), None
    if first is not None:
        second = _PART.match(rest, first.end() + 1)
    if first is None or second is None:
        raise InternalError(f"the search path is {path}")
    return _unquoted(first), _unquoted(second)


_PART = re.compile(r'"((?:[^"]|"")*)"|[^".,]+')


def _unquoted(part: re.Match[str]) -> str:
    return part[0] if part[1] is None else part[1].replace('""', '"')


@lru_cache(maxsize=1)
def _path() -> exp.Var:
    setting = sql.own_call("current_setting", sql.string("search_path"))
    wanted = (setting, sql.own_call("current_database"), sql.own_call("current_schema"))
    return sql.constant(exp.select(*wanted))


@lru_cache(maxsize=1)
def _schemas() -> exp.Var:
    columns = [sql.column("database_name"), sql.column("schema_name")]
    # in full: a macro of the database may have its name, and no search path is set yet
    source = exp.Table(this=sql.call("duckdb_schemas"), db="main", catalog="system")
    return sql.constant(sql.select(source, columns))


@lru_cache(maxsize=64)
def _current(names: tuple[str, ...]) -> str:
    """Return a query whose columns are the current database, after d, and schema, after s."""
    current = {"d": "current_database", "s": "current_schema"}
    return choosing(
        names,
        [
            sql.own_call("concat", sql.string(a), sql.own_call(function))
            for a, function in current.items()
        ],
    )


_TYPED = sql.constant(sql.query("SELECT name, type FROM pragma_table_info($name) ORDER BY cid"))
_KINDS = ("current", "database", "schema", "table", "view")
_FEW = 16
"""Maximum tables whose columns are requested one by one."""
_ENTRY = 7
"""Number of values of an entry: its kind; names; a table's approximate rows, or whether a database
is read-only; and facts that reveal a change, with the definition.
"""


@lru_cache(maxsize=1)
def _entries() -> exp.Var:
    """Return everything except columns in one query: each query costs DuckDB as much as a small
    join.
    """
    return sql.constant(_all_but_columns())


@lru_cache(maxsize=64)
def _of_tables(named: tuple[tuple[Any, ...], ...]) -> exp.Var:
    """The columns of each of these: its place among them, name, type, number."""
    parts: list[exp.Query] = [
        sql.query(
            "SELECT $place AS place, name, type, cid FROM pragma_table_info($table) AS own",
            place=sql.number(place),
            table=sql.string(sql.to_sql(exp.table_(name, db=schema, catalog=catalog, quoted=True))),
        )
        for place, (catalog, schema, name) in enumerate(named)
    ]
    union = reduce(lambda a, b: exp.Union(this=a, expression=b, distinct=False), parts)
    return exp.Var(this=sql.to_sql(union))


@lru_cache(maxsize=1)
def _with_columns() -> exp.Var:
    """The entries and the columns: of these names and types."""
    query = sql.query(
        """SELECT kind, a, b, c, n, o, s, d, e
        FROM (
          SELECT kind, a, b, c, n, o, s, NULL AS d, NULL AS e FROM $entries AS own
          UNION ALL
          SELECT 'column', database_name, schema_name, table_name, column_index, NULL, NULL,
            column_name, data_type
          FROM duckdb_columns() WHERE NOT internal
        ) AS l""",
        entries=_all_but_columns(),
    )
    return sql.constant(query)


def _all_but_columns() -> exp.Select:
    return sql.query(
        """SELECT kind, a, b, c, n, o, s
        FROM (
          SELECT 'database' AS kind, database_name AS a, NULL AS b, NULL AS c,
            CAST(readonly AS BIGINT) AS n, NULL AS o, NULL AS s
          FROM duckdb_databases()
          UNION ALL
          SELECT 'schema', database_name, schema_name, NULL, NULL, NULL, NULL
          FROM duckdb_schemas()
          UNION ALL
          SELECT 'table', database_name, schema_name, table_name, estimated_size, table_oid, sql
          FROM duckdb_tables() WHERE NOT internal AND NOT temporary
          UNION ALL
          SELECT 'view', database_name, schema_name, view_name, NULL, NULL, NULL
          FROM duckdb_views() WHERE NOT internal AND NOT temporary
        ) AS l"""
    )


def _type(kind: str) -> str:
    """The type's text; of an ENUM without its values, which are data."""
    return _ENUM.sub("ENUM", kind)


# Facts that DuckDB reports while it binds a query, without running it. A result that the
# connection's owner has open stays open.


def choosing(names: Sequence[str], chosen: Sequence[exp.Expr]) -> str:
    """Return a query whose columns are the `names` among `chosen`, which are constant texts.

    DuckDB ignores the case of names, so `names` must differ in more than case. Each of `chosen`
    must be one of them.
    """
    wanted = exp.Columns(this=sql.own_call("list_value", *chosen))
    given = sql.query("SELECT $ones", ones=[sql.named(sql.number(1), name) for name in names])
    return sql.to_sql(exp.select(wanted).from_(given.subquery("given")))


def bound(con: sql.Connection, query: str) -> list[str]:
    """The columns of a query of `choosing`, bound on `con` itself."""
    return list(sql.waiting(lambda: con.sql(query).columns))
