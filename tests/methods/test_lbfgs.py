"""Block-preconditioned L-BFGS against the centralised optimum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from scipy import optimize

import sqlfl
from sqlfl.coordinator.rounds.search import Newton, exact_search
from sqlfl.messages import Predictions, Residuals
from sqlfl.methods.lbfgs import subspace
from sqlfl.methods.lbfgs.basis import IMAGE, Basis, newest
from sqlfl.methods.lbfgs.client import LbfgsStep
from sqlfl.methods.lbfgs.coordinator import InnerProducts
from sqlfl.methods.lbfgs.messages import coefficients_length, products_length
from tests.methods.harness import gaps, random_join, train
from tests.open_databases import in_memory

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


def bends_of(loss, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Curvatures of the preconditioner, and the ways through the classes that they belong to: of a
    softmax those at the classes' shares π, diag(π) − π πᵀ and its mean along 1, to powers of 2."""
    c = loss.outputs
    if c == 1:
        return np.array([loss.curvature]), np.eye(1)
    shares = np.bincount(targets, minlength=c) / len(targets)
    curvature = np.diag(shares) - np.outer(shares, shares)
    curvature += np.trace(curvature) / (c - 1) / c
    values, turn = np.linalg.eigh(curvature)
    return 2.0 ** np.round(np.log2(values)), turn


