"""The ε of events, by dp-accounting: analytically, and two ways more to check that by.

No event is amplified by subsampling: who chooses the batches knows them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from sqlfl.errors import InternalError
from sqlfl.privacy.events import Event, Gaussian, Pure, Threshold

LARGEST_MU = 1e6
"""Beyond it, where nothing is private, ε is a bound: μ²/2 + μ √(2 log 1/δ), of zCDP."""


def epsilon_of(events: Sequence[Event], delta: float) -> float:
    """The ε at which the events together are (ε, delta)-DP; infinite where there is none.

    Normal noise composes exactly, also where a sum depends on what was released before: μ² = Σ
    (Δ/σ)², one release of multiplier 1/μ, whose ε is that of Balle and Wang (2018). The δ of
    thresholds is taken off delta, and pure ε are added, which is never too little. InternalError
    for delta not between 0 and 1.
    """
    left = _left(events, delta)
    mu = math.sqrt(squared_mu(events))
    pure = math.fsum(event.epsilon for event in events if isinstance(event, Pure))
    if mu == 0.0 and left >= 0.0:
        return pure
    if left <= 0.0 or math.isinf(mu):
        return math.inf
    if mu > LARGEST_MU:
        return pure + mu * mu / 2.0 + mu * math.sqrt(2.0 * math.log(1.0 / left))
    import dp_accounting

    return pure + float(dp_accounting.get_epsilon_gaussian(1.0 / mu, left))


def epsilon_by_rdp(events: Sequence[Event], delta: float) -> float:
    """The same by Rényi DP, never less; pure ε as ε²/2-zCDP (Bun and Steinke, 2016)."""
    left = _left(events, delta)
    if left <= 0.0:
        return math.inf
    import dp_accounting

    accountant = dp_accounting.rdp.RdpAccountant()
    for event in events:
        match event:
            case Gaussian(_, multiplier, count):
                accountant.compose(dp_accounting.GaussianDpEvent(multiplier), count)
            case Pure(_, epsilon):
                accountant.compose(dp_accounting.ZCDpEvent(epsilon * epsilon / 2.0))
    return float(accountant.get_epsilon(left))


def epsilon_by_pld(events: Sequence[Event], delta: float) -> float:
    """The same by distributions of the privacy loss, rounded upwards to a grid; of pure ε the worst
    there is."""
    left = _left(events, delta)
    if left <= 0.0:
        return math.inf
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as loss

    total = loss.identity()
    for event in events:
        match event:
            case Gaussian(_, multiplier, count):
                one = loss.from_gaussian_mechanism(multiplier)
                total = total.compose(one.self_compose(count))
            case Pure(_, epsilon):
                one = loss.from_privacy_parameters(
                    common.DifferentialPrivacyParameters(epsilon, 0.0)
                )
                total = total.compose(one)
    return float(total.get_epsilon_for_delta(left))


def squared_mu(events: Iterable[Event]) -> float:
    """μ² = Σ (Δ/σ)² of the normal noise; infinite where one has none."""
    found = 0.0
    for event in events:
        if isinstance(event, Gaussian) and event.count:
            if event.multiplier <= 0.0:
                return math.inf
            found += event.count / event.multiplier**2
    return found


def budget(epsilon: float, delta: float) -> float:
    """The largest μ at which normal noise is (epsilon, delta)-DP."""
    import dp_accounting

    return 1.0 / float(dp_accounting.get_sigma_gaussian(epsilon, delta))


def _left(events: Sequence[Event], delta: float) -> float:
    if not 0.0 < delta < 1.0:
        raise InternalError(f"an ε at δ = {delta!r}")
    return delta - math.fsum(event.delta for event in events if isinstance(event, Threshold))
