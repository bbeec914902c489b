"""Base classes of losses by kind of target: numbers and classes.

Predictions are the loss's values for scores: (N, 1) numbers, or (N, classes) probabilities. Targets
y are (N,) numbers, or class codes. Weights are as in `sqlfl.models.losses`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.models.metrics import (
    ClassMeter,
    Mean,
    Meter,
    Metrics,
    NumberMeter,
    RootMean,
    log_loss,
    right,
)

PIECE = 1 << 15
"""Rows that are measured at once. So many fit the processor's cache."""
MAX_SCORE = 1e34
"""Maximum of scores and slopes: sums of larger ones would not fit the 4-byte numbers of
messages.
"""


class OfTargets(ABC):
    """Base with the properties of most losses: bounded in curvature, and 0 if scores are right."""

    largest_score: float = MAX_SCORE
    bounded: bool = True
    grows: bool = False

    def fitted(self, targets: Array, weights: Array | None) -> Self:
        return self

    @abstractmethod
    def meter(self, rows: int = 0) -> Meter: ...

    @abstractmethod
    def predict(self, scores: Array) -> Array: ...

    @abstractmethod
    def of_prediction(self, prediction: Array, targets: Array, weights: Array | None) -> float: ...

    def of_scores(self, scores: Array, targets: Array, weights: Array | None) -> float:
        return self.of_prediction(self.predict(scores), targets, weights)

    def measure(self, meter: Meter, scores: Array, targets: Array, weights: Array | None) -> None:
        meter.add(self.predict(scores), targets, weights)

    def metrics(self, prediction: Array, targets: Array, weights: Array | None) -> Metrics:
        meter = self.meter()
        for start in range(0, len(targets), PIECE):
            rows = slice(start, start + PIECE)
            meter.add(prediction[rows], targets[rows], None if weights is None else weights[rows])
        return meter.metrics()

    def flatness(self, scores: Array, targets: Array, weights: Array | None) -> float:
        return 1.0

    def floor(self, targets: Array, weights: Array | None) -> float:
        return 0.0

    def unit(self, targets: Array) -> float:
        return 1.0


def typical_distance(targets: Array) -> float:
    """Return the targets' deviation, or 1.4826 times their median distance from the median if that
    is less.

    Both agree for normal targets; the second is less if few targets are far away. Return 1 for
    targets that are all equal.
    """
    deviation = float(targets.std())
    middle = 1.4826 * float(np.median(np.abs(targets - np.median(targets))))
    return min(deviation, middle or deviation) or 1.0


class OfNumbers(OfTargets):
    @property
    def slack(self) -> float:
        return 0.0

    def reach(self, targets: Array) -> float:
        return max(1.0, float(np.abs(targets).max(initial=0.0)))

    def spread(self, targets: Array) -> float:
        return float(targets.std())

    def separates(self, scores: Array, targets: Array) -> bool:
        return False

    def meter(self, rows: int = 0) -> Meter:
        return NumberMeter()

    def headline(self, scores: Array, targets: Array, weights: Array | None) -> Mean:
        error = self.predict(scores)[:, 0] - targets
        squares = RootMean()
        squares.add(np.square(error, out=error), weights)
        return squares


class OfClasses(OfTargets):
    outputs: int

    @property
    def slack(self) -> float:
        return 0.5 * float(np.log(max(self.outputs, 2)))

    def reach(self, targets: Array) -> float:
        return 1.0

    def spread(self, targets: Array) -> float:
        return 1.0

    def separates(self, scores: Array, targets: Array) -> bool:
        codes = targets.astype(np.intp)
        if self.outputs == 1:
            return bool(np.all(np.where(codes == 1, scores[:, 0], -scores[:, 0]) > 0.0))
        true_scores = scores[np.arange(len(codes)), codes]
        others = np.array(scores)
        others[np.arange(len(codes)), codes] = -np.inf
        return bool(np.all(true_scores > others.max(axis=1)))

    def meter(self, rows: int = 0) -> Meter:
        return ClassMeter(rows)

    def headline(self, scores: Array, targets: Array, weights: Array | None) -> Mean:
        """Return the accuracy. Scores give the most probable class as probabilities do."""
        accuracy = Mean()
        accuracy.add(right(scores, targets), weights)
        return accuracy

    def of_prediction(self, prediction: Array, targets: Array, weights: Array | None) -> float:
        return log_loss(prediction, targets, weights)
