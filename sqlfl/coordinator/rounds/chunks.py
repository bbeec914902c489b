"""Joined rows piece by piece: which row of every slot each comes from, its target, what it counts.

They are written down, as arrays of all joined rows, or found again in each pass from groups of rows
with equal keys. Then no array has a row per joined row: targets are those of their slot's rows. A
piece may be a product of groups, in which what belongs to a row is read and added up once for all
joined rows that it has there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.coordinator.blocks import RowBlocks
from sqlfl.coordinator.join.cutting import Cutting
from sqlfl.coordinator.join.factorised import Factorised, Tree
from sqlfl.coordinator.join.mapping import TableMapping
from sqlfl.coordinator.join.products import Products, joined_by, products
from sqlfl.coordinator.join.row_mapping import RowMapping, StoredMapping
from sqlfl.coordinator.rounds.chunk import Chunk, Rows
from sqlfl.coordinator.rounds.compiled_chunks import CompiledChunk, ProductChunk
from sqlfl.coordinator.rounds.runs import ends_of_runs
from sqlfl.models.native import library

SPREAD = 1 << 16
"""Joined rows of one piece that are found one by one, in arrays of their own."""
READ = 1 << 18
"""Numbers that are read from a file at once, where some of them are wanted."""


class Chunks(Protocol):
    """All joined rows of a problem, in an order that is the same each time."""

    @property
    def total(self) -> int:
        """N, joined rows."""
        ...

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each slot with features."""
        ...

    def pieces(self, size: int) -> Iterator[Chunk]:
        """Of up to `size` joined rows."""
        ...

    def some(self, numbers: Array) -> Chunk:
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

    def pieces(self, size: int) -> Iterator[Chunk]:
        for start in range(0, self.total, size):
            chosen = slice(start, min(start + size, self.total))
            yield self._piece(start, chosen.stop - start, chosen)

    def some(self, numbers: Array) -> Chunk:
        return self._piece(0, len(numbers), numbers)

    def _piece(self, first: int, count: int, chosen: Rows) -> Chunk:
        rows = [chosen if slot.identity else slot.rows[chosen] for slot in self.mapping.slots]
        targets = self.targets[chosen]
        shares = None if self.shares is None else self.shares[chosen]
        runs = self._runs if isinstance(chosen, slice) else ()
        return _of_rows(first, count, rows, targets, shares, runs)

    @cached_property
    def _runs(self) -> tuple[Array | None, ...]:
        """As `CompiledPiece` has them."""
        slots = self.mapping.slots
        return tuple(None if slot.identity else ends_of_runs(slot.rows) for slot in slots)


def _of_rows(
    first: int,
    count: int,
    rows: Iterable[Rows],
    targets: Array,
    shares: Array | None = None,
    runs: tuple[Array | None, ...] = (),
) -> Chunk:
    """Of the row of every slot of each joined row."""
    if library() is not None:
        own = (r if isinstance(r, slice) else r.astype(np.int32, copy=False) for r in rows)
        return CompiledChunk(first, count, tuple(own), targets, shares, runs=runs)
    # of the machine's own width: else each use of them would make them so
    wide = (r if isinstance(r, slice) else r.astype(np.intp, copy=False) for r in rows)
    return Chunk(first, count, tuple(wide), targets, shares)


def found_pieces(mapping: RowMapping, slots: Sequence[int], target: int, targets: Array) -> Chunks:
    """Of a mapping that need not be written down, with the targets of their slot's rows.

    slots: those with features; target: the slot of `targets` (n,).
    """
    if isinstance(mapping, StoredMapping):
        return StoredPieces(mapping, slots, target, targets)
    if not isinstance(mapping, Factorised):
        raise InternalError("joined rows that are in arrays")
    kind = FoundPieces if library() is None else ProductPieces
    return kind(mapping, slots, target, targets)


class FoundPieces:
    """Blocks of keys with as many rows."""

    def __init__(
        self, mapping: Factorised, slots: Sequence[int], target: int, targets: Array
    ) -> None:
        self.mapping = mapping
        self.slots = tuple(slots)
        self.target = target
        self.targets = targets
        self._blocks = RowBlocks(mapping)
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

    def some(self, numbers: Array) -> Chunk:
        rows = self.mapping.at(numbers)
        own = tuple(rows[place].astype(np.intp, copy=False) for place in self._places)
        return Chunk(0, len(numbers), own, self.targets.take(rows[self._target]), None)

    def pieces(self, size: int) -> Iterator[Chunk]:
        first = 0
        for block in self._blocks.blocks(size):
            own = tuple(block.rows[place] for place in self._places)
            targets = np.empty(block.shape, self.targets.dtype)
            targets[...] = self.targets.take(block.rows[self._target])
            shape = block.shape if len(block.shape) > 1 else ()
            yield Chunk(first, block.count, own, targets.reshape(-1), None, shape)
            first += block.count


