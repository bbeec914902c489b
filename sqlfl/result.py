"""What a statement returns: an Arrow table with a good face."""

from __future__ import annotations

import html
from typing import Any

import duckdb
import pyarrow as pa

from sqlfl.errors import Error

SHOWN = 20
"""Rows that a result's text shows."""


class Result:
    """Rows and columns of a statement's answer.

    Iteration, slicing and further SQL are Arrow's, pandas' or DuckDB's business: see `arrow`.
    """

    def __init__(self, table: pa.Table, *, text: str | None = None, markup: str | None = None):
        self._table = table
        self._text = text
        self._markup = markup

    @property
    def columns(self) -> list[str]:
        return list(self._table.column_names)

    def arrow(self) -> pa.Table:
        return self._table

    def df(self) -> Any:
        """A pandas DataFrame. Raises Error where pandas is not installed."""
        try:
            return self._table.to_pandas()
        except ModuleNotFoundError as error:
            raise Error("Result.df() needs pandas", hint="pip install pandas") from error

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows as tuples of Python values."""
        return list(zip(*(column.to_pylist() for column in self._table.columns), strict=True))

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __repr__(self) -> str:
        if self._text is not None:
            return self._text
        rows = self._table.num_rows
        with duckdb.connect() as con:
            text = str(con.from_arrow(self._table.slice(0, SHOWN))).rstrip("\n")
        return text if rows <= SHOWN else f"{text}\nthe first {SHOWN} of {rows:,} rows"

    def _repr_html_(self) -> str:
        if self._markup is not None:
            return self._markup
        return table_to_html(self._table)


def table_to_html(table: pa.Table, limit: int = SHOWN) -> str:
    """An HTML table of the first `limit` rows, values escaped."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.column_names)
    rows = zip(*(column.to_pylist() for column in table.slice(0, limit).columns), strict=True)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_text(value))}</td>" for value in row) + "</tr>"
        for row in rows
    )
    more = table.num_rows - limit
    note = f"<p>… and {more:,} more rows</p>" if more > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"


def _text(value: Any) -> str:
    if value is None:
        return "NULL"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
