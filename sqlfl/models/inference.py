"""Standard errors of generalised linear models: covariances of estimates, and likelihoods.

Rows are N joined rows with scores H (N,), targets y (N,) and weights w (N,), which say how often
each counts; None stands for once. The design is (N, P), with the constant 1 first; it is requested
in parts. The objective is Σ w ℓ(H; y) + λ/2 ‖θ‖², with λ on all of θ but the constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import (
    chdtrc,
    expit,
    gammaln,
    ndtr,
    ndtri,
    polygamma,
    psi,
    stdtr,
    stdtrit,
    xlogy,
)

from sqlfl.base.arrays import Array, Float
from sqlfl.base.errors import ModelError
from sqlfl.base.interrupts import checkpoint
from sqlfl.models.clipped import Quantile
from sqlfl.models.weighted import mean_of, sum_of, total_of

PIECE = 1 << 16
"""Numbers of the design that are in memory at once. So many fit the processor's cache."""
ROWS = 2048
"""Rows that a product of a wide design needs to be fast."""
RANK = 1e-11
"""Share of the information's largest eigenvalue below which eigenvalues count as 0."""
ROUNDING = 1e-10
"""Share of the model's own variance: a robust variance below it is made of residuals that are 0
but for rounding."""
SHAPE_STEPS = 8
"""Newton's, of a Gamma distribution's shape: each squares the error."""
LARGE_SHAPE = 1e8
"""Shape of a Gamma distribution above which series stand for its functions."""
EPSILON = 1e-14
"""Share of the largest possible variance below which a variance is 0 up to rounding."""

Design = Callable[[Array], Float]
"""Returns rows of the design, by their places (b,): (b, P)."""


@dataclass(frozen=True)
class Family:
    """Distribution of targets around their means."""

    mean: Callable[[Float], Float]
    """Mean of scores."""
    variance: Callable[[Float], Float]
    """Variance of means, up to a scale: the curvature of the loss."""
    link: Callable[[float], float]
    """Score of a mean."""
    log_likelihood: Callable[[Float, Float, Array | None], float]
    """Log-likelihood of scores and targets."""
    deviance: Callable[[Float, Float, Array | None], float]
    slope: Callable[[Float, Float], Float] = lambda mean, y: mean - y
    """Slope of the loss by the score, from means and targets."""
    bend: Callable[[Float, Float], Float] | None = None
    """Curvature of the loss, where it depends on targets too; None for the variance."""
    observed: Callable[[Float, Float], Float] | None = None
    """The same as it is in the rows, not as it is expected: that of robust variances."""
    spread: Callable[[Float], Float] | None = None
    """Variance of targets by their means, but for a scale; None where the curvature is that."""
    scaled: bool = False
    """The variance has a scale, which is estimated."""
    student: bool = False
    """Tests are by Student's t."""
    corrected: bool = False
    """Robust variances are HC1, else HC0."""
    likely: bool = True
    """It has a likelihood."""
    scale_of: Callable[[Float, Float, Array | None], Callable[[int], float]] | None = None
    """Scale by the rank, of scores and targets; None for Pearson's χ² over its degrees."""
    separable: bool = False
    """True if targets may lie at the border of the means, so that there may be no finite
    estimate.
    """
    counts: bool = False
    """True if that border is only 0."""


def _normal(h: Float, y: Float, w: Array | None) -> float:
    n = total_of(y, w)
    with np.errstate(divide="ignore"):  # it is infinite if everything is explained
        return -0.5 * n * (float(np.log(2.0 * np.pi * _squares(h, y, w) / n)) + 1.0)


def _squares(h: Float, y: Float, w: Array | None) -> float:
    return sum_of((h - y) ** 2, w)


def _bernoulli(h: Float, y: Float, w: Array | None) -> float:
    wrong = np.where(y > 0, -h, h)
    return -sum_of(np.log1p(np.exp(-np.abs(wrong))) + np.maximum(wrong, 0.0), w)


def _poisson(h: Float, y: Float, w: Array | None) -> float:
    return sum_of(y * h - np.exp(h) - gammaln(y + 1.0), w)


def _poisson_deviance(h: Float, y: Float, w: Array | None) -> float:
    return 2.0 * sum_of(xlogy(y, y) - y * h - y + np.exp(h), w)


def _gamma_deviance(h: Float, y: Float, w: Array | None) -> float:
    u = np.log(y) - h
    return 2.0 * sum_of(np.expm1(u) - u, w)


