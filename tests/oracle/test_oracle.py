"""The oracle and the strategies by themselves: what everything else is measured against."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge

from tests import oracle, strategies
from tests.depth import examples
from tests.oracle.encoder import Encoder
from tests.oracle.trainer import Central, Fitted


def made(kind: str, classes: int, rows: int = 80) -> Central:
    rng = np.random.default_rng(3)
    table = pa.table(
        {
            "a": rng.normal(size=rows),
            "b": [None if v < 0.2 else v for v in rng.random(rows)],
            "c": rng.choice(["p", "q", "r"], rows),
        }
    )
    encoder = Encoder.fit(table)
    y = rng.normal(size=rows) if not classes else rng.integers(0, classes, rows)
    if kind == "poisson_regression":
        y = rng.poisson(2.0, rows).astype(float)
    return Central(
        kind, table, 0, encoder, encoder.transform(table), y, tuple(range(classes)), l2=0.01
    )


@pytest.mark.parametrize(
    ("kind", "classes"),
    [
        ("linear_regression", 0),
        ("poisson_regression", 0),
        ("logistic_regression", 2),
        ("softmax_regression", 3),
    ],
)
def test_the_optimum_has_no_gradient_and_agrees_with_scikit_learn(kind: str, classes: int) -> None:
    data = made(kind, classes)
    best = data.optimum()
    weights, intercept = data.gradient(best)
    assert np.abs(weights).max() < 1e-9
    assert np.abs(intercept).max() < 1e-9
    strength = data.l2 * len(data.y)
    if kind == "linear_regression":
        expected = Ridge(alpha=strength).fit(data.x, data.y).predict(data.x)[:, None]
    elif kind == "poisson_regression":
        poisson = PoissonRegressor(alpha=data.l2, tol=1e-10, max_iter=10_000)
        expected = poisson.fit(data.x, data.y).predict(data.x)[:, None]
    else:
        model = LogisticRegression(C=1 / strength, tol=1e-10, max_iter=10_000)
        expected = model.fit(data.x, data.y).predict_proba(data.x)
    np.testing.assert_allclose(data.predict(best), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "classes"),
    [
        ("linear_regression", 0),
        ("poisson_regression", 0),
        ("logistic_regression", 2),
        ("softmax_regression", 3),
    ],
)
def test_the_gradient_is_that_of_the_objective(kind: str, classes: int) -> None:
    data = made(kind, classes)
    begin = data.start()
    weights, intercept = data.gradient(begin)
    assert np.abs(intercept).max() < 1e-9
    for place in np.ndindex(weights.shape):
        step = np.zeros_like(weights)
        step[place] = 1e-5
        above = data.objective(Fitted(begin.weights + step, begin.intercept))
        below = data.objective(Fitted(begin.weights - step, begin.intercept))
        assert weights[place] == pytest.approx((above - below) / 2e-5, abs=1e-8)


def test_the_encoding_is_centred_scaled_and_marks_what_is_missing() -> None:
    table = pa.table(
        {
            "n": [1.0, 3.0, None, float("nan")],
            "b": [True, False, None, True],
            "c": ["x", None, "x", "y"],
            "k": [7.0, 7.0, 7.0, 7.0],
            "v": pa.array([[1.0, 2.0], None, [3.0, None], [5.0, 4.0]], pa.list_(pa.float32(), 2)),
        }
    )
    x = Encoder.fit(table).transform(table)
    assert x.shape == (4, 1 + 1 + 1 + 2 + 3 + 3)
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(x[:, :2].std(axis=0), 1)
    np.testing.assert_allclose(x[:, 2], 0)
    np.testing.assert_allclose(x[2:, 0], 0)
    np.testing.assert_allclose(x[:, -3:].sum(axis=1), 0, atol=1e-12)


@given(strategies.cases())
@examples(6)
def test_the_query_gives_the_same_rows_over_whole_tables_and_over_split_ones(
    case: strategies.Case,
) -> None:
    for clients in (1, 3):
        with case.open(clients) as databases:
            expected = sorted(databases.whole.execute(case.identified_query()).fetchall(), key=repr)
            for table in case.tables:
                parts = databases.parties[table.party]
                merged = pa.concat_tables(
                    [c.sql(f"FROM {table.name}").to_arrow_table() for c in parts]
                )
                databases.whole.execute(f"DELETE FROM {table.full_name}")
                databases.whole.register("merged", merged)
                databases.whole.execute(f"INSERT INTO {table.full_name} FROM merged")
                databases.whole.unregister("merged")
            found = sorted(databases.whole.execute(case.identified_query()).fetchall(), key=repr)
            assert list(map(repr, found)) == list(map(repr, expected))


@given(strategies.cases(kinds=("linear_regression",)))
def test_every_case_can_be_encoded_centrally(case: strategies.Case) -> None:
    with case.open() as databases:
        data = oracle.central(
            databases.whole, case.identified_query(), case.kind, case.target, ignore=case.row_ids
        )
        if len(data.y):
            np.testing.assert_allclose(data.x.mean(axis=0), 0, atol=1e-9)
            assert data.objective(data.optimum()) <= data.objective(data.start()) + 1e-12
