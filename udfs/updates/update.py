"""The local steps of training, as queries on the party's own DuckDB.

X̃ is the centred encoded matrix of a slot's active rows at one client: X̃ = X − 1 μᵀ, where X has
plain one-hot columns and μ is `Encoding.centre`. Every step works on X and corrects by μ.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import sparse
from sqlglot import exp

from sqlfl.base.arrays import Array, Float
from sqlfl.base.errors import InternalError
from sqlfl.models.gram import GramMatrix
from sqlfl.udfs import sql
from sqlfl.udfs.encoding.columns import encode, end_encode, read_columns
from sqlfl.udfs.encoding.features import CHUNK, Encoding
from sqlfl.udfs.numbering.rows import Snapshot

Index = npt.NDArray[Any]
_BLOCK = 64
"""Numeric columns a side of the blocks in which the Gram matrix is summed."""


class LinearEngine(Protocol):
    """Linear algebra with X̃, in any place.

    `batch` holds distinct active rows (b,), in any order, which is also the order of the values;
    None means all rows, 0..a-1.
    """

    name: str
    """'sql' or 'arrays'."""
    rows: int
    """a, the active rows."""
    width: int
    """d, the encoded columns."""
    numeric: int
    """p: the first columns are numeric, the others one-hot."""
    centre: Float
    """(d,): μ of the one-hot columns, 0 for numeric ones."""
    offsets: tuple[int, ...]
    """Per category feature its first column; and at the end the width."""

    @property
    def counts(self) -> Float:
        """Return (a,): the total weight of each active row's joined rows."""
        ...

    def predict(self, theta: Float, batch: Index | None = None) -> Float:
        """X̃ θ: (d, c) -> (a, c), or (b, c) for a batch."""
        ...

    def gradient(self, values: Float, batch: Index | None = None) -> Float:
        """X̃ᵀ V: (a, c), or (b, c) for a batch -> (d, c)."""
        ...

    def gram(self) -> GramMatrix:
        """Σ cnt x xᵀ over all active rows, before the one-hot columns are centred."""
        ...

    def norms(self) -> Float:
        """‖x̃_r‖ of every active row: (a,), as √(‖x‖² − 2 x·μ + ‖μ‖²), exact to about 1e-7."""
        ...

    def columns(self, kind: npt.DTypeLike = np.float64) -> tuple[Array, sparse.csr_array]:
        """X: the numeric columns (a, p) as numbers of this kind, the one-hot columns (a, d − p)."""
        ...

    def close(self) -> None:
        """Release the matrix; the snapshot stays."""
        ...


def check_theta(engine: LinearEngine, theta: Float) -> Float:
    """Return `theta` as float64. Raise InternalError unless it is (d, c)."""
    theta = np.asarray(theta, np.float64)
    if theta.ndim != 2 or len(theta) != engine.width:
        raise InternalError(f"θ must be ({engine.width}, c); got {theta.shape}")
    return theta


def check_values(engine: LinearEngine, values: Float, batch: Index | None) -> Float:
    """Return `values` as float64. Raise InternalError unless there is a row for each active (batch)
    row.
    """
    values = np.asarray(values, np.float64)
    size = engine.rows if batch is None else len(batch)
    if values.ndim != 2 or len(values) != size:
        raise InternalError(f"values must be ({size}, c); got {values.shape}")
    return values


