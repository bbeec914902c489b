"""Joined rows piece by piece: which row of every slot each comes from, its target, what it counts.

They are written down, as arrays of all joined rows, or found again in each pass from groups of rows
with equal keys. Then no array has a row per joined row: targets are those of their slot's rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from sqlfl.arrays import Array
from sqlfl.coordinator.blocks import Blocks
from sqlfl.coordinator.factorised import Factorised
from sqlfl.coordinator.mapping import TableMapping

Rows: TypeAlias = Array | slice
"""Rows of a slot: integers (b,), or a range of them."""


class Grid(Protocol):
    """Which row of every slot with features some joined rows come from."""

    @property
    def count(self) -> int:
        """b, joined rows."""
        ...

    def take(self, slot: int, values: Array, into: Array) -> None:
        """A_i h, rows in the last axis: (..., n_i) -> `into` (..., b)."""
        ...

    def add(self, slot: int, into: Array, values: Array) -> None:
        """`into` (c, n_i) += A_iᵀ g of (c, b)."""
        ...


@dataclass(frozen=True, eq=False)
class Listed:
    """Joined rows one by one, added up in their order."""

    count: int
    rows: tuple[Rows, ...]

    def take(self, slot: int, values: Array, into: Array) -> None:
        rows = self.rows[slot]
        if isinstance(rows, slice):
            into[...] = values[..., rows]
            return
        rows = rows.astype(np.intp, copy=False)
        flat = values.reshape(-1, values.shape[-1])
        for line, target in zip(flat, into.reshape(len(flat), -1), strict=True):
            if line.dtype == target.dtype:
                line.take(rows, out=target, mode="clip")  # 'raise' would make a copy
            else:
                target[:] = line.take(rows)

    def add(self, slot: int, into: Array, values: Array) -> None:
        rows = self.rows[slot]
        if isinstance(rows, slice):
            into[:, rows] += values
            return
        for target, line in zip(into, values, strict=True):
            np.add.at(target, rows, line)


@dataclass(frozen=True, eq=False)
class Piece:
    """Some joined rows."""

    first: int
    """The number of the first one, where they are written down."""
    grid: Grid
    targets: Array
    """(b,)"""
    shares: Array | None
    """(b,): as `Problem.shares`; None for 1 of each."""

    @property
    def count(self) -> int:
        """b"""
        return self.grid.count

    @property
    def numbers(self) -> slice:
        """Of joined rows one after the other."""
        return slice(self.first, self.first + self.count)

    @property
    def counted(self) -> float:
        """Σ share."""
        return float(self.count if self.shares is None else self.shares.sum())

    def take(self, slot: int, values: Array, into: Array) -> None:
        """As `Grid.take`."""
        self.grid.take(slot, values, into)

    def add(self, slot: int, into: Array, values: Array) -> None:
        """As `Grid.add`."""
        self.grid.add(slot, into, values)


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

    def pieces(self, size: int, step: int = 1) -> Iterator[Piece]:
        """Of up to `size` joined rows after another, or of every `step`-th."""
        ...


class WrittenPieces:
    """Of arrays of N rows: mapping, targets, and shares where rows count differently."""

    def __init__(self, mapping: TableMapping, targets: Array, shares: Array | None) -> None:
        self._mapping = mapping
        self._targets = targets
        self._shares = shares
        self.total = len(targets)
        self.sizes = mapping.sizes

    def pieces(self, size: int, step: int = 1) -> Iterator[Piece]:
        slots = self._mapping.slots
        for start in range(0, self.total, size * step):
            chosen = slice(start, min(start + size * step, self.total), step)
            rows = tuple(chosen if slot.identity else slot.rows[chosen] for slot in slots)
            shares = None if self._shares is None else self._shares[chosen]
            grid = Listed(len(range(start, chosen.stop, step)), rows)
            yield Piece(start, grid, self._targets[chosen], shares)


class FoundPieces:
    """Of a mapping that need not be written down, with the targets of their slot's rows: products
    of groups of equal keys, where these are large, and single rows.

    slots: those with features; target: the slot of `targets` (n,).
    """

    def __init__(
        self, mapping: Factorised, slots: Sequence[int], target: int, targets: Array
    ) -> None:
        self._mapping = mapping
        self._blocks = Blocks(mapping)
        self._places = [mapping.slots.index(slot) for slot in slots]
        self._target = mapping.slots.index(target)
        self._targets = targets
        self.total = mapping.total
        self.sizes = tuple(mapping.sizes[place] for place in self._places)

    def pieces(self, size: int, step: int = 1) -> Iterator[Piece]:
        if step == 1:
            for block in self._blocks.blocks(size):
                own = self._targets[block.rows[self._target]]
                targets = np.broadcast_to(own, block.shape).reshape(-1)
                yield Piece(0, block.of(self._places), targets, None)
            return
        for rows in self._mapping.chunks(size, step):
            grid = Listed(len(rows[0]), tuple(rows[place] for place in self._places))
            yield Piece(0, grid, self._targets[rows[self._target]], None)
