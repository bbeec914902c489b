"""The encoded columns of a client's active rows, read from its database into arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sqlglot import exp

from sqlfl.base.arrays import Array, Float
from sqlfl.base.interrupts import checkpoint
from sqlfl.udfs import sql
from sqlfl.udfs.encoding.features import Encoding, categories_of, vocabulary_key_of
from sqlfl.udfs.numbering import keys
from sqlfl.udfs.numbering.arrow_snapshot import HeldRows

BATCH_BYTES = 1 << 22
"""Bytes of a batch's numeric columns, which are transposed in the cache."""


@dataclass(frozen=True, eq=False)
class EncodedColumns:
    """X, before the one-hot columns are centred, and the weights of its rows."""

    counts: Float
    """(a,)"""
    numeric: Numeric
    """(a, p)"""
    onehot: sparse.csr_array
    """(a, q) with a 1 for each known category; a row with an unknown value has none."""


def read_columns(
    con: sql.Connection,
    query: exp.Select,
    rows: int,
    encoding: Encoding,
    plain: Collection[int] = (),
) -> EncodedColumns:
    """Read the columns from the query of `encode` for rows 0..rows-1, in any order."""
    categories = len(encoding.vocabularies)
    counts = np.empty(rows)
    numeric = Numeric.empty(rows, encoding, plain)
    codes = np.empty((rows, categories), np.int32)
    size = BATCH_BYTES // (8 * max(encoding.numeric, 1))
    missing = False
    with sql.batches(con, query, min(max(size, 2048), 65536)) as batches:
        for batch in batches:
            row = batch.column("r").to_numpy()
            counts[row] = batch.column("cnt").to_numpy()
            for matrix, places in ((numeric.wide, numeric.beside), (numeric.single, numeric.at)):
                block = np.empty((len(places), len(row)), matrix.dtype)
                for k, p in enumerate(places):
                    column = batch.column(f"x{p}")
                    missing |= column.null_count > 0
                    block[k] = column.to_numpy(zero_copy_only=False)
                matrix[row] = block.T
            for c in range(categories):
                codes[row, c] = batch.column(f"k{c}").to_numpy()
    return EncodedColumns(counts, replace(numeric, missing=missing), _onehot(codes, encoding))


def held_columns(held: HeldRows, encoding: Encoding, plain: Collection[int] = ()) -> EncodedColumns:
    """Return the columns that `read_columns` gives for the same rows in temporary tables."""
    rows, given = len(held.counts), held.numbers
    numeric = Numeric.empty(rows, encoding, plain)
    missing = False
    for k, p in enumerate(numeric.at):
        numeric.single[:, k] = given[p]
        missing |= bool(np.isnan(given[p]).any())
    for k, p in enumerate(numeric.beside):
        if p < len(given):
            values = given[p].astype(np.float64)
            if encoding.limits is not None:
                np.clip(values, *encoding.limits[:, p], out=values)
        else:
            flags = held.missing[encoding.indicators[p - len(given)]]
            values = flags.astype(np.float64)
        values -= encoding.centres[p]
        values /= encoding.scales[p]
        values[np.isnan(values)] = 0.0
        numeric.wide[:, k] = values
    codes = np.empty((rows, len(encoding.vocabularies)), np.int32)
    for number, position in categories_of(encoding.features):
        codes_of_rows, entries = held.categories[position]
        codes[:, number] = known_codes(encoding, number, entries)[codes_of_rows]
    counts = held.counts.astype(np.float64)
    return EncodedColumns(counts, replace(numeric, missing=missing), _onehot(codes, encoding))


def known_codes(encoding: Encoding, number: int, texts: Sequence[bytes]) -> npt.NDArray[np.int32]:
    """Return the vocabulary entry of each canonical text, −1 without one."""
    shared = encoding.vocabulary_key
    entries = [text.decode() for text in texts] if shared is None else []
    if shared is not None:
        tags = keys.tags(vocabulary_key_of(shared, number), texts)
        entries = [tag.tobytes().hex() for tag in tags]
    places = {entry: code for code, entry in enumerate(encoding.vocabularies[number])}
    return np.array([places.get(entry, -1) for entry in entries], np.int32)


def _onehot(codes: npt.NDArray[Any], encoding: Encoding) -> sparse.csr_array:
    offsets = np.array(encoding.offsets[:-1], np.int64) - encoding.numeric
    known = codes >= 0
    ends = np.concatenate([[0], np.cumsum(known.sum(axis=1))])
    columns = (codes + offsets)[known]
    side = encoding.width - encoding.numeric
    small = max(side, int(ends[-1])) < np.iinfo(np.int32).max
    kind = np.int32 if small else np.int64
    entries = (np.ones(len(columns)), columns.astype(kind), ends.astype(kind))
    return sparse.csr_array(entries, shape=(len(codes), side))


