"""The federation equals the same statement run centrally, on random federations and by hand."""

from __future__ import annotations

import itertools

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sqlfl
from sqlfl.coordinator import preparation
from sqlfl.coordinator.join import join_limits
from sqlfl.coordinator.rounds import passes
from tests import oracle
from tests.conftest import Open
from tests.depth import THOROUGH, examples, in_turn
from tests.federations import (
    assert_close,
    assert_predictions_equal,
    federation,
    probabilities,
    trainable,
)
from tests.strategies import BOUNDED, POISSON, Case, cases, predict_sql, train_sql

ENGINES = st.sampled_from(("sql", "arrays"))
CLIENTS = st.integers(1, 3)
TIGHT = {"algorithm": "lbfgs", "epochs": 1000, "tolerance": 1e-12}


def rate_of(data: oracle.Central) -> float:
    """A step that does not diverge: the curvature of counts is their mean."""
    return 0.5 if data.kind in BOUNDED else 0.02 / float(data.y.mean())


@given(cases(), CLIENTS, ENGINES)
@examples(1, 160)
def test_a_full_batch_step_is_the_central_one(case: Case, clients: int, engine: str) -> None:
    """θ = −η∇ after one step from 0, so equal predictions are equal gradients."""
    with case.open(clients) as databases, federation(databases) as fed:
        data = trainable(case, databases)
        rate = rate_of(data)
        fed.sql(case.train(algorithm="sgd", epochs=1, learning_rate=rate, engine=engine))
        stepped = data.step(rate)
        assert fed.model("m").metrics["objective"] == pytest.approx(data.objective(stepped), 1e-5)
        result = fed.sql(case.predict())
        assert_predictions_equal(case, databases, data, stepped, result)


@given(cases(), CLIENTS, ENGINES, st.sampled_from((1e-4, 1e-2)))
@examples(1, 100)
def test_lbfgs_reaches_the_central_optimum(
    case: Case, clients: int, engine: str, l2: float
) -> None:
    """And its predictions and EVALUATE's metrics are those of the central model."""
    with case.open(clients) as databases, federation(databases) as fed:
        data = trainable(case, databases, l2)
        fed.sql(case.train(engine=engine, l2=l2, **TIGHT))
        best = data.optimum()
        model = fed.model("m")
        assert gap(model, data, best) <= 1e-6
        assert model.metrics["rows"] == len(data.y)
        for wide in (False, True):
            result = fed.sql(case.predict(wide=wide))
            assert_predictions_equal(case, databases, data, best, result, wide=wide)
        row = fed.sql(f"EVALUATE MODEL m FROM ({case.query})").arrow().to_pylist()[0]
        assert row.pop("rows") == len(data.y)
        assert_metrics_equal(row, case, data, data.predict(best))


@given(cases(), CLIENTS)
@examples(2, 120)
def test_joined_rows_that_are_not_written_down_train_the_same_model(
    case: Case, clients: int
) -> None:
    """As joins of very many rows are trained, where they are inner ones along trees."""
    with pytest.MonkeyPatch.context() as patch, case.open(clients) as databases:
        data = trainable(case, databases, 1e-4)
        patch.setattr(join_limits, "MANY", 1)
        patch.setattr(passes, "CHUNK", 1)  # pieces of 1,024 rows
        with federation(databases) as fed:
            fed.sql(case.train(l2=1e-4, **TIGHT))
            model = fed.model("m")
            assert gap(model, data, data.optimum()) <= 1e-6
            assert model.metrics["rows"] == len(data.y)
            metrics = dict(model.metrics)
        patch.setattr(join_limits, "MANY", 1 << 60)
        with federation(databases) as fed:
            fed.sql(case.train(l2=1e-4, **TIGHT))
            for name, value in fed.model("m").metrics.items():
                expected = None if value is None else pytest.approx(value, rel=1e-5, abs=1e-5)
                assert metrics[name] == expected, name


