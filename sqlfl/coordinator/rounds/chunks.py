"""Chunks of the joined rows: for each joined row its row in every slot, its target and its share.

Joined rows are either written down, as arrays of N rows, or found again in each pass from groups of
rows with equal keys. In the second case no array has a row per joined row, and the targets are
those of their slot's rows.

A chunk may be a product of groups. Then each value of a row is read and added up once for all its
joined rows in the chunk.

The compiled library does the work of a pass over a chunk, if it is there; see compiled.c. It reads
row numbers as the mapping has them. A chunk may have a million joined rows: intermediate results
stay in tiles that fit the cache.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from ctypes import c_double, c_int32, c_int64, c_void_p
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, repeat
from typing import Generic, Protocol, Self, TypeAlias, TypeVar

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.coordinator.blocks import Cutting, RowBlocks
from sqlfl.coordinator.join.factorised import Factorised, Products, Tree, joined_by, products
from sqlfl.coordinator.join.row_mapping import RowMapping, StoredMapping
from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.coordinator.rounds.chunk import Chunk, PassTally, Rows, Scores
from sqlfl.models.losses import Loss
from sqlfl.models.metrics import Mean, RootMean
from sqlfl.models.native import address, functions, library, typed

LOSSES = {"squared": 0, "poisson": 1, "logistic": 2, "softmax": 3}
PROXIMAL = ("squared", "logistic")
"""Losses whose proximal steps the library can make."""
RIGHT, SQUARES = 4, 5
"""Codes of compiled.h."""


class _Slot(ctypes.Structure):
    _fields_ = (
        ("rows", c_void_p),
        ("first", c_int64),
        ("width", c_int64),
        ("values", c_void_p),
        ("sums", c_void_p),
        ("ends", c_void_p),
        ("runs", c_int64),
        ("before", c_int64),
    )


class _Side(ctypes.Structure):
    _fields_ = (
        ("slots", ctypes.POINTER(_Slot)),
        ("count", c_int64),
        ("first", c_int64),
        ("end", c_int64),
    )


class _Found(ctypes.Structure):
    _fields_ = (
        ("value", c_double),
        ("least", c_double),
        ("largest", c_double),
        ("bend", c_double),
        ("undefined", c_int64),
    )


_Values: TypeAlias = "tuple[Array | None, Array | None]"
"""h and the sums to add to, of a slot: both (d_c, n_i)."""


@dataclass(frozen=True, eq=False)
class CompiledChunk(Chunk):
    """Chunk whose rows are ranges or int32."""

    runs: tuple[Array | None, ...] = ()
    """Ends of the runs of equal rows of each slot, counted in joined rows
    (`sqlfl.coordinator.rounds.chunks`). None for a slot without long runs.
    """

    def cut(self, rows: slice) -> Self:
        return replace(super().cut(rows), runs=())

    def take(self, slot: int, values: Array, into: Array) -> None:
        if not into.flags.c_contiguous or into.dtype != np.float64:
            super().take(slot, values, into)
            return
        flat = _dense(values.reshape(-1, values.shape[-1]))
        self._scores({slot: flat}, np.zeros(len(flat)), into)

    def add(self, slot: int, into: Array, values: Array) -> None:
        slots, values = self._slots([(slot, None, into)], len(into)), _dense(values)
        functions().sqlfl_add(c_int64(len(into)), slots, c_int64(self.count), address(values))

    def scores(self, scores: Scores) -> Array:
        into = np.empty((len(scores.constant), self.count))
        values = {slot: _dense(slot_values) for slot, slot_values in enumerate(scores.slots)}
        self._scores(values, _dense(scores.constant), into)
        return into

    def look(self, loss: Loss, scores: Scores, tally: PassTally) -> None:
        if loss.name not in LOSSES:
            super().look(loss, scores, tally)
            return
        result = self._look(LOSSES[loss.name], scores, self.shares, tally.sums, tally.total)
        if tally.bend is not None:
            tally.bend += result.bend
        _tell(result, tally)

    def pull(self, loss: Loss, scores: Scores, dual: Array, rho: float, tally: PassTally) -> None:
        if loss.name not in PROXIMAL:
            super().pull(loss, scores, dual, rho, tally)
            return
        result = _Found(0.0, np.inf, -np.inf, 0.0, 0)
        values, constant = (
            [_dense(slot_values) for slot_values in scores.slots],
            _dense(scores.constant),
        )
        slots = self._slots(zip(count(), values, tally.sums, strict=False), 1)
        targets, kind = typed(self.given)
        shares, held = _dense_or_none(self.shares), dual[0, self.numbers]
        failed = functions().sqlfl_proximal(
            c_int32(LOSSES[loss.name]), c_int64(len(slots)), slots, c_int64(self.count),
            address(constant), address(targets), c_int32(kind), address(shares), c_double(rho),
            address(held), ctypes.byref(result), address(tally.total),
        )  # fmt: skip
        _check(failed)
        _tell(result, tally)
        tally.bend = None

    def bend(self, loss: Loss, scores: Scores) -> float:
        if loss.name not in LOSSES:
            return super().bend(loss, scores)
        return float(self._look(LOSSES[loss.name], scores, self.shares).bend)

    def square(self, scores: Scores) -> float:
        return float(self._look(SQUARES, scores, self.shares).value)

    def headlines(self, loss: Loss, scores: Scores, weights: Sequence[Array | None]) -> list[Mean]:
        if loss.name == "poisson" or loss.name not in LOSSES:
            return super().headlines(loss, scores, weights)
        means: list[Mean] = []
        for row_weights in weights:
            if loss.name == "squared":
                mean: Mean = RootMean()
                mean.total = 2.0 * self._look(LOSSES[loss.name], scores, row_weights).value
            else:
                mean = Mean()
                mean.total = self._look(RIGHT, scores, row_weights).value
            mean.weight = float(self.count if row_weights is None else row_weights.sum())
            means.append(mean)
        return means

    def curvatures(self, loss: Loss, scores: Scores, ways: Sequence[Array]) -> Array:
        if loss.name not in LOSSES:
            return super().curvatures(loss, scores, ways)
        constant, shares = _dense(scores.constant), _dense_or_none(self.shares)
        values = [_dense(slot_values) for slot_values in scores.slots]
        along = [_dense(slot_values.reshape(-1, slot_values.shape[2])) for slot_values in ways]
        numbers = np.array([len(slot_values) for slot_values in ways], np.int64)
        size = int(numbers.sum()) + len(constant)
        matrix = np.zeros((size, size))
        slots = self._slots(zip(count(), values, repeat(None)), len(constant))
        lines = self._slots(zip(count(), along, repeat(None)), None)
        failed = functions().sqlfl_curvatures(
            c_int32(LOSSES[loss.name]), c_int64(len(constant)), c_int64(len(slots)), slots,
            c_int64(len(lines)), lines, address(numbers), c_int64(self.count), address(constant),
            address(shares), address(matrix),
        )  # fmt: skip
        _check(failed)
        below: Array = np.tril(matrix, -1)
        return matrix + below.T

    def _look(
        self,
        what: int,
        scores: Scores,
        shares: Array | None,
        sums: Sequence[Array] = (),
        total: Array | None = None,
    ) -> _Found:
        values, constant = (
            [_dense(slot_values) for slot_values in scores.slots],
            _dense(scores.constant),
        )
        into: Sequence[Array | None] = sums or [None] * len(values)
        slots = dict(enumerate(zip(values, into, strict=True)))
        total = np.zeros(len(constant)) if total is None else total
        return self._looked(what, slots, constant, shares, total)

    def _looked(
        self,
        what: int,
        slots: Mapping[int, _Values],
        constant: Array,
        shares: Array | None,
        total: Array,
    ) -> _Found:
        result = _Found(0.0, np.inf, -np.inf, 0.0, 0)
        every = self._slots(
            ((slot, *slot_arrays) for slot, slot_arrays in slots.items()), len(constant)
        )
        targets, kind = typed(self.given)
        shares = _dense_or_none(shares)
        failed = functions().sqlfl_look(
            c_int32(what), c_int64(len(constant)), c_int64(len(every)), every,
            c_int64(self.count), address(constant), address(targets), c_int32(kind),
            address(shares), ctypes.byref(result), address(total),
        )  # fmt: skip
        _check(failed)
        return result

    def _scores(self, values: Mapping[int, Array], constant: Array, into: Array) -> None:
        every = ((slot, slot_values, None) for slot, slot_values in values.items())
        slots = self._slots(every, len(constant))
        functions().sqlfl_scores(
            c_int64(len(constant)), c_int64(len(slots)), slots, c_int64(self.count),
            address(constant), address(into),
        )  # fmt: skip

    def _slots(
        self, slots: Iterable[tuple[int, Array | None, Array | None]], outputs: int | None
    ) -> ctypes.Array[_Slot]:
        """Return `_slots` of these numbered slots, with their runs."""
        every = list(slots)
        arrays = [(self.rows[slot], values, sums) for slot, values, sums in every]
        entries = _slots(arrays, outputs)
        for entry, (slot, _, _) in zip(entries, every, strict=True):
            ends = self.runs[slot] if self.runs else None
            if ends is not None:
                entry.ends, entry.runs, entry.before = address(ends), len(ends), self.first
        return entries


@dataclass(frozen=True, eq=False)
class ProductChunk(CompiledChunk):
    """Chunk of a product (`sqlfl.coordinator.join.factorised.Products`). `rows` has the row of each
    place on a slot's side; `given` has the targets of all places on their side.
    """

    keys: Array = field(default_factory=lambda: np.zeros((0, 4), np.int64))
    """int64 (keys, 4): some consecutive rows of `Products.keys`."""
    far: tuple[bool, ...] = ()
    """True for each slot on the branch's side; the last entry is for the targets."""

    @property
    def targets(self) -> Array:
        labels = np.empty(self.count)
        self._measure(None, {}, np.zeros(1), labels=labels)
        return labels.astype(self.given.dtype)

    def of(self, slot: int, values: Array) -> Array:
        row_values = np.empty((values.shape[1], self.count))
        self.take(slot, values.T, row_values)
        return row_values.T

    def add(self, slot: int, into: Array, values: Array) -> None:
        values, sides = _dense(values), self._sides({slot: (None, into)}, len(into))
        failed = functions().sqlfl_add_products(
            c_int64(len(into)), sides, address(self.keys), c_int64(len(self.keys)), address(values),
            c_int64(self.count),
        )  # fmt: skip
        _check(failed)

    def curvatures(self, loss: Loss, scores: Scores, ways: Sequence[Array]) -> Array:
        return Chunk.curvatures(self, loss, scores, ways)

    def pull(self, loss: Loss, scores: Scores, dual: Array, rho: float, tally: PassTally) -> None:
        Chunk.pull(self, loss, scores, dual, rho, tally)

    def _looked(
        self,
        what: int,
        slots: Mapping[int, _Values],
        constant: Array,
        shares: Array | None,
        total: Array,
    ) -> _Found:
        if shares is not None:
            raise InternalError("weights of joined rows that no array has")
        return self._measure(what, slots, constant, total=total)

    def _scores(self, values: Mapping[int, Array], constant: Array, into: Array) -> None:
        slots = {slot: (slot_values, None) for slot, slot_values in values.items()}
        self._measure(None, slots, constant, into=into)

    def _measure(
        self,
        what: int | None,
        slots: Mapping[int, _Values],
        constant: Array,
        *,
        total: Array | None = None,
        into: Array | None = None,
        labels: Array | None = None,
    ) -> _Found:
        """Write scores into `into` (d_c, b), or targets into `labels` (b,), if the caller passes
        them.
        """
        result = _Found(0.0, np.inf, -np.inf, 0.0, 0)
        targets, kind = (None, 0) if into is not None else typed(self.given)
        if labels is not None:
            into = np.empty((1, self.count))  # as H without slots
        failed = functions().sqlfl_look_at_products(
            c_int32(what or 0), c_int64(len(constant)),
            self._sides(slots, len(constant)), address(self.keys), c_int64(len(self.keys)),
            address(constant), address(targets), c_int32(kind), c_int32(self.far[-1]),
            ctypes.byref(result), address(total), address(into), address(labels),
            c_int64(self.count),
        )  # fmt: skip
        _check(failed)
        return result

    def _sides(self, slots: Mapping[int, _Values], outputs: int) -> ctypes.Array[_Side]:
        sides = []
        for far in (False, True):
            side = [(self.rows[s], *values) for s, values in slots.items() if self.far[s] == far]
            first, size = self.keys[0, 2 * far], self.keys[-1, 2 * far : 2 * far + 2].sum()
            sides.append(_Side(_slots(side, outputs), len(side), first, size))
        return (_Side * 2)(*sides)


