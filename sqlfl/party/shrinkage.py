"""Strengths of groups of columns: each group's own ridge, in place of l2 for all.

With weights θ = S η, S = diag(1 / √strength), a strength's ridge on θ is l2 on η. So a block with
strengths is trained as one over the columns X̃ S, whose penalty is l2, and its θ follows.

Of the way to its limit Fellner and Schall's step leaves about half each time. So steps of log λ are
lengthened by the secant through the last two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import sparse

from sqlfl.base.arrays import Array, Float
from sqlfl.base.errors import InternalError
from sqlfl.models.gram import GramMatrix
from sqlfl.party.steps import Engine

FIRST = 10.0
"""Rows of curvature 1 that the first ridge of a group weighs as much as."""
MIN_RIDGE, MAX_RIDGE = 1e-3, 1e7
"""The same of all ridges."""
MAX_STEP_FACTOR = 3.0
"""Factor by which a step of log λ is lengthened at most."""
MIN_SQUARED_NORM = 1e-12
"""Smallest |β|²: a group whose weights vanish gets the largest ridge."""


@dataclass(frozen=True, eq=False)
class Shrinkage:
    """Strengths of one block in training."""

    groups: Array
    """int (d,): as `Encoding.groups` has them."""
    strengths: Float
    """(groups,): ridge of each, as a multiple of l2."""
    rows: int
    """Joined rows with a weight above 0."""
    steps: tuple[Float, Float] | None = None
    """Of log λ in the last update, (groups,) each: what Fellner and Schall's step asked for, and
    what was made of it; None before the first update."""

    @classmethod
    def first(cls, groups: Array, rows: int, l2: float) -> Shrinkage:
        """Before anything is known of the weights."""
        size, rows = int(groups.max(initial=-1)) + 1, max(rows, 1)
        return cls(groups, np.full(size, FIRST / (rows * l2)), rows)

    def extended(self, sizes: Sequence[int], l2: float) -> Shrinkage:
        """With a group of each of these sizes behind the others, of which nothing is known."""
        count = len(self.strengths)
        groups = np.repeat(np.arange(count, count + len(sizes)), sizes)
        first = np.full(len(sizes), FIRST / (self.rows * l2))
        return Shrinkage(
            np.concatenate([self.groups, groups]),
            np.concatenate([self.strengths, first]),
            self.rows,
        )

    @property
    def scales(self) -> Float:
        """(d,): the diagonal of S."""
        scales: Float = 1.0 / np.sqrt(np.append(self.strengths, 1.0)[self.groups])
        return scales

    def renewed(
        self,
        gram: GramMatrix,
        total: float,
        theta: Float,
        dispersion: float,
        curvature: float,
        l2: float,
    ) -> tuple[Shrinkage, float]:
        """λ_g = φ edf_g / |β_g|² of each group, edf_g = tr((H_g + λ_g)⁻¹ H_g) from its own block of
        the second moments times the mean curvature; and the degrees of freedom of all columns.

        `dispersion` is φ over the rows; λ is over the rows too, and `total` the divisor of `gram`.
        """
        count = len(self.strengths)
        directions = max(theta.shape[1] - 1, 1)
        edf = np.zeros(count)
        numeric = len(gram.numeric)
        factor = curvature / total
        group_of_number, others = self.groups[:numeric], self.groups[numeric:]
        for group in np.unique(group_of_number[group_of_number >= 0]):
            places = np.flatnonzero(group_of_number == group)
            values = np.linalg.eigvalsh(factor * gram.numeric[np.ix_(places, places)])
            values = np.maximum(values, 0.0)
            edf[group] = np.sum(values / (values + l2 * self.strengths[group]))
        known = others >= 0
        edf += self._of_categories(
            others[known],
            factor * gram.onehot.diagonal()[known],
            gram.moments[numeric:][known] / gram.weight,
            l2,
        )
        squares = np.bincount(self.groups + 1, np.sum(theta**2, axis=1), count + 1)[1:]
        edf *= directions
        ridge = dispersion * edf / np.maximum(squares, MIN_SQUARED_NORM * dispersion)
        size = curvature / self.rows
        asked = np.log(np.clip(ridge, MIN_RIDGE * size, MAX_RIDGE * size) / (l2 * self.strengths))
        made = asked * self._lengths(asked)
        strengths = np.clip(
            self.strengths * np.exp(made), MIN_RIDGE * size / l2, MAX_RIDGE * size / l2
        )
        free = int(np.sum(self.groups < 0)) * directions
        after = replace(self, strengths=strengths, steps=(asked, made))
        return after, float(edf.sum() + free)

    def _of_categories(self, groups: Array, sums: Float, shares: Float, l2: float) -> Float:
        """Return (groups,): degrees of freedom of one-hot columns; those of a group exclude each
        other. `sums`: their second moments times the curvature; `shares`: their means.

        Centred, the block is D − D 1 1ᵀ D / Σ, whose inverse is that of a diagonal and a rank of 1
        (Sherman and Morrison 1950): columns that share out all rows have a degree less.
        """
        count = len(self.strengths)
        ridge = l2 * self.strengths[groups]
        kept = sums / (sums + ridge)
        left = ridge / (sums + ridge)
        edf, every = np.zeros(count), np.zeros(count)
        if len(groups):
            whole = np.maximum(1.0 - np.bincount(groups, shares, count), 0.0)
            whole += np.bincount(groups, shares * left, count)
            taken = np.bincount(groups, shares * kept * left, count)
            np.divide(taken, whole, out=every, where=whole > 0.0)
            edf += np.bincount(groups, kept, count)
        return edf - every

    def _lengths(self, asked: Float) -> Float:
        """Return by how much to lengthen steps of log λ: the secant through the last two, of each
        group for itself, from 1 to MAX_STEP_FACTOR."""
        lengths = np.ones(len(asked))
        if self.steps is None:
            return lengths
        before, made = (np.pad(step, (0, len(asked) - len(step))) for step in self.steps)
        towards = before * asked > 0.0  # else the last step went too far
        size = np.abs(made)
        shorter = np.maximum(np.abs(before) - np.abs(asked), size / MAX_STEP_FACTOR)
        sought = np.divide(size, shorter, out=lengths, where=towards)
        lengthened: Float = np.maximum(sought, 1.0)
        return lengthened


def scaled_gram(gram: GramMatrix, scales: Float) -> GramMatrix:
    """Second moments of the columns X S."""
    numeric = len(gram.numeric)
    first, rest = scales[:numeric], scales[numeric:]
    return GramMatrix(
        gram.numeric * np.outer(first, first),
        gram.cross * np.outer(rest, first),
        sparse.csr_array(gram.onehot.multiply(rest[:, None]).multiply(rest[None, :])),
        gram.moments * scales,
        gram.weight,
    )


class ScaledEngine:
    """Products with the columns X̃ S of an engine's columns X̃."""

    def __init__(self, engine: Engine, scales: Float) -> None:
        self._engine = engine
        self._scales = scales
        self.name = engine.name
        self.rows = engine.rows
        self.width = engine.width
        self.numeric = engine.numeric
        self.centre = engine.centre * scales
        self.offsets = engine.offsets

    @property
    def counts(self) -> Array:
        return self._engine.counts

    def predict(self, theta: Array, batch: Array | None = None) -> Array:
        return self._engine.predict(np.asarray(theta, np.float64) * self._scales[:, None], batch)

    def gradient(self, values: Array, batch: Array | None = None) -> Array:
        gradient: Array = self._engine.gradient(values, batch) * self._scales[:, None]
        return gradient

    def gram(self) -> GramMatrix:
        return scaled_gram(self._engine.gram(), self._scales)

    def norms(self) -> Array:
        raise InternalError("rows with strengths of their own are not clipped")

    def columns(self, kind: npt.DTypeLike = np.float64) -> tuple[Array, sparse.csr_array]:
        numbers, onehot = self._engine.columns(kind)
        first, rest = self._scales[: self.numeric], self._scales[self.numeric :]
        return numbers * first.astype(kind), sparse.csr_array(onehot.multiply(rest[None, :]))
