"""Metrics of predictions over rows, which may come in parts. y: numbers (N,) or class codes.

Weights s (N,), if given, are not negative and some are positive: a row of weight 2 counts as two
rows, one of weight 0 as none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol, Self

import numpy as np
from scipy.special import xlogy

from sqlfl.base.arrays import Array
from sqlfl.models.area import Area
from sqlfl.models.judged import Judged
from sqlfl.models.proximal import sigmoid
from sqlfl.models.weighted import mean_of

Metrics = dict[str, float | None]


def right(probability: Array, codes: Array) -> Array:
    """Return where the largest of (N, K) probabilities or scores, the first of equals, is the true
    class's: bool (N,). In (N, 1) scores, a positive one stands for class 1.
    """
    if probability.shape[1] > 2:
        chosen = probability.argmax(axis=1)
    elif probability.shape[1] == 2:
        chosen = probability[:, 1] > probability[:, 0]
    else:
        chosen = probability[:, 0] > 0.0
    hits: Array = chosen == codes
    return hits


def log_loss(probability: Array, codes: Array, weights: Array | None = None) -> float:
    """Return the mean of −log of the probability of the true class, which counts as at least
    1e-308.
    """
    return mean_of(_surprises(probability, codes), weights)


def _surprises(probability: Array, codes: Array) -> Array:
    chosen = probability[np.arange(len(codes)), codes]
    return -np.log(np.maximum(chosen, np.finfo(np.float64).tiny))


class Mean:
    """Mean of numbers that come in parts."""

    def __init__(self) -> None:
        self.total = 0.0
        """Σ w x."""
        self.weight = 0.0
        """Σ w; the number of rows without weights."""

    def add(self, values: Array, weights: Array | None = None) -> None:
        self.total += _sum(values, weights)
        self.weight += float(len(values) if weights is None else weights.sum())

    def merge(self, other: Mean) -> None:
        self.total += other.total
        self.weight += other.weight

    def numbers(self) -> list[float]:
        return [self.total, self.weight]

    def take(self, numbers: Iterator[float]) -> None:
        """Replace its numbers by those of another one."""
        self.total, self.weight = next(numbers), next(numbers)

    @property
    def value(self) -> float:
        """Return the mean; NaN without numbers."""
        return self.total / self.weight if self.weight else float("nan")


class RootMean(Mean):
    """Square root of the mean of squares that come in parts."""

    @property
    def value(self) -> float:
        return float(np.sqrt(self.total / self.weight)) if self.weight else float("nan")


class Meter(Protocol):
    """All metrics of a kind of target, for rows that come in parts, in any order."""

    def add(self, prediction: Array, y: Array, weights: Array | None = None) -> None:
        """Add further rows: a loss's predictions for them, (n, 1) or (n, K), and their true values,
        (n,).
        """
        ...

    def merge(self, other: Self) -> None:
        """Add the rows of another meter, which is unusable afterwards."""
        ...

    def arrays(self) -> list[Array]:
        """Return its whole state, for `restore`."""
        ...

    def restore(self, arrays: Sequence[Array]) -> None:
        """Take over the state of a meter of the same kind. This one must be new."""
        ...

    def metrics(self) -> Metrics: ...


class NumberMeter:
    """Metrics rmse, mae and r2; r2 is None for a constant target."""

    def __init__(self) -> None:
        self._squares, self._sizes, self._target = RootMean(), Mean(), _Spread()

    def add(self, prediction: Array, y: Array, weights: Array | None = None) -> None:
        error = prediction[:, 0] - y
        self._sizes.add(np.abs(error), weights)
        self._squares.add(np.square(error, out=error), weights)
        self._target.add(y, weights)

    def merge(self, other: NumberMeter) -> None:
        self._squares.merge(other._squares)
        self._sizes.merge(other._sizes)
        self._target.merge(other._target)

    def arrays(self) -> list[Array]:
        return _numbers(self._squares, self._sizes, self._target)

    def restore(self, arrays: Sequence[Array]) -> None:
        _restore(arrays[0], self._squares, self._sizes, self._target)

    def metrics(self) -> Metrics:
        total = self._target.squares
        return {
            "rmse": self._squares.value,
            "mae": self._sizes.value,
            "r2": 1.0 - self._squares.total / total if total > 0 else None,
        }


class CountMeter:
    """deviance, dispersion, rmse and mae of predicted means of counts y ≥ 0.

    deviance: mean of 2 (y log(y/μ) − y + μ), 0 where all predictions are right; a mean of 0 counts
    as 1e-308. dispersion: Pearson's χ² over the rows, the mean of (y − μ)²/μ.
    """

    def __init__(self) -> None:
        self._units, self._squares, self._sizes = Mean(), RootMean(), Mean()
        self._pearson = Mean()

    def variances(self, least: Array) -> Array:
        """Variance (n,) of targets by their means, without the dispersion."""
        return least

    def deviances(self, mean: Array, least: Array, y: Array) -> Array:
        """Return the deviance of each row; `least` is the mean, but not 0."""
        return np.asarray(2.0 * (xlogy(y, y) - xlogy(y, least) - y + mean))

    def add(self, prediction: Array, y: Array, weights: Array | None = None) -> None:
        mean = prediction[:, 0]
        least = np.maximum(mean, np.finfo(np.float64).tiny)
        self._units.add(self.deviances(mean, least, y), weights)
        error = mean - y
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            pearson = np.where(error == 0.0, 0.0, error * error / self.variances(least))
        self._pearson.add(pearson, weights)
        self._sizes.add(np.abs(error), weights)
        self._squares.add(np.square(error, out=error), weights)

    def merge(self, other: CountMeter) -> None:
        self._units.merge(other._units)
        self._pearson.merge(other._pearson)
        self._squares.merge(other._squares)
        self._sizes.merge(other._sizes)

    def arrays(self) -> list[Array]:
        return _numbers(self._units, self._pearson, self._squares, self._sizes)

    def restore(self, arrays: Sequence[Array]) -> None:
        _restore(arrays[0], self._units, self._pearson, self._squares, self._sizes)

    def metrics(self) -> Metrics:
        return {
            "deviance": self._units.value,
            "dispersion": self._pearson.value,
            "rmse": self._squares.value,
            "mae": self._sizes.value,
        }


class GammaMeter(CountMeter):
    """The same of sizes y > 0; deviance: mean of 2 (y/μ − 1 − log(y/μ)), dispersion: that of
    (y − μ)²/μ²."""

    def variances(self, least: Array) -> Array:
        return np.square(least)

    def deviances(self, mean: Array, least: Array, y: Array) -> Array:
        ratio = y / least
        return np.asarray(2.0 * (ratio - 1.0 - np.log(ratio)))


def pinball(prediction: Array, y: Array, quantile: float) -> Array:
    """Return the loss of each row's predicted quantile: (n,)."""
    above = y - prediction
    return np.asarray(np.where(above > 0.0, quantile, quantile - 1.0) * above)


