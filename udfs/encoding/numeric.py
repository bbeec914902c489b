"""The numeric columns of X̃ in memory; FLOAT columns stay in 4 bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sqlfl.base.arrays import Array, Float
from sqlfl.base.interrupts import checkpoint
from sqlfl.udfs.encoding.features import Encoding

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