@given(cases(outer=True), CLIENTS)
@examples(1, 150)
def test_joined_rows_in_files_train_the_same_model(case: Case, clients: int) -> None:
    """As joins that do not fit memory are trained, where they are none along trees."""
    with pytest.MonkeyPatch.context() as patch, case.open(clients) as databases:
        data = trainable(case, databases, 1e-2)
        with federation(databases) as fed:
            fed.sql(case.train(l2=1e-2, seed=1, **TIGHT))
            expected = fed.model("m")
        patch.setattr(preparation, "factorised_join", lambda *_: None)
        patch.setattr(join_limits, "FIXED", 1 << 50)
        patch.setattr(passes, "CHUNK", 1)  # pieces of 1,024 rows
        with federation(databases) as fed:
            fed.sql(case.train(l2=1e-2, seed=1, **TIGHT))
            model = fed.model("m")
            assert gap(model, data, data.optimum()) <= 1e-6
            assert model.metrics["rows"] == len(data.y)
            for name, value in expected.metrics.items():
                wanted = None if value is None else pytest.approx(value, rel=1e-5, abs=1e-5)
                assert model.metrics[name] == wanted, name


def assert_metrics_equal(
    row: dict[str, float], case: Case, data: oracle.Central, predicted: np.ndarray
) -> None:
    if case.kind in oracle.NUMBERS:
        poisson = case.kind == POISSON
        metrics = oracle.poisson_metrics if poisson else oracle.regression_metrics
        expected = metrics(data.y, predicted[:, 0])
    else:
        expected = oracle.classification_metrics(data.y, predicted)
    # Rows whose scores are equal but for rounding may rank either way.
    loose = {"auc": 0.02, "accuracy": 0.02}
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, rel=1e-3, abs=loose.get(name, 1e-4)), name


OUTER = cases(outer=True)


@given(OUTER, CLIENTS, ENGINES)
@examples(1, 70)
def test_a_full_batch_step_over_outer_joins_is_the_central_one(
    case: Case, clients: int, engine: str
) -> None:
    with case.open(clients) as databases, federation(databases) as fed:
        data = trainable(case, databases)
        rate = rate_of(data)
        fed.sql(case.train(algorithm="sgd", epochs=1, learning_rate=rate, engine=engine))
        stepped = data.step(rate)
        assert fed.model("m").metrics["rows"] == len(data.y)
        assert fed.model("m").metrics["objective"] == pytest.approx(data.objective(stepped), 1e-5)
        for wide in (False, True):
            result = fed.sql(case.predict(wide=wide))
            assert_predictions_equal(case, databases, data, stepped, result, wide=wide)


@given(OUTER, CLIENTS, ENGINES, st.sampled_from(("lbfgs", "admm")))
@examples(1, 80)
def test_outer_joins_reach_the_central_optimum(
    case: Case, clients: int, engine: str, algorithm: str
) -> None:
    with case.open(clients) as databases, federation(databases) as fed:
        data = trainable(case, databases, 1e-2)
        options = TIGHT if algorithm == "lbfgs" else {"algorithm": "admm", "epochs": 300}
        fed.sql(case.train(engine=engine, l2=1e-2, **options))
        best = data.optimum()
        assert gap(fed.model("m"), data, best) <= (1e-6 if algorithm == "lbfgs" else 1e-2)
        row = fed.sql(f"EVALUATE MODEL m FROM ({case.query})").arrow().to_pylist()[0]
        assert row["rows"] == len(data.y)
        assert row["loss"] == pytest.approx(fed.model("m").metrics["loss"], rel=1e-4, abs=1e-6)


@given(cases(), CLIENTS)
@examples(1, 100)
def test_defaults_are_within_a_thousandth_of_the_optimum(case: Case, clients: int) -> None:
    with case.open(clients) as databases, federation(databases) as fed:
        data = trainable(case, databases)
        fed.sql(case.train())
        best, start = data.optimum(), data.objective(data.start())
        assert fed.model("m").metrics["objective"] <= start + 1e-9
        assert gap(fed.model("m"), data, best) <= 1e-3


