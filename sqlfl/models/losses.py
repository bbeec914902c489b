"""Losses of generalised linear models: values, derivatives, proximal steps and links.

Scores H are float64 (N, d_c). Targets y are (N,): numbers (squared), numbers from 0 up (poisson),
above 0 (gamma), 0 or 1 (logistic), class codes (softmax). Means are over the N rows, or Σ w_j · / Σ
w_j with weights w (N,). Weights have any scale, are not negative, and some are positive. A row of
weight 2 counts as two rows, one of weight 0 as none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import ModelError
from sqlfl.models.clipped import Huber, Quantile
from sqlfl.models.kinds import kind_of
from sqlfl.models.log_link import Gamma, Poisson
from sqlfl.models.metrics import ClassMeter, Judged, Mean, Meter, Metrics
from sqlfl.models.native import library
from sqlfl.models.proximal import (
    log_sum,
    logistic_proximal,
    picked,
    sigmoid,
    softmax_proximal,
)
from sqlfl.models.targets import OfClasses, OfNumbers, typical_distance
from sqlfl.models.weighted import (
    mean_of,
    rows_times,
    second_moments,
    sum_of,
    times,
    total_of,
)

NONE: Mapping[str, Any] = MappingProxyType({})


class Loss(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def curvature(self) -> float:
        """Return an upper bound of the eigenvalues of ∂²ℓ/∂H²: 1, ¼, ½. For a loss without a bound,
        return the mean at the best constant score of the targets that it was `fitted` to.
        """
        ...

    @property
    def outputs(self) -> int:
        """Return d_c, the scores per joined row."""
        ...

    def value(self, scores: Array, targets: Array, weights: Array | None = None) -> float:
        """Return the mean of ℓ(H_j; y_j)."""
        ...

    def gradient(self, scores: Array, targets: Array, weights: Array | None = None) -> Array:
        """Return w_j ∂ℓ(H_j; y_j)/∂H_j of each row, without a divisor: (N, d_c)."""
        ...

    def value_and_slopes(
        self, scores: Array, targets: Array, weights: Array | None
    ) -> tuple[float, Array]:
        """Return Σ_j w_j ℓ(H_j; y_j) and w_j ∂ℓ/∂H_j (d_c, n), for scores in the layout (d_c, n).

        There is no divisor; `scores` may be overwritten.
        """
        ...

    def curvatures(
        self, scores: Array, targets: Array, weights: Array | None, ways: Array
    ) -> Array:
        """Return Σ_j w_j D_jᵀ ∂²ℓ/∂H_j² D_j along directions D (k, d_c, n) and, after these, a
        constant for each output: (k + d_c, k + d_c). Scores are as in `value_and_slopes`.
        """
        ...

    @property
    def quadratic(self) -> bool:
        """Return True if its curvature is the same everywhere."""
        ...

    @property
    def grows(self) -> bool:
        """Return True if the loss of a row grows without end with its distance from the target, so
        that no optimum is at infinity.
        """
        ...

    @property
    def bounded(self) -> bool:
        """Return True if `curvature` is a bound, so that `flatness` is 1."""
        ...

    def prox(self, points: Array, targets: Array, rho: float) -> Array:
        """Return argmin_z ℓ(z; y) + ρ/2 ‖z − v‖² of each row: the z-step of sharing ADMM (eq. 9).

        A weight would multiply both terms, and change nothing.
        """
        ...

    def initial_intercept(self, targets: Array, weights: Array | None = None) -> Array:
        """Return the best constant score: (d_c,). It is finite even for a class of weight 0."""
        ...

    def mean_curvature(
        self, scores: Array, weights: Array | None = None, targets: Array | None = None
    ) -> float:
        """Return the mean over rows of the mean non-zero eigenvalue of ∂²ℓ/∂H², at most `curvature`
        if that is a bound. If it depends on targets and there are none, it assumes targets that the
        scores fit.
        """
        ...

    def flatness(self, scores: Array, targets: Array, weights: Array | None) -> float:
        """Return the ratio of `curvature` to the curvature at these scores, and on the way down
        from them.
        """
        ...

    def predict(self, scores: Array) -> Array:
        """Return predictions by the inverse link: a number (N, 1), or probabilities (N,
        classes).
        """
        ...

    def headline(self, scores: Array, targets: Array, weights: Array | None) -> Mean:
        """Return the metric of the history; its `value` is the number. Those of several parts may
        be merged.
        """
        ...

    def meter(self, rows: int = 0) -> Meter:
        """Return a meter for rows that come in parts, with the predictions of `predict`. `rows`:
        their number, if known.
        """
        ...

    def measure(self, meter: Meter, scores: Array, targets: Array, weights: Array | None) -> None:
        """Add rows to such a meter, by their scores."""
        ...

    def metrics(self, prediction: Array, targets: Array, weights: Array | None) -> Metrics:
        """Return all metrics of predictions by `predict`."""
        ...

    def of_prediction(self, prediction: Array, targets: Array, weights: Array | None) -> float:
        """Return the mean loss of predictions by `predict`: `value` plus `floor` of the scores."""
        ...

    def of_scores(self, scores: Array, targets: Array, weights: Array | None) -> float:
        """Return `of_prediction` of the scores' predictions, up to rounding."""
        ...

    def fitted(self, targets: Array, weights: Array | None) -> Loss:
        """Return the loss for learning these targets. Raise ModelError if nothing can be learnt."""
        ...

    def floor(self, targets: Array, weights: Array | None) -> float:
        """Return the part of the mean loss that `value` leaves out, so that it is never below 0."""
        ...

    @property
    def largest_score(self) -> float:
        """Return the score above which training counts as divergent, for any targets."""
        ...

    @property
    def slack(self) -> float:
        """Return how far above twice the best constant's loss an acceptable model may be."""
        ...

    def reach(self, targets: Array) -> float:
        """Return the size of the targets: the largest, but at least 1; 1 for classes."""
        ...

    def spread(self, targets: Array) -> float:
        """Return the standard deviation of the targets; 1 for classes."""
        ...

    def unit(self, targets: Array) -> float:
        """Return the unit of scores: the targets' spread if the link is the identity,
        otherwise 1.
        """
        ...

    def separates(self, scores: Array, targets: Array) -> bool:
        """Return True if the loss falls to 0 with multiples of the scores: each row has its own
        class's score above all others.
        """
        ...


