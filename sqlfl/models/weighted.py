"""Sums and means over joined rows, which may have weights; directions of scores among them."""

from __future__ import annotations

import numpy as np

from sqlfl.arrays import Array

NO_CURVATURE = np.zeros((0, 0))


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


def moved_along(scores: Array, ways: Array, steps: Array) -> Array:
    """Scores (n,) after `steps` along `ways` (j, n), and by a constant where there is one more."""
    moved: Array = scores + steps[: len(ways)] @ ways
    if len(steps) > len(ways):
        moved += steps[-1]
    return moved


def inner_products(ways: Array, values: Array, size: int) -> Array:
    """Of `ways` (j, n), and of the constant 1 where `size` is more, with values (n,)."""
    found: Array = ways @ values
    return found if size == len(ways) else np.append(found, values.sum())


def second_moments(ways: Array, weights: Array | None, size: int) -> Array:
    """Those of `ways`, and of the constant 1 where `size` is more: (size, size)."""
    weighted = times(ways, weights)
    own: Array = weighted @ ways.T
    if size == len(ways):
        return own
    cross = weighted.sum(axis=1)[:, None]
    total = np.array([[total_of(ways.T, weights)]])
    return np.block([[own, cross], [cross.T, total]])
