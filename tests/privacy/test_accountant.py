"""ε of events: analytic, by Rényi DP and by loss distributions; no amplification."""

from __future__ import annotations

import math

import dp_accounting
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sqlfl.errors import InternalError
from sqlfl.privacy.accountant import (
    budget,
    epsilon_by_pld,
    epsilon_by_rdp,
    epsilon_of,
    squared_mu,
)
from sqlfl.privacy.events import Event, Gaussian, Pure, Threshold

DELTA = 1e-5
MIXTURES: tuple[tuple[Event, ...], ...] = (
    (Gaussian("gradients", 1.0, 20),),
    (Gaussian("gradients", 8.0, 20), Gaussian("predictions", 5.0, 21), Gaussian("moments", 3.0)),
    (Gaussian("gradients", 30.0, 50), Gaussian("statistics", 2.0), Threshold("categories", 1e-6)),
    (Threshold("categories", 9e-6), Gaussian("gradients", 0.8)),
)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("events", MIXTURES)
def test_three_ways_agree_in_their_order(events: tuple[Event, ...]) -> None:
    exact, pld, rdp = (f(events, DELTA) for f in (epsilon_of, epsilon_by_pld, epsilon_by_rdp))
    assert rdp >= pld >= exact - 1e-6
    assert pld == pytest.approx(exact, rel=0.01)
    assert rdp == pytest.approx(exact, rel=0.2)


def test_pure_epsilons_are_added_which_is_never_too_little() -> None:
    events = (Gaussian("gradients", 4.0, 10), Pure("labels", 0.5), Pure("labels", 0.25))
    alone = epsilon_of(events[:1], DELTA)
    assert epsilon_of(events, DELTA) == alone + 0.75
    assert alone < epsilon_by_pld(events, DELTA) <= epsilon_of(events, DELTA) + 1e-6
    assert epsilon_by_rdp(events, DELTA) > alone
    assert epsilon_of(events[1:], DELTA) == 0.75


@given(st.lists(st.tuples(st.floats(0.5, 50.0), st.integers(1, 100)), min_size=1, max_size=4))
def test_epsilon_solves_the_equation_of_the_gaussian_mechanism(
    found: list[tuple[float, int]],
) -> None:
    """δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), with μ² the sum of Δ²/σ²."""
    events = [Gaussian("gradients", multiplier, count) for multiplier, count in found]
    mu = math.sqrt(sum(count / multiplier**2 for multiplier, count in found))
    epsilon = epsilon_of(events, DELTA)
    spent = stats.norm.cdf(mu / 2 - epsilon / mu)
    spent -= math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))
    assert spent == pytest.approx(DELTA, rel=1e-4) or (epsilon == 0.0 and spent <= DELTA)
    assert squared_mu(events) == pytest.approx(mu**2)
    if epsilon:
        assert budget(epsilon, DELTA) == pytest.approx(mu, rel=1e-6)


def test_a_run_of_fixed_batches_never_reports_what_secret_ones_would_have() -> None:
    """σ = 1, 20 epochs, batches of 1 % of the rows: Poisson's sampling would claim 2.6; each row
    is in 20 sums, whoever knows the batches, and 28 is true."""
    accountant = dp_accounting.pld.PLDAccountant()
    sampled = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
    accountant.compose(sampled, 2000)
    claimed = accountant.get_epsilon(DELTA)
    true = epsilon_of([Gaussian("gradients", 1.0, 20)], DELTA)
    assert claimed == pytest.approx(2.6, abs=0.1)
    assert true == pytest.approx(28.0, abs=0.5)
    assert epsilon_by_pld([Gaussian("gradients", 1.0, 20)], DELTA) > 10 * claimed


def test_there_is_no_epsilon_where_nothing_is_hidden() -> None:
    assert epsilon_of([Gaussian("gradients", 0.0, 1)], DELTA) == math.inf
    assert epsilon_of([Gaussian("gradients", 0.0, 0)], DELTA) == 0.0
    assert epsilon_of([], DELTA) == 0.0
    for way in (epsilon_of, epsilon_by_rdp, epsilon_by_pld):
        events = [Gaussian("gradients", 5.0), Threshold("categories", DELTA)]
        assert way(events, DELTA) == math.inf


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-3, math.nan])
def test_a_delta_out_of_range_is_refused(delta: float) -> None:
    with pytest.raises(InternalError, match="at δ"):
        epsilon_of([Gaussian("gradients", 1.0)], delta)