class QuantileMeter:
    """Metrics pinball, coverage (the share of rows at or below the prediction) and mae."""

    def __init__(self, quantile: float = 0.5) -> None:
        self._quantile = quantile
        self._pinball, self._covered, self._sizes = Mean(), Mean(), Mean()

    def add(self, prediction: Array, y: Array, weights: Array | None = None) -> None:
        predicted = prediction[:, 0]
        self._pinball.add(pinball(predicted, y, self._quantile), weights)
        self._covered.add(y <= predicted, weights)
        self._sizes.add(np.abs(predicted - y), weights)

    def merge(self, other: QuantileMeter) -> None:
        self._pinball.merge(other._pinball)
        self._covered.merge(other._covered)
        self._sizes.merge(other._sizes)

    def arrays(self) -> list[Array]:
        quantile = np.array([self._quantile])
        return [quantile, *_numbers(self._pinball, self._covered, self._sizes)]

    def restore(self, arrays: Sequence[Array]) -> None:
        self._quantile = float(arrays[0][0])
        _restore(arrays[1], self._pinball, self._covered, self._sizes)

    def metrics(self) -> Metrics:
        return {
            "pinball": self._pinball.value,
            "coverage": self._covered.value,
            "mae": self._sizes.value,
        }


class ClassMeter:
    """Metrics accuracy, auc (two classes; None otherwise or if one is absent) and log_loss.

    The predicted class is the most probable one, the first of equals. The area is exact for up to
    `sqlfl.models.area.KEPT` rows. rows: their expected number; 0 for any number.
    """

    def __init__(self, rows: int = 0) -> None:
        self._right, self._surprises, self._area = Mean(), Mean(), Area(spread=_log_odds)
        self._area.expect(rows)
        self._classes = 0

    def add(self, prediction: Array, y: Array, weights: Array | None = None) -> None:
        self._classes = prediction.shape[1]
        self._right.add(right(prediction, y), weights)
        self._surprises.add(_surprises(prediction, y), weights)
        if self._classes == 2:
            self._area.add(prediction[:, 1], y == 1, weights)

    def add_scores(self, scores: Array, y: Array, weights: Array | None = None) -> None:
        """Add further rows by their scores (n,), for the compiled library."""
        self._classes = 2
        judged = Judged(scores, y, weights)
        self._surprises.total += judged.surprise
        self._surprises.weight += judged.weight
        if weights is None:
            self._right.total += judged.right
            self._right.weight += judged.weight
        else:  # with the bits of the history, which adds weights up in this order
            self._right.add(right(scores[:, None], y), weights)
        if self._area.counting:
            self._area.add_spread(judged)
        else:
            self._area.add(sigmoid(scores), y == 1, weights)

    def merge(self, other: ClassMeter) -> None:
        self._classes = max(self._classes, other._classes)
        self._right.merge(other._right)
        self._surprises.merge(other._surprises)
        self._area.merge(other._area)

    def arrays(self) -> list[Array]:
        area = np.array([self._classes, self._area.counting])
        return [area, *_numbers(self._right, self._surprises), *self._area.arrays()]

    def restore(self, arrays: Sequence[Array]) -> None:
        (self._classes, counting), numbers, *area = (arrays[0].tolist(), *arrays[1:])
        _restore(numbers, self._right, self._surprises)
        self._area.restore(area, counting=bool(counting))

    def metrics(self) -> Metrics:
        return {
            "accuracy": self._right.value,
            "auc": self._area.value if self._classes == 2 else None,
            "log_loss": self._surprises.value,
        }