class SqlEngine:
    """The reference: every step is a query over an encoded temporary table."""

    name = "sql"

    def __init__(self, con: sql.Connection, snapshot: Snapshot, encoding: Encoding) -> None:
        self._con = con
        self._snapshot = snapshot
        self._encoding = encoding
        self.rows = snapshot.active
        self.width = encoding.width
        self.numeric = encoding.numeric
        self.centre = encoding.centre
        self.offsets = encoding.offsets
        self._counts: Float | None = None
        self._table = snapshot.fresh("encoded")
        snapshot.create(self._table, encode(snapshot, encoding))
        end_encode(snapshot)

    @property
    def counts(self) -> Float:
        if self._counts is None:
            columns = [sql.column("r"), sql.column("cnt")]
            rows = self._run(sql.select(self._snapshot.table(self._table), columns), {})
            self._counts = np.empty(self.rows)
            self._counts[rows["r"]] = rows["cnt"]
        return self._counts

    def predict(self, theta: Float, batch: Index | None = None) -> Float:
        theta = check_theta(self, theta)
        outputs = theta.shape[1]
        encoding, offsets = self._encoding, self._encoding.offsets
        tables = {"theta": _wide_theta(theta, encoding.numeric, self.centre @ theta)}
        terms: list[exp.Expr] = [
            sql.times(sql.column(f"x{p}", "t"), sql.column(f"x{p}", "w"))
            for p in range(encoding.numeric)
        ]
        for number in range(len(encoding.vocabularies)):
            block = theta[offsets[number] : offsets[number + 1]]
            tables[f"theta{number}"] = _long(block, "code")
            weight = sql.column("value", f"w{number}")
            terms.append(sql.call("coalesce", weight, sql.cast(sql.number(0), "DOUBLE")))
        position = sql.column("r", "t") if batch is None else sql.column("position", "b")
        result = sql.minus(
            sql.add([*terms, sql.cast(sql.number(0), "DOUBLE")]), sql.column("shift", "w")
        )
        query = exp.select(
            sql.named(position, "position"), sql.column("k", "w"), sql.named(result, "value")
        ).from_(self._snapshot.table(self._table, "t"))
        if batch is not None:
            tables["batch"] = _batch_table(batch)
            query = query.join(self._given("batch", "b"), on=_same("r", "t", "b"))
        query = query.join(self._given("theta", "w"), join_type="cross")
        for number in range(len(encoding.vocabularies)):
            match = exp.and_(
                sql.equal(sql.column(f"k{number}", "t"), sql.column("code", f"w{number}")),
                _same("k", "w", f"w{number}"),
            )
            other = self._given(f"theta{number}", f"w{number}")
            query = query.join(other, on=match, join_type="left")
        rows = self._run(query, tables)
        h = np.empty((self.rows if batch is None else len(batch), outputs))
        h[rows["position"], rows["k"]] = rows["value"]
        return h

    def gradient(self, values: Float, batch: Index | None = None) -> Float:
        values = check_values(self, values, batch)
        encoding = self._encoding
        rows = np.arange(self.rows) if batch is None else np.asarray(batch)
        tables = {"values": _long(values, "r", rows)}
        gradient = np.zeros((self.width, values.shape[1]))
        weight, source = sql.column("value", "v"), self._snapshot.table(self._table, "t")
        joined = exp.select(sql.column("k", "v")).from_(source)
        joined = joined.join(self._given("values", "v"), on=_same("r", "t", "v"))
        with self._registered(tables):
            for start in range(0, encoding.numeric, CHUNK):
                chunk = range(start, min(start + CHUNK, encoding.numeric))
                sums = (
                    sql.named(sql.total(sql.times(sql.column(f"x{p}", "t"), weight)), f"x{p}")
                    for p in chunk
                )
                query = joined.select(*sums).group_by(sql.column("k", "v"))
                numbers = sql.columns(self._con, query)
                for p in chunk:
                    gradient[p, numbers["k"]] = numbers[f"x{p}"]
            for number, offset in enumerate(encoding.offsets[:-1]):
                code = sql.column(f"k{number}", "t")
                query = joined.select(
                    sql.named(code, "code"), sql.named(sql.total(weight), "value")
                )
                entries = sql.columns(self._con, query.group_by(code, sql.column("k", "v")))
                known = entries["code"] >= 0
                place = entries["code"][known] + offset, entries["k"][known]
                gradient[place] = entries["value"][known]
            query = joined.select(sql.named(sql.total(weight), "value"))
            value_sums = sql.columns(self._con, query.group_by(sql.column("k", "v")))
        totals = np.zeros(values.shape[1])
        totals[value_sums["k"]] = value_sums["value"]
        return gradient - np.outer(self.centre, totals)

    def gram(self) -> GramMatrix:
        encoding, size = self._encoding, self._encoding.numeric
        categories = len(encoding.vocabularies)
        numeric = np.zeros((size, size))
        for start in range(0, size, _BLOCK):
            for other in range(start, size, _BLOCK):
                self._add_products(start, other, numeric)
        moments = np.zeros(self.width)
        for start in range(0, size, CHUNK):
            chunk = range(start, min(start + CHUNK, size))
            moments[chunk] = self._single([_weighted(sql.column(f"x{p}")) for p in chunk])
        cross = np.zeros((self.width - size, size))
        for number in range(categories):
            self._add_cross(number, cross, moments)
        weight = self._single([_weighted()])[0]
        return GramMatrix(numeric, cross, self._onehot(), moments, float(weight))

    def norms(self) -> Float:
        zero = sql.cast(sql.number(0), "DOUBLE")
        terms: list[exp.Expr] = [
            sql.times(sql.column(f"x{p}", "t"), sql.column(f"x{p}", "t"))
            for p in range(self.numeric)
        ]
        tables = {}
        query = exp.select(sql.column("r", "t")).from_(self._snapshot.table(self._table, "t"))
        for number, (start, end) in enumerate(pairwise(self.offsets)):
            moved = 1.0 - 2.0 * self.centre[start:end, None]
            tables[f"moved{number}"] = _long(moved, "code")
            other = self._given(f"moved{number}", f"w{number}")
            match = sql.equal(sql.column(f"k{number}", "t"), sql.column("code", f"w{number}"))
            query = query.join(other, on=match, join_type="left")
            terms.append(sql.call("coalesce", sql.column("value", f"w{number}"), zero.copy()))
        rows = self._run(query.select(sql.named(sql.add([*terms, zero]), "square")), tables)
        squares = np.empty(self.rows)
        squares[rows["r"]] = rows["square"] + self.centre @ self.centre
        norms: Float = np.sqrt(np.maximum(squares, 0.0))
        return norms

    def columns(self, kind: npt.DTypeLike = np.float64) -> tuple[Array, sparse.csr_array]:
        query = exp.select(exp.Star()).from_(self._snapshot.table(self._table))
        encoded = read_columns(self._con, query, self.rows, self._encoding)
        return encoded.numeric.whole(kind), encoded.onehot

    def close(self) -> None:
        self._snapshot.drop_part(self._table)

    def _add_products(self, start: int, other: int, numeric: Float) -> None:
        """Two blocks of the numeric part: columns from `start` on times columns from `other` on.

        The first are turned into rows, so that a statement of _BLOCK sums gives _BLOCK² products.
        """
        size = self._encoding.numeric
        first = range(start, min(start + _BLOCK, size))
        second = range(other, min(other + _BLOCK, size))
        weighted = [sql.times(sql.column("cnt"), sql.column(f"x{i}")) for i in first]
        numbers: list[exp.Expr] = [sql.number(i) for i in first]
        rows = [
            sql.named(sql.call("unnest", sql.call("list_value", *weighted)), "v"),
            sql.named(sql.call("unnest", sql.call("list_value", *numbers)), "i"),
        ]
        columns = [sql.column(f"x{j}") for j in second]
        tall = sql.select(self._snapshot.table(self._table), [*rows, *columns])
        sums = [
            sql.named(sql.total(sql.times(sql.column("v"), sql.column(f"x{j}"))), f"x{j}")
            for j in second
        ]
        query = sql.select(tall.subquery("u", copy=False), [sql.column("i"), *sums])
        products = self._run(query.group_by(sql.column("i")), {})
        for j in second:
            numeric[products["i"], j] = numeric[j, products["i"]] = products[f"x{j}"]

    def _add_cross(self, number: int, cross: Float, moments: Float) -> None:
        """Add the sums of every numeric column, and of 1, by the entries of one
        category feature.
        """
        size, offset = self._encoding.numeric, self._encoding.offsets[number]
        code = sql.column(f"k{number}")
        for start in range(0, max(size, 1), CHUNK):
            chunk = range(start, min(start + CHUNK, size))
            sums = [sql.named(_weighted(sql.column(f"x{p}")), f"x{p}") for p in chunk]
            query = exp.select(sql.named(code, "code"), sql.named(_weighted(), "one"), *sums)
            query = query.from_(self._snapshot.table(self._table)).group_by(code.copy())
            rows = self._run(query, {})
            known = rows["code"] >= 0
            entries = rows["code"][known] + offset
            moments[entries] = rows["one"][known]
            for p in chunk:
                cross[entries - size, p] = rows[f"x{p}"][known]

    def _onehot(self) -> sparse.csr_array:
        encoding, size = self._encoding, self._encoding.numeric
        side = self.width - size
        rows, columns, values = [np.zeros(0, int)], [np.zeros(0, int)], [np.zeros(0)]
        for i in range(len(encoding.vocabularies)):
            for j in range(i, len(encoding.vocabularies)):
                first, second = sql.column(f"k{i}"), sql.column(f"k{j}")
                query = (
                    exp.select(
                        sql.named(first, "i"), sql.named(second, "j"), sql.named(_weighted(), "n")
                    )
                    .from_(self._snapshot.table(self._table))
                    .group_by(first.copy(), second.copy())
                )
                pairs = self._run(query, {})
                known = (pairs["i"] >= 0) & (pairs["j"] >= 0) & (pairs["n"] > 0)
                left = pairs["i"][known] + encoding.offsets[i] - size
                right = pairs["j"][known] + encoding.offsets[j] - size
                rows.append(left)
                columns.append(right)
                values.append(pairs["n"][known])
                if i != j:
                    rows.append(right)
                    columns.append(left)
                    values.append(pairs["n"][known])
        entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
        return sparse.csr_array(sparse.coo_array(entries, shape=(side, side)))

    def _given(self, part: str, alias: str) -> exp.Table:
        return self._snapshot.table(f"given_{part}", alias)

    def _run(self, query: exp.Select, tables: dict[str, pa.Table]) -> dict[str, Any]:
        """Return the query's columns, with `tables` registered."""
        with self._registered(tables):
            return sql.columns(self._con, query)

    @contextmanager
    def _registered(self, tables: dict[str, pa.Table]) -> Iterator[None]:
        """Register `tables`, in the block, under the names that `_given` makes."""
        names = [self._snapshot.name(f"given_{part}") for part in tables]
        for name, table in zip(names, tables.values(), strict=True):
            self._con.register(name, table)
        try:
            yield
        finally:
            for name in names:
                self._con.unregister(name)

    def _single(self, terms: list[exp.Expr]) -> Float:
        query = sql.select(self._snapshot.table(self._table), terms)
        return np.array(sql.fetch(self._con, query)[0], np.float64)


