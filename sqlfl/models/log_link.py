"""Losses with the logarithm as link: Poisson's of counts, and gamma's of sizes and durations.

Poisson, for y ≥ 0: exp(H) − y H. Its minimum, at H = log y, is y − y log y; `Poisson.floor` is the
mean of that. The rest, half the deviance, is minimised: it is 0 if the scores are right, for counts
of any size. Its curvature exp(H) has no bound.

Gamma, for y > 0: y exp(−H) + H. Its minimum, at H = log y, is 1 + log y; `Gamma.floor` is the mean
of that. The rest, half the deviance, is minimised. It does not depend on the target's unit. Its
curvature y exp(−H) has no bound; at the best constant score its mean is 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import wrightomega, xlogy

from sqlfl.base.arrays import Array
from sqlfl.base.errors import ModelError
from sqlfl.models.metrics import CountMeter, GammaMeter, Meter
from sqlfl.models.targets import MAX_SCORE, OfNumbers
from sqlfl.models.weighted import mean_of, rows_times, second_moments, sum_of, times


@dataclass(frozen=True)
class Poisson(OfNumbers):
    """Loss exp(H) − y H, less its minimum over H."""

    curvature: float = 1.0
    outputs: int = 1
    name: str = "poisson"
    largest_score: float = float(np.log(MAX_SCORE))
    bounded: bool = False

    def fitted(self, targets: Array, weights: Array | None) -> Poisson:
        mean = mean_of(targets, weights)
        if not mean > 0.0:
            raise ModelError(
                "the target is 0 in all rows that train, so the best mean would be 0, whose "
                "logarithm there is not",
                hint="take rows that have counts",
            )
        return replace(self, curvature=mean)

    @property
    def slack(self) -> float:
        """Return a slack for rounding: exp(log y) need not be y."""
        return 1e-14 * self.curvature

    def floor(self, targets: Array, weights: Array | None) -> float:
        return mean_of(targets - xlogy(targets, targets), weights)

    def value(self, scores: Array, targets: Array, weights: Array | None = None) -> float:
        with np.errstate(over="ignore"):
            return mean_of(_half_deviance(_counting(scores[:, 0], weights), targets), weights)

    def gradient(self, scores: Array, targets: Array, weights: Array | None = None) -> Array:
        with np.errstate(over="ignore"):
            mean = np.exp(_counting(scores[:, 0], weights))
            return rows_times((mean - targets)[:, None], weights)

    def value_and_slopes(
        self, scores: Array, targets: Array, weights: Array | None
    ) -> tuple[float, Array]:
        h = _counting(scores[0], weights)
        # A trial that goes too far has an infinite value, which is no descent.
        with np.errstate(over="ignore", invalid="ignore"):
            slopes = times(np.exp(h) - targets, weights)
            return sum_of(_half_deviance(h, targets), weights), slopes[None]

    def curvatures(
        self, scores: Array, targets: Array, weights: Array | None, ways: Array
    ) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.exp(_counting(scores[0], weights))
            return second_moments(ways[:, 0], times(mean, weights))

    @property
    def quadratic(self) -> bool:
        return False

    def prox(self, points: Array, targets: Array, rho: float) -> Array:
        """Solve exp(z) + ρ z = ρ v + y."""
        return exponential_root(points + targets[:, None] / rho, rho)

    def initial_intercept(self, targets: Array, weights: Array | None = None) -> Array:
        return np.array([np.log(mean_of(targets, weights))])

    def mean_curvature(
        self, scores: Array, weights: Array | None = None, targets: Array | None = None
    ) -> float:
        with np.errstate(over="ignore"):
            return mean_of(np.exp(scores[:, 0]), weights)

    def flatness(self, scores: Array, targets: Array, weights: Array | None) -> float:
        """Return the ratio of curvatures. Between a row's score and its best one, the curvature is
        at most its mean or its count.
        """
        h = scores[:, 0]
        with np.errstate(over="ignore"):
            bent = np.maximum(np.exp(h), targets)
        return self.curvature / steepest(bent, h, weights)

    def predict(self, scores: Array) -> Array:
        return means(scores)

    def meter(self, rows: int = 0) -> Meter:
        return CountMeter()

    def of_prediction(self, prediction: Array, targets: Array, weights: Array | None) -> float:
        mean = prediction[:, 0]
        least = np.maximum(mean, np.finfo(np.float64).tiny)
        return mean_of(mean - xlogy(targets, least), weights)


def _counting(scores: Array, weights: Array | None) -> Array:
    """Return the scores, with 0 for rows of weight 0: zero times an infinite mean is undefined."""
    return scores if weights is None else np.where(weights > 0.0, scores, 0.0)


def _half_deviance(h: Array, y: Array) -> Array:
    """Return y (exp(u) − 1 − u), u = h − log y; exp(h) for y = 0: (n,)."""
    some = y > 0.0
    counts = np.where(some, y, 1.0)
    u = h - np.log(counts)
    grown = np.expm1(u)
    deviance: Array = np.where(some, counts * (grown - u), grown + 1.0)
    return deviance


# Common parts of losses with the logarithm as link: means are exponentials of scores.

HIGHEST = float(np.log(np.finfo(np.float64).max))
"""Score whose mean is the largest DOUBLE."""


def means(scores: Array) -> Array:
    """Return exponentials of scores. Raise ModelError if one is beyond all numbers."""
    beyond = int(np.count_nonzero(~(scores <= HIGHEST)))
    if beyond:
        raise ModelError(
            f"the means of {beyond} joined rows, exponentials of their scores, are beyond all "
            "numbers",
            hint="their features are far beyond those of training: compare the units",
        )
    return np.exp(scores)


def exponential_root(a: Array, rho: float) -> Array:
    """Return z with exp(z) + ρ z = ρ a. exp(z)/ρ is Wright's ω(a − log ρ)."""
    omega = wrightomega(a - np.log(rho))
    small = omega < 1.0
    z: Array = np.where(small, a - omega, np.log(rho * np.where(small, 1.0, omega)))
    return z


