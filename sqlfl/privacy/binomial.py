"""Draws of embeddings: bins, θ and the noise of gradients beside them, by what PRIVACY asks for.

A row of slot i is drawn of for each joined row that it is in, once an epoch: of P numbers each
time. These are P · draws releases of the Poisson binomial mechanism, composed exactly. Only with
clipped and noised gradients is that all: see docs/privacy-reference.md. All slots' draws are
summed, so that bins and θ are the same for all: the slot decides that needs most. What the others
do not use up of the budget their gradients have.

`choose` finds bins and θ for a budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sqlfl.base.errors import InternalError, PrivacyError
from sqlfl.contract.privacy_specification import MAX_THETA, PlannedReleases
from sqlfl.options.privacy import Privacy
from sqlfl.privacy.accountant import epsilon_of
from sqlfl.privacy.events import EMBEDDINGS, GRADIENTS, Event, Gaussian, PoissonBinomial
from sqlfl.privacy.limits import MAX_MULTIPLIER
from sqlfl.privacy.poisson_binomial.loss import MAX_COINS
from sqlfl.privacy.poisson_binomial.sampling import check

USED = 0.99
"""Share of ε from which a budget counts as used up."""
PRECISION = 1e-4
"""Relative precision of z."""


@dataclass(frozen=True)
class Drawing:
    """The draws of all slots, and the noise of their gradients."""

    bins: int
    theta: float
    multipliers: Mapping[int, float]
    """Slot -> z: the noise of a gradient sum over its clip; 0: gradients are exact."""

    def events(self, planned: PlannedReleases) -> tuple[Event, ...]:
        """Return the releases that a row of the slot takes part in."""
        return (
            *_noised(planned, self.multipliers[planned.slot]),
            draws_of(planned, self.bins, self.theta),
        )


def drawing_of(
    privacy: Privacy, slots: Sequence[PlannedReleases], beside: Sequence[Event], rest: float
) -> Drawing:
    """Choose the draws; with epsilon, no slot's ε is above it.

    beside : other releases of a row, such as statistics; rest : μ² that remains after them, with
    epsilon. Raise PrivacyError if a budget cannot be met.
    """
    z = privacy.noise_multiplier
    if privacy.epsilon is None:
        if privacy.bins is None or privacy.theta is None:
            raise InternalError(f"draws of bins = {privacy.bins}, theta = {privacy.theta}")
        return Drawing(privacy.bins, privacy.theta, {planned.slot: z or 0.0 for planned in slots})
    budget = _Budget(privacy, privacy.epsilon, tuple(beside), rest)
    bins, theta = budget.common(slots)
    return Drawing(bins, theta, budget.multipliers(slots, bins, theta))


def draws_of(planned: PlannedReleases, bins: int, theta: float) -> PoissonBinomial:
    """Return the draws of a row of the slot, with as many honest slots as the account can count."""
    honest = max(min(planned.honest, MAX_COINS // bins), 1)
    return PoissonBinomial(EMBEDDINGS, bins, theta, honest, planned.draws * planned.outputs)


def of_joined_row(slots: Sequence[PlannedReleases], bins: int, theta: float) -> PoissonBinomial:
    """Return the draws for a change of all rows of one joined row, one of each slot. Each sum with
    one of them moves by at most all slots' draws, whoever colludes.
    """
    epochs = slots[0].epochs
    joined = epochs + sum(planned.draws - epochs for planned in slots)
    size = len(slots)
    return PoissonBinomial(EMBEDDINGS, bins, theta, size, joined * slots[0].outputs, size)


def joined_row_epsilon(
    slots: Mapping[int, PlannedReleases], events: Mapping[int, Sequence[Event]], delta: float
) -> float:
    """Return ε for a change of all rows of one joined row: of all their releases, with draws as in
    `of_joined_row`. Infinite if thresholds of the slots take all of delta.
    """
    every = [event for releases in events.values() for event in releases]
    draws = next(event for event in every if isinstance(event, PoissonBinomial))
    whole = of_joined_row(tuple(slots.values()), draws.bins, draws.theta)
    return epsilon_of([*(e for e in every if not isinstance(e, PoissonBinomial)), whole], delta)


def _noised(planned: PlannedReleases, z: float) -> tuple[Event, ...]:
    return (Gaussian(GRADIENTS, z / 2.0, planned.gradients),) if z else ()


@dataclass(frozen=True)
class _Budget:
    """The budget that draws and gradients of a row share."""

    privacy: Privacy
    epsilon: float
    beside: tuple[Event, ...]
    rest: float

    def common(self, slots: Sequence[PlannedReleases]) -> tuple[int, float]:
        """Bins and θ that every slot can afford beside its share of the gradients."""
        asked = self.privacy
        if asked.bins is not None and asked.theta is not None:
            return asked.bins, asked.theta
        first, *others = sorted(
            slots, key=lambda planned: planned.honest / (planned.draws * planned.outputs)
        )
        chosen_draws = self._chosen(first)
        for planned in others:
            draws = draws_of(planned, chosen_draws.bins, chosen_draws.theta)
            if self._excess(planned, draws, self._shared(planned)) > 0.0:
                chosen_draws = self._chosen(planned)
        return chosen_draws.bins, chosen_draws.theta

    def multipliers(
        self, slots: Sequence[PlannedReleases], bins: int, theta: float
    ) -> dict[int, float]:
        """Slot -> z."""
        known: dict[tuple[int, PoissonBinomial], float] = {}
        multipliers = {}
        for planned in slots:
            draws = draws_of(planned, bins, theta)
            like = planned.gradients, draws
            if like not in known:
                known[like] = self._multiplier(planned, draws)
            multipliers[planned.slot] = known[like]
        return multipliers

    def _shared(self, planned: PlannedReleases) -> float:
        """z by the share of μ² that draws leave."""
        share = 1.0 - self.privacy.prediction_share
        return 2.0 * math.sqrt(planned.gradients / (self.rest * share))

    def _chosen(self, planned: PlannedReleases) -> PoissonBinomial:
        asked, count = self.privacy, planned.draws * planned.outputs
        beside = (*self.beside, *_noised(planned, self._shared(planned)))
        if asked.theta is not None:
            return choose_bins(
                self.epsilon, asked.delta, theta=asked.theta, count=count, honest=planned.honest,
                beside=beside,
            )  # fmt: skip
        return choose(
            self.epsilon, asked.delta, count=count, honest=planned.honest, bins=asked.bins,
            beside=beside,
        )  # fmt: skip

    def _multiplier(self, planned: PlannedReleases, draws: PoissonBinomial) -> float:
        """Return z with which the slot uses epsilon up and does not exceed it; the share's z if
        that does so already.
        """
        from scipy.optimize import brentq  # half a second, which most processes can do without

        usual, excess = self._shared(planned), partial(self._excess, planned, draws)
        if math.sqrt(USED) - 1.0 < excess(usual) / math.sqrt(self.epsilon) <= 0.0:
            return usual
        if excess(MAX_MULTIPLIER) > 0.0:
            raise _beyond(self.privacy, draws, (*self.beside, draws))
        least = 2.0 * math.sqrt(planned.gradients / self.rest)
        if excess(least) <= 0.0:
            return least
        z: float = brentq(excess, least, MAX_MULTIPLIER, rtol=PRECISION, xtol=PRECISION * least)
        while excess(z) > 0.0:
            z = min(z * (1.0 + PRECISION), MAX_MULTIPLIER)
        return z

    def _excess(self, planned: PlannedReleases, draws: PoissonBinomial, z: float) -> float:
        """Return the excess, between square roots of ε: they grow about as 1/z."""
        events = (*self.beside, *_noised(planned, z), draws)
        return math.sqrt(epsilon_of(events, self.privacy.delta)) - math.sqrt(self.epsilon)


def _beyond(privacy: Privacy, draws: PoissonBinomial, events: Sequence[Event]) -> PrivacyError:
    assert privacy.epsilon is not None
    alone = epsilon_of(events, privacy.delta)
    told = f"leave ε = {alone:.4g} already" if alone > privacy.epsilon else (
        f"leave gradients noise of more than {MAX_MULTIPLIER:g} times their clip"
    )  # fmt: skip
    return PrivacyError(
        f"PRIVACY epsilon = {privacy.epsilon:g}, delta = {privacy.delta:g}: bins = {draws.bins} "
        f"and theta = {draws.theta:g} {told}; {draws.count} draws are of one row",
        hint="give a larger epsilon, a smaller theta or none, fewer bins or none, fewer epochs, a "
        "smaller embedding or more honest_parties",
    )


BINS = (16, 32, 64, 128)
"""Candidates if bins are not given."""
MAX_NOISE = 1000.0
"""Maximum standard deviation of an estimate relative to the number's bound, with one slot. A run
with more is refused, because it would learn nothing.
"""


def choose(
    epsilon: float,
    delta: float,
    *,
    count: int,
    honest: int,
    bins: int | None = None,
    moved: int = 1,
    beside: Sequence[Event] = (),
) -> PoissonBinomial:
    """Return the draws with which draws and `beside` together have at most epsilon at delta.

    θ is as large as the budget allows, up to MAX_THETA. The variance of an estimate depends almost
    only on bins·θ², and so does ε. If bins are not given, the smallest of BINS that uses up the
    budget is taken: it makes the shortest messages. `count`, `honest` and `moved` are as in
    `PoissonBinomial`. Raise PrivacyError for more noise than MAX_NOISE.
    """
    largest = PoissonBinomial(EMBEDDINGS, 0, MAX_THETA, honest, count, moved)
    for candidate in (bins,) if bins is not None else BINS:
        check(candidate, MAX_THETA)
        largest = replace(largest, bins=candidate)
        if _excess(largest, beside, epsilon, delta, MAX_THETA) > 0.0:
            return _fitted(largest, beside, epsilon, delta)
    return largest


def choose_bins(
    epsilon: float,
    delta: float,
    *,
    theta: float,
    count: int,
    honest: int,
    beside: Sequence[Event] = (),
) -> PoissonBinomial:
    """The same where θ is given: of as many bins as the budget allows, up to the most of BINS.

    Raise PrivacyError where not even one may be.
    """
    check(1, theta)

    def excess(bins: int) -> float:
        return _excess(
            PoissonBinomial(EMBEDDINGS, bins, theta, honest, count), beside, epsilon, delta, theta
        )

    fits, most = 0, BINS[-1]
    while fits < most:
        middle = (fits + most + 1) // 2
        fits, most = (middle, most) if excess(middle) <= 0.0 else (fits, middle - 1)
    if not fits:
        raise PrivacyError(
            f"PRIVACY epsilon = {epsilon:g}, delta = {delta:g}: theta = {theta:g} is too much even "
            f"for bins = 1; {count} draws are of one row, and of each sum {honest} count as secret",
            hint="give a larger epsilon, a smaller theta or none, fewer epochs, a smaller "
            "embedding or more honest_parties",
        )
    return PoissonBinomial(EMBEDDINGS, fits, theta, honest, count)


def _fitted(
    largest: PoissonBinomial, beside: Sequence[Event], epsilon: float, delta: float
) -> PoissonBinomial:
    from scipy.optimize import brentq  # half a second, which most processes can do without

    excess = partial(_excess, largest, beside, epsilon, delta)
    least = 0.5 / (MAX_NOISE * math.sqrt(largest.bins))
    if excess(least) > 0.0:
        raise PrivacyError(
            f"PRIVACY epsilon = {epsilon:g}, delta = {delta:g}: theta of the draws would be less "
            f"than {least:.2g}, with bins = {largest.bins}; {largest.count} draws are of one row, "
            f"and of each sum {largest.honest} count as secret",
            hint="give a larger epsilon, fewer epochs, a smaller embedding or more honest_parties",
        )
    theta: float = brentq(excess, least, MAX_THETA, rtol=PRECISION, xtol=PRECISION * least)
    while excess(theta) > 0.0:
        theta = max(theta * (1.0 - PRECISION), least)
    return replace(largest, theta=theta)


def _excess(
    largest: PoissonBinomial, beside: Sequence[Event], epsilon: float, delta: float, theta: float
) -> float:
    """Return the excess, between square roots of ε, to which θ is about proportional."""
    reached = epsilon_of((*beside, replace(largest, theta=theta)), delta)
    return math.sqrt(reached) - math.sqrt(epsilon)