def _gamma(h: Float, y: Float, w: Array | None) -> float:
    """At the shape a that is likeliest beside these means: log a − ψ(a) is half the mean deviance
    (McCullagh and Nelder 1989, 8.3.2)."""
    n = total_of(y, w)
    half = _gamma_deviance(h, y, w) / (2.0 * n)
    if not half > 0.0:
        return float("inf")
    a = _shape(half)
    return n * (_stirling(a) - a * half) - sum_of(np.log(y), w)


def _stirling(a: float) -> float:
    """a log a − a − log Γ(a); where its terms would cancel, by Stirling's series."""
    if a > LARGE_SHAPE:
        return float(0.5 * np.log(a / (2.0 * np.pi)) - 1.0 / (12.0 * a))
    return float(a * np.log(a) - a - gammaln(a))


def _shape(half: float) -> float:
    """a with log a − ψ(a) = half: Newton's steps on 1/a, from Minka's (2002) start. The left side
    of a large a is 1/(2 a)."""
    if half < 0.5 / LARGE_SHAPE:
        return 0.5 / half
    a = (3.0 - half + np.sqrt((half - 3.0) ** 2 + 24.0 * half)) / (12.0 * half)
    for _ in range(SHAPE_STEPS):
        # 1/a: by its own slope the function of it is nearly a line
        change = (np.log(a) - psi(a) - half) / (a * a * (1.0 / a - polygamma(1, a)))
        a = 1.0 / (1.0 / a + change)
    return float(a)