def _log_odds(probability: Array) -> Array:
    """Return log-odds: in the order of the probabilities, but distinct near 0 and 1."""
    p = np.clip(probability, np.finfo(np.float64).tiny, 1.0 - 2.0**-53)
    odds: Array = np.log(p) - np.log1p(-p)
    return odds


class _Spread:
    """Σ w (y − ȳ)² of numbers that come in parts, each about its own mean (Chan, Golub and LeVeque
    1983). Means are relative to the first number, so that large ones keep their digits.
    """

    def __init__(self) -> None:
        self._origin, self._mean = 0.0, 0.0
        self._weight, self._squares = 0.0, 0.0
        self._least, self._largest = np.inf, -np.inf

    def add(self, values: Array, weights: Array | None) -> None:
        counted = values if weights is None else values[weights > 0]
        if not len(counted):
            return
        if not self._weight:
            self._origin = float(counted[0])
        self._least = min(self._least, float(counted.min()))
        self._largest = max(self._largest, float(counted.max()))
        moved = values - self._origin
        mean = mean_of(moved, weights)
        moved -= mean
        weight = float(len(values) if weights is None else weights.sum())
        self._join(weight, mean, _sum(np.square(moved, out=moved), weights))

    def merge(self, other: _Spread) -> None:
        if not other._weight:
            return
        if not self._weight:
            self._origin = other._origin
        self._least = min(self._least, other._least)
        self._largest = max(self._largest, other._largest)
        mean = other._mean + (other._origin - self._origin)
        self._join(other._weight, mean, other._squares)

    def numbers(self) -> list[float]:
        moments = [self._origin, self._mean, self._weight, self._squares]
        return [*moments, self._least, self._largest]

    def take(self, numbers: Iterator[float]) -> None:
        self._origin, self._mean, self._weight, self._squares = islice(numbers, 4)
        self._least, self._largest = islice(numbers, 2)

    @property
    def squares(self) -> float:
        """Return the sum; 0 if all numbers are equal, because their mean may be rounded."""
        return self._squares if self._largest > self._least else 0.0

    def _join(self, weight: float, mean: float, squares: float) -> None:
        both, shift = self._weight + weight, mean - self._mean
        self._squares += squares + shift * shift * (self._weight * (weight / both))
        self._mean += shift * (weight / both)
        self._weight = both


def _numbers(*parts: Mean | _Spread) -> list[Array]:
    """Return the numbers of all parts, one after the other: float64 (k,)."""
    return [np.array([number for part in parts for number in part.numbers()])]


def _restore(numbers: Array, *parts: Mean | _Spread) -> None:
    left = iter(numbers.tolist())
    for part in parts:
        part.take(left)


def _sum(values: Array, weights: Array | None) -> float:
    return float(np.sum(values) if weights is None else weights @ values)
