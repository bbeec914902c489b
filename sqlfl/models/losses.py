"""Losses of generalised linear models: values, derivatives, proximal steps and links.

Scores H are float64 (N, d_c). Targets y are (N,): numbers (squared), 0 or 1 (logistic), class codes
(softmax). Means are over the N rows, or Σ w_j · / Σ w_j where there are weights w (N,), of any
scale, not negative, some of them positive: a row of weight 2 counts as two rows, one of weight 0 as
none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sqlfl.errors import InternalError

Array = npt.NDArray[Any]


class Loss(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def curvature(self) -> float:
        """Upper bound of the eigenvalues of ∂²ℓ/∂H²: 1, ¼, ½."""
        ...

    @property
    def outputs(self) -> int:
        """d_c, scores per joined row."""
        ...

    def value(self, scores: Array, targets: Array, weights: Array | None = None) -> float:
        """Mean of ℓ(H_j; y_j)."""
        ...

    def gradient(self, scores: Array, targets: Array, weights: Array | None = None) -> Array:
        """w_j ∂ℓ(H_j; y_j)/∂H_j of each row (not divided by anything): (N, d_c)."""
        ...

    def along(
        self,
        scores: Array,
        directions: Array,
        targets: Array,
        steps: Array,
        weights: Array | None = None,
    ) -> tuple[float, Array, Array]:
        """φ, its gradient (k,) and Hessian (k, k) of φ(α) = mean ℓ(H + Σ_k α_k D_k; y) at `steps`.

        directions: (k, N, d_c); steps: (k,)
        """
        ...

    def prox(self, points: Array, targets: Array, rho: float) -> Array:
        """argmin_z ℓ(z; y) + ρ/2 ‖z − v‖² of each row: the z-step of sharing ADMM (eq. 9).

        A weight would multiply both terms, and change nothing.
        """
        ...

    def initial_intercept(self, targets: Array, weights: Array | None = None) -> Array:
        """The best constant score: (d_c,); of a class that weighs nothing, a finite one."""
        ...

    def mean_curvature(self, scores: Array, weights: Array | None = None) -> float:
        """Mean over rows of the mean non-zero eigenvalue of ∂²ℓ/∂H²; at most `curvature`."""
        ...

    def predict(self, scores: Array) -> Array:
        """Numbers (N, 1) for squared loss, else probabilities (N, classes)."""
        ...


@dataclass(frozen=True)
class Squared:
    """½(H − y)²."""

    outputs: int = 1
    name: str = "squared"
    curvature: float = 1.0

    def value(self, scores: Array, targets: Array, weights: Array | None = None) -> float:
        residual = scores[:, 0] - targets
        return 0.5 * float(_times(residual, weights) @ residual) / _total(residual, weights)

    def gradient(self, scores: Array, targets: Array, weights: Array | None = None) -> Array:
        return _rows_times(scores - targets[:, None], weights)

    def along(
        self,
        scores: Array,
        directions: Array,
        targets: Array,
        steps: Array,
        weights: Array | None = None,
    ) -> tuple[float, Array, Array]:
        ways = directions[:, :, 0]
        residual = scores[:, 0] + steps @ ways - targets
        n = _total(residual, weights)
        pulled = _times(residual, weights)
        value = 0.5 * float(pulled @ residual) / n
        return value, ways @ pulled / n, _times(ways, weights) @ ways.T / n

    def prox(self, points: Array, targets: Array, rho: float) -> Array:
        return (targets[:, None] + rho * points) / (1.0 + rho)

    def initial_intercept(self, targets: Array, weights: Array | None = None) -> Array:
        return np.array([_mean(targets, weights)])

    def mean_curvature(self, scores: Array, weights: Array | None = None) -> float:
        return 1.0

    def predict(self, scores: Array) -> Array:
        return scores.copy()


@dataclass(frozen=True)
class Logistic:
    """log(1 + exp(H)) − y H, with y in {0, 1}."""

    outputs: int = 1
    name: str = "logistic"
    curvature: float = 0.25

    def value(self, scores: Array, targets: Array, weights: Array | None = None) -> float:
        h = scores[:, 0]
        return _logistic_value(h, _softplus(h)[0], targets, weights)

    def gradient(self, scores: Array, targets: Array, weights: Array | None = None) -> Array:
        return _rows_times(_sigmoid(scores) - targets[:, None], weights)

    def along(
        self,
        scores: Array,
        directions: Array,
        targets: Array,
        steps: Array,
        weights: Array | None = None,
    ) -> tuple[float, Array, Array]:
        ways = directions[:, :, 0]
        h = scores[:, 0] + steps @ ways
        softplus, p = _softplus(h)
        n = _total(h, weights)
        return (
            _logistic_value(h, softplus, targets, weights),
            ways @ _times(p - targets, weights) / n,
            (ways * _times(p * (1.0 - p), weights)) @ ways.T / n,
        )

    def prox(self, points: Array, targets: Array, rho: float) -> Array:
        z = np.empty((len(points), 1))
        for start in range(0, len(z), CHUNK):
            rows = slice(start, start + CHUNK)
            z[rows, 0] = _logistic_prox(points[rows, 0], targets[rows].astype(np.float64), rho)
        return z

    def initial_intercept(self, targets: Array, weights: Array | None = None) -> Array:
        n = len(targets)
        if weights is not None:
            first, second = _floored(_class_sums(targets, weights, 2), n)
            return np.array([np.log(second) - np.log(first)])
        p = float(np.clip(np.mean(targets), 0.5 / n, 1.0 - 0.5 / n))
        return np.array([np.log(p / (1.0 - p))])

    def mean_curvature(self, scores: Array, weights: Array | None = None) -> float:
        p = _sigmoid(scores[:, 0])
        return float(_times(p, weights) @ (1.0 - p)) / _total(p, weights)

    def predict(self, scores: Array) -> Array:
        found = np.empty((len(scores), 2))
        for start in range(0, len(scores), CHUNK):
            rows = slice(start, start + CHUNK)
            found[rows, 0], found[rows, 1] = _sigmoids(scores[rows, 0])
        return found


@dataclass(frozen=True)
class Softmax:
    """log Σ_k exp(H_k) − H_y, with y a class code."""

    outputs: int
    name: str = "softmax"
    curvature: float = 0.5

    def value(self, scores: Array, targets: Array, weights: Array | None = None) -> float:
        logarithm, _ = _log_sum(scores.T)
        return _mean(logarithm - _pick(scores.T, targets), weights)

    def gradient(self, scores: Array, targets: Array, weights: Array | None = None) -> Array:
        _, p = _log_sum(scores.T)
        p[targets.astype(np.intp), np.arange(len(scores))] -= 1.0
        return _times(p, weights).T

    def along(
        self,
        scores: Array,
        directions: Array,
        targets: Array,
        steps: Array,
        weights: Array | None = None,
    ) -> tuple[float, Array, Array]:
        ways = np.ascontiguousarray(np.swapaxes(directions, 1, 2))
        count, n = len(ways), _total(scores, weights)
        h = scores.T + np.tensordot(steps, ways, 1)
        logarithm, p = _log_sum(h)
        shares = ways * p
        mean = shares.sum(axis=1)
        picked = np.array([_mean(_pick(way, targets), weights) for way in ways])
        square = _times(shares, weights).reshape(count, -1) @ ways.reshape(count, -1).T
        average = mean.mean(axis=1) if weights is None else mean @ weights / n
        return (
            _mean(logarithm - _pick(h, targets), weights),
            average - picked,
            (square - _times(mean, weights) @ mean.T) / n,
        )

    def prox(self, points: Array, targets: Array, rho: float) -> Array:
        z = np.empty(points.shape)
        size = max(CHUNK // self.outputs, 256)
        for start in range(0, len(z), size):
            rows = slice(start, start + size)
            v = np.array(points[rows].T, np.float64, order="C")
            z[rows] = _softmax_prox(v, targets[rows].astype(np.intp), rho).T
        return z

    def initial_intercept(self, targets: Array, weights: Array | None = None) -> Array:
        if weights is None:
            counts = np.bincount(targets.astype(np.intp), minlength=self.outputs)
            logarithm = np.log(np.maximum(counts.astype(np.float64), 0.5) / len(targets))
        else:
            sums = _class_sums(targets, weights, self.outputs)
            logarithm = np.log(_floored(sums, len(targets)) / sums.sum())
        centred: Array = logarithm - logarithm.mean()
        return centred

    def mean_curvature(self, scores: Array, weights: Array | None = None) -> float:
        _, p = _log_sum(scores.T)
        square = np.vdot(p, _times(p, weights)) / _total(scores, weights)
        return float(1.0 - square) / max(self.outputs - 1, 1)

    def predict(self, scores: Array) -> Array:
        return _log_sum(scores.T)[1].T


CHUNK = 1 << 14
"""Scores in one piece of a proximal step: few enough for the processor's cache."""


