"""huber_regression and quantile_regression beside scipy and scikit-learn, and what they refuse."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import duckdb
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import QuantileRegressor

import sqlfl
from sqlfl.models.losses import loss_of
from tests.clinic import QUERY, central, clinics, predicted
from tests.conftest import Open
from tests.depth import in_turn
from tests.federations import federation
from tests.methods import harness
from tests.methods.harness import random_join

L2 = 1e-3
NUMBERS = QUERY.format(
    target="v.n + 3 * v.age + (v.id * 53 % 17) / 5.0 + 40 * (v.id % 19 = 0)::INT AS n", more=""
)
JOINED = f"{NUMBERS} WHERE p.size IS NOT NULL"


@pytest.fixture
def parties(database: Open) -> dict[str, list[duckdb.DuckDBPyConnection]]:
    return clinics(database)


@pytest.fixture
def fed(parties: dict[str, list[duckdb.DuckDBPyConnection]]) -> Iterator[sqlfl.Federation]:
    with federation(parties) as made:
        yield made


def train(
    fed: sqlfl.Federation, kind: str, query: str = JOINED, clause: str = "", **options: object
) -> None:
    written = ", ".join(f"{name} = {value!r}" for name, value in options.items())
    fed.sql(f"TRAIN MODEL m USING {kind} TARGET n {clause} WITH ({written}) FROM ({query})")


@pytest.mark.parametrize(
    ("kind", "options"), [("quantile_regression", {}), ("huber_regression", {"threshold": 500.0})]
)
def test_no_optimum_of_large_numbers_is_said_to_be_at_infinity(
    fed: sqlfl.Federation, kind: str, options: dict[str, object]
) -> None:
    """Steps of thousands are small where targets are in the thousands."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", sqlfl.Warning)
        train(fed, kind, f"SELECT * REPLACE (1000 * n AS n) FROM ({JOINED})", l2=0, **options)


def huber(error: np.ndarray, delta: float) -> np.ndarray:
    size = np.abs(error)
    return np.where(size <= delta, 0.5 * error**2, delta * size - 0.5 * delta**2)


def best_huber(x: np.ndarray, y: np.ndarray, delta: float, w: np.ndarray, l2: float) -> np.ndarray:
    """What the best coefficients predict."""

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        error = theta[0] + x @ theta[1:] - y
        slope = w * np.clip(error, -delta, delta) / w.sum()
        own = np.concatenate([[slope.sum()], x.T @ slope + l2 * theta[1:]])
        return np.average(huber(error, delta), weights=w) + l2 / 2 * theta[1:] @ theta[1:], own

    found = minimize(
        objective, np.zeros(x.shape[1] + 1), jac=True, options={"gtol": 1e-10, "maxiter": 5000}
    ).x
    expected: np.ndarray = found[0] + x @ found[1:]
    return expected


