"""Choice of bins and θ for a budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from sqlfl.base.errors import PrivacyError
from sqlfl.contract.privacy_specification import MAX_THETA
from sqlfl.privacy.accountant import epsilon_of
from sqlfl.privacy.events import EMBEDDINGS, Event, PoissonBinomial
from sqlfl.privacy.poisson_binomial.sampling import check

BINS = (16, 32, 64, 128)
"""Candidates if bins are not given."""
MAX_NOISE = 1000.0
"""Maximum standard deviation of an estimate relative to the number's bound, with one slot. A run
with more is refused, because it would learn nothing.
"""
PRECISION = 1e-4
"""Relative precision of θ."""


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