@given(cases(), CLIENTS, st.sampled_from(("exact", "consensus")))
@examples(1, 60)
def test_admm_never_diverges_and_approaches_the_optimum(
    case: Case, clients: int, union: str
) -> None:
    with case.open(clients) as databases, federation(databases) as fed:
        data = trainable(case, databases, l2=1e-2)
        fed.sql(case.train(algorithm="admm", union=union, epochs=200, l2=1e-2))
        best, start = data.optimum(), data.objective(data.start()) - data.floor
        objectives = fed.model("m").history.column("train_loss").to_numpy() - data.floor
        assert np.isfinite(objectives).all()
        assert objectives.max() <= 2 * start + 1e-6
        assert fed.model("m").metrics["objective"] - data.objective(best) <= 1e-2 * start + 1e-6


WAYS = st.permutations(list(itertools.product((1, 2, 3), ("sql", "arrays"))))


@given(cases(), WAYS)
@examples(1, 40)
def test_neither_clients_nor_engines_change_the_result(
    case: Case, ways: list[tuple[int, str]]
) -> None:
    found = []
    for clients, engine in ways if THOROUGH else ways[:2]:
        with case.open(clients) as databases, federation(databases) as fed:
            trainable(case, databases)
            fed.sql(case.train(engine=engine, **TIGHT))
            table = fed.sql(case.predict()).arrow()
            values = probabilities(table, case.kind)
            found.append((fed.model("m").metrics["objective"], np.sort(values, axis=0)))
    for objective, values in found[1:]:
        assert objective == pytest.approx(found[0][0], rel=1e-6, abs=1e-9)
        assert_close(values, found[0][1], 1e-5)


# -- by hand ---------------------------------------------------------------------------------------


def gap(model: sqlfl.Model, data: oracle.Central, best: oracle.Fitted) -> float:
    """Relative gap to the optimum.

    Messages are float32, so where labels are nearly separable and the optimum almost 0, precision
    is bound by the size of the scores: relative to a twentieth of the start's objective then.
    """
    least = data.objective(best)
    above = least - data.floor
    scale = max(above, 0.05 * (data.objective(data.start()) - data.floor), 1e-12)
    return abs(model.metrics["objective"] - least) / scale


def compare(
    parties: dict[str, list[duckdb.DuckDBPyConnection]],
    whole: duckdb.DuckDBPyConnection,
    query: str,
    kind: str = "linear_regression",
    *,
    central_query: str | None = None,
    l2: float = oracle.L2,
    **options: object,
) -> sqlfl.Model:
    """Train and predict; sorted predictions equal the central optimum's."""
    data = oracle.central(whole, central_query or query, kind, "label", l2=l2)
    with federation(parties) as fed:
        fed.sql(train_sql("m", kind, "label", query, **{**TIGHT, "l2": l2, **options}))
        model = fed.model("m")
        best = data.optimum()
        assert gap(model, data, best) <= 1e-6
        found = probabilities(fed.sql(predict_sql("m", query)).arrow(), kind)
        # Without labels in the query's rows being left out, PREDICT has a row for every row.
        rows = oracle.materialised(whole, central_query or query)
        assert_close(np.sort(found, axis=0), np.sort(data.predict(best, rows), axis=0), 1e-5)
        return model


SHOP = (
    "CREATE TABLE orders AS SELECT i AS id, i % 7 AS customer, (i * 37) % 11 AS amount, "
    "CASE WHEN i % 9 = 0 THEN NULL ELSE (i * 13) % 17 / 4.0 END AS label, "
    "TIMESTAMP '2024-01-01' + INTERVAL (i) HOUR AS at FROM range(90) r(i)",
)
BANK = (
    "CREATE TABLE customers AS SELECT i AS customer, (i * 5) % 4 AS score, "
    "['north', 'south', NULL][1 + i % 3] AS region FROM range(7) r(i)",
    "CREATE TABLE cards AS SELECT i % 7 AS customer, i * 1.5 AS spending, i AS id "
    "FROM range(20) r(i)",
    "CREATE SCHEMA risk",
    "CREATE TABLE risk.limits AS SELECT i AS customer, 100 * i AS card_limit FROM range(7) r(i)",
    "CREATE VIEW rich AS SELECT customer, score * 2 AS wealth FROM customers WHERE score > 0",
)