@pytest.mark.parametrize(
    ("case", "delta"),
    in_turn(
        [
            ({}, 1e-5),
            ({"engine": "sql"}, 1e-5),
            ({"algorithm": "admm", "epochs": 150}, 1e-3),
            ({"algorithm": "admm", "union": "consensus", "epochs": 60}, 1e-3),
            ({"algorithm": "sgd", "epochs": 60}, 1e-2),
            ({"union": "secure"}, 1e-4),
        ],
        [0.3, 2.0, 1e3],
    ),
    ids=str,
)
def test_huber_is_what_scipy_minimises(
    fed: sqlfl.Federation, case: tuple[dict[str, object], float], delta: float
) -> None:
    options, near = case
    train(fed, "huber_regression", threshold=delta, l2=L2, **options)
    x, y, _ = central(JOINED)
    expected = best_huber(x, y, delta, np.ones(len(y)), L2)
    np.testing.assert_allclose(predicted(fed, JOINED), expected, atol=near * np.abs(y).max())
    row = fed.sql(f"EVALUATE MODEL m FROM ({JOINED})").arrow().to_pylist()[0]
    assert list(row) == ["rows", "loss", "rmse", "mae", "r2"]
    assert row["loss"] == pytest.approx(np.mean(huber(expected - y, delta)), rel=10 * near)
    assert fed.model("m").metrics["loss"] == pytest.approx(row["loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("case", "quantile"),
    in_turn(
        [
            ({}, 1e-3),
            ({"engine": "sql"}, 1e-3),
            ({"algorithm": "admm", "epochs": 200}, 1e-2),
            ({"union": "secure"}, 1e-3),
        ],
        [0.5, 0.9, 0.05],
    ),
    ids=str,
)
def test_the_quantile_is_as_good_as_that_of_scikit_learn(
    fed: sqlfl.Federation, case: tuple[dict[str, object], float], quantile: float
) -> None:
    options, near = case
    train(fed, "quantile_regression", quantile=quantile, **options)
    x, y, _ = central(JOINED)
    known = QuantileRegressor(quantile=quantile, alpha=0.0, solver="highs").fit(x, y).predict(x)
    best = np.mean(np.where(y > known, quantile, quantile - 1) * (y - known))
    row = fed.sql(f"EVALUATE MODEL m FROM ({JOINED})").arrow().to_pylist()[0]
    assert list(row) == ["rows", "loss", "pinball", "coverage", "mae"]
    found = predicted(fed, JOINED)
    truth = np.mean(np.where(y > found, quantile, quantile - 1) * (y - found))
    assert row["loss"] == row["pinball"] == pytest.approx(truth)
    assert best * (1 - 1e-9) <= truth <= best * (1 + near)
    assert row["coverage"] == pytest.approx(np.mean(y <= found))
    assert row["coverage"] == pytest.approx(quantile, abs=0.05)
    model = fed.model("m")
    assert model.metrics["pinball"] == pytest.approx(truth, rel=1e-5)
    assert model.metrics["loss"] == pytest.approx(truth, rel=5e-3)


@pytest.mark.parametrize("offset", [1e6, -1e8, 1e10])
def test_an_offset_of_the_target_changes_no_loss_of_a_quantile(offset: float) -> None:
    """The width of the rounded kink follows from how far targets are apart, not from their size."""
    join = random_join("linear_regression", total=200, sizes=(200, 20), numeric=2, categories=0)
    near, options = join.targets, {"quantile": 0.3}
    found = []
    for targets in (near, near + offset):
        join.targets = targets
        join.loss = loss_of("quantile_regression", 1, options).fitted(targets, None)
        trained = harness.train(join, "lbfgs")
        scores = join.design @ trained.theta + trained.algorithm.intercept
        found.append((trained.objective + join.loss.floor(targets, None), scores[:, 0] - targets))
    rounding = 100.0 * np.spacing(abs(offset))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-6, abs=rounding)
    truth = np.mean(np.maximum(-0.3 * found[1][1], 0.7 * found[1][1]))
    assert found[1][0] == pytest.approx(truth, rel=2e-3)


@pytest.mark.parametrize(
    ("options", "near"),
    [({}, 5e-3), ({"optimizer": "momentum"}, 5e-3), ({"batch_size": 50}, 2e-2)],
    ids=str,
)
def test_gradient_descent_gets_near_the_best_quantile(
    options: dict[str, object], near: float
) -> None:
    """Steps follow from how many rows are near the kink, not from how sharp it is."""
    cases = ((0, 0.7, 0.0, 1.0, 0.5), (1, 0.05, 0.9, 1e3, 0.5), (2, 0.5, 0.5, 1e-3, 0.02))
    for seed, quantile, correlation, scale, noise in cases:
        join = random_join(
            seed=seed, total=300, sizes=(300, 20), numeric=2, categories=0,
            correlation=correlation, l2=0.0, noise=noise,
        )  # fmt: skip
        join.targets = scale * (join.targets + 7.0)
        known = loss_of("quantile_regression", 1, {"quantile": quantile})
        join.loss = known.fitted(join.targets, None)
        best = harness.train(join, "lbfgs").objective
        trained = harness.train(join, "sgd", **options)
        floor = join.loss.floor(join.targets, None)
        assert trained.objective + floor <= (best + floor) * (1.0 + near)
        for epochs in (1, 2):
            few = harness.train(join, "sgd", epochs=epochs, **options)
            assert few.objective <= few.algorithm.first


@pytest.mark.parametrize("targets", [[0.0] * 9, [7.0] * 9, [1e8] * 8 + [np.nextafter(1e8, 2e8)]])
def test_targets_that_hardly_differ_have_a_quantile(targets: list[float]) -> None:
    y = np.array(targets)
    loss = loss_of("quantile_regression", 1, {"quantile": 0.3}).fitted(y, None)
    middle = loss.initial_intercept(y)
    np.testing.assert_allclose(middle, y[0], rtol=1e-12, atol=1e-18)
    assert 0.0 < loss.curvature < np.inf
    assert loss.value(np.full((9, 1), middle[0]), y) <= 1e-12 * max(y[0], 1.0)


