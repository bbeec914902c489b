"""Chunk of the joined rows and the sums over it. This is the reference implementation, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.models.losses import Loss
from sqlfl.models.metrics import Mean


@dataclass(frozen=True, eq=False)
class Scores:
    """H = b + Σ_i A_i h_i."""

    slots: tuple[Array, ...]
    """h_i of every slot: float64 (d_c, n_i). () if all rows have the same scores."""
    constant: Array
    """b: float64 (d_c,)"""

    def moved(self, slots: Sequence[Array], constant: Array) -> Scores:
        """Return the scores after a step of h_i by (d_c, n_i) of every slot, and of b."""
        if not self.slots:
            return Scores(tuple(slots), self.constant + constant)
        steps = zip(self.slots, slots, strict=True)
        return Scores(tuple(held + step for held, step in steps), self.constant + constant)

    def shifted(self, constant: Array) -> Scores:
        return Scores(self.slots, self.constant + constant)

    def less(self, other: Scores) -> Scores:
        """Return H − H' of scores with the same slots."""
        pairs = zip(self.slots, other.slots, strict=True)
        return Scores(tuple(a - b for a, b in pairs), self.constant - other.constant)


def by_output(values: Sequence[Array], weights: Array | None = None) -> tuple[Array, ...]:
    """Return h_i of every slot, as `Scores` have it, from predictions (n_i, P). weights: W₀ (P,
    d_c).
    """
    if weights is None:
        return tuple(np.array(v.T, np.float64, order="C") for v in values)
    return tuple(weights.T @ np.asarray(v, np.float64).T for v in values)


Rows: TypeAlias = Array | slice
"""Rows of a slot: a range, or integers that broadcast to the shape of a chunk."""


