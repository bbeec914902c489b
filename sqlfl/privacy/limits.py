"""Limits of noise."""

from __future__ import annotations

from sqlfl.base.errors import PrivacyError
from sqlfl.contract.privacy_specification import PlannedReleases
from sqlfl.options.privacy import Privacy
from sqlfl.privacy import events as of

MAX_MULTIPLIER = 1000.0
"""Maximum noise relative to the values that it hides. A run with more is refused, because it would
learn nothing.
"""


def check_noise(
    privacy: Privacy,
    what: str,
    multiplier: float,
    planned: PlannedReleases | None = None,
    times: int = 0,
) -> None:
    """Raise PrivacyError for a multiplier above the limit; `times`: number of releases of `what`
    with a row of the slot.
    """
    if multiplier <= MAX_MULTIPLIER:
        return
    given = f"noise_multiplier = {privacy.noise_multiplier:g}" if privacy.noise_multiplier else ""
    if privacy.epsilon is not None:
        given = f"epsilon = {privacy.epsilon:g}, delta = {privacy.delta:g}"
    clipped = what in (of.GRADIENTS, of.PREDICTIONS)
    size = "they are clipped to" if clipped else "one row can change"
    where = ""
    hints = ["a smaller noise_multiplier" if privacy.epsilon is None else "a larger epsilon"]
    if planned is None:
        hints += ["a larger statistics_share", "feature_bounds, for statistics = 'bounds'"]
    else:
        where = f", where a row of table position {planned.slot + 1} takes part "
        where += "once" if times == 1 else f"{times} times"
        hints += ["fewer epochs"] if planned.steps > 1 else []
        if not privacy.together:
            where += f", and is in {planned.copies} joined row{'s' if planned.copies > 1 else ''}"
            hints += ["a smaller max_fan_out"] if planned.copies > 1 else []
            hints += ["predictions = 'gaussian'"]
    raise PrivacyError(
        f"PRIVACY {given}: the noise of the {what} would be {multiplier:.4g} times what {size}"
        f"{where}; {MAX_MULTIPLIER:g} times is the most",
        hint=f"give {', or '.join(hints)}",
    )
