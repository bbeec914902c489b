"""Columns of several tables that nearly cancel: the optimum is found, or it is not claimed."""

from __future__ import annotations

import numpy as np
import pytest

from sqlfl.messages import ExactPredictions, Residuals
from sqlfl.methods.lbfgs.messages import ExactLbfgsResiduals, LbfgsResiduals
from tests.depth import combinations
from tests.methods.cancelling import Shape, cancelling_join, least
from tests.methods.harness import Join, Trained, random_join, train

KINDS = ("linear_regression", "logistic_regression", "softmax_regression")
CORRELATIONS = (0.99, 0.9999, 1.0 - 1e-6, 1.0 - 1e-8)


def gap(join: Join, trained: Trained) -> float:
    """Of the objective at the parameters that the clients hold, and not as it is reported."""
    best = least(join)
    return (join.objective(trained.algorithm.intercept, trained.theta) - best) / best


def check(join: Join, trained: Trained) -> None:
    ending = trained.steps[-1].ending
    assert ending is not None
    assert ending.converged, ending
    found = gap(join, trained)
    assert found <= ending.gap + 1e-11  # what the optimum is known to
    assert ending.gap <= 1e-6
    at_the_end = join.objective(trained.algorithm.intercept, trained.theta)
    assert trained.objective == pytest.approx(at_the_end, rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "correlation", "l2"), combinations(KINDS, CORRELATIONS, (0.0, 1e-4))
)
def test_two_tables(kind: str, correlation: float, l2: float) -> None:
    join = cancelling_join(Shape(kind, correlation, l2=l2))
    check(join, train(join, "lbfgs"))


@pytest.mark.parametrize(
    ("kind", "correlation", "l2"), combinations(KINDS, (0.9999, 1.0 - 1e-8), (0.0, 1e-4))
)
def test_sums_of_three_tables_in_two_ways(kind: str, correlation: float, l2: float) -> None:
    join = cancelling_join(Shape(kind, correlation, tables=3, pairs=2, l2=l2, seed=1))
    check(join, train(join, "lbfgs"))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_and_clients(kind: str) -> None:
    join = cancelling_join(Shape(kind, clients=(1, 2), weighted=True, seed=2))
    check(join, train(join, "lbfgs"))


@pytest.mark.parametrize("signal", [0.0, 1e-2, 10.0])
@pytest.mark.parametrize("others", [0, 6])
def test_however_little_or_much_hangs_on_the_difference(signal: float, others: int) -> None:
    shape = Shape("logistic_regression", signal=signal, others=others, mixed=others > 0, seed=3)
    join = cancelling_join(shape)
    check(join, train(join, "lbfgs"))


def test_a_warm_start_among_cancelling_columns() -> None:
    join = cancelling_join(Shape("logistic_regression"))
    first = train(join, "lbfgs", epochs=3)
    assert not first.steps[-1].converged
    check(join, train(join, "lbfgs", start=first.blocks))


@pytest.mark.parametrize("algorithm", ["admm", "sgd"])
@pytest.mark.parametrize("kind", KINDS)
def test_methods_that_do_not_get_there_say_so(kind: str, algorithm: str) -> None:
    join = cancelling_join(Shape(kind, l2=1e-4))
    trained = train(join, algorithm, epochs=20)
    ending = trained.steps[-1].ending
    assert ending is not None
    assert gap(join, trained) > 1e-6
    assert not ending.converged
    assert ending.gap is not None
    assert gap(join, trained) <= ending.gap
    assert f"{ending.gap:.1e}" in ending.reason


@pytest.mark.parametrize("algorithm", ["admm", "sgd"])
@pytest.mark.parametrize("kind", KINDS[:2])
def test_methods_that_get_there_say_so_too(kind: str, algorithm: str) -> None:
    join = random_join(kind, total=300, sizes=(300, 20), l2=0.2)
    trained = train(join, algorithm, epochs=100, tolerance=1e-13)
    check(join, trained)


def test_eight_byte_messages_are_for_those_who_need_them() -> None:
    usual = train(random_join(correlation=0.5), "lbfgs")
    assert not any(
        isinstance(m, ExactLbfgsResiduals | ExactPredictions) for m in usual.channel.sent
    )
    needed = train(cancelling_join(Shape()), "lbfgs")
    exact = [
        m for m in needed.channel.sent if isinstance(m, ExactLbfgsResiduals | ExactPredictions)
    ]
    assert {m.values.dtype for m in exact} == {np.dtype(np.float64)}
    # once needed, they stay: what was remembered of 4-byte numbers would drown the rest
    kinds = [type(m) for m in needed.channel.sent if isinstance(m, Residuals)]
    assert LbfgsResiduals not in kinds[kinds.index(ExactLbfgsResiduals) :]


@pytest.mark.parametrize("l2", [0.0, 1e-4])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_column_at_two_parties(kind: str, l2: float) -> None:
    """Exactly collinear: as many optima as one likes, without l2."""
    join = cancelling_join(Shape(kind, correlation=1.0, mixed=False, l2=l2))
    np.testing.assert_allclose(join.tables[0][:, -1], join.tables[1][:, -1], atol=1e-12)
    check(join, train(join, "lbfgs"))


@pytest.mark.parametrize("kind", KINDS)
def test_categories_of_two_parties_that_add_up_to_the_intercept(kind: str) -> None:
    join = random_join(kind, total=300, sizes=(300, 300), l2=0.0)
    join.tables[1] = np.array(join.tables[0])
    join.centres[1] = np.array(join.centres[0])
    join.rows[1] = np.array(join.rows[0])
    check(join, train(join, "lbfgs"))


def test_a_perfect_fit_ends() -> None:
    """Elapsed times from two clocks: without l2 nothing is left of the loss."""
    join = cancelling_join(Shape(correlation=1.0 - 5e-7, others=0, mixed=False, noise=0.0))
    difference = join.tables[1][:, 0] - join.tables[0][:, 0]
    join.targets = 4000.0 + 1e6 * difference
    trained = train(join, "lbfgs", epochs=1000, tolerance=0.0)
    assert trained.steps[-1].converged
    assert len(trained.steps) < 30
    assert trained.objective <= 1e-12 * np.var(join.targets)


@pytest.mark.parametrize(
    ("kind", "closeness", "tables", "algorithm"),
    combinations(KINDS, ((1e-10, 3), (1e-12, 0), (1e-14, 0)), (2, 3), ("lbfgs", "sgd")),
)
def test_closer_columns_are_no_reason_to_claim_more(
    kind: str, closeness: tuple[float, int], tables: int, algorithm: str
) -> None:
    """Than is so: a gradient that is small because columns cancel proves nothing."""
    apart, others = closeness
    join = cancelling_join(Shape(kind, 1.0 - apart, tables=tables, others=others, seed=4))
    trained = train(join, algorithm, **({} if algorithm == "lbfgs" else {"epochs": 10}))
    ending = trained.steps[-1].ending
    assert ending is not None
    if ending.converged:
        assert gap(join, trained) <= 1e-6


def test_columns_of_two_tables_that_are_the_same_are_no_obstacle() -> None:
    join = cancelling_join(Shape("logistic_regression", 1.0, others=2))
    check(join, train(join, "lbfgs"))
