"""Methods over clipped and noised sums: without noise as they were, with it to the last epoch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from sqlfl.base.errors import ModelError
from sqlfl.contract import stopping
from sqlfl.contract.privacy_specification import RoundNoise, RunNoise
from sqlfl.coordinator.rounds.problem import Algorithm, Step, coordinator_of
from sqlfl.coordinator.rounds.search import Newton
from sqlfl.messages import SendSlope, Slope
from sqlfl.methods.sgd.coordinator import public_rates
from sqlfl.models.losses import Squared
from sqlfl.options.resolve import training_options
from sqlfl.options.training import TrainingOptions
from sqlfl.privacy.block_moments import row_bound
from tests.methods.harness import Join, MemoryChannel, block_of, planned_counts, random_join, train

KINDS = ("linear_regression", "logistic_regression", "softmax_regression")
SMALL = {"total": 240, "sizes": (240, 24, 8)}
HUGE, TINY = 1e6, 1e-9
TOWERS = {"hidden": (4,), "activation": "tanh", "learning_rate": 0.01}


def around(noise: float, *, clip: float = HUGE, slots: int = 3, exact: bool = False):
    """The same at all slots; `exact` predictions, and then a noised intercept."""
    own = RoundNoise(
        clip=clip,
        noise=noise,
        prediction_clip=0.0 if exact else HUGE,
        prediction_noise=0.0 if exact else noise,
        row_bound=1e3,
        moments_noise=TINY,
    )
    bound = clip if exact else 0.0
    return RunNoise(dict.fromkeys(range(slots), own), bound, noise if exact else 0.0)


@dataclass
class Run:
    algorithm: Algorithm
    channel: MemoryChannel
    steps: list[Step]
    theta: np.ndarray
    options: TrainingOptions


def run(join: Join, name: str, privacy: RunNoise, *, centred=True, **options) -> Run:
    trace = float(
        sum(t.shape[1] - o + (o > 0) for t, o in zip(join.tables, join.onehots, strict=True))
    )
    problem = replace(
        join.problem(name, private=True, **options), privacy=privacy, trace=trace, centred=centred
    )
    channel = MemoryChannel(join.engines)
    method = coordinator_of(name)(problem, channel)
    method.start()
    steps = list(method.steps())
    blocks = [block_of(channel.operators[m.addresses[0]]) for m in problem.slots]
    return Run(method, channel, steps, np.concatenate(blocks), problem.options)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("batch", [None, 60])
@pytest.mark.parametrize("kind", KINDS)
def test_descent_without_noise_is_that_of_all(kind: str, batch: int | None, exact: bool) -> None:
    join = random_join(kind, clients=(2, 1, 1), **SMALL)
    options = {"epochs": 3, "learning_rate": 0.1, "seed": 3}
    options |= {} if batch is None else {"batch_size": batch}
    private = run(join, "sgd", around(TINY, exact=exact), **options)
    plain = train(join, "sgd", **options)
    np.testing.assert_allclose(private.theta, plain.theta, atol=1e-6)
    np.testing.assert_allclose(private.algorithm.intercept, plain.algorithm.intercept, atol=1e-6)
    assert private.steps[-1].objective == pytest.approx(plain.objective, rel=1e-6)


@pytest.mark.parametrize("exact", [False, True])
def test_towers_descend_by_all_rows(exact: bool) -> None:
    join = random_join("logistic_regression", clients=(1, 2, 1), **SMALL)
    private = run(join, "sgd", around(TINY, exact=exact), epochs=3, **TOWERS)
    plain = train(join, "sgd", epochs=3, batch_size=10**6, **TOWERS)
    np.testing.assert_allclose(private.theta, plain.theta, atol=1e-5)
    assert private.channel.rounds == plain.channel.rounds


@pytest.mark.parametrize("kind", KINDS)
def test_admm_of_one_block_without_noise_is_that_of_all(kind: str) -> None:
    join = random_join(kind, total=240, sizes=(240,), categories=0)
    private = run(join, "admm", around(TINY, slots=1), epochs=6, tolerance=0.0)
    plain = train(join, "admm", epochs=6, tolerance=0.0)
    np.testing.assert_allclose(private.theta, plain.theta, atol=1e-6)
    np.testing.assert_allclose(private.algorithm.intercept, plain.algorithm.intercept, atol=1e-6)


@pytest.mark.parametrize(
    ("union", "centred"), [("exact", True), ("exact", False), ("consensus", False)]
)
def test_admm_without_noise_reaches_the_optimum(union: str, centred: bool) -> None:
    join = random_join("logistic_regression", clients=(2, 1, 1), l2=0.01, **SMALL)
    if not centred:
        for number, (table, centre) in enumerate(zip(join.tables, join.centres, strict=True)):
            join.tables[number] = table + np.append([0.8, -0.5, 0.3], np.zeros(4))
            join.centres[number] = np.zeros_like(centre)
    private = run(join, "admm", around(TINY), centred=centred, epochs=80, union=union)
    best = join.optimum()
    assert len(private.steps) == 80
    assert private.steps[-1].objective <= best * 1.01
    assert "probe" not in {kind for kinds in private.channel.kinds for kind in kinds}


def test_admm_takes_the_intercept_for_a_block_where_columns_are_like_it() -> None:
    """Columns near 1: with r = M, all blocks and the intercept step as if they were alone."""
    join = random_join(total=240, sizes=(240, 240), categories=0, numeric=1, l2=1e-3)
    join.tables = [1.0 + 0.1 * table for table in join.tables]

    def objectives(centred: bool) -> list[float]:
        found = run(join, "admm", around(TINY, slots=2), centred=centred, epochs=20, rho=0.05)
        return [step.objective for step in found.steps]

    assert all(np.diff(objectives(False)) < 0)
    assert objectives(True)[-1] > 1e3  # what is not so


def test_towers_by_admm_without_noise_descend() -> None:
    join = random_join("logistic_regression", clients=(1, 2, 1), **SMALL)
    options = TOWERS | {"local_epochs": 20, "inner_rounds": 2}
    private = run(join, "admm", around(TINY), epochs=4, **options)
    objectives = [step.objective for step in private.steps]
    start = join.loss.value(
        np.broadcast_to(join.loss.initial_intercept(join.targets), (240, 1)), join.targets
    )
    assert objectives[-1] < objectives[0] < 1.1 * start
    assert objectives[-1] < 0.9 * start


@pytest.mark.parametrize("optimizer", ["plain", "momentum"])
@pytest.mark.parametrize("correlation", [0.0, 0.95])
@pytest.mark.parametrize("centred", [True, False])
def test_the_public_step_descends(optimizer: str, correlation: float, centred: bool) -> None:
    """However the columns are correlated, among themselves or with the intercept."""
    join = random_join("linear_regression", total=240, sizes=(240,) * 4, correlation=correlation)
    if not centred:
        for number, (table, centre) in enumerate(zip(join.tables, join.centres, strict=True)):
            table[:, :3] = np.abs(table[:, :3]) / np.abs(table[:, :3]).max(axis=0)
            join.centres[number] = np.zeros_like(centre)
    private = run(
        join, "sgd", around(TINY, slots=4), centred=centred, epochs=12, optimizer=optimizer
    )
    objectives = [step.objective for step in private.steps]
    if optimizer == "plain":
        assert all(np.diff(objectives) < 0)
    assert max(objectives) == objectives[0]  # the heavy ball swings
    assert objectives[-1] < 0.7 * objectives[0] or not centred
    assert "probe" not in {kind for kinds in private.channel.kinds for kind in kinds}


def test_the_public_step_is_known_without_rows() -> None:
    join = random_join("logistic_regression", l2=0.5, **SMALL)
    problem = replace(join.problem("sgd"), privacy=around(TINY), trace=7.0, centred=True)
    assert public_rates(problem, 100).blocks == pytest.approx(1.0 / (0.25 * 7.0 + 0.5))
    assert public_rates(problem, 100).head == pytest.approx(4.0)
    problem = replace(problem, centred=False)
    rate = 1.0 / (0.25 * 8.0 + 0.5)
    assert public_rates(problem, 100).blocks == pytest.approx(rate)
    assert public_rates(problem, 100).head == pytest.approx(rate)
    # scores that noise drowns do not hold the parameters back: the number of steps is to
    problem = replace(problem, privacy=around(9.0))
    assert public_rates(problem, 100).blocks == pytest.approx(rate / 5)
    assert public_rates(problem, 10).blocks == pytest.approx(rate)
    # of a number, relative to how much it varies
    for spread, shortened in ((1.0, 5.0), (1e3, 1.0)):
        squared = replace(problem, loss=Squared(), targets=spread * np.resize([-1.0, 1.0], 240))
        assert public_rates(squared, 100).blocks == pytest.approx(1.0 / 8.5 / shortened)
    swinging = {"algorithm": "sgd", "l2": 0.5, "optimizer": "momentum", "momentum": 0.9}
    heavy = replace(problem, options=training_options("logistic_regression", swinging))
    assert public_rates(heavy, 100).blocks == pytest.approx(0.1 * rate / 5)
    assert public_rates(heavy, 10).blocks == pytest.approx(0.2 * rate)
    assert public_rates(replace(heavy, privacy=around(0.1)), 100).blocks == pytest.approx(
        0.2 * rate
    )


CASES = [
    ("sgd", {"learning_rate": 0.1}, False),
    ("sgd", {"learning_rate": 0.1, "batch_size": 50}, False),
    ("sgd", {"learning_rate": 0.1, "batch_size": 50}, True),
    ("sgd", TOWERS, False),
    ("sgd", TOWERS | {"batch_size": 100, "dropout": 0.2}, True),
    ("admm", {}, False),
    ("admm", {"union": "consensus", "inner_rounds": 3}, False),
    ("admm", TOWERS | {"local_epochs": 3, "inner_rounds": 2}, False),
]


@pytest.mark.parametrize(("name", "options", "exact"), CASES)
def test_clients_release_no_more_than_is_planned(name: str, options: dict, exact: bool) -> None:
    """And as much, where all rows are in each step: an account of fewer would claim too little."""
    join = random_join("logistic_regression", clients=(1, 2, 1), **SMALL)
    options = {"epochs": 3, "seed": 1, "batch_size": None} | options
    found = run(join, name, around(0.5, clip=1.0, exact=exact), **options)
    for (_, slot), operator in found.channel.operators.items():
        _, most = planned_counts(found.options, join, slot)
        counts = operator.guard.counts
        assert all(got <= limit for got, limit in zip(counts, most, strict=True)), (slot, counts)
        if options["batch_size"] is None or slot > 0:
            assert counts == most


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "options"),
    [("sgd", {}), ("sgd", TOWERS), ("admm", {}), ("admm", TOWERS)],
)
def test_noise_alone_does_not_diverge(kind: str, name: str, options: dict) -> None:
    """All epochs are made at the largest noise there is."""
    join = random_join(kind, **SMALL)
    own = RoundNoise(10.0, 1e4, 50.0, 5e4, row_bound(3), 1e3)
    found = run(join, name, RunNoise(dict.fromkeys(range(3), own)), epochs=4, **options)
    assert len(found.steps) == 4


def test_no_step_follows_from_a_curvature_that_has_vanished() -> None:
    """As that of a logistic loss where noise has taken all scores far out."""
    assert Newton(np.array([[2.5e-316]])).step(np.array([-0.1])) == 0.0
    found = Newton(np.diag([0.0, 4.0])).step(np.array([-0.1, 2.0]))
    np.testing.assert_array_equal(found, [0.0, -0.5])


def test_steps_that_diverge_still_end_with_an_error() -> None:
    with pytest.raises(ModelError, match="diverge"):
        run(random_join(**SMALL), "sgd", around(TINY), epochs=100, learning_rate=50.0)


def test_nothing_that_is_exact_ends_a_run_whose_parameters_alone_are_promised() -> None:
    """Scores far beyond all targets; and an objective that does not change at all."""
    join = random_join(l2=0.0, **SMALL)
    privacy = around(TINY, clip=1.0, exact=True)
    far = run(join, "sgd", privacy, epochs=5, learning_rate=1e14)
    assert len(far.steps) == 5
    assert far.steps[-1].objective > 1e20
    still = run(join, "sgd", privacy, epochs=5, learning_rate=1e-40)
    assert still.steps[0].objective == still.steps[-1].objective
    assert len(still.steps) == 5
    assert not any(step.converged for step in (*far.steps, *still.steps))


def test_the_intercept_of_exact_predictions_is_clipped_and_noised() -> None:
    join = random_join(total=240, sizes=(240,))
    join.targets = np.append(np.zeros(200), np.full(40, 90.0))
    own = RoundNoise(1.0, 1e-6)

    def moved(clip: float, noise: float) -> float:
        privacy = RunNoise({0: own}, clip, noise)
        found = run(join, "sgd", privacy, epochs=1, learning_rate=1.0)
        return float(found.algorithm.intercept[0] - join.targets.mean())

    # slopes are 15 and −75 at the mean of 15
    assert moved(100.0, 1e-6) == pytest.approx(0.0, abs=1e-6)
    assert moved(15.0, 1e-6) == pytest.approx(-(200 - 40) * 15.0 / 240)
    assert moved(1.0, 1e-6) == pytest.approx(-(200 - 40) / 240)
    draws = np.array([moved(1.0, 24.0) for _ in range(60)]) + 160 / 240
    assert 0.06 < draws.std() < 0.15
    assert abs(draws.mean()) < 0.06


@pytest.mark.parametrize("name", ["sgd", "admm"])
def test_a_tolerance_is_of_noised_scores_and_ends_the_run(name: str) -> None:
    join = random_join(l2=0.1, **SMALL)
    found = run(join, name, around(TINY), epochs=400, tolerance=1e-4)
    ending = found.steps[-1].ending
    assert ending is not None
    assert ending.short == stopping.STILL
    assert len(found.steps) < 400
    # the gradient is an exact function of what is protected: nobody asks for it
    assert (ending.converged, ending.gradient, ending.gap) == (False, None, None)
    assert not any(isinstance(m, SendSlope | Slope) for m in found.channel.sent)
