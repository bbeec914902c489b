"""Draws beside gradients: what is claimed of a run, and that no ε is above the one asked for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sqlfl.base.errors import InternalError, PrivacyError
from sqlfl.contract.privacy_specification import PlannedReleases
from sqlfl.messages import Releases
from sqlfl.options.privacy import Privacy
from sqlfl.privacy.accountant import epsilon_by_rdp, epsilon_of
from sqlfl.privacy.binomial import draws_of, joined_row_epsilon, of_joined_row
from sqlfl.privacy.calibration import SLACK, NoiseCalibration, calibrate, check_releases
from sqlfl.privacy.events import EMBEDDINGS, GRADIENTS, Gaussian, PoissonBinomial, Threshold
from sqlfl.privacy.limits import MAX_MULTIPLIER
from tests.depth import examples, spread

DELTA = 1e-5


def rounds(slot: int = 0, *, often: int = 1, epochs: int = 5, **given: Any) -> PlannedReleases:
    """Of a slot whose rows are in so many joined rows, in 20 batches an epoch."""
    own: dict[str, Any] = {
        "slot": slot, "gradients": epochs * min(often, 20), "predictions": 0, "moments": 0,
        "moments_sensitivity": 0.0, "clip": 2.0, "clients": 1, "copies": often, "partners": {},
        "steps": 20 * epochs, "whole": False, "epochs": epochs, "draws": epochs * often,
        "outputs": 4, "honest": 2,
    }  # fmt: skip
    return PlannedReleases(**own | given)


def private(**given: Any) -> Privacy:
    own: dict[str, Any] = {"delta": DELTA, "statistics": "bounds", "predictions": "binomial"}
    return Privacy(**own | given)


def draws_in(found: NoiseCalibration, slot: int) -> PoissonBinomial:
    (event,) = [e for e in found.events[slot] if isinstance(e, PoissonBinomial)]
    return event


# -- three ways to ask ----------------------------------------------------------------------------


def test_draws_beside_exact_gradients_have_no_epsilon() -> None:
    found = calibrate(private(bins=4, theta=0.05), [rounds(0), rounds(1, often=30)])
    for slot, count in ((0, 20), (1, 600)):
        own = found.training.rounds[slot]
        assert (own.clip, own.noise, own.bins, own.theta) == (0.0, 0.0, 4, 0.05)
        assert (own.prediction_clip, own.prediction_noise) == (0.0, 0.0)
        assert found.events[slot] == (PoissonBinomial(EMBEDDINGS, 4, 0.05, 2, count),)
    assert set(found.epsilons.values()) == {math.inf}
    assert (found.training.intercept_clip, found.training.intercept_noise) == (0.0, 0.0)


def test_the_figures_of_the_draws() -> None:
    """Of δ = 1e-5, θ = 0.05, b = 4, n = 3 and 16 numbers; by Rényi DP and by losses."""
    for epochs, by_rdp, smaller in ((1, 4.37, 4.08), (20, 27.4, 26.3)):
        own = rounds(epochs=epochs, outputs=16, honest=3)
        event = draws_in(calibrate(private(bins=4, theta=0.05), [own]), 0)
        assert event == PoissonBinomial(EMBEDDINGS, 4, 0.05, 3, 16 * epochs)
        assert epsilon_by_rdp([event], DELTA) == pytest.approx(by_rdp, abs=0.05)
        assert epsilon_of([event], DELTA) == pytest.approx(smaller, abs=0.05)


def test_noised_gradients_are_counted_beside_draws() -> None:
    own = rounds(often=3)
    found = calibrate(private(bins=4, theta=0.02, noise_multiplier=6.0), [own])
    events = (Gaussian(GRADIENTS, 3.0, 15), PoissonBinomial(EMBEDDINGS, 4, 0.02, 2, 60))
    assert found.events[0] == events
    assert found.epsilons[0] == epsilon_of(events, DELTA)
    assert found.epsilons[0] > max(epsilon_of([event], DELTA) for event in events)
    told = found.training.rounds[0]
    assert told.clip == 2.0
    assert told.noise == pytest.approx(12.0, rel=2 * SLACK)
    assert told.noise > 12.0
    assert found.multipliers == {0: 6.0}


@pytest.mark.parametrize(
    "given",
    spread(
        [{}, {"bins": 32}, {"bins": 8, "theta": 0.004}, {"theta": 0.004}, {"statistics": "noised"}],
        2,
    ),
    ids=str,
)
def test_a_budget_is_used_up_by_every_slot(given: dict[str, Any]) -> None:
    privacy = private(epsilon=3.0, **given)
    found = calibrate(privacy, [rounds(0), rounds(1, often=12), rounds(2, honest=1)])
    for slot in range(3):
        assert 0.985 * 3.0 < found.epsilons[slot] <= 3.0
        assert found.epsilons[slot] == epsilon_of(found.events[slot], DELTA)
        own = found.training.rounds[slot]
        event = draws_in(found, slot)
        assert (own.bins, own.theta) == (event.bins, event.theta)
        assert own.noise == pytest.approx(2.0 * found.multipliers[slot], rel=2 * SLACK)
    assert len({(r.bins, r.theta) for r in found.training.rounds.values()}) == 1
    assert found.multipliers[1] > found.multipliers[2] > found.multipliers[0]
    own = found.training.rounds[0]
    assert own.bins == given.get("bins", own.bins)
    assert own.theta == given.get("theta", own.theta)
    thresholds = [e for e in found.events[0] if isinstance(e, Threshold)]
    assert bool(thresholds) == (privacy.statistics == "noised")


def test_the_share_of_draws() -> None:
    few, many = (
        calibrate(private(epsilon=3.0, prediction_share=share), [rounds()]) for share in (0.2, 0.8)
    )
    assert few.training.rounds[0].theta < 0.6 * many.training.rounds[0].theta
    assert few.multipliers[0] < 0.6 * many.multipliers[0]


def test_what_the_largest_theta_leaves_gradients_have() -> None:
    """Of a budget so large that draws cannot use their share of it."""
    own = rounds(epochs=1, outputs=1)
    found = calibrate(private(epsilon=400.0), [own])
    assert (found.training.rounds[0].bins, found.training.rounds[0].theta) == (128, 0.25)
    share = calibrate(private(epsilon=400.0, bins=1, theta=1e-6), [own])
    assert 0.98 * 400.0 < found.epsilons[0] <= 400.0
    assert 0.98 * 400.0 < share.epsilons[0] <= 400.0
    assert share.multipliers[0] < found.multipliers[0]


@examples(2, 100)
@given(
    st.floats(0.3, 40.0),
    st.sampled_from([1e-8, 1e-6, 1e-3]),
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 5), st.sampled_from([1, 2, 7])),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 12),
    st.floats(0.1, 0.9),
    st.sampled_from(["bounds", "noised"]),
    st.sampled_from([{}, {"bins": 3}, {"bins": 200}, {"theta": 1e-3}, {"theta": 0.05}]),
)
def test_no_epsilon_is_above_the_one_asked_for(
    epsilon: float,
    delta: float,
    slots: list[tuple[int, int, int]],
    outputs: int,
    share: float,
    statistics: str,
    draws: dict[str, Any],
) -> None:
    privacy = private(
        epsilon=epsilon, delta=delta, prediction_share=share, statistics=statistics, **draws
    )
    planned = [
        rounds(slot, often=often, epochs=epochs, honest=honest, outputs=outputs)
        for slot, (often, epochs, honest) in enumerate(slots)
    ]
    try:
        found = calibrate(privacy, planned)
    except PrivacyError:
        assume(False)
    for own in planned:
        assert found.epsilons[own.slot] <= epsilon
        assert epsilon_of(found.events[own.slot], delta) <= epsilon
        event = draws_in(found, own.slot)
        assert event.count == own.draws * outputs
        assert event.honest <= own.honest
        assert 0.0 < found.multipliers[own.slot] <= MAX_MULTIPLIER


# -- who is honest --------------------------------------------------------------------------------


def test_fewer_honest_slots_make_more_noise() -> None:
    thetas = [
        calibrate(private(epsilon=3.0), [rounds(honest=n)]).training.rounds[0].theta
        for n in (1, 2, 5)
    ]
    assert thetas == sorted(thetas)
    assert thetas[0] < 0.8 * thetas[1]
    # all slots have the same θ: that of the slot with the fewest
    both = calibrate(private(epsilon=3.0), [rounds(0, honest=1), rounds(1, honest=5)])
    assert both.training.rounds[1].theta == thetas[0]


def test_of_very_many_coins_fewer_slots_count() -> None:
    assert draws_of(rounds(honest=9), 1024, 0.1).honest == 2
    assert draws_of(rounds(honest=9), 16, 0.1).honest == 9
    assert draws_of(rounds(honest=1), 1024, 0.1).honest == 1


def test_a_whole_joined_row() -> None:
    """All tables' draws move, in every sum that shares a row with it."""
    slots = (rounds(0), rounds(1, often=3), rounds(2, often=2))
    event = of_joined_row(slots, 4, 0.05)
    assert event == PoissonBinomial(EMBEDDINGS, 4, 0.05, 3, (5 * (1 + 0 + 2 + 1)) * 4, 3)
    found = calibrate(private(bins=4, theta=0.02, noise_multiplier=6.0), slots)
    whole = joined_row_epsilon(found.rounds, found.events, DELTA)
    gradients = [Gaussian(GRADIENTS, 3.0, 5 * often) for often in (1, 3, 2)]
    assert whole == epsilon_of([*gradients, of_joined_row(slots, 4, 0.02)], DELTA)
    assert whole > max(found.epsilons.values())


