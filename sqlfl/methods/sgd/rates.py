"""Step lengths of gradient descent: given, usual, public, or from the curvature; schedules."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.coordinator.rounds.conversation import Conversation
from sqlfl.coordinator.rounds.lanczos import spectrum
from sqlfl.coordinator.rounds.problem import Problem
from sqlfl.methods.sgd.options import LEARNING_RATE, SgdOptions

PROBES = 8
"""Power rounds for the step size, where `learning_rate` is not given."""
MARGIN = 1.02
NOISED_STEPS = 20.0
"""Total reach of steps where noise drowns predictions, in units of 1/L. More steps would only
enlarge the parameters.
"""


@dataclass(frozen=True)
class Rates:
    """Step lengths before the schedule."""

    blocks: float
    head: float
    """Rate of the intercept, and of a linear head."""
    factors: tuple[Array, ...] = ()
    """For each slot, (n_i, r): factors of its rows from the power rounds, where steps of batches
    could diverge; else empty.
    """


def usual_rates(problem: Problem) -> Rates | None:
    """`learning_rate`, or Adam's; None for what is to be estimated, or where features are
    protected public.

    A step of Adam is as long whatever the gradient. In the unit of the scores it is a hundredth of
    them: 0.01 itself, where targets are of thousandths, would make any model worse than none.
    """
    options = problem.options.of(SgdOptions)
    if options.estimated:
        return None
    rate = options.learning_rate
    if rate is None:
        rate = LEARNING_RATE * problem.loss.unit(problem.targets)
    return Rates(rate, rate)


def public_rates(problem: Problem, steps: int, *, held: bool = False) -> Rates:
    """Without a look at the rows, for linear blocks whose features are protected.

    Power rounds would be exact functions of the features. The trace of X̃ᵀX̃/N bounds λ_max, and is
    at most 1 for every numeric column, standardised or between −1 and 1, and for every category
    feature: a row has one category. Columns that are not centred are not orthogonal to the
    intercept, which is one more column of ones then. Clipping a row's gradient does not add
    curvature: along the row's own direction it cuts a slope that rises with the score, as Huber's
    loss does. A step 1/L with L = curvature · trace + l2 descends, and does so even where the trace
    is twice as large, as columns of missing indicators and noised scales may make it.

    With momentum as in `estimated_rates`.

    Where noise of more than 1 lies on the scores of a classifier, or of more than the targets'
    deviation on those of a regression, slopes hardly tell any more whether scores are large enough,
    and the parameters would grow with every one of the run's `steps`. Then all of them together go
    as far as `NOISED_STEPS` of 1/L; since noise grows with the root of the number of steps, their
    direction is as good for any number.

    held : the clients' own scores hold the parameters back, and the intercept makes no steps.
    """
    fresh, curvature = _fresh(problem), problem.loss.curvature
    factor = min(1.0, 2.0 * fresh)
    if not held and problem.noise > problem.loss.spread(problem.targets):
        reach = NOISED_STEPS * (fresh / factor)
        factor *= min(1.0, reach / steps)
    apart = problem.centred or held
    trace = max(problem.trace, 1.0) if apart else problem.trace + 1.0
    rate = factor / (curvature * trace + problem.l2)
    return Rates(rate, factor / curvature if apart else rate)


def estimated_rates(
    problem: Problem,
    conversation: Conversation,
    generator: np.random.Generator,
    counting: float | None,
) -> Rates:
    """Estimate rates from power rounds, for linear blocks. `counting`: rows of a batch that count,
    None for all.

    With L = curvature · λ_max(X̃ᵀX̃/N) + l2, and for batches of B rows curvature · tr(X̃ᵀX̃/N)/B more:

    plain      1/L.
    momentum   all rows min(1, 2(1 − μ))/L, up to which the heavy ball converges on any convex
               function (Ghadimi, Feyzmahdavian and Johansson, 2015); batches (1 − μ)/L, whose
               steps add up to those of 1/L.

    Batches have `factors` too, by which `reach` bounds the step of each. Of classes they need none:
    slopes are at most 1, and the curvature vanishes where a step has gone too far.

    The intercept is orthogonal to the centred columns: with all rows it has the same formula with
    the loss's curvature for L.
    """
    curvature = problem.loss.curvature
    powers = spectrum(conversation.probe, problem.passes, PROBES, generator, problem.shares)
    smoothness = curvature * MARGIN * powers.top + problem.l2
    if counting is not None:
        smoothness = max(smoothness + curvature * powers.trace / counting, curvature)
        rate = _fresh(problem) / smoothness
        runs_away = problem.loss.quadratic or not problem.loss.bounded
        return Rates(rate, rate, powers.factors if runs_away else ())
    factor = min(1.0, 2.0 * _fresh(problem))
    return Rates(factor / max(smoothness, 1e-12), factor / curvature)


def reach(problem: Problem, rates: Rates, rows: Array, shares: Array | None) -> float:
    """The longest step of a batch, by `rates.blocks`, at which its own loss falls.

    rows : (B, r) the batch's rows of Σ_i A_i F_i, F_i the `rates.factors`.
    shares : (B,) their weights, of mean 1 in the batch.

    A batch with a row that is far from the others has a curvature L_B of its own, however small it
    is over all rows, and a step of more than 2/L_B takes it away from its minimum. So no batch's
    step is to be longer than 1/L_B. The intercept is one more column, of ones.

    It is a lower bound of L_B where there are more columns than power rounds. Since steps fall with
    the epochs, in the end no batch counts for less than others.
    """
    whole = np.column_stack((rows * math.sqrt(problem.mapping.total), np.ones(len(rows))))
    weighted = whole if shares is None else whole * shares[:, None]
    curvature = float(np.linalg.eigvalsh(whole.T @ weighted / len(rows))[-1])
    longest = _fresh(problem) / (problem.loss.curvature * curvature + problem.l2)
    return longest / rates.blocks


def _fresh(problem: Problem) -> float:
    """Return 1 − μ, the share of a step that is new; 1 without momentum."""
    steps = problem.options.of(SgdOptions).steps
    return 1.0 - steps.momentum if steps.optimizer == "momentum" else 1.0


def step_factor(schedule: str, decay: float, epoch: int, epochs: int) -> float:
    """Return the factor of the step length in `epoch`, counted from 1, of `epochs`."""
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
