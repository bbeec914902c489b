"""What a model is measured by while it is trained: metrics over training and validation rows.

Metrics weigh rows by the column of WEIGHT alone. The validation loss weighs them as training does,
class weights included, so that it is the loss of the objective on rows that it was not fitted to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sqlfl.arrays import Array
from sqlfl.coordinator.preparation import Targets, Weighting
from sqlfl.models.losses import Loss
from sqlfl.models.metrics import Metrics


@dataclass(frozen=True, eq=False)
class Part:
    """Some joined rows, and what they count."""

    rows: Array | None
    """int (n,): joined rows; None for all."""
    samples: Array | None
    """float64 (n,): in metrics; None for 1 of each."""

    def of(self, values: Array) -> Array:
        """The part's rows of (N, ...)."""
        return values if self.rows is None else values[self.rows]


class Measures:
    """Measures of scores H (N, d_c) over the joined rows."""

    def __init__(self, loss: Loss, target: Targets, weighting: Weighting | None) -> None:
        self._loss = loss
        self._target = target
        self._training = Part(None, None)
        self._validation: Part | None = None
        self._held: Array | None = None
        rows = np.ones(len(target.values), np.int64)
        if weighting is not None and weighting.rows is not None:
            rows = weighting.rows
        self.training_rows = int(rows.sum())
        self.validation_rows: int | None = None
        """None where there is no split."""
        if weighting is None:
            return
        plain = bool(np.all(weighting.samples == 1.0))
        if not weighting.validation.any():
            self._training = Part(None, None if plain else weighting.samples)
            return
        held = np.flatnonzero(weighting.validation)
        self._training = _part(np.flatnonzero(~weighting.validation), weighting.samples, plain)
        self._validation = _part(held, weighting.samples, plain)
        self._held = weighting.held[held]
        self.validation_rows = int(rows[held].sum())
        self.training_rows -= self.validation_rows

    def epoch(self, scores: Array) -> Metrics:
        """train_metric; valid_loss and valid_metric where there is a split."""
        found: Metrics = {"train_metric": self._headline(self._training, scores)}
        if self._validation is not None:
            found["valid_loss"] = self._valid_loss(self._validation, scores)
            found["valid_metric"] = self._headline(self._validation, scores)
        return found

    def final(self, scores: Array) -> Metrics:
        """All metrics of the model's kind; those of the validation rows as valid_<metric>."""
        found = self._all(self._training, scores)
        if self._validation is not None:
            found["valid_loss"] = self._valid_loss(self._validation, scores)
            held = self._all(self._validation, scores)
            found |= {f"valid_{name}": value for name, value in held.items()}
        return found

    def _valid_loss(self, part: Part, scores: Array) -> float | None:
        """None where only classes of weight 0 are held out."""
        if self._held is None or not self._held.any():
            return None
        y, loss = part.of(self._target.values), self._loss
        return loss.value(part.of(scores), y, self._held) + loss.floor(y, self._held)

    def _headline(self, part: Part, scores: Array) -> float:
        return self._loss.headline(*self._compared(part, scores))

    def _all(self, part: Part, scores: Array) -> Metrics:
        return self._loss.metrics(*self._compared(part, scores))

    def _compared(self, part: Part, scores: Array) -> tuple[Array, Array, Array | None]:
        """Prediction, target and weights of the part."""
        prediction = self._loss.predict(part.of(scores))
        return prediction, part.of(self._target.values), part.samples


def _part(rows: Array, samples: Array, plain: bool) -> Part:
    return Part(rows, None if plain else samples[rows])