@dataclass(eq=False)
class PassTally:
    """Sums and extremes over the chunks of a pass."""

    total: Array
    """Σ_j g_j of the slopes g: (d_c,)"""
    sums: tuple[Array, ...] = ()
    """A_iᵀ g of every slot: (d_c, n_i); () if nobody asked for them."""
    value: float = 0.0
    """Σ share · loss, or the value that a method uses in its place."""
    least: float = np.inf
    """Smallest score H of the rows with a positive share; NaN if one of them is NaN."""
    largest: float = -np.inf
    bend: float | None = 0.0
    """Σ share · the mean non-zero eigenvalue of the loss's second derivatives. None if this needs a
    pass of its own.
    """

    def extend(self, least: float, largest: float) -> None:
        self.least = float(np.minimum(self.least, least))
        self.largest = float(np.maximum(self.largest, largest))


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some of the joined rows."""

    first: int
    """Number of the first row."""
    count: int
    """b, the number of rows."""
    rows: tuple[Rows, ...]
    """Row numbers in every slot with features, in the order of the problem."""
    given: Array
    """Source of `targets`: here the targets themselves, (b,)."""
    shares: Array | None
    """(b,): as `Problem.shares`; None if each share is 1."""
    shape: tuple[int, ...] = ()
    """Shape of a product of groups, whose joined rows are counted in that order. () for other
    chunks.
    """

    @property
    def targets(self) -> Array:
        """(b,)"""
        return self.given

    @property
    def numbers(self) -> slice:
        """Return the numbers of the joined rows, which are consecutive."""
        return slice(self.first, self.first + self.count)

    def cut(self, rows: slice) -> Self:
        """Return some of the rows. The chunk must be no product, and its rows must be no ranges.
        `numbers` of the result are undefined.
        """
        given = self.given[rows]
        shares = None if self.shares is None else self.shares[rows]
        rows_of_slots = tuple(
            slot_rows[rows] for slot_rows in self.rows if not isinstance(slot_rows, slice)
        )
        return replace(self, count=len(given), rows=rows_of_slots, given=given, shares=shares)

    @property
    def counted(self) -> float:
        """Return Σ share."""
        return float(self.count if self.shares is None else self.shares.sum())

    def take(self, slot: int, values: Array, into: Array) -> None:
        """Write A_i h into `into`, with rows in the last axis: (..., n_i) -> (..., b)."""
        rows = self.rows[slot]
        if isinstance(rows, slice):
            into[...] = values[..., rows]
            return
        if self.shape:
            # The result must stay a view, so only the last axis is reshaped.
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
        """Add A_iᵀ g of (c, b) to `into` (c, n_i), in the order of joined rows."""
        rows = self.rows[slot]
        if isinstance(rows, slice):
            into[:, rows] += values
            return
        if self.shape:
            values = values.reshape(len(values), *self.shape)
            for axis, (size, whole) in enumerate(zip(rows.shape, self.shape, strict=True), 1):
                if size < whole:
                    values = values.sum(axis=axis, keepdims=True)
        for target, line in zip(into, values, strict=True):
            np.add.at(target, rows.reshape(-1), line.reshape(-1))

    def of(self, slot: int, values: Array) -> Array:
        """Return A_i h: (n_i, c) -> (b, c)."""
        rows = self.rows[slot]
        if self.shape and not isinstance(rows, slice):
            rows = np.broadcast_to(rows, self.shape).reshape(-1)
        row_values: Array = values[rows]
        return row_values

    def scores(self, scores: Scores) -> Array:
        """Return H as a new array: float64 (d_c, b)."""
        h = np.empty((len(scores.constant), self.count))
        if not scores.slots:
            h[:] = scores.constant[:, None]
            return h
        self.take(0, scores.slots[0], h)
        room = np.empty_like(h)
        for slot, values in enumerate(scores.slots[1:], 1):
            self.take(slot, values, room)
            h += room
        h += scores.constant[:, None]
        return h

    def look(self, loss: Loss, scores: Scores, tally: PassTally) -> None:
        """Add the loss and its slopes at these scores to the tally."""
        self.tell(scores, tally, lambda h: loss.value_and_slopes(h, self.targets, self.shares))

    def tell(
        self, scores: Scores, tally: PassTally, slopes: Callable[[Array], tuple[float, Array]]
    ) -> None:
        """Add a value and slopes (d_c, b) to the tally. `slopes` computes both from H (d_c, b)."""
        h = self.scores(scores)
        counting = h if self.shares is None else h[:, self.shares > 0.0]
        if counting.size:
            tally.extend(counting.min(), counting.max())
        value, pulled = slopes(h)
        tally.value += value
        tally.bend = None
        tally.total += pulled.sum(axis=1)
        for slot, into in enumerate(tally.sums):
            self.add(slot, into, pulled)

    def pull(self, loss: Loss, scores: Scores, dual: Array, rho: float, tally: PassTally) -> None:
        """Do the step of `Passes.proximal` on this chunk, with λ of all joined rows (d_c, N)."""
        held = dual[:, self.numbers]

        def step(h: Array) -> tuple[float, Array]:
            points = loss.prox((h + held / rho).T, self.targets, rho).T
            gap = rho * (h - points)
            np.add(held, gap, out=held)
            pulled, counted = held + gap, gap
            if self.shares is not None:
                pulled *= self.shares
                counted = gap * self.shares
            return float(np.vdot(gap, counted)), pulled

        self.tell(scores, tally, step)

    def bend(self, loss: Loss, scores: Scores) -> float:
        """Return the chunk's part of `PassTally.bend`."""
        counted = self.counted
        if not counted > 0.0:
            return 0.0
        return counted * loss.mean_curvature(self.scores(scores).T, self.shares, self.targets)

    def square(self, scores: Scores) -> float:
        """Return Σ share ‖H_j‖²."""
        h = self.scores(scores)
        return float(np.vdot(h, h if self.shares is None else h * self.shares))

    def curvatures(self, loss: Loss, scores: Scores, ways: Sequence[Array]) -> Array:
        """Return `Loss.curvatures` along `ways` (k, d_c, n_i) of each slot, slot after slot."""
        h = self.scores(scores)
        along = np.empty((sum(len(directions) for directions in ways), *h.shape))
        start = 0
        for slot, slot_ways in enumerate(ways):
            if len(slot_ways):  # along an offset there is no way
                self.take(slot, slot_ways, along[start : start + len(slot_ways)])
            start += len(slot_ways)
        return loss.curvatures(h, self.targets, self.shares, along)

    def headlines(self, loss: Loss, scores: Scores, weights: Sequence[Array | None]) -> list[Mean]:
        """Return the history's metric for each of these weights (b,), or without weights for
        None.
        """
        h = self.scores(scores).T
        return [loss.headline(h, self.targets, row_weights) for row_weights in weights]
