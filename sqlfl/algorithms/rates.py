"""Step lengths of gradient descent: given, usual, or from the curvature; their schedules."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sqlfl.algorithms.base import Conversation, Problem
from sqlfl.algorithms.lanczos import largest_eigenvalue
from sqlfl.errors import InternalError
from sqlfl.options import LEARNING_RATE

PROBES = 8
"""Power rounds for the step size, where `learning_rate` is not given."""
MARGIN = 1.02


@dataclass(frozen=True)
class Rates:
    """Step lengths before the schedule."""

    blocks: float
    head: float
    """Of the intercept, and of a linear head."""


def usual_rates(problem: Problem) -> Rates | None:
    """`learning_rate`; without it LEARNING_RATE for Adam and for towers, None for what is to be
    estimated."""
    rate = problem.number("learning_rate", 0.0)
    if not rate > 0.0 and (problem.hidden or problem.optimizer == "adam"):
        rate = LEARNING_RATE
    return Rates(rate, rate) if rate > 0.0 else None


def estimated_rates(
    problem: Problem,
    conversation: Conversation,
    generator: np.random.Generator,
    counting: float | None,
) -> Rates:
    """From power rounds, for linear blocks; `counting`: rows of a batch that count, None for all.

    With L = curvature · λ_max(X̃ᵀX̃/N) + l2, and for batches of B rows curvature · tr(X̃ᵀX̃/N)/B more:

    plain      1/L.
    momentum   all rows min(1, 2(1 − μ))/L, up to which the heavy ball converges on any convex
               function (Ghadimi, Feyzmahdavian and Johansson, 2015); batches (1 − μ)/L, whose
               steps add up to those of 1/L.

    The intercept is orthogonal to the centred columns: with all rows it has the same formula with
    the loss's curvature for L.
    """
    total, curvature = problem.mapping.total, problem.loss.curvature
    top, trace = largest_eigenvalue(conversation.probe, total, PROBES, generator, problem.shares)
    smoothness = curvature * MARGIN * top + problem.l2
    if counting is not None:
        smoothness = max(smoothness + curvature * trace / counting, curvature)
        rate = (1.0 - problem.momentum if problem.optimizer == "momentum" else 1.0) / smoothness
        return Rates(rate, rate)
    factor = 1.0
    if problem.optimizer == "momentum":
        factor = min(1.0, 2.0 * (1.0 - problem.momentum))
    return Rates(factor / max(smoothness, 1e-12), factor / curvature)


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
