"""Joined rows piece by piece: which row of every slot each comes from, its target, what it counts.

They are written down, as arrays of all joined rows, or found again in each pass from groups of rows
with equal keys. Then no array has a row per joined row: targets are those of their slot's rows. A
piece may be a product of groups, in which what belongs to a row is read and added up once for all
joined rows that it has there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from sqlfl.arrays import Array
from sqlfl.coordinator.blocks import Blocks
from sqlfl.coordinator.factorised import Factorised
from sqlfl.coordinator.mapping import TableMapping

Rows: TypeAlias = Array | slice
"""Rows of a slot: a range of them, or integers that broadcast to the shape of a piece."""


@dataclass(frozen=True, eq=False)
class Piece:
    """Some joined rows."""

    first: int
    """The number of the first one."""
    count: int
    """b"""
    rows: tuple[Rows, ...]
    """Of every slot with features, in the order of the problem."""
    targets: Array
    """(b,)"""
    shares: Array | None
    """(b,): as `Problem.shares`; None for 1 of each."""
    shape: tuple[int, ...] = ()
    """Of a product of groups, whose joined rows are counted in that order; else none."""

    @property
    def numbers(self) -> slice:
        """Of joined rows one after the other."""
        return slice(self.first, self.first + self.count)

    @property
    def counted(self) -> float:
        """Σ share."""
        return float(self.count if self.shares is None else self.shares.sum())

    def take(self, slot: int, values: Array, into: Array) -> None:
        """A_i h, rows in the last axis: (..., n_i) -> `into` (..., b)."""
        rows = self.rows[slot]
        if isinstance(rows, slice):
            into[...] = values[..., rows]
            return
        if self.shape:
            # a view: the last axis is cut alone
            into.reshape(*into.shape[:-1], *self.shape)[...] = values[..., rows]
            return
        rows = rows.astype(np.intp, copy=False)
        flat = values.reshape(-1, values.shape[-1])
        for line, target in zip(flat, into.reshape(len(flat), -1), strict=True):
            if line.dtype == target.dtype:
                line.take(rows, out=target, mode="clip")  # 'raise' would make a copy
            else:
                target[:] = line.take(rows)

    def add(self, slot: int, into: Array, values: Array) -> None:
        """`into` (c, n_i) += A_iᵀ g of (c, b), in the order of joined rows."""
        rows = self.rows[slot]
        if isinstance(rows, slice):
            into[:, rows] += values
            return
        if self.shape:
            values = values.reshape(len(values), *self.shape)
            for axis, (own, whole) in enumerate(zip(rows.shape, self.shape, strict=True), 1):
                if own < whole:
                    values = values.sum(axis=axis, keepdims=True)
        for target, line in zip(into, values, strict=True):
            np.add.at(target, rows.reshape(-1), line.reshape(-1))

    def of(self, slot: int, values: Array) -> Array:
        """A_i h: (n_i, c) -> (b, c)."""
        rows = self.rows[slot]
        if self.shape and not isinstance(rows, slice):
            rows = np.broadcast_to(rows, self.shape).reshape(-1)
        found: Array = values[rows]
        return found


class Pieces(Protocol):
    """All joined rows of a problem, in an order that is the same each time."""

    @property
    def total(self) -> int:
        """N, joined rows."""
        ...

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each slot with features."""
        ...

    def pieces(self, size: int) -> Iterator[Piece]:
        """Of up to `size` joined rows."""
        ...

    def some(self, numbers: Array) -> Piece:
        """The joined rows of these numbers (b,), ascending; `Piece.numbers` are not told."""
        ...


class WrittenPieces:
    """Of arrays of N rows: mapping, targets, and shares where rows count differently."""

    def __init__(self, mapping: TableMapping, targets: Array, shares: Array | None) -> None:
        self.mapping = mapping
        self.targets = targets
        self.shares = shares
        self.total = len(targets)
        self.sizes = mapping.sizes

    def pieces(self, size: int) -> Iterator[Piece]:
        for start in range(0, self.total, size):
            chosen = slice(start, min(start + size, self.total))
            yield self._piece(start, chosen.stop - start, chosen)

    def some(self, numbers: Array) -> Piece:
        return self._piece(0, len(numbers), numbers)

    def _piece(self, first: int, count: int, chosen: Rows) -> Piece:
        # of the machine's own width: else each use of them would make them so
        rows = (
            chosen if slot.identity else slot.rows[chosen].astype(np.intp)
            for slot in self.mapping.slots
        )
        shares = None if self.shares is None else self.shares[chosen]
        return Piece(first, count, tuple(rows), self.targets[chosen], shares)


class FoundPieces:
    """Of a mapping that need not be written down, with the targets of their slot's rows.

    slots: those with features; target: the slot of `targets` (n,).
    """

    def __init__(
        self, mapping: Factorised, slots: Sequence[int], target: int, targets: Array
    ) -> None:
        self.mapping = mapping
        self.slots = tuple(slots)
        self.target = target
        self.targets = targets
        self._blocks = Blocks(mapping)
        self._places = [mapping.slots.index(slot) for slot in slots]
        self._target = mapping.slots.index(target)
        self.total = mapping.total
        self.sizes = tuple(mapping.sizes[place] for place in self._places)

    def cut(self, parts: int) -> list[FoundPieces]:
        """Up to as many parts of about as many joined rows each; `some` is still of all rows."""
        found = []
        for blocks in self._blocks.cut(parts):
            part = copy(self)
            part._blocks, part.total = blocks, blocks.total
            found.append(part)
        return found

    def some(self, numbers: Array) -> Piece:
        rows = self.mapping.at(numbers)
        own = tuple(rows[place].astype(np.intp, copy=False) for place in self._places)
        return Piece(0, len(numbers), own, self.targets.take(rows[self._target]), None)

    def pieces(self, size: int) -> Iterator[Piece]:
        first = 0
        for block in self._blocks.blocks(size):
            own = tuple(block.rows[place] for place in self._places)
            targets = np.empty(block.shape, self.targets.dtype)
            targets[...] = self.targets.take(block.rows[self._target])
            shape = block.shape if len(block.shape) > 1 else ()
            yield Piece(first, block.count, own, targets.reshape(-1), None, shape)
            first += block.count