_VALUES = 1 << 16
"""Numbers to widen to 8 bytes at once, so that they stay in the processor's cache."""
_BLOCK = 1 << 21
"""Numbers of a block that is multiplied by itself."""
_FAR = 100.0
"""Standard deviations from 0 to the mean."""


@dataclass(frozen=True, eq=False)
class Numeric:
    """(a, p) standardised columns. What the table has as FLOAT is held as it is there, and
    standardised in 8 bytes whenever it is used: nothing is rounded."""

    wide: Float
    """(a, p − s): the other columns, standardised."""
    single: npt.NDArray[np.float32]
    """(a, s): NaN where missing."""
    at: Array
    """(s,): which columns are single."""
    beside: Array
    """(p − s,): the others."""
    centre: Float
    """(s,)"""
    scale: Float
    """(s,)"""
    missing: bool = False
    """Some number of `single` is NaN."""

    @classmethod
    def empty(cls, rows: int, encoding: Encoding, single: Collection[int]) -> Numeric:
        """Return empty columns; `single` are those to store unchanged."""
        at = np.array(sorted(single), np.int64)
        beside = np.setdiff1d(np.arange(encoding.numeric), at)
        return cls(
            np.empty((rows, len(beside))),
            np.empty((rows, len(at)), np.float32),
            at,
            beside,
            encoding.centres[at],
            encoding.scales[at],
        )

    def nothing(self) -> Numeric:
        """The columns without rows."""
        return replace(self, wide=self.wide[:0].copy(), single=self.single[:0].copy())

    def __len__(self) -> int:
        return len(self.wide)

    @property
    def width(self) -> int:
        """p"""
        return len(self.at) + len(self.beside)

    def dot(self, theta: Float, rows: Array | None = None) -> Float:
        """(p, c) -> (a, c), or (b, c) of these rows."""
        wide = self.wide if rows is None else self.wide[rows]
        product: Float = wide @ theta[self.beside]
        if len(self.at):
            weights = theta[self.at] / self.scale[:, None]
            for part, numbers in self._pieces(rows):
                product[part] += numbers @ weights
            product -= (self.centre - self._origin) @ weights
        return product

    def transposed_dot(self, values: Float, rows: Array | None = None) -> Float:
        """(a, c), or (b, c) of these rows -> (p, c)."""
        product = np.empty((self.width, values.shape[1]))
        wide = self.wide if rows is None else self.wide[rows]
        product[self.beside] = wide.T @ values
        if len(self.at):
            sums = -np.outer(self.centre - self._origin, values.sum(axis=0))
            for part, numbers in self._pieces(rows):
                sums += numbers.T @ values[part]
            product[self.at] = sums / self.scale[:, None]
        return product

    def blocks(self) -> Iterator[tuple[slice, Float]]:
        """Yield all rows in blocks of some thousands: the slice, and (rows, p)."""
        size = min(max(_BLOCK // max(self.width, 1), 16), 16384)
        for start in range(0, len(self), size):
            checkpoint()
            part = slice(start, min(start + size, len(self)))
            yield part, self.block(part)

    def block(self, rows: slice | Array) -> Float:
        """(b, p)"""
        if not len(self.at):
            return self.wide[rows]
        standard = self._minus(self.centre, self.single[rows])
        standard /= self.scale
        if not len(self.beside):
            return standard
        values_ = np.empty((len(standard), self.width))
        values_[:, self.beside], values_[:, self.at] = self.wide[rows], standard
        return values_

    def whole(self, kind: npt.DTypeLike = np.float64) -> Array:
        """(a, p) of numbers of this kind."""
        if not len(self.at):
            return self.wide.astype(kind, copy=False)
        columns: Array = np.empty((len(self), self.width), kind)
        for part, block in self.blocks():
            columns[part] = block
        return columns

    @cached_property
    def _origin(self) -> Float:
        """(s,): the part of the centre that is subtracted from `single` before a product.
        Subtraction afterwards takes half the time, so this is 0 where it loses no digits.
        """
        near = not self.missing and (np.abs(self.centre) <= _FAR * self.scale).all()
        return np.zeros_like(self.centre) if near else self.centre

    def _pieces(self, rows: Array | None) -> Iterator[tuple[slice, Float]]:
        """(b, s), less the origin and not scaled, some rows at a time."""
        size = max(_VALUES // len(self.at), 16)
        for start in range(0, len(self) if rows is None else len(rows), size):
            part = slice(start, start + size)
            piece = self.single[part if rows is None else rows[part]]
            yield part, self._minus(self._origin, piece)

    def _minus(self, origin: Float, single: npt.NDArray[np.float32]) -> Float:
        """Subtract the origin; missing values count as the centre."""
        shifted = single.astype(np.float64)
        if origin.any():
            shifted -= origin
        if self.missing:
            np.copyto(shifted, self.centre - origin, where=np.isnan(shifted))
        return shifted
