"""Metrics of a model during training, over training and validation rows.

Metrics weight rows by the column of WEIGHT alone. The validation loss weights them as training
does, with class weights. So it is the objective's loss on rows that the model was not fitted to.
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
    """Return the rows that metrics cover."""
    if weighting is None:
        return EVERY
    samples = None if np.all(weighting.samples == 1.0) else weighting.samples
    if not weighting.validation.any():
        return MeasuredRows(samples=samples)
    return MeasuredRows(weighting.validation, samples, weighting.held)


class Measures:
    """Measures of scores over the joined rows. The passes have their `measured_rows`."""

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
        """Number of validation rows; None without a split."""
        if weighting is not None and self._held is not None:
            held = weighting.validation if rows is None else rows[weighting.validation]
            self.validation_rows = int(held.sum())
            self.training_rows -= self.validation_rows

    def epoch(self, scores: Scores | None) -> Metrics:
        """Return train_metric and, with a split, valid_loss and valid_metric. All are None if
        scores are unknown.
        """
        if scores is None:
            names = ("valid_loss", "valid_metric") if self._held is not None else ()
            return dict.fromkeys(("train_metric", *names))
        values = [mean.value for mean in self._passes.headlines(scores)]
        if self._held is None:
            return {"train_metric": values[0]}
        held = {"valid_loss": self._valid_loss(scores), "valid_metric": values[1]}
        return {"train_metric": values[0], **held}

    def final(self, scores: Scores | None) -> Metrics:
        """Return all metrics of the model's kind, with valid_<metric> for the validation rows.
        Return {} if scores are unknown.
        """
        if scores is None:
            return {}
        meters = self._passes.meters(scores)
        metrics = meters[0].metrics()
        if self._held is not None:
            metrics["valid_loss"] = self._valid_loss(scores)
            held = meters[1].metrics()
            metrics |= {f"valid_{name}": value for name, value in held.items()}
        return metrics

    def _valid_loss(self, scores: Scores) -> float | None:
        """Return the validation loss; None if only classes of weight 0 are held out."""
        held = self._held
        if held is None or not held.any():
            return None
        return self._passes.held_loss(scores) / float(held.sum()) + self._valid_floor

    @cached_property
    def _valid_floor(self) -> float:
        return self._loss.floor(self._targets, self._held)
