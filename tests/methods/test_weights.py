"""A weight of 2 is the row twice; a row of weight 0 is predicted and counts nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression, Ridge

from sqlfl.coordinator.rounds.lanczos import largest_eigenvalue
from sqlfl.coordinator.rounds.problem import coordinator_of
from sqlfl.messages import Residuals
from sqlfl.methods.admm import coordinator as admm
from tests.depth import in_turn
from tests.methods.harness import Join, MemoryChannel, Trained, gaps, random_join, train

KINDS = ("linear_regression", "logistic_regression", "softmax_regression")
METHODS = {
    "lbfgs": {"algorithm": "lbfgs", "epochs": 6, "tolerance": 0.0},
    "admm": {"algorithm": "admm", "epochs": 6, "tolerance": 0.0},
    "consensus": {"algorithm": "admm", "union": "consensus", "epochs": 4, "tolerance": 0.0},
    "sgd": {"algorithm": "sgd", "epochs": 4, "learning_rate": 0.3},
}


def weighted(kind: str, weights: np.ndarray | None = None, **options) -> Join:
    join = random_join(kind, total=600, sizes=(600, 60, 12), **options)
    if weights is None:
        weights = np.random.default_rng(4).integers(0, 4, 600)
    return replace(join, weights=weights.astype(float), engines={})


def duplicated(join: Join) -> Join:
    """The same join with every joined row as often as its weight says."""
    often = np.repeat(np.arange(len(join.targets)), join.weights.astype(int))
    rows = [p[often] for p in join.rows]
    return replace(join, rows=rows, targets=join.targets[often], weights=None, engines={})


def both(join: Join, options: dict) -> tuple[Trained, Trained]:
    """With weights and with repetitions; the power rounds' random vectors have other lengths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admm, "largest_eigenvalue", lambda *_: (1.8, 1.0))
        return train(join, **options), train(duplicated(join), **options)


