"""Which table a name means, as DuckDB looks it up; only what is in the catalog, never a file."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from sqlfl.guard.scopes import Table
from sqlfl.schema import folded
from sqlfl.udfs import sql


class Names:
    """`place`: database and schema that names without them are of."""

    def __init__(self, cursor: sql.Connection, place: tuple[str, str]) -> None:
        self._cursor, self._place = cursor, place
        self._known: dict[Table, tuple[Table, tuple[str, ...]] | None] = {}
        self._schemas = [(str(a), str(b)) for a, b in sql.fetch(cursor, _SCHEMAS)]

    def table(self, parts: Sequence[str]) -> tuple[Table, tuple[str, ...]] | None:
        """The table or view, as it is in the catalog, and its columns; None where there is none,
        or where a temporary one has its name."""
        catalog, schema = self._place
        match tuple(parts):
            case (name,):
                return self._found((catalog, schema, name))
            case (first, name):
                own = any(folded(b) == folded(first) for a, b in self._schemas if a == catalog)
                return self._found((catalog, first, name) if own else (first, "main", name))
            case (first, second, name):
                return self._found((first, second, name))
        return None

    def _found(self, table: Table) -> tuple[Table, tuple[str, ...]] | None:
        key = (folded(table[0]), folded(table[1]), folded(table[2]))
        if key not in self._known:
            self._known[key] = self._looked_up(table)
        return self._known[key]

    def _looked_up(self, table: Table) -> tuple[Table, tuple[str, ...]] | None:
        given = {"catalog": table[0], "schema": table[1], "name": table[2]}
        rows = sql.fetch(self._cursor, _TABLE, given)
        if len(rows) != 1 or sql.fetch(self._cursor, _TEMPORARY, {"name": table[2]}):
            return None
        ((catalog, schema, name),) = rows
        quoted = sql.to_sql(exp.table_(name, db=schema, catalog=catalog, quoted=True))
        columns = sql.fetch(self._cursor, _COLUMNS, {"name": quoted})
        return (catalog, schema, name), tuple(column for (column,) in columns)


_SCHEMAS = sql.query("SELECT database_name, schema_name FROM duckdb_schemas()")
_TABLE = sql.query(
    """SELECT database_name, schema_name, table_name FROM (
      SELECT database_name, schema_name, table_name FROM duckdb_tables()
      WHERE NOT internal AND NOT temporary
      UNION ALL
      SELECT database_name, schema_name, view_name FROM duckdb_views()
      WHERE NOT internal AND NOT temporary
    ) AS t
    WHERE lower(database_name) = lower($catalog) AND lower(schema_name) = lower($schema)
      AND lower(table_name) = lower($name)"""
)
_TEMPORARY = sql.query(
    """SELECT one FROM (
      SELECT 1 AS one FROM duckdb_tables() WHERE temporary AND lower(table_name) = lower($name)
      UNION ALL
      SELECT 1 FROM duckdb_views()
      WHERE temporary AND NOT internal AND lower(view_name) = lower($name)
    ) AS t"""
)
_COLUMNS = sql.query("SELECT name FROM pragma_table_info($name) ORDER BY cid")
