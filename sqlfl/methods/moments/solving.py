"""The model that noised moments of each table give: linear, and linear discriminants of classes.

Let x_i be the encoded columns of table i, C_i their covariance, and z the target in units of its
deviation: a number (r = 1), or the indicators of K classes in the r = K − 1 directions in which
they vary, Z = Λ^(−½) Qᵀ (1_y − π), QΛQᵀ being their covariance. U_i = cov(x_i, z) is (d_i, r).

**Assumption.** Given the target, columns of different tables are uncorrelated: cov(x_i, x_j) =
U_i U_jᵀ. What is left within table i is D_i = C_i − U_i U_iᵀ, and with R_i = U_iᵀ C_i⁻¹ U_i, the
squared correlations of table i with the target,

    D_i⁻¹ U_i = C_i⁻¹ U_i (I − R_i)⁻¹,   U_iᵀ D_i⁻¹ U_i = R_i (I − R_i)⁻¹ =: τ_i.

Numbers: the least squares over all tables is θ_i = D_i⁻¹ U_i / (1 + Σ τ_j), by the matrix inversion
lemma, and explains Σ τ / (1 + Σ τ) of the target's variance. Classes: Fisher's linear
discriminant, whose scores are log π_k + (x − m)ᵀ D⁻¹ δ_k − ½ δ_kᵀ D⁻¹ δ_k with δ_k the mean of
class k less the mean m; D has the D_i for blocks. It is a logistic or a softmax model. For one
table nothing is assumed.

**Noise.** Of a matrix with noise of deviation s beside the diagonal's the smallest eigenvalue is
wrong by about s √d: C_i gets a ridge of half of that. U_i has noise of a known variance n² in every
number; a ridge of n² d / tr R_i is the best one for slopes that are spread evenly over the columns'
directions. The measured G_i = U_iᵀ C_i⁻¹ U_i is too large by e = n² tr C_i⁻¹, give or take what
both noises do, of the variance 2 n⁴ tr C_i⁻² + 4 n² ‖C_i⁻¹ U_i‖² + s² ‖C_i⁻¹ U_i‖⁴. So more than e
is taken off, of the first term's deviation where U_i is shrunk, and of all of them for R_i, lest
(I − R_i)⁻¹ be too large. What is left counts by 1 − e²: where e nears 1 noise has said all. U_i is
shrunk by R_i G_i⁻¹, as James and Stein do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array

MAX_SQUARED_CORRELATION = 0.995
"""Maximum squared correlation: a larger one would be an effect of noise."""
MIN_SQUARED_CORRELATION = 1e-3
"""Least squared correlation, for the ridge."""
RIDGE = 0.5
"""Share of the possible effect of noise on the smallest eigenvalue."""
DOUBT = 1.5
"""Deviations of noise that are subtracted from a squared correlation, with its mean."""
ROUNDING = 1e-9
"""Share of the largest eigenvalue below which a direction is none."""


@dataclass(frozen=True, eq=False)
class TableMoments:
    """Releases of one table, of columns in [−1, 1]."""

    covariance: Array
    """(d, d), noised"""
    covariance_noise: float
    """Standard deviation of the noise in its diagonal."""
    slopes: Array
    """cov(x, target): (d, c), noised; of classes a column for each of their indicators, or for that
    of the second of two."""
    slopes_noise: float
    """Standard deviation in each number."""


@dataclass(frozen=True, eq=False)
class Target:
    """Covariance of the target, without the noise of labels."""

    directions: Array
    """Q Λ^(−½): (c, r)"""
    spread: Array
    """Λ: (r,)"""

    @classmethod
    def of(cls, covariance: Array) -> Target:
        """covariance: (c, c), of the target's columns."""
        values, vectors = np.linalg.eigh(np.atleast_2d(covariance))
        kept = values > 1e-9 * max(float(values[-1]), 1e-300)
        values, vectors = values[kept], vectors[:, kept]
        return cls(vectors / np.sqrt(values), values)


@dataclass(frozen=True, eq=False)
class TableSolution:
    """Part of one table, as if it stood alone."""

    weights: Array
    """D_i⁻¹ U_i (d, r), U_i shrunk."""
    strength: Array
    """τ_i (r, r)"""
    within: Array
    """D_i (d, d)"""
    slopes: Array
    """U_i (d, r), shrunk: D_i times the weights."""
    sure: Array
    """U_i (d, r), shrunk more: sureᵀ D_i⁻¹ sure is the strength."""


@dataclass(frozen=True, eq=False)
class Solution:
    """θ_i of every table in units of the target (d_i, r), with the variance that they explain."""

    weights: tuple[Array, ...]
    """Each table's part of D⁻¹ U, shrunk."""
    strength: Array
    """τ = Uᵀ D⁻¹ U (r, r): without correlations between tables Σ τ_i"""

    def explained(self, target: Target) -> float:
        """The share of the target's variance, from what was released: at least 0, and 0 of a target
        that is constant."""
        if not len(target.spread):
            return 0.0
        whole = self.strength
        share = whole @ np.linalg.inv(np.eye(len(whole)) + whole)
        return float(np.clip(np.diag(share) @ target.spread / target.spread.sum(), 0.0, 1.0))


