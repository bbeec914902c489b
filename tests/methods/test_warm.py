"""Training that starts from a model: the same optimum, from wherever it starts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize

from sqlfl.coordinator.rounds.problem import coordinator_of
from tests.depth import in_turn
from tests.methods.harness import Join, MemoryChannel, gaps, random_join, train

KINDS = ("linear_regression", "logistic_regression", "softmax_regression")
METHODS = {
    "lbfgs": {"algorithm": "lbfgs"},
    "admm": {"algorithm": "admm", "epochs": 100},
    "consensus": {"algorithm": "admm", "union": "consensus", "epochs": 100},
    "sgd": {"algorithm": "sgd", "epochs": 300},
}


def joined(kind: str, **options) -> Join:
    join = random_join(kind, l2=1e-2, clients=(1, 2, 1), **options)
    weights = np.random.default_rng(1).exponential(size=len(join.targets))
    weights[::7] = 0.0
    return replace(join, weights=weights, engines={})


def random_blocks(join: Join, size: float = 0.5) -> dict:
    rng = np.random.default_rng(8)
    found = {}
    for members in join.problem().slots:
        theta = size * rng.normal(size=(join.tables[members.slot].shape[1], join.loss.outputs))
        found |= dict.fromkeys(members.addresses, theta)
    return found


def design_theta(join: Join, blocks: dict) -> np.ndarray:
    return np.concatenate([blocks[m.addresses[0]] for m in join.problem().slots])


def best_intercept(join: Join, theta: np.ndarray) -> np.ndarray:
    """The least loss over constants, by a general minimiser."""
    h, y, w = join.design @ theta, join.targets, join.weights
    w = np.ones(len(y)) if w is None else w
    found = optimize.minimize(
        lambda b: join.loss.value(h + b, y, w),
        np.zeros(join.loss.outputs),
        jac=lambda b: w @ join.loss.gradient(h + b, y) / w.sum(),
        options={"gtol": 1e-10},
    )
    return found.x


@pytest.mark.parametrize(("name", "kind"), in_turn(tuple(METHODS), KINDS, each=2))
def test_any_start_leads_to_the_same_optimum(name: str, kind: str) -> None:
    options = METHODS[name]
    join = joined(kind)
    trained = train(join, start=random_blocks(join), **options)
    close = {"lbfgs": 1e-7, "admm": 1e-4, "sgd": 5e-3}[options["algorithm"]]
    assert abs(gaps(join, trained)[-1]) <= close
    exact = join.objective(trained.algorithm.intercept, trained.theta)
    assert trained.objective == pytest.approx(exact, rel=1e-6)
    scores = join.design @ trained.theta + trained.algorithm.intercept
    np.testing.assert_allclose(join.scores(trained.algorithm), scores, atol=2e-5)


@pytest.mark.parametrize("options", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_it_starts_at_the_blocks_and_the_intercept_that_suits_them(kind: str, options) -> None:
    join = joined(kind)
    blocks = random_blocks(join)
    problem = join.problem(warm=True, **options)
    method = coordinator_of(options["algorithm"])(problem, MemoryChannel(join.engines, blocks))
    method.start()
    theta = design_theta(join, blocks)
    expected = best_intercept(join, theta)
    # constants that all classes share make no difference
    shift = method.intercept - expected
    assert np.ptp(shift) <= 1e-5
    assert kind == "softmax_regression" or abs(shift).max() <= 1e-5
    scores = join.design @ theta + method.intercept
    np.testing.assert_allclose(join.scores(method), scores, atol=1e-5)
    step = next(iter(method.steps()))
    before = join.objective(expected, theta)
    assert options["algorithm"] == "admm" or step.objective < before


@pytest.mark.parametrize("name", ["lbfgs", "admm", "consensus"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_converged_model_takes_fewer_iterations(kind: str, name: str) -> None:
    options = METHODS[name]
    join = joined(kind)
    cold = train(join, **options)
    assert cold.steps[-1].converged
    warm = train(join, start=cold.blocks, **options)
    assert warm.steps[-1].converged
    assert len(warm.steps) <= max(2, len(cold.steps) // 2)
    assert warm.objective == pytest.approx(cold.objective, rel=1e-5)
    assert warm.steps[0].objective == pytest.approx(cold.objective, rel=1e-4)


@pytest.mark.parametrize("clients", [None, (2, 3, 1)])
def test_gradient_descent_goes_on_where_it_was(clients) -> None:
    join = random_join(l2=0.01, clients=clients)
    options = {"algorithm": "sgd", "learning_rate": 0.2}
    whole = train(join, epochs=7, **options)
    first = train(join, epochs=3, **options)
    second = train(join, start=first.blocks, epochs=4, **options)
    np.testing.assert_allclose(second.theta, whole.theta, atol=2e-6)
    np.testing.assert_allclose(second.algorithm.intercept, whole.algorithm.intercept, atol=2e-6)
    assert second.objective == pytest.approx(whole.objective, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_descent_from_a_model_is_the_central_one(kind: str) -> None:
    join = joined(kind)
    blocks = random_blocks(join)
    theta, rate = design_theta(join, blocks), 0.2
    intercept = best_intercept(join, theta)
    for _ in range(3):
        constant, slope = join.gradient(intercept, theta)
        theta, intercept = theta - rate * slope, intercept - rate * constant
    trained = train(join, "sgd", start=blocks, epochs=3, learning_rate=rate)
    np.testing.assert_allclose(trained.theta, theta, atol=3e-6)
    assert trained.objective == pytest.approx(join.objective(intercept, theta), rel=1e-6)
