"""Chunks of the joined rows: for each joined row its row in every slot, its target and its share.

Joined rows are either written down, as arrays of N rows, or found again in each pass from groups of
rows with equal keys. In the second case no array has a row per joined row, and the targets are
those of their slot's rows.

A chunk may be a product of groups. Then each value of a row is read and added up once for all its
joined rows in the chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, Protocol, TypeVar

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.coordinator.blocks import Cutting, RowBlocks
from sqlfl.coordinator.join.factorised import Factorised, Products, Tree, joined_by, products
from sqlfl.coordinator.join.row_mapping import RowMapping, StoredMapping
from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.coordinator.rounds.chunk import Chunk, Rows
from sqlfl.coordinator.rounds.compiled_chunks import CompiledChunk, ProductChunk
from sqlfl.models.native import library

LONG = 32
"""Mean number of joined rows in a run from which its values are read and added up once."""
CHUNK = 1 << 16


def ends_of_runs(rows: Array) -> Array | None:
    """Return the ends of the runs of equal rows, ascending: int64 (runs,). The last end is
    len(rows).

    Return None if runs are short. The first `CHUNK` rows mostly decide that.
    """
    ends_of_parts = []
    ended = 0
    for start in range(0, len(rows), CHUNK):
        part = rows[start : start + CHUNK + 1]
        ends_of_parts.append(np.flatnonzero(part[1:] != part[:-1]) + (start + 1))
        ended += len(ends_of_parts[-1])
        if ended * LONG > start + CHUNK:
            return None
    ends = np.concatenate([*ends_of_parts, [len(rows)]]).astype(np.int64)
    return ends if len(ends) * LONG <= len(rows) else None


SPREAD = 1 << 16
"""Maximum number of joined rows in a chunk whose rows are found one by one, in arrays of their own.
"""
READ = 1 << 18
"""Numbers to read from a file at once where a caller wants some of them."""


class Chunks(Protocol):
    """All joined rows of a problem, in the same order in each pass."""

    @property
    def total(self) -> int:
        """Return N, the number of joined rows."""
        ...

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the number of rows of each slot with features."""
        ...

    def pieces(self, size: int) -> Iterator[Chunk]:
        """Yield chunks of up to `size` joined rows."""
        ...

    def some(self, numbers: Array) -> Chunk:
        """Return the joined rows of these ascending numbers (b,). `Chunk.numbers` of the result are
        undefined.
        """
        ...


class WrittenChunks:
    """Chunks of arrays with N rows: the mapping, targets, and shares if rows count differently.

    runs: False for rows in random order, in which no runs of equal rows are looked for.
    """

    def __init__(
        self, mapping: TableMapping, targets: Array, shares: Array | None, *, runs: bool = True
    ) -> None:
        self.mapping = mapping
        self.targets = targets
        self.shares = shares
        self._sought = runs
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
        runs = self._runs if isinstance(chosen, slice) and self._sought else ()
        return _of_rows(first, count, rows, targets, shares, runs)

    @cached_property
    def _runs(self) -> tuple[Array | None, ...]:
        """Return the ends of runs as `CompiledChunk` has them."""
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
    """Return a chunk from the row numbers of every slot, one for each joined row."""
    if library() is not None:
        narrow = (r if isinstance(r, slice) else r.astype(np.int32, copy=False) for r in rows)
        return CompiledChunk(first, count, tuple(narrow), targets, shares, runs=runs)
    # The machine's own integer width: otherwise numpy converts the rows at each use.
    wide = (r if isinstance(r, slice) else r.astype(np.intp, copy=False) for r in rows)
    return Chunk(first, count, tuple(wide), targets, shares)


def chunks_of(mapping: RowMapping, slots: Sequence[int], target: int, targets: Array) -> Chunks:
    """Return chunks of a mapping that need not be written down, with the targets of their slot's
    rows.

    slots: the slots with features; target: the slot of `targets` (n,). Raise InternalError for a
    mapping of arrays.
    """
    if isinstance(mapping, StoredMapping):
        return StoredChunks(mapping, slots, target, targets)
    if not isinstance(mapping, Factorised):
        raise InternalError("joined rows that are in arrays")
    kind = FoundChunks if library() is None else ProductChunks
    return kind(mapping, slots, target, targets)


M = TypeVar("M", Factorised, StoredMapping)


class _MappedRows(Generic[M]):
    """Joined rows of a mapping that is in no array: rows of some slots, and targets of one."""

    def __init__(self, mapping: M, slots: Sequence[int], target: int, targets: Array) -> None:
        self.mapping: M = mapping
        self.slots = tuple(slots)
        self.target = target
        self.targets = targets
        self.total = mapping.total
        sizes = dict(zip(mapping.slots, mapping.sizes, strict=True))
        self.sizes = tuple(sizes[slot] for slot in slots)