def shop_and_bank(database: Open) -> tuple[dict[str, list[duckdb.DuckDBPyConnection]], Open]:
    parties = {"shop": [database(*SHOP)], "bank": [database(*BANK)]}
    whole = database("ATTACH ':memory:' AS shop", "ATTACH ':memory:' AS bank")
    for party, statements in (("shop", SHOP), ("bank", BANK)):
        whole.execute(f"USE {party}")
        for statement in statements:
            whole.execute(statement)
    whole.execute("USE memory")
    return parties, whole


STATEMENTS = {
    "an expression of two tables of one party": """
        SELECT o.label, o.amount, c.spending * k.score AS weighted, c.spending > k.score AS over
        FROM shop.orders o
        JOIN bank.cards c ON o.customer = c.customer
        JOIN bank.customers k ON c.customer = k.customer""",
    "a range condition inside one party": """
        SELECT o.label, o.amount, c.spending, k.score
        FROM shop.orders o
        JOIN bank.cards c ON o.customer = c.customer
        JOIN bank.customers k ON c.spending > k.score * 3 AND c.customer = k.customer""",
    "an aggregate in a subquery": """
        SELECT o.label, o.amount, c.total, c.n
        FROM shop.orders o
        JOIN (SELECT customer, sum(spending) AS total, count(*) AS n
              FROM bank.cards GROUP BY customer HAVING count(*) > 1) c
          ON o.customer = c.customer""",
    "a common table expression with a window": """
        WITH ranked AS (
            SELECT customer, spending, row_number() OVER (PARTITION BY customer ORDER BY id) AS n
            FROM bank.cards)
        SELECT o.label, o.amount, r.spending
        FROM shop.orders o JOIN ranked r ON o.customer = r.customer AND r.n = 1""",
    "a table in a schema": """
        SELECT o.label, l.card_limit
        FROM shop.orders o JOIN bank.risk.limits l ON o.customer = l.customer""",
    "a view": """
        SELECT o.label, r.wealth, extract(hour FROM o.at) AS hour
        FROM shop.orders o JOIN bank.rich r USING (customer)""",
    "a key that is a feature too": """
        SELECT o.label, o.customer, c.customer AS theirs, c.region
        FROM shop.orders o JOIN bank.customers c ON o.customer = c.customer""",
    "a slot that has no feature": """
        SELECT o.label, l.card_limit
        FROM shop.orders o JOIN bank.cards c ON o.customer = c.customer
        JOIN bank.risk.limits l ON c.customer = l.customer""",
    "a key by an expression": """
        SELECT o.label, o.amount, c.score
        FROM shop.orders o JOIN bank.customers c ON o.customer + 1 = c.customer""",
    "a filter on the join key": """
        SELECT o.label, o.amount, c.score
        FROM shop.orders o JOIN bank.customers c ON o.customer = c.customer
        WHERE c.customer BETWEEN 1 AND 5 AND o.amount <> 3""",
    "one party alone": "SELECT o.label, o.amount, o.customer FROM shop.orders o",
    "a bare table name": "SELECT label, amount, score FROM shop.orders JOIN bank.customers "
    "USING (customer)",
    "a triangle of equalities": """
        SELECT o.label, c.spending, k.score
        FROM shop.orders o, bank.cards c, bank.customers k
        WHERE o.customer = c.customer AND c.customer = k.customer AND o.customer = k.customer""",
    "a constant feature": """
        SELECT o.label, o.amount, 3 * c.score - 3 * c.score AS nothing, c.region
        FROM shop.orders o JOIN bank.customers c USING (customer)""",
    "a feature that is always missing": """
        SELECT o.label, o.amount, CASE WHEN c.score > 99 THEN c.score END AS never
        FROM shop.orders o JOIN bank.customers c USING (customer)""",
    "another order of the same columns in a union": """
        SELECT o.label, o.amount, c.score
        FROM shop.orders o JOIN bank.customers c ON o.customer = c.customer WHERE o.amount < 5
        UNION ALL
        SELECT x.label, x.amount * 2, y.wealth
        FROM bank.rich y JOIN shop.orders x ON x.customer = y.customer""",
}