def _weighted(*columns: exp.Expr) -> exp.Expr:
    """Σ cnt · the product of the columns."""
    product: exp.Expr = sql.cast(sql.column("cnt"), "DOUBLE")
    for column in columns:
        product = exp.Mul(this=product, expression=column)
    return sql.total(product)


def _same(name: str, left: str, right: str) -> exp.Expr:
    return sql.equal(sql.column(name, left), sql.column(name, right))


def _wide_theta(theta: Float, numeric: int, shift: Float) -> pa.Table:
    """A row per output k: the weights x<p> of the numeric columns, and μᵀθ as shift."""
    fields = {f"x{p}": theta[p] for p in range(numeric)}
    return pa.table({"k": np.arange(theta.shape[1], dtype=np.int32), "shift": shift, **fields})


def _long(values: Float, name: str, labels: Index | None = None) -> pa.Table:
    """A row per element: label of its row, column k, value."""
    if labels is None:
        labels = np.arange(len(values))
    outputs = values.shape[1]
    return pa.table({
        name: np.repeat(labels.astype(np.int32), outputs),
        "k": np.tile(np.arange(outputs, dtype=np.int32), len(values)),
        "value": np.ascontiguousarray(values).reshape(-1),
    })  # fmt: skip


def _batch_table(batch: Index) -> pa.Table:
    return pa.table({
        "r": np.asarray(batch, np.uint32),
        "position": np.arange(len(batch), dtype=np.int32),
    })  # fmt: skip
