"""Passes over the joined rows: all that is computed of them, in pieces that the cache holds.

A pass reads the mapping, the targets and the weights once, and makes scores, losses, slopes and
their sums of every piece before it takes the next one. What goes in and what comes out belongs to
the rows of the slots; sums run in the order of the joined rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.coordinator.rounds.chunk import Chunk, PassTally
from sqlfl.coordinator.rounds.chunks import Chunks
from sqlfl.coordinator.rounds.scores import Scores
from sqlfl.models.losses import Loss
from sqlfl.models.native import library

CHUNK = 1 << 14
"""Scores of one piece."""
LARGE = 1 << 20
"""Joined rows of one piece that the compiled library reads, which has pieces of its own."""
WALKED = 1 << 16
"""Scores of one piece that it makes of them for others."""
DIRECTIONS = 1 << 18
"""Numbers of one piece along all directions."""
SAMPLED = 1 << 17
"""Joined rows, about, of a sample that curvatures are measured at: of fewer than 16 times as many,
half of them, as a better guess spares no more than it costs."""


@dataclass(frozen=True, eq=False)
class PassResult:
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
    bend: float | None = None
    """As `Passes.mean_curvature`; None where that takes a pass of its own."""


class Passes:
    """Over joined rows: all of a problem, or some.

    drawn: numbers, ascending, of those that samples are of; None where they are to be drawn.
    """

    def __init__(self, source: Chunks, loss: Loss, drawn: Array | None = None) -> None:
        self._source = source
        self._loss = loss
        self.total = source.total
        self._outputs = loss.outputs
        self._numbers = drawn
        self._chosen: Chunk | None = None
        """The joined rows that are drawn."""

    def look(self, scores: Scores, *, sums: bool = True) -> PassResult:
        """Loss, slopes and extent and, where they are wanted, the slopes' sums over the rows of
        every slot."""
        tally = self._tally(sums=sums)
        for piece in self.large(scores):
            piece.look(self._loss, scores, tally)
        return self._found(tally)

    def _tally(self, *, sums: bool = True) -> PassTally:
        sizes = self._source.sizes if sums else ()
        found = tuple(np.zeros((self._outputs, size)) for size in sizes)
        return PassTally(np.zeros(self._outputs), found)

    def _found(self, tally: PassTally) -> PassResult:
        # NaN, where a score is
        largest = float(np.max([0.0, tally.largest, -tally.least]))
        value = tally.value / self.total
        bend = None if tally.bend is None else tally.bend / self.total
        return PassResult(value, tally.sums, tally.total, largest, tally.largest, bend)

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
        if any(own.shape[2] != n for own, n in zip(ways, self._source.sizes, strict=bool(ways))):
            raise ValueError(f"directions {[own.shape for own in ways]} of other rows")
        found, counted = np.zeros((size, size)), 0.0
        rows = max(1024, DIRECTIONS // (size * outputs))
        for piece in self._drawn(scores, rows) if sampled else self._pieces(scores, rows):
            found += piece.curvatures(self._loss, scores, ways)
            counted += piece.counted
        return found, counted

    def square(self, scores: Scores, *, sampled: bool = False) -> float:
        """Mean of share · ‖H_j‖²; where it may be `sampled`, over rows that were drawn."""
        square, rows = self.square_sum(scores, sampled=sampled)
        return square / rows

    def square_sum(self, scores: Scores, *, sampled: bool = False) -> tuple[float, int]:
        """As `square`, the sum, and how many rows it is of."""
        square, rows = 0.0, 0
        for piece in self._drawn(scores) if sampled else self.large(scores):
            square += piece.square(scores)
            rows += piece.count
        return square, rows

    def mean_curvature(self, scores: Scores) -> float:
        """As `Loss.mean_curvature`."""
        found, counted = self.mean_curvature_sum(scores)
        return found / counted

    def mean_curvature_sum(self, scores: Scores) -> tuple[float, float]:
        """As `mean_curvature`, the sum, and what the rows count."""
        found = counted = 0.0
        for piece in self.large(scores):
            found += piece.bend(self._loss, scores)
            counted += piece.counted
        return found, counted

    def slope_square_sum(self, scores: Scores) -> float:
        """Σ share · ‖∂ℓ/∂H_j‖² over the joined rows."""
        found = 0.0
        for piece in self._pieces(scores):
            h = piece.scores(scores)
            square = self._loss.value_and_slopes(h, piece.targets, None)[1] ** 2
            found += float((square if piece.shares is None else square * piece.shares).sum())
        return found

    def slopes(self, scores: Scores) -> Array:
        """∂ℓ/∂H of every joined row, not weighted: (d_c, N)."""
        found = np.empty((self._outputs, self.total))
        for piece in self._pieces(scores):
            h = piece.scores(scores)
            found[:, piece.numbers] = self._loss.value_and_slopes(h, piece.targets, None)[1]
        return found

    def separates(self, scores: Scores) -> bool:
        """As `Loss.separates`, of the rows that count."""
        for piece in self._pieces(scores):
            rows: Array | slice = slice(None)
            if piece.shares is not None:
                rows = np.flatnonzero(piece.shares)
            h = piece.scores(scores).T
            if not self._loss.separates(h[rows], piece.targets[rows]):
                return False
        return True

    def proximal(self, scores: Scores, dual: Array, rho: float) -> PassResult:
        """The z-step of ADMM and λ += ρ (H − z), in place in `dual` (d_c, N).

        Slopes are those of λ + ρ (H − z), and the value mean share ‖ρ (H − z)‖².
        """
        tally = self._tally()
        for piece in self._walked(scores):
            piece.pull(self._loss, scores, dual, rho, tally)
        return self._found(tally)

    def sums(self, vector: Sequence[Array]) -> list[Array]:
        """A_iᵀ (share ∘ Σ A_k v_k) of every slot: (1, n_k) each -> (1, n_i) each."""
        found = [np.zeros((1, size)) for size in self._source.sizes]
        constant = Scores(tuple(vector), np.zeros(1))
        for piece in self._pieces(constant):
            values = piece.scores(constant)
            if piece.shares is not None:
                values *= piece.shares
            for slot, into in enumerate(found):
                piece.add(slot, into, values)
        return found

    def added(self, values: Array) -> list[Array]:
        """A_iᵀ v of every slot: (N,) -> (1, n_i) each."""
        found = [np.zeros((1, size)) for size in self._source.sizes]
        for piece in self._source.pieces(CHUNK):
            for slot, into in enumerate(found):
                piece.add(slot, into, values[None, piece.numbers])
        return found

    def walk(self, scores: Scores) -> Iterator[tuple[Chunk, Array]]:
        """All joined rows, and H of each piece: (b, d_c)."""
        for piece in self._walked(scores):
            yield piece, piece.scores(scores).T

    def large(self, scores: Scores) -> Iterator[Chunk]:
        """Pieces for what the compiled library does as a whole, where there is one."""
        return self._pieces(scores, None if library() is None else LARGE)

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

    def _check(self, scores: Scores) -> None:
        """Raises ValueError where scores are of other rows or outputs: the compiled library would
        read beyond them."""
        shapes = [own.shape for own in scores.slots]
        outputs = len(scores.constant)
        if shapes and shapes != [(outputs, size) for size in self._source.sizes]:
            raise ValueError(f"scores {shapes} of {outputs} outputs for {self._source.sizes} rows")

    def _walked(self, scores: Scores) -> Iterator[Chunk]:
        """Pieces of which numpy makes something, too."""
        size = None if library() is None else max(1024, WALKED // self._outputs)
        return self._pieces(scores, size)

    def _pieces(self, scores: Scores, size: int | None = None) -> Iterator[Chunk]:
        """Of `size` joined rows each, for what reads these scores."""
        self._check(scores)
        return self._source.pieces(size or max(1024, CHUNK // self._outputs))

    def _drawn(self, scores: Scores, size: int | None = None) -> Iterator[Chunk]:
        """Of `sampled` joined rows, always the same, or of all where they are few."""
        if self._chosen is None:
            numbers = sampled(self.total) if self._numbers is None else self._numbers
            if numbers is None:
                yield from self._pieces(scores, size)
                return
            self._chosen = self._source.some(numbers)
        self._check(scores)
        size = size or max(1024, CHUNK // self._outputs)
        for start in range(0, self._chosen.count, size):
            yield self._chosen.cut(slice(start, start + size))


def sampled(total: int) -> Array | None:
    """int64, ascending: numbers of the joined rows that curvatures are measured at; None for all,
    where they are few."""
    rows = max(SAMPLED // 2, min(SAMPLED, total // 16))
    return None if total < 2 * rows else _draw(total, rows)


def _draw(total: int, rows: int) -> Array:
    """int64, ascending: numbers of about so many rows, or all of few. By chance, for what lies in
    even distances may be alike; the same each time, so that training repeats."""
    if total < 2 * rows:
        return np.arange(total)
    drawn = np.sort(np.random.default_rng(0).integers(0, total, rows))
    different: Array = drawn[np.append(True, drawn[1:] > drawn[:-1])]
    return different
