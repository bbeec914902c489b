"""Slopes under noised scores: the noise averages out, and models of uncentred columns learn."""

from __future__ import annotations

import os
import random
import warnings
from dataclasses import replace

import numpy as np
import pytest

import sqlfl
from sqlfl.contract.privacy_specification import RoundNoise, RunNoise
from sqlfl.contract.schema import Client
from sqlfl.coordinator.join.scatter_gather import SlotMembers
from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.coordinator.rounds.problem import Problem
from sqlfl.methods.sgd.client import SgdStep
from sqlfl.methods.sgd.configuration import SgdConfiguration
from sqlfl.methods.sgd.coordinator import BOUND, OwnScores, Surrogate
from sqlfl.models.losses import Logistic, Loss, Softmax, Squared
from sqlfl.options.resolve import training_options
from tests.conftest import Open
from tests.methods.harness import DenseEngine, random_join, train
from tests.methods.test_private import run

ROWS = 400
CLIP = 1.0


@pytest.fixture
def one_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same noise whatever `SQLFL_SEED` is: one in five draws at ε = 1 hides what there is."""
    monkeypatch.setattr(os, "urandom", random.Random(2).randbytes)


def problem(loss: Loss, noise: float, weights: np.ndarray | None = None) -> Problem:
    """One table whose rows each occur twice."""
    rng = np.random.default_rng(0)
    targets: np.ndarray = rng.integers(0, max(loss.outputs, 2), 2 * ROWS)
    if isinstance(loss, Squared):
        targets = rng.normal(3, 2, 2 * ROWS)
    client = (Client("a"), 0)
    return Problem(
        run="r",
        mapping=TableMapping((np.repeat(np.arange(ROWS, dtype=np.int32), 2),), (ROWS,)),
        slots=(SlotMembers(0, (client,), np.array([0, ROWS])),),
        loss=loss,
        targets=targets,
        outputs=loss.outputs,
        options=training_options("logistic_regression", {"algorithm": "sgd", "l2": 0.0}),
        weights=weights,
        privacy=RunNoise({0: RoundNoise(1.0, 1.0, CLIP, noise)}),
    )


WEIGHTS = np.random.default_rng(3).integers(0, 3, 2 * ROWS).astype(float)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
@pytest.mark.parametrize("loss", [Squared(), Logistic(), Softmax(3)], ids=lambda loss: loss.name)
def test_slopes_add_up_to_nothing_and_noise_averages_out(
    loss: Loss, weights: np.ndarray | None
) -> None:
    own = problem(loss, 30.0, weights)
    surrogate = Surrogate(own)
    assert surrogate.applies
    rng = np.random.default_rng(1)
    truth = rng.normal(size=(2 * ROWS, loss.outputs)) + 0.7
    exact = surrogate.slopes(truth, own.targets, own.shares)
    np.testing.assert_allclose(exact.sum(axis=0), 0.0, atol=1e-8)
    noise = 30.0 * rng.normal(size=(300, *truth.shape))
    found = [surrogate.slopes(truth + n, own.targets, own.shares) for n in noise]
    spread = np.std(found, axis=0)
    assert np.all(np.abs(np.mean(found, axis=0) - exact) <= 5 * spread / np.sqrt(300) + 1e-9)
    counted = own.norm(loss.gradient(np.tile(surrogate.intercept(0 * truth), (len(truth), 1)),
                                     own.targets)) / np.sqrt(len(truth))  # fmt: skip
    shares = np.ones(len(truth)) if own.shares is None else own.shares
    assert np.max(spread[shares > 0] / shares[shares > 0, None]) <= 1.3 * BOUND * counted


def test_faint_noise_leaves_the_loss_as_it_is() -> None:
    assert not Surrogate(problem(Logistic(), 0.1)).applies
    assert Surrogate(problem(Logistic(), 3.0)).applies


def test_the_intercept_takes_up_the_mean_of_the_scores() -> None:
    """As far as the noise lets it be seen: 0.02 of it is in the mean, 100 drown it."""
    for noise, share in ((0.4, 0.99), (2000.0, 0.0)):
        surrogate = Surrogate(problem(Logistic(), noise))
        start = Logistic().initial_intercept(problem(Logistic(), noise).targets)
        for _ in range(4):
            found = surrogate.intercept(np.full((2 * ROWS, 1), 0.6))
        assert found == pytest.approx(start - share * 0.6, abs=0.01)


@pytest.mark.usefixtures("one_noise")
def test_uncentred_columns_learn_beside_noised_predictions(database: Open) -> None:
    """At ε = 1 the scores' noise is some fifty times their size."""
    con = database(
        "CREATE TABLE t AS SELECT i % 10 AS x, (i // 10) % 7 AS z, "
        "(hash(i) % 1000) / 1000 < 0.1 + 0.08 * (i % 10) AS y FROM range(8000) r(i)"
    )
    query = "SELECT x, z, y FROM a.t"
    with sqlfl.connect(progress=False) as fed:
        fed.attach("a", con)
        fed.sql(
            "TRAIN MODEL m USING logistic_regression TARGET y PRIVACY (epsilon = 1, "
            "predictions = 'gaussian', feature_bounds = {'x': [0, 100], 'z': [-50, 50]}) "
            f"FROM ({query})"
        )
        assert fed.model("m").privacy.noised
        row = fed.sql(f"EVALUATE MODEL m FROM ({query})").arrow().to_pylist()[0]
        fed.sql(f"TRAIN MODEL best USING logistic_regression TARGET y FROM ({query})")
        best = fed.sql(f"EVALUATE MODEL best FROM ({query})").arrow().to_pylist()[0]
    assert best["auc"] > 0.7
    assert row["auc"] > best["auc"] - 0.1


