"""Result of a statement: an Arrow table with text, HTML and a plot."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from sqlfl.base import sanitize
from sqlfl.base.engine import empty_database
from sqlfl.base.errors import Error, nearest
from sqlfl.base.foreign_names import RESULT, no_attribute

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 96
"""Characters of a line of a note."""
SHOWN = 20
"""Rows in a result's text and HTML."""
BATCH = 65_536
"""Rows that are Python values at once while a result is iterated."""
CLIPPED = 80
"""Characters of a value in HTML; the rest is in its title, up to TITLE."""
TITLE = 1000

# Grey borders and the text's own colour suit white and black. Everything is inline: a style element
# would affect the rest of the notebook, and some viewers drop it.
_LINE = "1px solid rgba(128,128,128,.4)"
_TABLE = "border-collapse:collapse;margin:.4em 0"
_CELL = "padding:.25em .8em;vertical-align:top;white-space:nowrap"
_NUMBER = f"{_CELL};text-align:right;font-variant-numeric:tabular-nums"
_TEXT = f"{_CELL};text-align:left"
_CAPTION = "caption-side:bottom;text-align:left;padding:.4em .8em;font-size:.9em;opacity:.8"
_NULL = '<span style="opacity:.65;font-style:italic">NULL</span>'
_FACT = "padding:.25em .8em;vertical-align:top;text-align:left"


class Result:
    """Rows and columns of a statement's answer: iterates over its rows, as tuples.

    Whatever takes Arrow takes a result: `duckdb.sql("FROM result")`, `polars.DataFrame(result)`,
    `pyarrow.table(result)`.

    >>> import duckdb, sqlfl
    >>> with sqlfl.connect() as fed:
    ...     models = fed.sql("SHOW MODELS")
    >>> len(models), list(models), models.fetchone()
    (0, [], None)
    >>> models["name"].to_pylist()
    []
    >>> duckdb.sql("SELECT count(*) FROM models").fetchall()
    [(0,)]
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute(self, name, RESULT, dir(type(self)))

    def __init__(
        self,
        table: pa.Table,
        *,
        text: str | None = None,
        markup: Callable[[], str] | None = None,
        notes: Sequence[str] = (),
        figure: Callable[[pa.Table], Figure] | None = None,
    ):
        self.notes = tuple(notes)
        """Sentences about the rows, shown below them."""
        self._table = table
        self._text = text
        self._markup = markup
        self._figure = figure
        self._next = 0
        """Row that `fetchone` returns next."""

    @property
    def columns(self) -> list[str]:
        return list(self._table.column_names)

    def arrow(self) -> pa.Table:
        return self._table

    def df(self) -> Any:
        """Return a pandas DataFrame. Raise Error if pandas is not installed."""
        try:
            return self._table.to_pandas()
        except ModuleNotFoundError as error:
            raise Error("Result.df() needs pandas", hint="pip install pandas") from error

    def pl(self) -> Any:
        """Return a polars DataFrame. Raise Error if polars is not installed."""
        try:
            import polars
        except ModuleNotFoundError as error:
            raise Error("Result.pl() needs polars", hint="pip install polars") from error
        return polars.from_arrow(self._table)

    def to_pandas(self) -> Any:
        """As `df`, under the name that other libraries have for it."""
        return self.df()

    def to_polars(self) -> Any:
        """As `pl`, under the name that other libraries have for it."""
        return self.pl()

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        """Return the column of that name, an Arrow array: `to_numpy` and `to_pylist` give its
        values. Raise Error if no column has the name, or several have it."""
        if not isinstance(name, str):
            raise Error(
                f"a column is named by text, got {type(name).__name__}",
                hint="list(result) has the rows, as tuples",
            )
        number = self.columns.count(name)
        if number == 1:
            return self._table.column(name)
        close = nearest(name, self.columns)
        raise Error(
            f"{number} columns are called {name}" if number else f"there is no column {name:.80}",
            hint=f"did you mean {close}?" if close and not number else
            f"the columns are {', '.join(self.columns)}",
        )  # fmt: skip

    def own(self) -> tuple[str | None, str | None, Callable[[pa.Table], Figure] | None]:
        """Return text, HTML and drawing function; each is None if it follows from the rows."""
        return self._text, None if self._markup is None else self._markup(), self._figure

    def plot(self) -> Figure:
        """Return the rows as a matplotlib Figure, for ROC OF MODEL and similar statements.

        A notebook shows it; in a script: `result.plot().savefig("roc.png")`. Raise Error if the
        statement has no picture, or if matplotlib is missing.
        """
        if self._figure is None:
            raise Error(
                "this result has no picture",
                hint="CHECK, TUNE, and ROC, CONFUSION, CALIBRATION, RESIDUALS, WEIGHTS, INFERENCE "
                "and IMPORTANCE OF MODEL have; of a model's training: fed.model(name).plot()",
            )
        return self._figure(self._table)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows as tuples of Python values, whatever was fetched before."""
        return list(self)

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row, from the first one on; None after the last."""
        row = next(_rows(self._table.slice(self._next, 1)), None)
        self._next += row is not None
        return row

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return _rows(self._table)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the rows for another library, by the Arrow PyCapsule interface."""
        return self._table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __repr__(self) -> str:
        if self._text is not None:
            return sanitize.lines(self._text)
        rows = self._table.num_rows
        with empty_database() as con:
            shown = str(con.from_arrow(_short(self._table.slice(0, SHOWN)))).rstrip("\n")
        text = [sanitize.lines(shown)] + [f"the first {SHOWN} of {rows:,} rows"] * (rows > SHOWN)
        return "\n".join([*text, *(line for note in self.notes for line in wrap(note, WIDTH))])

    def _repr_html_(self) -> str:
        if self._markup is not None:
            return self._markup()
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return table_to_html(self._table) + notes


