"""Correlations of tables, which the second round measures along one table's fits.

The leading table, l, releases fits of its rows, h = x_l Θ with Θ = D_l⁻¹ U_l (d_l, r): its part of
the scores. Of any other table i, with z the target, h − P z is what the target does not say of h,
P = cov(h, z). It is public, and table i releases moments with it as it did with the label:

    E_i = cov(x_i, h − P z) = cov(x_i, h | z) = D_il Θ,

with D_il the covariance of x_i and x_l given the target, which the first round takes to be 0. In
units of what both vary by, it is the matrix of correlations

    W_i = D_i^(−½) E_i F^(−½),   F = Θᵀ D_l Θ = cov(h | z).

**Assumption.** Given the target, h says of x_i all that x_l does, and x_i and x_j of two other
tables are uncorrelated given the target and h. So x_i = K_i x_l + e_i with K_i = D_i^(½) W_i
F^(−½) Θᵀ, and cov(e_i) = D_i^(½) (I − W_i W_iᵀ) D_i^(½). By these the inverse of the whole D is
known: with u_i = U_i − K_i U_l,

    (D⁻¹ U)_i = cov(e_i)⁻¹ u_i,   (D⁻¹ U)_l = D_l⁻¹ U_l − Σ K_iᵀ cov(e_i)⁻¹ u_i,
    Uᵀ D⁻¹ U = U_lᵀ D_l⁻¹ U_l + Σ u_iᵀ cov(e_i)⁻¹ u_i.

D is a covariance if no W_i has a singular value of 1: they are cut at `MOST`, or `DOUBT` deviations
of their noise below 1, since what noise adds to large ones counts most.

**Noise.** Each number of E_i has noise of the deviation n, of table i, and D_i^(−½) E_i that of the
fits too, which is the same in all directions, of the variance s² Σ_r q_r², where q_r is how much a
row r of l weighs in the sums of table i. W_i is shrunk as James and Stein do, by what this comes
to: the part of it along U_i, which counts most, and the rest each for itself. `DOUBT` deviations
more than the mean of the noise's square are taken off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.methods.moments.solving import Solution, TableSolution, power, solve

MOST = 0.98
"""Largest correlation between a table and another one's fits, given the target."""
DOUBT = 1.5
"""Deviations that are taken off: of the square of noise, with its mean; of noise, off 1."""


@dataclass(frozen=True, eq=False)
class FitMoments:
    """Release of one table in the second round."""

    covariance: Array
    """E_i = cov(x_i, h − P z): (d_i, r), noised"""
    noise: float
    """n: standard deviation of the table's noise in each number."""
    fits_noise: float
    """s √Σ q_r²: that of the fits' noise in each number of D_i^(−½) E_i."""


def solve_correlated(
    tables: Sequence[TableSolution], leading: int, measured: Mapping[int, FitMoments]
) -> Solution:
    """Return the solution of tables, all of which but the `leading` one have `measured` how they
    are correlated with its fits. Tables are numbered by their place.
    """
    leader = tables[leading]
    if not len(leader.strength):  # a target that is constant
        return solve(tables)
    theta = leader.weights
    root = power(theta.T @ leader.within @ theta, -0.5)
    weights = [own.weights for own in tables]
    strength = leader.strength
    for place, own in measured.items():
        table = tables[place]
        half = power(table.within, 0.5)
        along = half @ correlations(table, own, root)
        passed = along @ root @ theta.T  # K
        rest = table.within - along @ along.T
        weights[place] = np.linalg.solve(rest, table.slopes - passed @ leader.slopes)
        weights[leading] = weights[leading] - passed.T @ weights[place]
        sure = table.sure - passed @ leader.sure
        strength = strength + sure.T @ np.linalg.solve(rest, sure)
    return Solution(tuple(weights), (strength + strength.T) / 2.0)


def correlations(table: TableSolution, own: FitMoments, root: Array) -> Array:
    """Return W (d, r), shrunk. root: F^(−½)."""
    d, r = table.slopes.shape
    if not d:
        return np.zeros((0, r))
    inverse = power(table.within, -0.5)
    known = inverse @ own.covariance @ root
    of_table = own.noise**2 * float(np.square(inverse).sum()) / d
    variance = (of_table + own.fits_noise**2) * float(np.square(root).sum()) / r
    towards, sizes, _ = np.linalg.svd(inverse @ table.slopes, full_matrices=False)
    towards = towards[:, sizes > 1e-9 * max(float(sizes[0]), 1e-300)]
    along = towards @ (towards.T @ known)
    rank = towards.shape[1]
    kept = _shrunk(along, variance, rank * r) + _shrunk(known - along, variance, (d - rank) * r)
    left, sizes, right = np.linalg.svd(kept, full_matrices=False)
    most = min(max(1.0 - DOUBT * math.sqrt(variance), 0.0), MOST)
    found: Array = (left * np.minimum(sizes, most)) @ right
    return found


def _shrunk(values: Array, variance: float, numbers: int) -> Array:
    """Return `values` less what noise of this variance, in so many directions, does to them."""
    square = float(np.square(values).sum())
    noise = variance * (numbers + DOUBT * math.sqrt(2.0 * numbers))
    if not numbers or not square > 0.0:
        return np.zeros_like(values)
    shrunk: Array = values * max(1.0 - noise / square, 0.0)
    return shrunk
