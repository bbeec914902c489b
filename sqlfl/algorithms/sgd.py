"""Gradient descent over a join, on all joined rows or on mini-batches (eq. 6-8, 12-15, 19-21).

One exchange per batch: the aggregated residuals of the last batch go down with the rows of the next
one, whose predictions come back; only rows that occur in a batch travel. Around the end of an epoch
all active rows travel, so that its objective is exact: the exchange of its last batch asks for
predictions of all rows, and the residuals of the next epoch's first batch are sent for all rows
(zero for those outside the batch).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sqlfl.algorithms.base import (
    Channel,
    Conversation,
    Problem,
    Step,
    column_means,
    largest_eigenvalue,
    relative,
)
from sqlfl.algorithms.warm import beginning, cold
from sqlfl.errors import InternalError, ModelError
from sqlfl.operators.loj import JoinedRows, batch_of
from sqlfl.options import DECAY, EPOCHS, TOLERANCE

Array = npt.NDArray[Any]

PROBES = 8
"""Power rounds for the step size, where `learning_rate` is not given."""
MARGIN = 1.02
LARGEST = 1e12
"""Scores beyond which the steps count as divergent, well before float32 overflows."""


class Sgd:
    """Options: epochs, batch_size (all rows by default), learning_rate, schedule, decay, seed,
    tolerance.

    With `learning_rate` every step has that size, the intercept's too. Without it,
    L = curvature · λ_max(X̃ᵀX̃/N) + l2 is estimated by power rounds. All rows: η = 1/L, and the
    intercept, orthogonal to the centred columns, takes 1/curvature. Batches of B rows: L grows by
    curvature · tr(X̃ᵀX̃/N)/B, the noise of a batch's curvature, and unless there is a `schedule` η
    falls over the epochs as 1/(1 + (epoch − 1)/4), the intercept's too. Converged (all rows only):
    the objective fell by at most `tolerance` of itself. Raises ModelError where the steps diverge.

    Weights: batches are of rows that weigh something, and a batch's gradient is its weighted mean.
    B is then the rows of a batch that count, (Σ w)² / Σ w²: where weights differ by much, batches
    must be large, for the mean of weighted means is not the weighted mean.
    """

    def __init__(self, problem: Problem, channel: Channel) -> None:
        self._problem = problem
        self._conversation = Conversation(problem, channel)
        self._generator = np.random.default_rng(int(problem.number("seed", 0)))
        rows = problem.training
        self._rows = np.arange(problem.mapping.total) if rows is None else rows
        total = len(self._rows)
        self._batch = min(int(problem.number("batch_size", total)) or total, total)
        self._rate = self._intercept_rate = problem.number("learning_rate", 0.0)
        self._begin = cold(problem)
        self._intercept: Array = self._begin.intercept
        self._scores: Array = self._begin.scores
        self._schedule, self._decay = "constant", 0.0

    @property
    def intercept(self) -> Array:
        return self._intercept.copy()

    @property
    def scores(self) -> Array:
        return self._scores

    def start(self) -> None:
        """Start, the predictions of a warm start and, without `learning_rate`, the power rounds."""
        problem = self._problem
        self._conversation.start("sgd")
        if problem.warm:
            self._begin = beginning(problem, self._conversation)
            self._intercept, self._scores = self._begin.intercept, self._begin.scores
        some = self._batch < len(self._rows)
        usual = "inverse" if some and not self._rate > 0.0 else "constant"
        self._schedule = str(problem.options.get("schedule") or usual)
        self._decay = problem.number("decay", DECAY.get(self._schedule, 0.0))
        if self._rate > 0.0:
            return
        total, curvature = problem.mapping.total, problem.loss.curvature
        top, trace = largest_eigenvalue(
            self._conversation.probe, total, PROBES, self._generator, problem.shares
        )
        smoothness = curvature * MARGIN * top + problem.l2
        if some:
            smoothness = max(smoothness + curvature * trace / self._counting(), curvature)
            self._rate = self._intercept_rate = 1.0 / smoothness
        else:
            self._rate = 1.0 / max(smoothness, 1e-12)
            self._intercept_rate = 1.0 / curvature

    def _counting(self) -> float:
        """Rows of a batch that count, on average."""
        shares = self._problem.shares
        if shares is None:
            return self._batch
        counting = float(shares.sum()) ** 2 / float(shares @ shares)
        return max(1.0, self._batch * counting / len(self._rows))

    def steps(self) -> Iterator[Step]:
        problem = self._problem
        tolerance = problem.number("tolerance", TOLERANCE["sgd"])
        objective = first = problem.value(self._scores) + self._begin.penalty
        epochs = int(problem.number("epochs", EPOCHS["sgd"]))
        for epoch in range(1, epochs + 1):
            penalty = self._epoch(step_factor(self._schedule, self._decay, epoch, epochs))
            before = objective
            loss = problem.value(self._scores)
            objective = loss + penalty
            change = relative(before - objective, objective, first)
            converged = self._batch == len(self._rows) and 0.0 <= change <= tolerance
            yield Step(epoch, objective, loss, converged)
            if converged:
                return

    def _epoch(self, factor: float) -> float:
        """One pass over the joined rows; returns the penalty."""
        problem, whole = self._problem, self._conversation.whole
        total = problem.mapping.total
        rate, intercept_rate = factor * self._rate, factor * self._intercept_rate
        batches = [np.arange(total)]
        if self._batch < len(self._rows):
            order = self._rows[self._generator.permutation(len(self._rows))]
            batches = np.split(order, range(self._batch, len(order), self._batch))
        rows, scores = whole, self._scores[batches[0]]
        penalty = 0.0
        for number, joined in enumerate(batches):
            shares = None if problem.shares is None else problem.shares[joined]
            if shares is not None:
                shares = shares * (len(joined) / shares.sum())
            values = problem.loss.gradient(scores, problem.targets[joined], shares)
            self._intercept = self._intercept - intercept_rate * column_means(values)
            if len(values) < rows.total:
                values = _spread(values, joined, total)
            following = self._following(batches, number)
            replies = self._conversation.step(
                rows,
                values,
                np.array([rate, len(joined), float(following is whole)]),
                following,
            )
            rows, scores = following, following.gather(replies) + self._intercept
            counting = scores
            if following is whole and problem.training is not None:
                counting = scores[problem.training]
            if not np.abs(counting).max() < LARGEST:
                raise ModelError(
                    f"the steps diverge: scores exceed {LARGEST:g}",
                    hint="give a smaller learning_rate, or none, to have it estimated",
                )
            penalty = float(self._conversation.products(replies).sum())
        self._scores = scores
        return penalty

    def _following(self, batches: list[Array], number: int) -> JoinedRows:
        if number + 1 == len(batches):
            return self._conversation.whole
        return batch_of(self._conversation.whole, batches[number + 1])


def step_factor(schedule: str, decay: float, epoch: int, epochs: int) -> float:
    """By what `schedule` multiplies the step length in `epoch`, counted from 1, of `epochs`."""
    match schedule:
        case "constant":
            return 1.0
        case "inverse":
            return 1.0 / (1.0 + decay * (epoch - 1))
        case "exponential":
            return float(decay ** (epoch - 1))
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * (epoch - 1) / epochs))
    raise InternalError(f"there is no schedule {schedule!r}")


def _spread(values: Array, joined: Array, total: int) -> Array:
    spread = np.zeros((total, values.shape[1]))
    spread[joined] = values
    return spread