def _times(values: Array, weights: Array | None) -> Array:
    """Rows in the last axis, each times its weight."""
    return values if weights is None else values * weights


def _rows_times(values: Array, weights: Array | None) -> Array:
    """(N, d_c), each row times its weight."""
    return values if weights is None else values * weights[:, None]


def _total(rows: Array, weights: Array | None) -> float:
    return len(rows) if weights is None else float(weights.sum())


def _mean(values: Array, weights: Array | None) -> float:
    """Of (N,) values."""
    if weights is None:
        return float(np.mean(values))
    return float(weights @ values / weights.sum())


def _logistic_value(h: Array, softplus: Array, targets: Array, weights: Array | None) -> float:
    y = targets.astype(np.float64)
    if weights is None:
        return float(np.sum(softplus) - y @ h) / len(h)
    return float(weights @ (softplus - y * h)) / float(weights.sum())


def _class_sums(targets: Array, weights: Array, classes: int) -> Array:
    """Σ w of each class: float64 (classes,)."""
    return np.bincount(targets.astype(np.intp), weights, classes)


def _floored(sums: Array, rows: int) -> Array:
    """Half a row of mean weight for classes that weigh nothing, so that logarithms are finite."""
    return np.where(sums > 0.0, sums, 0.5 * sums.sum() / rows)


