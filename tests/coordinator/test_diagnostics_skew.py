"""SKEW OF MODEL against the rows of both joins."""

from __future__ import annotations

import duckdb
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sqlfl
from sqlfl.base.errors import ModelError, PlanError, PolicyError
from sqlfl.messages.wire import decode
from tests.conftest import Open
from tests.depth import examples
from tests.governance.clinic import ruled
from tests.open_databases import in_memory
from tests.test_border import assert_disclosed, tapped

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


WEIGHED = """CREATE TABLE {0} AS SELECT i AS id, i % 40 AS person, i % 4 AS w,
  CASE WHEN i % 10 = 0 THEN NULL ELSE (i * i % 17)::DOUBLE END AS price,
  CASE WHEN i % 7 = 0 THEN NULL ELSE 'c' || (i * i % 5) END AS product, i % 3 = 0 AS gift,
  [i % 4, i % 6]::DOUBLE[2] AS place, sin(i) AS y, (i * 37) % 11 < 3 AS late FROM range(400) r(i)"""


@pytest.mark.parametrize(
    ("clause", "options", "engine", "other"),
    [
        ("WEIGHT w", "", "sql", "arrays"),
        ("", "class_weight = {'true': 9}", "arrays", "sql"),
        ("WEIGHT w", "class_weight = 'balanced'", "arrays", "arrays"),
        ("", "validation_fraction = 0.3, seed = 1", "arrays", "arrays"),
        (
            "WEIGHT w",
            "validation_fraction = 0.3, seed = 1, class_weight = 'balanced'",
            *("arrays", "arrays"),
        ),
        ("", "algorithm = 'sgd', epochs = 2, seed = 1", "sql", "sql"),
    ],
)
def test_rows_of_training_have_no_skew_however_they_are_weighed(
    database: Open, clause: str, options: str, engine: str, other: str
) -> None:
    with sqlfl.connect(progress=False) as fed:
        fed.attach("shop", database(WEIGHED.format("then_orders")))
        fed.attach("office", database(PEOPLE))
        weight = ", o.w" if clause else ""
        query = QUERY.format(f"{FEATURES}{weight}, o.late", "shop.then_orders", "")
        given = ", ".join(own for own in (options, f"engine = '{engine}'") if own)
        fed.sql(
            f"TRAIN MODEL m USING logistic_regression TARGET late {clause} "
            f"TRANSFORM (minmax(price), one_hot(product, max => 3)) WITH ({given}) FROM ({query})"
        )
        found = fed.sql(f"SKEW OF MODEL m WITH (engine = '{other}') FROM ({query})").df()
        assert found.distance.max() < 1e-9
        assert found.unseen.max() < 1e-9
        assert not found.drifted.any()
        assert (found.missing - found.trained_missing).abs().max() < 1e-9
        binned = found[found.feature != "place"]
        assert binned.psi.max() < 1e-9
        assert binned.jensen_shannon.max() < 1e-9
        far = query.replace("o.price", "o.price + 3 AS price")
        assert fed.sql(f"SKEW OF MODEL m FROM ({far})").df().psi.max() > 0.1


def test_a_weight_counts_in_means(database: Open) -> None:
    """A row of weight 2 is the row twice."""
    with sqlfl.connect(progress=False) as fed:
        fed.attach("shop", database(WEIGHED.format("then_orders")))
        fed.attach("office", database(PEOPLE))
        query = QUERY.format("o.price, o.w, p.age, o.late", "shop.then_orders", "")
        fed.sql(f"TRAIN MODEL m USING logistic_regression TARGET late WEIGHT w FROM ({query})")
        now = query.replace("o.price", "o.price + o.id / 100 AS price") + " WHERE o.id > 50"
        (row,) = fed.sql(f"SKEW OF MODEL m FROM ({now})").df().head(1).to_dict("records")
        whole = WEIGHED.format("then_orders") + f"; {PEOPLE}"
        with in_memory() as con:
            con.execute(whole)
            text = QUERY.replace("office.", "").format("o.price, o.w, o.id", "then_orders", "")
            data = con.sql(text).df().dropna()
        later = data[data.id > 50]
        mean = np.average(later.price + later.id / 100, weights=later.w)
        assert row["mean"] == pytest.approx(mean)
        assert row["trained_mean"] == pytest.approx(np.average(data.price, weights=data.w))
        with pytest.warns(UserWarning, match="was trained with WEIGHT w"):
            bare = fed.sql(f"SKEW OF MODEL m FROM ({now.replace('o.w, ', '')})")
        assert bare.df()["mean"][0] == pytest.approx((later.price + later.id / 100).mean())


