"""Noise from budgets and back; which slot decides; shares; and the check of what was released."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlfl.base.errors import InternalError, PrivacyError
from sqlfl.contract.privacy_specification import PlannedReleases
from sqlfl.messages import Releases
from sqlfl.models.losses import loss_of
from sqlfl.options.privacy import Privacy
from sqlfl.privacy.accountant import budget, epsilon_of
from sqlfl.privacy.calibration import (
    SLACK,
    NoiseCalibration,
    calibrate,
    check_releases,
    joined_epsilon,
    statistics_delta,
    statistics_noise,
)
from sqlfl.privacy.events import Event, Gaussian, Threshold
from sqlfl.privacy.limits import MAX_MULTIPLIER

EXACT = "exact"
NOISED = "gaussian"


def rounds(slot: int = 0, **given: Any) -> PlannedReleases:
    """10 epochs over all rows at 2 clients, a row being in 3 joined rows with 2 partners."""
    own: dict[str, Any] = {
        "slot": slot, "gradients": 10, "predictions": 11, "moments": 0, "moments_sensitivity": 0.0,
        "clip": 2.0, "clients": 2, "copies": 3, "partners": {1 - slot: 2}, "steps": 10,
        "whole": True, "epochs": 10,
    }  # fmt: skip
    return PlannedReleases(**own | given)


ADMM = {"moments": 1, "moments_sensitivity": 5.0, "row_bound": 2.0}
BATCHES = {"gradients": 30, "predictions": 40, "steps": 50, "whole": False}


def squares(events: Sequence[Event]) -> dict[str, float]:
    """μ² by kind."""
    return {e.what: e.count / e.multiplier**2 for e in events if isinstance(e, Gaussian)}


def private(epsilon: float = 1.0, **given: Any) -> Privacy:
    return Privacy(**{"epsilon": epsilon, "statistics": "bounds", "predictions": NOISED} | given)


# -- there and back -------------------------------------------------------------------------------


@given(
    epsilon=st.floats(0.5, 50.0),
    delta=st.floats(1e-9, 1e-3),
    predictions=st.sampled_from([EXACT, NOISED]),
    statistics=st.sampled_from(["none", "bounds", "noised"]),
    share=st.floats(0.05, 0.95),
    more=st.sampled_from([{}, BATCHES, ADMM]),
)
def test_a_calibrated_run_has_the_epsilon_asked_for_and_not_more(
    epsilon: float, delta: float, predictions: str, statistics: str, share: float, more: Any
) -> None:
    if predictions == EXACT and more is ADMM:
        return
    privacy = private(
        epsilon, delta=delta, predictions=predictions, statistics=statistics,
        prediction_share=share, statistics_share=share,
    )  # fmt: skip
    slots = [rounds(0, **more), rounds(1, copies=1, partners={0: 1})]
    found = calibrate(privacy, slots)
    for slot, events in found.events.items():
        assert found.epsilons[slot] == epsilon_of(events, delta) <= epsilon
    assert max(found.epsilons.values()) == pytest.approx(epsilon, rel=1e-4)
    if predictions == NOISED:
        assert min(found.epsilons.values()) == pytest.approx(epsilon, rel=1e-4)


@pytest.mark.parametrize("predictions", [EXACT, NOISED])
def test_a_noise_multiplier_and_its_epsilon_ask_for_the_same(predictions: str) -> None:
    given = private(epsilon=None, noise_multiplier=30.0, predictions=predictions)
    slots = [rounds(0), rounds(1, copies=1, partners={0: 1})]
    first = calibrate(given, slots)
    assert dict(first.multipliers) == {0: 30.0, 1: 30.0}
    worst = max(first.epsilons, key=first.epsilons.__getitem__)
    asked = replace(given, epsilon=first.epsilons[worst], noise_multiplier=None)
    again = calibrate(asked, slots)
    assert again.multipliers[worst] == pytest.approx(30.0, rel=1e-6)
    for name in ("noise", "prediction_noise"):
        wanted = getattr(first.training.rounds[worst], name)
        assert getattr(again.training.rounds[worst], name) == pytest.approx(wanted, rel=1e-6)


def test_noise_is_the_multiplier_times_what_it_hides_and_a_little_more() -> None:
    privacy = private(prediction_clip=0.5)
    found = calibrate(privacy, [rounds(**ADMM)])
    own, events = found.training.rounds[0], {e.what: e for e in found.events[0]}
    assert (own.clip, own.prediction_clip, own.row_bound) == (2.0, 0.5, 2.0)
    for what, noise, sensitivity in (
        ("gradients", own.noise, 2 * 2.0),
        ("predictions", own.prediction_noise, 2 * 0.5),
        ("moments", own.moments_noise, 5.0),
    ):
        event = events[what]
        assert isinstance(event, Gaussian)
        assert noise / sensitivity == pytest.approx(event.multiplier * (1 + SLACK), rel=1e-12)
        assert noise / sensitivity > event.multiplier
    assert found.multipliers[0] == pytest.approx(own.noise / own.clip, rel=2 * SLACK)
    assert found.prediction_multipliers[0] == pytest.approx(own.prediction_noise / 0.5, rel=1e-5)
    # what rounding to the samplers' grid adds to a gradient of a million numbers, at most
    assert 2.0**-40 * math.sqrt(1e6) * MAX_MULTIPLIER / 2 < SLACK


def test_calibration_takes_no_time() -> None:
    slots = [rounds(i, partners={}) for i in range(5)]
    calibrate(private(), slots)
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        calibrate(private(), slots)
        best = min(best, time.perf_counter() - start)
    assert best < 0.2


# -- noised predictions ---------------------------------------------------------------------------


def test_shares_are_shares_of_mu_squared() -> None:
    privacy = private(statistics="noised", statistics_share=0.2, prediction_share=0.3)
    total = budget(1.0, 0.9 * privacy.delta) ** 2
    found = squares(calibrate(privacy, [rounds(**ADMM)]).events[0])
    expected = {
        "statistics": 0.2,
        "moments": 0.1 * 0.8,
        "predictions": 0.3 * 0.9 * 0.8,
        "gradients": 0.7 * 0.9 * 0.8,
    }
    assert {what: own / total for what, own in found.items()} == pytest.approx(expected)


def test_with_a_noise_multiplier_the_shares_follow_the_gradients() -> None:
    privacy = private(epsilon=None, noise_multiplier=8.0, statistics="noised", prediction_share=0.3)
    found = squares(calibrate(privacy, [rounds(**ADMM)]).events[0])
    assert found["gradients"] == pytest.approx(10 * 4 / 64)
    assert found["predictions"] / found["gradients"] == pytest.approx(0.3 / 0.7)
    both = found["gradients"] + found["predictions"]
    assert found["moments"] / both == pytest.approx(0.1 / 0.9)
    assert found["statistics"] == pytest.approx(4 / 64)  # as one gradient sum


def test_a_round_is_as_good_as_one_release_of_its_effective_noise() -> None:
    """z_eff = (4/z_h² + 4/z_i²)^(−½), z_h relative to B as z_i is to C."""
    found = calibrate(private(), [rounds(gradients=1, predictions=1, steps=1, epochs=1)])
    z, z_h = found.multipliers[0], found.prediction_multipliers[0]
    effective = (4 / z_h**2 + 4 / z**2) ** -0.5
    assert epsilon_of([Gaussian("round", effective)], found.delta) == pytest.approx(1.0, rel=1e-6)


def test_each_client_adds_the_whole_noise_and_the_coordinator_none() -> None:
    one, many = (calibrate(private(), [rounds(clients=q)]) for q in (1, 4))
    assert one.training == many.training
    assert (one.training.intercept_clip, one.training.intercept_noise) == (0.0, 0.0)


@pytest.mark.parametrize("clients", [1, 2, 3, 9])
def test_without_any_one_clients_noise_a_secret_sum_has_all_of_it(clients: int) -> None:
    """Each of them gets the sum back, and knows its own."""
    asked = private(2.0)
    plain = calibrate(asked, [rounds(clients=clients, **ADMM)])
    secret = calibrate(asked, [rounds(clients=clients, secret=True, **ADMM)])
    assert secret.epsilons == plain.epsilons
    whole, own = plain.training.rounds[0], secret.training.rounds[0]
    others = max(clients - 1, 1)
    for name in ("noise", "moments_noise"):
        assert math.sqrt(others) * getattr(own, name) == pytest.approx(getattr(whole, name))
    assert own.prediction_noise == whole.prediction_noise
    parameters = private(2.0, predictions=EXACT)
    both = [calibrate(parameters, [rounds(clients=clients, secret=s)]) for s in (False, True)]
    assert both[0].training == both[1].training


def test_fan_out_does_not_matter_where_predictions_are_noised() -> None:
    one, many = (calibrate(private(), [rounds(copies=f, partners={1: f})]) for f in (1, 50))
    assert one.training == many.training


def test_every_slot_has_noise_of_its_own() -> None:
    found = calibrate(private(), [rounds(0), rounds(1, gradients=40)])
    assert found.multipliers[1] == pytest.approx(2 * found.multipliers[0])
    assert found.epsilons[0] == pytest.approx(found.epsilons[1])


# -- exact predictions ----------------------------------------------------------------------------


def test_one_noise_for_all_by_the_slot_that_needs_most() -> None:
    """Slot 0 is the one with copies; with them gone, slot 1's partners decide."""
    privacy = private(predictions=EXACT)
    found = calibrate(privacy, [rounds(0, copies=9, partners={1: 9}), rounds(1, copies=1)])
    assert found.multipliers[0] == found.multipliers[1]
    assert found.epsilons[0] == pytest.approx(1.0, rel=1e-4)
    assert found.epsilons[1] < 0.5
    other = calibrate(privacy, [rounds(0, copies=1, partners={1: 1}), rounds(1, copies=2)])
    assert other.epsilons[1] == pytest.approx(1.0, rel=1e-4)
    assert other.epsilons[0] < other.epsilons[1]
    assert other.multipliers[0] < found.multipliers[0]


