"""When training counts as divergent: a model of such steps is worth nothing, and is not kept."""

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


def check_scores(problem: Problem, scores: Array, what: str, hint: str) -> None:
    """Raise ModelError where scores (n, d_c) of rows that count are beyond all targets, or NaN.

    `what` diverges, as in 'the steps'.
    """
    limit = min(LARGEST * problem.reach, LARGEST_OF_ALL)
    if not np.abs(scores).max(initial=0.0) < limit:
        raise ModelError(f"{what} diverge: scores exceed {limit:.3g}", hint=hint)


def check_objective(objective: float, first: float, what: str, hint: str) -> None:
    """Raise ModelError where an epoch ends far above where training began, or with NaN."""
    if not objective < GROWTH * max(first, 1.0):
        raise ModelError(
            f"{what} diverge: the objective was {first:.3g}, and is {objective:.3g}", hint=hint
        )
