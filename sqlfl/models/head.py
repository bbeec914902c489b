"""Head: from the sum of all tables' rows, E = Σ A_i h_i, to the scores H.

H = E + b, or with a linear head H = E W₀ + b. It is the coordinator's part of a model: the clients
know neither W₀ nor b.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.models.losses import Loss


@dataclass(frozen=True, eq=False)
class Head:
    """b, and W₀ of a linear head."""

    intercept: Array
    """float64 (d_c,)"""
    weights: Array | None = None
    """W₀: float64 (P, d_c); None for H = E + b."""

    @property
    def inputs(self) -> int:
        """Return the number of columns of E: P, or d_c."""
        return len(self.intercept) if self.weights is None else len(self.weights)

    def scores(self, embedding: Array) -> Array:
        """Return H: (N, P) -> (N, d_c). Raise InternalError for another width of E."""
        if embedding.ndim != 2 or embedding.shape[1] != self.inputs:
            raise InternalError(f"an embedding of shape {embedding.shape} for {self.inputs} values")
        if self.weights is None:
            return embedding + self.intercept
        scores: Array = embedding @ self.weights + self.intercept
        return scores

    def pulled_back(self, slopes: Array) -> Array:
        """Return ∂/∂E from ∂/∂H, row by row or for sums of rows: (N, d_c) -> (N, P)."""
        if self.weights is None:
            return slopes
        pulled: Array = slopes @ self.weights.T
        return pulled

    def gradient(self, embedding: Array, slopes: Array, l2: float) -> tuple[Array, ...]:
        """Return the gradient of Σ_j ℓ_j / n + penalty, by each of `parameters`.

        embedding: (n, P); slopes: ∂ℓ_j/∂H_j of each row, (n, d_c).
        """
        intercept = slopes.sum(axis=0) / len(slopes)
        if self.weights is None:
            return (intercept,)
        return intercept, embedding.T @ slopes / len(slopes) + l2 * self.weights

    def gradient_by_slots(
        self, blocks: Sequence[Array], sums: Sequence[Array], total: Array, rows: int, l2: float
    ) -> tuple[Array, ...]:
        """Return the same gradient for E = Σ A_i h_i, from h_i (n_i, P) and A_iᵀ of the slopes
        (d_c, n_i).
        """
        intercept = total / rows
        if self.weights is None:
            return (intercept,)
        pairs = zip(blocks, sums, strict=True)
        slope = sum(np.asarray(h, np.float64).T @ slot_sums.T for h, slot_sums in pairs)
        return intercept, slope / rows + l2 * self.weights

    @property
    def parameters(self) -> tuple[Array, ...]:
        """Return b, and W₀ if there is one."""
        return (self.intercept,) if self.weights is None else (self.intercept, self.weights)

    def replaced(self, parameters: Sequence[Array]) -> Head:
        """Return the head with other `parameters`."""
        return Head(*parameters)

    def shifted(self, constants: Array) -> Head:
        """Return the head whose scores are larger by `constants` (d_c,)."""
        return Head(self.intercept + constants, self.weights)

    def penalty(self, l2: float) -> float:
        """Return l2/2 ‖W₀‖²; the intercept is free."""
        return (
            0.0 if self.weights is None else 0.5 * l2 * float(np.vdot(self.weights, self.weights))
        )

    @property
    def stretch(self) -> float:
        """Return the largest ‖∂H/∂E‖², the maximum ratio of the loss's curvature in E to that
        in H.
        """
        if self.weights is None:
            return 1.0
        return float(np.linalg.norm(self.weights, 2)) ** 2


def first_head(intercept: Array, embedding: int, seed: int) -> Head:
    """Return a linear head before the first step: W₀ (`embedding`, d_c) random, with columns of
    length near 1. Equal seeds give equal heads.
    """
    generator = np.random.default_rng([seed, 0, 1])  # the clients' towers draw from [seed, slot]
    weights = generator.normal(size=(embedding, len(intercept))) / np.sqrt(embedding)
    return Head(np.array(intercept, np.float64), weights)


def fitted(
    head: Head,
    loss: Loss,
    embedding: Array,
    targets: Array,
    l2: float,
    shares: Array | None = None,
    *,
    steps: int = 10,
    tolerance: float = 1e-6,
) -> Head:
    """Return a head with a smaller objective, mean ℓ(E W₀ + b; y) + l2/2 ‖W₀‖², at the given E.

    The steps use the bound from the loss's curvature c: W₀ −= (c EᵀE/N + l2 I)⁻¹ ∇, with a column
    of ones in E. No step raises the objective. For squared loss the first one reaches the optimum
    (Böhning and Lindsay's lower-bound method). It ends after `steps`, or when a step promises less
    than `tolerance` of the objective. With `shares` (N,) the means are weighted.
    """
    if head.weights is None:
        raise InternalError("a head without weights has nothing to fit")
    ones = np.ones((len(embedding), 1))
    design = np.hstack([ones, embedding])
    pulled = design if shares is None else design * shares[:, None]
    matrix = loss.curvature * (pulled.T @ design) / len(design)
    ridge = np.full(len(matrix), l2)
    ridge[0] = 0.0
    floor = 1e-9 * np.trace(matrix) / len(matrix)  # for embeddings that do not vary
    matrix[np.diag_indices_from(matrix)] += np.maximum(ridge, floor)
    parameters = np.vstack([head.intercept, head.weights])
    for _ in range(steps):
        scores = design @ parameters
        slopes = loss.gradient(scores, targets, shares)
        slope = design.T @ slopes / len(design) + ridge[:, None] * parameters
        move = np.linalg.solve(matrix, slope)
        parameters = parameters - move
        value = loss.value(scores, targets, shares)
        if float(np.vdot(slope, move)) <= tolerance * max(abs(value), 1e-12):
            break
    return Head(parameters[0], parameters[1:])


def proximal(head: Head, loss: Loss, points: Array, targets: Array, rho: float) -> Array:
    """Return argmin_z ℓ(z W₀ + b; y) + ρ/2 ‖z − v‖² of each row v of (N, P): the z-step of ADMM
    (eq. 9).

    z − v lies in the span of W₀'s columns. With one output it is a number per row, and the step is
    the loss's own with ρ/‖w‖². With more, damped Newton steps run in that span, of at most d_c
    dimensions.
    """
    if head.weights is None:
        return loss.prox(points + head.intercept, targets, rho) - head.intercept
    if loss.outputs == 1:
        square = float(np.vdot(head.weights, head.weights))
        if square * 1e12 <= np.finfo(np.float64).tiny:
            return np.array(points)
        scores = head.scores(points)
        moved = loss.prox(scores, targets, rho / square) - scores
        return points + moved @ (head.weights.T / square)
    return _softmax_proximal(head, head.weights, points, targets.astype(np.intp), rho)


CHUNK = 1 << 14
"""Rows of one part of a proximal step."""
NEWTON_STEPS = 60


def _softmax_proximal(
    head: Head, weights: Array, points: Array, targets: Array, rho: float
) -> Array:
    # W₀ = Q R with orthonormal columns Q: z = v + a Qᵀ, and the scores move by a R
    basis, mix = np.linalg.qr(weights)
    moved = np.empty(points.shape)
    for start in range(0, len(points), CHUNK):
        rows = slice(start, start + CHUNK)
        scores = head.scores(points[rows])
        moved[rows] = points[rows] + _newton(scores, targets[rows], mix, rho) @ basis.T
    return moved


def _newton(scores: Array, targets: Array, mix: Array, rho: float) -> Array:
    """Return argmin_a log Σ exp(s + a R) − (s + a R)_y + ρ/2 ‖a‖² of each row: (n, k).

    scores: s (n, d_c); mix: R (k, d_c).
    """
    moves = np.zeros((len(scores), len(mix)))
    active = np.arange(len(scores))
    for _ in range(NEWTON_STEPS):
        at, base, label = moves[active], scores[active], targets[active]
        value, chance = _value(at, base, label, mix, rho)
        residual = chance.copy()
        residual[np.arange(len(label)), label] -= 1.0
        slope = residual @ mix.T + rho * at
        mean = chance @ mix.T
        hessian = np.einsum("kc,nc,lc->nkl", mix, chance, mix, optimize=True)
        hessian -= mean[:, :, None] * mean[:, None, :]
        hessian[:, np.arange(len(mix)), np.arange(len(mix))] += rho
        move = np.linalg.solve(hessian, slope[:, :, None])[:, :, 0]
        decrement = np.einsum("nk,nk->n", slope, move)
        length = np.ones(len(active))
        limit = value + 1e-14 * (1.0 + np.abs(value))
        for _ in range(40):
            reached, _ = _value(at - length[:, None] * move, base, label, mix, rho)
            worse = reached > limit - 1e-4 * length * decrement
            if not worse.any():
                break
            length = np.where(worse, 0.5 * length, length)
        moves[active] = at - length[:, None] * move
        active = active[decrement > 1e-18 * (1.0 + np.abs(value))]
        if not len(active):
            break
    return moves


def _value(a: Array, scores: Array, targets: Array, mix: Array, rho: float) -> tuple[Array, Array]:
    """Return the objective of each row (n,), and the softmax (n, d_c)."""
    h = scores + a @ mix
    top = h.max(axis=1)
    chance = np.exp(h - top[:, None])
    total = chance.sum(axis=1)
    chance /= total[:, None]
    value: Array = np.log(total) + top - h[np.arange(len(h)), targets]
    return value + 0.5 * rho * np.einsum("nk,nk->n", a, a), chance
