"""Audits: attacks on the client's own code prove no more ε than is claimed; on broken builds, more.

Noise comes from a seeded generator here, so that the tests always say the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from sqlfl.contract.privacy_specification import RoundNoise
from sqlfl.coordinator.protection import SlotExposure, planned_releases
from sqlfl.options.privacy import Privacy
from sqlfl.options.resolve import training_options
from sqlfl.party import release_guard as guard
from sqlfl.party.release_guard import ReleaseGuard
from sqlfl.privacy.calibration import calibrate
from sqlfl.privacy.samplers import Entropy
from tests.privacy import auditing, canaries

Array = np.ndarray

STEPS, CLIENTS = 3, 4
EPSILON, DELTA = 1.0, 0.05
"""Claimed where many runs are audited: with a δ so large that few of them prove something."""
ONE_EPSILON, ONE_DELTA = 2.0, 1e-5
"""Claimed where one is."""
CANARIES, GUESSED = 1000, 0.1

add_gaussian = guard.add_gaussian


def planned(
    epsilon: float, delta: float, predictions: str = "gaussian", clients: int = CLIENTS
) -> RoundNoise:
    """What each of the slot's clients does in a run of some steps that claims (ε, δ)."""
    slot = planned_releases(
        training_options("linear_regression", {"algorithm": "sgd", "epochs": STEPS}, private=True),
        SlotExposure(slot=0, joined=CANARIES, clip=1.0, clients=clients, copies=1),
    )
    privacy = Privacy(
        epsilon=epsilon, delta=delta, clip=1.0, predictions=predictions, statistics="bounds"
    )
    found = calibrate(privacy, [slot])
    assert found.epsilons[0] <= epsilon
    return found.training.rounds[0]


def proved(
    rounds: canaries.Rounds,
    own: RoundNoise,
    runs: int,
    told: RoundNoise | None = None,
    attacks: slice = slice(None),
) -> float:
    """ε at DELTA, by so many runs with each of two rows in the canary's place."""
    worlds = [
        np.array([rounds.scores(np.array([coin]), own, seed, told)[0] for seed in seeds])
        for coin, seeds in ((1.0, range(runs)), (-1.0, range(runs, 2 * runs)))
    ]
    return auditing.from_scores(*(world[:, attacks] for world in worlds), DELTA)


def against_the_coordinator(runs: int, told: RoundNoise | None = None) -> float:
    return proved(canaries.one_canary(STEPS), planned(EPSILON, DELTA), runs, told)


def half_the_noise(values: Array, sigma: float, entropy: Entropy) -> Array:
    return add_gaussian(values, sigma / 2, entropy)


def no_clip(self: ReleaseGuard, norms: Array) -> Array:
    return np.ones_like(norms)


def noise_used_again(
    self: ReleaseGuard, values: Array, rows: npt.NDArray[np.int64] | None
) -> Array:
    bound, sigma = self.privacy.prediction_clip, self.privacy.prediction_noise
    if not hasattr(self, "_first"):
        self._first = add_gaussian(np.zeros_like(values), sigma, self._entropy)
    return np.clip(values, -bound, bound) + self._first


Broken = Callable[[pytest.MonkeyPatch], None]
BROKEN: dict[str, Broken] = {
    "half the noise": lambda patch: patch.setattr(guard, "add_gaussian", half_the_noise),
    "no clip": lambda patch: patch.setattr(ReleaseGuard, "factors", no_clip),
    "noise used again": lambda patch: patch.setattr(ReleaseGuard, "predictions", noise_used_again),
}


def test_many_runs_prove_no_more_than_is_claimed() -> None:
    found = against_the_coordinator(1000)
    # and the audit is no blunt instrument
    assert 0.3 * EPSILON < found <= EPSILON


@pytest.mark.parametrize("name", BROKEN)
def test_many_runs_catch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BROKEN[name](monkeypatch)
    assert against_the_coordinator(250) > EPSILON


def test_many_runs_catch_noise_shared_out_where_each_client_is_seen() -> None:
    """Each client of a slot adds all of the noise: the coordinator sees it alone."""
    own = planned(EPSILON, DELTA)
    assert own.noise == pytest.approx(planned(EPSILON, DELTA, clients=1).noise)
    told = replace(own, noise=own.noise / CLIENTS, prediction_noise=own.prediction_noise)
    assert against_the_coordinator(250, told) > EPSILON


