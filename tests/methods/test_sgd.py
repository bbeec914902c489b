"""Gradient descent and mini-batches against the same steps on the joined rows."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest

import sqlfl
from sqlfl.base.errors import ModelError
from sqlfl.messages import Predictions, Residuals
from sqlfl.methods.sgd.messages import SgdResiduals
from sqlfl.models.losses import loss_of
from tests.depth import in_turn
from tests.methods.harness import gaps, random_join, train

PROOF = 2
"""Exchanges in the end, for scores and the gradient's norm; one more where slots are shared."""
KINDS = ("linear_regression", "logistic_regression", "softmax_regression")


def central(join, batch: int, epochs: int, rate: float, seed: int):
    """Plain SGD on the dense joined rows, in the same order of rows."""
    rng = np.random.default_rng(seed)
    x, y, n = join.design, join.targets, len(join.targets)
    theta = np.zeros((x.shape[1], join.loss.outputs))
    intercept = join.loss.initial_intercept(y)
    for _ in range(epochs):
        order = rng.permutation(n) if batch < n else np.arange(n)
        for rows in np.split(order, range(batch, n, batch)):
            g = join.loss.gradient(x[rows] @ theta + intercept, y[rows]) / len(rows)
            theta = theta - rate * (x[rows].T @ g + join.l2 * theta)
            intercept = intercept - rate * g.sum(axis=0)
    return intercept, theta


@pytest.mark.parametrize("batch", [1500, 400, 64])
@pytest.mark.parametrize("clients", [None, (3, 2, 1)])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_centralised_steps(kind: str, clients, batch: int) -> None:
    join = random_join(kind, clients=clients, l2=0.01)
    options = {} if batch == 1500 else {"batch_size": batch, "seed": 5}
    trained = train(join, "sgd", epochs=3, learning_rate=0.1, **options)
    intercept, theta = central(join, batch, 3, 0.1, 5)
    np.testing.assert_allclose(trained.theta, theta, atol=2e-6)
    np.testing.assert_allclose(trained.algorithm.intercept, intercept, atol=2e-6)
    exact = join.objective(intercept, theta)
    assert trained.objective == pytest.approx(exact, rel=1e-6)
    scores = join.design @ theta + intercept
    np.testing.assert_allclose(join.scores(trained.algorithm), scores, atol=2e-5)


@pytest.mark.parametrize("correlation", [0.0, 0.95])
@pytest.mark.parametrize("kind", KINDS)
def test_the_default_step_descends(kind: str, correlation: float) -> None:
    sizes = (1500,) * 4 if correlation else (1500, 60, 12)
    join = random_join(kind, correlation=correlation, sizes=sizes)
    objectives = [step.objective for step in train(join, "sgd", epochs=15).steps]
    assert all(np.diff(objectives) < 0)


@pytest.mark.parametrize(("kind", "batch"), in_turn(KINDS, (20, 100, 500)))
def test_the_default_step_of_batches_converges(kind: str, batch: int) -> None:
    join = random_join(kind, noise=1.0)
    gap = gaps(join, train(join, "sgd", epochs=15, batch_size=batch))
    assert gap[-1] <= 0.12
    assert gap[-1] < gap[0]


@pytest.mark.parametrize("batch", [1500, 100])
def test_divergent_steps_end_with_an_error(batch: int) -> None:
    with pytest.raises(ModelError, match="diverge"):
        train(random_join(), "sgd", epochs=100, learning_rate=50.0, batch_size=batch)


@pytest.mark.parametrize(("tolerance", "converged"), [(1e-6, False), (1e-9, True)])
def test_descent_ends_at_the_tolerance(tolerance: float, converged: bool) -> None:
    """Steps that change little are no proof: 1e-6 an epoch leaves several times as much to go."""
    join = random_join(l2=0.1)
    trained = train(join, "sgd", epochs=500, tolerance=tolerance)
    last = trained.steps[-1]
    assert last.epoch < 500
    assert last.converged == converged
    assert last.ending is not None
    assert last.ending.gap is not None
    assert gaps(join, trained)[-1] <= min(last.ending.gap, 1e-4)