def _softplus(h: Array) -> tuple[Array, Array]:
    """log(1 + exp(h)) and its derivative σ(h)."""
    e = np.exp(-np.abs(h))
    positive = h >= 0.0
    p = np.where(positive, 1.0, e) / (1.0 + e)
    return np.log1p(e) + np.where(positive, h, 0.0), p


def _sigmoid(h: Array) -> Array:
    e = np.exp(-np.abs(h))
    p: Array = np.where(h >= 0.0, 1.0, e)
    p /= 1.0 + e
    return p


def _sigmoids(h: Array) -> tuple[Array, Array]:
    """σ(−h) and σ(h), each without cancellation."""
    e = np.exp(-np.abs(h))
    large = 1.0 / (1.0 + e)
    small = e * large
    positive = h >= 0.0
    return np.where(positive, small, large), np.where(positive, large, small)


def _log_sum(scores: Array) -> tuple[Array, Array]:
    """log Σ exp over classes (N,), and the softmax (d_c, N): rows of `scores` are classes."""
    top = scores.max(axis=0)
    p = np.exp(np.subtract(scores, top, order="C"))
    total = p.sum(axis=0)
    p /= total
    return np.log(total) + top, p


def _pick(scores: Array, targets: Array) -> Array:
    picked: Array = scores[targets.astype(np.intp), np.arange(scores.shape[1])]
    return picked


