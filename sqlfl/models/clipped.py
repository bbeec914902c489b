"""Losses of numbers whose slope is clipped: Huber's, and the pinball loss with its kink rounded.

With r = H − y, the slope is t + s with t = clip(k r, ±c), and the loss t (r − t/2k) + s r + s²/2k,
which is least, 0, at r = −s/k. Near r = 0 it is a parabola, beyond |r| = c/k two straight lines.

- Huber (1964), of threshold δ: k = 1, c = δ, s = 0.
- The pinball loss of the quantile q (Koenker and Bassett 1978), convolved with a uniform density
  over ±h (Fernandes, Guerre and Horta 2021; He, Pan, Tan and Zhou 2023): k = 1/2h, c = ½,
  s = ½ − q. For |r| ≥ h it is the pinball loss itself, less `floor`, and nowhere below it; at r = 0
  it is h/4 above it, which is the most.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.models.metrics import Mean, Meter, QuantileMeter, pinball
from sqlfl.models.targets import OfNumbers, typical_distance
from sqlfl.models.weighted import mean_of, rows_times, second_moments, sum_of, times

WIDTH = 0.01
"""h as a share of the mean distance of the targets from their own median: the width of a rounded
kink.
"""
STRAIGHT = 1e-4
"""Share of the largest curvature that stands for a straight line, where curvatures determine the
steps.
"""
STEPS = 200
"""Maximum steps of a search in a bracket, which at least halves."""


@dataclass(frozen=True)
class Clipped(OfNumbers):
    """Base of both losses."""

    @property
    @abstractmethod
    def limit(self) -> float:
        """Return c."""

    @property
    @abstractmethod
    def lean(self) -> float:
        """Return s."""

    @property
    @abstractmethod
    def curvature(self) -> float:
        """Return k."""

    outputs = 1
    grows = True

    @property
    def quadratic(self) -> bool:
        return False

    def unit(self, targets: Array) -> float:
        return typical_distance(targets)

    def _losses(self, r: Array) -> tuple[Array, Array]:
        """Return the loss of each row, and its slope: (n,) both."""
        k, lean = self.curvature, self.lean
        t = np.clip(k * r, -self.limit, self.limit)
        return t * (r - t / (2.0 * k)) + (lean * r + lean * lean / (2.0 * k)), t + lean

    def _bent(self, r: Array) -> Array:
        """Return the second derivative of each row: (n,)."""
        return np.where(np.abs(r) * self.curvature < self.limit, self.curvature, 0.0)

    def value(self, scores: Array, targets: Array, weights: Array | None = None) -> float:
        return mean_of(self._losses(scores[:, 0] - targets)[0], weights)

    def gradient(self, scores: Array, targets: Array, weights: Array | None = None) -> Array:
        return rows_times(self._losses(scores[:, 0] - targets)[1][:, None], weights)

    def value_and_slopes(
        self, scores: Array, targets: Array, weights: Array | None
    ) -> tuple[float, Array]:
        losses, slopes = self._losses(scores[0] - targets)
        return sum_of(losses, weights), times(slopes, weights)[None]

    def curvatures(
        self, scores: Array, targets: Array, weights: Array | None, ways: Array
    ) -> Array:
        """Return curvatures as if straight lines were bent a little. Otherwise there would be no
        step along directions in which all rows are on one.
        """
        bent = np.maximum(self._bent(scores[0] - targets), STRAIGHT * self.curvature)
        return second_moments(ways[:, 0], times(bent, weights))

    def mean_curvature(
        self, scores: Array, weights: Array | None = None, targets: Array | None = None
    ) -> float:
        if targets is None:
            return self.curvature
        return mean_of(self._bent(scores[:, 0] - targets), weights)

    def prox(self, points: Array, targets: Array, rho: float) -> Array:
        """Solve t + s = ρ (v − z). The case without s has v less by s/ρ."""
        k = self.curvature
        away = points[:, 0] - targets - self.lean / rho
        t = np.clip(k * rho / (k + rho) * away, -self.limit, self.limit)
        moved: Array = (targets + (away - t / rho))[:, None]
        return moved

    def initial_intercept(self, targets: Array, weights: Array | None = None) -> Array:
        """Make Newton steps in a shrinking bracket. The slope is linear between its bends."""
        counted = targets if weights is None else targets[weights > 0.0]
        shift = abs(self.lean) / self.curvature
        low, high = float(counted.min()) - shift, float(counted.max()) + shift
        h = min(max(mean_of(targets, weights), low), high)
        for _ in range(STEPS):
            slope = mean_of(self._losses(h - targets)[1], weights)
            low, high = (low, h) if slope > 0.0 else (h, high)
            bent = mean_of(self._bent(h - targets), weights)
            further = h - slope / bent if bent > 0.0 else np.inf
            if not low <= further <= high:
                further = 0.5 * (low + high)
            if abs(further - h) <= 1e-15 * max(abs(low), abs(high)):
                break
            h = further
        return np.array([h])

    def predict(self, scores: Array) -> Array:
        return scores.copy()


@dataclass(frozen=True)
class Huber(Clipped):
    """Loss ½ r² up to |r| = δ, and δ |r| − ½ δ² beyond; δ is in the target's unit."""

    delta: float = 1.0
    name: str = "huber"

    @property
    def limit(self) -> float:
        return self.delta

    @property
    def lean(self) -> float:
        return 0.0

    @property
    def curvature(self) -> float:
        return 1.0

    def of_prediction(self, prediction: Array, targets: Array, weights: Array | None) -> float:
        return mean_of(self._losses(prediction[:, 0] - targets)[0], weights)