def test_the_effective_noise_of_a_step_on_all_rows() -> None:
    """z_eff = (4 + Σ_j (2F_ij)² + (2F)²)^(−½) z, the last for the intercept, of numbers."""
    privacy = private(predictions=EXACT)
    own = rounds(gradients=1, steps=1, epochs=1, copies=7, partners={1: 3, 2: 5, 3: 0})
    found = calibrate(privacy, [own])
    effective = found.multipliers[0] / math.sqrt(4 + 6**2 + 10**2 + 14**2)
    assert epsilon_of([Gaussian("step", effective)], found.delta) == pytest.approx(1.0, rel=1e-6)
    assert set(squares(found.events[0])) == {
        "gradients", "gradients of slot 1", "gradients of slot 2", "intercept",
    }  # fmt: skip


def test_what_is_on_one_side_moves_by_half() -> None:
    privacy = private(epsilon=None, noise_multiplier=1.0, predictions=EXACT)
    usual, own = (
        squares(calibrate(privacy, [rounds(copies=7, partners={1: 3, 2: 5}, **more)]).events[0])
        for more in ({}, {"one_sided": frozenset({2}), "one_sided_slopes": True})
    )
    ratios = {what: own[what] / usual[what] for what in usual}
    assert ratios == pytest.approx({
        "gradients": 1, "gradients of slot 1": 1, "gradients of slot 2": 1 / 4, "intercept": 1 / 4,
    })  # fmt: skip