@pytest.mark.parametrize(
    ("clients", "options", "rounds"),
    [
        ((1, 1, 1), {"learning_rate": 0.1}, 1 + 2 + PROOF),
        ((1, 1, 1), {}, 1 + 8 + 2 + PROOF),
        ((1, 2, 1), {}, 1 + 16 + 4 + PROOF + 1),
        ((1, 1, 1), {"learning_rate": 0.1, "batch_size": 400}, 1 + 2 * 4 + PROOF),
        ((1, 2, 1), {"batch_size": 400}, 1 + 16 + 2 * 2 * 4 + PROOF + 1),
    ],
)
def test_exchanges(clients, options, rounds) -> None:
    trained = train(random_join(clients=clients), "sgd", epochs=2, tolerance=0.0, **options)
    assert trained.channel.rounds == rounds
    sent = [m for m in trained.channel.sent if isinstance(m, Residuals)]
    assert {type(m) for m in sent} == {SgdResiduals}
    replies = [m for m in trained.channel.sent if isinstance(m, Predictions)]
    assert {len(m.products) for m in replies} <= {0, 1}


def test_only_rows_of_a_batch_travel() -> None:
    join = random_join(sizes=(1500, 60, 12))
    trained = train(join, "sgd", epochs=1, learning_rate=0.1, batch_size=500)
    sent = [m for m in trained.channel.sent if isinstance(m, Residuals) and m.slot == 0]
    assert [len(m.values) for m in sent] == [1500, 500, 500]
    assert [len(m.batch) for m in sent] == [500, 500, 0]


@pytest.mark.parametrize("optimizer", ["plain", "momentum"])
@pytest.mark.parametrize("weight", ["", "WEIGHT w"])
def test_a_batch_with_a_row_far_from_the_others_takes_no_step_too_long(
    optimizer: str, weight: str
) -> None:
    """A step that suits the mean row would take such a batch far beyond its minimum."""
    with duckdb.connect() as one, duckdb.connect() as other, sqlfl.connect(progress=False) as fed:
        one.execute(
            "CREATE TABLE t AS SELECT i AS k, CASE WHEN i = 7 THEN 400 ELSE sin(i) END AS x, "
            "1 + i % 2 AS w, sin(i) + cos(2 * i) + sin(9 * i) / 2 AS y FROM range(300) r(i)"
        )
        other.execute("CREATE TABLE u AS SELECT i AS k, cos(2 * i) AS z FROM range(300) r(i)")
        fed.attach("a", one)
        fed.attach("b", other)
        query = f"(SELECT t.x, u.z, t.y{', t.w' * bool(weight)} FROM a.t JOIN b.u ON t.k = u.k)"
        options = f"algorithm = 'sgd', batch_size = 16, epochs = 2, optimizer = '{optimizer}'"
        fed.sql(
            f"TRAIN MODEL m USING linear_regression TARGET y {weight} "
            f"WITH ({options}, seed = 1) FROM {query}"
        )
        assert fed.model("m").metrics["r2"] > 0.1


@pytest.mark.parametrize("correlation", [0.0, 0.99])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("linear_regression", {}),
        ("huber_regression", {"threshold": 1.0}),
        ("quantile_regression", {"quantile": 0.7}),
    ],
)
def test_a_few_epochs_of_adam_are_no_worse_than_none_in_any_unit(
    kind: str, options: dict[str, float], correlation: float
) -> None:
    fallen = []
    for unit in (1e-3, 1.0, 1e3):
        join = random_join(total=300, sizes=(300, 20), correlation=correlation)
        join.targets = unit * join.targets
        own = {
            name: value * unit if name == "threshold" else value for name, value in options.items()
        }
        join.l2 = 0.0
        join.loss = loss_of(kind, 1, own).fitted(join.targets, None)
        for epochs in (1, 2, 20):
            trained = train(join, "sgd", optimizer="adam", epochs=epochs)
            fallen.append(trained.objective / trained.algorithm.first)
            assert fallen[-1] <= 1.0
    np.testing.assert_allclose(fallen[3:6], fallen[:3], rtol=1e-2)
    np.testing.assert_allclose(fallen[3:6], fallen[6:], rtol=1e-2)