@dataclass(frozen=True)
class Squared(OfNumbers):
    """Loss ½(H − y)²."""

    outputs: int = 1
    name: str = "squared"
    curvature: float = 1.0
    grows = True

    def value(self, scores: Array, targets: Array, weights: Array | None = None) -> float:
        residual = scores[:, 0] - targets
        return 0.5 * float(times(residual, weights) @ residual) / total_of(residual, weights)

    def gradient(self, scores: Array, targets: Array, weights: Array | None = None) -> Array:
        return rows_times(scores - targets[:, None], weights)

    def value_and_slopes(
        self, scores: Array, targets: Array, weights: Array | None
    ) -> tuple[float, Array]:
        residual = scores[0]
        residual -= targets
        pulled = times(residual, weights)
        return 0.5 * float(pulled @ residual), pulled[None]

    def curvatures(
        self, scores: Array, targets: Array, weights: Array | None, ways: Array
    ) -> Array:
        return second_moments(ways[:, 0], weights)

    @property
    def quadratic(self) -> bool:
        return True

    def unit(self, targets: Array) -> float:
        return typical_distance(targets)

    def prox(self, points: Array, targets: Array, rho: float) -> Array:
        return (targets[:, None] + rho * points) / (1.0 + rho)

    def initial_intercept(self, targets: Array, weights: Array | None = None) -> Array:
        return np.array([mean_of(targets, weights)])

    def mean_curvature(
        self, scores: Array, weights: Array | None = None, targets: Array | None = None
    ) -> float:
        return 1.0

    def predict(self, scores: Array) -> Array:
        return scores.copy()

    def of_prediction(self, prediction: Array, targets: Array, weights: Array | None) -> float:
        squares = 0.5 * (prediction[:, 0] - targets) ** 2
        return float(np.average(squares, weights=weights))