PARAMETERS = slice(0, 2)
"""Scores that take gradient sums, and so parameters, alone."""


def test_parameters_are_noised_by_all_clients_together() -> None:
    """Where only the sum of gradients is promised to hide a row: a quarter of it at each of 16."""
    clients = 16
    own = planned(EPSILON, DELTA, "exact", clients)
    whole = planned(EPSILON, DELTA, "exact", 1)
    assert own.noise * math.sqrt(clients) == pytest.approx(whole.noise)
    rounds = canaries.one_canary(STEPS, clients)
    assert proved(rounds, whole, 100, own, PARAMETERS) <= EPSILON
    wrong = replace(own, noise=whole.noise / clients)
    assert proved(rounds, whole, 100, wrong, PARAMETERS) > EPSILON


def test_exact_predictions_tell_more_than_is_claimed_of_parameters() -> None:
    """Which is why the report says `none` of them."""
    own = planned(EPSILON, DELTA, "exact", 1)
    assert proved(canaries.one_canary(STEPS), own, 100) > EPSILON


def from_one_run(told: RoundNoise | None = None) -> float:
    """The largest ε that any of the adversary's scores proves from one run with many canaries."""
    rounds = canaries.many_canaries(CANARIES, STEPS)
    coins = np.random.default_rng(11).choice([-1.0, 1.0], CANARIES)
    scores = rounds.scores(coins, planned(ONE_EPSILON, ONE_DELTA), 12, told)
    found = []
    for number in range(scores.shape[1]):
        guesses, right = auditing.guesses_right(scores[:, number], coins, GUESSED)
        found.append(auditing.from_one_run(CANARIES, guesses, right, ONE_DELTA))
    return max(found)


def test_one_run_proves_no_more_than_is_claimed() -> None:
    assert from_one_run() <= ONE_EPSILON


def test_one_run_catches_a_fifth_of_the_noise() -> None:
    own = planned(ONE_EPSILON, ONE_DELTA)
    told = replace(own, noise=own.noise / 5, prediction_noise=own.prediction_noise / 5)
    assert from_one_run(told) > ONE_EPSILON


@pytest.mark.parametrize("name", ["no clip", "noise used again"])
def test_one_run_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BROKEN[name](monkeypatch)
    assert from_one_run() > ONE_EPSILON


def of_a_tower() -> float:
    """ε that the first gradient sum of a tower proves, with many canaries."""
    count = 300
    coins = np.random.default_rng(13).choice([-1.0, 1.0], count)
    scores = canaries.tower_scores(coins, planned(ONE_EPSILON, ONE_DELTA), 14)
    guesses, right = auditing.guesses_right(scores, coins, 0.5)
    return auditing.from_one_run(count, guesses, right, ONE_DELTA)


def test_one_run_of_a_tower_proves_no_more_than_is_claimed() -> None:
    assert of_a_tower() <= ONE_EPSILON


@pytest.mark.parametrize("name", ["no clip"])
def test_one_run_of_a_tower_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BROKEN[name](monkeypatch)
    assert of_a_tower() > ONE_EPSILON


def test_guesses_of_one_run_bound_what_they_should() -> None:
    """Randomised response says the truth with probability e^ε/(1+e^ε): its ε is what is proved."""
    rng = np.random.default_rng(0)
    proved = []
    for epsilon in (0.5, 1.0, 2.0):
        right = int((rng.random(20_000) < 1 / (1 + math.exp(-epsilon))).sum())
        proved.append(auditing.from_one_run(20_000, 20_000, right, 0.0) / epsilon)
    assert all(0.9 < share < 1.0 for share in proved)
    # one part in a million may fail, of each of as many canaries
    assert auditing.from_one_run(1000, 100, 100, 1e-6) < auditing.from_one_run(1000, 100, 100, 0.0)


def test_rates_bound_what_they_should() -> None:
    """10 of 100 false alarms at 80 of 100 hits: ln((0.71 − δ) / 0.18) , at 95 %."""
    assert auditing.from_rates(80, 100, 10, 100, 0.0) == pytest.approx(1.391, abs=1e-3)
    assert auditing.from_rates(80, 100, 10, 100, 0.1) == pytest.approx(1.239, abs=1e-3)
    assert auditing.from_rates(20, 100, 25, 100, 0.0) == 0.0