@pytest.mark.parametrize("options", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("clients", [None, (2, 1, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_an_integer_weight_is_the_row_so_often(kind: str, clients, options: dict) -> None:
    join = weighted(kind, clients=clients, l2=1e-3)
    one, many = both(join, options)
    np.testing.assert_allclose(one.theta, many.theta, atol=5e-6)
    np.testing.assert_allclose(one.algorithm.intercept, many.algorithm.intercept, atol=5e-6)
    np.testing.assert_allclose(
        [s.objective for s in one.steps], [s.objective for s in many.steps], rtol=2e-6
    )


@given(st.sampled_from(KINDS), st.sampled_from(list(METHODS)), st.integers(0, 2**20), st.booleans())
def test_weights_are_repetitions(kind: str, method: str, seed: int, union: bool) -> None:
    rng = np.random.default_rng(seed)
    total = int(rng.integers(20, 80))
    join = random_join(
        kind,
        seed=seed,
        total=total,
        sizes=(total, 7),
        l2=float(rng.choice([1e-3, 1e-1])),
        clients=(2, 2) if union else (1, 1),
    )
    weights = rng.choice([0, 1, 2, 5], total)
    weights[: len(np.unique(join.targets)) + 3] = 1
    if kind != "linear_regression":
        weights[np.unique(join.targets, return_index=True)[1]] = 1
    join = replace(join, weights=weights.astype(float), engines={})
    one, many = both(join, METHODS[method])
    expected, first = many.steps[-1].objective, many.steps[0].objective
    assert one.objective == pytest.approx(expected, rel=1e-5, abs=1e-5 * first)


@pytest.mark.parametrize(
    ("options", "kind"),
    in_turn(
        (
            {"algorithm": "lbfgs"},
            {"algorithm": "admm", "epochs": 200},
            {"algorithm": "admm", "union": "consensus", "epochs": 100},
            {"algorithm": "sgd", "epochs": 400},
        ),
        KINDS,
        each=2,
    ),
    ids=str,
)
def test_weights_from_a_millionth_to_a_million(options: dict, kind: str) -> None:
    rng = np.random.default_rng(9)
    join = weighted(kind, 10.0 ** rng.uniform(-6, 6, 600), l2=1e-2, clients=(1, 2, 1))
    trained = train(join, **options)
    gap = gaps(join, trained)[-1]
    assert abs(gap) <= (1e-6 if options["algorithm"] == "lbfgs" else 2e-3)
    exact = join.objective(trained.algorithm.intercept, trained.theta)
    assert trained.objective == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize(
    "options", [{"algorithm": "lbfgs"}, {"algorithm": "admm", "epochs": 200}], ids=["lbfgs", "admm"]
)
def test_equals_scikit_learn(options: dict) -> None:
    rng = np.random.default_rng(2)
    weights = rng.exponential(size=600) * (rng.random(600) < 0.8)
    join = weighted("linear_regression", weights, l2=1e-2)
    ridge = Ridge(alpha=join.l2 * weights.sum()).fit(
        join.design, join.targets, sample_weight=weights
    )
    trained = train(join, **options)
    np.testing.assert_allclose(trained.theta[:, 0], ridge.coef_, atol=2e-3)
    assert trained.algorithm.intercept[0] == pytest.approx(ridge.intercept_, abs=2e-3)
    join = weighted("logistic_regression", weights, l2=1e-2)
    logistic = LogisticRegression(C=1 / (join.l2 * weights.sum()), tol=1e-10, max_iter=10000)
    logistic.fit(join.design, join.targets, sample_weight=weights)
    trained = train(join, **options)
    np.testing.assert_allclose(trained.theta[:, 0], logistic.coef_[0], atol=5e-3)
    assert trained.algorithm.intercept[0] == pytest.approx(logistic.intercept_[0], abs=5e-3)


def central(join: Join, batch: int, epochs: int, rate: float, seed: int):
    """Plain SGD over the joined rows that weigh something, by their weighted means."""
    rng = np.random.default_rng(seed)
    x, y, w = join.design, join.targets, join.weights
    theta = np.zeros((x.shape[1], join.loss.outputs))
    intercept = join.loss.initial_intercept(y, w)
    own = np.flatnonzero(w)
    for _ in range(epochs):
        order = own[rng.permutation(len(own))]
        for rows in np.split(order, range(batch, len(own), batch)):
            share = w[rows, None] / w[rows].sum()
            g = share * join.loss.gradient(x[rows] @ theta + intercept, y[rows])
            theta = theta - rate * (x[rows].T @ g + join.l2 * theta)
            intercept = intercept - rate * g.sum(axis=0)
    return intercept, theta


@pytest.mark.parametrize("clients", [None, (3, 2, 1)])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_of_rows_that_weigh_something(kind: str, clients) -> None:
    join = weighted(kind, clients=clients, l2=0.01)
    trained = train(join, "sgd", epochs=3, learning_rate=0.1, batch_size=100, seed=5)
    intercept, theta = central(join, 100, 3, 0.1, 5)
    np.testing.assert_allclose(trained.theta, theta, atol=2e-6)
    np.testing.assert_allclose(trained.algorithm.intercept, intercept, atol=2e-6)
    sent = [m for m in trained.channel.sent if isinstance(m, Residuals)]
    assert {m.divisor for m in sent} <= {100.0, float(np.count_nonzero(join.weights) % 100)}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_unlike_weights_approach_the_optimum(kind: str) -> None:
    rng = np.random.default_rng(9)
    join = weighted(kind, rng.exponential(size=600) ** 2, noise=1.0, l2=1e-2)
    gap = gaps(join, train(join, "sgd", epochs=30, batch_size=60))
    assert gap[-1] <= 0.12
    assert gap[-1] < gap[0]


@pytest.mark.parametrize("zeros", [0.0, 0.5])
def test_the_curvature_is_that_of_the_weighted_rows(zeros: float) -> None:
    rng = np.random.default_rng(0)
    join = weighted("linear_regression", rng.exponential(size=600) * (rng.random(600) >= zeros))
    problem = join.problem("sgd", learning_rate=0.1)
    method = coordinator_of("sgd")(problem, MemoryChannel(join.engines))
    method.start()
    w = join.weights / join.weights.sum()
    x = join.design - w @ join.design  # a constant is the intercept's
    exact = np.linalg.eigvalsh(x.T @ (w[:, None] * x))
    found = [
        largest_eigenvalue(
            method._conversation.probe,
            problem.passes,
            8,
            np.random.default_rng(seed),
            problem.shares,
        )
        for seed in range(40)
    ]
    uncentred = np.linalg.eigvalsh(join.design.T @ (w[:, None] * join.design))[-1]
    assert all(exact[-1] * 0.98 <= top <= uncentred * 1.1 for top, _ in found)
    assert np.mean([trace for _, trace in found]) == pytest.approx(exact.sum(), rel=0.1)
