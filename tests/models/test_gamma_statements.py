"""gamma_regression beside scikit-learn, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pytest
from sklearn.linear_model import GammaRegressor
from sklearn.metrics import mean_gamma_deviance

import sqlfl
from sqlfl.base.errors import ModelError, OptionError
from tests.clinic import QUERY, central, clinics, predicted
from tests.conftest import Open
from tests.federations import federation

L2 = 1e-3
COSTS = QUERY.format(target="0.2 + v.n * v.age / 3 + v.id % 7 AS n", more="")
WEIGHTED = QUERY.format(target="0.2 + v.n + v.id % 7 AS n", more=", v.years")


@pytest.fixture
def parties(database: Open) -> dict[str, list[duckdb.DuckDBPyConnection]]:
    return clinics(database)


@pytest.fixture
def fed(parties: dict[str, list[duckdb.DuckDBPyConnection]]) -> Iterator[sqlfl.Federation]:
    with federation(parties) as made:
        yield made


@pytest.mark.parametrize(
    ("options", "near"),
    [
        ({}, 1e-6),
        ({"engine": "sql"}, 1e-6),
        ({"algorithm": "admm", "epochs": 100}, 1e-3),
        ({"algorithm": "admm", "union": "consensus", "epochs": 100}, 1e-3),
        ({"algorithm": "sgd", "epochs": 150}, 1e-2),
        ({"union": "secure"}, 1e-5),
    ],
    ids=str,
)
def test_the_means_are_those_of_scikit_learn(
    fed: sqlfl.Federation, options: dict[str, object], near: float
) -> None:
    query = f"{COSTS} WHERE p.size IS NOT NULL"
    x, y, _ = central(query)
    written = ", ".join(f"{k} = {v!r}" for k, v in ({"l2": L2} | options).items())
    fed.sql(f"TRAIN MODEL m USING gamma_regression TARGET n WITH ({written}) FROM ({query})")
    known = GammaRegressor(alpha=L2, tol=1e-12, max_iter=10_000).fit(x, y)
    expected = known.predict(x)
    np.testing.assert_allclose(predicted(fed, query), expected, rtol=near)
    row = fed.sql(f"EVALUATE MODEL m FROM ({query})").arrow().to_pylist()[0]
    assert list(row) == ["rows", "loss", "deviance", "dispersion", "rmse", "mae"]
    assert row["deviance"] == pytest.approx(mean_gamma_deviance(y, expected), rel=near)
    assert row["loss"] == pytest.approx(np.mean(np.log(expected) + y / expected), rel=near)
    metrics = fed.model("m").metrics
    assert metrics["objective"] == pytest.approx(
        row["loss"] + L2 / 2 * float(known.coef_ @ known.coef_), abs=2 * near
    )
    weights = fed.model("m").weights
    told = np.array(weights.column("kind").to_pylist()) != "intercept"
    ratios, coefficients = (
        weights.column(name).to_numpy()[told] for name in ("mean_ratio", "coefficient")
    )
    np.testing.assert_allclose(ratios, np.exp(coefficients))


def test_rows_of_weights_are_so_many_rows(fed: sqlfl.Federation) -> None:
    fed.sql(
        f"TRAIN MODEL m USING gamma_regression TARGET n WEIGHT years WITH (l2 = {L2}) "
        f"FROM ({WEIGHTED})"
    )
    _, y, years = central(WEIGHTED.replace(", v.years", ""))
    found = fed.sql(f"EVALUATE MODEL m FROM ({WEIGHTED})").arrow().to_pylist()[0]
    mean = predicted(fed, WEIGHTED.replace(", v.years", ""))
    expected = mean_gamma_deviance(y, mean, sample_weight=years)
    assert found["deviance"] == pytest.approx(expected, rel=1e-5)
    # the intercept is not penalised: at the optimum Σ w (1 − y/μ) = 0
    assert np.average(y / mean, weights=years) == pytest.approx(1.0, rel=1e-5)
    bins = fed.sql(f"CALIBRATION OF MODEL m WITH (bins = 3) FROM ({WEIGHTED})").arrow()
    assert bins.num_rows == 3
    assert fed.sql(f"RESIDUALS OF MODEL m FROM ({WEIGHTED})").arrow().num_rows > 1


def test_what_it_refuses(fed: sqlfl.Federation) -> None:
    train = "TRAIN MODEL m USING gamma_regression TARGET n"
    for target, said in (("v.n", "values that are 0"), ("v.n - 1.5 AS n", "values below 0")):
        with pytest.raises(ModelError, match=said):
            fed.sql(f"{train} FROM ({QUERY.format(target=target, more='')})")
    for clause in ("epsilon = 1", "label_epsilon = 1, label_bounds = [1, 9]"):
        with pytest.raises(OptionError, match="gamma_regression"):
            fed.sql(f"{train} PRIVACY ({clause}) FROM ({COSTS})")
    assert not fed.sql("SHOW MODELS").arrow().num_rows