def steepest(bent: Array, scores: Array, weights: Array | None) -> float:
    """Return the mean of curvatures `bent` (n,) along a constant or along the scores, whichever is
    more. Large means lie along the scores' own direction.
    """
    square = (scores - mean_of(scores, weights)) ** 2
    spread = mean_of(square, weights)
    along = mean_of(bent * square, weights) / spread if spread > 0.0 else 0.0
    return max(mean_of(bent, weights), along)


@dataclass(frozen=True)
class Gamma(OfNumbers):
    """Loss y exp(−H) + H, less its minimum over H."""

    curvature: float = 1.0
    outputs: int = 1
    name: str = "gamma"
    largest_score: float = float(np.log(MAX_SCORE))
    bounded: bool = False

    @property
    def slack(self) -> float:
        """Return a slack for rounding: exp(log y) need not be y."""
        return 1e-14

    def floor(self, targets: Array, weights: Array | None) -> float:
        return 1.0 + mean_of(np.log(targets), weights)

    def value(self, scores: Array, targets: Array, weights: Array | None = None) -> float:
        with np.errstate(over="ignore"):
            u = _short(scores[:, 0], targets, weights)
            return mean_of(np.expm1(u) - u, weights)

    def gradient(self, scores: Array, targets: Array, weights: Array | None = None) -> Array:
        with np.errstate(over="ignore"):
            u = _short(scores[:, 0], targets, weights)
            return rows_times(-np.expm1(u)[:, None], weights)

    def value_and_slopes(
        self, scores: Array, targets: Array, weights: Array | None
    ) -> tuple[float, Array]:
        # A trial that goes too far has an infinite value, which is no descent.
        with np.errstate(over="ignore", invalid="ignore"):
            u = _short(scores[0], targets, weights)
            grown = np.expm1(u)
            return sum_of(grown - u, weights), -times(grown, weights)[None]

    def curvatures(
        self, scores: Array, targets: Array, weights: Array | None, ways: Array
    ) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            bent = np.exp(_short(scores[0], targets, weights))
            return second_moments(ways[:, 0], times(bent, weights))

    @property
    def quadratic(self) -> bool:
        return False

    def prox(self, points: Array, targets: Array, rho: float) -> Array:
        """Solve with u = log y − z: exp(u) + ρ u = 1 + ρ (log y − v) + 1."""
        level = np.log(targets)[:, None]
        root: Array = level - exponential_root(level - points + 1.0 / rho, rho)
        return root

    def initial_intercept(self, targets: Array, weights: Array | None = None) -> Array:
        return np.array([np.log(mean_of(targets, weights))])

    def mean_curvature(
        self, scores: Array, weights: Array | None = None, targets: Array | None = None
    ) -> float:
        """Return the mean curvature for targets that agree with the scores."""
        return 1.0

    def flatness(self, scores: Array, targets: Array, weights: Array | None) -> float:
        """Return the ratio of curvatures. Between a row's score and its best one, the curvature is
        at most y/mean or 1.
        """
        h = scores[:, 0]
        with np.errstate(over="ignore"):
            bent = np.maximum(np.exp(_short(h, targets, weights)), 1.0)
        return self.curvature / steepest(bent, h, weights)

    def predict(self, scores: Array) -> Array:
        return means(scores)

    def meter(self, rows: int = 0) -> Meter:
        return GammaMeter()

    def of_prediction(self, prediction: Array, targets: Array, weights: Array | None) -> float:
        mean = np.maximum(prediction[:, 0], np.finfo(np.float64).tiny)
        return mean_of(np.log(mean) + targets / mean, weights)


def _short(scores: Array, targets: Array, weights: Array | None) -> Array:
    """Return u = log y − H (n,); 0 for rows of weight 0, whose share may be infinite."""
    u = np.log(targets) - scores
    return u if weights is None else np.where(weights > 0.0, u, 0.0)
