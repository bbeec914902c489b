"""Sharing ADMM: convergence without tuning, damping, consensus over unions."""

from __future__ import annotations

import numpy as np
import pytest

from sqlfl.messages import Predictions, Residuals
from sqlfl.methods.admm.messages import AdmmResiduals
from tests.methods.harness import gaps, random_join, train

PROOF = 2
"""Exchanges in the end, for scores and the gradient's norm; one more where slots are shared."""
KINDS = ("linear_regression", "logistic_regression", "softmax_regression")


def paper(join, epochs: int, rho: float) -> np.ndarray:
    """Eq. 9-18 on the dense squared-loss problem with exact θ-updates, without increments."""
    blocks = [(x - c)[p] for x, c, p in zip(join.tables, join.centres, join.rows, strict=True)]
    y, n = join.targets, len(join.targets)
    b = y.mean()
    h = [np.zeros(n) for _ in blocks]
    lam, thetas = np.zeros(n), [np.zeros(x.shape[1]) for x in blocks]
    for _ in range(epochs):
        scores = b + sum(h)
        z = (y + lam + rho * scores) / (1 + rho)
        lam = lam + rho * (scores - z)
        for i, x in enumerate(blocks):
            s = scores - h[i] - z
            matrix = rho / n * x.T @ x + join.l2 * np.eye(x.shape[1])
            thetas[i] = -np.linalg.solve(matrix, x.T @ (lam + rho * s) / n)
        b = b - np.mean(lam + rho * (scores - z)) / rho
        h = [x @ theta for x, theta in zip(blocks, thetas, strict=True)]
    return np.concatenate(thetas)


def test_undamped_increments_are_the_papers_updates() -> None:
    join = random_join()
    trained = train(join, "admm", epochs=4, rho=1.0, tolerance=0.0)
    assert trained.algorithm._proximal_factor == 1.0
    np.testing.assert_allclose(trained.theta[:, 0], paper(join, 4, 1.0), atol=1e-6)


@pytest.mark.parametrize("correlation", [0.0, 0.15])
@pytest.mark.parametrize("kind", KINDS)
def test_weakly_correlated_tables_need_no_tuning(kind: str, correlation: float) -> None:
    join = random_join(
        kind, correlation=correlation, sizes=(1500,) * 4 if correlation else (1500, 60, 12)
    )
    gap = gaps(join, train(join, "admm", epochs=12))
    assert gap[-1] <= 1e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("categories", [0, 4])
def test_strongly_correlated_tables_never_diverge(kind: str, categories: int) -> None:
    join = random_join(kind, correlation=0.95, sizes=(1500,) * 4, categories=categories)
    trained = train(join, "admm", epochs=60)
    objectives = np.array([step.objective for step in trained.steps])
    assert 2.5 < trained.algorithm._proximal_factor <= 4.0
    assert (np.diff(objectives) <= 0.02 * objectives[:-1]).all()
    assert objectives[-1] < objectives[10] < objectives[0]
    assert np.isfinite(trained.theta).all()


@pytest.mark.parametrize("rho", [1e-2, 30.0])
def test_a_wrong_rho_is_slow_but_bounded(rho: float) -> None:
    join = random_join(correlation=0.7, sizes=(1500,) * 3)
    objectives = [step.objective for step in train(join, "admm", epochs=60, rho=rho).steps]
    assert max(objectives[10:]) < 4.0 * objectives[0]
    assert np.isfinite(objectives).all()


@pytest.mark.parametrize("inner_rounds", [1, 3, 10])
@pytest.mark.parametrize("kind", KINDS)
def test_consensus_reaches_the_same_optimum(kind: str, inner_rounds: int) -> None:
    join = random_join(kind, clients=(2, 3, 1))
    trained = train(join, "admm", epochs=25, union="consensus", inner_rounds=inner_rounds)
    assert abs(gaps(join, trained)[-1]) <= 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_consensus_over_strongly_correlated_tables(kind: str) -> None:
    join = random_join(kind, correlation=0.95, sizes=(1500,) * 3, clients=(2, 2, 1))
    trained = train(join, "admm", epochs=40, union="consensus", inner_rounds=5)
    objectives = np.array([step.objective for step in trained.steps])
    assert (np.diff(objectives) <= 0.02 * objectives[:-1]).all()
    exact = train(join, "admm", epochs=40).objective
    assert objectives[-1] == pytest.approx(exact, rel=0.02)


def test_consensus_of_unlike_clients() -> None:
    join = random_join(sizes=(1500, 60, 12), clients=(1, 1, 4), categories=3)
    trained = train(join, "admm", epochs=25, union="consensus")
    assert abs(gaps(join, trained)[-1]) <= 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_clients_does_not_matter(kind: str) -> None:
    one = train(random_join(kind), "admm", epochs=5)
    many = train(random_join(kind, clients=(3, 2, 4)), "admm", epochs=5)
    np.testing.assert_allclose(many.theta, one.theta, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_one_table_needs_no_power_rounds(kind: str) -> None:
    join = random_join(kind, sizes=(100,), l2=0.0)
    trained = train(join, "admm", epochs=15, tolerance=0.0)
    assert trained.channel.rounds == 1 + 15 + PROOF
    assert gaps(join, trained)[-1] <= 1e-3


@pytest.mark.parametrize(
    ("clients", "options", "rounds"),
    [
        ((1, 1, 1), {}, 1 + 5 + 3 + PROOF),
        ((1, 2, 1), {}, 1 + 2 + 2 * 5 + 2 * 3 + PROOF + 1),
        ((1, 2, 1), {"union": "consensus", "inner_rounds": 4}, 1 + 5 + (1 + 4) * 3 + PROOF + 1),
    ],
)
def test_exchanges(clients, options, rounds) -> None:
    join = random_join(clients=clients)
    trained = train(join, "admm", epochs=3, tolerance=0.0, **options)
    assert trained.channel.rounds == rounds
    sent = [m for m in trained.channel.sent if isinstance(m, Residuals)]
    assert {type(m) for m in sent} == {AdmmResiduals}
    replies = [m for m in trained.channel.sent if isinstance(m, Predictions)]
    assert {len(m.products) for m in replies} == {0, 1}


@pytest.mark.parametrize("kind", KINDS)
def test_the_objective_is_that_of_the_clients_blocks(kind: str) -> None:
    join = random_join(kind, clients=(2, 1, 1))
    trained = train(join, "admm", epochs=4)
    exact = join.objective(trained.algorithm.intercept, trained.theta)
    assert trained.objective == pytest.approx(exact, rel=1e-7)
