"""Standard errors of generalised linear models: covariances of estimates, and likelihoods.

Rows are N joined rows with scores H (N,), targets y (N,) and weights w (N,), which say how often
each counts, or None: once. The design is (N, P), the constant 1 first; it is asked for in pieces.
The objective is Σ w ℓ(H; y) + λ/2 ‖θ‖², with λ on all of θ but the constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import chdtrc, expit, gammaln, ndtr, ndtri, stdtr, stdtrit, xlogy

from sqlfl.arrays import Array, Float
from sqlfl.interrupts import checkpoint
from sqlfl.models.weighted import mean_of, sum_of, total_of

PIECE = 1 << 20
"""Numbers of the design that are held at once."""
RANK = 1e-11
"""Of the largest eigenvalue of the information: what is below is none."""
ROUNDING = 1e-10
"""Share of the model's own variance: a robust variance below it is made of residuals that are 0
but for rounding."""
EPSILON = 1e-14
"""Share of the largest possible variance: what is below is 0 but for rounding."""

Design = Callable[[Array], Float]
"""Rows of the design, by their places (b,): (b, P)."""


@dataclass(frozen=True)
class Family:
    """How targets are distributed around their means."""

    mean: Callable[[Float], Float]
    """Of scores."""
    variance: Callable[[Float], Float]
    """Of means, but for a scale: the curvature of the loss."""
    link: Callable[[float], float]
    """The score of a mean."""
    log_likelihood: Callable[[Float, Float, Array | None], float]
    """Of scores and targets."""
    deviance: Callable[[Float, Float, Array | None], float]
    slope: Callable[[Float, Float], Float] = lambda mean, y: mean - y
    """Of the loss by the score, from means and targets."""
    scaled: bool = False
    """The variance has a scale, which is estimated: tests are by Student's t."""
    separable: bool = False
    """Targets may lie at the border of what means are, so that there is no finite estimate."""
    counts: bool = False
    """That border is 0 alone."""


def _normal(h: Float, y: Float, w: Array | None) -> float:
    n = total_of(y, w)
    with np.errstate(divide="ignore"):  # where all is explained it is infinite
        return -0.5 * n * (float(np.log(2.0 * np.pi * _squares(h, y, w) / n)) + 1.0)


def _squares(h: Float, y: Float, w: Array | None) -> float:
    return sum_of((h - y) ** 2, w)


def _bernoulli(h: Float, y: Float, w: Array | None) -> float:
    return -sum_of(np.logaddexp(0.0, np.where(y > 0, -h, h)), w)


def _poisson(h: Float, y: Float, w: Array | None) -> float:
    return sum_of(y * h - np.exp(h) - gammaln(y + 1.0), w)


def _poisson_deviance(h: Float, y: Float, w: Array | None) -> float:
    return 2.0 * sum_of(xlogy(y, y) - y * h - y + np.exp(h), w)


FAMILIES: Mapping[str, Family] = {
    "linear_regression": Family(
        lambda h: h, np.ones_like, lambda mean: mean, _normal, _squares, scaled=True
    ),
    "logistic_regression": Family(
        expit,
        lambda mean: mean * (1.0 - mean),
        lambda mean: float(np.log(mean) - np.log1p(-mean)),
        _bernoulli,
        lambda h, y, w: -2.0 * _bernoulli(h, y, w),
        separable=True,
    ),
    "poisson_regression": Family(
        np.exp,
        lambda mean: mean,
        lambda mean: float(np.log(mean)),
        _poisson,
        _poisson_deviance,
        separable=True,
        counts=True,
    ),
}
"""By kind of model."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Over joined rows."""

    information: Float
    """(P, P): Σ w φ''(H) z zᵀ."""
    slope: Float
    """(P,): Σ w (mean − y) z."""
    meat: Float | None
    """(P, P): the second moments of what each unit adds to the slope."""


