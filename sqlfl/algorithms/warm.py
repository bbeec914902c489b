"""Where training starts: at 0, or at the blocks of a model that the clients hold already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sqlfl.algorithms.base import Conversation, Problem
from sqlfl.algorithms.subspace import exact_search, mean_along

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Beginning:
    """The model before the first step, as the coordinator knows it."""

    intercept: Array
    """(d_c,)"""
    scores: Array
    """H (N, d_c)"""
    penalty: float


def cold(problem: Problem) -> Beginning:
    """θ = 0, and the best constant score."""
    intercept = np.array(problem.loss.initial_intercept(problem.targets, problem.shares))
    return Beginning(intercept, np.tile(intercept, (problem.mapping.total, 1)), 0.0)


def beginning(problem: Problem, conversation: Conversation) -> Beginning:
    """After `Start`. In a warm run one exchange: the clients predict with the blocks they hold.

    The intercept is the one that is best for these predictions: it takes up what differs between
    the rows of the old model and the new ones, whose encoded columns have other centres.
    """
    start = cold(problem)
    if not problem.warm:
        return start
    replies = conversation.predictions()
    scores = conversation.whole.gather(replies) + start.intercept
    moved = exact_search(_Constants(problem, scores))
    penalty = float(conversation.products(replies).sum())
    return Beginning(start.intercept + moved, scores + moved, penalty)


class _Constants:
    """The mean loss as a function of what is added to all scores."""

    def __init__(self, problem: Problem, scores: Array) -> None:
        self._problem = problem
        self._scores = scores
        self.size = problem.outputs

    def at(self, steps: Array) -> tuple[float, Array, Array]:
        return mean_along(self._problem, self._scores, self._no_directions, steps)

    def _no_directions(self, rows: slice) -> Array:
        return np.zeros((0, rows.stop - rows.start, self._problem.outputs))
