"""Metrics of predictions over rows, which may come in parts. y: numbers (N,) or class codes.

Weights s (N,), if given, are not negative and some are positive: a row of weight 2 counts as two
rows, one of weight 0 as none. The area under the ROC curve is the probability that a positive row
scores above a negative one, where ties count half.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_double, c_int64, c_void_p
from itertools import islice
from typing import Protocol, Self, TypeAlias

import numpy as np
from scipy.special import xlogy

from sqlfl.base.arrays import Array
from sqlfl.models.native import address, functions, typed
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
    as 1e-308. dispersion: Pearson's χ² over the rows, the mean of (y − μ)²/μ; None beyond the
    largest number.
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
        dispersion = self._pearson.value
        return {
            "deviance": self._units.value,
            "dispersion": dispersion if np.isfinite(dispersion) else None,
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
    `KEPT` rows. rows: their expected number; 0 for any number.
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


KEPT = 1 << 22
"""Maximum number of rows whose scores are kept, so that the area is exact. More rows are counted in
bins.
"""
BINS = 1 << 22
FINEST = 60
"""Bins are at least 2⁻⁶⁰ wide, so that their numbers fit int64."""

_Rows: TypeAlias = "tuple[Array, Array, Array | None]"
"""Scores (n,), bool (n,) and weights (n,)."""


def area_under_curve(score: Array, positive: Array, weights: Array | None = None) -> float | None:
    """Return the area of scores (N,) and bool (N,). It is None if all the weight is on one side,
    and NaN if a score is NaN.

    Each side is sorted, and the smaller one's different scores are looked up in the other's.
    """
    if weights is not None:
        return _weighted_area(score, positive, weights)
    hits, misses = np.sort(score[positive]), np.sort(score[~positive])
    if not len(hits) or not len(misses):
        return None
    if np.isnan(hits[-1]) or np.isnan(misses[-1]):
        return float("nan")
    pairs = len(hits) * len(misses)
    if len(hits) <= len(misses):
        return _twice_below(hits, misses) / (2 * pairs)
    return (2 * pairs - _twice_below(misses, hits)) / (2 * pairs)


def _twice_below(few: Array, many: Array) -> int:
    """Return twice the number of pairs with the score of `many` below that of `few`, plus the pairs
    of equal scores. Both are sorted.
    """
    first = np.flatnonzero(np.concatenate([[True], few[1:] != few[:-1]]))
    counts = np.diff(first, append=len(few))
    scores = few[first]
    left = np.searchsorted(many, scores)
    equal = np.flatnonzero(many[np.minimum(left, len(many) - 1)] == scores)
    right = np.searchsorted(many, scores[equal], side="right")
    return int(2 * (counts @ left) + counts[equal] @ (right - left[equal]))


def _weighted_area(score: Array, positive: Array, weights: Array) -> float | None:
    hits, hit_weights = _sorted(score, weights, positive)
    misses, miss_weights = _sorted(score, weights, ~positive)
    if not (hit_weights.any() and miss_weights.any()):
        return None
    if np.isnan(hits[-1]) or np.isnan(misses[-1]):
        return float("nan")
    below = np.concatenate([[0.0], np.cumsum(miss_weights / miss_weights.sum())])
    left, right = np.searchsorted(misses, hits), np.searchsorted(misses, hits, side="right")
    shares = hit_weights / hit_weights.sum()
    return float(0.5 * (shares @ (below[left] + below[right])))


def _sorted(score: Array, weights: Array, chosen: Array) -> tuple[Array, Array]:
    scores = score[chosen]
    order = np.argsort(scores)
    return scores[order], weights[chosen][order]


class Area:
    """Area under the curve of rows that come in parts.

    Up to `kept` rows it is exact. For more, scores are mapped by `spread`, which keeps their order,
    to h, and counted in bins of equal width of u = h / (1 + |h|). At least a quarter of `bins` lies
    between the least and the largest u. The width is a power of two, so that areas can be merged.
    It follows from the rows alone, not from their order.

    Rows of a bin count as ties. Equal scores are in one bin, as they should be. Others cause an
    error of at most `error`, half of the pairs that share a bin. The area is much closer, because
    rows of a bin have no particular order: about the largest share of a bin over the root of the
    rows of the smaller side. If scores spread over the bins and that side has ten thousand rows, it
    is below 5e-8.
    """

    def __init__(
        self,
        kept: int = KEPT,
        bins: int = BINS,
        spread: Callable[[Array], Array] = lambda scores: scores,
    ) -> None:
        self._most, self._bins, self._spread = kept, bins, spread
        self._rows = 0
        self._kept: list[_Rows] = []
        self._coarse = False
        self._waiting: list[_Rows | Judged] = []
        """Mapped rows that are not in the bins yet. For few rows, making the bins is not
        worth it.
        """
        self._number = 0
        """Number of the waiting rows."""
        self._counts: _Counts | None = None

    def add(self, score: Array, positive: Array, weights: Array | None = None) -> None:
        """Add scores (n,), bool (n,) and weights (n,) of further rows; they are copied."""
        if not len(score):
            return
        copied_weights = None if weights is None else np.array(weights, np.float64)
        self._take(np.array(score, np.float64), np.array(positive, bool), copied_weights)

    def expect(self, rows: int) -> None:
        """Announce the total number of rows, including those of merged areas. If they are too many,
        none are kept.
        """
        if rows > self._most:
            self._coarsen()

    @property
    def counting(self) -> bool:
        """Return True if rows are counted in bins, now or later."""
        return self._coarse

    def add_spread(self, judged: Judged) -> None:
        """Add further rows to an area that is `counting`, by scores already mapped by `spread`."""
        self._rows += len(judged.scores)
        self._wait(judged)

    def merge(self, other: Area) -> None:
        """Add the rows of another area with as many bins, which is unusable afterwards."""
        for rows in other._kept:
            self._take(*rows)
        if not other._coarse:
            return
        self._coarsen()
        self._rows += other._rows
        for waiting in other._waiting:
            self._wait(waiting)
        if self._counts is None:
            self._counts = other._counts
        elif other._counts is not None:
            self._counts.merge(other._counts)

    @property
    def value(self) -> float | None:
        """Return the area as `area_under_curve` does."""
        if self._coarse:
            return self._count().area
        if not self._kept:
            return None
        return area_under_curve(*_joined(self._kept))

    @property
    def error(self) -> float:
        """Return the maximum distance of `value` from the area of the scores; 0 if it is exact."""
        return self._count().error if self._coarse else 0.0

    def arrays(self) -> list[Array]:
        """Return its whole state for `restore`: kept scores, or the bins."""
        if self._coarse:
            return self._count().arrays()
        if not self._kept:
            return []
        score, positive, weights = _joined(self._kept)
        return [score, positive] if weights is None else [score, positive, weights]

    def restore(self, arrays: Sequence[Array], *, counting: bool) -> None:
        """Take over the state of an area that was `counting` or not. This one must be new."""
        if counting:
            self._coarse = True
            self._counts = _Counts.of(self._bins, arrays)
        elif arrays:
            score, positive, *weights = arrays
            self._take(score, positive, weights[0] if weights else None)

    def _take(self, score: Array, positive: Array, weights: Array | None) -> None:
        self._rows += len(score)
        if self._rows > self._most:
            self._coarsen()
        if self._coarse:
            self._wait((self._spread(score), positive, weights))
        else:
            self._kept.append((score, positive, weights))

    def _coarsen(self) -> None:
        """Count in bins from now on, including the kept rows."""
        self._coarse = True
        kept, self._kept = self._kept, []
        for score, positive, weights in kept:
            self._wait((self._spread(score), positive, weights))

    def _wait(self, rows: _Rows | Judged) -> None:
        self._waiting.append(rows)
        self._number += _number(rows)
        if self._counts is not None or self._number > self._most:
            self._count()

    def _count(self) -> _Counts:
        """Return the bins, with all rows."""
        if self._counts is None:
            self._counts = _Counts(self._bins)
        waiting, self._waiting, self._number = self._waiting, [], 0
        for rows in waiting:
            if isinstance(rows, Judged):
                self._counts.add_judged(rows)
            else:
                self._counts.add(*rows)
        return self._counts


def _number(rows: _Rows | Judged) -> int:
    return len(rows.scores if isinstance(rows, Judged) else rows[0])


def _joined(pieces: list[_Rows]) -> _Rows:
    scores = np.concatenate([score for score, _, _ in pieces])
    positive = np.concatenate([positive_part for _, positive_part, _ in pieces])
    if all(weights is None for _, _, weights in pieces):
        return scores, positive, None
    parts = [np.ones(len(s)) if weights is None else weights for s, _, weights in pieces]
    return scores, positive, np.concatenate(parts)


class _Counts:
    """Weights of negative and positive rows by bins: floor(2^level u) − `first`.

    `level` is the largest at which all u are within half of the bins. The bins may start anywhere,
    so that they seldom move.
    """

    def __init__(self, bins: int) -> None:
        self._bins = bins
        self._level, self._first = FINEST, 0
        self._least, self._largest = np.inf, -np.inf
        self._undefined = False
        self._counts = np.zeros(2 * bins)
        """Bin b of negative rows at 2 b, of positive ones at 2 b + 1."""

    def add(self, score: Array, positive: Array, weights: Array | None) -> None:
        u = np.clip(score, -1e300, 1e300)
        u /= 1.0 + np.abs(u)
        least, largest = float(u.min()), float(u.max())
        if np.isnan(least):
            self._undefined = True
            return
        self._reach(least, largest, FINEST)
        bins = np.floor(np.ldexp(u, self._level)).astype(np.int64) - self._first
        np.add.at(self._counts, 2 * bins + positive, 1.0 if weights is None else weights)

    def add_judged(self, judged: Judged) -> None:
        if judged.undefined:
            self._undefined = True
            return
        least, largest = (float(h / (1.0 + abs(h))) for h in (judged.least, judged.largest))
        self._reach(least, largest, FINEST)
        judged.count(self._level, self._first, self._counts)

    def merge(self, other: _Counts) -> None:
        self._undefined |= other._undefined
        if other._least > other._largest:
            return
        self._reach(other._least, other._largest, other._level)
        places = np.flatnonzero(other._counts)
        bins = ((places >> 1) + other._first >> other._level - self._level) - self._first
        np.add.at(self._counts, 2 * bins + (places & 1), other._counts[places])

    def arrays(self) -> list[Array]:
        """Return the bins that have rows, and their places."""
        places = np.flatnonzero(self._counts)
        where = np.array([self._level, self._first, self._undefined], np.int64)
        return [where, np.array([self._least, self._largest]), places, self._counts[places]]

    @classmethod
    def of(cls, bins: int, arrays: Sequence[Array]) -> Self:
        where, reach, places, counts = arrays
        restored = cls(bins)
        restored._level, restored._first, undefined = where.tolist()
        restored._undefined = bool(undefined)
        restored._least, restored._largest = reach.tolist()
        restored._counts[places] = counts
        return restored

    @property
    def area(self) -> float | None:
        misses, hits = self._counts[::2], self._counts[1::2]
        if self._undefined:
            return float("nan")
        if not (misses.any() and hits.any()):
            return None
        misses = misses / misses.sum()
        return float(hits @ (np.cumsum(misses) - 0.5 * misses) / hits.sum())

    @property
    def error(self) -> float:
        misses, hits = self._counts[::2], self._counts[1::2]
        pairs = float(misses.sum() * hits.sum())
        return 0.5 * float(misses @ hits) / pairs if pairs else 0.0

    def _reach(self, least: float, largest: float, finest: int) -> None:
        """Make room for u from `least` to `largest`, in bins of 2^−`finest` or wider."""
        self._least, self._largest = min(self._least, least), max(self._largest, largest)
        level = min(self._level, finest)
        while self._bin(self._largest, level) - self._bin(self._least, level) >= self._bins // 2:
            level -= 1
        low, high = self._bin(self._least, level), self._bin(self._largest, level)
        if level == self._level and self._first <= low and high < self._first + self._bins:
            return
        first = (low + high - self._bins) // 2
        places = np.flatnonzero(self._counts)
        bins = ((places >> 1) + self._first >> self._level - level) - first
        counts = np.zeros(2 * self._bins)
        np.add.at(counts, 2 * bins + (places & 1), self._counts[places])
        self._level, self._first, self._counts = level, first, counts

    @staticmethod
    def _bin(u: float, level: int) -> int:
        return int(np.floor(np.ldexp(u, level)))


# Metrics of scores of two classes, computed by the compiled library; see compiled.c.


class _Verdict(ctypes.Structure):
    _fields_ = (
        ("right", c_double),
        ("surprise", c_double),
        ("weight", c_double),
        ("least", c_double),
        ("largest", c_double),
        ("undefined", c_int64),
    )


class Judged:
    """Scores h (n,) of class 1, that is their log-odds, for rows of classes 0 and 1 (n,), at least
    one. Weights are (n,), or 1 each.
    """

    def __init__(self, scores: Array, classes: Array, weights: Array | None) -> None:
        self.scores = np.ascontiguousarray(scores, np.float64)
        self._classes, self._type = typed(classes)
        self._weights = None if weights is None else np.ascontiguousarray(weights, np.float64)
        verdict = _Verdict(0.0, 0.0, 0.0, np.inf, -np.inf, 0)
        functions().sqlfl_judge(*self._rows, ctypes.byref(verdict))
        self.right = float(verdict.right)
        """Σ w of rows with a score on their side of 0. A score of 0 is on class 0's side."""
        self.surprise = float(verdict.surprise)
        """Σ −w log of the probability of a row's class, which counts as at least 2.2e-308."""
        self.weight = float(verdict.weight)
        """Σ w."""
        self.least = float(verdict.least)
        """Least score that its probability distinguishes from others."""
        self.largest = float(verdict.largest)
        self.undefined = bool(verdict.undefined)
        """True if a score is no number."""

    def count(self, level: int, first: int, counts: Array) -> None:
        """Add the weights to `counts` of bins, as `Area` has them."""
        scale = c_double(2.0**level)
        functions().sqlfl_count(*self._rows, scale, c_int64(first), address(counts))

    @property
    def _rows(self) -> tuple[c_int64, c_void_p | None, c_void_p | None, int, c_void_p | None]:
        """Return the arguments of the functions."""
        return (
            c_int64(len(self.scores)),
            address(self.scores),
            address(self._classes),
            self._type,
            address(self._weights),
        )