def sums(
    family: Family,
    design: Design,
    h: Float,
    y: Float,
    weights: Array | None,
    *,
    robust: bool,
    units: Array | None,
) -> Sums:
    """`units` (N,): integers, equal for joined rows that may depend on each other."""
    w = np.ones(len(h)) if weights is None else weights
    mean = family.mean(h)
    residual, curvature = mean - y, w * family.variance(mean)
    order = np.arange(len(h)) if units is None else np.argsort(units, kind="stable")
    width = design(order[:0]).shape[1]
    information, slope = np.zeros((width, width)), np.zeros(width)
    meat = np.zeros((width, width)) if robust or units is not None else None
    step = max(PIECE // width, 64)
    last, carried = -1, np.zeros(width)
    for start in range(0, len(order), step):
        checkpoint()
        places = order[start : start + step]
        z = design(places)
        information += (z * curvature[places, None]).T @ z
        pulled = w[places] * residual[places]
        slope += pulled @ z
        if meat is None:
            continue
        if units is None:
            meat += (z * (pulled * residual[places])[:, None]).T @ z
            continue
        starts = np.flatnonzero(np.diff(units[places], prepend=units[places[0]] - 1))
        parts = np.add.reduceat(z * pulled[:, None], starts, axis=0)
        if units[places[0]] == last:
            parts[0] += carried
        else:
            meat += np.outer(carried, carried)
        last, carried = int(units[places[-1]]), parts[-1]
        meat += parts[:-1].T @ parts[:-1]
    if units is not None and meat is not None:
        meat += np.outer(carried, carried)
    return Sums(information, slope, meat)


@dataclass(frozen=True)
class Fit:
    """How well a model fits, beside one that has a constant only."""

    rows: float
    log_likelihood: float
    null_log_likelihood: float
    deviance: float
    null_deviance: float

    def aic(self, rank: int) -> float:
        return 2.0 * (rank - self.log_likelihood)

    def bic(self, rank: int) -> float:
        return rank * float(np.log(self.rows)) - 2.0 * self.log_likelihood

    @property
    def ratio(self) -> float:
        """Twice the logarithm of the ratio of likelihoods."""
        return 2.0 * (self.log_likelihood - self.null_log_likelihood)

    def ratio_p(self, rank: int) -> float:
        """Of the hypothesis that all coefficients but the constant are 0."""
        return float(chdtrc(rank - 1, max(self.ratio, 0.0))) if rank > 1 else float("nan")


def fit_of(
    family: Family, h: Float, y: Float, weights: Array | None, offset: Float | None = None
) -> Fit:
    """`offset` (N,): the part of the scores that is given, and a constant has too."""
    constant = np.full(len(y), family.link(mean_of(y, weights)))
    if offset is not None:
        constant = _with_offset(family, constant[0], y, weights, offset)
    return Fit(
        total_of(y, weights),
        family.log_likelihood(h, y, weights),
        family.log_likelihood(constant, y, weights),
        family.deviance(h, y, weights),
        family.deviance(constant, y, weights),
    )


def _with_offset(
    family: Family, alone: float, y: Float, weights: Array | None, offset: Float
) -> Float:
    """The scores (N,) of the best constant beside an offset; `alone`: the best one without.

    The slope of the likelihood along a constant rises with it, and changes its sign in between.
    """

    def slope(constant: float) -> float:
        return sum_of(family.slope(family.mean(offset + constant), y), weights)

    least, most = alone - float(offset.max()), alone - float(offset.min())
    if least == most:
        return offset + least
    found: Float = offset + brentq(slope, least, most, xtol=1e-14, rtol=1e-15)
    return found


@dataclass(frozen=True, eq=False)
class Estimated:
    """How well the rows tell the parameters."""

    covariance: Float
    """(P, P). A robust one is 0 in the directions that rows decide whose residuals are 0 whatever
    their targets are."""
    untold: Float
    """(P, P): the projection on what the rows do not tell, a penalty at most."""
    rank: int
    """Parameters of the design: those that the rows tell, and those without a finite estimate."""
    scale: float
    """σ², or 1."""
    degrees: float | None
    """Of Student's t; None for the normal distribution."""
    distance: float
    """From the best parameters of these rows, in standard errors: no linear function of the
    parameters is farther away."""


def estimated(
    family: Family,
    found: Sums,
    theta: Float,
    penalty: float,
    fit: Fit,
    units: int | None,
    separated: int = 0,
) -> Estimated | None:
    """`theta`: (P,), the parameters, 0 for the constant; `penalty`: λ; `units`: how many there are,
    None where rows do not depend on each other; `separated`: parameters of the design without a
    finite estimate, of whose rows the sums are not.

    None where there are no more rows than parameters, or only one unit.
    """
    values, vectors = np.linalg.eigh(found.information)
    kept = values > RANK * values[-1]
    rank, rows = int(np.count_nonzero(kept)) + separated, fit.rows
    if rows <= rank or (units is not None and units < 2):
        return None
    whitening = vectors[:, kept] / np.sqrt(values[kept])
    inverse, half = whitening @ whitening.T, whitening
    if penalty:
        penalised = (np.arange(len(theta)) > 0).astype(np.float64)
        inverse = np.linalg.inv(found.information + penalty * np.diag(penalised))
        half = inverse @ (vectors[:, kept] * np.sqrt(values[kept]))
    untold = vectors[:, ~kept] @ vectors[:, ~kept].T
    scale = fit.deviance / (rows - rank) if family.scaled else 1.0
    spread, degrees = np.sqrt(scale) * half, rows - rank
    if found.meat is not None:
        # HC1 of least squares, HC0 of others, as statsmodels has them
        factor = rows / (rows - rank) if family.scaled else 1.0
        if units is not None:
            factor = units / (units - 1.0) * (rows - 1.0) / (rows - rank)
            degrees = units - 1.0
        spread = half @ _root(whitening.T @ (factor * found.meat) @ whitening, ROUNDING * scale)
        spread[_squared(spread) <= ROUNDING * scale * _squared(half)] = 0.0
    slope = found.slope + penalty * theta
    away = max(float(slope @ inverse @ slope), 0.0) / (scale or 1.0)
    return Estimated(
        spread @ spread.T,
        untold,
        rank,
        scale,
        degrees if family.scaled else None,
        float(np.sqrt(away)),
    )


def _root(matrix: Float, least: float) -> Float:
    """R with R Rᵀ = matrix (r, r), but for its eigenvalues that are not above `least`."""
    values, vectors = np.linalg.eigh(matrix)
    kept = values > least
    found: Float = vectors[:, kept] * np.sqrt(values[kept])
    return found


def _squared(rows: Float) -> Float:
    """The squared length of each row."""
    found: Float = np.einsum("pr,pr->p", rows, rows)
    return found


def variances_of(contrasts: Float, covariance: Float) -> Float:
    """The variances (k,) of linear functions (k, P) of the parameters: 0 for mere rounding."""
    found: Float = np.einsum("kp,kp->k", contrasts @ covariance, contrasts)
    largest = np.trace(covariance) * _squared(contrasts)
    return np.where(found > EPSILON * largest, found, 0.0)


@dataclass(frozen=True, eq=False)
class Tests:
    """Of coefficients (k,), NaN where there is none."""

    statistic: Float
    p: Float
    """Of the hypothesis that the coefficient is 0, against both sides."""
    lower: Float
    upper: Float


def tests_of(coefficients: Float, errors: Float, degrees: float | None, confidence: float) -> Tests:
    """errors: (k,), NaN where the coefficient is not told."""
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = coefficients / errors
    beyond: Float = -np.abs(statistic)
    tail = 0.5 + 0.5 * confidence
    below: Array = ndtr(beyond) if degrees is None else stdtr(degrees, beyond)
    p: Float = 2.0 * np.asarray(below, np.float64)
    quantile = float(ndtri(tail) if degrees is None else stdtrit(degrees, tail))
    return Tests(statistic, p, coefficients - quantile * errors, coefficients + quantile * errors)
