"""Choices of columns and their sketches: the noise of both, by what PRIVACY asks for.

The unit is a change of the features of one row of slot i, the join graph fixed. What a client is
told in a round is worked out from choices and sketches that were released before, and from labels:
the row acts through its own client's releases alone, in every choice and once in each column told.
It moves a column's score Σ_r x_r v_r by at most max|x − x'| max|v_r|, |v_r| ≤ cnt_r R/N, and a
column's sketch Σ_r x_r S_r by at most max|x − x'| max‖S_r‖, S_r = Σ_{j ∈ G(r)} J_·j. A client works
both out from the join and J, and adds noise relative to them (sqlfl.methods.frank_wolfe.operator).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sqlfl.base.errors import InternalError
from sqlfl.contract.privacy_specification import PlannedReleases, RoundNoise
from sqlfl.options.privacy import Privacy
from sqlfl.privacy.accountant import epsilon_of
from sqlfl.privacy.events import CHOICES, COLUMNS, Event, Gaussian, Selection
from sqlfl.privacy.limits import check_noise
from sqlfl.privacy.selection import GUMBEL

WIDEST = 64.0
"""Maximum factor by which noise may be smaller than from shares of μ²."""
PRECISION = 1e-4


@dataclass(frozen=True)
class Choosing:
    """The noise of choices and sketches of one slot."""

    epsilon: float
    """ε₀ of a choice."""
    multiplier: float
    """Standard deviation of a sketch's noise over its sensitivity."""

    def events(self, planned: PlannedReleases, mechanism: str) -> tuple[Event, ...]:
        return (
            Selection(CHOICES, mechanism, self.epsilon, planned.selections),
            Gaussian(COLUMNS, self.multiplier, planned.sketches),
        )

    def rounds(self, privacy: Privacy, planned: PlannedReleases, slack: float) -> RoundNoise:
        """Return the noise of each client, enlarged by `slack`, relatively."""
        if privacy.feature_bound is None:
            raise InternalError("columns without a bound")
        return RoundNoise(
            clip=0.0,
            noise=0.0,
            mechanism=privacy.mechanism,
            selection_noise=2.0 / self.epsilon * (1.0 + slack),
            column_bound=privacy.feature_bound,
            residual_bound=planned.residual_bound,
            sketch_noise=self.multiplier * (1.0 + slack),
        )


def choosing_of(
    privacy: Privacy, planned: PlannedReleases, beside: Sequence[Event], rest: float
) -> Choosing:
    """Choose the noise with which the slot's ε is at most the one asked for.

    beside : other releases of a row, such as statistics; rest : μ² that remains after them. Choices
    take their share of it as zCDP, ρ = μ²/2. Then both kinds of noise shrink alike as far as ε
    allows. Raises PrivacyError for too much noise.
    """
    from scipy.optimize import brentq  # half a second, which most processes can do without

    if privacy.epsilon is None:
        raise InternalError("columns are chosen by a budget")
    share, mechanism = privacy.prediction_share, privacy.mechanism
    parts = 8.0 if mechanism == GUMBEL else 2.0
    alone = math.sqrt(parts * rest * (1.0 - share) / (2.0 * planned.selections))
    noise = math.sqrt(planned.sketches / (rest * share))

    # a hopeless budget is refused before its tiny ε is computed
    check_noise(privacy, CHOICES, 1.0 / alone, planned, planned.selections)
    check_noise(privacy, COLUMNS, 0.5 * noise, planned, planned.sketches)

    def scaled(by: float) -> Choosing:
        return Choosing(alone * by, noise / by)

    def excess(by: float) -> float:
        events = (*beside, *scaled(by).events(planned, mechanism))
        return math.sqrt(epsilon_of(events, privacy.delta)) - math.sqrt(privacy.epsilon or 0.0)

    low = 1.0
    while excess(low) > 0.0:
        # the budget needs more noise than this
        check_noise(privacy, CHOICES, 2.0 / scaled(low).epsilon, planned, planned.selections)
        check_noise(privacy, COLUMNS, scaled(low).multiplier, planned, planned.sketches)
        low /= 2.0
    high = 2.0 * low
    while excess(high) <= 0.0 and high < WIDEST:
        high *= 2.0
    best = high if excess(high) <= 0.0 else float(brentq(excess, low, high, rtol=PRECISION))
    while excess(best) > 0.0:
        best *= 1.0 - PRECISION
    choosing = scaled(best)
    check_noise(privacy, CHOICES, 2.0 / choosing.epsilon, planned, planned.selections)
    check_noise(privacy, COLUMNS, choosing.multiplier, planned, planned.sketches)
    return choosing