# -- what cannot be -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bins": 64, "theta": 0.1}, "bins = 64 and theta = 0.1 leave ε = "),
        ({"theta": 0.2}, "theta = 0.2 is too much even for bins = 1; 20 draws are of one row"),
        ({"epsilon": 1e-4}, "theta of the draws would be less than"),
    ],
)
def test_budgets_that_cannot_be_met(given: dict[str, Any], message: str) -> None:
    with pytest.raises(PrivacyError, match=message) as caught:
        calibrate(private(**{"epsilon": 1.0} | given), [rounds()])
    assert "a larger epsilon" in str(caught.value.hint)


def test_noise_of_gradients_that_would_be_too_much() -> None:
    own = rounds()
    alone = epsilon_of([draws_of(own, 16, 0.01)], DELTA)
    with pytest.raises(PrivacyError, match="leave gradients noise of more than 1000 times"):
        calibrate(private(epsilon=alone + 1e-6, bins=16, theta=0.01), [own])
    with pytest.raises(PrivacyError, match="the noise of the gradients would be 2000 times"):
        calibrate(private(noise_multiplier=2000.0, bins=16, theta=0.01), [own])


@pytest.mark.parametrize("wrong", [{"draws": 0}, {"outputs": 0}, {"honest": 0}])
def test_draws_of_nothing_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InternalError, match="rounds of nothing"):
        calibrate(private(bins=4, theta=0.1), [replace(rounds(), **wrong)])


