"""SKEW OF MODEL against the rows of both joins."""

from __future__ import annotations

import duckdb
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sqlfl
from sqlfl.errors import ModelError, PlanError
from tests.conftest import Open
from tests.databases import in_memory
from tests.depth import examples

THEN = """CREATE TABLE {0} AS SELECT i AS id, i % 40 AS person,
  CASE WHEN i % 10 = 0 THEN NULL ELSE (i * i % 17)::DOUBLE END AS price,
  CASE WHEN i % 7 = 0 THEN NULL ELSE 'c' || (i * i % 5) END AS product, i % 3 = 0 AS gift,
  [i % 4, i % 6]::DOUBLE[2] AS place, sin(i) AS y FROM range({1}, {2}) AS r(i)"""
NOW = """CREATE TABLE {0} AS SELECT i AS id, i % 50 AS person,
  CASE WHEN i % 3 = 0 THEN NULL ELSE (i * i % 13) + 5.0 END AS price,
  CASE WHEN i % 9 = 0 THEN NULL ELSE 'c' || (i * i % 7) END AS product, i % 5 = 0 AS gift,
  [i % 4, i % 9]::DOUBLE[2] AS place FROM range({1}, {2}) AS r(i)"""
PEOPLE = """CREATE TABLE people AS SELECT i AS id, i % 9 AS age, 'g' || (i % 3) AS town
  FROM range(45) AS r(i)"""
FEATURES = "o.price, o.product, o.gift, o.place, p.age, p.town"
QUERY = "SELECT {0} FROM {1} AS o {2} JOIN office.people AS p ON o.person = p.id"


def rows(con: duckdb.DuckDBPyConnection, orders: str, side: str) -> pd.DataFrame:
    """The central join."""
    query = QUERY.format(FEATURES, orders, side).replace("office.", "")
    found: pd.DataFrame = con.sql(query).df()
    return found


def central(then: pd.DataFrame, now: pd.DataFrame, name: str) -> dict[str, float]:
    """What is expected of a feature."""
    before, after = then[name], now[name]
    found = {"trained_missing": before.isna().mean(), "missing": after.isna().mean()}
    if name == "place":
        old, new = np.stack(list(before.dropna())), np.stack(list(after.dropna()))
        filled = np.concatenate([old, np.tile(old.mean(0), (int(before.isna().sum()), 1))])
        far = np.abs(new.mean(0) - old.mean(0)) / filled.std(0)
        return found | {"distance": far.max(), "unseen": 0.0}
    if name in ("product", "town"):
        shares = before.value_counts(normalize=True, dropna=False)
        other = after.value_counts(normalize=True, dropna=False)
        old, new = ({str(k): v for k, v in s.items()} for s in (shares, other))
        every = {*old, *new}
        far = sum(abs(old.get(k, 0) - new.get(k, 0)) for k in every) / 2
        return found | {"distance": far, "unseen": sum(v for k, v in new.items() if k not in old)}
    before, after = before.astype(float), after.astype(float)
    scale = before.fillna(before.mean()).std(ddof=0)
    return found | {
        "trained_mean": before.mean(),
        "mean": after.mean(),
        "distance": abs(after.mean() - before.mean()) / scale,
        "unseen": 0.0,
    }


def federation(
    database: Open, parts: int = 1
) -> tuple[sqlfl.Federation, duckdb.DuckDBPyConnection]:
    """Trained as model m, and the database of all tables; `parts`: databases of the orders."""
    whole, office = database(PEOPLE), database(PEOPLE)
    for text, size in ((THEN, 300), (NOW, 240)):
        name = "then" if text is THEN else "now"
        whole.execute(text.format(f"{name}_orders", 0, size))
    shops = [database() for _ in range(parts)]
    for place, shop in enumerate(shops):
        for text, size, name in ((THEN, 300, "then"), (NOW, 240, "now")):
            ends = size * place // parts, size * (place + 1) // parts
            shop.execute(text.format(f"{name}_orders", *ends))
    fed = sqlfl.connect(progress=False)
    fed.attach("shop", shops if parts > 1 else shops[0])
    fed.attach("office", office)
    return fed, whole