def test_a_blocks_own_noise_is_in_no_residual_of_its_own() -> None:
    """One table: what it is sent does not depend on its predictions, but for their mean."""
    own = problem(Squared(), 30.0, WEIGHTS)
    apart = OwnScores(own)
    before = apart.sums()[0]
    noised = 30.0 * np.random.default_rng(2).normal(size=(ROWS, 1))
    apart.take((noised - own.counted[0] @ noised / own.counted[0].sum(),))
    np.testing.assert_allclose(apart.sums()[0], before, atol=1e-9)
    intercept = apart.take((noised + 7.0,))
    moved = apart.sums()[0] - before
    np.testing.assert_allclose(moved, own.counted[0][None] * moved.sum() / own.counted[0].sum())
    assert intercept < own.loss.initial_intercept(own.targets, own.shares)


def test_other_blocks_count_as_far_as_their_noise_lets_them() -> None:
    rng = np.random.default_rng(4)
    rows = tuple(rng.integers(0, n, 4000, dtype=np.int32) for n in (1000, 500))
    scores = [rng.normal(size=(n, 1)) for n in (1000, 500)]
    for noise, low, high in ((0.3, 0.85, 1.0), (50.0, -0.1, 0.1)):
        own = replace(
            problem(Squared(), noise),
            mapping=TableMapping(rows, (1000, 500)),
            slots=tuple(SlotMembers(k, ((Client(f"p{k}"), 0),), np.array([0, n])) for k, n in
                        enumerate((1000, 500))),
            targets=rng.normal(size=4000),
            privacy=RunNoise(dict.fromkeys(range(2), RoundNoise(1.0, 1.0, CLIP, noise))),
        )  # fmt: skip
        apart = OwnScores(own)
        before = apart.sums()[0]
        apart.take(tuple(s + noise * rng.normal(size=s.shape) for s in scores))
        expected = own.mapping.scatter(0, scores[1][rows[1]])[:, 0]
        slope = float((apart.sums()[0] - before)[0] @ expected / (expected @ expected))
        assert low <= slope <= high


def test_descent_under_noise_ends_at_least_squares() -> None:
    """However large the noise of predictions is, and however many steps there are."""
    join = random_join("linear_regression", total=240, sizes=(240,), l2=1e-3)
    best = train(join, "lbfgs", epochs=50).theta
    for epochs in (150, 600):
        noise = RunNoise({0: RoundNoise(1e6, 1e-9, 1e3, 50.0)})
        found = run(join, "sgd", noise, epochs=epochs)
        explained = 1.0 - np.square(found.theta - best).sum() / np.square(best).sum()
        assert explained > 0.98


@pytest.mark.usefixtures("one_noise")
@pytest.mark.parametrize("epsilon", [1, 1000])
def test_a_model_that_may_be_no_better_than_a_constant_has_a_warning(
    epsilon: float, database: Open
) -> None:
    con = database(
        "CREATE TABLE t AS SELECT i % 10 AS x, i % 10 + (hash(i) % 100) / 100 AS y "
        "FROM range(3000) r(i)"
    )
    with sqlfl.connect(progress=False) as fed:
        fed.attach("a", con)
        text = (
            f"TRAIN MODEL m USING linear_regression TARGET y PRIVACY (epsilon = {epsilon}, "
            "predictions = 'gaussian', feature_bounds = {'x': [0, 10]}) FROM (SELECT x, y FROM a.t)"
        )
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            fed.sql(text)
        texts = [str(w.message) for w in told]
        assert any("nothing shows that it is better" in text for text in texts) == (epsilon == 1)
        row = fed.sql("EVALUATE MODEL m FROM (SELECT x, y FROM a.t)").arrow().to_pylist()[0]
        assert row["r2"] > (0.9 if epsilon == 1000 else 0.0)


def test_scores_beyond_all_numbers_fail_nothing() -> None:
    """A coordinator that sends a step without end learns of no row by an error."""
    engine = DenseEngine(np.array([[1.0], [1e-3], [0.0]]), np.ones(3), np.zeros(1), 0)
    configuration = SgdConfiguration(
        outputs=1, rows=3, total=3.0, clients=1, leader=True, l2=0.0, curvature=1.0, feedback=1.0,
        privacy=RoundNoise(1.0, 1.0, 1.0, 1.0),
    )  # fmt: skip
    assert configuration.fault() is None
    for wrong in (float("inf"), float("nan"), -1.0):
        assert replace(configuration, feedback=wrong).fault() is not None
    for theta, expected in ((2.0, [3.0, 1.002, 1.0]), (np.inf, [0.0, 0.0, 0.0])):
        step = SgdStep(configuration, engine, np.array([[theta]]))
        assert step.completes
        found = step.completed(np.ones((3, 1)), None)
        np.testing.assert_allclose(found[:, 0], expected)