def test_distributions_are_compared_by_bins_of_training(database: Open) -> None:
    """The same mean, and another spread."""
    then = "CREATE TABLE then_t AS SELECT i AS k, (i * 37) % 400 / 40.0 AS x, sin(i) AS y "
    now = "CREATE TABLE now_t AS SELECT i AS k, 5 + ((i * 37) % 400 / 40.0 - 5) / 3 AS x "
    with sqlfl.connect(progress=False) as fed:
        fed.attach("a", database(f"{then} FROM range(400) r(i); {now} FROM range(400) r(i)"))
        fed.attach(
            "b", database("CREATE TABLE u AS SELECT i AS k, i % 3 AS z FROM range(400) r(i)")
        )
        fed.sql(
            "TRAIN MODEL m USING linear_regression TARGET y "
            "FROM (SELECT t.x, u.z, t.y FROM a.then_t t JOIN b.u USING (k))"
        )
        rows = "FROM (SELECT t.x, u.z FROM a.now_t t JOIN b.u USING (k))"
        found = fed.sql(f"SKEW OF MODEL m {rows}").df().set_index("feature")
        i = np.arange(400)
        before = (i * 37) % 400 / 40.0
        after = 5 + (before - 5) / 3
        ends = np.sort(before)[40 * np.arange(1, 10) - 1]
        old = np.bincount(np.searchsorted(ends, before), minlength=10) / 400
        new = np.bincount(np.searchsorted(ends, after), minlength=10) / 400
        floored = np.maximum(old, 1e-4), np.maximum(new, 1e-4)
        psi = float((new - old) @ np.log(floored[1] / floored[0]))
        assert found.psi["x"] == pytest.approx(psi, rel=1e-6)
        middle = (old + new) / 2
        bits = sum(0.5 * float(p[p > 0] @ np.log2(p[p > 0] / middle[p > 0])) for p in (old, new))
        assert found.jensen_shannon["x"] == pytest.approx(bits, rel=1e-6)
        assert found.distance["x"] < 0.01
        assert found.psi["z"] < 1e-9
        assert found["jensen_shannon"].max() <= 1.0


def test_what_crosses_the_border_is_disclosed(database: Open) -> None:
    parties = {
        "shop": [database(WEIGHED.format("then_orders"))],
        "office": [database(PEOPLE)],
    }
    query = QUERY.format(f"{FEATURES}, o.w, o.late", "shop.then_orders", "")
    with tapped(parties) as (fed, tap):
        fed.sql(
            "TRAIN MODEL m USING logistic_regression TARGET late WEIGHT w "
            f"WITH (class_weight = 'balanced', epochs = 3) FROM ({query})"
        )
        for text in (query, query.replace(", o.w", "")):
            statement = f"SKEW OF MODEL m FROM ({text})"
            plan = fed.explain(statement)
            with tap.taken() as recorded:
                fed.sql(statement)
            assert_disclosed(plan, recorded, parties)
            kinds = {decode(item.data).kind for item in recorded}
            assert ({"weights", "weigh"} <= kinds) == ("o.w" in text)


def test_a_policy_raises_the_rows_that_are_compared(database: Open) -> None:
    shop = database(WEIGHED.format("then_orders"))
    query = QUERY.format("o.price, o.product, o.w, p.age, o.late", "shop.then_orders", "")
    grant = (
        "GRANT TRAIN (price, product), LABEL (late, w), JOIN (person), PREDICT "
        "ON then_orders TO 'acme' UNDER r"
    )
    with sqlfl.connect(analyst="acme", progress=False) as fed:
        fed.attach("shop", shop)
        fed.attach("office", database(PEOPLE))
        ruled(shop, "min_cell = 40", grant)
        fed.sql(f"TRAIN MODEL m USING logistic_regression TARGET late WEIGHT w FROM ({query})")
        found = fed.sql(f"SKEW OF MODEL m FROM ({query})").df()
        assert found.distance.notna().all()
        assert found.psi.max() < 1e-9
        uneven = query.replace("o.price", "o.price * o.price / 17 AS price")
        with pytest.raises(PolicyError, match=r"of price, it is computed, and .* tells of too few"):
            fed.sql(f"SKEW OF MODEL m FROM ({uneven})")
        shop.execute("UPDATE then_orders SET price = price * price / 17")
        shown = [fed.sql(f"SKEW OF MODEL m {of} FROM ({query})").df() for of in ("", LEAST)]
        own, same = (found[found.client == "shop/0"] for found in shown)
        pd.testing.assert_frame_equal(own, same, check_dtype=False)


LEAST = "WITH (min_cell = 40)"
