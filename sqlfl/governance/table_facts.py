"""Facts about tables that their owner sees beside a request, and nobody else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass

import duckdb
from sqlglot import exp

from sqlfl.governance.scopes import Table
from sqlfl.udfs import sql


@dataclass(frozen=True)
class ColumnFacts:
    """Values of one column."""

    type: str
    """DuckDB type."""
    present: int
    """Rows in which it is not NULL."""
    distinct: int
    """Distinct values, without NULL."""
    smallest: int
    """Rows of the rarest value; 0 without values."""


@dataclass(frozen=True)
class TableFacts:
    """Rows and columns of a table."""

    rows: int
    names: tuple[str, ...]
    """All columns of the table."""
    columns: Mapping[str, ColumnFacts]
    """The measured columns."""


def measure(con: sql.Connection, table: Table, columns: Iterable[str]) -> TableFacts | None:
    """Count the rows of a table, and the values of some of its columns. Return None if the database
    cannot read the table now, such as a view whose table is gone.
    """
    named = exp.table_(table[2], db=table[1], catalog=table[0], quoted=True)
    with closing(sql.cursor(con)) as cursor:
        try:
            types = dict(sql.fetch(cursor, _COLUMNS, {"name": sql.to_sql(named)}))
            ((rows,),) = sql.fetch(cursor, sql.query("SELECT count(*) AS n FROM $t", t=named))
            columns_facts = {
                name: _of_column(cursor, named, name, types[name])
                for name in sorted(set(columns) & types.keys())
            }
        except duckdb.Error:
            return None
    return TableFacts(rows, tuple(types), columns_facts)


def _of_column(cursor: sql.Connection, table: exp.Table, name: str, type_: str) -> ColumnFacts:
    query = sql.query(
        """SELECT coalesce(sum(n), 0)::BIGINT AS present, count(*) AS found,
        coalesce(min(n), 0) AS smallest
        FROM (SELECT count(*) AS n FROM $t WHERE NOT $c IS NULL GROUP BY $c) AS q""",
        t=table.copy(),
        c=sql.column(name),
    )
    ((present, distinct, smallest),) = sql.fetch(cursor, query)
    return ColumnFacts(type_, present, distinct, smallest)


_COLUMNS = sql.constant(sql.query("SELECT name, type FROM pragma_table_info($name) ORDER BY cid"))
