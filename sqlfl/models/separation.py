"""Separation: directions of the parameters in which the likelihood rises for ever.

Rows are N joined rows with a design z (N, P), the constant 1 first. Along a direction d the
likelihood of a classifier never falls where d·z ≥ 0 in all rows of class 1 and ≤ 0 in all of class
0; that of counts where d·z = 0 in all rows with a count above 0 and ≤ 0 in all others. Unless d·z
is 0 everywhere, there is then no finite estimate (Albert and Anderson 1984; Correia, Guimarães and
Zylkin 2019). The rows in which d·z is not 0 are separated, and all such directions together span
the directions in which the other rows do not vary.

Newton's method from the model's parameters either comes to a point at which the estimate is proved
to be finite, or drives the fitted means of separated rows to their targets. Of the rows that are
close, a linear program then tells which are separated: exactly.

The proof: the loss F is that of a classifier or of counts, whose curvature by the score changes at
most e-fold where the score changes by 1. Let λ² = gᵀ H⁻¹ g of its gradient and Hessian at a point,
and M² the largest zᵀ H⁻¹ z of a row. Along each d with dᵀ H d = 1, the slope at distance t is at
least −λ + (1 − e^(−M t)) / M (Bach 2010, "Self-concordant analysis for logistic regression"). If
λ M < 1, F rises in the end along all directions, and has a minimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from sqlfl.base.arrays import Array, Float
from sqlfl.base.errors import InternalError
from sqlfl.base.interrupts import checkpoint
from sqlfl.models.inference import (
    RANK,
    Design,
    Family,
    MomentSums,
    moments_of_rows,
    rows_at_once,
)

CLOSE = 1e-3
"""|mean − target| of rows that may be separated."""
DECREMENT = 1e-8
"""Gain in likelihood that Newton's method may still expect, below which the rest is rounding."""
TINY = 1e-100
"""Largest weight below which weights are counted as shares of it."""
STEPS = 50
"""Steps of Newton's method. Each takes a separated row's mean closer to its target e-fold."""
HALVINGS = 30
RECTIFIED = 100
"""Projections before a linear program."""
FLAT = 1e-8
"""Share of a direction's variance below which some rows do not vary along it."""
SIDE = 1e-7
"""Share of the largest |d·z| below which it is 0."""
PROVED = 0.5
"""Largest λ M of a finite estimate; 1, less a margin for rounding."""
SOLVED = 1e-6
"""Tolerance of a linear program, which keeps its limits up to 1e-7."""


@dataclass(frozen=True, eq=False)
class Separation:
    """Separation of a design by its targets."""

    rank: int
    """Parameters that the design has, separated ones included."""
    rows: Array
    """bool (N,): separated rows."""
    directions: Float
    """(P, k): an orthonormal basis of the directions without a finite estimate."""
    nothing: Float
    """(P, P − rank): an orthonormal basis of the directions in which no row varies."""
    moments: MomentSums
    """Sums over the rows at the model's scores, with the curvature that is expected."""

    @property
    def any(self) -> bool:
        return bool(self.directions.shape[1])


def separation(
    family: Family, design: Design, h: Float, y: Float, weights: Array | None
) -> Separation:
    """Return the separation. `h`: the model's scores (N,), from which Newton's method starts."""
    counted = np.arange(len(y)) if weights is None else np.flatnonzero(weights > 0)
    w = np.ones(len(counted)) if weights is None else np.asarray(weights[counted], np.float64)
    scores, targets = h[counted].astype(np.float64), y[counted]
    mean = family.mean(scores)
    (plain, first), sums = _sums(
        design, counted, (np.ones(len(w)), w * family.variance(mean)), w * (targets - mean)
    )
    values, vectors = np.linalg.eigh(plain)
    kept = values > RANK * values[-1]
    basis = vectors[:, kept] / np.sqrt(values[kept])  # whitens the rows
    rank = int(np.count_nonzero(kept))
    separated = np.zeros(len(y), bool)
    nothing = vectors[:, ~kept]
    at_model = MomentSums(first, -sums, None)
    none = Separation(rank, separated, np.zeros((len(plain), 0)), nothing, at_model)
    if w.max() < TINY:  # information would have no inverse
        scale = float(w.max())
        w, at_model = w / scale, MomentSums(first / scale, -sums / scale, None)
    far = _newton(family, design, counted, basis, scores, targets, w, at_model)
    if far is None:
        return none
    close = np.abs(family.mean(far) - y[counted]) < CLOSE
    if family.counts:
        close &= y[counted] == 0
    near, rest = counted[close], counted[~close]
    flat = _flat(design, rest, basis)
    if not len(near) or not flat.shape[1]:
        return none
    sign = np.where(y[near] > 0, 1.0, -1.0)
    apart = _separated(_images(design, near, flat) * sign[:, None])
    if not apart.any():
        return none
    separated[near[apart]] = True
    directions = _flat(design, counted[~separated[counted]], basis)
    return Separation(rank, separated, np.linalg.qr(directions)[0], nothing, none.moments)