def test_weights_are_so_many_rows(fed: sqlfl.Federation) -> None:
    weighted = JOINED.replace(" FROM", ", v.id % 4 AS w FROM", 1)
    copies = (
        f"{JOINED.split(' WHERE')[0]}, LATERAL (SELECT unnest(range(v.id % 4))) WHERE p.size > -1"
    )
    for kind, options in (("huber_regression", {"threshold": 2.0}), ("quantile_regression", {})):
        text = ", ".join(f"{n} = {v}" for n, v in ({"l2": L2} | options).items())
        fed.sql(
            f"TRAIN OR REPLACE MODEL m USING {kind} TARGET n WEIGHT w WITH ({text}) "
            f"FROM ({weighted})"
        )
        known = fed.model("m").metrics
        x, y, _ = central(copies)
        assert len(y) > 200
        if kind == "huber_regression":
            best = best_huber(x, y, 2.0, np.ones(len(y)), L2)
            assert known["loss"] == pytest.approx(np.mean(huber(best - y, 2.0)), rel=1e-3)
        else:
            fitted = QuantileRegressor(quantile=0.5, alpha=0.0, solver="highs").fit(x, y)
            best = np.abs(y - fitted.predict(x)).mean() / 2
            assert best <= known["pinball"] <= best * 1.02


def test_another_unit_of_the_target_makes_the_same_quantiles(fed: sqlfl.Federation) -> None:
    found = []
    for unit in (1.0, 1e6, 1e-6):
        query = NUMBERS.replace("v.n +", f"{unit} * (v.n +", 1).replace("::INT AS n", "::INT) AS n")
        fed.sql(
            "TRAIN OR REPLACE MODEL m USING quantile_regression TARGET n WITH (quantile = 0.8) "
            f"FROM ({query} WHERE p.size IS NOT NULL)"
        )
        found.append(predicted(fed, query + " WHERE p.size IS NOT NULL") / unit)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-3)


def test_other_options_can_be_tuned(fed: sqlfl.Federation) -> None:
    text = (
        "TUNE OR REPLACE MODEL m USING huber_regression TARGET n "
        "WITH (threshold = {}, l2 = [1e-3, 10], metric = 'mae', folds = 3) FROM ({})"
    )
    table = fed.sql(text.format(2, JOINED)).arrow()
    assert table.column("l2").to_pylist() == [1e-3, 10]
    assert fed.model("m").options["threshold"] == 2.0
    with pytest.raises(sqlfl.OptionError, match="threshold is the same in all fits"):
        fed.sql(text.format("[1, 2]", JOINED))


@pytest.mark.parametrize(
    ("kind", "clauses", "words"),
    [
        ("huber_regression", "", "needs the option threshold"),
        ("huber_regression", "WITH (threshold = 0)", "option threshold must be"),
        ("quantile_regression", "WITH (quantile = 1)", "option quantile must be"),
        ("linear_regression", "WITH (threshold = 1)", "option threshold"),
        ("quantile_regression", "PRIVACY (label_epsilon = 1, label_bounds = [0, 9])", "quantile"),
        ("huber_regression", "WITH (threshold = 1) PRIVACY (epsilon = 1, delta = 1e-5)", "bends"),
    ],
)
def test_what_they_refuse(fed: sqlfl.Federation, kind: str, clauses: str, words: str) -> None:
    with pytest.raises(sqlfl.Error, match=words):
        fed.sql(f"TRAIN MODEL m USING {kind} TARGET n {clauses} FROM ({JOINED})")


def test_what_looks_into_them(fed: sqlfl.Federation, tmp_path: object) -> None:
    train(fed, "quantile_regression", quantile=0.75)
    assert fed.sql("WEIGHTS OF MODEL m").arrow().num_rows > 4
    with pytest.raises(sqlfl.Error, match="compares the mean of predictions"):
        fed.sql(f"CALIBRATION OF MODEL m FROM ({JOINED})")
    assert fed.sql(f"INFERENCE OF MODEL m FROM ({JOINED})").arrow().num_rows > 4
    assert fed.sql(f"IMPORTANCE OF MODEL m FROM ({JOINED})").arrow().num_rows >= 4
    assert fed.sql(f"RESIDUALS OF MODEL m FROM ({JOINED})").arrow().num_rows > 1
