"""Common parts of losses with the logarithm as link: means are exponentials of scores."""

from __future__ import annotations

import numpy as np
from scipy.special import wrightomega

from sqlfl.base.arrays import Array
from sqlfl.base.errors import ModelError
from sqlfl.models.weighted import mean_of

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
