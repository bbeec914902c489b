"""Area under the ROC curve: the probability that a positive row scores above a negative one.

Ties count half. Weights (N,) are not negative: a row of weight 2 counts as two rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self, TypeAlias

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.models.judged import Judged

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
