"""Sums and means over joined rows with or without weights; also over directions of scores."""

from __future__ import annotations

import numpy as np

from sqlfl.base.arrays import Array


def times(values: Array, weights: Array | None) -> Array:
    """Return the values, with rows in the last axis, times the rows' weights."""
    return values if weights is None else values * weights


def rows_times(values: Array, weights: Array | None) -> Array:
    """Return (N, d_c), each row times its weight."""
    return values if weights is None else values * weights[:, None]


def total_of(rows: Array, weights: Array | None) -> float:
    return len(rows) if weights is None else float(weights.sum())


def mean_of(values: Array, weights: Array | None) -> float:
    """Return the mean of (N,) values."""
    if weights is None:
        return float(np.mean(values))
    return float(weights @ values / weights.sum())


def sum_of(values: Array, weights: Array | None) -> float:
    """Return the sum of (N,) values."""
    return float(values.sum() if weights is None else weights @ values)


def second_moments(ways: Array, weights: Array | None) -> Array:
    """Return the second moments of `ways` (k, n), and of the constant 1 after them: (k + 1, k
    + 1).
    """
    weighted = times(ways, weights)
    cross = weighted.sum(axis=1)[:, None]
    total = np.array([[total_of(ways.T, weights)]])
    return np.block([[weighted @ ways.T, cross], [cross.T, total]])
