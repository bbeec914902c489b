"""Passes over the joined rows: all that is computed of them, in pieces that the cache holds.

A pass reads the mapping, the targets and the weights once, and makes scores, losses, slopes and
their sums of every piece before it takes the next one. What goes in and what comes out belongs to
the rows of the slots; sums run in the order of the joined rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sqlfl.arrays import Array
from sqlfl.coordinator.rounds.pieces import Piece, Pieces
from sqlfl.coordinator.rounds.scores import Scores
from sqlfl.models.losses import Loss

CHUNK = 1 << 14
"""Scores of one piece."""
DIRECTIONS = 1 << 18
"""Numbers of one piece along all directions."""
SAMPLED = 1 << 18
"""Joined rows, about, of a sample that curvatures are measured at."""


@dataclass(frozen=True, eq=False)
class Look:
    """The loss and its slopes at some scores."""

    value: float
    """The (weighted) mean loss."""
    slots: tuple[Array, ...]
    """Y_i = A_iᵀ g of every slot, g being N times the slopes of the mean loss: (d_c, n_i); () where
    they are not wanted."""
    total: Array
    """Σ_j g_j: (d_c,)"""
    largest: float
    """|H| of the rows that count, at most; NaN where one is."""
    highest: float
    """H of these, at most."""


class Passes:
    """Over joined rows: all of a problem, or some.

    drawn: numbers, ascending, of those that samples are of; None where they are to be drawn.
    """

    def __init__(self, source: Pieces, loss: Loss, drawn: Array | None = None) -> None:
        self._source = source
        self._loss = loss
        self.total = source.total
        self._outputs = loss.outputs
        self._chosen = drawn

    def look(self, scores: Scores, *, sums: bool = True) -> Look:
        """Loss, slopes and extent and, where they are wanted, the slopes' sums over the rows of
        every slot."""

        def slopes(piece: Piece, h: Array) -> tuple[float, Array]:
            return self._loss.value_and_slopes(h, piece.targets, piece.shares)

        return self._looked(scores, slopes, sums=sums)

    def _looked(
        self,
        scores: Scores,
        slopes: Callable[[Piece, Array], tuple[float, Array]],
        *,
        sums: bool = True,
    ) -> Look:
        """A `Look` with such a value and slopes of a piece's H (d_c, b)."""
        sizes = self._source.sizes if sums else ()
        found = tuple(np.zeros((self._outputs, size)) for size in sizes)
        value, total = 0.0, np.zeros(self._outputs)
        extents, tops = [0.0], [-np.inf]
        for piece in self._pieces():
            h = self._scores(scores, piece)
            counting = h if piece.shares is None else h[:, piece.shares > 0.0]
            if counting.size:
                tops.append(counting.max())
                extents += [tops[-1], -counting.min()]
            part, pulled = slopes(piece, h)
            value += part
            total += pulled.sum(axis=1)
            for slot, into in enumerate(found):
                piece.add(slot, into, pulled)
        largest, highest = float(np.max(extents)), float(np.max(tops))
        return Look(value / self.total, found, total, largest, highest)

    def value(self, scores: Scores) -> float:
        """The (weighted) mean loss."""
        return self.look(scores, sums=False).value

    def curvatures(self, scores: Scores, ways: Sequence[Array], *, sampled: bool = False) -> Array:
        """Second derivatives of the mean loss along `ways` (k, d_c, n_i) of each slot, slot after
        slot, where there are any, and then along a constant for each output; where it may be
        `sampled`, over rows that were drawn."""
        found, counted = self.curvature_sums(scores, ways, sampled=sampled)
        if counted > 0.0:
            return found / counted
        # nothing that counts was drawn
        return self.curvatures(scores, ways) if sampled else found

    def curvature_sums(
        self, scores: Scores, ways: Sequence[Array], *, sampled: bool = False
    ) -> tuple[Array, float]:
        """As `curvatures`, the sums, and what the rows count."""
        outputs, count = self._outputs, sum(len(own) for own in ways)
        size = count + outputs
        found, counted = np.zeros((size, size)), 0.0
        rows = max(1024, DIRECTIONS // (size * outputs))
        for piece in self._drawn(rows) if sampled else self._pieces(rows):
            h = self._scores(scores, piece)
            along = np.empty((count, outputs, h.shape[1]))
            start = 0
            for slot, own in enumerate(ways):
                piece.take(slot, own, along[start : start + len(own)])
                start += len(own)
            found += self._loss.curvatures(h, piece.targets, piece.shares, along)
            counted += piece.counted
        return found, counted

    def square(self, scores: Scores, *, sampled: bool = False) -> float:
        """Mean of share · ‖H_j‖²; where it may be `sampled`, over rows that were drawn."""
        square, rows = self.square_sum(scores, sampled=sampled)
        return square / rows

    def square_sum(self, scores: Scores, *, sampled: bool = False) -> tuple[float, int]:
        """As `square`, the sum, and how many rows it is of."""
        square, rows = 0.0, 0
        for piece in self._drawn() if sampled else self._pieces():
            h = self._scores(scores, piece)
            weighted = h if piece.shares is None else h * piece.shares
            square += float(np.vdot(h, weighted))
            rows += h.shape[1]
        return square, rows

    def mean_curvature(self, scores: Scores) -> float:
        """As `Loss.mean_curvature`."""
        found, counted = self.mean_curvature_sum(scores)
        return found / counted

    def mean_curvature_sum(self, scores: Scores) -> tuple[float, float]:
        """As `mean_curvature`, the sum, and what the rows count."""
        found = counted = 0.0
        for piece in self._pieces():
            weight = piece.counted
            if weight > 0.0:
                h = self._scores(scores, piece).T
                found += weight * self._loss.mean_curvature(h, piece.shares)
                counted += weight
        return found, counted

    def slopes(self, scores: Scores) -> Array:
        """∂ℓ/∂H of every joined row, not weighted: (d_c, N)."""
        found = np.empty((self._outputs, self.total))
        for piece in self._pieces():
            h = self._scores(scores, piece)
            found[:, piece.numbers] = self._loss.value_and_slopes(h, piece.targets, None)[1]
        return found

    def separates(self, scores: Scores) -> bool:
        """As `Loss.separates`, of the rows that count."""
        for piece in self._pieces():
            rows: Array | slice = slice(None)
            if piece.shares is not None:
                rows = np.flatnonzero(piece.shares)
            h = self._scores(scores, piece).T
            if not self._loss.separates(h[rows], piece.targets[rows]):
                return False
        return True

    def proximal(self, scores: Scores, dual: Array, rho: float) -> Look:
        """The z-step of ADMM and λ += ρ (H − z), in place in `dual` (d_c, N).

        Slopes are those of λ + ρ (H − z), and the value mean share ‖ρ (H − z)‖².
        """

        def step(piece: Piece, h: Array) -> tuple[float, Array]:
            held = dual[:, piece.numbers]
            points = self._loss.prox((h + held / rho).T, piece.targets, rho).T
            gap = rho * (h - points)
            held += gap
            pulled, counted = held + gap, gap
            if piece.shares is not None:
                pulled *= piece.shares
                counted = gap * piece.shares
            return float(np.vdot(gap, counted)), pulled

        return self._looked(scores, step)

    def sums(self, vector: Sequence[Array]) -> list[Array]:
        """A_iᵀ (share ∘ Σ A_k v_k) of every slot: (1, n_k) each -> (1, n_i) each."""
        found = [np.zeros((1, size)) for size in self._source.sizes]
        constant = Scores(tuple(vector), np.zeros(1))
        for piece in self._pieces():
            values = self._scores(constant, piece)
            if piece.shares is not None:
                values *= piece.shares
            for slot, into in enumerate(found):
                piece.add(slot, into, values)
        return found

    def added(self, values: Array) -> list[Array]:
        """A_iᵀ v of every slot: (N,) -> (1, n_i) each."""
        found = [np.zeros((1, size)) for size in self._source.sizes]
        for piece in self._pieces():
            for slot, into in enumerate(found):
                piece.add(slot, into, values[None, piece.numbers])
        return found

    def walk(self, scores: Scores) -> Iterator[tuple[Piece, Array]]:
        """All joined rows, and H of each piece: (b, d_c)."""
        for piece in self._pieces():
            yield piece, self._scores(scores, piece).T

    def rows(self, scores: Scores) -> Array:
        """H of all joined rows: (N, d_c)."""
        found = np.empty((self.total, len(scores.constant)))
        for piece, h in self.walk(scores):
            found[piece.numbers] = h
        return found

    def sample(self, slots: Sequence[Array], rows: int) -> list[Array]:
        """A_i h of so many joined rows that are drawn, or of all: (n_i, c) -> (b, c) each."""
        piece = self._source.some(_draw(self.total, rows))
        return [piece.of(slot, values) for slot, values in enumerate(slots)]

    def _scores(self, scores: Scores, piece: Piece) -> Array:
        """H of a piece: float64 (d_c, b), an array of its own."""
        h = np.empty((len(scores.constant), piece.count))
        if not scores.slots:
            h[:] = scores.constant[:, None]
            return h
        piece.take(0, scores.slots[0], h)
        room = np.empty_like(h)
        for slot, values in enumerate(scores.slots[1:], 1):
            piece.take(slot, values, room)
            h += room
        h += scores.constant[:, None]
        return h

    def _pieces(self, size: int | None = None) -> Iterator[Piece]:
        """Of `size` joined rows each."""
        return self._source.pieces(size or max(1024, CHUNK // self._outputs))

    def _drawn(self, size: int | None = None) -> Iterator[Piece]:
        """Of `SAMPLED` joined rows, always the same, or of all where they are few."""
        if self._chosen is None:
            self._chosen = sampled(self.total)
        if self._chosen is None:
            yield from self._pieces(size)
            return
        numbers = self._chosen
        size = size or max(1024, CHUNK // self._outputs)
        for start in range(0, len(numbers), size):
            yield self._source.some(numbers[start : start + size])


def sampled(total: int) -> Array | None:
    """int64, ascending: numbers of the joined rows that curvatures are measured at; None for all,
    where they are few."""
    return None if total < 2 * SAMPLED else _draw(total, SAMPLED)


def _draw(total: int, rows: int) -> Array:
    """int64, ascending: numbers of about so many rows, or all of few. By chance, for what lies in
    even distances may be alike; the same each time, so that training repeats."""
    if total < 2 * rows:
        return np.arange(total)
    drawn = np.sort(np.random.default_rng(0).integers(0, total, rows))
    different: Array = drawn[np.append(True, drawn[1:] > drawn[:-1])]
    return different
