"""Slopes of a loss whose scores have the noise of private predictions."""

from __future__ import annotations

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract.privacy_specification import RoundNoise
from sqlfl.coordinator.rounds.problem import Problem

FAINT = 0.25
"""Maximum noise of slopes, in units of their own spread, for slopes used as they are."""
USUAL = 0.1
"""Expected square of a mean of predictions, in units of the clip's square."""
BOUND = 0.5
"""Noise that slopes may have, in these units."""


class OwnScores:
    """Slopes of steps of all rows, of linear blocks whose clients add their own scores.

    A block's own noised prediction need not stand in its own residual: the client knows its scores
    without noise. So block i is sent the slopes of the expansion (see `Surrogate`) at
    b + Σ_{k≠i} h_k, and adds c h_i itself: g_i = ∂ℓ(b₀) + c (b_i + Σ_{k≠i} ĥ_k), b_i = −h̄_i. The
    row's own noise, most of all noise, is gone, and parameters end where the block's least squares
    are, however many steps there are.

    ĥ_k are the other blocks' noised predictions, centred and shrunk by what their noise is known to
    be: where it has drowned them they count as 0. h̄_i is the mean of the block's noised
    predictions, over epochs as `Surrogate.intercept` has it. For numbers the expansion is exact.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        loss, total = problem.loss, problem.mapping.total
        self._constant = np.array(loss.initial_intercept(problem.targets, problem.shares))
        scores = np.tile(self._constant, (total, 1))
        self.feedback = float(loss.mean_curvature(scores[:1]))
        self._start = problem.weighted(loss.gradient(scores, problem.targets))
        self._means: list[list[Array]] = []
        """Mean of each block's predictions in each epoch."""
        self._blocks = tuple(np.zeros((size, problem.outputs)) for size in problem.mapping.sizes)

    def sums(self) -> list[Array]:
        """Return Y of each slot's rows, without the contribution of its own scores: (d_c, n_i)
        each.
        """
        problem, mapping = self._problem, self._problem.mapping
        known = mapping.gather_sum(self._blocks)
        sums = []
        for place, block in enumerate(self._blocks):
            others = known - mapping.slots[place].part(block, slice(None)) - self._mean(place)
            slopes = self._start + self.feedback * problem.weighted(others)
            sums.append(mapping.scatter(place, slopes).T)
        return sums

    def take(self, blocks: tuple[Array, ...]) -> Array:
        """Take the noised predictions of all rows (n_i, d_c) after a step; return the intercept
        (d_c,)."""
        means, kept = [], []
        for place, block in enumerate(blocks):
            counts, noise = self._problem.counted[place], self._noise(place)
            whole = max(float(counts.sum()), 1e-300)
            mean = counts @ block / whole
            variance = counts @ np.square(block - mean) / whole
            rows = whole**2 / max(float(counts @ counts), 1e-300)
            taken = noise**2 * (1.0 + np.sqrt(2.0 / rows))
            share = np.clip(1.0 - taken / np.maximum(variance, 1e-300), 0.0, 1.0)
            kept.append(share * (block - mean))
            means.append(mean)
        self._means.append(means)
        self._blocks = tuple(kept)
        intercept: Array = self._constant - sum(self._mean(place) for place in range(len(blocks)))
        return intercept

    def _mean(self, place: int) -> Array:
        """h̄ of a block (d_c,), shrunk by its noise."""
        recent = [means[place] for means in self._means[len(self._means) // 2 :]]
        if not recent:
            return np.zeros(self._problem.outputs)
        counts, clip = self._problem.counted[place], self._rounds(place).prediction_clip
        shares = counts / max(float(counts.sum()), 1e-300)
        noise = self._noise(place) ** 2 * float(shares @ shares) / len(recent)
        mean: Array = np.mean(recent, axis=0) * (USUAL * clip**2 / (USUAL * clip**2 + noise))
        return mean

    def _noise(self, place: int) -> float:
        return self._rounds(place).prediction_noise

    def _rounds(self, place: int) -> RoundNoise:
        privacy = self._problem.privacy
        if privacy is None:
            raise InternalError("noised scores without privacy")
        return privacy.rounds[self._problem.slots[place].slot]


class Surrogate:
    """The loss by its second-order expansion at the best constant scores b₀.

    Noise of several times the scores makes any curved loss's slopes useless: σ(h + noise) is 0 or
    1, whatever h. The expansion is linear in h, so that noise stays additive and averages out over
    rows: g = ∂ℓ(b₀) + s c (h − h̄), c the mean curvature at b₀ and h̄ the mean over the rows, which
    the intercept b₀ − h̄ takes up. Slopes then add up to 0, and a column that is not centred acts
    as if it were.

    s ≤ 1 bounds the noise of a slope to BOUND of the slopes' own spread: rows are clipped to about
    that, and a sum of clipped rows keeps of the labels what noise leaves of each row's direction.
    With s below 1 the model is larger than the expansion's minimum, by 1/s in the limit of many
    steps; without any feedback, s = 0, its direction is that of the labels' covariance with the
    columns. All of it is post-processing of noised predictions.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._constant = np.array(
            problem.loss.initial_intercept(problem.targets, problem.shares), np.float64
        )
        scores = np.tile(self._constant, (problem.mapping.total, 1))
        curvature = problem.loss.mean_curvature(scores[:1])
        spread = problem.norm(problem.loss.gradient(scores, problem.targets))
        spread = spread / np.sqrt(problem.mapping.total) or 1.0
        noise = curvature * problem.noise / spread
        self.applies = noise > FAINT
        self._feedback = curvature * min(1.0, BOUND / noise) if self.applies else curvature
        self._means: list[Array] = []
        """h̄ after each epoch."""

    def intercept(self, embedding: Array) -> Array:
        """b₀ − h̄ after an epoch, whose rows predict (N, d_c): (d_c,)

        The mean of a table with few rows is noisy itself. h̄ is that of the last half of the epochs,
        which the parameters do not leave far behind, shrunk as a number of about a third of the
        clip is to be expected from a measurement with that noise.
        """
        problem = self._problem
        self._means.append(_mean(embedding, problem.shares))
        recent = self._means[len(self._means) // 2 :]
        noise = self._variance() / len(recent)
        rounds = problem.privacy.rounds if problem.privacy is not None else {}
        usual = USUAL * sum(noise_of_slot.prediction_clip**2 for noise_of_slot in rounds.values())
        mean: Array = np.mean(recent, axis=0)
        return self._constant - mean * (usual / (usual + noise))

    def _variance(self) -> float:
        """Return the variance of the noise in each number of h̄."""
        problem = self._problem
        if problem.privacy is None:
            return 0.0
        shares = np.ones(problem.mapping.total) if problem.shares is None else problem.shares
        variance = 0.0
        for place, members in enumerate(problem.slots):
            parts = problem.mapping.scatter(place, shares[:, None])[:, 0] / problem.mapping.total
            noise = problem.privacy.rounds[members.slot].prediction_noise
            variance += noise**2 * float(parts @ parts)
        return variance

    def slopes(self, embedding: Array, targets: Array, shares: Array | None) -> Array:
        """Return slopes of rows that predict `embedding` (B, d_c), with weights `shares` (B,) of
        mean 1.
        """
        problem = self._problem
        scores = np.broadcast_to(self._constant, embedding.shape)
        moved = self._feedback * (embedding - _mean(embedding, shares))
        gradient: Array = problem.loss.gradient(scores, targets) + moved
        return gradient if shares is None else gradient * shares[:, None]


def _mean(values: Array, shares: Array | None) -> Array:
    mean: Array = np.average(values, axis=0, weights=shares)
    return mean
