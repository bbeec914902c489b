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
        return _rows_times(_softplus(scores)[1] - targets[:, None], weights)

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
        # σ(z) − y + ρ(z − v) = 0 has its root between v and v + (y − σ(v))/ρ: Newton steps that
        # leave the shrinking bracket are replaced by its middle, and so is every third long one,
        # since in the flat tails Newton walks by ones.
        v = points[:, 0]
        slack = (targets - _softplus(v)[1]) / rho
        low, high = np.minimum(v, v + slack), np.maximum(v, v + slack)
        z = v + 0.5 * slack
        for iteration in range(100):
            p = _softplus(z)[1]
            f = p - targets + rho * (z - v)
            high = np.where(f > 0, z, high)
            low = np.where(f > 0, low, z)
            proposal = z - f / (p * (1.0 - p) + rho)
            poor = (proposal < low) | (proposal > high)
            if iteration % 3 == 2:
                poor |= np.abs(proposal - z) > 0.1
            proposal = np.where(poor, 0.5 * (low + high), proposal)
            change = np.abs(proposal - z)
            z = proposal
            if np.all(change <= 1e-12 * (1.0 + np.abs(z))):
                break
        return z[:, None]

    def initial_intercept(self, targets: Array, weights: Array | None = None) -> Array:
        n = len(targets)
        if weights is not None:
            first, second = _floored(_class_sums(targets, weights, 2), n)
            return np.array([np.log(second) - np.log(first)])
        p = float(np.clip(np.mean(targets), 0.5 / n, 1.0 - 0.5 / n))
        return np.array([np.log(p / (1.0 - p))])

    def mean_curvature(self, scores: Array, weights: Array | None = None) -> float:
        p = _softplus(scores[:, 0])[1]
        return float(_times(p, weights) @ (1.0 - p)) / _total(p, weights)

    def predict(self, scores: Array) -> Array:
        return np.hstack([_softplus(-scores)[1], _softplus(scores)[1]])


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
        for start in range(0, len(z), CHUNK):
            rows = slice(start, start + CHUNK)
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


CHUNK = 1 << 15
"""Rows of one piece of a proximal step: few enough for the processor's cache."""


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


def _softmax_prox(v: Array, y: Array, rho: float) -> Array:
    """Damped Newton steps on ℓ(z; y) + ρ/2 ‖z − v‖², rows being classes: (d_c, n)."""
    z = v.copy()
    active = np.arange(z.shape[1])
    for _ in range(60):
        here, label, point = v[:, active], y[active], z[:, active]
        value, p = _prox_value(point, here, label, rho)
        f = p + rho * (point - here)
        f[label, np.arange(len(label))] -= 1.0
        # (diag(p + ρ) − p pᵀ)⁻¹ f by Sherman-Morrison
        inverse = 1.0 / (p + rho)
        a, u = inverse * f, inverse * p
        remainder = rho * np.sum(u, axis=0)  # 1 − pᵀ diag(p + ρ)⁻¹ p without cancellation
        newton = a + u * (np.sum(p * a, axis=0) / remainder)
        decrement = np.sum(f * newton, axis=0)
        length = np.ones(len(active))
        for _ in range(40):
            reached, _ = _prox_value(point - length * newton, here, label, rho)
            limit = value - 1e-4 * length * decrement + 1e-14 * (1.0 + np.abs(value))
            worse = reached > limit
            if not worse.any():
                break
            length = np.where(worse, 0.5 * length, length)
        z[:, active] = point - length * newton
        active = active[decrement > 1e-18 * (1.0 + np.abs(value))]
        if not len(active):
            break
    return z


def _prox_value(z: Array, v: Array, y: Array, rho: float) -> tuple[Array, Array]:
    logarithm, p = _log_sum(z)
    value: Array = logarithm - _pick(z, y) + 0.5 * rho * np.sum((z - v) ** 2, axis=0)
    return value, p


def loss_of(kind: str, classes: int) -> Loss:
    """The loss of a kind of model; `classes` counts only for softmax_regression."""
    if kind == "linear_regression":
        return Squared()
    if kind == "logistic_regression":
        return Logistic()
    if kind == "softmax_regression":
        return Softmax(classes)
    raise InternalError(f"no loss for models of kind {kind!r}")
