"""Gamma loss of sizes and durations, with the logarithm as link: y exp(−H) + H, y > 0.

Its minimum, at H = log y, is 1 + log y; `Gamma.floor` is the mean of that. The rest, half the
deviance, is minimised. It does not depend on the target's unit. Its curvature y exp(−H) has no
bound; at the best constant score its mean is 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.models.metrics import GammaMeter, Meter
from sqlfl.models.poisson import exponential_root, means, steepest
from sqlfl.models.targets import MAX_SCORE, OfNumbers
from sqlfl.models.weighted import mean_of, rows_times, second_moments, sum_of, times


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
