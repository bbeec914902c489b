"""Tables that names mean, as DuckDB looks them up: only in the catalog, never a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import duckdb
from sqlglot import exp

from sqlfl.contract.schema import folded
from sqlfl.governance.scopes import Table
from sqlfl.udfs import sql


@dataclass
class Listed:
    """Tables that were listed just now, by their paths, folded."""

    columns: dict[Table, tuple[str, ...]] = field(default_factory=dict)
    types: dict[Table, tuple[str, ...]] = field(default_factory=dict)
    views: set[Table] = field(default_factory=set)

    def add(
        self, table: Table, columns: tuple[str, ...], types: tuple[str, ...], *, view: bool
    ) -> None:
        self.columns[_key(table)], self.types[_key(table)] = columns, types
        if view:
            self.views.add(_key(table))


class NameLookup:
    """Lookup of names. `place`: database and schema of names without them. `cursor` : returns a new
    one, without temporary tables, where one is needed: tables in `listed` are not looked up again.
    """

    def __init__(
        self,
        cursor: Callable[[], sql.Connection],
        place: tuple[str, str],
        listed: Listed | None = None,
    ) -> None:
        self.cursor, self._place = cursor, place
        self._known: dict[Table, tuple[Table, tuple[str, ...]] | None] = {}
        self._listed = Listed() if listed is None else listed
        self._views, self._types = set(self._listed.views), dict(self._listed.types)

    def table(self, parts: Sequence[str]) -> tuple[Table, tuple[str, ...]] | None:
        """Return the table or view, in full, and its columns; None if there is none, or if a
        temporary view has its name.
        """
        catalog, schema = self._place
        match tuple(parts):
            case (name,):
                return self._found((catalog, schema, name))
            case (first, name):
                is_schema = self._is_schema(catalog, first)
                return self._found((catalog, first, name) if is_schema else (first, "main", name))
            case (first, second, name):
                return self._found((first, second, name))
        return None

    def _found(self, table: Table) -> tuple[Table, tuple[str, ...]] | None:
        key = _key(table)
        if key not in self._known:
            columns = self._listed.columns.get(key)
            self._known[key] = self._looked_up(table) if columns is None else (table, columns)
        return self._known[key]

    def _is_schema(self, catalog: str, name: str) -> bool:
        rows = sql.fetch(self.cursor(), _SCHEMAS, {"catalog": catalog, "name": name})
        return bool(rows)

    def types(self, table: Table) -> tuple[str, ...]:
        """Return the types of the columns of a table that `table` has returned, in their order."""
        return self._types[_key(table)]

    def is_view(self, table: Table) -> bool:
        """Return True if a table that `table` has returned was a view then."""
        return _key(table) in self._views

    def _looked_up(self, table: Table) -> tuple[Table, tuple[str, ...]] | None:
        catalog, schema, name = table
        quoted = sql.to_sql(exp.table_(name, db=schema, catalog=catalog, quoted=True))
        try:
            rows = sql.fetch(self.cursor(), _FOUND, {"path": quoted, "name": name})
        except (duckdb.CatalogException, duckdb.BinderException):
            return None  # also a view of a missing table
        views = {_key((a, b, c)) for place, c, _, a, b in rows if place < 0}
        if any(database == "temp" for database, *_ in views):
            return None
        if _key(table) in views:
            self._views.add(_key(table))
        columns = [row for row in sorted(rows) if row[0] >= 0]
        self._types[_key(table)] = tuple(row[2] for row in columns)
        return table, tuple(row[1] for row in columns)


def _key(table: Table) -> Table:
    return folded(table[0]), folded(table[1]), folded(table[2])


_SCHEMAS = sql.constant(
    sql.query(
        """SELECT 1 AS one FROM duckdb_schemas()
        WHERE database_name = $catalog AND lower(schema_name) = lower($name)"""
    )
)
_FOUND = sql.constant(
    exp.Var(
        this="""SELECT cid, name, type, '' AS a, '' AS b FROM pragma_table_info($path)
        UNION ALL SELECT -1, view_name, '', database_name, schema_name FROM duckdb_views()
        WHERE lower(view_name) = lower($name)"""
    )
)
"""Its columns, and all views of its name, in one instant: two statements take longer."""