@dataclass(frozen=True)
class Logistic(OfClasses):
    """Loss log(1 + exp(H)) − y H, with y in {0, 1}."""

    outputs: int = 1
    name: str = "logistic"
    curvature: float = 0.25

    def value(self, scores: Array, targets: Array, weights: Array | None = None) -> float:
        wrong = np.where(targets > 0, -scores[:, 0], scores[:, 0])
        return mean_of(np.log1p(np.exp(-np.abs(wrong))) + np.maximum(wrong, 0.0), weights)

    def gradient(self, scores: Array, targets: Array, weights: Array | None = None) -> Array:
        return rows_times(sigmoid(scores) - targets[:, None], weights)

    def value_and_slopes(
        self, scores: Array, targets: Array, weights: Array | None
    ) -> tuple[float, Array]:
        (h,) = scores
        sign = 1.0 - 2.0 * targets
        h *= sign  # the score of the wrong class
        e = np.abs(h)
        np.negative(e, out=e)
        np.exp(e, out=e)
        value = np.log1p(e)
        share = np.where(h >= 0.0, 1.0, e)
        e += 1.0
        share /= e
        share *= sign
        value += np.maximum(h, 0.0, out=h)
        return sum_of(value, weights), times(share, weights)[None]

    def curvatures(
        self, scores: Array, targets: Array, weights: Array | None, ways: Array
    ) -> Array:
        p = sigmoid(scores[0])
        p *= 1.0 - p
        return second_moments(ways[:, 0], times(p, weights))

    def measure(self, meter: Meter, scores: Array, targets: Array, weights: Array | None) -> None:
        if library() is not None and isinstance(meter, ClassMeter):
            meter.add_scores(scores[:, 0], targets, weights)
        else:
            super().measure(meter, scores, targets, weights)

    def of_scores(self, scores: Array, targets: Array, weights: Array | None) -> float:
        if library() is None:
            return super().of_scores(scores, targets, weights)
        judged = Judged(scores[:, 0], targets, weights)
        return judged.surprise / judged.weight

    @property
    def quadratic(self) -> bool:
        return False

    def prox(self, points: Array, targets: Array, rho: float) -> Array:
        z = np.empty((len(points), 1))
        for start in range(0, len(z), CHUNK):
            rows = slice(start, start + CHUNK)
            z[rows, 0] = logistic_proximal(points[rows, 0], targets[rows].astype(np.float64), rho)
        return z

    def initial_intercept(self, targets: Array, weights: Array | None = None) -> Array:
        n = len(targets)
        if weights is not None:
            first, second = _floored(_class_sums(targets, weights, 2), n)
            return np.array([np.log(second) - np.log(first)])
        p = float(np.clip(np.mean(targets), 0.5 / n, 1.0 - 0.5 / n))
        return np.array([np.log(p / (1.0 - p))])

    def mean_curvature(
        self, scores: Array, weights: Array | None = None, targets: Array | None = None
    ) -> float:
        p = sigmoid(scores[:, 0])
        return float(times(p, weights) @ (1.0 - p)) / total_of(p, weights)

    def predict(self, scores: Array) -> Array:
        probabilities = np.empty((len(scores), 2))
        for start in range(0, len(scores), CHUNK):
            rows = slice(start, start + CHUNK)
            probabilities[rows, 0], probabilities[rows, 1] = _sigmoids(scores[rows, 0])
        return probabilities


