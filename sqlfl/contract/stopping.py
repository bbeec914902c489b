"""Reasons why training ended, and bounds on how far the model then is from the best one.

Methods and `sqlfl.coordinator.training` decide that it ends: by a proof, the last epoch, patience
or an interrupt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

CERTAIN = 1e-6
"""Relative gap that a method must prove before it reports convergence; a larger `tolerance`
replaces it.
"""


@dataclass(frozen=True)
class Ending:
    """End of a run."""

    converged: bool
    """True if the gradient bounds the objective as close to its minimum as was asked."""
    short: str
    """A word or two."""
    reason: str
    """A sentence."""
    gradient: float | None = None
    """‖∂objective/∂θ‖ over all blocks, at the parameters that the clients hold and their best
    intercept; None if nobody has measured it.
    """
    gap: float | None = None
    """Relative bound of the objective minus its minimum; None if unknown."""

    @property
    def answer(self) -> str:
        """Return 'yes', 'no', or 'unknown' if nobody has measured gradient or duality gap."""
        if self.converged:
            return "yes"
        return "unknown" if self.gradient is None and self.gap is None else "no"


def converged(gradient: float, gap: float, *, proved: bool) -> Ending:
    """Return the ending of a converged run. proved: by l2, for any columns; otherwise it rests on a
    sample of them.
    """
    reason = f"the gradient proves the objective within {gap:.1e} of its minimum, relatively"
    if not proved:
        reason = (
            f"by its gradient the objective is within {gap:.1e} of its minimum, relatively, if no "
            "sums of different tables' columns are closer to each other than was seen"
        )
    return Ending(True, "converged", reason, gradient, gap)


def unproven(short: str, why: str, gradient: float, gap: float) -> Ending:
    """Return the ending of a run that another reason, `why`, has ended."""
    if math.isinf(gap):
        return Ending(False, short, f"{why}; the gradient bounds no gap", gradient)
    reason = f"{why}; the gradient proves no more than a gap of {gap:.1e}, relatively"
    return Ending(False, short, reason, gradient, gap)


def separable(gradient: float) -> Ending:
    reason = (
        "the scores tell the classes apart without an error, so that without l2 the loss has no "
        "minimum: it falls as long as the weights grow"
    )
    return Ending(False, SEPARABLE, reason, gradient)


def bounded(gap: float) -> Ending:
    """Return the ending of a run that converged by the relative duality gap."""
    reason = f"the duality gap proves the objective within {gap:.1e} of its minimum, relatively"
    return Ending(True, "converged", reason, None, gap)


def unbounded(short: str, why: str, gap: float) -> Ending:
    """Return the ending of a run that another reason, `why`, ended before the duality gap was small
    enough.
    """
    reason = f"{why}; the duality gap proves no more than {gap:.1e}, relatively"
    return Ending(False, short, reason, None, gap)


def kept_earlier(ending: Ending, epoch: int) -> Ending:
    """Return the run's `ending` for a model of an earlier epoch, whose gap nobody has measured."""
    more = f"in the end {ending.reason}; but the parameters are those of epoch {epoch}, of which "
    return Ending(False, ending.short, more + "nothing is proved")


def untold(short: str, why: str) -> Ending:
    """Return an ending without a measured gradient."""
    return Ending(False, short, why)


def so_far(epoch: int) -> Ending:
    """Return the ending of a checkpoint."""
    return Ending(False, "not at its end", f"this is a checkpoint, of epoch {epoch}")


SEPARABLE = "separable classes"
ENDLESS = (
    "the optimum is at infinity: some weights could grow for ever without a rise of the loss "
    "(separation), and their sizes say only where the training ended. With l2 above 0 there is an "
    "optimum"
)
"""Warning for a model without l2."""
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