# -- the bound of what keeps its sign, by brute force ---------------------------------------------


def clipped(vectors: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors * np.minimum(1.0, 1.0 / np.maximum(norms, 1e-300))


def scores_of(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Small ones, large ones, and those that leave a loss no curvature."""
    return generator.normal(size=shape) * 10.0 ** generator.integers(-1, 4, (*shape[:-1], 1))


LOSSES = [("logistic_regression", 2), ("softmax_regression", 2), ("softmax_regression", 5)]


@pytest.mark.parametrize(("kind", "classes"), LOSSES)
def test_slopes_of_one_label_are_one_apart(kind: str, classes: int) -> None:
    """Of any two scores, with any weight; nearly attained, and by a number not at all."""
    generator = np.random.default_rng(classes)
    loss, pairs = loss_of(kind, classes), 20_000
    labels = generator.integers(0, classes, pairs)
    targets = labels.astype(float) if kind == "logistic_regression" else labels
    weights = 10.0 ** generator.uniform(-1, 2, pairs)
    outputs = 1 if kind == "logistic_regression" else classes
    one, other = (
        clipped(loss.gradient(scores_of(generator, (pairs, outputs)), targets, weights))
        for _ in range(2)
    )
    apart = np.linalg.norm(one - other, axis=1)
    assert apart.max() <= 1.0 + 1e-12
    assert apart.max() > 0.999
    numbers = [
        clipped(loss_of("linear_regression", 1).gradient(
            scores_of(generator, (pairs, 1)), np.zeros(pairs), weights))
        for _ in range(2)
    ]  # fmt: skip
    assert np.abs(numbers[0] - numbers[1]).max() > 1.999


@pytest.mark.parametrize(("kind", "classes"), LOSSES)
@pytest.mark.parametrize("alike", [True, False])
def test_gradients_of_rows_with_one_class_are_one_clip_apart(
    kind: str, classes: int, alike: bool
) -> None:
    """x̃ ⊗ Σ v over four joined rows, of which three have other scores in the other world."""
    generator = np.random.default_rng(classes)
    loss, rows, each = loss_of(kind, classes), 5_000, 4
    labels = generator.integers(0, classes, (rows, 1 if alike else each))
    labels = np.broadcast_to(labels, (rows, each)).ravel()
    targets = labels.astype(float) if kind == "logistic_regression" else labels
    outputs = 1 if kind == "logistic_regression" else classes
    features = scores_of(generator, (rows, 3))
    weights = 10.0 ** generator.uniform(-1, 2, rows * each)
    scores = [scores_of(generator, (rows, each, outputs)) for _ in range(2)]
    scores[1][:, 0] = scores[0][:, 0]
    found = []
    for world in scores:
        slopes = loss.gradient(world.reshape(-1, outputs), targets, weights)
        summed = slopes.reshape(rows, each, outputs).sum(axis=1)
        outer = features[:, :, None] * summed[:, None, :]
        found.append(clipped(outer.reshape(rows, -1)))
    apart = np.linalg.norm(found[0] - found[1], axis=1).max()
    assert apart > (0.99 if alike else 1.4)
    assert (apart <= 1.0 + 1e-12) == alike


def test_a_towers_gradients_of_three_classes_may_be_further_apart() -> None:
    """Jᵀ v for a J that turns the cone's sides apart: so that bound is not taken."""
    sides = np.array([[1.0, 0.0, -1.0], [0.0, 1.0, -1.0]])  # e_a − e_y, e_b − e_y
    jacobian = np.linalg.lstsq(sides, np.array([[5.0], [-5.0]]), rcond=None)[0]
    one, other = clipped(sides @ jacobian)
    assert np.linalg.norm(one - other) == pytest.approx(2.0)


def test_clients_share_the_noise_and_the_coordinator_noises_the_intercept() -> None:
    privacy = private(predictions=EXACT)
    one, many = (calibrate(privacy, [rounds(clients=q)]).training for q in (1, 4))
    assert many.rounds[0].noise == pytest.approx(one.rounds[0].noise / 2)
    assert many.rounds[0].prediction_noise == many.rounds[0].prediction_clip == 0.0
    assert many.intercept_clip == 1.0
    assert many.intercept_noise == pytest.approx(one.rounds[0].noise / one.rounds[0].clip)


@given(
    copies=st.integers(1, 10),
    others=st.integers(0, 15),
    partners=st.integers(1, 10),
    size=st.integers(1, 30),
    seed=st.integers(0, 2**32 - 1),
)
def test_batches_never_move_more_than_the_account_says(
    copies: int, others: int, partners: int, size: int, seed: int
) -> None:
    """The sensitivities of every batch, of a row whose copies meet `partners` rows of slot 1."""
    generator = np.random.default_rng(seed)
    partners, joined, epochs = min(partners, copies), copies + others, 2
    met = np.r_[np.arange(partners), generator.integers(0, partners, copies - partners)]
    own = other = intercept = 0.0
    for _ in range(epochs):
        order = generator.permutation(joined)
        for batch in np.split(order, range(size, joined, size)):
            mine = batch[batch < copies]
            own += 4.0 * bool(len(mine))
            other += (2.0 * len(np.unique(met[mine]))) ** 2
            intercept += (2.0 * len(mine)) ** 2
    batches = math.ceil(joined / size)
    planned = rounds(
        gradients=epochs * min(copies, batches), steps=epochs * batches, epochs=epochs,
        whole=batches == 1, copies=copies, partners={1: partners},
    )  # fmt: skip
    privacy = private(epsilon=None, noise_multiplier=1.0, predictions=EXACT)
    found = squares(calibrate(privacy, [planned]).events[0])
    most = epochs * (2 * copies) ** 2
    room = 1 + 1e-12
    assert own <= found["gradients"] * room
    assert other <= found["gradients of slot 1"] * room
    assert found["gradients of slot 1"] <= most * room
    assert intercept <= found["intercept"] * room
    if batches == 1:
        kinds = ("gradients", "gradients of slot 1", "intercept")
        assert [own, other, intercept] == pytest.approx([found[kind] for kind in kinds])


# -- statistics -----------------------------------------------------------------------------------


def test_statistics_take_their_share_and_categories_theirs_of_delta() -> None:
    privacy = private(statistics="noised", delta=1e-6)
    found = calibrate(privacy, [rounds()])
    assert statistics_delta(privacy, True) == pytest.approx(1e-7)
    assert statistics_delta(privacy, False) == 0.0
    assert statistics_delta(private(), True) == 0.0
    assert Threshold("categories", statistics_delta(privacy, True)) in found.events[0]
    assert squares(found.events[0])["statistics"] == pytest.approx(
        0.1 * budget(1.0, 0.9e-6) ** 2, rel=1e-6
    )
    event = next(e for e in found.events[0] if e.what == "statistics")
    assert isinstance(event, Gaussian)
    assert statistics_noise(privacy) == pytest.approx(event.multiplier * (1 + SLACK), rel=1e-12)
    assert statistics_noise(private()) == statistics_noise(Privacy(statistics="noised")) == 0.0


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("privacy", "slots", "said", "hints"),
    [
        (
            private(0.001), [rounds(1, gradients=1, predictions=1, steps=1)],
            r"epsilon = 0\.001, delta = 1e-06: the noise of the gradients would be \d+ times .*"
            "row of table position 2 takes part once; 1000 times is the most",
            "give a larger epsilon",
        ),
        (
            private(0.1, prediction_share=0.01), [rounds(predictions=12)],
            "noise of the predictions .* takes part 12 times",
            "give a larger epsilon, or fewer epochs",
        ),
        (
            private(0.1, predictions=EXACT), [rounds(copies=50, partners={1: 20})],
            "takes part 10 times, and is in 50 joined rows",
            "a larger epsilon, or fewer epochs, or a smaller max_fan_out, or predictions = 'gauss",
        ),
        (
            private(0.1, statistics="noised", statistics_share=1e-4), [rounds()],
            r"noise of the statistics would be \d+ times what one row can change; 1000",
            "a larger epsilon, or a larger statistics_share, or feature_bounds",
        ),
        (
            private(epsilon=None, noise_multiplier=2000.0), [rounds()],
            "noise_multiplier = 2000: the noise of the gradients would be 2000 times",
            "a smaller noise_multiplier",
        ),
        (
            private(noise_multiplier=1.0), [rounds()],
            "one of epsilon and noise_multiplier .* got 1.0 and 1.0", "give one",
        ),
        (private(epsilon=None), [rounds()], "got None and None", "give one"),
        (
            private(predictions=EXACT), [rounds(**ADMM)],
            "'admm' needs predictions = 'gaussian' .* got 'exact'", "algorithm = 'sgd'",
        ),
    ],
)  # fmt: skip
def test_budgets_that_cannot_be_met_are_refused(
    privacy: Privacy, slots: list[PlannedReleases], said: str, hints: str
) -> None:
    with pytest.raises(PrivacyError, match=said) as caught:
        calibrate(privacy, slots)
    assert hints in (caught.value.hint or "")


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip": 0.0},
        {"clip": math.inf},
        {"gradients": 0},
        {"clients": 0},
        {"moments": 1},
        {"moments_sensitivity": 1.0},
    ],
)
def test_rounds_of_nothing_are_faults(wrong: dict[str, Any]) -> None:
    with pytest.raises(InternalError, match="slot 0"):
        calibrate(private(), [rounds(**wrong)])


