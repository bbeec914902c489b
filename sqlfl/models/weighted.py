"""Sums and means over joined rows, which may have weights; directions of scores among them."""

from __future__ import annotations

import numpy as np

from sqlfl.base.arrays import Array


def times(values: Array, weights: Array | None) -> Array:
    """Rows in the last axis, each times its weight."""
    return values if weights is None else values * weights


def rows_times(values: Array, weights: Array | None) -> Array:
    """(N, d_c), each row times its weight."""
    return values if weights is None else values * weights[:, None]


def total_of(rows: Array, weights: Array | None) -> float:
    return len(rows) if weights is None else float(weights.sum())


def mean_of(values: Array, weights: Array | None) -> float:
    """Of (N,) values."""
    if weights is None:
        return float(np.mean(values))
    return float(weights @ values / weights.sum())


def sum_of(values: Array, weights: Array | None) -> float:
    """Of (N,) values."""
    return float(values.sum() if weights is None else weights @ values)


def second_moments(ways: Array, weights: Array | None) -> Array:
    """Those of `ways` (k, n), and of the constant 1 after them: (k + 1, k + 1)."""
    weighted = times(ways, weights)
    cross = weighted.sum(axis=1)[:, None]
    total = np.array([[total_of(ways.T, weights)]])
    return np.block([[weighted @ ways.T, cross], [cross.T, total]])
