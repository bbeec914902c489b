"""What losses of one kind of target have in common: of numbers, and of classes.

Predictions are what the loss makes of scores: (N, 1) numbers, or (N, classes) probabilities.
Targets y are (N,) numbers, or class codes. Weights are as in `sqlfl.models.losses`.
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
"""Rows that are measured at once: few enough for the processor's cache."""
LARGEST = 1e34
"""Of scores and slopes: sums of more would not fit the 4-byte numbers of messages."""


class OfTargets(ABC):
    """What most losses are: bounded in curvature, and 0 where scores are right."""

    largest_score: float = LARGEST
    bounded: bool = True

    def fitted(self, targets: Array, weights: Array | None) -> Self:
        return self

    @abstractmethod
    def meter(self, rows: int = 0) -> Meter: ...

    @abstractmethod
    def predict(self, scores: Array) -> Array: ...

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
    """The targets' deviation, or 1.4826 times their median distance from the median, which is as
    large where they are normal, where few targets that are far away make that less; 1 of targets
    that are all the same."""
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
        own = scores[np.arange(len(codes)), codes]
        others = np.array(scores)
        others[np.arange(len(codes)), codes] = -np.inf
        return bool(np.all(own > others.max(axis=1)))

    def meter(self, rows: int = 0) -> Meter:
        return ClassMeter(rows)

    def headline(self, scores: Array, targets: Array, weights: Array | None) -> Mean:
        """Scores tell the most probable class as probabilities do."""
        found = Mean()
        found.add(right(scores, targets), weights)
        return found

    def of_prediction(self, prediction: Array, targets: Array, weights: Array | None) -> float:
        return log_loss(prediction, targets, weights)
