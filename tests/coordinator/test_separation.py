"""Models without finite estimates: what is said of them, and what statsmodels says of the rest."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import statsmodels.api as sm
from scipy.special import expit

import sqlfl
from tests import oracle
from tests.coordinator.test_inference import columns_of, infer, measures, shop
from tests.depth import SEED, combinations
from tests.strategies import LOGISTIC, POISSON, SOFTMAX

QUERY = """SELECT v.x, v.kind, p.age, p.town, w.rain, v.y
  FROM shop.visits v JOIN shop.people p USING (person) LEFT JOIN sky.weather w USING (day)"""


TRAIN = "TRAIN MODEL m USING {kind} TARGET y WITH (l2 = 0, epochs = 500) FROM ({query})"


def made(kind: str, seed: int) -> dict[str, pa.Table]:
    """All 6 visits of kind 'rare' are of one class, or have a count of 0; so have people from
    'nowhere'."""
    rng = np.random.default_rng([SEED, seed])
    n, people, days = 400, 40, 20
    age, rain = rng.normal(40, 12, people), rng.gamma(2.0, 3.0, days)
    town = np.array(["north", "south", "nowhere"])[np.minimum(np.arange(people) // 18, 2)]
    person, day = rng.integers(0, people, n), rng.integers(0, days + 4, n)
    x, kinds = rng.normal(3.0, 2.0, n), rng.choice(["a", "b"], n).astype(object)
    kinds[:6] = "rare"
    nowhere = town[person] == "nowhere"
    h = 0.3 * (x - 3) - 0.03 * (age[person] - 40) + np.where(kinds == "a", 0.5, 0.0)
    if kind == LOGISTIC:
        y = rng.random(n) < expit(h)
        y[:6], y[nowhere] = True, False
        y[:6] &= ~nowhere[:6]
        kinds[:6][nowhere[:6]] = "a"
    else:
        y = rng.poisson(np.exp(0.3 + 0.5 * h))
        y[:6] = y[nowhere] = 0
    visits = {"person": person, "day": day, "x": x, "kind": kinds, "y": y}
    return {
        "visits": pa.table(visits),
        "people": pa.table({"person": np.arange(people), "age": age, "town": town}),
        "weather": pa.table({"day": np.arange(days), "rain": rain}),
    }


def warned(fed: sqlfl.Federation, statement: str) -> tuple[sqlfl.Result, list[str]]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = fed.sql(statement)
    return found, [str(warning.message) for warning in said]


@pytest.mark.parametrize(
    ("kind", "clients", "robust"), combinations((LOGISTIC, POISSON), (1, 2), (False, True))
)
def test_the_rest_is_as_statsmodels_has_it(kind: str, clients: int, robust: bool) -> None:
    tables = made(kind, 1)
    with shop(tables, clients) as (fed, whole):
        _, told = warned(fed, TRAIN.format(kind=kind, query=QUERY))
        card = str(fed.model("m"))
        statement = f"INFERENCE OF MODEL m WITH (robust = {str(robust).lower()}) FROM ({QUERY})"
        result, said = warned(fed, statement)
        data = oracle.central(whole, QUERY, kind, "y", (), 0.0)
    rows = result.arrow().to_pylist()
    apart = {("kind", "rare"), ("town", "nowhere")}
    named = [row for row in rows if (row["feature"], row["category"]) in apart]
    assert len(named) == 2
    for row in named:
        assert {row[k] for k in ("coefficient", "standard_error", "statistic", "p", "lower")} == {
            None
        }
    texts = [text for text in said if "separation" in text]
    assert len(texts) == 1
    assert "kind (rare)" in texts[0]
    assert "town (nowhere)" in texts[0]
    first = [text for text in told if "separation" in text]
    assert any("kind (rare)" in text for text in first)
    assert any("town (nowhere)" in text for text in first)
    assert not any("age" in text or "north" in text for text in first)
    assert "separation" in card
    assert not [note for note in result.notes if "Left out" in note]
    assert [note for note in result.notes if note.startswith("Separation")]
    compare_rest(rows, data, kind, robust)


def compare_rest(rows: list[dict[str, Any]], data: Any, kind: str, robust: bool) -> None:
    """Contrasts of what is estimated, over the rows that are not separated."""
    columns = columns_of(data.encoder)
    places = {column: k for k, (column, _, _) in enumerate(columns)}
    rest = np.ones(len(data.y), bool)
    for feature, category in (("kind", "rare"), ("town", "nowhere")):
        one = places[feature, "category", category]
        centre, scale = columns[one][1:]
        rest &= data.x[:, one] * scale + centre < 0.5
    raw = np.column_stack([data.x[:, k] * s + c for k, (_, c, s) in enumerate(columns)])
    chosen, names = [np.ones(len(raw))], ["intercept"]
    bases = {row["feature"]: row["category"] for row in rows if row["kind"] == "base"}
    for k, ((feature, of, category), _, _) in enumerate(columns):
        if category in ("rare", "nowhere") or bases.get(feature) == category is not None:
            continue
        chosen.append(raw[:, k])
        absent = (feature, of) == ("rain", "missing")  # of days without a row
        name = f"{feature.removesuffix('[1]')}/{of}/{category}"
        names.append("no partner/no partner/None" if absent else name)
    family = sm.families.Binomial() if kind == LOGISTIC else sm.families.Poisson()
    options = {"cov_type": "HC0"} if robust else {}
    x = np.column_stack(chosen)[rest]
    true = sm.GLM(data.y[rest].astype(float), x, family=family).fit(
        tol=1e-14, maxiter=200, **options
    )
    found = {f"{row['feature']}/{row['kind']}/{row['category']}": row for row in rows}
    found["intercept"] = found["intercept/intercept/None"]
    for name, value, error, p in zip(names, true.params, true.bse, true.pvalues, strict=True):
        row = found[name]
        assert row["coefficient"] == pytest.approx(value, rel=2e-3, abs=2e-3 * error), name
        assert row["standard_error"] == pytest.approx(error, rel=2e-3), name
        assert row["p"] == pytest.approx(p, rel=0.02, abs=1e-4), name
    measured = measures(rows)
    assert measured["parameters"] == len(names) + 2
    assert measured["rows"] == len(data.y)
    assert measured["log_likelihood"] == pytest.approx(true.llf, rel=1e-4)
    assert measured["aic"] == pytest.approx(2 * (len(names) + 2 - true.llf), rel=1e-4)


def test_columns_of_two_parties_together_separate() -> None:
    """No column alone does: a row is of class 1 wherever the shares of two parties are above 1."""
    rng = np.random.default_rng([SEED, 3])
    n = 300
    a, b = rng.integers(0, 2, n), rng.integers(0, 2, n)
    y = np.where(a + b == 2, True, rng.random(n) < 0.5)
    tables = {
        "visits": pa.table({"person": np.arange(n), "day": np.arange(n), "a": a, "y": y}),
        "people": pa.table({"person": np.arange(n), "age": rng.normal(size=n)}),
        "weather": pa.table({"day": np.arange(n), "b": b, "ab": a * b}),
    }
    query = """SELECT v.a, p.age, w.b, w.ab, v.y FROM shop.visits v
      JOIN shop.people p USING (person) JOIN sky.weather w USING (day)"""
    with shop(tables, 1) as (fed, _):
        warned(fed, f"TRAIN MODEL m USING {LOGISTIC} TARGET y WITH (l2 = 0) FROM ({query})")
        rows = {row["feature"]: row for row in warned_rows(fed, query)}
    assert rows["ab"]["coefficient"] is None
    for name in ("a", "b", "age", "intercept"):
        assert 0.0 < rows[name]["p"] < 1.0
    assert measures(list(rows.values()))["parameters"] == 5


def warned_rows(fed: sqlfl.Federation, query: str) -> list[dict[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return infer(fed, query)


def test_a_penalty_makes_estimates_finite_and_no_test() -> None:
    tables = made(LOGISTIC, 4)
    with shop(tables, 1) as (fed, _):
        fed.sql(f"TRAIN MODEL m USING {LOGISTIC} TARGET y WITH (l2 = 0.001) FROM ({QUERY})")
        rows = warned_rows(fed, QUERY)
    rare = next(row for row in rows if row["category"] == "rare")
    assert rare["coefficient"] > 1.0
    assert rare["p"] is None


@pytest.mark.parametrize("kind", [LOGISTIC, SOFTMAX])
@pytest.mark.parametrize("robust", [False, True])
def test_a_penalised_model_whose_rows_are_all_separated_has_no_errors(
    kind: str, robust: bool
) -> None:
    n = 60
    a = np.arange(n) % 3
    tables = {
        "visits": pa.table({"person": np.arange(n), "a": a, "y": a if kind == SOFTMAX else a > 1}),
        "people": pa.table({"person": np.arange(n), "age": np.arange(n) // 3}),
        "weather": pa.table({"day": [0]}),
    }
    query = """SELECT v.a = 0 AS b, v.a > 1 AS c, p.age, v.y
      FROM shop.visits v JOIN shop.people p USING (person)"""
    with shop(tables, 1) as (fed, _), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fed.sql(f"TRAIN MODEL m USING {kind} TARGET y WITH (l2 = 0.001) FROM ({query})")
        rows = infer(fed, query, robust=robust)
    features = [row for row in rows if row["feature"] in ("b", "c", "age", "intercept")]
    assert len(features) == (8 if kind == SOFTMAX else 4)
    for row in features:
        assert row["coefficient"] is not None
        assert row["standard_error"] is None
        assert row["p"] is None


def test_columns_of_two_tables_that_separate_together_are_both_named() -> None:
    """Rows where both flags are set are of one class, those where none is of the other."""
    rng = np.random.default_rng([SEED, 9])
    n, keys = 240, 24
    k = rng.integers(0, keys, n)
    a, b, x = rng.random(n) < 0.5, rng.random(keys) < 0.5, rng.normal(size=n)
    both = a.astype(int) + b[k]
    y = np.where(both == 1, rng.random(n) < expit(x), both == 2)
    tables = {
        "visits": pa.table({"person": k, "a": a, "x": x, "y": y}),
        "people": pa.table({"person": np.arange(keys), "b": b}),
        "weather": pa.table({"day": [0]}),
    }
    query = "SELECT v.a, v.x, p.b, v.y FROM shop.visits v JOIN shop.people p USING (person)"
    with shop(tables, 1) as (fed, _):
        warned(fed, TRAIN.format(kind=LOGISTIC, query=query))
        rows = {row["feature"]: row for row in warned_rows(fed, query)}
    for name in ("a", "b", "intercept"):
        assert rows[name]["standard_error"] is None
        assert rows[name]["coefficient"] is None
    mixed = both == 1
    # among these rows the flag of visits tells that of people
    design = np.column_stack([np.ones(mixed.sum()), a[mixed], x[mixed]]).astype(float)
    true = sm.Logit(y[mixed].astype(float), design).fit(disp=0, tol=1e-12)
    assert rows["x"]["coefficient"] == pytest.approx(true.params[2], rel=1e-3)
    assert rows["x"]["standard_error"] == pytest.approx(true.bse[2], rel=1e-3)
