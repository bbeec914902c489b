"""TRANSFORM (auto(pairs => k)) of a table whose rows are at several databases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.base.errors import InternalError
from sqlfl.contract.schema import Client, FeatureSpecification
from sqlfl.messages import Cells, PairCells, SendCells, SetCells, SetPairCells
from sqlfl.messages.wire import decode
from sqlfl.methods.lbfgs.client import CLIENT
from sqlfl.methods.lbfgs.configuration import LbfgsConfiguration
from sqlfl.party import crossing
from sqlfl.party.crossing import SharedPairFinder
from sqlfl.party.shrinkage import Shrinkage
from sqlfl.transport.base import Transport
from sqlfl.transport.recording import RecordingTransport
from sqlfl.udfs.encoding.curves import CellLimits
from sqlfl.udfs.encoding.fitting import Values
from tests.federation.test_shared_curves import parties
from tests.federations import federation
from tests.methods.harness import DenseEngine
from tests.test_border import assert_disclosed, tapped

QUERY = "SELECT a.x, a.z, a.c, a.flag, b.w, a.y FROM one.a a JOIN two.b b USING (k)"
TRAIN = "TRAIN OR REPLACE MODEL m USING {} TARGET {} TRANSFORM (auto(pairs => 3)) {} FROM ({})"
ROWS = 1200


def tables(seed: int = 3) -> tuple[pa.Table, pa.Table]:
    """Features of few values, so that points are the values; x and z act together."""
    rng = np.random.default_rng(seed)
    keys = np.arange(ROWS) % 300
    x, z = rng.integers(0, 9, ROWS).astype(float), rng.integers(0, 6, ROWS).astype(float)
    z = np.where(rng.random(ROWS) < 0.1, np.nan, z)
    flag = rng.random(ROWS) < 0.4
    both = np.where((x > 3) == (np.nan_to_num(z) > 2), 1.0, -1.0) + np.where(flag, x > 5, x < 2)
    w = rng.integers(0, 5, 300).astype(float)
    y = both + 0.3 * w[keys] + rng.normal(size=ROWS)
    one = pa.table({
        "id": np.arange(ROWS), "k": keys, "x": x, "z": pa.array(z, from_pandas=True),
        "c": [f"c{i}" for i in rng.integers(0, 6, ROWS)], "flag": flag, "y": y,
        "late": y > 0, "class": np.array(["p", "q", "r"])[np.digitize(y, [-0.5, 1.0])],
    })  # fmt: skip
    return one, pa.table({"k": np.arange(300), "w": w})


def pairs_of(fed: sqlfl.Federation, model: str = "m") -> list[str]:
    holder = fed._parties.servers[Client("one", 0)]
    encoding = holder.block(fed.model(model).run, 0).encoding
    return [feature.name for feature in encoding.features[len(encoding.named) :]]


def trained(
    ways: tuple[int, int], kind: str, query: str, one: pa.Table, two: pa.Table
) -> tuple[list[str], np.ndarray, pd.DataFrame, float]:
    """Pairs in order, predictions by id, curves, and the loss."""
    with parties(one, two, ways) as given, federation(given) as fed:
        fed.sql(TRAIN.format(kind, "y", "", query))
        rows = fed.sql(f"PREDICT MODEL m ID (a.id) FROM ({query})").df().sort_values("id")
        curves = fed.sql("CURVES OF MODEL m").df()
        metrics = fed.model("m").metrics
        return pairs_of(fed), rows.iloc[:, -1].to_numpy(float), curves, metrics["loss"]


WITHOUT_TEXTS = "SELECT a.x, a.z, a.flag, b.w, a.{} AS y FROM one.a a JOIN two.b b USING (k)"


def test_parts_choose_the_pairs_that_the_whole_chooses() -> None:
    """The strengths differ by what a table of three databases does not tell: which cells of its
    pairs occur together."""
    one, two = tables()
    query = WITHOUT_TEXTS.format("y")
    names, scores, curves, loss = trained((1, 1), "linear_regression", query, one, two)
    assert names[0] == "x × z"
    parts, others, told, lost = trained((3, 2), "linear_regression", query, one, two)
    assert parts == names
    assert lost == pytest.approx(loss, rel=1e-3)
    np.testing.assert_allclose(others, scores, atol=0.1)
    cells = [
        table[table.feature.str.contains(" × ")].sort_values(["feature", "value"])
        for table in (curves, told)
    ]
    assert cells[0].value.tolist() == cells[1].value.tolist()
    assert cells[0].rows.tolist() == cells[1].rows.tolist()


def test_what_leaves_is_what_explain_says() -> None:
    one, two = tables()
    with parties(one, two, (2, 1)) as given, tapped(given) as (fed, tap):
        statement = TRAIN.format("softmax_regression", "y", "", WITHOUT_TEXTS.format("class"))
        plan = fed.explain(statement)
        with tap.taken() as recorded:
            fed.sql(statement)
        assert pairs_of(fed)[0] == "x × z"
        assert_disclosed(plan, recorded, given, epochs=len(fed.model("m").history), outputs=3)


def test_a_model_goes_on_and_is_exported(tmp_path: Path) -> None:
    """Of categories the databases know hashes alone: they are in no pair."""
    one, two = tables()
    with parties(one, two, (2, 1)) as given, federation(given) as fed:
        fed.sql(TRAIN.format("linear_regression", "y", "", QUERY))
        first = fed.model("m")
        names = pairs_of(fed)
        assert names
        assert not any(name.startswith("c ") or name.endswith(" c") for name in names)
        assert "takes no categories of a into pairs" in " ".join(
            str(fed.sql("DESCRIBE MODEL m")).split()
        )
        again = TRAIN.format("linear_regression", "y", "WITH (warm_start = 'm')", QUERY)
        fed.sql(again.replace("MODEL m", "MODEL n"))
        assert pairs_of(fed, "n") == names
        assert fed.model("n").metrics["loss"] == pytest.approx(first.metrics["loss"], rel=1e-3)
        assert len(fed.model("n").history) <= len(first.history)
        wanted = fed.sql(f"PREDICT MODEL m ID (a.id) FROM ({QUERY})").df().sort_values("id")
        fed.sql(f"EXPORT MODEL m TO '{tmp_path / 'm'}' WITH (formats = ['sql'])")
    con = duckdb.connect()
    con.register("a", one)
    con.register("b", two)
    for path in sorted((tmp_path / "m").rglob("*.sql")):
        con.execute(path.read_text())
    scores = con.sql(
        f"SELECT m_a(a.x, a.z, a.c, a.flag) + m_b(b.w) + {float(first.intercept[0])!r} AS h "
        "FROM a JOIN b USING (k) ORDER BY id"
    ).fetchnumpy()["h"]
    np.testing.assert_allclose(scores, wanted.prediction.to_numpy(), atol=1e-5)


def test_owners_bound_the_cells_that_are_told() -> None:
    """Sums over a line of cells lack nothing, or as many rows as an owner lets out."""
    one, two = tables()
    query = WITHOUT_TEXTS.format("y")
    with parties(one, two, (2, 1)) as given:
        for con in given["one"]:
            with sqlfl.owner(con) as owner:
                owner.sql("CREATE TRAINING POLICY p WITH (min_rows = 50, min_cell = 9)")
                owner.sql("GRANT TRAIN (x, z, flag), JOIN (k), LABEL (y) ON a TO 'acme' UNDER p")
        recorders: list[RecordingTransport] = []

        def recording(inner: Transport) -> Transport:
            recorders.append(RecordingTransport(inner))
            return recorders[-1]

        with sqlfl.Federation(analyst="acme", progress=False, wrap=recording) as fed:
            fed.attach("one", given["one"])
            fed.attach("two", given["two"][0])
            fed.sql(TRAIN.format("linear_regression", "y", "", query))
            assert "x × z" in pairs_of(fed)
            curves = fed.sql("CURVES OF MODEL m").df()
        sent = [decode(item.data) for recorder in recorders for item in recorder.recorded]
        coarse = [m.counts.reshape(-1, 10, 10) for m in sent if isinstance(m, Cells)]
        fine = [own for m in sent if isinstance(m, PairCells) for own in m.counts]
        assert len(coarse) == 2
        z = one.column("z").to_numpy()
        for number, (with_x, _, with_flag) in enumerate(coarse):
            own_z = np.where(np.isnan(z), 0, z + 1)[np.arange(ROWS) % 2 == number]
            rows = np.bincount(own_z.astype(int), minlength=10)
            for table, axis in ((with_x, 0), (with_flag, 1)):
                assert table[table > 0].min() >= 9
                lack = rows - table.sum(axis=axis)
                assert ((lack == 0) | (lack >= 9)).all()
        assert all(own[own > 0].min() >= 9 for own in fine if own.any())
        cells = curves[(curves.table == "a") & curves.feature.str.contains(" × ")]
        assert cells.rows.min() >= 9
        with sqlfl.owner(given["one"][1]) as owner:
            owner.sql("CREATE OR REPLACE TRAINING POLICY p WITH (moments = 'never')")
        with sqlfl.connect(analyst="acme", progress=False) as fed:
            fed.attach("one", given["one"])
            fed.attach("two", given["two"][0])
            with pytest.raises(sqlfl.PolicyError, match="moments = 'never'"):
                fed.sql(TRAIN.format("linear_regression", "y", "", query))


def test_cells_are_told_once() -> None:
    """A coordinator that asks again, or for more pairs, or before there are residuals."""
    rng = np.random.default_rng(0)
    engine = DenseEngine(rng.normal(size=(300, 1)), np.ones(300), np.zeros(1), 0)
    own = LbfgsConfiguration(
        outputs=1, rows=300, total=300.0, clients=2, leader=True, l2=1e-4, curvature=1.0
    )
    shrunken = Shrinkage.first(np.array([0]), 300, 1e-4)
    plain = CLIENT.operator(engine, own, "r", 0, None, shrunken)
    with pytest.raises(InternalError, match="before there are residuals"):
        plain.handle(SendCells("r", 0))
    with pytest.raises(InternalError, match="no pairs of features are chosen over"):
        plain.handle(SetPairCells("r", 0, np.zeros((1, 1089))))


class Finder(SharedPairFinder):
    """Of two columns of numbers that act together, under an owner's limits."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.values = rng.integers(0, 6, size=(2, 300)).astype(float)
        features = [FeatureSpecification(name, "numeric", pairs=2) for name in "xz"]
        points = dict(enumerate([(np.arange(6.0), np.full(6, 50.0))] * 2))
        limits = CellLimits(least=8, most=64, columns=40)
        super().__init__(None, features, 2, limits, points)  # type: ignore[arg-type]

    def _columns(self, places: Sequence[int]) -> dict[int, Values]:
        return {n: self.values[n] for n in places}


def test_a_coordinator_that_lies_learns_of_no_more_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crossing, "counts_of", lambda snapshot: np.ones(300))
    finder = Finder()
    both = np.prod(np.where(finder.values > 2, 1.0, -1.0), axis=0)[:, None]
    sums, counts, most, room = finder.cells(both)
    assert (most, room) == (64, 40)
    assert counts[counts > 0].min() >= 8
    with pytest.raises(InternalError, match="told once"):
        finder.cells(both)
    told = SetCells("r", 0, sums, counts, most, room, 1 / 300, 1.0, 2)
    for lie in ({"most": 1024}, {"room": 1 << 31}):
        with pytest.raises(InternalError, match="more cells than the owner allows"):
            finder.choose(replace(told, **lie), 300, 300.0)
    fine, whole = finder.choose(told, 300, 300.0)
    assert not whole
    assert fine[fine > 0].min() >= 8
    with pytest.raises(InternalError, match="has told nothing"):
        finder.settle(fine + 8.0)
    found = finder.settle(fine)
    assert found is not None
    assert sum(found.sizes) == np.count_nonzero(fine) <= 40
