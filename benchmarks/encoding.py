"""The columns of a query as a matrix: numbers standardised over its rows, NULLs as the mean and an
indicator, categories as one-hots.

The package centres one-hots as well. The intercept is free, so the optimum is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Array = npt.NDArray[Any]
CHUNK = 1 << 15
"""Rows that are encoded at once."""
COUNT = "joined_rows"
"""The column that says how many joined rows a row stands for, where equal ones are one."""


@dataclass(frozen=True)
class Number:
    name: str
    mean: float
    spread: float
    """Standard deviation, NULLs as the mean; 1 of a constant."""
    missing: float
    """Share of NULLs."""

    @property
    def width(self) -> int:
        return 2 if self.missing else 1

    def fill(self, column: pa.Array, out: Array) -> None:
        """Write the column to `out` (n, width)."""
        values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        if not self.missing:
            out[:, 0] = (values - self.mean) / self.spread
            return
        absent = column.is_null().to_numpy(zero_copy_only=False)
        out[:, 0] = np.where(absent, 0.0, (values - self.mean) / self.spread)
        out[:, 1] = (absent - self.missing) / np.sqrt(self.missing * (1 - self.missing))


@dataclass(frozen=True)
class Category:
    name: str
    values: tuple[str, ...]

    @property
    def width(self) -> int:
        return len(self.values)

    def fill(self, column: pa.Array, out: Array) -> None:
        codes = pc.index_in(column, pa.array(self.values, column.type)).to_numpy()
        out[np.arange(len(out)), codes] = 1


@dataclass(frozen=True)
class Encoding:
    """Of the columns of a query except y; `rows` and `classes` are the query's."""

    columns: tuple[Number | Category, ...]
    rows: int
    classes: tuple[Any, ...]
    """Values of y in their order; () where it is a number."""

    @classmethod
    def of(cls, con: duckdb.DuckDBPyConnection, query: str, *, classes: bool) -> Encoding:
        """Of the rows that have a y, by one pass over them in the database."""
        types = {name: str(kind) for name, kind, *_ in con.execute(f"DESCRIBE {query}").fetchall()}
        weight = COUNT if COUNT in types else "1"
        asked = [f"sum({weight})"]
        if classes:
            asked.append("list_sort(list(DISTINCT y))")
        for name, kind in types.items():
            if name in ("y", COUNT):
                continue
            if kind == "VARCHAR":
                asked.append(f"list_sort(list(DISTINCT {name}))")
            else:
                present = f"FILTER ({name} IS NOT NULL)"
                asked += [
                    f"coalesce(sum({weight} * CAST({name} AS DOUBLE)), 0)",
                    f"coalesce(sum({weight} * CAST({name} AS DOUBLE) ** 2), 0)",
                    f"coalesce(sum({weight}) {present}, 0)",
                ]
        found = con.execute(f"SELECT {', '.join(asked)} FROM ({query}) WHERE y IS NOT NULL")
        values = iter(found.fetchall()[0])
        rows = int(next(values))
        known = tuple(next(values)) if classes else ()
        columns: list[Number | Category] = []
        for name, kind in types.items():
            if name in ("y", COUNT):
                continue
            if kind == "VARCHAR":
                columns.append(Category(name, tuple(next(values))))
            else:
                columns.append(_number(name, rows, *(float(next(values)) for _ in range(3))))
        return cls(tuple(columns), rows, known)

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns)

    @property
    def starts(self) -> dict[str, int]:
        """Name -> the first column of the matrix that is its."""
        ends = np.cumsum([column.width for column in self.columns])
        return {c.name: int(end) - c.width for c, end in zip(self.columns, ends, strict=True)}

    def fill(self, rows: pa.Table | pa.RecordBatch, out: Array) -> None:
        """Write the rows' features to `out` (n, width), which is all 0."""
        for column in self.columns:
            start = self.starts[column.name]
            values = rows.column(column.name)
            values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
            column.fill(values, out[:, start : start + column.width])

    def targets(self, rows: pa.Table | pa.RecordBatch) -> Array:
        """float64 (n,) numbers, or int64 (n,) codes of `classes`."""
        y = rows.column("y")
        if not self.classes:
            return np.asarray(y.cast(pa.float64()).to_numpy())
        codes = pc.index_in(y, pa.array(self.classes, y.type))
        return np.asarray(codes.to_numpy(zero_copy_only=False)).astype(np.int64)


def _number(name: str, rows: int, total: float, squares: float, present: float) -> Number:
    mean = total / present if present else 0.0
    variance = (squares - present * mean**2) / rows
    constant = variance <= 1e-12 * squares / rows  # nothing but rounding
    return Number(name, mean, 1.0 if constant else float(np.sqrt(variance)), 1 - present / rows)


def columns_of(encoding: Encoding, names: Sequence[str]) -> Array:
    """The matrix' columns that belong to these features."""
    widths = {column.name: column.width for column in encoding.columns}
    return np.concatenate([encoding.starts[name] + np.arange(widths[name]) for name in names])
