"""What a model is measured by while it is trained: metrics over training and validation rows.

Metrics weigh rows by the column of WEIGHT alone. The validation loss weighs them as training does,
class weights included, so that it is the loss of the objective on rows that it was not fitted to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sqlfl.arrays import Array
from sqlfl.coordinator.preparation import Targets, Weighting
from sqlfl.coordinator.rounds.passes import Passes
from sqlfl.coordinator.rounds.piece import Piece
from sqlfl.coordinator.rounds.scores import Scores
from sqlfl.models.losses import Loss
from sqlfl.models.metrics import Mean, Metrics


@dataclass(frozen=True, eq=False)
class Part:
    """Some joined rows, and what they count in metrics."""

    chosen: Array | None
    """bool (N,); None for all."""
    samples: Array | None
    """float64 (N,); None for 1 of each."""

    def rows(self, total: int) -> int:
        return total if self.chosen is None else int(self.chosen.sum())

    def of(self, piece: Piece, h: Array) -> tuple[Array, Array | None, Array]:
        """Targets, weights and scores of its rows in a piece, which has the scores `h`."""
        samples = None if self.samples is None else self.samples[piece.numbers]
        if self.chosen is None:
            return piece.targets, samples, h
        some = np.flatnonzero(self.chosen[piece.numbers])
        return piece.targets[some], None if samples is None else samples[some], h[some]


class Measures:
    """Measures of scores over the joined rows."""

    def __init__(
        self, passes: Passes, loss: Loss, target: Targets, weighting: Weighting | None
    ) -> None:
        self._passes = passes
        self._loss = loss
        self._targets = target.values
        self._training = Part(None, None)
        self._validation: Part | None = None
        self._held: Array | None = None
        rows = None if weighting is None else weighting.rows
        self.training_rows = passes.total if rows is None else int(rows.sum())
        self.validation_rows: int | None = None
        """None where there is no split."""
        if weighting is None:
            return
        samples = None if np.all(weighting.samples == 1.0) else weighting.samples
        self._training = Part(None, samples)
        if weighting.validation.any():
            self._training = Part(~weighting.validation, samples)
            self._validation = Part(weighting.validation, samples)
            self._held = weighting.held
            held = weighting.validation if rows is None else rows[weighting.validation]
            self.validation_rows = int(held.sum())
            self.training_rows -= self.validation_rows

    def epoch(self, scores: Scores) -> Metrics:
        """train_metric; valid_loss and valid_metric where there is a split."""
        found: list[Mean | None] = [None for _ in self._parts]
        for piece, h in self._passes.walk(scores):
            for number, (y, samples, own) in enumerate(self._chosen(piece, h)):
                mean = self._loss.headline(own, y, samples)
                before = found[number]
                if before is None:
                    found[number] = mean
                else:
                    before.merge(mean)
        values = [None if mean is None else mean.value for mean in found]
        if self._validation is None:
            return {"train_metric": values[0]}
        held = {"valid_loss": self._valid_loss(scores), "valid_metric": values[1]}
        return {"train_metric": values[0], **held}

    def final(self, scores: Scores) -> Metrics:
        """All metrics of the model's kind; those of the validation rows as valid_<metric>."""
        meters = [self._loss.meter(own.rows(self._passes.total)) for own in self._parts]
        for piece, h in self._passes.walk(scores):
            for meter, (y, samples, own) in zip(meters, self._chosen(piece, h), strict=True):
                self._loss.measure(meter, own, y, samples)
        found = meters[0].metrics()
        if self._validation is not None:
            found["valid_loss"] = self._valid_loss(scores)
            held = meters[1].metrics()
            found |= {f"valid_{name}": value for name, value in held.items()}
        return found

    @property
    def _parts(self) -> list[Part]:
        return [own for own in (self._training, self._validation) if own is not None]

    def _chosen(self, piece: Piece, h: Array) -> Iterator[tuple[Array, Array | None, Array]]:
        """Targets, weights and scores of each part's among the rows."""
        for part in self._parts:
            yield part.of(piece, h)

    def _valid_loss(self, scores: Scores) -> float | None:
        """None where only classes of weight 0 are held out."""
        held, value = self._held, 0.0
        if held is None or not held.any():
            return None
        for piece, h in self._passes.walk(scores):
            some = np.flatnonzero(held[piece.numbers])
            if len(some):
                weights = held[piece.numbers][some]
                mean = self._loss.value(h[some], piece.targets[some], weights)
                value += mean * float(weights.sum())
        return value / float(held.sum()) + self._valid_floor

    @cached_property
    def _valid_floor(self) -> float:
        return self._loss.floor(self._targets, self._held)
