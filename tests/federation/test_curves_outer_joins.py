"""TRANSFORM (auto) over a LEFT JOIN: a missing partner has a column of its own, once a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.contract.schema import Client
from tests.federations import federation
from tests.open_databases import in_memory
from tests.test_border import assert_disclosed, tapped

QUERY = "SELECT a.x, b.u, b.v, b.w, b.c, a.y FROM p.a a {} JOIN q.b b USING (k)"
TRAIN = "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y TRANSFORM ({}) FROM ({})"
PARTNERS = 200
"""Rows of the right table; keys above have no partner."""


def tables(*, nulls: bool = True) -> tuple[pa.Table, pa.Table]:
    """Two tables; y is a sine of u, and 2 without a partner. Columns of the right one are NULL in
    some rows, which means nothing; `nulls`: the column v too."""
    rng = np.random.default_rng(3)
    keys = np.arange(900) % 300
    u, v, w = rng.normal(size=(3, PARTNERS))
    gone = rng.random((4, PARTNERS)) < 0.3
    gone[1] &= nulls
    mean = np.where(keys < PARTNERS, np.sin(2 * u[np.minimum(keys, PARTNERS - 1)]), 2.0)
    names = np.array(["c0", "c1", "c2"])[rng.integers(0, 3, PARTNERS)]
    one = pa.table({
        "id": np.arange(900), "k": keys, "x": rng.normal(size=900),
        "y": mean + 0.3 * rng.normal(size=900),
    })  # fmt: skip
    columns = [pa.array(c, mask=g) for c, g in zip((u, v, w, names), gone, strict=True)]
    return one, pa.table([pa.array(np.arange(PARTNERS)), *columns], names=list("kuvwc"))


@dataclass
class Case:
    fed: sqlfl.Federation
    one: pa.Table
    two: pa.Table
    shared: bool

    def predictions(self, query: str) -> np.ndarray:
        found = self.fed.sql(f"PREDICT MODEL m ID (p.a.id) FROM ({query})").df()
        return found.sort_values("id").prediction.to_numpy()


def put(con: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    con.register("given", table)
    con.execute(f"CREATE TABLE {name} AS FROM given")
    con.unregister("given")


@pytest.fixture(params=[1, 2])
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    one, two = tables()
    with in_memory() as first, in_memory() as second, in_memory() as third:
        put(first, "a", one)
        cons = [second, third][: request.param]
        for place, con in enumerate(cons):
            put(con, "b", two.take(np.arange(place, PARTNERS, len(cons))))
        with federation({"p": [first], "q": cons}) as fed:
            yield Case(fed, one, two, len(cons) > 1)


def test_no_partner_is_apart_from_null(case: Case) -> None:
    """NULLs of each column mean nothing here, so no sum of their weights is that of a missing
    partner."""
    query = QUERY.format("LEFT")
    case.fed.sql(TRAIN.format("auto", query))
    assert case.fed.model("m").features[-1] == "b (partner)"
    predictions = case.predictions(query)
    keys = case.one.column("k").to_numpy()
    np.testing.assert_allclose(predictions[keys >= PARTNERS], 2.0, atol=0.1)
    table = case.two.to_pandas().set_index("k").reindex(keys)
    some = table.u.isna().to_numpy() & (keys < PARTNERS)
    assert abs(predictions[some].mean()) < 0.3
    curves = case.fed.sql("CURVES OF MODEL m").df()
    of_partners = curves[curves.feature == "b (partner)"].set_index("value")
    assert of_partners.loc["none"].effect - of_partners.loc["some"].effect > 1.7
    inner = case.predictions(QUERY.format(""))
    np.testing.assert_allclose(inner, predictions[keys < PARTNERS], atol=1e-6)


def test_an_export_knows_it(case: Case, tmp_path: Path) -> None:
    query = QUERY.format("LEFT")
    case.fed.sql(TRAIN.format("auto", query))
    wanted = case.predictions(query)
    case.fed.sql(f"EXPORT MODEL m TO '{tmp_path / 'm'}' WITH (formats = ['safetensors', 'sql'])")
    with duckdb.connect() as con:
        con.register("a", case.one)
        con.register("b", case.two)
        for path in sorted((tmp_path / "m").rglob("*.sql")):
            con.execute(path.read_text())
        if not case.shared:  # each database's functions know its own categories
            intercept = float(case.fed.model("m").intercept[0])
            found = con.sql(
                f"SELECT m_a(x) + m_b(u, v, w, c) + {intercept!r} AS p FROM a LEFT JOIN b USING (k)"
                " ORDER BY id"
            ).fetchnumpy()["p"]
            np.testing.assert_allclose(found, wanted, atol=1e-5)
    case.fed.sql(f"IMPORT OR REPLACE MODEL m FROM '{tmp_path / 'm'}'")
    np.testing.assert_allclose(case.predictions(query), wanted, atol=1e-6)


def test_a_column_without_nulls_of_its_own_has_no_second_indicator() -> None:
    one, two = tables(nulls=False)
    with in_memory() as first, in_memory() as second:
        put(first, "a", one)
        put(second, "b", two)
        with federation({"p": [first], "q": [second]}) as fed:
            fed.sql(TRAIN.format("auto", QUERY.format("LEFT")))
            weights = fed.sql("WEIGHTS OF MODEL m").df()
            missing = weights[weights.kind == "missing"].feature.tolist()
            assert missing == ["u", "w"]
            skew = fed.sql(f"SKEW OF MODEL m FROM ({QUERY.format('LEFT')})").df()
            assert not skew.psi.to_numpy(np.float64)[~skew.psi.isna()].any()
            assert (skew.missing == skew.trained_missing).all()


@pytest.mark.parametrize(
    ("items", "query", "made"),
    [
        ("auto", QUERY.format(""), False),  # no LEFT JOIN
        ("auto(x), auto(u)", QUERY.format("LEFT"), False),  # one column of the table
        ("auto(v), auto(u) AS uu", QUERY.format("LEFT"), True),
        (
            "auto",
            "SELECT b.u, coalesce(b.v, 0) AS v, a.y FROM p.a a LEFT JOIN q.b b USING (k)",
            False,
        ),
        (
            "auto",
            "SELECT b.u, b.v, b.w, a.y FROM p.a a LEFT JOIN q.b b USING (k) WHERE b.u > -9",
            False,
        ),
        (
            "auto",
            "SELECT b.u, b.v + 1 AS v, b.w, a.y FROM p.a a LEFT JOIN "
            "(SELECT k, u, v, w FROM q.b) b USING (k)",
            True,
        ),
    ],
)
def test_it_is_made_of_columns_that_are_null_without_a_partner(
    items: str, query: str, made: bool
) -> None:
    one, two = tables()
    with in_memory() as first, in_memory() as second:
        put(first, "a", one)
        put(second, "b", two)
        with federation({"p": [first], "q": [second]}) as fed:
            fed.sql(TRAIN.format(items, query))
            assert ("b (partner)" in fed.model("m").features) == made
            fed.sql(f"EVALUATE MODEL m FROM ({query})")


def test_what_leaves_is_what_explain_says() -> None:
    one, two = tables()
    with in_memory() as first, in_memory() as second, in_memory() as third:
        put(first, "a", one)
        for place, con in enumerate((second, third)):
            put(con, "b", two.take(np.arange(place, PARTNERS, 2)))
        parties = {"p": [first], "q": [second, third]}
        with tapped(parties) as (fed, tap):
            statement = TRAIN.format("auto(pairs => 3)", QUERY.format("LEFT"))
            plan = fed.explain(statement)
            with tap.taken() as recorded:
                fed.sql(statement)
            assert_disclosed(plan, recorded, parties, epochs=len(fed.model("m").history))


@pytest.mark.parametrize(("engine", "empty"), [("arrays", 3), ("sql", 3), ("arrays", 30)])
def test_few_rows_without_any_value_are_as_the_others_under_a_policy(
    engine: str, empty: int
) -> None:
    """A policy's min_cell would refuse a category of three of its rows, which no statement asks
    for."""
    rng = np.random.default_rng(4)
    keys, place = rng.integers(0, 500, 1500), np.arange(400)
    u = np.where(place < 50 + empty, np.nan, rng.normal(size=400))
    v = np.where((place >= 50) & (place < 110), np.nan, rng.normal(size=400))
    one = pa.table({"k": keys, "x": rng.normal(size=1500), "y": rng.normal(size=1500)})
    columns = [pa.array(column, from_pandas=True) for column in (u, v)]
    with in_memory() as first, in_memory() as second:
        put(first, "a", one)
        put(second, "b", pa.table([pa.array(place), *columns], names=["k", "u", "v"]))
        with sqlfl.owner(second) as owner:
            owner.sql("CREATE TRAINING POLICY p WITH (min_rows = 50, min_cell = 20)")
            owner.sql("GRANT TRAIN (u, v), PREDICT, JOIN (k) ON b TO 'acme' UNDER p")
        with sqlfl.connect(analyst="acme", progress=False) as fed:
            fed.attach("p", first)
            fed.attach("q", second)
            query = "SELECT a.x, b.u, b.v, a.y FROM p.a a LEFT JOIN q.b b USING (k)"
            fed.sql(
                "TRAIN MODEL m USING linear_regression TARGET y TRANSFORM (auto) "
                f"WITH (engine = '{engine}') FROM ({query})"
            )
            fed.sql(f"EVALUATE MODEL m FROM ({query})")
            holder = fed._parties.servers[Client("q", 0)]
            encoding = holder.block(fed.model("m").run, 1).encoding
    counts = dict(zip(encoding.vocabularies[-1], encoding.counts[-1], strict=True))
    gone = keys >= 400 if empty < 20 else (keys >= 400) | ((keys >= 50) & (keys < 50 + empty))
    assert counts["vnone"] == np.count_nonzero(gone)
