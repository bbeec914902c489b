"""Labels for the solution: columns less their means, corrected for noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.contract.privacy_specification import LabelNoise
from sqlfl.coordinator.rounds.problem import Problem
from sqlfl.methods.moments.solving import Solution, Target, scales_of
from sqlfl.privacy.mechanisms import keep_probability, laplace_keep

LEAST = 0.01
"""Share of the variance of noised numbers, or of an even share of noised classes, that is left at
least when that of the noise is taken off."""
DRAWS = 1 << 21
"""Scores that the expected loss of classes is a mean of."""


@dataclass(frozen=True, eq=False)
class JoinedLabels:
    """Labels of all joined rows."""

    values: Array
    """(N, c): numbers, or the indicators of the second of two classes or of all, less their mean;
    of noised classes such that they are those of the true ones, on average."""
    weights: Array
    """(N,), of the joined rows."""
    variance: float
    """Variance of numbers, without that of their noise; 0 of classes."""
    mean: float
    """Mean of numbers; 0 of classes."""
    shares: Array
    """(K,), of the true classes, as far as is known; none of numbers."""

    @property
    def classes(self) -> bool:
        return len(self.shares) > 0

    @cached_property
    def target(self) -> Target:
        if not self.classes:
            return Target.of(np.array([[self.variance]]))
        p = self.shares[1:] if self.values.shape[1] == 1 else self.shares
        return Target.of(np.diag(p) - np.outer(p, p))

    def ridge(self, l2: float) -> float:
        """l2 of the objective, in units of the columns' covariance: that of classes is ½ l2 ‖θ‖²
        beside a loss whose curvature is the variance of an indicator."""
        return l2 / float(self.target.spread.mean()) if self.classes else l2

    def rows_mean(self, values: Array, rows: Array, size: int) -> Array:
        """Return the mean of values (N, c) of the joined rows over those of each row of a slot, of
        which `rows` (N,) has the numbers: (size, c). It is 0 where none counts.
        """
        counts = np.bincount(rows, self.weights, size)
        sums = [np.bincount(rows, self.weights * column, size) for column in values.T]
        found: Array = np.stack(sums, axis=1) / np.where(counts > 0.0, counts, 1.0)[:, None]
        return found

    def unexplained(self, fits: Array) -> Array:
        """Return what the target does not say of fits (N, r), less their mean: h − cov(h, z) z. z,
        the target in units of its deviation, has the covariance 1 without the noise of labels.
        """
        shares = self.weights / self.weights.sum()
        centred = fits - shares @ fits
        z = self.values @ self.target.directions
        found: Array = centred - z @ (z.T @ (centred * shares[:, None]))
        return found

    def scores(
        self, weights: tuple[Array, ...], constants: Array
    ) -> tuple[tuple[Array, ...], Array]:
        """Return weights and constants of the loss, from those of each class."""
        if self.values.shape[1] == 1:
            return tuple(own[:, 1:] - own[:, :1] for own in weights), constants[1:] - constants[:1]
        centred = tuple(own - own.mean(axis=1, keepdims=True) for own in weights)
        return centred, constants - constants.mean()

    def loss(self, solution: Solution, constants: Array) -> float:
        """The expected loss of a row, if all is as was assumed: scores of a class are normal then,
        with the means τ s_k and the covariance τ, where s_k has the scales of class k."""
        target = self.target
        if not self.classes:
            return 0.5 * self.variance * (1.0 - solution.explained(target))
        scale, strength = scales_of(target, self.shares), solution.strength
        classes = len(self.shares)
        draws = max(DRAWS // classes**2, 16)
        normal = np.random.default_rng(0).normal(size=(draws, len(strength)))
        values, vectors = np.linalg.eigh(strength)
        around = normal @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
        loss = 0.0
        for number, share in enumerate(self.shares):
            logits = (around + strength @ scale[:, number]) @ scale + constants
            top = logits.max(axis=1, keepdims=True)
            logs = np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0]
            loss += float(share * (logs - logits[:, number]).mean())
        return loss


def labels_of(problem: Problem, noise: LabelNoise | None) -> JoinedLabels:
    """Return the labels of the problem's targets, as they came: noised where `noise` says so."""
    targets = np.asarray(problem.targets)
    weights = np.ones(len(targets)) if problem.weights is None else problem.weights
    weights = weights / weights.max()
    total = float(weights.sum())
    if problem.loss.name == "squared":
        y = targets.astype(np.float64)
        mean = float(weights @ y) / total
        variance = float(weights @ np.square(y - mean)) / total
        kept = max(variance - _variance(noise), LEAST * variance)
        return JoinedLabels((y - mean)[:, None], weights, kept, mean, np.zeros(0))
    codes = targets.astype(np.int64)
    classes = max(problem.outputs, 2)
    shares = np.bincount(codes, weights, classes) / total
    gap, rest = _kept(noise, classes)
    true = np.maximum((shares - rest) / gap, LEAST / classes if gap < 1.0 else 1e-9)
    numbers = range(1, 2) if problem.outputs == 1 else range(classes)
    values = np.stack([(codes == k) - shares[k] for k in numbers], axis=1) / gap
    return JoinedLabels(values, weights, 0.0, 0.0, true / true.sum())


def _variance(noise: LabelNoise | None) -> float:
    """Return the variance that Laplace noise of scale b adds to a number: 2 b²."""
    if noise is None or noise.bounds is None:
        return 0.0
    low, high = noise.bounds
    return 2.0 * ((high - low) / noise.epsilon) ** 2


def _kept(noise: LabelNoise | None, classes: int) -> tuple[float, float]:
    """A noised label is the true one's with the first probability, and any of them with the second
    each."""
    if noise is None:
        return 1.0, 0.0
    keep = laplace_keep if noise.mechanism == "laplace" else keep_probability
    p = keep(noise.epsilon, classes)
    rest = (1.0 - p) / (classes - 1)
    return p - rest, rest
