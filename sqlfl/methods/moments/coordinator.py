"""Regression from noised moments: what tables release in one round or two, solved at the
coordinator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract import stopping
from sqlfl.coordinator.rounds.conversation import Conversation
from sqlfl.coordinator.rounds.problem import Problem, Step
from sqlfl.messages import SetGram
from sqlfl.messages.grams import message_to_gram
from sqlfl.messages.replies import ReplyChannel
from sqlfl.methods.moments.configuration import MomentsConfiguration
from sqlfl.methods.moments.labels import JoinedLabels, labels_of
from sqlfl.methods.moments.second_round import FitMoments, solve_correlated
from sqlfl.methods.moments.solving import (
    Solution,
    TableMoments,
    TableSolution,
    discriminants,
    regression,
    solve,
    table_solution,
)
from sqlfl.models.gram import GramMatrix
from sqlfl.privacy.block_moments import cut_level, labels_change, moments_change

SOLVED = "solved"
REASON = "the model was solved once from noised moments, which prove no minimum"
ASSUMED = {
    1: "; columns of different tables are taken to be uncorrelated given the target, which nothing "
    "that was released can show: effects of correlated columns that cancel are not found",
    2: "; columns of different tables are taken to be correlated, given the target, only as the "
    "fits of one table are with the columns of the others, which was released",
}
"""By the number of rounds."""
WORTHLESS = 0.01
"""A share of the target's variance below which a model is hardly more than the mean."""
DOUBTFUL = 0.5
"""One below which more may be found where columns of tables are correlated."""


class Moments:
    """Each slot releases Σ w x xᵀ and Σ x Y, with noise; in a second round one slot releases fits
    of its rows, and each other one Σ x Y with these. All else is made of these releases.
    """

    head: None = None
    scores: None = None

    def __init__(self, problem: Problem, channel: ReplyChannel) -> None:
        if problem.privacy is None:
            raise InternalError("moments leave with noise")
        self._problem = problem
        self._conversation = Conversation(problem, channel)
        self._noise = problem.privacy.rounds
        self._labels = problem.privacy.labels
        self.intercept = problem.loss.initial_intercept(problem.targets, problem.shares)
        self.first = 0.0

    def start(self) -> None:
        self._conversation.start(partial(MomentsConfiguration, rounds=self._rounds))

    def steps(self) -> Iterator[Step]:
        problem = self._problem
        labels = labels_of(problem, self._labels)
        grams = self._conversation.moments()
        tables = [self._table(place, labels, gram) for place, gram in enumerate(grams)]
        asked = {place: own.sums_of(labels, labels.values) for place, own in enumerate(tables)}
        told = self._conversation.label_moments({n: own.values for n, own in asked.items()})
        ridge = labels.ridge(problem.l2)
        parts = [
            table_solution(own.block(asked[n], told[n]), labels.target, ridge)
            for n, own in enumerate(tables)
        ]
        solution = self._second(labels, tables, parts) if self._rounds > 1 else solve(parts)
        explained = solution.explained(labels.target)
        if labels.classes:
            weights, constants = discriminants(solution, labels.target, labels.shares)
            loss = labels.loss(solution, constants)
            weights, constants = labels.scores(weights, constants)
        else:
            weights, constants = regression(solution, labels.target), np.array([labels.mean])
            loss = labels.loss(solution, constants)
        shifts = self._conversation.set_parameters(dict(enumerate(weights)))
        self.intercept = constants + np.sum(
            [shifts[n] - own.mean @ weights[n] for n, own in enumerate(tables)], axis=0
        )
        several = sum(len(own) > 0 for own in weights) > 1
        assumed = ASSUMED[self._rounds] * several
        yield Step(
            1,
            loss + self._penalty(weights, grams),
            loss,
            ending=stopping.untold(SOLVED, REASON + assumed),
            estimates={"explained": explained},
            warnings=tuple(_warnings(explained, several=several and not labels.classes)),
        )

    @property
    def _rounds(self) -> int:
        return int(str(self._problem.options.listed()["rounds"]))

    def _second(
        self, labels: JoinedLabels, tables: Sequence[_Table], parts: Sequence[TableSolution]
    ) -> Solution:
        """Solve with the correlations of tables with the leading one's fits: three exchanges."""
        problem, mapping = self._problem, self._problem.mapping.slots
        leading = next(
            n for n, own in enumerate(problem.slots) if self._noise[own.slot].prediction_noise
        )
        r = parts[leading].weights.shape[1]
        padded = ((0, 0), (0, problem.outputs - r))
        fits, noise = self._conversation.fits(leading, np.pad(parts[leading].weights, padded))
        rest = labels.unexplained(fits[mapping[leading].rows, :r])
        asked = {
            n: own.sums_of(labels, np.pad(rest, padded))
            for n, own in enumerate(tables)
            if n != leading
        }
        told = self._conversation.label_moments({n: own.values for n, own in asked.items()})
        measured = {}
        for n, own in asked.items():
            weighed = tables[n].shares(labels, mapping[leading].rows, mapping[leading].size)
            covariance = tables[n].covariance(own, told[n])[:, :r]
            measured[n] = FitMoments(covariance, own.noise, noise * float(np.linalg.norm(weighed)))
        return solve_correlated(parts, leading, measured)

    def _table(self, place: int, labels: JoinedLabels, gram: SetGram) -> _Table:
        """Return what a slot has released, and how its rows count."""
        problem, members = self._problem, self._problem.slots[place]
        noise, own = self._noise[members.slot], problem.mapping.slots[place]
        sizes = len(gram.numeric), noise.categories
        clients = math.sqrt(len(members.addresses))
        scale = 1.0 if problem.weights is None else float(problem.weights.max())
        counts: Array = np.bincount(own.rows, labels.weights, own.size)
        weights: Array = counts * (scale / noise.row_weight)
        bounded = np.minimum(weights, 1.0)
        bounded[members.virtual] = weights[members.virtual]
        total = float(bounded.sum())
        free = np.ones(own.size, bool)
        free[members.virtual] = False
        moments = message_to_gram(gram)
        return _Table(
            rows=own.rows,
            counts=counts,
            weights=bounded,
            total=total,
            bounded=free,
            mean=np.clip(moments.moments / total, -1.0, 1.0),
            moments=moments,
            moments_noise=noise.moments_noise * moments_change(*sizes) * clients / total,
            sums_noise=noise.labels_noise * labels_change(*sizes) * clients,
        )

    def _penalty(self, weights: Sequence[Array], grams: Sequence[SetGram]) -> float:
        """½ l2 ‖θ‖², θ of the encoded columns."""
        found = 0.0
        for members, own, gram in zip(self._problem.slots, weights, grams, strict=True):
            p, bound = len(gram.numeric), self._noise[members.slot].column_bound
            found += float(np.square(own[:p] / bound).sum() + np.square(own[p:]).sum())
        return 0.5 * self._problem.l2 * found


