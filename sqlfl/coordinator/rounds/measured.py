"""Which joined rows metrics are of, and what each counts in them."""

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
    """Of joined rows (N,); by default each of them, and each counts 1."""

    validation: Array | None = None
    """bool (N,): those that are not trained on; None where there is no split."""
    samples: Array | None = None
    """float64 (N,): what each counts in metrics."""
    held: Array | None = None
    """float64 (N,): in the validation loss; 0 for training rows."""

    @property
    def parts(self) -> int:
        """1, or 2 where there is a split: the rows of training, and those for validation."""
        return 1 if self.validation is None else 2

    def rows(self, total: int) -> list[int]:
        """Of each part of so many joined rows."""
        if self.validation is None:
            return [total]
        held = int(self.validation.sum())
        return [total - held, held]

    def cut(self, rows: slice) -> MeasuredRows:
        """Of these of the joined rows."""
        arrays = (self.validation, self.samples, self.held)
        return MeasuredRows(*(None if values is None else values[rows] for values in arrays))

    def of(self, piece: Chunk, h: Array) -> Iterator[tuple[Array, Array | None, Array]]:
        """Of each part targets, weights and scores of its rows in a piece, which has the scores h
        (b, d_c)."""
        samples = None if self.samples is None else self.samples[piece.numbers]
        if self.validation is None:
            yield piece.targets, samples, h
            return
        chosen = self.validation[piece.numbers]
        for some in (np.flatnonzero(~chosen), np.flatnonzero(chosen)):
            yield piece.targets[some], None if samples is None else samples[some], h[some]

    def headlines(self, passes: Passes, loss: Loss, scores: Scores) -> list[Mean]:
        """The metric of the history, of each part."""
        found = [headline_of_none(loss) for _ in range(self.parts)]
        for piece in passes.large(scores):
            parts = piece.headlines(loss, scores, self._weights(piece))
            for mean, own in zip(found, parts, strict=True):
                mean.merge(own)
        return found

    def _weights(self, piece: Chunk) -> list[Array | None]:
        """Of each part those of the rows of a piece: 0 in the other part."""
        samples = None if self.samples is None else self.samples[piece.numbers]
        if self.validation is None:
            return [samples]
        chosen = self.validation[piece.numbers]
        kept = np.ones(len(chosen)) if samples is None else samples
        return [np.where(chosen, 0.0, kept), np.where(chosen, kept, 0.0)]

    def meters(
        self, passes: Passes, loss: Loss, scores: Scores, rows: Sequence[int]
    ) -> list[Meter]:
        """What has measured the predictions of each part, to be merged until it has so many
        `rows`."""
        found = [loss.meter(count) for count in rows]
        for piece, h in passes.walk(scores):
            for meter, (y, samples, own) in zip(found, self.of(piece, h), strict=True):
                loss.measure(meter, own, y, samples)
        return found

    def held_loss(self, passes: Passes, loss: Loss, scores: Scores) -> float:
        """Σ held ℓ(H_j; y_j)."""
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
"""All rows, each of which counts 1."""


def headline_of_none(loss: Loss) -> Mean:
    """The metric of the history, of no rows yet."""
    return loss.headline(np.zeros((0, loss.outputs)), np.zeros(0, np.uint8), None)
