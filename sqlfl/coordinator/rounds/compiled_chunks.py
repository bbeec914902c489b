"""Pieces of which the compiled library computes what a pass needs; see compiled.c.

Row numbers are read as they are in the mapping. A piece may have a million joined rows: what is
made of them stays in tiles that the cache holds.
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
"""Losses whose proximal steps it makes."""
RIGHT, SQUARES = 4, 5
"""As in compiled.h."""


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
"""Of a slot, both (d_c, n_i): h, and the sums to add to."""


@dataclass(frozen=True, eq=False)
class CompiledChunk(Chunk):
    """Rows are ranges or int32."""

    runs: tuple[Array | None, ...] = ()
    """Of each slot, where its rows come in long runs of equal ones, the ends of these, as joined
    rows are numbered: `sqlfl.coordinator.rounds.runs`."""

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
        values = {slot: _dense(own) for slot, own in enumerate(scores.slots)}
        self._scores(values, _dense(scores.constant), into)
        return into

    def look(self, loss: Loss, scores: Scores, tally: PassTally) -> None:
        if loss.name not in LOSSES:
            super().look(loss, scores, tally)
            return
        found = self._look(LOSSES[loss.name], scores, self.shares, tally.sums, tally.total)
        if tally.bend is not None:
            tally.bend += found.bend
        _tell(found, tally)

    def pull(self, loss: Loss, scores: Scores, dual: Array, rho: float, tally: PassTally) -> None:
        if loss.name not in PROXIMAL:
            super().pull(loss, scores, dual, rho, tally)
            return
        found = _Found(0.0, np.inf, -np.inf, 0.0, 0)
        values, constant = [_dense(own) for own in scores.slots], _dense(scores.constant)
        slots = self._slots(zip(count(), values, tally.sums, strict=False), 1)
        targets, kind = typed(self.given)
        shares, held = _dense_or_none(self.shares), dual[0, self.numbers]
        failed = functions().sqlfl_proximal(
            c_int32(LOSSES[loss.name]), c_int64(len(slots)), slots, c_int64(self.count),
            address(constant), address(targets), c_int32(kind), address(shares), c_double(rho),
            address(held), ctypes.byref(found), address(tally.total),
        )  # fmt: skip
        _check(failed)
        _tell(found, tally)
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
        found: list[Mean] = []
        for own in weights:
            if loss.name == "squared":
                mean: Mean = RootMean()
                mean.total = 2.0 * self._look(LOSSES[loss.name], scores, own).value
            else:
                mean = Mean()
                mean.total = self._look(RIGHT, scores, own).value
            mean.weight = float(self.count if own is None else own.sum())
            found.append(mean)
        return found

    def curvatures(self, loss: Loss, scores: Scores, ways: Sequence[Array]) -> Array:
        if loss.name not in LOSSES:
            return super().curvatures(loss, scores, ways)
        constant, shares = _dense(scores.constant), _dense_or_none(self.shares)
        values = [_dense(own) for own in scores.slots]
        along = [_dense(own.reshape(-1, own.shape[2])) for own in ways]
        numbers = np.array([len(own) for own in ways], np.int64)
        size = int(numbers.sum()) + len(constant)
        found = np.zeros((size, size))
        slots = self._slots(zip(count(), values, repeat(None)), len(constant))
        lines = self._slots(zip(count(), along, repeat(None)), None)
        failed = functions().sqlfl_curvatures(
            c_int32(LOSSES[loss.name]), c_int64(len(constant)), c_int64(len(slots)), slots,
            c_int64(len(lines)), lines, address(numbers), c_int64(self.count), address(constant),
            address(shares), address(found),
        )  # fmt: skip
        _check(failed)
        below: Array = np.tril(found, -1)
        return found + below.T

    def _look(
        self,
        what: int,
        scores: Scores,
        shares: Array | None,
        sums: Sequence[Array] = (),
        total: Array | None = None,
    ) -> _Found:
        values, constant = [_dense(own) for own in scores.slots], _dense(scores.constant)
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
        found = _Found(0.0, np.inf, -np.inf, 0.0, 0)
        every = self._slots(((slot, *own) for slot, own in slots.items()), len(constant))
        targets, kind = typed(self.given)
        shares = _dense_or_none(shares)
        failed = functions().sqlfl_look(
            c_int32(what), c_int64(len(constant)), c_int64(len(every)), every,
            c_int64(self.count), address(constant), address(targets), c_int32(kind),
            address(shares), ctypes.byref(found), address(total),
        )  # fmt: skip
        _check(failed)
        return found

    def _scores(self, values: Mapping[int, Array], constant: Array, into: Array) -> None:
        every = ((slot, own, None) for slot, own in values.items())
        slots = self._slots(every, len(constant))
        functions().sqlfl_scores(
            c_int64(len(constant)), c_int64(len(slots)), slots, c_int64(self.count),
            address(constant), address(into),
        )  # fmt: skip

    def _slots(
        self, slots: Iterable[tuple[int, Array | None, Array | None]], outputs: int | None
    ) -> ctypes.Array[_Slot]:
        """As the function, of slots by their numbers."""
        every = list(slots)
        own = [(self.rows[slot], values, sums) for slot, values, sums in every]
        found = _slots(own, outputs)
        for entry, (slot, _, _) in zip(found, every, strict=True):
            ends = self.runs[slot] if self.runs else None
            if ends is not None:
                entry.ends, entry.runs, entry.before = address(ends), len(ends), self.first
        return found


@dataclass(frozen=True, eq=False)
class ProductChunk(CompiledChunk):
    """Of `sqlfl.coordinator.join.products.Products`: `rows` has the row of each place of a slot's
    side, and `given` the targets of all places of theirs."""

    keys: Array = field(default_factory=lambda: np.zeros((0, 4), np.int64))
    """int64 (keys, 4): some of `Products.keys`, one after the other."""
    far: tuple[bool, ...] = ()
    """Of each slot, and last of the targets, whether they belong to the branch's side."""

    @property
    def targets(self) -> Array:
        found = np.empty(self.count)
        self._measure(None, {}, np.zeros(1), labels=found)
        return found.astype(self.given.dtype)

    def of(self, slot: int, values: Array) -> Array:
        found = np.empty((values.shape[1], self.count))
        self.take(slot, values.T, found)
        return found.T

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
        slots = {slot: (own, None) for slot, own in values.items()}
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
        """Writes scores into `into` (d_c, b), or targets into `labels` (b,), where they are
        wanted."""
        found = _Found(0.0, np.inf, -np.inf, 0.0, 0)
        targets, kind = (None, 0) if into is not None else typed(self.given)
        if labels is not None:
            into = np.empty((1, self.count))  # as H of no slot
        failed = functions().sqlfl_look_at_products(
            c_int32(what or 0), c_int64(len(constant)),
            self._sides(slots, len(constant)), address(self.keys), c_int64(len(self.keys)),
            address(constant), address(targets), c_int32(kind), c_int32(self.far[-1]),
            ctypes.byref(found), address(total), address(into), address(labels),
            c_int64(self.count),
        )  # fmt: skip
        _check(failed)
        return found

    def _sides(self, slots: Mapping[int, _Values], outputs: int) -> ctypes.Array[_Side]:
        sides = []
        for far in (False, True):
            own = [(self.rows[s], *values) for s, values in slots.items() if self.far[s] == far]
            first, size = self.keys[0, 2 * far], self.keys[-1, 2 * far : 2 * far + 2].sum()
            sides.append(_Side(_slots(own, outputs), len(own), first, size))
        return (_Side * 2)(*sides)


