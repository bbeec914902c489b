"""What a model is measured by while it is trained: metrics over training and validation rows.

Metrics weigh rows by the column of WEIGHT alone. The validation loss weighs them as training does,
class weights included, so that it is the loss of the objective on rows that it was not fitted to.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from sqlfl.coordinator.executors.joined_rows import PartitionedRows
from sqlfl.coordinator.preparation import Targets, Weighting
from sqlfl.coordinator.rounds.measured import EVERY, MeasuredRows
from sqlfl.coordinator.rounds.scores import Scores
from sqlfl.models.losses import Loss
from sqlfl.models.metrics import Metrics


def measured_rows(weighting: Weighting | None) -> MeasuredRows:
    """What metrics are of."""
    if weighting is None:
        return EVERY
    samples = None if np.all(weighting.samples == 1.0) else weighting.samples
    if not weighting.validation.any():
        return MeasuredRows(samples=samples)
    return MeasuredRows(weighting.validation, samples, weighting.held)


class Measures:
    """Measures of scores over the joined rows, whose `measured_rows` the passes have."""

    def __init__(
        self, passes: PartitionedRows, loss: Loss, target: Targets, weighting: Weighting | None
    ) -> None:
        self._passes = passes
        self._loss = loss
        self._targets = target.values
        self._held = measured_rows(weighting).held
        rows = None if weighting is None else weighting.rows
        self.training_rows = passes.total if rows is None else int(rows.sum())
        self.validation_rows: int | None = None
        """None where there is no split."""
        if weighting is not None and self._held is not None:
            held = weighting.validation if rows is None else rows[weighting.validation]
            self.validation_rows = int(held.sum())
            self.training_rows -= self.validation_rows

    def epoch(self, scores: Scores | None) -> Metrics:
        """train_metric; valid_loss and valid_metric where there is a split. All None where scores
        are not known."""
        if scores is None:
            names = ("valid_loss", "valid_metric") if self._held is not None else ()
            return dict.fromkeys(("train_metric", *names))
        values = [mean.value for mean in self._passes.headlines(scores)]
        if self._held is None:
            return {"train_metric": values[0]}
        held = {"valid_loss": self._valid_loss(scores), "valid_metric": values[1]}
        return {"train_metric": values[0], **held}

    def final(self, scores: Scores | None) -> Metrics:
        """All metrics of the model's kind; those of the validation rows as valid_<metric>. None
        where scores are not known."""
        if scores is None:
            return {}
        meters = self._passes.meters(scores)
        found = meters[0].metrics()
        if self._held is not None:
            found["valid_loss"] = self._valid_loss(scores)
            held = meters[1].metrics()
            found |= {f"valid_{name}": value for name, value in held.items()}
        return found

    def _valid_loss(self, scores: Scores) -> float | None:
        """None where only classes of weight 0 are held out."""
        held = self._held
        if held is None or not held.any():
            return None
        return self._passes.held_loss(scores) / float(held.sum()) + self._valid_floor

    @cached_property
    def _valid_floor(self) -> float:
        return self._loss.floor(self._targets, self._held)
