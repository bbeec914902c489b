"""TRANSFORM (auto) of a table whose rows are at several databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.base.errors import InternalError
from sqlfl.contract.schema import Client
from sqlfl.messages import Ranges, SetRanges
from sqlfl.messages.wire import decode
from sqlfl.transport.base import Transport
from sqlfl.transport.recording import RecordingTransport
from sqlfl.udfs.encoding.transforming import of_ranges
from tests.federation.test_curves_statements import QUERY, tables
from tests.federations import Parties, federation
from tests.open_databases import in_memory
from tests.test_border import assert_disclosed, tapped

TRAIN = "TRAIN OR REPLACE MODEL m USING {} TARGET y TRANSFORM (auto) {} FROM ({})"


@contextmanager
def parties(one: pa.Table, two: pa.Table, ways: tuple[int, int]) -> Iterator[Parties]:
    """The tables a and b, dealt out to so many databases of a party each."""
    with ExitStack() as stack:
        found: Parties = {}
        for party, name, table, count in zip(("one", "two"), "ab", (one, two), ways, strict=True):
            found[party] = []
            for number in range(count):
                con = stack.enter_context(in_memory())
                put(con, name, table.filter(np.arange(table.num_rows) % count == number))
                found[party].append(con)
        yield found


def put(con: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    con.register("given", table)
    con.execute(f"CREATE TABLE {name} AS FROM given")
    con.unregister("given")


def trained(
    one: pa.Table, two: pa.Table, ways: tuple[int, int], kind: str, query: str
) -> tuple[dict[str, float], np.ndarray, pa.Table]:
    """Metrics, predictions by id, and curves."""
    with parties(one, two, ways) as given, federation(given) as fed:
        fed.sql(TRAIN.format(kind, "", query))
        rows = fed.sql(f"PREDICT MODEL m ID (a.id) FROM ({query})").df().sort_values("id")
        curves = fed.sql("CURVES OF MODEL m").arrow()
        return dict(fed.model("m").metrics), rows.iloc[:, -1].to_numpy(float), curves


@pytest.mark.parametrize(
    ("kind", "target", "metric"),
    [
        ("linear_regression", "number", "r2"),
        ("logistic_regression", "late", "auc"),
        ("poisson_regression", "count", "dispersion"),
    ],
)
def test_parts_learn_nearly_what_the_whole_learns(kind: str, target: str, metric: str) -> None:
    """Knots are of groups of rows, so that curves differ a little."""
    one, two, _ = tables(1500, 4)
    query = QUERY.format(target)
    whole, scores, _ = trained(one, two, (1, 1), kind, query)
    parts, others, _ = trained(one, two, (2, 3), kind, query)
    assert parts[metric] == pytest.approx(whole[metric], abs=3e-3)
    assert parts["effective_parameters"] == pytest.approx(whole["effective_parameters"], abs=2.0)
    assert np.corrcoef(scores, others)[0, 1] > 0.999


def few_values(rows: int) -> tuple[pa.Table, pa.Table]:
    """Features of few values, each of which many rows of every database have."""
    rng = np.random.default_rng(8)
    keys = np.arange(rows) % 300
    x = rng.integers(0, 9, rows).astype(float)
    z = np.where(rng.random(rows) < 0.1, np.nan, rng.integers(0, 4, rows))
    w = rng.integers(0, 5, 300).astype(float)
    y = (x - 4) ** 2 / 8 + np.sin(w)[keys] + rng.normal(size=rows)
    one = pa.table({
        "id": np.arange(rows), "k": keys, "x": x, "z": pa.array(z, from_pandas=True),
        "c": [f"c{i}" for i in rng.integers(0, 6, rows)], "y": y,
    })  # fmt: skip
    return one, pa.table({"k": np.arange(300), "w": w})


FEW = "SELECT a.x, a.z, a.c, b.w, a.y FROM one.a a JOIN two.b b USING (k)"


def test_of_few_values_parts_learn_what_the_whole_learns() -> None:
    one, two = few_values(1200)
    _, scores, curves = trained(one, two, (1, 1), "linear_regression", FEW)
    for ways in ((2, 1), (3, 2)):
        _, others, told = trained(one, two, ways, "linear_regression", FEW)
        np.testing.assert_allclose(others, scores, atol=2e-5)
        assert told.num_rows == curves.num_rows
        names = ["feature", "value"]
        left, right = (t.to_pandas().fillna("").sort_values(names) for t in (curves, told))
        assert left.rows.tolist() == right.rows.tolist()
        assert left.value.tolist() == right.value.tolist()
        for column in ("effect", "lower", "upper"):
            np.testing.assert_allclose(left[column], right[column], atol=1e-4)


@pytest.mark.parametrize("rows", [1500, 150])
def test_what_leaves_is_what_explain_says(rows: int) -> None:
    one, two, _ = tables(rows, 5)
    with parties(one, two, (2, 2)) as given, tapped(given) as (fed, tap):
        statement = TRAIN.format("linear_regression", "", QUERY.format("number"))
        plan = fed.explain(statement)
        with tap.taken() as recorded:
            if rows < 200:
                with pytest.warns(sqlfl.Warning, match="150 joined rows to train on are fewer"):
                    fed.sql(statement)
            else:
                fed.sql(statement)
        assert_disclosed(plan, recorded, given, epochs=len(fed.model("m").history))


def test_no_point_is_of_few_rows() -> None:
    """Neither of a curve, nor one that has a weight of its own."""
    one, two, _ = tables(900, 6)
    odd = np.where(np.arange(900) % 300 == 1, 1e6, one.column("x").to_numpy())
    odd[:200] = 0.25
    one = one.set_column(one.column_names.index("x"), "x", pa.array(odd))
    with parties(one, two, (2, 1)) as given, tapped(given) as (fed, tap):
        with tap.taken() as recorded:
            fed.sql(TRAIN.format("linear_regression", "", QUERY.format("number")))
        sent = [decode(item.data) for item in recorded]
        told = [m for m in sent if isinstance(m, Ranges)]
        assert len(told) == 2
        for message in told:
            assert not message.ends.any()
            for points in message.points:
                assert not (np.abs(points) >= 1e6).any()
        merged = next(m for m in sent if isinstance(m, SetRanges))
        assert any(0.25 in points and len(points) < 5 for points in merged.points)


@pytest.mark.parametrize("weight", ["", "WEIGHT z"])
def test_an_owner_bounds_the_rows_of_a_point(weight: str) -> None:
    one, two, _ = tables(800, 7)
    query = "SELECT a.x, abs(a.z) + 1 AS z, b.w, a.number AS y FROM one.a JOIN two.b USING (k)"
    granted = "TRAIN (x), LABEL (number, z)" if weight else "TRAIN (x, z), LABEL (number)"
    with parties(one, two, (2, 1)) as given:
        for con in given["one"]:
            with sqlfl.owner(con) as owner:
                owner.sql("CREATE TRAINING POLICY p WITH (min_rows = 50, min_cell = 40)")
                owner.sql(f"GRANT {granted}, JOIN (k) ON a TO 'acme' UNDER p")
        recorders: list[RecordingTransport] = []

        def recording(inner: Transport) -> Transport:
            recorders.append(RecordingTransport(inner))
            return recorders[-1]

        with sqlfl.Federation(analyst="acme", progress=False, wrap=recording) as fed:
            fed.attach("one", given["one"])
            fed.attach("two", given["two"][0])
            text = TRAIN.format("linear_regression", "", query)
            fed.sql(text.replace("TARGET y", f"TARGET y {weight}"))
        sent = [decode(item.data) for recorder in recorders for item in recorder.recorded]
        told = [m for m in sent if isinstance(m, Ranges)]
        assert len(told) == 2
        curve = [message.points[0] for message in told]
        assert all(5 <= len(points) <= 400 // 40 for points in curve)


def test_owners_of_all_databases_are_heeded() -> None:
    one, two = few_values(800)
    with parties(one, two, (2, 1)) as given:
        for con in given["one"]:
            with sqlfl.owner(con) as owner:
                owner.sql("CREATE TRAINING POLICY p WITH (min_rows = 50, min_cell = 20)")
                owner.sql("GRANT TRAIN (x, z, c), JOIN (k), LABEL (y) ON a TO 'acme' UNDER p")
        with sqlfl.connect(analyst="acme", progress=False) as fed:
            fed.attach("one", given["one"])
            fed.attach("two", given["two"][0])
            fed.sql(TRAIN.format("linear_regression", "", FEW))
            told = fed.sql("CURVES OF MODEL m FEATURE x").df()
            assert told.rows.min() >= 20
        with sqlfl.owner(given["one"][1]) as owner:
            owner.sql("CREATE OR REPLACE TRAINING POLICY p WITH (moments = 'never')")
        with sqlfl.connect(analyst="acme", progress=False) as fed:
            fed.attach("one", given["one"])
            fed.attach("two", given["two"][0])
            with pytest.raises(sqlfl.PolicyError, match="moments = 'never'"):
                fed.sql(TRAIN.format("linear_regression", "", FEW))


def test_it_goes_on_is_tuned_and_is_explained() -> None:
    one, two = few_values(600)
    with parties(one, two, (2, 2)) as given, federation(given) as fed:
        fed.sql(TRAIN.format("linear_regression", "", FEW))
        first = fed.model("m")
        text = TRAIN.format("linear_regression", "WITH (warm_start = 'm')", FEW)
        fed.sql(text.replace("MODEL m", "MODEL n"))
        assert fed.model("n").metrics["loss"] == pytest.approx(first.metrics["loss"], rel=1e-3)
        assert len(fed.model("n").history) <= len(first.history)
        tuned = fed.sql(
            "TUNE MODEL t USING linear_regression TARGET y TRANSFORM (auto) "
            f"WITH (l2 = [1e-4, 1e-2], folds = 2) FROM ({FEW})"
        )
        assert len(tuned.df()) == 2
        slopes = fed.sql(f"INFERENCE OF MODEL m FROM ({FEW})").df().set_index("feature")
        assert 0.0 < slopes.loc["x"].standard_error < 0.1
        with pytest.raises(InternalError, match="points of a curve came in no order"):
            turned(fed)


def turned(fed: sqlfl.Federation) -> None:
    """Send a client points that descend."""
    holder = fed._parties.servers[Client("one", 0)]
    features = holder.block(fed.model("m").run, 0).encoding.features
    fitted = sum(feature.fitted for feature in features)
    points = (np.array([2.0, 1.0]),) * fitted
    of_ranges(features, SetRanges("r", 0, np.zeros((fitted, 2)), points, points))


def test_combined_databases_keep_lines() -> None:
    one, two = few_values(400)
    with parties(one, two, (2, 1)) as given, federation(given, combine=True) as fed:
        told = " ".join(str(fed.explain(TRAIN.format("linear_regression", "", FEW))).split())
        assert "made no curves of a, whose databases their party combines" in told
        assert "w (curve)" in told
        assert "x (curve)" not in told


def test_a_constant_beside_combined_databases_has_no_curve() -> None:
    one, two = few_values(400)
    query = FEW.replace("SELECT ", "SELECT 1 AS same, ", 1)
    with parties(one, two, (2, 1)) as given, federation(given, combine=True) as fed:
        fed.sql(TRAIN.format("linear_regression", "", FEW))
        text = TRAIN.format("linear_regression", "", query)
        fed.sql(text.replace("MODEL m", "MODEL n"))
        expected = fed.model("m").metrics["loss"]
        assert fed.model("n").metrics["loss"] == pytest.approx(expected, rel=1e-6)