def _newton(
    family: Family,
    design: Design,
    counted: Array,
    basis: Float,
    scores: Float,
    targets: Float,
    w: Float,
    first: MomentSums,
) -> Float | None:
    """Return scores of the counted rows, once no gain is left or all steps are done. Return None as
    soon as the estimate is proved to be finite. `first`: the sums at these scores.
    """
    value = family.log_likelihood(scores, targets, w)
    moments, sums = first.information, -first.slope
    for step_number in range(STEPS):
        checkpoint()
        mean = family.mean(scores)
        curvature = w * family.variance(mean)
        if step_number:
            (moments,), sums = _sums(design, counted, (curvature,), w * (targets - mean))
        information, slope = basis.T @ moments @ basis, basis.T @ sums
        values, vectors = np.linalg.eigh(information)
        bent = values > RANK * values[-1]
        if not values[-1] > 0.0:
            return scores
        along = vectors[:, bent].T @ slope
        decrement = float(along**2 @ (1.0 / values[bent]))
        # M² is at least the mean of zᵀ H⁻¹ z, each with its curvature, which takes no pass
        if bent.all() and decrement * len(values) < PROVED**2 * float(curvature.sum()):
            root = basis @ (vectors / np.sqrt(values))
            if _all_shorter(design, counted, root * np.sqrt(decrement), PROVED**2):
                return None
        if decrement < DECREMENT:
            return scores
        step = _images(
            design, counted, basis @ (vectors[:, bent] @ (along / values[bent]))[:, None]
        )
        length = 1.0
        for _ in range(HALVINGS):
            tried = scores + length * step[:, 0]
            with np.errstate(over="ignore"):
                reached = family.log_likelihood(tried, targets, w)
            if np.isfinite(reached) and reached > value:
                break
            length /= 2.0
        else:
            return scores
        scores, value = tried, reached
    return scores


def _separated(images: Float) -> Array:
    """Return the rows of `images` (m, k) that some d lifts above 0 without pushing any row below 0:
    bool (m,).

    The linear program max Σ min(1, images · d), images · d ≥ 0 has a solution that is above 0 in as
    many rows as possible.
    """
    from scipy.optimize import linprog  # half a second, which most processes can do without

    scale = np.abs(images).max()
    if not scale > 0.0:
        return np.zeros(len(images), bool)
    quick = _rectified(images)
    if (quick > SIDE * quick.max()).all():
        return np.ones(len(images), bool)
    scaled = np.round(images / scale, 10)
    distinct, place = np.unique(scaled, axis=0, return_inverse=True)
    place = place.reshape(-1)
    m, k = distinct.shape
    # scipy takes sparse arrays, but its stubs do not know it
    constraints: Any = sparse.hstack([-sparse.csr_array(distinct), sparse.eye_array(m)], "csr")
    free, share = (None, None), (0.0, 1.0)
    bounds: list[tuple[float | None, float | None]] = [*[free] * k, *[share] * m]
    aim = np.append(np.zeros(k), -np.ones(m))
    solved = linprog(aim, A_ub=constraints, b_ub=np.zeros(m), bounds=bounds, method="highs")
    if solved.x is None:
        raise InternalError(f"the linear program of separation: {solved.message}")
    sides = distinct @ solved.x[:k]
    if (sides < -10.0 * SOLVED * np.abs(sides).max()).any():
        raise InternalError("the linear program of separation left its limits")
    apart: Array = (sides > SOLVED * np.abs(sides).max())[place]
    return apart


def _rectified(images: Float) -> Float:
    """Return a d's images · d (m,), as far above 0 as alternating projections bring them. They
    project ones on the images' columns and on the non-negative vectors.
    """
    basis = np.linalg.qr(images)[0]
    u = np.ones(len(images))
    for _ in range(RECTIFIED):
        lifted: Float = basis @ (basis.T @ u)
        if (lifted > SIDE * lifted.max()).all():
            break
        u = np.maximum(lifted, 0.0)
    return lifted


def _flat(design: Design, rows: Array, basis: Float) -> Float:
    """Return directions in which all rows together vary, but these do not: (P, k)."""
    moments = basis.T @ moments_of(design, rows, np.ones(len(rows))) @ basis
    values, vectors = np.linalg.eigh(moments)
    flat: Float = basis @ vectors[:, values < FLAT]
    return flat


def _pieces(design: Design, rows: Array) -> list[Array]:
    width = design(rows[:0]).shape[1]
    step = rows_at_once(width)
    return [rows[start : start + step] for start in range(0, len(rows), step)]


def moments_of(design: Design, rows: Array, weights: Float) -> Float:
    """Return Σ w z zᵀ (P, P); weights: of these rows."""
    ((moments,), _) = _sums(design, rows, (weights,), np.zeros(len(rows)))
    return moments


def _sums(
    design: Design, rows: Array, weights: tuple[Float, ...], factors: Float
) -> tuple[list[Float], Float]:
    """Return Σ w z zᵀ (P, P) by each weights w, and Σ f z (P,) by factors f of these rows."""
    width = design(rows[:0]).shape[1]
    moments, sums, start = [np.zeros((width, width)) for _ in weights], np.zeros(width), 0
    for piece in _pieces(design, rows):
        checkpoint()
        z, of_piece = design(piece), slice(start, start + len(piece))
        for total, w in zip(moments, weights, strict=True):
            total += moments_of_rows(z, w[of_piece])
        sums += factors[of_piece] @ z
        start += len(piece)
    return moments, sums


def _all_shorter(design: Design, rows: Array, root: Float, limit: float) -> bool:
    """Return whether ‖rootᵀ z‖² of each row is below the limit. The first rows most often tell that
    one is not.
    """
    images = (design(piece) @ root for piece in _pieces(design, rows))
    return all(float(np.einsum("nr,nr->n", each, each).max()) < limit for each in images)


def _images(design: Design, rows: Array, directions: Float) -> Float:
    """Return d·z of each row and direction: (n, k)."""
    images = [design(piece) @ directions for piece in _pieces(design, rows)]
    return np.concatenate(images) if images else np.zeros((0, directions.shape[1]))