def _tell(found: _Found, tally: PassTally) -> None:
    tally.value += found.value
    if found.undefined:
        tally.extend(np.nan, np.nan)
    else:
        tally.extend(found.least, found.largest)


def _slots(
    slots: Sequence[tuple[Rows, Array | None, Array | None]], outputs: int | None
) -> ctypes.Array[_Slot]:
    """Of rows, values and sums, which the caller holds meanwhile; `outputs` None: of any number of
    values. Raises ValueError where shapes do not fit, for nothing below would notice."""
    found = (_Slot * len(slots))()
    for entry, (rows, values, sums) in zip(found, slots, strict=True):
        own = sums if values is None else values
        assert own is not None
        shape = (len(own) if outputs is None else outputs, own.shape[1])
        if any(v is not None and v.shape != shape for v in (values, sums)):
            raise ValueError(f"values of shape {own.shape} for {outputs} outputs")
        if isinstance(rows, slice):
            entry.first = rows.start
            if rows.stop > own.shape[1]:
                raise ValueError(f"{own.shape[1]} values for {rows.stop} rows")
        elif rows.dtype == np.int32:
            entry.rows = address(rows)
        else:
            raise InternalError(f"rows for the compiled part are int32, not {rows.dtype}")
        entry.width, entry.values, entry.sums = own.shape[-1], address(values), address(sums)
    return found


def _dense(values: Array) -> Array:
    """Copied only where they are not float64 in one piece."""
    return np.ascontiguousarray(values, np.float64)


def _dense_or_none(values: Array | None) -> Array | None:
    return None if values is None else _dense(values)


def _check(failed: int) -> None:
    if failed:
        raise MemoryError("not enough for the sums of a piece of the join")