FAMILIES: Mapping[str, Family] = {
    "linear_regression": Family(
        lambda h: h,
        np.ones_like,
        lambda mean: mean,
        _normal,
        _squares,
        scaled=True,
        student=True,
        corrected=True,
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
    "gamma_regression": Family(
        np.exp,
        np.ones_like,
        lambda mean: float(np.log(mean)),
        _gamma,
        _gamma_deviance,
        slope=lambda mean, y: 1.0 - y / mean,
        observed=lambda mean, y: y / mean,
        spread=np.square,
        scaled=True,
        student=True,
    ),
}
"""Families by kind of model."""


def huber(delta: float, constant: float) -> Family:
    """Estimates of Huber (1973): ψ is the residual clipped at ±δ. `constant`: the best one.

    The scale of the covariance is that of Huber's second proposal, "H2" of statsmodels' RLM:
    K (Σ ψ²/(n − k)) / mean ψ' times (Σ ψ' z zᵀ)⁻¹, with K = 1 + k/n var ψ'/(mean ψ')².
    """

    def slope(mean: Float, y: Float) -> Float:
        return np.clip(mean - y, -delta, delta)

    def bend(mean: Float, y: Float) -> Float:
        return np.asarray(np.abs(mean - y) <= delta, np.float64)

    def scale_of(h: Float, y: Float, w: Array | None) -> Callable[[int], float]:
        n, squares, within = total_of(y, w), sum_of(slope(h, y) ** 2, w), mean_of(bend(h, y), w)

        def scale(rank: int) -> float:
            k = 1.0 + rank / n * (1.0 - within) / within
            return k * squares / (n - rank) / within

        return scale

    def deviance(h: Float, y: Float, w: Array | None) -> float:
        r = np.abs(h - y)
        return 2.0 * sum_of(np.where(r <= delta, 0.5 * r * r, delta * (r - 0.5 * delta)), w)

    return Family(
        lambda h: h,
        np.ones_like,
        lambda _: constant,
        lambda h, y, w: float("nan"),
        deviance,
        slope=slope,
        bend=bend,
        scaled=True,
        likely=False,
        scale_of=scale_of,
    )


def quantile(loss: Quantile, constant: float, h: Float, y: Float, w: Array | None) -> Family:
    """Estimates of Koenker and Bassett (1978) at scores `h`. `constant`: the best one.

    The density f of residuals at 0 is a kernel estimate, of Epanechnikov's kernel and the bandwidth
    of Hall and Sheather (1988), as statsmodels' QuantReg has it. The covariance is
    q (1 − q)/f² (Σ z zᵀ)⁻¹; a robust one takes the slopes as they are, of the rounded kink.
    """
    q = loss.quantile
    density = _density(q, y - h, y, w)
    if density == 0.0:
        raise ModelError(
            "no residual is near 0, so that there are no standard errors: they need the density of "
            "residuals there",
            hint="WEIGHT counts rows: where it is large, divide it by its mean",
        )

    def slope(mean: Float, y: Float) -> Float:
        return loss.gradient(mean[:, None], y)[:, 0] / density

    def deviance(h: Float, y: Float, w: Array | None) -> float:
        above = y - h
        return 2.0 * sum_of(np.where(above > 0.0, q, q - 1.0) * above, w)

    return Family(
        lambda h: h,
        np.ones_like,
        lambda _: constant,
        lambda h, y, w: float("nan"),
        deviance,
        slope=slope,
        scaled=True,
        student=True,
        likely=False,
        scale_of=lambda h, y, w: lambda rank: q * (1.0 - q) / density**2,
    )


def _density(q: float, residuals: Float, y: Float, w: Array | None) -> float:
    """f(0) of the residuals (N,)."""
    n = total_of(y, w)
    level = float(ndtri(q))
    normal = np.exp(-0.5 * level * level) / np.sqrt(2.0 * np.pi)
    share = n ** (-1 / 3) * ndtri(0.975) ** (2 / 3)
    share *= (1.5 * normal**2 / (2.0 * level**2 + 1.0)) ** (1 / 3)
    if w is None:
        low, high = np.quantile(residuals, (0.25, 0.75))
    else:
        low, high = np.quantile(residuals, (0.25, 0.75), weights=w, method="inverted_cdf")
    centred = y - mean_of(y, w)
    spread = min(np.sqrt(mean_of(centred**2, w)), (high - low) / 1.34)
    ends = np.clip((q - share, q + share), 1e-6, 1.0 - 1e-6)
    width = float(spread * (ndtri(ends[1]) - ndtri(ends[0])))
    if not width > 0.0:
        return float("inf")
    u = residuals / width
    return sum_of(np.where(np.abs(u) <= 1.0, 0.75 * (1.0 - u * u), 0.0), w) / (n * width)


@dataclass(frozen=True, eq=False)
class MomentSums:
    """Sums over joined rows."""

    information: Float
    """(P, P): Σ w φ''(H) z zᵀ."""
    slope: Float
    """(P,): Σ w (mean − y) z."""
    meat: Float | None
    """(P, P): second moments of each unit's part of the slope."""


def rows_at_once(width: int) -> int:
    """Return the number of rows of a design of this width to take at once."""
    return max(PIECE // width, min(ROWS, 16 * PIECE // width), 64)


def moments_of_rows(z: Float, weights: Float) -> Float:
    """Return Σ w z zᵀ (P, P) of rows z (n, P), by weights w (n,) from 0 up."""
    root = z * np.sqrt(weights)[:, None]
    moments: Float = root.T @ root  # half the work of a product of two matrices
    return moments


def sums(
    family: Family,
    design: Design,
    h: Float,
    y: Float,
    weights: Array | None,
    *,
    robust: bool,
    units: Array | None,
    shares: Array | None = None,
) -> MomentSums:
    """`units` (N,): integers, equal for joined rows that may depend on each other. `shares` (N,):
    factors of `weights` that say how much a row counts, and not how often."""
    w = np.ones(len(h)) if weights is None else weights
    mean = family.mean(h)
    residual = family.slope(mean, y)
    bend = family.observed if robust or units is not None else None
    bend = bend or family.bend
    curvature = w * (family.variance(mean) if bend is None else bend(mean, y))
    again = residual if shares is None else residual * shares
    order = np.arange(len(h)) if units is None else np.argsort(units, kind="stable")
    width = design(order[:0]).shape[1]
    information, slope = np.zeros((width, width)), np.zeros(width)
    meat = np.zeros((width, width)) if robust or units is not None else None
    step = rows_at_once(width)
    last, carried = -1, np.zeros(width)
    for start in range(0, len(order), step):
        checkpoint()
        places = order[start : start + step]
        z = design(places)
        information += moments_of_rows(z, curvature[places])
        pulled = w[places] * residual[places]
        slope += pulled @ z
        if meat is None:
            continue
        if units is None:
            meat += (z * (pulled * again[places])[:, None]).T @ z
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
    return MomentSums(information, slope, meat)


@dataclass(frozen=True)
class Fit:
    """Fit of a model, compared with a mere constant."""

    rows: float
    log_likelihood: float
    null_log_likelihood: float
    deviance: float
    null_deviance: float
    pearson: float
    """Pearson's χ²: Σ w (y − μ)²/V(μ)."""
    scale_of: Callable[[int], float] | None = None
    """As the family has it."""

    def dispersion(self, rank: int) -> float:
        """Pearson's χ² over its degrees of freedom."""
        return self.pearson / (self.rows - rank)

    def aic(self, rank: int) -> float:
        return 2.0 * (rank - self.log_likelihood)

    def bic(self, rank: int) -> float:
        return rank * float(np.log(self.rows)) - 2.0 * self.log_likelihood

    @property
    def ratio(self) -> float:
        """Return twice the logarithm of the ratio of likelihoods."""
        return 2.0 * (self.log_likelihood - self.null_log_likelihood)


def ratio_p(ratio: float, rank: int, constants: int = 1) -> float:
    """Return the p-value of the hypothesis that all coefficients but the constants are 0; NaN
    without other coefficients. `ratio`: twice the logarithm of the ratio of likelihoods."""
    degrees = rank - constants
    return float(chdtrc(degrees, max(ratio, 0.0))) if degrees > 0 else float("nan")


def fit_of(
    family: Family, h: Float, y: Float, weights: Array | None, offset: Float | None = None
) -> Fit:
    """`offset` (N,): the part of the scores that is given, and a constant has too."""
    constant = np.full(len(y), family.link(mean_of(y, weights)))
    if offset is not None:
        constant = _with_offset(family, constant[0], y, weights, offset)
    mean = family.mean(h)
    spread = (family.spread or family.variance)(mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = np.where(y == mean, 0.0, (y - mean) ** 2 / spread)
    return Fit(
        total_of(y, weights),
        family.log_likelihood(h, y, weights),
        family.log_likelihood(constant, y, weights),
        family.deviance(h, y, weights),
        family.deviance(constant, y, weights),
        sum_of(squares, weights),
        None if family.scale_of is None else family.scale_of(h, y, weights),
    )


def _with_offset(
    family: Family, alone: float, y: Float, weights: Array | None, offset: Float
) -> Float:
    """The scores (N,) of the best constant beside an offset; `alone`: the best one without.

    The slope of the likelihood along a constant rises with it, and changes its sign in between.
    """

    def slope(constant: float) -> float:
        with np.errstate(over="ignore"):  # far from the root only
            mean = np.minimum(family.mean(offset + constant), 1e300)
        return sum_of(family.slope(mean, y), weights)

    least, most = alone - float(offset.max()), alone - float(offset.min())
    if least == most:
        return offset + least
    from scipy.optimize import brentq  # half a second, which most processes can do without

    scores: Float = offset + brentq(slope, least, most, xtol=1e-14, rtol=1e-15)
    return scores


@dataclass(frozen=True, eq=False)
class Estimated:
    """Precision with which the rows determine the parameters."""

    covariance: Float
    """(P, P). A robust one is 0 in the directions that rows decide whose residuals are 0 whatever
    their targets are."""
    nothing: Float
    """(P, k): an orthonormal basis of the directions in which no row varies: what the rows do not
    tell, a penalty at most."""
    rank: int
    """Parameters of the design: those that the rows determine, and those without a finite
    estimate.
    """
    scale: float
    """σ², or 1."""
    degrees: float | None
    """Degrees of freedom of Student's t; None for the normal distribution."""
    distance: float
    """Distance from the best parameters of these rows, in standard errors: no linear function of
    the parameters is farther away.
    """


def estimated(
    family: Family,
    moments: MomentSums,
    theta: Float,
    penalty: float,
    fit: Fit,
    units: int | None,
    nothing: Float | None = None,
    *,
    quasi: bool = False,
    classes: int = 2,
) -> Estimated | None:
    """`theta`: (P,), the parameters, 0 for the constant; `penalty`: λ; `units`: how many there are,
    None where rows do not depend on each other; `nothing`: a basis of the directions in which no
    row varies, where the sums leave out separated rows, None where the sums tell it; `quasi`: the
    variance has a scale (Wedderburn 1974), and tests are by Student's t, also where the family has
    none; `classes`: of a target of more than 2, the parameters are differences from the first
    class, class after class (`multinomial`), and the penalty is on each class's weights.
    """
    values, vectors = np.linalg.eigh(moments.information)
    kept = values > RANK * values[-1]
    if nothing is None:
        nothing = vectors[:, ~kept]
    rank, rows = len(values) - nothing.shape[1], fit.rows
    several = classes - 1
    if rows <= rank / several or (units is not None and units < 2):
        return None
    whitening = vectors[:, kept] / np.sqrt(values[kept])
    inverse, half = whitening @ whitening.T, whitening
    pulls = np.zeros_like(moments.information)
    if penalty:
        width = len(theta) // several
        # the least squares of all classes' weights that have these differences
        apart = np.eye(several) - (1.0 / classes if several > 1 else 0.0)
        free = np.diag((np.arange(width) > 0).astype(np.float64))
        pulls = np.asarray(penalty * np.kron(apart, free), np.float64)
        # singular where each row is separated: then no row tells the constant, and nothing pulls it
        inverse = np.linalg.pinv(moments.information + pulls, hermitian=True)
        half = inverse @ (vectors[:, kept] * np.sqrt(values[kept]))
    scale = 1.0
    if family.scaled or quasi:
        scale = fit.dispersion(rank) if fit.scale_of is None else fit.scale_of(rank)
    spread, degrees = np.sqrt(scale) * half, rows - rank
    if moments.meat is not None:
        # HC1 of least squares, HC0 of others, as statsmodels has them
        factor = rows / (rows - rank) if family.corrected else 1.0
        if units is not None:
            factor = units / (units - 1.0) * (rows - 1.0) / (rows - rank)
            degrees = units - 1.0
        spread = half @ _root(whitening.T @ (factor * moments.meat) @ whitening, ROUNDING * scale)
        spread[_squared(spread) <= ROUNDING * scale * _squared(half)] = 0.0
    slope = moments.slope + pulls @ theta
    away = max(float(slope @ inverse @ slope), 0.0) / (scale or 1.0)
    return Estimated(
        spread @ spread.T,
        nothing,
        rank,
        scale,
        degrees if family.student or quasi else None,
        float(np.sqrt(away)),
    )


def _root(matrix: Float, least: float) -> Float:
    """Return R with R Rᵀ = matrix (r, r), without its eigenvalues up to `least`."""
    values, vectors = np.linalg.eigh(matrix)
    kept = values > least
    root: Float = vectors[:, kept] * np.sqrt(values[kept])
    return root


def _squared(rows: Float) -> Float:
    """Return the squared length of each row."""
    squares: Float = np.einsum("pr,pr->p", rows, rows)
    return squares


def variances_of(contrasts: Float, covariance: Float) -> Float:
    """Return the variances (k,) of linear functions (k, P) of the parameters; 0 for mere
    rounding.
    """
    variances: Float = np.einsum("kp,kp->k", contrasts @ covariance, contrasts)
    largest = np.trace(covariance) * _squared(contrasts)
    return np.where(variances > EPSILON * largest, variances, 0.0)


@dataclass(frozen=True, eq=False)
class Tests:
    """Tests of coefficients (k,); NaN for none."""

    statistic: Float
    p: Float
    """Two-sided p of the hypothesis that the coefficient is 0."""
    lower: Float
    upper: Float


def tests_of(coefficients: Float, errors: Float, degrees: float | None, confidence: float) -> Tests:
    """Return the tests. errors: (k,), NaN if the rows leave the coefficient open."""
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = coefficients / errors
    beyond: Float = -np.abs(statistic)
    tail = 0.5 + 0.5 * confidence
    below: Array = ndtr(beyond) if degrees is None else stdtr(degrees, beyond)
    p: Float = 2.0 * np.asarray(below, np.float64)
    quantile = float(ndtri(tail) if degrees is None else stdtrit(degrees, tail))
    return Tests(statistic, p, coefficients - quantile * errors, coefficients + quantile * errors)


# Firth's penalised likelihood of logistic regression, whose estimates are always finite.
#
# The logarithm of the likelihood is penalised by ½ log |I(θ)|, with I the information (Firth 1993;
# Heinze and Schemper 2002). Its slope is Σ (w (y − π) + h (½ − π)) z, where h is a row's leverage,
# w π (1 − π) zᵀ I⁻¹ z. Another basis of the design changes the penalty by a constant, and neither
# estimates nor ratios of likelihoods.
STEPS = 500
"""Steps of Newton's method, which leave out how the penalty bends, and so converge linearly."""
MAX_STEP_DEVIATION = 5.0
"""Standard deviation of what a step may add to the scores."""
HALVINGS = 30
CLOSE = 1e-8
"""Smallest promised gain of a step that rounding does not hide."""
DECREMENT = 1e-22
"""Promised gain of a step below which the estimate is reached."""


@dataclass(frozen=True, eq=False)
class Firth:
    """The maximum of the penalised likelihood."""

    theta: Float
    """(P,): 0 along `nothing`."""
    scores: Float
    """(N,): 0 in rows that do not count."""
    nothing: Float
    """(P, k): an orthonormal basis of the directions in which no row varies."""
    ratio: float
    """Twice the logarithm of the ratio of penalised likelihoods, to that of the constant alone."""


def firth(design: Design, y: Float, weights: Array | None, offset: Float | None = None) -> Firth:
    """Maximise the penalised likelihood over the rows that count.

    `y` (N,): 0 or 1, of both; `offset` (N,): the part of the scores that is given. Raises
    ModelError where that does not converge.
    """
    w = np.ones(len(y)) if weights is None else np.asarray(weights, np.float64)
    counted = np.flatnonzero(w > 0)
    moments = sum(z.T @ z for _, z in _pieces(design, counted))
    values, vectors = np.linalg.eigh(moments)
    kept = values > RANK * values[-1]
    basis = vectors[:, kept] * np.sqrt(len(counted) / values[kept])
    given = np.zeros(len(counted)) if offset is None else offset[counted]
    likelihood = _Likelihood(design, counted, y[counted], w[counted], given, basis)
    constant = (vectors[0, kept] * np.sqrt(values[kept] / len(counted)))[:, None]
    link = FAMILIES["logistic_regression"].link
    start = likelihood.at(constant[:, 0] * link(mean_of(y, weights)))
    null = _highest(likelihood, start, constant)
    best = _highest(likelihood, null, np.eye(len(start.place)))
    scores = np.zeros(len(y))
    scores[counted] = best.scores
    return Firth(basis @ best.place, scores, vectors[:, ~kept], 2.0 * (best.value - null.value))


@dataclass(frozen=True, eq=False)
class _Point:
    place: Float
    """(r,): parameters in the likelihood's basis."""
    value: float
    slope: Float
    information: Float
    scores: Float


@dataclass(frozen=True, eq=False)
class _Likelihood:
    """The penalised likelihood of rows, of parameters in a basis (P, r) in which rows have the
    second moments of the identity."""

    design: Design
    rows: Array
    targets: Float
    weights: Float
    offset: Float
    basis: Float

    def at(self, place: Float) -> _Point:
        scores = np.empty(len(self.rows))
        information = np.zeros((len(place), len(place)))
        for part, z in _pieces(self.design, self.rows):
            reduced = z @ self.basis
            scores[part] = reduced @ place + self.offset[part]
            mean = expit(scores[part])
            information += (
                reduced * (self.weights[part] * mean * (1.0 - mean))[:, None]
            ).T @ reduced
        sign, size = np.linalg.slogdet(information)
        value = FAMILIES["logistic_regression"].log_likelihood(scores, self.targets, self.weights)
        value = value + 0.5 * float(size) if sign > 0 else -np.inf
        if not np.isfinite(value):
            return _Point(place, -np.inf, np.zeros(len(place)), information, scores)
        root = np.linalg.inv(np.linalg.cholesky(information))
        slope = np.zeros(len(place))
        for part, z in _pieces(self.design, self.rows):
            reduced, w, mean = z @ self.basis, self.weights[part], expit(scores[part])
            turned = reduced @ root.T
            leverage = w * mean * (1.0 - mean) * np.einsum("nr,nr->n", turned, turned)
            slope += (w * (self.targets[part] - mean) + leverage * (0.5 - mean)) @ reduced
        return _Point(place, value, slope, information, scores)


def _highest(likelihood: _Likelihood, start: _Point, ways: Float) -> _Point:
    """The highest point that is `start` and a combination of the ways (r, k)."""
    point, last = start, np.inf
    for _ in range(STEPS):
        checkpoint()
        along = ways.T @ point.slope
        step = ways @ np.linalg.solve(ways.T @ point.information @ ways, along)
        decrement = float(point.slope @ step)
        if decrement < DECREMENT or (last < CLOSE and decrement >= last):
            return point
        length = min(1.0, MAX_STEP_DEVIATION / float(np.linalg.norm(step)))
        for _ in range(HALVINGS):
            tried = likelihood.at(point.place + length * step)
            if tried.value > point.value or (decrement < CLOSE and np.isfinite(tried.value)):
                break
            length /= 2.0
        else:
            break
        point, last = tried, decrement
    raise ModelError(
        "Firth's penalised likelihood does not converge over these rows",
        hint="leave out features that few rows have, or features that others tell",
    )


def _pieces(design: Design, rows: Array) -> Iterator[tuple[slice, Float]]:
    """Rows of the design, and where they stand among `rows`."""
    step = rows_at_once(design(rows[:0]).shape[1])
    for start in range(0, len(rows), step):
        checkpoint()
        yield slice(start, start + step), design(rows[start : start + step])