@dataclass(frozen=True)
class Quantile(Clipped):
    """Loss (y − H) q if the target is above, and (H − y) (1 − q) if it is below."""

    quantile: float = 0.5
    width: float = 1.0
    """h, in the target's unit."""
    name: str = "quantile"
    bounded: bool = False
    """False: the bound is that of a kink, where few rows are, and steps by it would be tiny."""

    @property
    def limit(self) -> float:
        return 0.5

    @property
    def lean(self) -> float:
        return 0.5 - self.quantile

    @property
    def curvature(self) -> float:
        return 0.5 / self.width

    def fitted(self, targets: Array, weights: Array | None) -> Quantile:
        middle = Quantile(width=_least(targets)).initial_intercept(targets, weights)
        distance = mean_of(np.abs(targets - middle[0]), weights)
        return replace(self, width=max(WIDTH * distance, _least(targets)))

    def flatness(self, scores: Array, targets: Array, weights: Array | None) -> float:
        """Return the ratio of curvatures. Half the distance |r| of a row lies below a parabola of
        curvature 1/2|r| that touches it at r (Hunter and Lange 2000). So does the pinball loss,
        which adds a line to it.
        """
        distance = np.abs(scores[:, 0] - targets)
        return self.curvature / mean_of(0.5 / np.maximum(distance, self.width), weights)

    def floor(self, targets: Array, weights: Array | None) -> float:
        """Return q (1 − q) h, which is subtracted so that the minimum is 0."""
        q = self.quantile
        return q * (1.0 - q) * self.width

    def meter(self, rows: int = 0) -> Meter:
        return QuantileMeter(self.quantile)

    def headline(self, scores: Array, targets: Array, weights: Array | None) -> Mean:
        mean = Mean()
        mean.add(pinball(scores[:, 0], targets, self.quantile), weights)
        return mean

    def of_prediction(self, prediction: Array, targets: Array, weights: Array | None) -> float:
        """Return the loss with the exact kink, not the rounded one."""
        return mean_of(pinball(prediction[:, 0], targets, self.quantile), weights)


def _least(targets: Array) -> float:
    """Return a width that rounding does not swallow: 64 units in the last place of the largest
    target.

    A target's offset has no further influence: a kink rounded by a share of the offset would bend
    the loss of all rows.
    """
    return max(64.0 * float(np.spacing(np.abs(targets).max(initial=0.0))), 1e-18)
