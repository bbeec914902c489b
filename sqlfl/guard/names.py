"""Which table a name means, as DuckDB looks it up; only what is in the catalog, never a file."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
from sqlglot import exp

from sqlfl.guard.scopes import Table
from sqlfl.schema import folded
from sqlfl.udfs import sql


class Names:
    """`place`: database and schema that names without them are of."""

    def __init__(self, cursor: sql.Connection, place: tuple[str, str]) -> None:
        self._cursor, self._place = cursor, place
        self._known: dict[Table, tuple[Table, tuple[str, ...]] | None] = {}

    def table(self, parts: Sequence[str]) -> tuple[Table, tuple[str, ...]] | None:
        """The table or view, in full, and its columns; None where there is none,
        or where a temporary one has its name."""
        catalog, schema = self._place
        match tuple(parts):
            case (name,):
                return self._found((catalog, schema, name))
            case (first, name):
                own = self._is_schema(catalog, first)
                return self._found((catalog, first, name) if own else (first, "main", name))
            case (first, second, name):
                return self._found((first, second, name))
        return None

    def _found(self, table: Table) -> tuple[Table, tuple[str, ...]] | None:
        key = (folded(table[0]), folded(table[1]), folded(table[2]))
        if key not in self._known:
            self._known[key] = self._looked_up(table)
        return self._known[key]

    def _is_schema(self, catalog: str, name: str) -> bool:
        rows = sql.fetch(self._cursor, _SCHEMAS, {"catalog": catalog, "name": name})
        return bool(rows)

    def _looked_up(self, table: Table) -> tuple[Table, tuple[str, ...]] | None:
        if self._columns("temp", "main", table[2]) is not None:
            return None
        columns = self._columns(*table)
        return None if columns is None else (table, columns)

    def _columns(self, catalog: str, schema: str, name: str) -> tuple[str, ...] | None:
        quoted = sql.to_sql(exp.table_(name, db=schema, catalog=catalog, quoted=True))
        try:
            return tuple(
                column for (column,) in sql.fetch(self._cursor, _COLUMNS, {"name": quoted})
            )
        except (duckdb.CatalogException, duckdb.BinderException):
            return None  # a view of what is gone, too


_SCHEMAS = sql.constant(
    sql.query(
        """SELECT 1 AS one FROM duckdb_schemas()
        WHERE database_name = $catalog AND lower(schema_name) = lower($name)"""
    )
)
_COLUMNS = sql.constant(sql.query("SELECT name FROM pragma_table_info($name) ORDER BY cid"))