def block_subspace(join, iterations: int, memory: int = 10) -> list[float]:
    """The objective after each iteration, with explicit vectors: the best point in the span of the
    intercept, of every block's part of the last `memory` + 1 preconditioned gradients and, once
    there were more, of the last `memory` steps."""
    x, y, loss = join.design, join.targets, join.loss
    n, c = len(x), loss.outputs
    design = np.hstack([np.ones((n, 1)), x])
    ridge = np.append(0.0, np.full(x.shape[1], join.l2))
    bounds = np.cumsum([0, 1] + [table.shape[1] for table in join.tables])
    bends, turn = bends_of(loss, y)

    def preconditioned(g: np.ndarray) -> np.ndarray:
        found = np.zeros_like(g)
        for bend, way in zip(bends, turn.T, strict=True):
            hessian = bend / n * design.T @ design + np.diag(ridge)
            for a, b in pairwise(bounds):
                part = np.linalg.solve(hessian[a:b, a:b], g[a:b] @ way)
                found[a:b] += np.outer(part, way)
        return found

    def value(theta: np.ndarray) -> float:
        return loss.value(design @ theta, y) + 0.5 * float((ridge[:, None] * theta**2).sum())

    def slope(theta: np.ndarray) -> np.ndarray:
        return design.T @ loss.gradient(design @ theta, y) / n + ridge[:, None] * theta

    theta = np.zeros((design.shape[1], c))
    theta[0] = loss.initial_intercept(y)
    images, steps, found = [preconditioned(slope(theta))], [], []
    for _ in range(iterations):
        vectors = images[-memory - 1 :] + (steps[-memory:] if len(images) > memory + 1 else [])
        ways = []
        for a, b in pairwise(bounds[1:]):
            for vector in vectors:
                way = np.zeros_like(theta)
                way[a:b] = vector[a:b] / np.linalg.norm(vector[a:b])
                ways.append(way.reshape(-1))
        ways += list(np.eye(theta.size)[:c])
        basis = np.linalg.qr(np.array(ways).T)[0].T.reshape(-1, *theta.shape)

        def move(steps: np.ndarray, basis=basis, theta=theta) -> np.ndarray:
            return theta + np.tensordot(steps, basis, 1)

        best = optimize.minimize(
            lambda steps, move=move: value(move(steps)),
            np.zeros(len(basis)),
            jac=lambda steps, move=move, basis=basis: np.einsum(
                "kdc,dc->k", basis, slope(move(steps))
            ),
            method="BFGS",
            options={"gtol": 1e-12, "maxiter": 2000},
        )
        step = move(best.x) - theta
        theta = theta + step
        steps.append(step)
        images.append(preconditioned(slope(theta)))
        found.append(value(theta))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_is_the_best_of_its_subspace(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where searches leave nothing, and else nearly."""
    join = random_join(kind, correlation=0.95, sizes=(300,) * 3, total=300, l2=1e-3)
    near = [step.objective for step in train(join, "lbfgs", epochs=5, tolerance=0.0).steps]
    monkeypatch.setattr("sqlfl.methods.lbfgs.coordinator.NEAR", 0.0)
    exact = [step.objective for step in train(join, "lbfgs", epochs=5, tolerance=0.0).steps]
    expected = block_subspace(join, len(exact))
    np.testing.assert_allclose(exact, expected, rtol=1e-6)
    np.testing.assert_allclose(near, expected[: len(near)], rtol=1e-4)


@pytest.mark.parametrize("most", [1, 4])
def test_few_directions_do_as_well_but_slower(monkeypatch, most: int) -> None:
    """As of joins with very many rows: that of the two-loop recursion stands for all others."""
    join = random_join("logistic_regression", correlation=0.95, sizes=(1500,) * 3)
    usual = train(join, "lbfgs")
    monkeypatch.setattr(subspace, "WORK", 0)
    monkeypatch.setattr(subspace, "MIN_DIRECTIONS", most)
    trained = train(join, "lbfgs")
    assert trained.steps[-1].converged
    assert abs(gaps(join, trained)[-1]) <= 1e-7
    assert len(usual.steps) < len(trained.steps) < 40


@pytest.mark.parametrize("kind", KINDS)
def test_clients_and_coordinator_hold_the_same_parameters(kind: str) -> None:
    join = random_join(kind, correlation=0.9, sizes=(1500, 1500, 20), clients=(2, 1, 3))
    trained = train(join, "lbfgs", epochs=30, tolerance=0.0)
    scores = join.design @ trained.theta + trained.algorithm.intercept
    np.testing.assert_allclose(join.scores(trained.algorithm), scores, atol=1e-5)
    exact = join.objective(trained.algorithm.intercept, trained.theta)
    assert trained.objective == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize(("l2", "seed"), [(1e-4, 1), (0.3, 2)])
def test_a_block_that_comes_to_its_optimum_first(
    monkeypatch: pytest.MonkeyPatch, l2: float, seed: int
) -> None:
    """Of 5 rows, while another one, badly preconditioned, takes many iterations: its last gradients
    are rounding, and steps made of them cancel."""
    solve = LbfgsStep._solve

    def badly(step: LbfgsStep, values: np.ndarray) -> np.ndarray:
        if step.rows < 100:
            return solve(step, values)
        return values * np.logspace(0.0, -2.0, len(values))[:, None]

    def started(step: LbfgsStep, configuration, engine, theta: np.ndarray) -> None:
        step.rows = engine.rows
        start(step, configuration, engine, theta)

    start = LbfgsStep.__init__
    monkeypatch.setattr(LbfgsStep, "__init__", started)
    monkeypatch.setattr(LbfgsStep, "_solve", badly)
    join = random_join(sizes=(1500, 5), numeric=40, correlation=0.7, l2=l2, seed=seed)
    trained = train(join, "lbfgs", epochs=150, tolerance=0.0)
    objectives = [step.objective for step in trained.steps]
    assert max(np.diff(objectives)) <= 1e-12
    assert abs(gaps(join, trained)[-1]) <= 1e-12


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
    np.testing.assert_allclose(join.scores(trained.algorithm), scores, atol=1e-5)


@pytest.mark.parametrize(("clients", "per_step"), [((1, 1, 1), 1), ((1, 2, 1), 2)])
def test_exchanges(clients: tuple[int, ...], per_step: int) -> None:
    trained = train(random_join(clients=clients), "lbfgs", epochs=3, tolerance=0.0)
    grams = 2 * (per_step - 1)
    assert trained.channel.rounds == 1 + grams + per_step * (3 + 1) + (1 + per_step)


def test_lengths_of_the_scalars_are_fixed() -> None:
    trained = train(random_join(clients=(2, 1, 1)), "lbfgs", epochs=15, tolerance=0.0)
    sent = [m for m in trained.channel.sent if isinstance(m, Residuals)]
    assert {len(m.coefficients) for m in sent} == {coefficients_length()} == {21}
    replies = [m for m in trained.channel.sent if isinstance(m, Predictions)]
    lengths = {len(m.products) for m in replies}
    assert lengths == {0, products_length(), 1} == {0, 198, 1}  # 1: the penalty, in the end


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
    quadratic: bool = False

    def at(self, steps: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope, _ = self.along(float(steps[0]))
        return value, np.array([slope])

    def bend(self, steps: np.ndarray, *, roughly: bool) -> np.ndarray:
        return np.array([[self.along(float(steps[0]))[2]]])


def test_the_exact_search_is_safeguarded() -> None:
    def found(along: Callable[[float], tuple[float, float, float]]) -> float:
        return float(exact_search(Restricted(along))[0])

    assert found(lambda a: (0.5 * (a - 3) ** 2, a - 3, 1.0)) == pytest.approx(3.0)

    def overshooting(a: float) -> tuple[float, float, float]:
        return float(np.hypot(1, a - 5)), (a - 5) / np.hypot(1, a - 5), np.hypot(1, a - 5) ** -3.0

    assert found(overshooting) == pytest.approx(5.0, abs=1e-6)
    assert found(lambda a: (1.0, 0.0, 0.0)) == 0.0
    assert found(lambda a: (1.0, -1e-18, 1.0)) == 0.0


@pytest.mark.parametrize("known", [[], [0], [0, 1]])
def test_a_rough_hessian_that_knows_few_directions_is_replaced(known: list[int]) -> None:
    """As of a sample without the rows that a direction is about."""
    exact = np.diag([1.0, 4.0, 0.25])
    goal = np.array([2.0, -1.0, 3.0])

    @dataclass
    class Sampled:
        size: int = 3
        quadratic: bool = False

        def at(self, steps: np.ndarray) -> tuple[float, np.ndarray]:
            away = exact @ (steps - goal)
            return 0.5 * float((steps - goal) @ away), away

        def bend(self, steps: np.ndarray, *, roughly: bool) -> np.ndarray:
            if not roughly:
                return exact
            rough = np.zeros((3, 3))
            rough[known, known] = 1.1 * exact[known, known]
            return rough

    np.testing.assert_allclose(exact_search(Sampled()), goal, rtol=1e-6)


def test_of_directions_that_do_the_same_the_search_takes_the_shortest_step() -> None:
    newton = Newton(np.array([[2.0, 2, 0], [2, 2, 0], [0, 0, 0]]))
    step = newton.step(np.array([1.0, 1.0, 0.0]))
    np.testing.assert_allclose(step, [-0.25, -0.25, 0.0])


def test_a_former_gradient_that_was_rounding_is_no_direction() -> None:
    basis, products = Basis(np.zeros((2, 1)), lambda vector: vector), InnerProducts(1)
    for gradient, step in (([3e-33, -1e-33], [0.0, 0.0]), ([0.5, 0.2], [1e-3, 0.0])):
        basis.shift(np.array(step).reshape(2, 1))
        told = basis.renew(np.array(gradient).reshape(2, 1))
        products.renew(told.reshape(1, -1), np.zeros(len(told)))
    former = np.zeros(products.blocks.shape[-1])
    former[[IMAGE, newest(1)[5]]] = 1.0, -1.0
    this, step = np.eye(len(former))[[IMAGE, newest(1)[3]]]
    assert products.lost(np.array([this, step, former])).tolist() == [[False, False, True]]


@pytest.mark.parametrize("offset", [1795201907.4475296, 1795303508.9265995, 1795221964.9379156])
def test_a_table_that_says_nothing_at_first(offset: float) -> None:
    """Each row of u joins classes in equal shares: its first gradient is 0 up to rounding."""
    with in_memory() as one, in_memory() as two, sqlfl.connect(progress=False) as fed:
        one.execute(
            "CREATE TABLE t AS SELECT range % 10 AS k, range / 7 AS x, range % 3 = 0 AS y, "
            "chr(65 + (range % 3)::INT) AS c FROM range(60)"
        )
        two.execute("CREATE TABLE u AS SELECT range AS k, sqrt(range) AS z FROM range(10)")
        fed.attach("one", one)
        fed.attach("two", two)
        for name, moved in (("plain", 0.0), ("moved", offset)):
            fed.sql(
                f"TRAIN MODEL {name} USING logistic_regression TARGET y WITH (seed = 1) "
                f"FROM (SELECT {moved} + t.x AS x, t.c, u.z, t.y FROM one.t JOIN two.u USING (k))"
            )
        plain, other = (fed.model(name).metrics["objective"] for name in ("plain", "moved"))
    assert plain == pytest.approx(other, rel=1e-4)