def test_batches_without_epochs_and_no_slots_are_faults() -> None:
    with pytest.raises(InternalError, match="no epochs"):
        calibrate(private(predictions=EXACT), [rounds(**BATCHES | {"epochs": 0})])
    with pytest.raises(InternalError, match="no slot"):
        calibrate(private(), [])


# -- after the run --------------------------------------------------------------------------------


def planned(privacy: Privacy) -> tuple[NoiseCalibration, Releases]:
    """And what a client says that did all of it."""
    found = calibrate(privacy, [rounds(**ADMM if privacy.predictions == NOISED else {})])
    own, plan = found.training.rounds[0], found.rounds[0]
    return found, Releases(
        run="run", slot=0, labels=privacy.label_epsilon or 0.0,
        statistics=statistics_noise(privacy), gradients=plan.gradients, clip=own.clip,
        noise=own.noise, predictions=plan.predictions, prediction_clip=own.prediction_clip,
        prediction_noise=own.prediction_noise, moments=plan.moments, row_bound=own.row_bound,
        moments_noise=own.moments_noise,
    )  # fmt: skip


RUNS = (
    private(statistics="noised", label_epsilon=2.0),
    private(predictions=EXACT),
)


@pytest.mark.parametrize("privacy", RUNS)
def test_what_was_planned_may_have_been_released(privacy: Privacy) -> None:
    found, said = planned(privacy)
    check_releases(found, 0, said, True)
    check_releases(found, 0, replace(said, gradients=1, predictions=1, labels=0.0), True)
    nothing = replace(said, gradients=0, clip=0.0, noise=0.0, moments=0, row_bound=0.0,
                      moments_noise=0.0, predictions=0, prediction_clip=0.0,
                      prediction_noise=0.0)  # fmt: skip
    check_releases(found, 0, nothing, False)
    with pytest.raises(InternalError, match="gradients 0, planned 1 to 10; predictions 0"):
        check_releases(found, 0, nothing, True)


