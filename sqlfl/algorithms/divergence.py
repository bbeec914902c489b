"""How far steps got; when training counts as divergent, so that its model is not kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sqlfl.algorithms.base import Problem
from sqlfl.errors import ModelError

Array = npt.NDArray[Any]

LARGEST = 1e12
"""Times the largest target, or 1: scores beyond it count as divergent."""
LARGEST_OF_ALL = 1e34
"""The same, whatever the target: sums of so large residuals still fit the float32 of messages."""
GROWTH = 1e6
"""By how much the objective may exceed that before the first step, or 1 where that is less."""


def check_scores(
    problem: Problem, scores: Array, what: str, hint: str, stretch: float = 1.0
) -> None:
    """Raise ModelError where scores (n, d_c) of rows that count are beyond all targets, or NaN.

    `what` diverges, as in 'the steps'. Scores that the noise of private predictions explains are
    none of that, `stretch` being the largest ‖∂H/∂E‖². Nothing is raised where the problem is
    `blind`: clipped gradients bound the steps there.
    """
    if problem.blind:
        return
    reach = max(problem.reach, problem.noise * float(np.sqrt(stretch)))
    limit = min(LARGEST * reach, LARGEST_OF_ALL)
    if not np.abs(scores).max(initial=0.0) < limit:
        raise ModelError(f"{what} diverge: scores exceed {limit:.3g}", hint=hint)


def check_objective(
    problem: Problem, objective: float, first: float, what: str, hint: str, stretch: float = 1.0
) -> None:
    """Raise ModelError where an epoch ends far above where training began, or with NaN.

    Noise and blindness as in `check_scores`.
    """
    if problem.blind:
        return
    noise = 0.5 * problem.loss.curvature * problem.outputs * stretch * problem.noise**2
    if not objective < GROWTH * max(first, noise, 1.0):
        raise ModelError(
            f"{what} diverge: the objective was {first:.3g}, and is {objective:.3g}", hint=hint
        )


def relative(change: float, objective: float, first: float) -> float:
    """`change` against the objective, or against 1e-12 of the first one where it vanishes."""
    scale = max(abs(objective), 1e-12 * abs(first), np.finfo(np.float64).tiny)
    return float(change / scale)


def column_means(values: Array) -> Array:
    """(N, d_c) -> (d_c,)"""
    means: Array = np.sum(values, axis=0) / len(values)
    return means
