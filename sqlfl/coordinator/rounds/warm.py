"""Where training starts: at 0, at the first parameters of towers, or at a model that is there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sqlfl.arrays import Array
from sqlfl.coordinator.rounds.conversation import Conversation
from sqlfl.coordinator.rounds.problem import Problem
from sqlfl.coordinator.rounds.search import exact_search, mean_along
from sqlfl.models.head import Head, first_head


@dataclass(frozen=True, eq=False)
class Beginning:
    """The model before the first step, as the coordinator knows it."""

    head: Head
    embedding: Array
    """E = Σ A_i h_i (N, P), or (N, d_c) without a linear head."""
    scores: Array
    """H (N, d_c)"""
    penalty: float
    """Of blocks and head."""

    @property
    def intercept(self) -> Array:
        """(d_c,)"""
        return self.head.intercept


def cold(problem: Problem) -> Beginning:
    """E = 0, and the best constant score; W₀ as it starts, where there is one."""
    intercept = np.array(problem.loss.initial_intercept(problem.targets, problem.shares))
    head = Head(intercept)
    if problem.linear_head:
        head = first_head(intercept, problem.embedding, problem.seed)
        if problem.head is not None:
            head = Head(intercept, np.array(problem.head, np.float64))
    embedding = np.zeros((problem.mapping.total, problem.embedding))
    return Beginning(head, embedding, head.scores(embedding), head.penalty(problem.l2))


def beginning(problem: Problem, conversation: Conversation) -> Beginning:
    """After `Start`. In a warm run, and of towers, one exchange: the clients predict with the
    blocks they hold.

    In a warm run the intercept is the one that is best for these predictions: it takes up what
    differs between the rows of the old model and the new ones, whose encoded columns have other
    centres. Of new towers it is the best constant: the slope of the loss by a better one would be
    rounding, which Adam would make a step of full length.
    """
    start = cold(problem)
    if not problem.warm and not problem.hidden:
        return start
    replies = conversation.predictions()
    embedding = conversation.whole.gather(replies)
    scores = start.head.scores(embedding)
    penalty = float(conversation.products(replies).sum()) + start.penalty
    if not problem.warm:
        return Beginning(start.head, embedding, scores, penalty)
    moved = best_constants(problem, scores)
    return Beginning(start.head.shifted(moved), embedding, scores + moved, penalty)


def best_constants(problem: Problem, scores: Array) -> Array:
    """What to add to all scores (N, d_c) for the least mean loss: (d_c,)."""
    return exact_search(_Constants(problem, scores))


class _Constants:
    """The mean loss as a function of what is added to all scores."""

    def __init__(self, problem: Problem, scores: Array) -> None:
        self._problem = problem
        self._scores = scores
        self.size = problem.outputs
        self.quadratic = problem.loss.quadratic

    def at(self, steps: Array, *, bend: bool = True) -> tuple[float, Array, Array]:
        return mean_along(self._problem, self._scores, self._no_directions, steps, bend=bend)

    def _no_directions(self, rows: slice) -> Array:
        return np.zeros((0, self._problem.outputs, rows.stop - rows.start))
