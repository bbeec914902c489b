"""Why training ended, and what is known then of how far the model is from the best one."""

from __future__ import annotations

import math
from dataclasses import dataclass

CERTAIN = 1e-6
"""Relative gap that must be proved at least, before a method may say that it has converged; with a
larger `tolerance` that."""


@dataclass(frozen=True)
class Ending:
    """How a run has ended."""

    converged: bool
    """The gradient bounds the objective as close to its minimum as was asked for."""
    short: str
    """In a word or two."""
    reason: str
    """A sentence."""
    gradient: float | None = None
    """‖∂objective/∂θ‖ over all blocks, at the parameters that the clients hold and the intercept
    that is best for them; None where nobody has measured it."""
    gap: float | None = None
    """By how much the objective can be above its minimum, relatively; None where nothing is known
    of it."""

    @property
    def answer(self) -> str:
        """'yes', 'no', or 'unknown' where nobody has measured gradient or duality gap."""
        if self.converged:
            return "yes"
        return "unknown" if self.gradient is None and self.gap is None else "no"


def converged(gradient: float, gap: float, *, proved: bool) -> Ending:
    """proved: by l2, whatever the columns are; else it rests on what was seen of them."""
    reason = f"the gradient proves the objective within {gap:.1e} of its minimum, relatively"
    if not proved:
        reason = (
            f"by its gradient the objective is within {gap:.1e} of its minimum, relatively, if no "
            "sums of different tables' columns are closer to each other than was seen"
        )
    return Ending(True, "converged", reason, gradient, gap)


def unproven(short: str, why: str, gradient: float, gap: float) -> Ending:
    """`why`: what ended the run instead."""
    if math.isinf(gap):
        return Ending(False, short, f"{why}; the gradient bounds no gap", gradient)
    reason = f"{why}; the gradient proves no more than a gap of {gap:.1e}, relatively"
    return Ending(False, short, reason, gradient, gap)


def separable(gradient: float) -> Ending:
    reason = (
        "the scores tell the classes apart without an error, so that without l2 the loss has no "
        "minimum: it falls as long as the weights grow"
    )
    return Ending(False, "separable classes", reason, gradient)


def bounded(gap: float) -> Ending:
    """By the duality gap, relatively."""
    reason = f"the duality gap proves the objective within {gap:.1e} of its minimum, relatively"
    return Ending(True, "converged", reason, None, gap)


def unbounded(short: str, why: str, gap: float) -> Ending:
    """`why`: what ended the run before the duality gap was small enough."""
    reason = f"{why}; the duality gap proves no more than {gap:.1e}, relatively"
    return Ending(False, short, reason, None, gap)


def kept_earlier(ending: Ending, epoch: int) -> Ending:
    """The run's `ending`, where the model is that of an earlier epoch: nobody has measured it."""
    more = f"in the end {ending.reason}; but the parameters are those of epoch {epoch}, of which "
    return Ending(False, ending.short, more + "nothing is proved")


def untold(short: str, why: str) -> Ending:
    """Nobody measures the gradient."""
    return Ending(False, short, why)


def so_far(epoch: int) -> Ending:
    """Of a checkpoint."""
    return Ending(False, "not at its end", f"this is a checkpoint, of epoch {epoch}")


LIMIT = "stopped at the limit of epochs"
LIMIT_REASON = "the epochs are used up"
ROUNDING = "stopped by rounding"
ROUNDING_REASON = "rounding of the numbers leaves no descent"
STILL = "the objective no longer changes"
STILL_REASON = "an epoch changes the objective by no more than the tolerance"
NOT_ASKED = "a fit that is compared with others is not examined further"
EARLY = "stopped early"
EARLY_REASON = "patience ended the training: valid_loss no longer fell"
INTERRUPTED = "interrupted"
INTERRUPTED_REASON = "the training was interrupted"
PRIVATE = "not told: the norm of the gradient would be an exact function of protected rows"
TOWERS = "nothing proves a minimum of the loss of towers"
BEFORE = "as an earlier sqlfl had it, which did not measure the gradient"