def _logistic_prox(v: Array, y: Array, rho: float) -> Array:
    """The root of σ(z) − y + ρ(z − v) = 0 for each of (n,) rows.

    It is between v and v + (y − σ(v))/ρ: Newton steps that leave the shrinking bracket are replaced
    by its middle, and so is every third long one, since in the flat tails Newton walks by ones.
    """
    slack = (y - _sigmoid(v)) / rho
    low, high = np.minimum(v, v + slack), np.maximum(v, v + slack)
    z = v + 0.5 * slack
    found = np.empty_like(z)
    active = np.arange(len(z))
    for iteration in range(100):
        p = _sigmoid(z)
        f = p - y + rho * (z - v)
        high = np.where(f > 0, z, high)
        low = np.where(f > 0, low, z)
        proposal = z - f / (p * (1.0 - p) + rho)
        poor = (proposal < low) | (proposal > high)
        if iteration % 3 == 2:
            poor |= np.abs(proposal - z) > 0.1
        proposal = np.where(poor, 0.5 * (low + high), proposal)
        # a Newton step of 1e-7 leaves an error of about 1e-14
        limit = np.where(poor, 1e-12, 1e-7) * (1.0 + np.abs(proposal))
        moving = np.abs(proposal - z) > limit
        z = proposal
        left = np.count_nonzero(moving)
        if left == 0:
            break
        if 2 * left < len(z):
            found[active] = z
            active, z, v, y = active[moving], z[moving], v[moving], y[moving]
            low, high = low[moving], high[moving]
    found[active] = z
    return found


def _softmax_prox(v: Array, y: Array, rho: float) -> Array:
    """Damped Newton steps on ℓ(z; y) + ρ/2 ‖z − v‖², rows being classes: (d_c, n)."""
    found = np.empty_like(v)
    active = np.arange(v.shape[1])
    z = v
    value, p = _prox_value(z, v, y, rho)
    for _ in range(60):
        f = p + rho * (z - v)
        f[y, np.arange(len(y))] -= 1.0
        # (diag(p + ρ) − p pᵀ)⁻¹ f by Sherman-Morrison
        inverse = 1.0 / (p + rho)
        newton, u = inverse * f, inverse * p
        remainder = rho * np.sum(u, axis=0)  # 1 − pᵀ diag(p + ρ)⁻¹ p without cancellation
        newton += u * (np.sum(p * newton, axis=0) / remainder)
        decrement = np.sum(f * newton, axis=0)
        # the decrement is a square: a step of 1e-7 leaves an error of about 1e-14
        moving = decrement > np.maximum(1e-15 * min(rho, 1.0), 1e-18 * (1.0 + np.abs(value)))
        start = value + 1e-14 * (1.0 + np.abs(value))
        z = z - newton
        value, p = _prox_value(z, v, y, rho)
        length = 1.0
        worse = np.flatnonzero(value > start - 1e-4 * decrement)
        while len(worse) and length > 2.0**-40:
            length *= 0.5
            z[:, worse] += length * newton[:, worse]
            shorter = _prox_value(z[:, worse], v[:, worse], y[worse], rho)
            value[worse], p[:, worse] = shorter
            limit = start[worse] - 1e-4 * length * decrement[worse]
            worse = worse[shorter[0] > limit]
        left = np.count_nonzero(moving)
        if left == 0:
            break
        if 2 * left < len(active):
            found[:, active] = z
            active, y, value = active[moving], y[moving], value[moving]
            z, v, p = z[:, moving], v[:, moving], p[:, moving]
    found[:, active] = z
    return found


def _prox_value(z: Array, v: Array, y: Array, rho: float) -> tuple[Array, Array]:
    logarithm, p = _log_sum(z)
    value: Array = logarithm - _pick(z, y) + 0.5 * rho * np.sum((z - v) ** 2, axis=0)
    return value, p


def loss_of(kind: str, classes: int) -> Loss:
    """The loss of a kind of model; `classes` counts only for a softmax.

    mlp_classifier is a softmax for two classes too.
    """
    if kind in ("linear_regression", "mlp_regressor"):
        return Squared()
    if kind == "logistic_regression":
        return Logistic()
    if kind in ("softmax_regression", "mlp_classifier"):
        return Softmax(classes)
    raise InternalError(f"no loss for models of kind {kind!r}")
