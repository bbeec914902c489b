"""Firth's penalised likelihood of logistic regression, whose estimates are always finite.

The logarithm of the likelihood is penalised by ½ log |I(θ)|, with I the information (Firth 1993;
Heinze and Schemper 2002). Its slope is Σ (w (y − π) + h (½ − π)) z, where h is a row's leverage,
w π (1 − π) zᵀ I⁻¹ z. Another basis of the design changes the penalty by a constant, and neither
estimates nor ratios of likelihoods.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from sqlfl.base.arrays import Array, Float
from sqlfl.base.errors import ModelError
from sqlfl.base.interrupts import checkpoint
from sqlfl.models.inference import FAMILIES, PIECE, RANK, Design
from sqlfl.models.weighted import mean_of

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
    step = max(PIECE // design(rows[:0]).shape[1], 64)
    for start in range(0, len(rows), step):
        checkpoint()
        yield slice(start, start + step), design(rows[start : start + step])
