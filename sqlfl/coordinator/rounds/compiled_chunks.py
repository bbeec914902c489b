"""Chunks on which the compiled library does the work of a pass; see compiled.c.

The library reads row numbers as the mapping has them. A chunk may have a million joined rows:
intermediate results stay in tiles that fit the cache.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from ctypes import c_double, c_int32, c_int64, c_void_p
from dataclasses import dataclass, field, replace
from itertools import count, repeat
from typing import Self, TypeAlias

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.coordinator.rounds.chunk import Chunk, PassTally, Rows
from sqlfl.coordinator.rounds.scores import Scores
from sqlfl.models.losses import Loss
from sqlfl.models.metrics import Mean, RootMean
from sqlfl.models.native import address, functions, typed

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
