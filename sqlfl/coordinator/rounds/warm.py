"""Start of training: at 0, at the first parameters of towers, or at an existing model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.coordinator.rounds.chunk import Scores, by_output
from sqlfl.coordinator.rounds.conversation import Conversation
from sqlfl.coordinator.rounds.passes import PassResult
from sqlfl.coordinator.rounds.problem import Problem
from sqlfl.coordinator.rounds.search import exact_search
from sqlfl.models.head import Head, first_head

KEPT = 2
"""Pass results that a search for constants keeps beside the last one, as it may need them again."""


@dataclass(frozen=True, eq=False)
class Beginning:
    """The coordinator's view of the model before the first step."""

    head: Head
    blocks: tuple[Array, ...]
    """h_i of every slot (n_i, P), as the messages have it; () if E = Σ A_i h_i is 0."""
    scores: Scores
    penalty: float
    """Penalty of blocks and head."""

    @property
    def intercept(self) -> Array:
        """Return the intercept (d_c,)."""
        return self.head.intercept


def cold(problem: Problem) -> Beginning:
    """Return the start of training from nothing: E = 0 and the best constant score, and W₀ as it
    starts if there is one."""
    intercept = best_constant(problem)
    head = Head(intercept)
    if problem.linear_head:
        head = first_head(intercept, problem.embedding, problem.seed)
        if problem.head is not None:
            head = Head(intercept, np.array(problem.head, np.float64))
    return Beginning(head, (), at_zero(problem, head), head.penalty(problem.l2))


def best_constant(problem: Problem) -> Array:
    """Return the best score (d_c,) of a model of a constant alone, beside the offset."""
    constant = np.array(problem.loss.initial_intercept(problem.targets, problem.shares), np.float64)
    if problem.offset is None:
        return constant
    least, most = problem.offset.values.min(), problem.offset.values.max()
    # no score of a row is above what it would be without the offset
    constant -= most
    if least == most:
        return constant
    return constant + levelled(problem, Scores((), constant)).moved


def at_zero(problem: Problem, head: Head) -> Scores:
    """Return the scores if all blocks predict 0."""
    zeros = tuple(np.zeros((problem.outputs, size)) for size in problem.mapping.sizes)
    return Scores(zeros, np.array(head.intercept))


def beginning(problem: Problem, conversation: Conversation) -> Beginning:
    """Return the model before the first step, after `Start`.

    In a warm run, and with towers, this takes one exchange: the clients predict with the blocks
    that they hold.

    In a warm run the intercept is the best one for these predictions. It absorbs the difference
    between the old model's rows and the new ones, whose encoded columns have other centres.

    With new towers the intercept is the best constant. A better constant would leave a slope of
    rounding size, which Adam would turn into a step of full length.
    """
    start = cold(problem)
    if not problem.warm and problem.tower is None:
        return start
    replies = conversation.predictions()
    blocks = tuple(conversation.whole.concatenate(replies))
    scores = Scores(by_output(blocks, start.head.weights), start.intercept)
    penalty = float(conversation.products(replies).sum()) + start.penalty
    if not problem.warm:
        return Beginning(start.head, blocks, scores, penalty)
    best = levelled(problem, scores)
    return Beginning(start.head.shifted(best.moved), blocks, best.scores, penalty)


@dataclass(frozen=True, eq=False)
class Levelled:
    """Scores with the best constants added."""

    before: float
    """Mean loss without the constants."""
    moved: Array
    """Constants that are added to all scores: (d_c,)"""
    scores: Scores
    look: PassResult


def levelled(problem: Problem, scores: Scores) -> Levelled:
    """Return `scores` with the constants added that give the least mean loss."""
    function = _Constants(problem, scores)
    before = function.look(np.zeros(problem.outputs)).value
    moved = exact_search(function)
    return Levelled(before, moved, scores.shifted(moved), function.look(moved))


class _Constants:
    """Mean loss as a function of the constants added to all scores."""

    def __init__(self, problem: Problem, scores: Scores) -> None:
        self._passes = problem.passes
        self._scores = scores
        self._looks: dict[bytes, PassResult] = {}
        self.size = problem.outputs
        self.quadratic = problem.loss.quadratic

    def look(self, steps: Array) -> PassResult:
        key = steps.tobytes()
        if key not in self._looks:
            if len(self._looks) > KEPT:
                del self._looks[list(self._looks)[1]]  # the first one belongs to the start
            self._looks[key] = self._passes.look(self._scores.shifted(steps))
        return self._looks[key]

    def at(self, steps: Array) -> tuple[float, Array]:
        result = self.look(steps)
        return result.value, result.total / self._passes.total

    def bend(self, steps: Array, *, roughly: bool) -> Array:
        return self._passes.curvatures(self._scores.shifted(steps), (), sampled=roughly)