@dataclass(frozen=True, eq=False)
class _RowSums:
    """Sums that the clients of a slot are sent, one for each row."""

    values: Array
    """Y (n_i, c), in units of the level."""
    level: float
    noise: float
    """Standard deviation of the noise in a number of Σ x Y / Σ w."""


@dataclass(frozen=True, eq=False)
class _Table:
    """Second moments of one slot, and how its rows count."""

    rows: Array
    """(N,), of the joined rows"""
    counts: Array
    """Weights of the joined rows of each row (n_i,)."""
    weights: Array
    """w, in units of the cap (n_i,)."""
    total: float
    """Σ w"""
    bounded: Array
    """bool (n_i,): rows whose sums are cut, all but those that a LEFT JOIN added."""
    mean: Array
    """(d_i,), noised"""
    moments: GramMatrix
    moments_noise: float
    """Standard deviation of the noise in a number on the diagonal of Σ w x xᵀ / Σ w."""
    sums_noise: float
    """That of the noise in a number of Σ x Y, for a level of 1."""

    def sums_of(self, labels: JoinedLabels, values: Array) -> _RowSums:
        """values: (N, c), of the joined rows."""
        means = labels.rows_mean(values, self.rows, len(self.weights))
        means = means - self.weights @ means / self.total
        sums = self.weights[:, None] * means
        norms = np.linalg.norm(sums, axis=1)
        numbers = len(self.moments.moments) * sums.shape[1]
        level = cut_level(norms[self.bounded], numbers, self.sums_noise)
        factors = np.minimum(1.0, level / np.where(norms > 0.0, norms, 1.0))
        factors[~self.bounded] = 1.0
        cut = (sums * factors[:, None] / level).astype(np.float32).astype(np.float64)
        return _RowSums(cut, level, self.sums_noise * level / self.total)

    def covariance(self, sums: _RowSums, part: Array) -> Array:
        """Return cov(x, values) (d_i, c). part: Σ x Yᵀ (d_i, c), noised."""
        moved = part - np.outer(self.mean, sums.values.sum(axis=0))
        found: Array = moved * (sums.level / self.total)
        return found

    def shares(self, labels: JoinedLabels, rows: Array, size: int) -> Array:
        """Return how much each row of another slot counts in the sums (size,), `rows` (N,) being
        those of the joined rows.
        """
        ratios = self.weights / np.where(self.counts > 0.0, self.counts, 1.0) / self.total
        found: Array = np.bincount(rows, ratios[self.rows] * labels.weights, size)
        return found

    def block(self, sums: _RowSums, part: Array) -> TableMoments:
        """part: Σ x Yᵀ (d_i, c), of label sums, noised."""
        own = self.moments
        dense = own.onehot.toarray()
        whole = np.block([[own.numeric, own.cross.T], [own.cross, dense]])
        covariance = whole / self.total - np.outer(self.mean, self.mean)
        slopes = self.covariance(sums, part)
        return TableMoments(covariance, self.moments_noise, slopes, sums.noise)


def _warnings(explained: float, *, several: bool) -> Iterator[str]:
    told = f"by what was released the model explains {explained:.1%} of the target's variance"
    if explained < WORTHLESS:
        yield (
            f"{told}, hardly more than a constant does: the noise is too large for so few rows, or "
            "there is nothing to find; a larger epsilon, tighter feature_bounds and fewer columns "
            "have less noise"
        )
    elif several and explained < DOUBTFUL:
        yield (
            f"{told}: if columns of different tables are correlated and their effects cancel, it "
            "finds less than there is; EVALUATE on rows that may be seen tells"
        )


COORDINATOR: Callable[[Problem, ReplyChannel], Moments] = Moments
