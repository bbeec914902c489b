"""Passes over the joined rows, in chunks that fit the cache.

A pass reads the mapping, the targets and the weights once. It makes the scores, losses, slopes and
sums of a chunk before it takes the next chunk. Inputs and outputs belong to the rows of the slots.
Sums run in the order of the joined rows. `MeasuredRows` has the rows that metrics cover.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.coordinator.rounds.chunk import Chunk, PassTally, Scores
from sqlfl.coordinator.rounds.chunks import Chunks
from sqlfl.models.losses import Loss
from sqlfl.models.metrics import Mean, Meter
from sqlfl.models.native import library

CHUNK = 1 << 14
"""Scores in one chunk."""
LARGE = 1 << 20
"""Joined rows in one chunk for the compiled library, which cuts it further by itself."""
WALKED = 1 << 16
"""Scores in one chunk that the compiled library hands on to other code."""
DIRECTIONS = 1 << 18
"""Numbers in one chunk along all directions."""
SAMPLED = 1 << 17
"""Approximate number of joined rows in a sample that measures curvatures. If there are fewer than
16 times as many rows, the sample is half as large: a better estimate would save no more than it
costs.
"""


@dataclass(frozen=True, eq=False)
class PassResult:
    """The loss and its slopes at some scores."""

    value: float
    """The (weighted) mean loss."""
    slots: tuple[Array, ...]
    """Y_i = A_iᵀ g of every slot, where g is N times the slopes of the mean loss: (d_c, n_i). () if
    nobody asked for them.
    """
    total: Array
    """Σ_j g_j: (d_c,)"""
    largest: float
    """Largest |H| of the rows that count; NaN if one of them is NaN."""
    highest: float
    """Largest H of the rows that count."""
    bend: float | None = None
    """Mean curvature as in `Passes.mean_curvature`; None if it needs its own pass."""


class Passes:
    """Passes over all joined rows of a problem, or over some.

    drawn: ascending row numbers to sample from; None to draw them here.
    """

    def __init__(self, source: Chunks, loss: Loss, drawn: Array | None = None) -> None:
        self._source = source
        self._loss = loss
        self.total = source.total
        self._outputs = loss.outputs
        self._numbers = drawn
        self._chosen: Chunk | None = None
        """The sampled joined rows."""

    def look(self, scores: Scores, *, sums: bool = True) -> PassResult:
        """Return the loss, its slopes, and the range of the scores. With `sums`, add the slopes up
        over the rows of every slot.
        """
        tally = self._tally(sums=sums)
        for piece in self.large(scores):
            piece.look(self._loss, scores, tally)
        return self._found(tally)

    def _tally(self, *, sums: bool = True) -> PassTally:
        sizes = self._source.sizes if sums else ()
        slot_sums = tuple(np.zeros((self._outputs, size)) for size in sizes)
        return PassTally(np.zeros(self._outputs), slot_sums)

    def _found(self, tally: PassTally) -> PassResult:
        # NaN if a score is NaN
        largest = float(np.max([0.0, tally.largest, -tally.least]))
        value = tally.value / self.total
        bend = None if tally.bend is None else tally.bend / self.total
        return PassResult(value, tally.sums, tally.total, largest, tally.largest, bend)

    def value(self, scores: Scores) -> float:
        """Return the (weighted) mean loss."""
        return self.look(scores, sums=False).value

    def curvatures(self, scores: Scores, ways: Sequence[Array], *, sampled: bool = False) -> Array:
        """Return second derivatives of the mean loss: along `ways` (k, d_c, n_i) of each slot, slot
        after slot, if there are any, and then along a constant for each output. With `sampled`, use
        a sample of the rows.
        """
        sums, counted = self.curvature_sums(scores, ways, sampled=sampled)
        if counted > 0.0:
            return sums / counted
        # The sample has no row that counts.
        return self.curvatures(scores, ways) if sampled else sums

    def curvature_sums(
        self, scores: Scores, ways: Sequence[Array], *, sampled: bool = False
    ) -> tuple[Array, float]:
        """Return the sums behind `curvatures`, and the total share of the rows."""
        outputs, count = self._outputs, sum(len(directions) for directions in ways)
        size = count + outputs
        if any(
            directions.shape[2] != n
            for directions, n in zip(ways, self._source.sizes, strict=bool(ways))
        ):
            raise ValueError(
                f"directions {[directions.shape for directions in ways]} of other rows"
            )
        sums, counted = np.zeros((size, size)), 0.0
        rows = max(1024, DIRECTIONS // (size * outputs))
        for piece in self._drawn(scores, rows) if sampled else self._pieces(scores, rows):
            sums += piece.curvatures(self._loss, scores, ways)
            counted += piece.counted
        return sums, counted

    def square(self, scores: Scores, *, sampled: bool = False) -> float:
        """Return the mean of share · ‖H_j‖². With `sampled`, use a sample of the rows."""
        square, rows = self.square_sum(scores, sampled=sampled)
        return square / rows

    def square_sum(self, scores: Scores, *, sampled: bool = False) -> tuple[float, int]:
        """Return the sum behind `square`, and its number of rows."""
        square, rows = 0.0, 0
        for piece in self._drawn(scores) if sampled else self.large(scores):
            square += piece.square(scores)
            rows += piece.count
        return square, rows

    def mean_curvature(self, scores: Scores) -> float:
        """Return `Loss.mean_curvature` over all rows."""
        total, counted = self.mean_curvature_sum(scores)
        return total / counted

    def mean_curvature_sum(self, scores: Scores) -> tuple[float, float]:
        """Return the sum behind `mean_curvature`, and the total share of the rows."""
        total = counted = 0.0
        for piece in self.large(scores):
            total += piece.bend(self._loss, scores)
            counted += piece.counted
        return total, counted

    def slope_square_sum(self, scores: Scores) -> float:
        """Return Σ share · ‖∂ℓ/∂H_j‖² over the joined rows."""
        total = 0.0
        for piece in self._pieces(scores):
            h = piece.scores(scores)
            square = self._loss.value_and_slopes(h, piece.targets, None)[1] ** 2
            total += float((square if piece.shares is None else square * piece.shares).sum())
        return total

    def slopes(self, scores: Scores) -> Array:
        """Return ∂ℓ/∂H of every joined row, not weighted: (d_c, N)."""
        row_slopes = np.empty((self._outputs, self.total))
        for piece in self._pieces(scores):
            h = piece.scores(scores)
            row_slopes[:, piece.numbers] = self._loss.value_and_slopes(h, piece.targets, None)[1]
        return row_slopes

    def separates(self, scores: Scores) -> bool:
        """Return `Loss.separates` of the rows that count."""
        for piece in self._pieces(scores):
            rows: Array | slice = slice(None)
            if piece.shares is not None:
                rows = np.flatnonzero(piece.shares)
            h = piece.scores(scores).T
            if not self._loss.separates(h[rows], piece.targets[rows]):
                return False
        return True

    def proximal(self, scores: Scores, dual: Array, rho: float) -> PassResult:
        """Make the z-step of ADMM, and λ += ρ (H − z) in place in `dual` (d_c, N).

        Slopes are those of λ + ρ (H − z). The value is the mean of share ‖ρ (H − z)‖².
        """
        tally = self._tally()
        for piece in self._walked(scores):
            piece.pull(self._loss, scores, dual, rho, tally)
        return self._found(tally)

    def sums(self, vector: Sequence[Array]) -> list[Array]:
        """Return A_iᵀ (share ∘ Σ A_k v_k) of every slot: (1, n_k) each -> (1, n_i) each."""
        slot_sums = [np.zeros((1, size)) for size in self._source.sizes]
        constant = Scores(tuple(vector), np.zeros(1))
        for piece in self._pieces(constant):
            values = piece.scores(constant)
            if piece.shares is not None:
                values *= piece.shares
            for slot, into in enumerate(slot_sums):
                piece.add(slot, into, values)
        return slot_sums

    def added(self, values: Array) -> list[Array]:
        """Return A_iᵀ v of every slot: (N,) -> (1, n_i) each."""
        slot_sums = [np.zeros((1, size)) for size in self._source.sizes]
        for piece in self._source.pieces(CHUNK):
            for slot, into in enumerate(slot_sums):
                piece.add(slot, into, values[None, piece.numbers])
        return slot_sums

    def walk(self, scores: Scores) -> Iterator[tuple[Chunk, Array]]:
        """Yield the chunks of all joined rows, each with its H: (b, d_c)."""
        for piece in self._walked(scores):
            yield piece, piece.scores(scores).T

    def large(self, scores: Scores) -> Iterator[Chunk]:
        """Yield chunks for work that the compiled library, if present, does as a whole."""
        return self._pieces(scores, None if library() is None else LARGE)

    def rows(self, scores: Scores) -> Array:
        """Return H of all joined rows: (N, d_c)."""
        row_scores = np.empty((self.total, len(scores.constant)))
        for piece, h in self.walk(scores):
            row_scores[piece.numbers] = h
        return row_scores

    def sample(self, slots: Sequence[Array], rows: int) -> list[Array]:
        """Return A_i h of about `rows` sampled joined rows, or of all: (n_i, c) -> (b, c) each."""
        piece = self._source.some(_draw(self.total, rows))
        return [piece.of(slot, values) for slot, values in enumerate(slots)]

    def _check(self, scores: Scores) -> None:
        """Raise ValueError where scores belong to other rows or outputs. The compiled library would
        read beyond them.
        """
        shapes = [values.shape for values in scores.slots]
        outputs = len(scores.constant)
        if shapes and shapes != [(outputs, size) for size in self._source.sizes]:
            raise ValueError(f"scores {shapes} of {outputs} outputs for {self._source.sizes} rows")

    def _walked(self, scores: Scores) -> Iterator[Chunk]:
        """Yield chunks of which numpy computes a part."""
        size = None if library() is None else max(1024, WALKED // self._outputs)
        return self._pieces(scores, size)

    def _pieces(self, scores: Scores, size: int | None = None) -> Iterator[Chunk]:
        """Yield chunks of `size` joined rows for work that reads these scores."""
        self._check(scores)
        return self._source.pieces(size or max(1024, CHUNK // self._outputs))

    def _drawn(self, scores: Scores, size: int | None = None) -> Iterator[Chunk]:
        """Yield chunks of the sampled joined rows, the same ones each time, or of all rows if they
        are few.
        """
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
    """Return the ascending numbers (int64) of the joined rows that measure curvatures. Return None
    for all rows, if they are few.
    """
    rows = max(SAMPLED // 2, min(SAMPLED, total // 16))
    return None if total < 2 * rows else _draw(total, rows)


def _draw(total: int, rows: int) -> Array:
    """Return ascending numbers (int64) of about `rows` rows, or of all if they are few.

    Rows are drawn at random, because rows at even distances may be alike. The draw is the same each
    time, so that training repeats.
    """
    if total < 2 * rows:
        return np.arange(total)
    drawn = np.sort(np.random.default_rng(0).integers(0, total, rows))
    different: Array = drawn[np.append(True, drawn[1:] > drawn[:-1])]
    return different


@dataclass(frozen=True, eq=False)
class MeasuredRows:
    """Joined rows (N,) that metrics cover. By default these are all rows, each with weight 1."""

    validation: Array | None = None
    """bool (N,): True for rows held out of training; None without a split."""
    samples: Array | None = None
    """float64 (N,): weight of each row in metrics."""
    held: Array | None = None
    """float64 (N,): weight of each row in the validation loss; 0 for training rows."""

    @property
    def parts(self) -> int:
        """Return 1, or 2 with a split: the training rows and the validation rows."""
        return 1 if self.validation is None else 2

    def rows(self, total: int) -> list[int]:
        """Return the number of rows in each part, of `total` joined rows."""
        if self.validation is None:
            return [total]
        held = int(self.validation.sum())
        return [total - held, held]

    def cut(self, rows: slice) -> MeasuredRows:
        """Return the measured rows among these joined rows."""
        arrays = (self.validation, self.samples, self.held)
        return MeasuredRows(*(None if values is None else values[rows] for values in arrays))

    def of(self, piece: Chunk, h: Array) -> Iterator[tuple[Array, Array | None, Array]]:
        """Yield the targets, weights and scores of each part of a chunk. The chunk has the scores h
        (b, d_c).
        """
        samples = None if self.samples is None else self.samples[piece.numbers]
        if self.validation is None:
            yield piece.targets, samples, h
            return
        chosen = self.validation[piece.numbers]
        for some in (np.flatnonzero(~chosen), np.flatnonzero(chosen)):
            yield piece.targets[some], None if samples is None else samples[some], h[some]

    def headlines(self, passes: Passes, loss: Loss, scores: Scores) -> list[Mean]:
        """Return the history's metric of each part."""
        means = [headline_of_none(loss) for _ in range(self.parts)]
        for piece in passes.large(scores):
            parts = piece.headlines(loss, scores, self._weights(piece))
            for mean, part in zip(means, parts, strict=True):
                mean.merge(part)
        return means

    def _weights(self, piece: Chunk) -> list[Array | None]:
        """Return the weights of a chunk's rows for each part: 0 for rows of the other part."""
        samples = None if self.samples is None else self.samples[piece.numbers]
        if self.validation is None:
            return [samples]
        chosen = self.validation[piece.numbers]
        kept = np.ones(len(chosen)) if samples is None else samples
        return [np.where(chosen, 0.0, kept), np.where(chosen, kept, 0.0)]

    def meters(
        self, passes: Passes, loss: Loss, scores: Scores, rows: Sequence[int]
    ) -> list[Meter]:
        """Return a meter of the predictions of each part. It can be merged with others until it has
        `rows` rows.
        """
        meters = [loss.meter(count) for count in rows]
        for piece, h in passes.walk(scores):
            for meter, (y, samples, part_scores) in zip(meters, self.of(piece, h), strict=True):
                loss.measure(meter, part_scores, y, samples)
        return meters

    def held_loss(self, passes: Passes, loss: Loss, scores: Scores) -> float:
        """Return Σ held ℓ(H_j; y_j)."""
        held, value = self.held, 0.0
        if held is None:
            return value
        for piece, h in passes.walk(scores):
            weights = held[piece.numbers]
            some = np.flatnonzero(weights)
            if len(some):
                mean = loss.value(h[some], piece.targets[some], weights[some])
                value += mean * float(weights[some].sum())
        return value


EVERY = MeasuredRows()
"""All rows, each with weight 1."""


def headline_of_none(loss: Loss) -> Mean:
    """Return the history's metric of no rows."""
    return loss.headline(np.zeros((0, loss.outputs)), np.zeros(0, np.uint8), None)