@pytest.mark.parametrize("privacy", RUNS)
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gradients", 1), ("predictions", 1), ("moments", 1), ("clip", 1e-3), ("noise", -1e-3),
        ("noise", 1e-3), ("prediction_clip", 1e-3), ("prediction_noise", -1e-6),
        ("row_bound", 1e-3), ("moments_noise", -1e-6), ("statistics", -1e-6), ("labels", 1e-6),
    ],
)  # fmt: skip
def test_what_was_not_planned_is_a_fault(privacy: Privacy, name: str, change: float) -> None:
    found, said = planned(privacy)
    if getattr(said, name) == 0:
        change = abs(change)
    wrong = replace(said, **{name: getattr(said, name) + change})
    with pytest.raises(InternalError, match=f"slot 0: releases that were not planned: {name} "):
        check_releases(found, 0, wrong, False)


def test_noise_that_was_left_out_is_a_fault() -> None:
    found, said = planned(RUNS[0])
    for name in ("noise", "prediction_noise", "moments_noise", "statistics", "clip"):
        with pytest.raises(InternalError, match=f"{name} 0.0, planned"):
            check_releases(found, 0, replace(said, **{name: 0.0}), True)


def test_a_whole_joined_row_composes_the_rows_of_all_tables() -> None:
    """M rows of one μ have √M μ where predictions are noised, else M μ at most."""
    import dp_accounting

    def of(mu: float) -> float:
        return float(dp_accounting.get_epsilon_gaussian(1.0 / mu, 1e-6))

    for predictions, factor in (("gaussian", math.sqrt(3)), ("exact", 3.0)):
        asked = Privacy(epsilon=1.0, delta=1e-6, predictions=predictions, statistics="bounds")
        mu = budget(1.0, 1e-6)
        one = (Gaussian("predictions", 2 / mu, 2), Gaussian("gradients", 2 / mu, 2))
        found = joined_epsilon(asked, dict.fromkeys(range(3), one))
        assert found == (pytest.approx(of(factor * mu), rel=1e-6), 1e-6)
        assert joined_epsilon(asked, 3)[0] == pytest.approx(found[0], rel=1e-6)
        assert joined_epsilon(asked, 1)[0] == pytest.approx(1.0, rel=1e-6)
    # showing categories takes a tenth of delta of each table
    asked = replace(asked, predictions="gaussian", statistics="noised")
    mu = budget(1.0, 0.9e-6)
    epsilon = float(dp_accounting.get_epsilon_gaussian(1.0 / (math.sqrt(3) * mu), 0.7e-6))
    assert joined_epsilon(asked, 3) == (pytest.approx(epsilon, rel=1e-6), 1e-6)
    epsilon, delta = joined_epsilon(asked, 12)
    assert math.isfinite(epsilon)
    assert delta == pytest.approx(12e-6)