@dataclass(frozen=True)
class Softmax(OfClasses):
    """Loss log Σ_k exp(H_k) − H_y, with y a class code."""

    outputs: int
    name: str = "softmax"
    curvature: float = 0.5

    def value(self, scores: Array, targets: Array, weights: Array | None = None) -> float:
        logarithm, _ = log_sum(scores.T)
        return mean_of(logarithm - picked(scores.T, targets), weights)

    def gradient(self, scores: Array, targets: Array, weights: Array | None = None) -> Array:
        _, p = log_sum(scores.T)
        p[targets.astype(np.intp), np.arange(len(scores))] -= 1.0
        return times(p, weights).T

    def value_and_slopes(
        self, scores: Array, targets: Array, weights: Array | None
    ) -> tuple[float, Array]:
        logarithm, p = log_sum(scores)
        logarithm -= picked(scores, targets)
        p[targets.astype(np.intp), np.arange(len(targets))] -= 1.0
        return sum_of(logarithm, weights), times(p, weights)

    def curvatures(
        self, scores: Array, targets: Array, weights: Array | None, ways: Array
    ) -> Array:
        _, p = log_sum(scores)
        flat = ways.reshape(len(ways), scores.size)
        shares = ways * p
        mean = shares.sum(axis=1)
        weighted = times(mean, weights)
        along = times(shares, weights).reshape(flat.shape) @ flat.T - weighted @ mean.T
        chances = times(p, weights)
        cross = times(shares, weights).sum(axis=2) - weighted @ p.T
        free = np.diag(chances.sum(axis=1)) - chances @ p.T
        return np.block([[along, cross], [cross.T, free]])

    @property
    def quadratic(self) -> bool:
        return False

    def prox(self, points: Array, targets: Array, rho: float) -> Array:
        z = np.empty(points.shape)
        size = max(CHUNK // self.outputs, 256)
        for start in range(0, len(z), size):
            rows = slice(start, start + size)
            v = np.array(points[rows].T, np.float64, order="C")
            z[rows] = softmax_proximal(v, targets[rows].astype(np.intp), rho).T
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

    def mean_curvature(
        self, scores: Array, weights: Array | None = None, targets: Array | None = None
    ) -> float:
        _, p = log_sum(scores.T)
        square = np.vdot(p, times(p, weights)) / total_of(scores, weights)
        return float(1.0 - square) / max(self.outputs - 1, 1)

    def predict(self, scores: Array) -> Array:
        return log_sum(scores.T)[1].T


CHUNK = 1 << 14
"""Scores in one part of a proximal step. So many fit the processor's cache."""


def _class_sums(targets: Array, weights: Array, classes: int) -> Array:
    """Return Σ w of each class: float64 (classes,)."""
    return np.bincount(targets.astype(np.intp), weights, classes)


def _floored(sums: Array, rows: int) -> Array:
    """Return the sums, with half a row of mean weight for classes of weight 0, so that logarithms
    are finite.
    """
    return np.where(sums > 0.0, sums, 0.5 * sums.sum() / rows)


def _sigmoids(h: Array) -> tuple[Array, Array]:
    """Return σ(−h) and σ(h), each without cancellation."""
    e = np.exp(-np.abs(h))
    large = 1.0 / (1.0 + e)
    small = e * large
    positive = h >= 0.0
    return np.where(positive, small, large), np.where(positive, large, small)


def loss_of(kind: str, classes: int, options: Mapping[str, Any] = NONE) -> Loss:
    """Return the loss of a kind of model, with its options; `classes` counts only for a softmax."""
    return LOSSES[kind_of(kind).loss](classes, options)


def _option(name: str, options: Mapping[str, Any]) -> float:
    value = options.get(name)
    if not isinstance(value, float):
        raise ModelError(f"the options of the model are damaged: {name} is {value!r:.40}")
    return value


LOSSES: Mapping[str, Callable[[int, Mapping[str, Any]], Loss]] = {
    "squared": lambda classes, options: Squared(),
    "poisson": lambda classes, options: Poisson(),
    "gamma": lambda classes, options: Gamma(),
    "huber": lambda classes, options: Huber(_option("threshold", options)),
    "quantile": lambda classes, options: Quantile(_option("quantile", options)),
    "logistic": lambda classes, options: Logistic(),
    "softmax": lambda classes, options: Softmax(classes),
}
"""Losses by name, from the number of classes and the options by name."""
LOSS_TYPES: Mapping[str, type[Any]] = {
    loss.name: loss for loss in (Squared, Poisson, Gamma, Huber, Quantile, Logistic)
} | {"softmax": Softmax}
"""The losses' dataclasses by name."""