def _short(table: pa.Table) -> pa.Table:
    """Return numbers with the digits that HTML shows, so that more columns fit a line."""
    for place, field in enumerate(table.schema):
        if field.type == pa.float64():
            values = table.column(place).to_pylist()
            short = [None if value is None else float(_text(value)) for value in values]
            table = table.set_column(place, field, pa.array(short, pa.float64()))
        elif field.type == pa.list_(pa.float64()):
            texts = [None if v is None else _text(v) for v in table.column(place).to_pylist()]
            table = table.set_column(place, field.name, pa.array(texts, pa.string()))
    return table


def _rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    for batch in table.to_batches(max_chunksize=BATCH):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def table_to_html(table: pa.Table, limit: int = SHOWN) -> str:
    """Return an HTML table of the first `limit` rows, values escaped, with the number of rows
    below.
    """
    styles = [_NUMBER if _is_number(field.type) else _TEXT for field in table.schema]
    head = "".join(
        f'<th scope="col" title="{_escaped(str(field.type))}" '
        f'style="{style};border-bottom:{_LINE}">{_escaped(field.name)}</th>'
        for field, style in zip(table.schema, styles, strict=True)
    )
    columns = [_values(column) for column in table.slice(0, limit).columns]
    body = "".join(
        f"<tr>{''.join(_cell(value, style) for value, style in zip(row, styles, strict=True))}</tr>"
        for row in zip(*columns, strict=True)
    )
    return (
        f'<div style="overflow-x:auto"><table style="{_TABLE}">'
        f'<caption style="{_CAPTION}">{_count(table.num_rows, limit)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def facts_to_html(facts: Iterable[tuple[str, str]]) -> str:
    """Return an HTML table of names and texts; a text of several lines keeps its lines."""
    rows = "".join(
        f'<tr><th scope="row" style="{_FACT};white-space:nowrap">{_escaped(name)}</th>'
        f'<td style="{_FACT};max-width:50em;overflow-wrap:anywhere">{_block(text)}</td></tr>'
        for name, text in facts
    )
    return f'<table style="{_TABLE}"><tbody>{rows}</tbody></table>'


def _block(text: str) -> str:
    if "\n" not in text:
        return _escaped(text)
    return f'<pre style="margin:0;white-space:pre-wrap">{_escaped(text)}</pre>'


def _escaped(text: str) -> str:
    return html.escape(sanitize.lines(text))


def _count(rows: int, limit: int) -> str:
    if rows > limit:
        return f"the first {limit} of {rows:,} rows; .df() or .arrow() gives all"
    return "no rows" if rows == 0 else "1 row" if rows == 1 else f"{rows:,} rows"


def _cell(value: Any, style: str) -> str:
    if value is None:
        return f'<td style="{style}">{_NULL}</td>'
    text = _text(value)
    if len(text) <= CLIPPED:
        return f'<td style="{style}">{_escaped(text)}</td>'
    whole = text if len(text) <= TITLE else f"{text[: TITLE - 1]}…"
    shown = _escaped(f"{text[: CLIPPED - 1]}…")
    return f'<td style="{style}" title="{_escaped(whole)}">{shown}</td>'


def _values(column: pa.ChunkedArray) -> list[Any]:
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):  # times with nanoseconds, or beyond Python's years
        return list(column.cast(pa.string()).to_pylist())


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:.6g}"
    if isinstance(value, list):
        return f"[{', '.join('NULL' if v is None else _text(v) for v in value)}]"
    return str(value)
