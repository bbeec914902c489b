"""Regression from noised moments: what each table tells once, solved at the coordinator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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
from sqlfl.methods.moments.solving import TableMoments, discriminants, regression, solve
from sqlfl.models.gram import GramMatrix
from sqlfl.privacy.block_moments import cut_level, labels_change, moments_change

SOLVED = "solved"
REASON = "the model was solved once from noised moments, which prove no minimum"
ASSUMED = (
    "; columns of different tables are taken to be uncorrelated given the target, which nothing "
    "that was released can show: effects of correlated columns that cancel are not found"
)
WORTHLESS = 0.01
"""A share of the target's variance below which a model is hardly more than the mean."""
DOUBTFUL = 0.5
"""One below which more may be found where columns of tables are correlated."""


class Moments:
    """Each slot releases Σ w x xᵀ and Σ x Y, with noise; all else is made of these."""

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
        self._conversation.start(MomentsConfiguration)

    def steps(self) -> Iterator[Step]:
        problem = self._problem
        labels = labels_of(problem, self._labels)
        grams = self._conversation.moments()
        told = [self._told(n, labels, gram) for n, gram in enumerate(grams)]
        sums = self._conversation.label_moments([own.sums for own in told])
        blocks = [own.block(part) for own, part in zip(told, sums, strict=True)]
        solution = solve(blocks, labels.target, labels.ridge(problem.l2))
        explained = solution.explained(labels.target)
        if labels.classes:
            weights, constants = discriminants(solution, labels.target, labels.shares)
            loss = labels.loss(solution, constants)
            weights, constants = labels.scores(weights, constants)
        else:
            weights, constants = regression(solution, labels.target), np.array([labels.mean])
            loss = labels.loss(solution, constants)
        shifts = self._conversation.set_parameters(weights)
        self.intercept = constants + np.sum(
            [
                shift - own.mean @ part
                for own, part, shift in zip(told, weights, shifts, strict=True)
            ],
            axis=0,
        )
        several = sum(len(own) > 0 for own in weights) > 1
        yield Step(
            1,
            loss + self._penalty(weights, grams),
            loss,
            ending=stopping.untold(SOLVED, REASON + ASSUMED * several),
            estimates={"explained": explained},
            warnings=tuple(_warnings(explained, several=several and not labels.classes)),
        )

    def _told(self, number: int, labels: JoinedLabels, gram: SetGram) -> _Told:
        """Return what a slot has released, with the label sums that it is sent."""
        problem, members = self._problem, self._problem.slots[number]
        noise, own = self._noise[members.slot], problem.mapping.slots[number]
        sizes = len(gram.numeric), noise.categories
        clients = math.sqrt(len(members.addresses))
        scale = 1.0 if problem.weights is None else float(problem.weights.max())
        counts: Array = np.bincount(own.rows, labels.weights, own.size)
        weights: Array = counts * (scale / noise.row_weight)
        bounded = np.minimum(weights, 1.0)
        bounded[members.virtual] = weights[members.virtual]
        total = float(bounded.sum())
        means = labels.rows_mean(own.rows, own.size)
        means = means - bounded @ means / total
        sums = bounded[:, None] * means
        norms = np.linalg.norm(sums, axis=1)
        free = np.ones(own.size, bool)
        free[members.virtual] = False
        spread = noise.labels_noise * labels_change(*sizes) * clients
        level = cut_level(norms[free], len(gram.moments) * sums.shape[1], spread)
        factors = np.where(free, np.minimum(1.0, level / np.where(norms > 0.0, norms, 1.0)), 1.0)
        cut = (sums * factors[:, None] / level).astype(np.float32).astype(np.float64)
        moments = message_to_gram(gram)
        return _Told(
            sums=cut,
            level=level,
            total=total,
            mean=np.clip(moments.moments / total, -1.0, 1.0),
            moments=moments,
            moments_noise=noise.moments_noise * moments_change(*sizes) * clients / total,
            labels_noise=spread * level / total,
        )

    def _penalty(self, weights: Sequence[Array], grams: Sequence[SetGram]) -> float:
        """½ l2 ‖θ‖², θ of the encoded columns."""
        found = 0.0
        for members, own, gram in zip(self._problem.slots, weights, grams, strict=True):
            p, bound = len(gram.numeric), self._noise[members.slot].column_bound
            found += float(np.square(own[:p] / bound).sum() + np.square(own[p:]).sum())
        return 0.5 * self._problem.l2 * found


@dataclass(frozen=True, eq=False)
class _Told:
    """Second moments of one slot, and the label sums that its clients are sent."""

    sums: Array
    """Y (n_i, c), in units of the level."""
    level: float
    total: float
    """Σ w"""
    mean: Array
    """(d_i,), noised"""
    moments: GramMatrix
    moments_noise: float
    """Deviation of the noise in a number on the diagonal of Σ w x xᵀ / Σ w."""
    labels_noise: float
    """Deviation of the noise in a number of Σ x Y / Σ w."""

    def block(self, part: Array) -> TableMoments:
        """part: Σ x Yᵀ (d_i, c), noised."""
        own = self.moments
        dense = own.onehot.toarray()
        whole = np.block([[own.numeric, own.cross.T], [own.cross, dense]])
        covariance = whole / self.total - np.outer(self.mean, self.mean)
        slopes = (part - np.outer(self.mean, self.sums.sum(axis=0))) * (self.level / self.total)
        return TableMoments(covariance, self.moments_noise, slopes, self.labels_noise)


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
