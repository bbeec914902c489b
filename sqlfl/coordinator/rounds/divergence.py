"""Checks whether training diverges. The model of a divergent run is not kept."""

from __future__ import annotations

import numpy as np

from sqlfl.base.errors import ModelError
from sqlfl.coordinator.rounds.problem import Problem
from sqlfl.coordinator.rounds.scores import Scores
from sqlfl.coordinator.rounds.warm import best_constant
from sqlfl.models.targets import MAX_SCORE

MAX_SCORE_RATIO = 1e12
"""Limit of scores as a multiple of the largest target, or of 1 if that is more."""
GROWTH = 1e6
"""Maximum ratio of the objective to the objective before the first step, or to 1 if that is more.
"""
WORSE = 2.0
"""By how much the objective of a model that is kept may exceed that of where training began, or of
the best constant; the loss's `slack` comes on top."""
NEARLY = 1e-3
"""Share by which it may exceed that unsaid."""


def check_scores(
    problem: Problem,
    largest: float,
    highest: float,
    what: str,
    hint: str,
    stretch: float = 1.0,
) -> None:
    """Raise ModelError if scores of rows that count are NaN or far beyond all targets.

    largest, highest: their largest absolute value and their largest value. what: the part that
    diverges, as in 'the steps'.

    Scores that the noise of private predictions explains raise nothing; `stretch` is the largest
    ‖∂H/∂E‖². Nothing is raised if the problem is `parameters_only`: clipped gradients bound the
    steps there.
    """
    if problem.parameters_only:
        return
    reach = max(problem.reach, problem.noise * float(np.sqrt(stretch)))
    most = min(MAX_SCORE_RATIO * reach, MAX_SCORE)
    for size, limit in ((largest, most), (highest, problem.loss.largest_score)):
        if not size < limit:
            raise ModelError(f"{what} diverge: scores exceed {limit:.3g}", hint=hint)


def check_objective(
    problem: Problem, objective: float, first: float, what: str, hint: str, stretch: float = 1.0
) -> None:
    """Raise ModelError if an epoch ends far above the start of training, or with NaN.

    Noise and `parameters_only` are treated as in `check_scores`.
    """
    if problem.parameters_only:
        return
    noise = 0.5 * problem.loss.curvature * problem.outputs * stretch * problem.noise**2
    if not objective < GROWTH * max(first, noise, 1.0):
        raise ModelError(
            f"{what} diverge: the objective was {first:.3g}, and is {objective:.3g}", hint=hint
        )


def check_kept(problem: Problem, objective: float, first: float, hint: str) -> str | None:
    """Raise ModelError where a model is worse than none: than the best constant, and than what
    training began with (`first`).

    Epochs in between may be as bad. Nothing is raised of protected features: what their noise does
    to a model is no divergence. Return a warning where the model is worse than none by less, and is
    no tower, whose first epochs may be.
    """
    if problem.privacy is not None:
        return None
    alone = problem.passes.value(Scores((), best_constant(problem)))
    if not objective <= WORSE * max(alone, first) + problem.loss.slack:
        raise ModelError(
            f"the steps diverge: the objective ended at {objective:.3g}, and the best constant has "
            f"{alone:.3g}",
            hint=hint,
        )
    if (
        problem.tower is None
        and objective > (1.0 + NEARLY) * max(alone, first) + problem.loss.slack
    ):
        return (
            f"the model is worse than none: the objective ended at {objective:.4g}, and the best "
            f"constant has {alone:.4g}. Take a larger batch_size, a smaller learning_rate, or "
            "algorithm = 'lbfgs'"
        )
    return None


def relative(change: float, objective: float, first: float) -> float:
    """Return `change` relative to the objective, or to 1e-12 of the first objective if the
    objective vanishes.
    """
    return float(change / scale_of(objective, first))


def scale_of(objective: float, first: float) -> float:
    """Return the scale for changes and gaps of the objective. `first` is the objective at the
    start.
    """
    return float(max(abs(objective), 1e-12 * abs(first), np.finfo(np.float64).tiny))