@pytest.mark.parametrize(("name", "engine"), in_turn(STATEMENTS, ("sql", "arrays")))
def test_statements_by_hand(name: str, engine: str, database: Open) -> None:
    parties, whole = shop_and_bank(database)
    compare(parties, whole, STATEMENTS[name], engine=engine)


def test_a_client_without_rows_changes_nothing(database: Open) -> None:
    parties, whole = shop_and_bank(database)
    parties["shop"].append(database(*SHOP, "DELETE FROM orders"))
    compare(parties, whole, STATEMENTS["a key that is a feature too"])


def test_one_to_one_tables_are_vertical_learning(database: Open) -> None:
    parties, whole = vertical(database, correlation=0.3)
    compare(parties, whole, VERTICAL)


def test_admm_with_correlated_uncentred_blocks_does_not_diverge(database: Open) -> None:
    parties, whole = vertical(database, correlation=0.95)
    data = oracle.central(whole, VERTICAL, "linear_regression", "label")
    with federation(parties) as fed:
        fed.sql(train_sql("m", "linear_regression", "label", VERTICAL, algorithm="admm", epochs=60))
        objectives = fed.model("m").history.column("train_loss").to_numpy()
        start = data.objective(data.start())
        assert objectives.max() <= start * 1.5
        assert objectives[-1] - data.objective(data.optimum()) <= 0.05 * start


def test_admm_with_nearly_independent_blocks_is_fast(database: Open) -> None:
    parties, whole = vertical(database, correlation=0.1)
    data = oracle.central(whole, VERTICAL, "linear_regression", "label")
    with federation(parties) as fed:
        fed.sql(train_sql("m", "linear_regression", "label", VERTICAL, algorithm="admm", epochs=12))
        assert gap(fed.model("m"), data, data.optimum()) <= 1e-3


VERTICAL = """
    SELECT a.label, a.x, b.x AS bx, c.x AS cx, d.x AS dx
    FROM a.t a JOIN b.t b USING (id) JOIN c.t c USING (id) JOIN d.t d USING (id)"""


def vertical(
    database: Open, correlation: float
) -> tuple[dict[str, list[duckdb.DuckDBPyConnection]], duckdb.DuckDBPyConnection]:
    """Four parties with one column each over the same 400 people, far from centred."""
    rng = np.random.default_rng(11)
    shared = rng.normal(size=400)
    columns = [
        np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * rng.normal(size=400) + 30 * k
        for k in range(4)
    ]
    label = sum(columns) + rng.normal(size=400)
    parties, whole = {}, database()
    for party, x in zip("abcd", columns, strict=True):
        source = {"id": np.arange(400), "x": x, "label": label}
        names = "id, x, label" if party == "a" else "id, x"
        whole.execute(f"ATTACH ':memory:' AS {party}")
        con = database()
        for target, table in ((con, "t"), (whole, f"{party}.t")):
            frame = duckdb_relation(target, source)
            target.execute(f"CREATE TABLE {table} AS SELECT {names} FROM {frame}")
            target.unregister(frame)
        parties[party] = [con]
    return parties, whole


def duckdb_relation(con: duckdb.DuckDBPyConnection, columns: dict[str, np.ndarray]) -> str:
    import pyarrow as pa

    con.register("source_columns", pa.table(columns))
    return "source_columns"


@pytest.mark.parametrize("clients", [1, 2])
def test_mini_batches_approach_the_optimum(clients: int, database: Open) -> None:
    parties, whole = shop_and_bank(database)
    if clients == 2:
        parties["shop"] = [
            database(*SHOP, f"DELETE FROM orders WHERE id % 3 {sign} 0") for sign in ("=", "<>")
        ]
    query = STATEMENTS["a key that is a feature too"]
    data = oracle.central(whole, query, "linear_regression", "label")
    options = {"algorithm": "sgd", "batch_size": 20, "epochs": 40, "seed": 3}
    with federation(parties) as fed:
        fed.sql(train_sql("m", "linear_regression", "label", query, **options))
        found = fed.model("m").metrics["objective"]
    least, start = data.objective(data.optimum()), data.objective(data.start())
    assert found - least <= 0.2 * (start - least)


