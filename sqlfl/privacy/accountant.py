"""The ε of events, by dp-accounting: analytically, and two ways more to check that by.

No event is amplified by subsampling: who chooses the batches knows them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

from sqlfl.base.errors import InternalError
from sqlfl.privacy.events import (
    Event,
    Gaussian,
    PoissonBinomial,
    Pure,
    Selection,
    Threshold,
)
from sqlfl.privacy.poisson_binomial.loss import (
    Coordinate,
    coordinate,
    deviation,
    ends,
    loss_masses,
    renyi,
    step,
)

MAX_MU = 1e6
"""Maximum μ for an exact ε. Beyond it, where nothing is private, ε is zCDP's bound μ²/2 + μ √(2 log
1/δ).
"""

CONVOLVED = 2.0**-48
"""What a release adds to δ by rounding in Fourier transforms, at most: their powers multiply the
relative error of about 2⁻⁵⁰ by the count, and of the Euclidean norm of the errors the sum over a
tail has at most √points times, which the norm of a spread-out distribution makes up for."""
POINTS = 1 << 12
"""Maximum grid points in a standard deviation of all losses together."""
MAX_DEVIATION = 30.0
"""Maximum standard deviation of all losses together, with binomial draws among them. Beyond it,
where ε is above 450, and for more than MAX_DRAWS, grids would need too many points, and only Rényi
DP is used.
"""
MAX_DRAWS = 1 << 20


def epsilon_of(events: Sequence[Event], delta: float) -> float:
    """Return the ε at which the events together are (ε, delta)-DP; infinite if there is none.

    Normal noise composes exactly, also if a sum depends on earlier releases: μ² = Σ (Δ/σ)², one
    release of multiplier 1/μ, with the ε of Balle and Wang (2018). The δ of thresholds is
    subtracted from delta, and pure ε are added, which is an upper bound. With binomial draws it is
    the smaller result of the two other methods. Raise InternalError unless delta is between 0 and
    1. Results are kept: a plan, its report and its checks ask for the same ε.
    """
    return _epsilon_of(tuple(events), delta)


@functools.lru_cache(maxsize=1024)
def _epsilon_of(events: tuple[Event, ...], delta: float) -> float:
    left = _left(events, delta)
    if any(isinstance(event, PoissonBinomial) and event.count for event in events):
        return min(epsilon_by_rdp(events, delta), epsilon_by_pld(events, delta))
    choices = [event for event in events if isinstance(event, Selection) and event.count]
    if choices:
        return _of_choices(events, choices, delta)
    mu = math.sqrt(squared_mu(events))
    pure = math.fsum(event.epsilon for event in events if isinstance(event, Pure))
    if mu == 0.0 and left >= 0.0:
        return pure
    if left <= 0.0 or math.isinf(mu):
        return math.inf
    if mu > MAX_MU:
        return pure + mu * mu / 2.0 + mu * math.sqrt(2.0 * math.log(1.0 / left))
    import dp_accounting

    return pure + float(dp_accounting.get_epsilon_gaussian(1.0 / mu, left))


def _of_choices(events: Sequence[Event], choices: Sequence[Selection], delta: float) -> float:
    """Return the smaller result of two methods: Rényi DP, and choices as pure ε. Privacy losses
    would take seconds, for a small gain.
    """
    pure = [Pure(choice.what, choice.epsilon * choice.count) for choice in choices]
    others = [event for event in events if not isinstance(event, Selection)]
    return min(epsilon_by_rdp(events, delta), epsilon_of([*others, *pure], delta))


def epsilon_by_rdp(events: Sequence[Event], delta: float) -> float:
    """The same by Rényi DP, never less; pure ε as ε²/2-zCDP (Bun and Steinke, 2016).

    Every order gives an ε that holds. Which one gives the least is guessed by the `ends` of
    binomial draws, and then all of their pairs are looked at for this order.
    """
    left = _left(events, delta)
    if left <= 0.0 or math.isinf(squared_mu(events)):
        return math.inf
    import dp_accounting

    accountant = dp_accounting.rdp.RdpAccountant()
    draws: list[tuple[Coordinate, int]] = []
    for event in events:
        match event:
            case Gaussian(_, multiplier, count):
                accountant.compose(dp_accounting.GaussianDpEvent(multiplier), count)
            case Pure(_, epsilon):
                accountant.compose(dp_accounting.ZCDpEvent(epsilon * epsilon / 2.0))
            case Selection(count=count) if count:
                accountant.compose(dp_accounting.ZCDpEvent(event.rho), count)
            case PoissonBinomial(count=count) if count:
                draws.append((coordinate(event), count))
    if not draws:
        return float(accountant.get_epsilon(left))
    orders, others = accountant.orders, accountant.rdp
    guessed = others + sum(count * renyi(draw, orders, ends(draw)) for draw, count in draws)
    _, order = dp_accounting.rdp.compute_epsilon(orders, guessed, left)
    exact = others[orders == order] + sum(count * renyi(draw, [order]) for draw, count in draws)
    return float(dp_accounting.rdp.compute_epsilon([order], exact, left)[0])


def epsilon_by_pld(events: Sequence[Event], delta: float) -> float:
    """Return ε by distributions of the privacy loss, rounded upwards to a grid; pure ε have the
    worst distribution.

    The rounding errors of convolutions are subtracted from delta. The result is infinite for many
    binomial draws: MAX_DEVIATION.
    """
    counts = (e.count for e in events if isinstance(e, Gaussian | PoissonBinomial | Selection))
    left = _left(events, delta) - CONVOLVED * sum(counts)
    if left <= 0.0 or math.isinf(squared_mu(events)):
        return math.inf
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as loss
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    interval = _interval(events)
    if math.isinf(interval):
        return math.inf
    total = loss.identity(interval)
    for event in events:
        match event:
            case Gaussian(_, multiplier, count) if count:
                one = loss.from_gaussian_mechanism(
                    multiplier, value_discretization_interval=interval
                )
                total = total.compose(one.self_compose(count))
            case Pure(_, epsilon):
                one = loss.from_privacy_parameters(
                    common.DifferentialPrivacyParameters(epsilon, 0.0),
                    value_discretization_interval=interval,
                )
                total = total.compose(one)
            case Selection(_, _, epsilon, count) if count:
                one = loss.from_privacy_parameters(
                    common.DifferentialPrivacyParameters(epsilon, 0.0),
                    value_discretization_interval=interval,
                )
                total = total.compose(one.self_compose(count))
            case PoissonBinomial(count=count) if count:
                first, masses = loss_masses(coordinate(event), interval)
                one = loss.PrivacyLossDistribution(DensePLDPmf(interval, first, masses, 0.0, True))
                total = total.compose(one.self_compose(count))
    return float(total.get_epsilon_for_delta(left))


def squared_mu(events: Iterable[Event]) -> float:
    """Return μ² = Σ (Δ/σ)² of the normal noise; infinite without noise."""
    squares = 0.0
    for event in events:
        if isinstance(event, Gaussian) and event.count:
            if event.multiplier <= 0.0:
                return math.inf
            squares += event.count / event.multiplier**2
    return squares


def budget(epsilon: float, delta: float) -> float:
    """The largest μ at which normal noise is (epsilon, delta)-DP."""
    import dp_accounting

    return 1.0 / float(dp_accounting.get_sigma_gaussian(epsilon, delta))


def _left(events: Sequence[Event], delta: float) -> float:
    if not 0.0 < delta < 1.0:
        raise InternalError(f"an ε at δ = {delta!r}")
    return delta - math.fsum(event.delta for event in events if isinstance(event, Threshold))


def _interval(events: Iterable[Event]) -> float:
    """Return the interval of the grid of losses: fine enough for one coordinate of binomial draws,
    but not finer than all together need. Infinite if there is no such grid.
    """
    draws = [(coordinate(e), e.count) for e in events if isinstance(e, PoissonBinomial) and e.count]
    if not draws:
        return 1e-4
    variances = math.fsum(count * deviation(draw) ** 2 for draw, count in draws)
    whole = math.sqrt(variances + squared_mu(events))
    if whole > MAX_DEVIATION or sum(count for _, count in draws) > MAX_DRAWS:
        return math.inf
    return max(min(step(draw) for draw, _ in draws), whole / POINTS)
