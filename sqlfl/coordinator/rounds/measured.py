"""Joined rows that metrics cover, and the weight of each in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.coordinator.rounds.chunk import Chunk
from sqlfl.coordinator.rounds.passes import Passes
from sqlfl.coordinator.rounds.scores import Scores
from sqlfl.models.losses import Loss
from sqlfl.models.metrics import Mean, Meter


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
