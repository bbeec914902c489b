"""Sensitivity of a table's moments to one row, and the caps that bound it.

A table's rows have k numeric columns in [−1, 1] and c category features, of each of which at most
one column is 1 and the others 0. A row of weight w is in two sums:

1. **Second moments**, Σ w (x, 1)(x, 1)ᵀ. Let a = (x, 1) and b = (x′, 1), n = k + c + 1. Another row
   moves the matrix by w ‖a aᵀ − b bᵀ‖ = w √(‖a‖⁴ + ‖b‖⁴ − 2 (a·b)²) in the Frobenius norm. By one
   number t of a row, (s + t²)² − 2 (p + q t)² has the second derivative 12 t² + 4 s − 4 q², which
   is not negative, as s ≥ 1 counts the constant and q² ≤ 1: the largest is where every number is
   −1 or 1. There ‖a‖² = ‖b‖² = n, and a·b = 1 + (k − 2 u) + v, with u numbers that differ in sign
   and v categories that are the same: 0 can be had but where k = 0, or where k is even and c = 0;
   then |a·b| ≥ 1. So Δ = w √(2 n² − 2 m²), m being 0 or 1.
2. **Moments with the label**, Σ x Y_rᵀ, with ‖Y_r‖ ≤ 1: ‖(x − x′) Y_rᵀ‖ ≤ ‖x − x′‖ ≤ √(4 k + 2 c).

A second round has one more release of each table (`sqlfl.methods.moments.coordinator`): fits, by
row, or moments with another table's fits, which are as 2.

3. **Fits** x θ of one row, θ being sent: with x and x′ as above, |(x − x′) θ_c| is at most
   2 Σ_k |θ_kc| + Σ_f (max − min of θ_c over the entries of f, and 0) in each output c; Δ is the
   norm of these.

All are attained, and never passed, in `tests/privacy/test_neighbours.py`. Weights w and label
sums Y follow from the join graph and the labels, which stand while the features of a row change.

Of how often a row is joined its weight has no more than a cap: w_r = min(n_r, cap). A small one has
less noise, a large one leaves more of what many joined rows say. Label sums are cut at a level, for
the same reason. Both are chosen by what is public.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError

CAPS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.97, 1.0)
"""Quantiles of how often rows are joined, among which the cap is chosen."""
LEVELS = 60
"""Numbers of rows to be cut, among which the level is chosen."""
ALIGNED = 0.7
"""Share of what a cut takes from label sums that counts as lost."""
WIDEST = 4096
"""Encoded columns of a table of which there are second moments."""


def moments_change(numeric: int, categories: int) -> float:
    """Δ of second moments, for rows of weight 1: ℓ2 of the symmetric matrix's norm.

    >>> moments_change(1, 0) == math.sqrt(8.0), moments_change(0, 1) == math.sqrt(6.0)
    (True, True)
    """
    whole = numeric + categories + 1
    orthogonal = numeric > 0 and (numeric % 2 == 1 or categories > 0)
    return math.sqrt(2.0 * whole**2 - (0.0 if orthogonal else 2.0))


def labels_change(numeric: int, categories: int) -> float:
    """Δ of moments with the label, for label sums of norm 1 at most.

    >>> labels_change(1, 0), labels_change(4, 0)
    (2.0, 4.0)
    """
    return math.sqrt(4.0 * numeric + 2.0 * categories)


def fits_change(theta: Array, offsets: Sequence[int]) -> float:
    """Δ of a row's fit: ℓ2. theta : (d, c), of bounded columns. offsets : first column of each
    category feature, at the end d; numeric columns stand before. It may be infinite.

    >>> fits_change(np.array([[1.0], [-2.0], [3.0]]), (1, 3))
    7.0
    """
    numeric = offsets[0]
    with np.errstate(over="ignore"):
        moved = 2.0 * np.abs(theta[:numeric]).sum(axis=0)
        for start, end in pairwise(offsets):
            entries = theta[start:end]
            moved += entries.max(axis=0, initial=0.0) - entries.min(axis=0, initial=0.0)
        return float(np.linalg.norm(moved))


def weight_cap(counts: Array, columns: int, change: float, multiplier: float) -> float:
    """The cap of weights, for rows that are joined so often (n,): by the join graph alone.

    It has the least of two variances, of noise in the moments and of a mean over few rows. change :
    `labels_change`; multiplier : of the noise. 1 where no row counts.
    """
    own = counts[counts > 0.0]
    if not len(own):
        return 1.0

    def cost(cap: float) -> float:
        weights = np.minimum(own, cap)
        total = float(weights.sum())
        noise = columns * (cap * change * multiplier / total) ** 2
        return noise + float((weights * weights / own).sum()) / total**2

    candidates = sorted({float(q) for q in np.quantile(own, CAPS)})
    return min(candidates, key=cost)


def cut_level(norms: Array, numbers: int, noise: float) -> float:
    """At what norm label sums are cut, of rows of these norms (n,): by labels and the join graph.

    noise : standard deviation in each of so many `numbers`, for a level of 1. The level has the
    least sum of squares of what is cut, as if most of it pointed one way, and of noise. 1 where
    there is nothing to cut.
    """
    largest = float(norms.max(initial=0.0))
    if not largest > 0.0:
        return 1.0
    sizes = np.sort(norms / largest)[::-1]
    total = np.cumsum(sizes)
    most = max(len(sizes) // 10, 1)
    cut = np.unique(np.geomspace(1, most, LEVELS).astype(np.int64))
    cut = np.append(0, cut[cut < len(sizes)])
    lost = np.where(cut > 0, total[cut - 1] - cut * sizes[cut], 0.0)
    costs = np.square(ALIGNED * lost) + numbers * np.square(noise * sizes[cut])
    costs[sizes[cut] * largest <= 0.0] = np.inf
    return largest * float(sizes[cut[int(np.argmin(costs))]])


def check_width(columns: int) -> None:
    """Raise InternalError for more columns than there can be moments of."""
    if columns > WIDEST:
        raise InternalError(f"second moments of {columns} columns; {WIDEST} is the most")


# Sensitivity of a slot's second moments to one row.


def row_bound(numeric: int) -> float:
    """Return R for this number of encoded numeric columns: the norm of a row with all columns 1 or
    −1.
    """
    return math.sqrt(numeric)


def moments_sensitivity(largest: float, bound: float, categories: int) -> float:
    """ℓ2 sensitivity of a slot's second moments for the change of one row's features.

    Of its numeric columns, ‖x‖ ≤ R, all numbers of Σ cnt x xᵀ: cnt ‖x xᵀ − y yᵀ‖ in the Frobenius
    norm is cnt √(‖x‖⁴ + ‖y‖⁴ − 2 (x·y)²) ≤ cnt √2 R², attained for x ⟂ y. Of each of k category
    features the counts Σ cnt: one falls by cnt, another rises. InternalError for a slot without
    columns, or rows that count nothing.
    """
    found = largest * math.sqrt(2.0 * bound**4 + 2.0 * categories)
    if not found > 0.0:
        raise InternalError("second moments of nothing")
    return found