def test_null_labels_are_left_out_and_counted(database: Open) -> None:
    parties, whole = shop_and_bank(database)
    query = STATEMENTS["one party alone"]
    model = compare(parties, whole, query)
    data = oracle.central(whole, query, "linear_regression", "label")
    assert data.null_labels == 10
    assert model.metrics["null_targets"] == 10
    assert model.metrics["rows"] == 80


def test_keys_meet_as_duckdb_compares_them(database: Open) -> None:
    """'01' = 1, -0.0 = 0.0, a DATE equals its midnight, 'a' is not 'A'; NULL equals nothing."""
    left = database(
        "CREATE TABLE t AS FROM (VALUES "
        "(1, 0.0::DOUBLE, DATE '2020-01-01', 'a', 1.0), (2, 1.0, DATE '2020-01-02', 'b', 2.5), "
        "(NULL, 1.0, DATE '2020-01-02', 'b', 7.0), (3, 'nan', DATE '2020-01-03', NULL, 3.25)) "
        "v(i, f, d, s, label)"
    )
    right = database(
        "CREATE TABLE u AS FROM (VALUES "
        "('01', -0.0::DOUBLE, TIMESTAMP '2020-01-01', 'a', 4), "
        "('2', 1.0, TIMESTAMP '2020-01-02', 'B', 5), "
        "(NULL, 1.0, TIMESTAMP '2020-01-02', NULL, 6), "
        "('3', 'nan', TIMESTAMP '2020-01-03', 'a', 8)) v(i, f, d, s, x)"
    )
    whole = database("ATTACH ':memory:' AS p", "ATTACH ':memory:' AS q")
    for con, name, target in ((left, "t", "p.t"), (right, "u", "q.u")):
        whole.register("copied", con.sql(f"FROM {name}").to_arrow_table())
        whole.execute(f"CREATE TABLE {target} AS FROM copied")
        whole.unregister("copied")
    for columns in (["i"], ["f"], ["d"], ["s"], ["i", "f"], ["f", "d"]):
        on = " AND ".join(f"t.{c} = u.{c}" for c in columns)
        query = f"SELECT t.label, u.x FROM p.t t JOIN q.u u ON {on}"
        with federation({"p": [left], "q": [right]}) as fed:
            fed.sql(train_sql("m", "linear_regression", "label", query))
            expected = whole.execute(f"SELECT count(*) FROM ({query})").fetchone()
            assert (fed.model("m").metrics["rows"],) == expected, columns


PLAIN = """CREATE TABLE t AS SELECT
  CASE WHEN i % 8 = 0 THEN NULL ELSE [sin(i * 7), cos(i * 5), sin(i * i)]::DOUBLE[3] END AS v,
  ['red', 'blue', 'green', NULL, ''][1 + (i * i + i // 3) % 5] AS c,
  CASE WHEN i % 9 = 4 THEN NULL ELSE round(14.5 + 1.2 * sin(i * 3), 2) END AS x,
  (i * 13) % 3 + 8 AS y FROM range(50) r(i)"""


@pytest.mark.parametrize("seed", [0, 6, 11])
def test_a_tolerance_that_is_never_met_makes_no_model_of_rounding(
    database: Open, seed: int
) -> None:
    """After the optimum, rounding was fitted in the scores, which left what the blocks predict."""
    found = []
    for options in ({"epochs": 200, "tolerance": 0}, {"epochs": 30}):
        with federation({"a": [database(PLAIN)]}) as fed:
            query = "SELECT t.v, upper(t.c) AS c, t.x * t.x AS xx, t.y FROM a.t t"
            fed.sql(train_sql("m", "softmax_regression", "y", query, seed=seed, **options))
            found.append(fed.model("m"))
    tight, usual = found
    assert tight.metrics["objective"] == pytest.approx(usual.metrics["objective"], rel=1e-6)
    assert tight.history.num_rows < 100
    seen = tight.history["train_loss"].to_numpy()
    assert seen.min() > usual.metrics["objective"] - 1e-7