def _tell(sums: _Found, tally: PassTally) -> None:
    tally.value += sums.value
    if sums.undefined:
        tally.extend(np.nan, np.nan)
    else:
        tally.extend(sums.least, sums.largest)


def _slots(
    slots: Sequence[tuple[Rows, Array | None, Array | None]], outputs: int | None
) -> ctypes.Array[_Slot]:
    """Return the library's slots from rows, values and sums. The caller must keep these alive
    meanwhile.

    outputs : number of outputs; None allows any number of values. Raise ValueError where shapes do
    not fit, because the library does not check them.
    """
    entries = (_Slot * len(slots))()
    for entry, (rows, values, sums) in zip(entries, slots, strict=True):
        shaped = sums if values is None else values
        assert shaped is not None
        shape = (len(shaped) if outputs is None else outputs, shaped.shape[1])
        if any(v is not None and v.shape != shape for v in (values, sums)):
            raise ValueError(f"values of shape {shaped.shape} for {outputs} outputs")
        if isinstance(rows, slice):
            entry.first = rows.start
            if rows.stop > shaped.shape[1]:
                raise ValueError(f"{shaped.shape[1]} values for {rows.stop} rows")
        elif rows.dtype == np.int32:
            entry.rows = address(rows)
        else:
            raise InternalError(f"rows for the compiled part are int32, not {rows.dtype}")
        entry.width, entry.values, entry.sums = shaped.shape[-1], address(values), address(sums)
    return entries


def _dense(values: Array) -> Array:
    """Return float64 values in one piece. They are copied only if they are not so already."""
    return np.ascontiguousarray(values, np.float64)


def _dense_or_none(values: Array | None) -> Array | None:
    return None if values is None else _dense(values)


def _check(failed: int) -> None:
    if failed:
        raise MemoryError("not enough for the sums of a piece of the join")


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