class ProductPieces:
    """For the compiled library: keys by themselves, however many rows they have."""

    def __init__(
        self, mapping: Factorised, slots: Sequence[int], target: int, targets: Array
    ) -> None:
        self.mapping = mapping
        self.slots = tuple(slots)
        self.target = target
        self.targets = targets
        self._grouped: list[_Grouped] = []
        self._others: list[tuple[Tree, int, int]] = []
        """With the first and the end of its joined rows."""
        for tree in mapping.trees:
            grouped = _Grouped.of(products(tree), slots, target, targets)
            if grouped is None:
                self._others.append((tree, 0, tree.total))
            else:
                self._grouped.append(grouped)
        self.total = mapping.total
        sizes = dict(zip(mapping.slots, mapping.sizes, strict=True))
        self.sizes = tuple(sizes[slot] for slot in slots)

    def cut(self, parts: int) -> list[ProductPieces]:
        """As `FoundPieces.cut`."""
        cutting, before = Cutting(self.total, parts), 0
        found = [copy(self) for _ in range(parts)]
        for part in found:
            part.total, part._grouped, part._others = 0, [], []
        for grouped in self._grouped:
            kept: list[list[Array]] = [[] for _ in range(parts)]
            for keys in grouped.products.parts(cutting.most):
                number, count = cutting.part(before), joined_by(keys)
                kept[number].append(keys)
                found[number].total += count
                before += count
            for part, several in zip(found, kept, strict=True):
                part._grouped += [grouped.of_keys(np.concatenate(several))] if several else []
        for tree, first, end in self._others:
            for number, begin, close in cutting.ranges(before, first, end):
                found[number]._others.append((tree, begin, close))
                found[number].total += close - begin
            before += end - first
        return [part for part in found if part.total]

    def some(self, numbers: Array) -> Chunk:
        rows = dict(zip(self.mapping.slots, self.mapping.at(numbers), strict=True))
        return self._piece(0, len(numbers), rows)

    def pieces(self, size: int) -> Iterator[Chunk]:
        first = 0
        for piece in self._unnumbered(size):
            yield replace(piece, first=first)
            first += piece.count

    def _unnumbered(self, size: int) -> Iterator[Chunk]:
        for grouped in self._grouped:
            yield from grouped.pieces(size)
        for tree, begin, close in self._others:
            most = size if tree.bounds is None else min(size, SPREAD)
            for first in range(begin, close, most):
                end = min(first + most, close)
                yield self._piece(0, end - first, tree.between(first, end))

    def _piece(self, first: int, count: int, rows: Mapping[int, Rows]) -> Chunk:
        own = (rows[slot] for slot in self.slots)
        return _of_rows(first, count, own, self.targets[rows[self.target]])


@dataclass(frozen=True, eq=False)
class _Grouped:
    """The joined rows of a tree as products, with what a piece has of them all."""

    products: Products
    rows: tuple[Array, ...]
    targets: Array
    far: tuple[bool, ...]

    @classmethod
    def of(
        cls, found: Products | None, slots: Sequence[int], target: int, targets: Array
    ) -> _Grouped | None:
        if found is None:
            return None
        every = found.near | found.far
        far = tuple(slot in found.far for slot in (*slots, target))
        return cls(found, tuple(every[slot] for slot in slots), targets[every[target]], far)

    def of_keys(self, keys: Array) -> _Grouped:
        """The joined rows of these keys alone."""
        return replace(self, products=replace(self.products, keys=keys))

    def pieces(self, size: int) -> Iterator[Chunk]:
        for keys in self.products.parts(size):
            count = joined_by(keys)
            own = self.rows, self.targets, None
            yield ProductChunk(0, count, *own, keys=keys, far=self.far)


class StoredPieces:
    """Read from files."""

    def __init__(
        self, mapping: StoredMapping, slots: Sequence[int], target: int, targets: Array
    ) -> None:
        self._mapping = mapping
        self._slots = tuple(slots)
        self._target = target
        self._targets = targets
        self._first = 0
        self.total = mapping.total
        sizes = dict(zip(mapping.slots, mapping.sizes, strict=True))
        self.sizes = tuple(sizes[slot] for slot in slots)

    def cut(self, parts: int) -> list[StoredPieces]:
        """As `FoundPieces.cut`."""
        found = [copy(self) for _ in range(parts)]
        for number, part in enumerate(found):
            part._first = self.total * number // parts
            part.total = self.total * (number + 1) // parts - part._first
        return [part for part in found if part.total]

    def some(self, numbers: Array) -> Chunk:
        """By one reading of the files from the first of them to the last."""
        found = {slot: np.empty(len(numbers), np.int32) for slot in {*self._slots, self._target}}
        start, first = 0, int(numbers[0]) if len(numbers) else 0
        while start < len(numbers):
            end = start + int(np.searchsorted(numbers[start:], first + READ))
            for slot, into in found.items():
                rows = self._mapping.part(slot, first, min(first + READ, self._mapping.total))
                into[start:end] = rows[numbers[start:end] - first]
            start = end
            first = int(numbers[start]) if start < len(numbers) else first
        return self._piece(0, found, len(numbers))

    def pieces(self, size: int) -> Iterator[Chunk]:
        every = {*self._slots, self._target}
        for first in range(0, self.total, size):
            count = min(size, self.total - first)
            start = self._first + first
            found = {slot: self._mapping.part(slot, start, start + count) for slot in every}
            yield self._piece(first, found, count)

    def _piece(self, first: int, found: Mapping[int, Array], count: int) -> Chunk:
        own = (found[slot] for slot in self._slots)
        return _of_rows(first, count, own, self._targets.take(found[self._target]))