@given(st.sampled_from(("", "LEFT")), st.sampled_from(("sql", "arrays")))
@examples(4)
def test_each_feature_is_compared_with_the_central_join(side: str, engine: str) -> None:
    with (
        in_memory() as a,
        in_memory() as b,
        in_memory() as whole,
        sqlfl.connect(progress=False) as fed,
    ):
        for con in (a, whole):
            con.execute(THEN.format("then_orders", 0, 300))
            con.execute(NOW.format("now_orders", 0, 240))
        for con in (b, whole):
            con.execute(PEOPLE)
        fed.attach("shop", a)
        fed.attach("office", b)
        then = QUERY.format(f"{FEATURES}, o.y", "shop.then_orders", side)
        now = QUERY.format(FEATURES, "shop.now_orders", side)
        fed.sql(f"TRAIN MODEL m USING linear_regression TARGET y FROM ({then})")
        found = fed.sql(f"SKEW OF MODEL m WITH (engine = '{engine}') FROM ({now})").df()
        before, after = rows(whole, "then_orders", side), rows(whole, "now_orders", side)
        assert found.feature.tolist() == before.columns.tolist()
        for row in found.to_dict("records"):
            expected = central(before, after, row["feature"])
            for name, value in expected.items():
                assert row[name] == pytest.approx(value, rel=1e-6, abs=1e-6), (row, name)
            assert np.isnan(row["mean"]) == ("mean" not in expected)
            assert row["drifted"] == (row["distance"] > 0.3)


def test_each_database_is_compared_with_all_rows_of_training(database: Open) -> None:
    fed, whole = federation(database, 3)
    with fed:
        then = QUERY.format(f"{FEATURES}, o.y", "shop.then_orders", "")
        fed.sql(f"TRAIN MODEL m USING linear_regression TARGET y FROM ({then})")
        found = fed.sql(
            f"VALIDATE SKEW OF MODEL m FROM ({QUERY.format(FEATURES, 'shop.now_orders', '')})"
        ).df()
        assert len(found) == 3 * 4 + 2
        before = rows(whole, "then_orders", "")
        for place in range(3):
            own = whole.sql(f"FROM now_orders WHERE id >= {80 * place} AND id < {80 * place + 80}")
            own.create_view("part", replace=True)
            after = rows(whole, "part", "")
            for row in found[found.client == f"shop/{place}"].to_dict("records"):
                for name, value in central(before, after, row["feature"]).items():
                    assert row[name] == pytest.approx(value, rel=1e-6, abs=1e-6), (row, name)


def test_what_training_saw_is_no_skew(database: Open) -> None:
    fed, _ = federation(database)
    with fed:
        query = QUERY.format(FEATURES, "shop.then_orders", "")
        transform = "TRANSFORM (minmax(price), one_hot(product, max => 3), spline(age))"
        fed.sql(
            f"TRAIN MODEL m USING linear_regression TARGET y {transform} "
            f"FROM ({query.replace(FEATURES, f'{FEATURES}, o.y')})"
        )
        found = fed.sql(f"SKEW OF MODEL m FROM ({query})").df()
        assert found.distance.max() < 1e-12
        assert not found.drifted.any()
        assert (found.missing == found.trained_missing).all()
        now = fed.sql(
            f"SKEW OF MODEL m WITH (threshold = 1e-9) FROM ({query.replace('then', 'now')})"
        )
        assert now.df().drifted[:2].all()
        few = fed.sql(
            f"SKEW OF MODEL m WITH (min_cell = 250) FROM ({query.replace('then', 'now')})"
        ).df()
        assert few[few.client == "shop/0"].distance.isna().all()
        assert few[few.client == "shop/0"]["mean"].isna().all()


def test_what_is_refused(database: Open) -> None:
    fed, _ = federation(database)
    query = QUERY.format(FEATURES, "shop.then_orders", "")
    with fed:
        fed.sql(
            "TRAIN MODEL m USING linear_regression TARGET y "
            f"FROM ({query.replace(FEATURES, f'{FEATURES}, o.y')})"
        )
        with pytest.raises(ModelError, match="the join is empty"):
            fed.sql(f"SKEW OF MODEL m FROM ({query} WHERE o.id < 0)")
        few = "SELECT o.price, p.age, o.y > 0 AS up FROM shop.then_orders o JOIN office.people p"
        fed.sql(
            "TRAIN MODEL p USING logistic_regression TARGET up WITH (algorithm = 'sgd') "
            "PRIVACY (epsilon = 5, delta = 1e-4, statistics = 'bounds', "
            "feature_bounds = {'price': [0, 20], 'age': [0, 9]}) "
            f"FROM ({few} ON o.person = p.id)"
        )
        with pytest.raises(ModelError, match="trained with PRIVACY of features"):
            fed.sql(f"SKEW OF MODEL p FROM ({few} ON o.person = p.id)")
    shops = [database(THEN.format("then_orders", k, k + 100)) for k in (0, 100)]
    with sqlfl.connect(progress=False) as fed:
        fed.attach("shop", shops, combine=True)
        fed.attach("office", database(PEOPLE))
        both = query.replace(FEATURES, "o.price, p.age, o.y")
        fed.sql(f"TRAIN MODEL c USING linear_regression TARGET y FROM ({both})")
        with pytest.raises(
            PlanError, match="SKEW is not built for databases that a party combines"
        ):
            fed.sql(f"SKEW OF MODEL c FROM ({both})")
