"""poisson_regression beside scikit-learn, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pytest
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import mean_poisson_deviance

import sqlfl
from tests.clinic import QUERY, VISITS, central, clinics, predicted
from tests.conftest import Open
from tests.federations import federation
from tests.open_databases import in_memory

L2 = 1e-3
COUNTS = QUERY.format(target="v.n", more="")
RATES = QUERY.format(target="v.n / v.years AS n", more=", v.years")


@pytest.fixture
def parties(database: Open) -> dict[str, list[duckdb.DuckDBPyConnection]]:
    return clinics(database)


@pytest.fixture
def fed(parties: dict[str, list[duckdb.DuckDBPyConnection]]) -> Iterator[sqlfl.Federation]:
    with federation(parties) as made:
        yield made


def train(query: str = COUNTS, clauses: str = "", **options: object) -> str:
    written = ", ".join(f"{name} = {value!r}" for name, value in ({"l2": L2} | options).items())
    return (
        f"TRAIN OR REPLACE MODEL m USING poisson_regression TARGET n {clauses} "
        f"WITH ({written}) FROM ({query})"
    )


@pytest.mark.parametrize(
    ("options", "near"),
    [
        ({}, 1e-6),
        ({"engine": "sql"}, 1e-6),
        ({"algorithm": "admm", "epochs": 100}, 1e-3),
        ({"algorithm": "admm", "union": "consensus", "epochs": 100}, 1e-3),
        ({"algorithm": "sgd", "epochs": 100}, 1e-3),
        ({"algorithm": "sgd", "epochs": 100, "optimizer": "momentum"}, 1e-2),
    ],
    ids=str,
)
def test_the_means_are_those_of_scikit_learn(
    fed: sqlfl.Federation, options: dict[str, object], near: float
) -> None:
    x, y, _ = central(COUNTS)
    fed.sql(train(**options))
    known = PoissonRegressor(alpha=L2, tol=1e-12, max_iter=10_000).fit(x, y)
    expected = known.predict(x)
    np.testing.assert_allclose(predicted(fed, COUNTS), expected, rtol=near)
    row = fed.sql(f"EVALUATE MODEL m FROM ({COUNTS})").arrow().to_pylist()[0]
    assert list(row) == ["rows", "loss", "deviance", "dispersion", "rmse", "mae"]
    assert row["loss"] == pytest.approx(np.mean(expected - y * np.log(expected)), abs=near)
    assert row["deviance"] == pytest.approx(mean_poisson_deviance(y, expected), rel=near)
    metrics = fed.model("m").metrics
    assert metrics["objective"] == pytest.approx(
        row["loss"] + L2 / 2 * float(known.coef_ @ known.coef_), abs=2 * near
    )
    for name in ("loss", "deviance", "rmse", "mae"):
        assert metrics[name] == pytest.approx(row[name], rel=1e-5)


@pytest.mark.parametrize("algorithm", ["lbfgs", "admm", "sgd"])
def test_a_rate_that_its_exposure_weighs_is_the_count(
    fed: sqlfl.Federation, algorithm: str
) -> None:
    """The weighted loss of n / years is that of n with the offset log years, over Σ years."""
    with in_memory() as con:
        con.execute(VISITS.replace(" WHERE i % 2 = {half}", ""))
        table = con.sql("FROM visits SELECT n, years::DOUBLE").to_arrow_table()
    n, years = (column.to_numpy() for column in table.itercolumns())
    fed.sql(train(RATES, "WEIGHT years", algorithm=algorithm, epochs=150))
    rate = predicted(fed, RATES)
    # the intercept is free: as many are expected as there are
    assert float(rate @ years) == pytest.approx(float(n.sum()), rel=1e-4)
    row = fed.sql(f"EVALUATE MODEL m FROM ({RATES})").arrow().to_pylist()[0]
    y = n / years
    assert row["loss"] == pytest.approx(np.average(rate - y * np.log(rate), weights=years))
    assert row["deviance"] == pytest.approx(mean_poisson_deviance(y, rate, sample_weight=years))


def test_validation_rows_have_the_same_loss(fed: sqlfl.Federation) -> None:
    fed.sql(train(algorithm="sgd", epochs=30, validation_fraction=0.3, patience=5, seed=1))
    model = fed.model("m")
    both = [model.metrics[f"{prefix}deviance"] for prefix in ("", "valid_")]
    assert all(0.0 < deviance < 10.0 for deviance in both)
    history = model.history.to_pydict()
    at = history["epoch"].index(model.epoch)
    assert history["valid_loss"][at] == pytest.approx(model.metrics["valid_loss"])
    # loss less half the deviance is the least loss of the rows: of either set of like counts alike
    floors = [model.metrics[f"{p}loss"] - model.metrics[f"{p}deviance"] / 2 for p in ("", "valid_")]
    assert floors[1] == pytest.approx(floors[0], abs=1.5)


def test_a_warm_start_begins_where_the_model_ended(fed: sqlfl.Federation) -> None:
    fed.sql(train())
    best = fed.model("m").metrics["objective"]
    for algorithm in ("lbfgs", "admm", "sgd"):
        statement = train(algorithm=algorithm, epochs=1, warm_start="m")
        fed.sql(statement.replace("OR REPLACE MODEL m", "MODEL w"))
        assert fed.model("w").metrics["objective"] == pytest.approx(best, abs=1e-5)
        fed.sql("DROP MODEL w")


def test_a_target_below_zero_is_refused(fed: sqlfl.Federation) -> None:
    with pytest.raises(sqlfl.ModelError) as caught:
        fed.sql(train(QUERY.format(target="v.n - 3 AS n", more="")))
    assert str(caught.value).splitlines() == [
        "target n has values below 0, which a poisson_regression does not take",
        "hint: correct them, or leave their rows out with WHERE",
    ]
    fed.sql(train())
    with pytest.raises(sqlfl.ModelError, match="target n has values below 0"):
        fed.sql(f"EVALUATE MODEL m FROM ({QUERY.format(target='v.n - 3 AS n', more='')})")


def test_infinite_targets_and_targets_of_zero_alone_are_refused(fed: sqlfl.Federation) -> None:
    endless = "CASE v.id WHEN 7 THEN 'inf'::DOUBLE ELSE v.n END AS n"
    with pytest.raises(sqlfl.PartyError, match="the target has infinite values"):
        fed.sql(train(QUERY.format(target=endless, more="")))
    with pytest.raises(sqlfl.ModelError, match="the target is 0 in all rows that train"):
        fed.sql(train(QUERY.format(target="0 * v.n AS n", more="")))


def test_classes_are_no_counts(fed: sqlfl.Federation) -> None:
    with pytest.raises(sqlfl.PlanError, match="target of poisson_regression must be a number"):
        fed.sql(train(QUERY.format(target="v.n::VARCHAR AS n", more="")))


def test_steps_that_are_too_long_are_an_error(fed: sqlfl.Federation) -> None:
    with pytest.raises(sqlfl.ModelError, match="diverge"):
        fed.sql(train(algorithm="sgd", learning_rate=50.0))


def test_a_mean_beyond_all_numbers_is_an_error(
    fed: sqlfl.Federation, parties: dict[str, list[duckdb.DuckDBPyConnection]]
) -> None:
    fed.sql(train())
    parties["clinic"][0].execute("UPDATE visits SET age = id * 1e9 - 1e9 WHERE id < 4")
    with pytest.raises(sqlfl.ModelError, match=r"the means of \d joined rows, exponentials"):
        fed.sql(f"PREDICT MODEL m FROM ({COUNTS})")


@pytest.mark.parametrize(
    ("clause", "why"),
    [
        ("label_epsilon = 1, label_bounds = [0, 9]", "noised counts may be below 0"),
        ("epsilon = 1", "no public bound"),
        ("noise_multiplier = 1, predictions = 'gaussian'", "too large on average"),
    ],
)
def test_privacy_says_why_it_does_not_go_with_counts(
    fed: sqlfl.Federation, clause: str, why: str
) -> None:
    text = train(algorithm="sgd").replace(" FROM (", f" PRIVACY ({clause}) FROM (", 1)
    with pytest.raises(sqlfl.OptionError, match=why) as caught:
        fed.sql(text)
    assert f"PRIVACY option {clause.split(' ')[0]} does not go with" in str(caught.value)