class FoundChunks(_MappedRows[Factorised]):
    """Chunks of keys that have equal numbers of rows."""

    def __init__(
        self, mapping: Factorised, slots: Sequence[int], target: int, targets: Array
    ) -> None:
        super().__init__(mapping, slots, target, targets)
        self._blocks = RowBlocks(mapping)
        self._places = [mapping.slots.index(slot) for slot in slots]
        self._target = mapping.slots.index(target)

    def cut(self, parts: int) -> list[FoundChunks]:
        """Return up to `parts` parts of about equally many joined rows. Their `some` still covers
        all rows.
        """
        cut_parts = []
        for blocks in self._blocks.cut(parts):
            part = copy(self)
            part._blocks, part.total = blocks, blocks.total
            cut_parts.append(part)
        return cut_parts

    def some(self, numbers: Array) -> Chunk:
        rows = self.mapping.at(numbers)
        slot_rows = tuple(rows[place].astype(np.intp, copy=False) for place in self._places)
        return Chunk(0, len(numbers), slot_rows, self.targets.take(rows[self._target]), None)

    def pieces(self, size: int) -> Iterator[Chunk]:
        first = 0
        for block in self._blocks.blocks(size):
            slot_rows = tuple(block.rows[place] for place in self._places)
            targets = np.empty(block.shape, self.targets.dtype)
            targets[...] = self.targets.take(block.rows[self._target])
            shape = block.shape if len(block.shape) > 1 else ()
            yield Chunk(first, block.count, slot_rows, targets.reshape(-1), None, shape)
            first += block.count


class ProductChunks(_MappedRows[Factorised]):
    """Chunks for the compiled library: whole keys, with any number of rows."""

    def __init__(
        self, mapping: Factorised, slots: Sequence[int], target: int, targets: Array
    ) -> None:
        super().__init__(mapping, slots, target, targets)
        self._grouped: list[_Grouped] = []
        self._others: list[tuple[Tree, int, int]] = []
        """Trees, each with its first joined row and the end of its joined rows."""
        for tree in mapping.trees:
            grouped = _Grouped.of(products(tree), slots, target, targets)
            if grouped is None:
                self._others.append((tree, 0, tree.total))
            else:
                self._grouped.append(grouped)

    def cut(self, parts: int) -> list[ProductChunks]:
        """Return parts as `FoundChunks.cut` does."""
        cutting, before = Cutting(self.total, parts), 0
        cut_parts = [copy(self) for _ in range(parts)]
        for part in cut_parts:
            part.total, part._grouped, part._others = 0, [], []
        for grouped in self._grouped:
            kept: list[list[Array]] = [[] for _ in range(parts)]
            for keys in grouped.products.parts(cutting.most):
                number, count = cutting.part(before), joined_by(keys)
                kept[number].append(keys)
                cut_parts[number].total += count
                before += count
            for part, several in zip(cut_parts, kept, strict=True):
                part._grouped += [grouped.of_keys(np.concatenate(several))] if several else []
        for tree, first, end in self._others:
            for number, begin, close in cutting.ranges(before, first, end):
                cut_parts[number]._others.append((tree, begin, close))
                cut_parts[number].total += close - begin
            before += end - first
        return [part for part in cut_parts if part.total]

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
        slot_rows = (rows[slot] for slot in self.slots)
        return _of_rows(first, count, slot_rows, self.targets[rows[self.target]])


@dataclass(frozen=True, eq=False)
class _Grouped:
    """Joined rows of a tree as products, with the arrays that all its chunks share."""

    products: Products
    rows: tuple[Array, ...]
    targets: Array
    far: tuple[bool, ...]

    @classmethod
    def of(
        cls, products: Products | None, slots: Sequence[int], target: int, targets: Array
    ) -> _Grouped | None:
        if products is None:
            return None
        every = products.near | products.far
        far = tuple(slot in products.far for slot in (*slots, target))
        return cls(products, tuple(every[slot] for slot in slots), targets[every[target]], far)

    def of_keys(self, keys: Array) -> _Grouped:
        """Return the joined rows of these keys alone."""
        return replace(self, products=replace(self.products, keys=keys))

    def pieces(self, size: int) -> Iterator[Chunk]:
        for keys in self.products.parts(size):
            count = joined_by(keys)
            shared = self.rows, self.targets, None
            yield ProductChunk(0, count, *shared, keys=keys, far=self.far)


class StoredChunks(_MappedRows[StoredMapping]):
    """Chunks of a mapping that is read from files."""

    def __init__(
        self, mapping: StoredMapping, slots: Sequence[int], target: int, targets: Array
    ) -> None:
        super().__init__(mapping, slots, target, targets)
        self._first = 0

    def cut(self, parts: int) -> list[StoredChunks]:
        """Return parts as `FoundChunks.cut` does."""
        cut_parts = [copy(self) for _ in range(parts)]
        for number, part in enumerate(cut_parts):
            part._first = self.total * number // parts
            part.total = self.total * (number + 1) // parts - part._first
        return [part for part in cut_parts if part.total]

    def some(self, numbers: Array) -> Chunk:
        """Return these joined rows. It reads the files once, from the first of the rows to the
        last.
        """
        slot_rows = {slot: np.empty(len(numbers), np.int32) for slot in {*self.slots, self.target}}
        start, first = 0, int(numbers[0]) if len(numbers) else 0
        while start < len(numbers):
            end = start + int(np.searchsorted(numbers[start:], first + READ))
            for slot, into in slot_rows.items():
                rows = self.mapping.part(slot, first, min(first + READ, self.mapping.total))
                into[start:end] = rows[numbers[start:end] - first]
            start = end
            first = int(numbers[start]) if start < len(numbers) else first
        return self._piece(0, slot_rows, len(numbers))

    def pieces(self, size: int) -> Iterator[Chunk]:
        every = {*self.slots, self.target}
        for first in range(0, self.total, size):
            count = min(size, self.total - first)
            start = self._first + first
            slot_rows = {slot: self.mapping.part(slot, start, start + count) for slot in every}
            yield self._piece(first, slot_rows, count)

    def _piece(self, first: int, rows: Mapping[int, Array], count: int) -> Chunk:
        feature_rows = (rows[slot] for slot in self.slots)
        return _of_rows(first, count, feature_rows, self.targets.take(rows[self.target]))
