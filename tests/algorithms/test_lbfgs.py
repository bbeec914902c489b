"""Block-preconditioned L-BFGS against the centralised optimum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from scipy import optimize

from sqlfl.algorithms.subspace import exact_search, newton_step
from sqlfl.messages import Predictions, Residuals
from sqlfl.models.basis import coefficients_length, products_length
from tests.algorithms.harness import gaps, random_join, train

KINDS = ("linear_regression", "logistic_regression", "softmax_regression")


@pytest.mark.parametrize("l2", [1e-4, 0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_reaches_the_centralised_optimum(kind: str, l2: float) -> None:
    join = random_join(kind, l2=l2, clients=(1, 2, 1))
    trained = train(join, "lbfgs", epochs=10)
    assert abs(gaps(join, trained)[-1]) <= 1e-7
    intercept, blocks = join.gradient(trained.algorithm.intercept, trained.theta)
    assert max(np.abs(intercept).max(), np.abs(blocks).max()) <= 1e-4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("correlation", [0.5, 0.95])
def test_correlated_tables(kind: str, correlation: float) -> None:
    join = random_join(kind, correlation=correlation, sizes=(1500,) * 3)
    trained = train(join, "lbfgs", epochs=25, tolerance=1e-8)
    assert trained.steps[-1].converged
    assert abs(gaps(join, trained)[-1]) <= 1e-7
    objectives = [step.objective for step in trained.steps]
    assert all(np.diff(objectives) <= 1e-8 * abs(objectives[0]))


def two_loop(join, iterations: int, memory: int = 10) -> list[float]:
    """Preconditioned L-BFGS with explicit vectors: the objective after each iteration.

    The step is the best one in the span of the intercept and every block's part of the direction.
    """
    x, y, loss = join.design, join.targets, join.loss
    n, c = len(x), loss.outputs
    design = np.hstack([np.ones((n, 1)), x])
    ridge = np.append(0.0, np.full(x.shape[1], join.l2))
    widths = [1] + [table.shape[1] for table in join.tables]
    bounds = np.cumsum([0, *widths])
    hessian = loss.curvature / n * design.T @ design + np.diag(ridge)
    p = np.zeros_like(hessian)
    for a, b in pairwise(bounds):
        p[a:b, a:b] = np.linalg.inv(hessian[a:b, a:b])

    def value(theta: np.ndarray) -> float:
        return loss.value(design @ theta, y) + 0.5 * float((ridge[:, None] * theta**2).sum())

    def slope(theta: np.ndarray) -> np.ndarray:
        return design.T @ loss.gradient(design @ theta, y) / n + ridge[:, None] * theta

    theta = np.zeros((design.shape[1], c))
    theta[0] = loss.initial_intercept(y)
    g, pairs, found = slope(theta), [], []
    for _ in range(iterations):
        q, factors = g.copy(), []
        for s, v in reversed(pairs):
            factors.append(np.vdot(s, q) / np.vdot(s, v))
            q -= factors[-1] * v
        r = p @ q
        if pairs:
            s, v = pairs[-1]
            r *= np.vdot(s, v) / np.vdot(v, p @ v)
        for (s, v), factor in zip(pairs, reversed(factors), strict=True):
            r += (factor - np.vdot(v, r) / np.vdot(s, v)) * s
        parts = list(np.eye(c * len(theta)).reshape(-1, *theta.shape)[:c])
        for a, b in pairwise(bounds[1:]):
            parts.append(np.zeros_like(theta))
            parts[-1][a:b] = r[a:b] / np.linalg.norm(r[a:b])
        ways = np.array(parts)
        best = optimize.minimize(
            lambda a, t=theta, w=ways: value(t + np.tensordot(a, w, 1)),
            np.zeros(len(ways)),
            jac=lambda a, t=theta, w=ways: np.einsum(
                "kdc,dc->k", w, slope(t + np.tensordot(a, w, 1))
            ),
            method="BFGS",
            options={"gtol": 1e-13, "maxiter": 1000},
        )
        step = np.tensordot(best.x, ways, 1)
        theta = theta + step
        before, g = g, slope(theta)
        pairs = [*pairs, (step, g - before)][-memory:]
        found.append(value(theta))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_is_the_two_loop_recursion_beyond_its_memory(kind: str) -> None:
    join = random_join(kind, correlation=0.95, sizes=(1500,) * 3, total=1500, l2=1e-3)
    steps = train(join, "lbfgs", epochs=14, tolerance=0.0).steps
    expected = two_loop(join, len(steps))
    np.testing.assert_allclose([step.objective for step in steps], expected, rtol=1e-5)
    np.testing.assert_allclose([s.objective for s in steps[:4]], expected[:4], rtol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_clients_and_coordinator_hold_the_same_parameters(kind: str) -> None:
    join = random_join(kind, correlation=0.9, sizes=(1500, 1500, 20), clients=(2, 1, 3))
    trained = train(join, "lbfgs", epochs=30, tolerance=0.0)
    scores = join.design @ trained.theta + trained.algorithm.intercept
    np.testing.assert_allclose(trained.algorithm.scores, scores, atol=1e-5)
    exact = join.objective(trained.algorithm.intercept, trained.theta)
    assert trained.objective == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_clients_does_not_matter(kind: str) -> None:
    one = train(random_join(kind), "lbfgs", epochs=5)
    many = train(random_join(kind, clients=(3, 2, 4)), "lbfgs", epochs=5)
    np.testing.assert_allclose(many.theta, one.theta, atol=2e-6)


def test_one_block_of_squared_loss_takes_one_step() -> None:
    join = random_join(sizes=(1500,), l2=0.01)
    trained = train(join, "lbfgs", epochs=3)
    assert abs(gaps(join, trained)[0]) <= 1e-8


def test_closing_early_leaves_scores_and_blocks_in_step() -> None:
    join = random_join("logistic_regression")
    trained = train(join, "lbfgs", epochs=2)
    scores = join.design @ trained.theta + trained.algorithm.intercept
    np.testing.assert_allclose(trained.algorithm.scores, scores, atol=1e-5)


@pytest.mark.parametrize(("clients", "per_step"), [((1, 1, 1), 1), ((1, 2, 1), 2)])
def test_exchanges(clients: tuple[int, ...], per_step: int) -> None:
    trained = train(random_join(clients=clients), "lbfgs", epochs=3, tolerance=0.0)
    grams = 2 * (per_step - 1)
    assert trained.channel.rounds == 1 + grams + per_step * (3 + 1)


def test_lengths_of_the_scalars_are_fixed() -> None:
    trained = train(random_join(clients=(2, 1, 1)), "lbfgs", epochs=15, tolerance=0.0)
    sent = [m for m in trained.channel.sent if isinstance(m, Residuals)]
    assert {len(m.coefficients) for m in sent} == {coefficients_length()} == {22}
    replies = [m for m in trained.channel.sent if isinstance(m, Predictions)]
    assert {len(m.products) for m in replies} == {0, products_length()} == {0, 198}


def test_a_target_without_signal_or_variance_converges() -> None:
    join = random_join()
    join.targets = np.full(len(join.targets), 3.0)
    trained = train(join, "lbfgs", epochs=5)
    assert trained.steps[-1].converged
    assert trained.objective == 0.0
    np.testing.assert_array_equal(trained.theta, 0.0)


def test_separable_classes_stay_finite() -> None:
    join = random_join("logistic_regression", l2=1e-6)
    join.targets = (join.design[:, 0] > 0).astype(np.int64)
    trained = train(join, "lbfgs", epochs=40)
    assert np.isfinite(trained.theta).all()
    assert trained.objective < 0.05


@dataclass
class Restricted:
    """φ of one step length, as the search takes it."""

    along: Callable[[float], tuple[float, float, float]]
    size: int = 1

    def at(self, steps: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        value, slope, curvature = self.along(float(steps[0]))
        return value, np.array([slope]), np.array([[curvature]])


def test_the_exact_search_is_safeguarded() -> None:
    def found(along: Callable[[float], tuple[float, float, float]]) -> float:
        return float(exact_search(Restricted(along))[0])

    assert found(lambda a: (0.5 * (a - 3) ** 2, a - 3, 1.0)) == pytest.approx(3.0)

    def overshooting(a: float) -> tuple[float, float, float]:
        return float(np.hypot(1, a - 5)), (a - 5) / np.hypot(1, a - 5), np.hypot(1, a - 5) ** -3.0

    assert found(overshooting) == pytest.approx(5.0, abs=1e-6)
    assert found(lambda a: (1.0, 0.0, 0.0)) == 0.0
    assert found(lambda a: (1.0, -1e-18, 1.0)) == 0.0


def test_of_directions_that_do_the_same_the_search_takes_the_shortest_step() -> None:
    step = newton_step(np.array([1.0, 1.0, 0.0]), np.array([[2.0, 2, 0], [2, 2, 0], [0, 0, 0]]))
    np.testing.assert_allclose(step, [-0.25, -0.25, 0.0])
