"""ε of events: analytic, by Rényi DP and by loss distributions; no amplification."""

from __future__ import annotations

import math
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sqlfl.base.errors import InternalError
from sqlfl.privacy import accountant
from sqlfl.privacy.accountant import (
    budget,
    epsilon_by_pld,
    epsilon_by_rdp,
    epsilon_of,
    squared_mu,
)
from sqlfl.privacy.events import Event, Gaussian, PoissonBinomial, Pure, Threshold
from sqlfl.privacy.poisson_binomial import loss
from sqlfl.privacy.poisson_binomial.loss import coordinate, deviation

DELTA = 1e-5
MIXTURES: tuple[tuple[Event, ...], ...] = (
    (Gaussian("gradients", 1.0, 20),),
    (Gaussian("gradients", 8.0, 20), Gaussian("predictions", 5.0, 21), Gaussian("moments", 3.0)),
    (Gaussian("gradients", 30.0, 50), Gaussian("statistics", 2.0), Threshold("categories", 1e-6)),
    (Threshold("categories", 9e-6), Gaussian("gradients", 0.8)),
)


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


# -- binomial draws -------------------------------------------------------------------------------

DRAWS = PoissonBinomial("embeddings", 4, 0.05, 3, 16)


def test_draws_have_the_epsilon_of_the_reference() -> None:
    assert epsilon_by_rdp([DRAWS], DELTA) == pytest.approx(4.37, abs=0.005)
    assert epsilon_by_pld([DRAWS], DELTA) == pytest.approx(4.08, abs=0.005)
    assert epsilon_of([DRAWS], DELTA) == epsilon_by_pld([DRAWS], DELTA)
    epochs = replace(DRAWS, count=20 * 16)
    assert epsilon_by_rdp([epochs], DELTA) == pytest.approx(27.4, abs=0.05)
    assert 25.0 < epsilon_of([epochs], DELTA) < 27.0


@pytest.mark.parametrize(
    ("theta", "count", "delta"),
    [(0.25, 1, 1e-3), (0.1, 3, 1e-5), (0.05, 60, 1e-5), (0.01, 2000, 1e-9), (0.002, 10**5, 1e-6)],
)
def test_draws_of_one_coin_are_randomised_responses(theta: float, count: int, delta: float) -> None:
    """With one honest slot: each that is kept adds ln((½ + θ)/(½ − θ)) to the loss, the others take
    it off, and binomial tails give δ without any grid."""
    unit = math.log((0.5 + theta) / (0.5 - theta))
    kept = np.arange(count + 1)
    losses = (2 * kept - count) * unit
    masses = stats.binom.pmf(kept, count, 0.5 + theta)

    def exact(epsilon: float) -> float:
        return float(masses @ -np.expm1(np.minimum(epsilon - losses, 0.0)))

    events = [PoissonBinomial("embeddings", 1, theta, 1, count)]
    for way in (epsilon_of, epsilon_by_pld, epsilon_by_rdp):
        assert exact(way(events, delta)) <= delta
    found = epsilon_of(events, delta)
    assert exact(found * 0.98 - 2e-3) > delta


def test_many_draws_are_like_normal_noise_and_compose_with_it() -> None:
    """The sum of many losses of deviation s is normal: μ² = Σ s², as of normal noise."""
    draws = replace(DRAWS, bins=16, theta=0.01, count=2000)
    mu = deviation(coordinate(draws)) * math.sqrt(draws.count)
    beside: tuple[Event, ...] = (
        Gaussian("gradients", 6.0, 8),
        Gaussian("statistics", 2.0 / mu),
        Threshold("categories", 1e-6),
    )
    alike = epsilon_of((Gaussian("embeddings", 1.0 / mu), *beside), DELTA)
    assert epsilon_of((draws, *beside), DELTA) == pytest.approx(alike, rel=0.01)
    assert epsilon_of((draws, *beside), DELTA) <= epsilon_by_rdp((draws, *beside), DELTA)
    assert epsilon_by_rdp((draws, *beside), DELTA) == pytest.approx(alike, rel=0.1)
    alone = max(epsilon_of(events, DELTA) for events in ([draws], beside))
    assert alone < epsilon_of((draws, *beside), DELTA)


def test_pure_epsilons_beside_draws_are_never_added_twice() -> None:
    alone, pure = epsilon_of([DRAWS], DELTA), Pure("labels", 0.5)
    together = epsilon_of([DRAWS, pure], DELTA)
    assert alone + 0.01 < together <= alone + 0.5 + 1e-3
    halves = [replace(DRAWS, count=8), replace(DRAWS, what="others", count=8)]
    assert epsilon_of(halves, DELTA) == pytest.approx(alone, rel=1e-3)
    assert epsilon_of([replace(DRAWS, count=0), pure], DELTA) == 0.5


@pytest.mark.parametrize(
    "more",
    [
        {"theta": 0.051},
        {"bins": 5},
        {"honest": 2},
        {"count": 17},
        {"moved": 2},
    ],
    ids=str,
)
def test_an_epsilon_grows_with_what_is_told(more: dict[str, int]) -> None:
    for way in (epsilon_of, epsilon_by_rdp, epsilon_by_pld):
        assert way([replace(DRAWS, **more)], DELTA) > way([DRAWS], DELTA)


def test_slots_that_do_not_count_as_honest_tell_more(monkeypatch: pytest.MonkeyPatch) -> None:
    true = epsilon_of([DRAWS], DELTA)
    monkeypatch.setattr(loss, "MAX_COINS", 8)
    monkeypatch.setattr(accountant, "_epsilon_of", accountant._epsilon_of.__wrapped__)
    assert epsilon_of([DRAWS], DELTA) == epsilon_of([replace(DRAWS, honest=2)], DELTA) > true


def test_a_delta_that_rounding_could_hide_is_left_to_rdp() -> None:
    many = [replace(DRAWS, theta=1e-4, count=10**5)]
    assert epsilon_by_pld(many, 1e-13) == math.inf
    assert epsilon_of(many, 1e-13) == epsilon_by_rdp(many, 1e-13) < math.inf
    assert epsilon_of([DRAWS, Gaussian("statistics", 0.0)], DELTA) == math.inf
    assert epsilon_of([DRAWS, Threshold("categories", DELTA)], DELTA) == math.inf


@pytest.mark.parametrize(
    "events",
    [
        [DRAWS, Gaussian("statistics", 1e-7)],
        [replace(DRAWS, theta=0.25, count=10**5)],
        [replace(DRAWS, theta=1e-4, count=10**8)],
    ],
    ids=str,
)
def test_where_grids_would_be_huge_there_is_rdp_alone(events: list[Event]) -> None:
    assert epsilon_by_pld(events, DELTA) == math.inf
    assert epsilon_of(events, DELTA) == epsilon_by_rdp(events, DELTA) < math.inf


def test_a_coarser_grid_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = [replace(DRAWS, bins=16, theta=0.02, count=5000)]
    found = epsilon_by_pld(draws, DELTA)
    monkeypatch.setattr(accountant, "POINTS", 1 << 8)
    coarse = epsilon_by_pld(draws, DELTA)
    assert found < coarse < 1.1 * found