def test_draws_that_nothing_says_are_refused() -> None:
    with pytest.raises(InternalError, match="draws of bins = None"):
        calibrate(private(noise_multiplier=2.0), [rounds()])


# -- what was released ----------------------------------------------------------------------------


def said(found: NoiseCalibration, **changes: Any) -> Releases:
    own, plan = found.training.rounds[0], found.rounds[0]
    honest = Releases(
        "run", 0, labels=0.0, statistics=0.0, gradients=plan.gradients, clip=own.clip,
        noise=own.noise, predictions=0, prediction_clip=0.0, prediction_noise=0.0, moments=0,
        row_bound=0.0, moments_noise=0.0, draws=plan.draws, bins=own.bins, theta=own.theta,
    )  # fmt: skip
    return replace(honest, **changes)


@pytest.mark.parametrize("z", [None, 4.0])
def test_releases_of_draws(z: float | None) -> None:
    found = calibrate(private(bins=4, theta=0.05, noise_multiplier=z), [rounds(often=3)])
    for fine in ({}, {"draws": 1}, *([{"gradients": 0}] if z is None else [{"gradients": 1}])):
        check_releases(found, 0, said(found, **fine), True)
    check_releases(found, 0, said(found, draws=0, gradients=0), False)
    for wrong in (
        {"draws": 16}, {"draws": 0}, {"bins": 3}, {"theta": 0.06}, {"predictions": 1},
        {"noise": 0.1}, {"clip": 1.0}, {"gradients": 16},
    ):  # fmt: skip
        with pytest.raises(InternalError, match=next(iter(wrong))):
            check_releases(found, 0, said(found, **wrong), True)
    if z is not None:
        with pytest.raises(InternalError, match="gradients 0, planned 1 to 15"):
            check_releases(found, 0, said(found, gradients=0), True)