def solve(tables: Sequence[TableSolution]) -> Solution:
    """Return the solution of tables that are uncorrelated given the target."""
    strength: Array = np.sum([table.strength for table in tables], axis=0)
    return Solution(tuple(table.weights for table in tables), strength)


def regression(solution: Solution, target: Target) -> tuple[Array, ...]:
    """θ_i (d_i, 1) of a target that is a number: 0 of one that is constant."""
    if not len(target.spread):
        return tuple(np.zeros((len(block), 1)) for block in solution.weights)
    scale = float(np.sqrt(target.spread[0])) / (1.0 + float(solution.strength[0, 0]))
    return tuple(scale * block for block in solution.weights)


def scales_of(target: Target, shares: Array) -> Array:
    """(r, K): the means of classes less the mean, δ_k = U s_k, from U."""
    towards = target.directions * target.spread  # Q Λ^½
    if len(towards) < len(shares):  # the indicator of the second of two
        towards = np.concatenate([-towards, towards])
    found: Array = (towards / shares[:, None]).T
    return found


def discriminants(
    solution: Solution, target: Target, shares: Array
) -> tuple[tuple[Array, ...], Array]:
    """θ_i (d_i, K) of classes of these shares, and the constants (K,)."""
    scale = scales_of(target, shares)
    quadratic = np.einsum("rk,rs,sk->k", scale, solution.strength, scale)
    return tuple(block @ scale for block in solution.weights), np.log(shares) - 0.5 * quadratic


def table_solution(block: TableMoments, target: Target, ridge: float) -> TableSolution:
    """ridge: of the objective, in units of the columns' covariance."""
    d, r = len(block.covariance), len(target.spread)
    if not (d and r):  # without columns, or for a target that is constant
        none = np.zeros((d, r))
        return TableSolution(none, np.zeros((r, r)), np.zeros((d, d)), none, none)
    u = block.slopes @ target.directions
    noise = np.square(block.slopes_noise * target.directions).sum(axis=0)  # s² / λ
    values, vectors = np.linalg.eigh((block.covariance + block.covariance.T) / 2.0)
    floor = RIDGE * block.covariance_noise * np.sqrt(d) + ridge
    values = np.maximum(values, 0.0) + floor + ROUNDING * max(float(values[-1]), 1.0)
    turned = vectors.T @ u
    share = 1.0
    for _ in range(3):
        bent = values + float(noise.mean()) * d / share
        gram = (turned / bent[:, None]).T @ turned
        taken = (1.0 / bent).sum()
        alone = 2.0 * np.square(noise) * np.square(1.0 / bent).sum()
        sizes = np.square(turned / bent[:, None]).sum(axis=0)  # ‖C⁻¹ U‖²
        doubt = alone + 4.0 * noise * sizes + np.square(block.covariance_noise * sizes)
        said = max(1.0 - float((noise * taken).mean()) ** 2, 0.0)
        kept, sure = (
            said * _positive(gram - np.diag(noise * taken + DOUBT * np.sqrt(own)))
            for own in (alone, doubt)
        )
        share = min(max(float(np.trace(kept)), MIN_SQUARED_CORRELATION), 1.0)
    x = vectors @ (turned / bent[:, None])
    root = power(gram, -0.5)
    rest = power(np.eye(r) - sure, -1.0)
    tau = sure @ rest
    certain = u @ root @ power(sure, 0.5)
    return TableSolution(
        weights=x @ root @ rest @ root @ kept,
        strength=(tau + tau.T) / 2.0,
        within=(vectors * bent) @ vectors.T - certain @ certain.T,
        slopes=u @ root @ root @ kept,
        sure=certain,
    )


def _positive(values: Array) -> Array:
    """Return the matrix with eigenvalues cut to 0 and MAX_SQUARED_CORRELATION."""
    eigenvalues, vectors = np.linalg.eigh((values + values.T) / 2.0)
    found: Array = (vectors * np.clip(eigenvalues, 0.0, MAX_SQUARED_CORRELATION)) @ vectors.T
    return found


def power(values: Array, exponent: float) -> Array:
    """Return a power of a symmetric matrix without negative eigenvalues; what vanishes stays 0."""
    eigenvalues, vectors = np.linalg.eigh((values + values.T) / 2.0)
    known = eigenvalues > 1e-14 * eigenvalues.max(initial=1e-300)
    powers = np.where(known, np.where(known, eigenvalues, 1.0) ** exponent, 0.0)
    found: Array = (vectors * powers) @ vectors.T
    return found
