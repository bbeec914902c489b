"""Sums over a table's bounded rows: what a client releases by moments, before it is noised.

Arrays are of one table (n, d). Where one-hot columns are dense too, they may be of a stack of
tables (..., n, d), and so are the sums: `tests/privacy/test_neighbours.py` makes many at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse

from sqlfl.base.arrays import Array

OneHot: TypeAlias = sparse.csr_array | Array
"""One-hot columns (n, q)."""


def bounded_numbers(numeric: Array, bound: float) -> Array:
    """Return numeric columns in units of their bound, clipped to [−1, 1]; NULL (NaN) is 0."""
    clipped: Array = np.clip(np.nan_to_num(numeric, nan=0.0) / bound, -1.0, 1.0)
    return clipped


def bounded_sums(values: Array) -> tuple[Array, Array]:
    """Return row sums Y (n, c), 0 where they are not finite, and the factors (n, 1) that make their
    norms 1 at most."""
    known = np.where(np.isfinite(values).all(axis=-1, keepdims=True), values, 0.0)
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(known, axis=-1, keepdims=True)
    factors: Array = 1.0 / np.maximum(norms, 1.0)
    return known, factors


def second_moments(
    numeric: Array, onehot: OneHot, weights: Array, offsets: Sequence[int]
) -> list[Array]:
    """Σ w x xᵀ of pairs of numeric columns, of numeric and one-hot ones, of one-hot ones of two
    features; Σ w x of numeric columns, and of one-hot ones. Flat, by the weights (n,).

    offsets : first column of each category feature, and the number of columns.
    """
    weighed = numeric * weights[..., None]
    rows, columns = pairs_of(offsets)
    upper = np.triu_indices(numeric.shape[-1])
    apart = np.zeros((*numeric.shape[:-2], 0))
    if len(rows):
        apart = _dense(_product(onehot, onehot * weights[..., None]))[..., rows, columns]
    crossed = _dense(_product(onehot, weighed))
    return [
        _product(weighed, numeric)[(..., *upper)],
        crossed.reshape(*crossed.shape[:-2], -1),
        apart,
        weighed.sum(axis=-2),
        _dense(_product(onehot, weights[..., None]))[..., 0],
    ]


def scales_of(parts: Sequence[Array], numeric: int) -> Array:
    """Return how often numbers of `second_moments` stand in the symmetric matrix Σ w (x, 1)(x, 1)ᵀ,
    as factors of their norm.

    Numbers on the diagonal count once, and others twice: √2. The sum of a one-hot column is on the
    diagonal, and beside it twice: √3.
    """
    first, second = np.triu_indices(numeric)
    factors = (np.sqrt(2.0), np.sqrt(2.0), np.sqrt(2.0), np.sqrt(3.0))
    others = (
        np.full(part.shape[-1], factor) for part, factor in zip(parts[1:], factors, strict=True)
    )
    return np.concatenate([np.where(first == second, 1.0, np.sqrt(2.0)), *others])


def moments_with(numeric: Array, onehot: OneHot, sums: Array) -> Array:
    """Σ x Yᵀ (d, c), of row sums Y (n, c)."""
    parts = _product(numeric, sums), _dense(_product(onehot, sums))
    return np.concatenate(parts, axis=-2)


def fits_of(numeric: Array, onehot: OneHot, theta: Array) -> Array:
    """X θ (n, c), of weights θ (d, c)."""
    p = numeric.shape[-1]
    fits: Array = numeric @ theta[:p] + _dense(onehot @ theta[p:])
    return fits


def pairs_of(offsets: Sequence[int]) -> tuple[Array, Array]:
    """Return pairs of one-hot columns, counted from 0, of two category features, row after row."""
    start, size = offsets[0], offsets[-1] - offsets[0]
    later = np.concatenate(
        [np.full(end - first, end - start) for first, end in pairwise(offsets)] or [np.zeros(0)]
    ).astype(np.int64)
    lengths = size - later
    rows = np.repeat(np.arange(size), lengths)
    first = np.repeat(later - (np.cumsum(lengths) - lengths), lengths)
    return rows, np.arange(len(rows)) + first


def _product(one: OneHot, two: Any) -> Any:
    """oneᵀ two, of each table."""
    return one.T @ two if sparse.issparse(one) else np.swapaxes(one, -1, -2) @ two


def _dense(values: Any) -> Array:
    dense: Array = values.toarray() if hasattr(values, "toarray") else values
    return dense
