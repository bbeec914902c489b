"""Both engines do the same linear algebra, that of a dense matrix made here with numpy."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pytest
import torch

from sqlfl.base.errors import InternalError, ModelError
from sqlfl.contract.schema import SlotSpecification
from sqlfl.messages import SetEncoding
from sqlfl.models.neural import TowerNetwork
from sqlfl.models.towers import TowerShape
from sqlfl.party.first_layer import EngineLayer
from sqlfl.udfs.encoding import columns
from sqlfl.udfs.encoding.features import (
    CHUNK,
    Encoding,
    local_encoding,
    shared_encoding,
    statistics,
)
from sqlfl.udfs.numbering.keys import derive
from sqlfl.udfs.numbering.rows import Snapshot
from sqlfl.udfs.updates import predict, update
from sqlfl.udfs.updates.predict import ENGINES, ArraysEngine, make_engine, score
from sqlfl.udfs.updates.update import LinearEngine
from tests.depth import THOROUGH, combinations
from tests.open_databases import in_memory
from tests.udfs import snapshots
from tests.udfs.snapshots import specification, take

both_forms = pytest.mark.usefixtures("in_both_forms")
"""For a test that takes its own snapshots; those of `case` are of both forms too."""
Array = npt.NDArray[np.float64]

FEATURES = (
    ("whole", "numeric"),
    ("colour", "category"),
    ("real", "numeric"),
    ("flag", "boolean"),
    ("vector", "array", 3),
    ("size", "category"),
    ("money", "numeric"),
    ("huge", "numeric"),
    ("wide", "category"),
    ("constant", "numeric"),
    ("nothing", "numeric"),
    ("far", "numeric"),
)
WAVES = (
    "CREATE TABLE t AS SELECT range AS id, range % 3 AS c, "
    "[sin(range * i + i) FOR i IN range({width})]::DOUBLE[{width}] AS v FROM range({rows})"
)
CATEGORIES = ("colour", "size", "wide")


def make_table(con: duckdb.DuckDBPyConnection, rows: int, seed: int) -> list[dict[str, Any]]:
    """The table t with a column of every kind, and its rows as Python values by id."""
    rng = np.random.default_rng(seed)

    def maybe(value: Any, share: float = 0.2) -> Any:
        return None if rng.random() < share else value

    def real() -> float:
        return float("nan") if rng.random() < 0.1 else float(rng.normal())

    con.execute("CREATE TYPE size AS ENUM ('small', 'big', 'unused')")
    con.execute(
        "CREATE TABLE t (id INTEGER, whole INTEGER, colour VARCHAR, real DOUBLE, flag BOOLEAN, "
        "vector FLOAT[3], size size, money DECIMAL(9,2), huge HUGEINT, wide VARCHAR, "
        "constant DOUBLE, nothing REAL, far DOUBLE)"
    )
    table = []
    for number in range(rows):
        table.append({
            "id": number,
            "whole": maybe(int(rng.integers(-5, 50))),
            "colour": maybe(str(rng.choice(["red", "Red", "", "n", "nred", "ß", "it's \"x\""]))),
            "real": maybe(real()),
            "flag": maybe(bool(rng.random() < 0.3)),
            "vector": maybe([maybe(float(np.float32(real()))) for _ in range(3)]),
            "size": str(rng.choice(["small", "big"])),
            "money": Decimal(int(rng.integers(0, 10**6))) / 100,
            "huge": int(rng.integers(0, 2**40)) * 2**40,
            "wide": f"w{int(rng.integers(0, rows))}",
            "constant": 0.1,
            "nothing": None,
            "far": 1e6 + float(rng.normal()),
        })  # fmt: skip
    places = ", ".join([f"({', '.join('?' * 13)})"] * rows)
    con.execute(f"INSERT INTO t VALUES {places}", [x for row in table for x in row.values()])
    return table


def oracle(table: list[dict[str, Any]], counts: Array) -> tuple[Array, Array, list[list[str]]]:
    """The encoded matrix with plain one-hot columns, their centre, and the vocabularies.

    What occurs in rows of weight 0 only is not known.
    """
    total = counts.sum()
    values: list[Array] = []
    indicators: list[Array] = []
    for name, kind, *width in FEATURES:
        if kind == "category":
            continue
        raw = [row[name] for row in table]
        columns: list[list[Any]] = [raw]
        absent = np.array([v is None or v != v for v in raw])
        if kind == "array":
            absent = np.array([v is None for v in raw])
            columns = [[None if v is None else v[k] for v in raw] for k in range(width[0])]
        for column in columns:
            x = np.array([np.nan if v is None else float(v) for v in column])
            known = ~np.isnan(x) & (counts > 0)
            mean = np.average(x[known], weights=counts[known]) if known.any() else 0.0
            if known.any():
                mean += np.average(x[known] - mean, weights=counts[known])
            x = np.where(np.isnan(x), mean, x) - mean
            deviation = np.sqrt(np.sum(counts * x**2) / total)
            values.append(x / (deviation if deviation > 1e-12 * max(1, abs(mean)) else 1.0))
        if counts[absent].any():
            share = counts[absent].sum() / total
            spread = np.sqrt(share * (1 - share))
            indicators.append((absent - share) / (spread if spread > 1e-12 else 1.0))
    matrix, centre, vocabularies = (
        [*values, *indicators],
        [0.0] * (len(values) + len(indicators)),
        [],
    )
    for name in CATEGORIES:
        texts = np.array(["n" if row[name] is None else "v" + row[name] for row in table])
        vocabulary = sorted(set(texts[counts > 0]), key=lambda text: text.encode())
        vocabularies.append(vocabulary)
        for entry in vocabulary:
            matrix.append((texts == entry).astype(float))
            centre.append(counts[texts == entry].sum() / total)
    return np.array(matrix).T, np.array(centre), vocabularies


@dataclass
class Case:
    """An active snapshot and what it should give; `matrix` is not centred."""

    con: duckdb.DuckDBPyConnection
    snapshot: Snapshot
    encoding: Encoding
    matrix: Array
    centre: Array
    counts: Array
    vocabularies: list[list[str]]

    @property
    def centred(self) -> Array:
        return self.matrix - self.centre


WANTED: SlotSpecification = specification(*FEATURES, identifiers=(0,), join=(("INTEGER",),))
FRAGMENT = (
    f"SELECT {', '.join(feature[0] for feature in FEATURES)}, "
    "id AS sqlfl_id_0, id % 7 AS sqlfl_key_0_0 FROM t"
)


CASES = combinations(
    ("one client", "shared"), ("counts", "weights", "tiny weights"), (3, 7), list(snapshots.FORMS)
)


@pytest.fixture(scope="module", params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    form, counted, seed, held = request.param
    with in_memory() as con, pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshots, "form", held)
        table = make_table(con, 120, seed)
        snapshot = take(con, WANTED, FRAGMENT)
        rng = np.random.default_rng(seed + 1)
        rows = np.sort(rng.choice(120, 90, replace=False))
        counts = rng.integers(1, 51, 90)
        snapshot.activate(rows.astype(np.uint32), counts.astype(np.uint32))
        ids = snapshot.identifiers()[0].to_numpy()
        weights = counts.astype(float)
        if counted != "counts":
            weights = rng.choice([0.0, 0.1, 0.3, 1.7, 2.0], 90)
            # together less than 1
            weights *= 1e-3 if counted == "tiny weights" else 1.0
            snapshot.weigh(weights)
            assert snapshot.weight == pytest.approx(weights.sum())
        matrix, centre, vocabularies = oracle([table[i] for i in ids], weights)
        encoding = local_encoding(snapshot)
        if form == "shared":
            encoding, order = share(snapshot, encoding, vocabularies)
            matrix, centre = matrix[:, order], centre[order]
        yield Case(con, snapshot, encoding, matrix, centre, weights, vocabularies)


def share(
    snapshot: Snapshot, alone: Encoding, vocabularies: list[list[str]]
) -> tuple[Encoding, list[int]]:
    """The encoding as a shared slot's one client gets it, and the order of its columns."""
    found = statistics(snapshot, b"organisation")
    np.testing.assert_allclose(found.mean, alone.mean, rtol=1e-14)
    np.testing.assert_array_equal(found.missing, alone.missing)
    np.testing.assert_allclose(
        np.sqrt(found.m2 / snapshot.weight)[alone.scale != 1], alone.scale[alone.scale != 1]
    )
    message = SetEncoding(
        run="r1",
        slot=0,
        mean=found.mean,
        scale=alone.scale,
        missing=found.missing,
        tags=found.tags,
        counts=found.counts,
        total=snapshot.weight,
    )
    encoding = shared_encoding(WANTED.features, message, b"organisation")
    order = list(range(encoding.numeric))
    for number, tags in enumerate(found.tags):
        assert [t.tobytes() for t in tags] == sorted(t.tobytes() for t in tags)
        assert len(tags) == len(vocabularies[number])
        plain = sql_tags(snapshot, number, vocabularies[number])
        places = [plain.index(tag.tobytes()) for tag in tags]
        order += [alone.offsets[number] + place for place in places]
    return encoding, order


def sql_tags(snapshot: Snapshot, number: int, vocabulary: list[str]) -> list[bytes]:
    """The tag of every entry, by Python's own HMAC."""
    key = derive(b"organisation", "vocabulary", str(number))
    return [hmac.digest(key, entry.encode(), "sha256")[:16] for entry in vocabulary]


class EngineConformance:
    """What every engine must do; a subclass names its engine."""

    name: str

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, case: Case) -> Iterator[LinearEngine]:
        engine = make_engine(cls.name, case.con, case.snapshot, case.encoding)
        yield engine
        engine.close()

    def test_says_what_it_is(self, case: Case, engine: LinearEngine) -> None:
        assert engine.name == self.name
        assert engine.rows == 90
        assert engine.width == case.matrix.shape[1] == len(case.encoding.names)
        np.testing.assert_allclose(engine.centre, case.centre, rtol=1e-14)
        assert engine.numeric == case.encoding.numeric
        np.testing.assert_allclose(engine.counts, case.counts, rtol=1e-15)

    def test_columns(self, case: Case, engine: LinearEngine) -> None:
        """X, before its one-hot columns are centred."""
        numeric, onehot = engine.columns()
        assert numeric.shape == (90, engine.numeric)
        found = np.hstack([numeric, onehot.toarray()])
        np.testing.assert_allclose(found, case.matrix, rtol=1e-9, atol=1e-7)

    @pytest.mark.parametrize("batch", [None, np.array([80, 3, 4, 50], np.uint32)])
    def test_towers(self, case: Case, engine: LinearEngine, batch: Array | None) -> None:
        """Their gradient is that of torch on the dense rows."""
        network = TowerNetwork(TowerShape(engine.width, (4, 3), 2, "tanh"), EngineLayer(engine))
        rng = np.random.default_rng(0)
        flat = rng.normal(size=network.shape.size)
        values = torch.tensor(rng.normal(size=(90 if batch is None else len(batch), 2)))
        theirs = [torch.tensor(p, requires_grad=True) for p in network.shape.unpack(flat)]
        first, bias, second, bias2, last = theirs
        x = torch.tensor(case.centred if batch is None else case.centred[batch])
        expected = torch.tanh(torch.tanh(x @ first + bias) @ second + bias2) @ last
        (expected * values).sum().backward()
        found = network.forward(network.tensor(flat), batch)
        np.testing.assert_allclose(found.outputs(), expected.detach(), atol=1e-7)
        gradient = found.backward(values)
        for mine, theirs_ in zip(network.unpack(gradient), theirs, strict=True):
            np.testing.assert_allclose(mine, theirs_.grad, rtol=1e-7, atol=1e-6)

    def test_norms(self, case: Case, engine: LinearEngine) -> None:
        expected = np.linalg.norm(case.centred, axis=1)
        np.testing.assert_allclose(engine.norms(), expected, rtol=1e-9)
        assert engine.offsets == case.encoding.offsets

    @pytest.mark.parametrize("outputs", [1, 3])
    def test_predictions(self, case: Case, engine: LinearEngine, outputs: int) -> None:
        theta = np.random.default_rng(0).normal(size=(engine.width, outputs))
        h = engine.predict(theta)
        assert h.dtype == np.float64
        np.testing.assert_allclose(h, case.centred @ theta, rtol=1e-9, atol=1e-7)

    @pytest.mark.parametrize("outputs", [1, 3])
    @pytest.mark.parametrize("kind", [np.float32, np.float64])
    def test_gradients(self, case: Case, engine: LinearEngine, outputs: int, kind: type) -> None:
        values = np.random.default_rng(1).normal(size=(90, outputs)).astype(kind)
        gradient = engine.gradient(values)
        assert gradient.dtype == np.float64
        np.testing.assert_allclose(gradient, case.centred.T @ values, rtol=1e-9, atol=1e-6)

    @pytest.mark.parametrize("size", [0, 1, 40, 90])
    def test_batches_keep_their_order(self, case: Case, engine: LinearEngine, size: int) -> None:
        rng = np.random.default_rng(size)
        batch = rng.permutation(90)[:size].astype(np.uint32)
        theta = rng.normal(size=(engine.width, 2))
        values = rng.normal(size=(size, 2))
        part = case.centred[batch]
        np.testing.assert_allclose(engine.predict(theta, batch), part @ theta, atol=1e-7)
        np.testing.assert_allclose(engine.gradient(values, batch), part.T @ values, atol=1e-6)

    def test_the_gram_matrix(self, case: Case, engine: LinearEngine) -> None:
        gram = engine.gram()
        p = len(gram.numeric)
        expected = case.matrix.T @ (case.counts[:, None] * case.matrix)
        tolerance = {"rtol": 1e-9, "atol": 1e-5}
        np.testing.assert_allclose(gram.numeric, expected[:p, :p], **tolerance)
        np.testing.assert_array_equal(gram.numeric, gram.numeric.T)
        np.testing.assert_allclose(gram.cross, expected[p:, :p], **tolerance)
        np.testing.assert_allclose(gram.onehot.toarray(), expected[p:, p:], rtol=1e-12)
        assert gram.onehot.nnz == np.count_nonzero(expected[p:, p:])
        np.testing.assert_allclose(gram.moments, case.counts @ case.matrix, **tolerance)
        assert gram.weight == pytest.approx(case.counts.sum(), rel=1e-12)

    def test_the_encoding_survives_bytes(self, case: Case) -> None:
        theta = np.random.default_rng(5).normal(size=(case.encoding.width, 2))
        again = Encoding.from_bytes(case.encoding.to_bytes())
        assert again.names == case.encoding.names
        h = score(case.con, case.snapshot, again, theta, self.name)
        np.testing.assert_allclose(h, case.centred @ theta, atol=1e-7)

    def test_wrong_shapes_are_refused(self, engine: LinearEngine) -> None:
        with pytest.raises(InternalError):
            engine.predict(np.zeros((engine.width + 1, 1)))
        with pytest.raises(InternalError):
            engine.gradient(np.zeros((89, 1)))
        with pytest.raises(InternalError):
            engine.gradient(np.zeros((90, 1)), np.arange(3))

    @both_forms
    def test_unseen_values_at_scoring(self) -> None:
        """Another category is all zeros before centring; a missing number counts as the mean."""
        with in_memory() as con:
            con.execute(
                "CREATE TABLE t AS SELECT range % 2 AS x, 'c' || (range % 3) AS c FROM range(6)"
            )
            con.execute(
                "CREATE TABLE new AS SELECT * FROM "
                "(VALUES (0, 1, 'c0'), (1, NULL, 'other'), (2, 3, NULL)) AS v(id, x, c)"
            )
            features = (("x", "numeric"), ("c", "category"))
            trained = take(con, specification(*features), "SELECT x, c FROM t", run="a")
            trained.activate(np.arange(6), np.ones(6))
            new = take(
                con,
                specification(*features, identifiers=(0,)),
                "SELECT x, c, id AS sqlfl_id_0 FROM new",
                run="b",
            )
            new.activate(np.arange(3), np.ones(3))
            ids = new.identifiers()[0].to_numpy()
            theta = np.array([[2.0], [1.0], [10.0], [100.0]])
            h = score(con, new, local_encoding(trained), theta, self.name)
            engine = make_engine(self.name, con, new, local_encoding(trained))
            x = np.array([[1.0, 2 / 3, -1 / 3, -1 / 3], [0.0, *[-1 / 3] * 3], [5.0, *[-1 / 3] * 3]])
            np.testing.assert_allclose(engine.norms(), np.linalg.norm(x, axis=1)[ids])
            mean = 111 / 3
            expected = np.array([2.0 + 1.0 - mean, -mean, 2.0 * 5.0 - mean])
            np.testing.assert_allclose(h[:, 0], expected[ids])

    @both_forms
    def test_scoring_refuses_other_features_and_infinity(self) -> None:
        with in_memory() as con:
            con.execute("CREATE TABLE t AS SELECT 1.0 AS x, 'a' AS c, 'inf'::DOUBLE AS bad")
            one = take(con, specification(("x", "numeric")), "SELECT x FROM t", run="a")
            other = take(con, specification(("c", "category")), "SELECT c FROM t", run="b")
            bad = take(con, specification(("bad", "numeric")), "SELECT bad FROM t", run="c")
            for snapshot in (one, other, bad):
                snapshot.activate(np.arange(1), np.ones(1))
            encoding = local_encoding(one)
            with pytest.raises(ModelError, match="do not fit the model"):
                score(con, other, encoding, np.zeros((1, 1)), self.name)
            with pytest.raises(ModelError, match="column bad has infinite values"):
                score(con, bad, encoding, np.zeros((1, 1)), self.name)

    @both_forms
    def test_no_rows_and_no_numbers(self) -> None:
        with in_memory() as con:
            con.execute("CREATE TABLE t AS SELECT 1.0 AS x, 'a' AS c")
            empty = take(con, specification(("x", "numeric"), ("c", "category")),
                         "SELECT x, c FROM t", run="a")  # fmt: skip
            empty.activate(np.zeros(0, int), np.zeros(0))
            engine = make_engine(self.name, con, empty, local_encoding(empty))
            assert engine.predict(np.zeros((1, 2))).shape == (0, 2)
            np.testing.assert_array_equal(engine.gradient(np.zeros((0, 2))), np.zeros((1, 2)))
            assert engine.gram().weight == 0
            assert engine.counts.shape == engine.norms().shape == (0,)
            numeric, onehot = engine.columns()
            assert (numeric.shape, onehot.shape) == ((0, 1), (0, 0))
            only = take(con, specification(("c", "category")), "SELECT c FROM t", run="b")
            only.activate(np.arange(1), np.array([4]))
            engine = make_engine(self.name, con, only, local_encoding(only))
            assert engine.gram().onehot.toarray().tolist() == [[4.0]]
            assert engine.gram().cross.shape == (1, 0)
            np.testing.assert_array_equal(engine.norms(), [0.0])  # of one category, centred


# the tables' width, and how deep DuckDB lets an expression nest: 1000 if it is not told otherwise
MANY, DEEP = (1050, 1000) if THOROUGH else (200, 150)


@both_forms
def test_many_columns() -> None:
    """More columns than a statement aggregates, and than DuckDB lets an expression nest."""
    assert max(DEEP, CHUNK) < MANY
    with duckdb.connect() as con:
        con.execute(f"SET max_expression_depth = {DEEP}")
        con.execute(WAVES.format(width=MANY, rows=12))
        wanted = specification(("v", "array", MANY), identifiers=(0,))
        snapshot = take(con, wanted, "SELECT v, id AS sqlfl_id_0 FROM t")
        snapshot.activate(np.arange(12), np.arange(1, 13))
        ids = snapshot.identifiers()[0].to_numpy()
        grid = np.arange(MANY)
        x = np.sin(ids[:, None] * grid + grid)
        counts = np.arange(1.0, 13.0)
        x -= counts @ x / counts.sum()
        deviation = np.sqrt(counts @ x**2 / counts.sum())
        x /= np.where(deviation > 1e-12, deviation, 1)
        encoding = local_encoding(snapshot)
        theta = np.random.default_rng(0).normal(size=(MANY, 1))
        for name in ENGINES:
            engine = make_engine(name, con, snapshot, encoding)
            np.testing.assert_allclose(engine.predict(theta), x @ theta, atol=1e-9)
            np.testing.assert_allclose(engine.gradient(x[:, :2]), x.T @ x[:, :2], atol=1e-9)
            engine.close()


@both_forms
def test_a_weight_of_two_is_the_row_twice() -> None:
    """Whatever the row counted before it was weighed."""
    with in_memory() as con:
        make_table(con, 40, 11)
        con.execute("CREATE TABLE u AS SELECT * FROM t UNION ALL SELECT * FROM t WHERE id % 3 = 0")
        wanted = specification(*FEATURES, identifiers=(0,))
        names = ", ".join(feature[0] for feature in FEATURES)
        found = []
        for source, counts in (("u", 1), ("t", 1), ("t", 5)):
            text = f"SELECT {names}, id AS sqlfl_id_0 FROM {source}"
            snapshot = take(con, wanted, text, run=f"{source}{counts}")
            rows = sum(snapshot.rows)
            snapshot.activate(np.arange(rows), np.full(rows, counts))
            if source == "t":
                ids = snapshot.identifiers()[0].to_numpy()
                snapshot.weigh(np.where(ids % 3 == 0, 2.0, 1.0))
            encoding = local_encoding(snapshot)
            found.append((encoding, make_engine("sql", con, snapshot, encoding).gram()))
        (twice, expected), *weighed = found
        for encoding, gram in weighed:
            assert encoding.vocabularies == twice.vocabularies
            assert encoding.total == twice.total
            np.testing.assert_allclose(encoding.scales, twice.scales, rtol=1e-12)
            np.testing.assert_allclose(gram.numeric, expected.numeric, rtol=1e-9, atol=1e-9)
            np.testing.assert_array_equal(gram.onehot.toarray(), expected.onehot.toarray())


class TestSqlEngine(EngineConformance):
    name = "sql"

    @both_forms
    def test_a_gram_matrix_of_several_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Blocks are smaller here than they are, so that a small matrix has several."""
        monkeypatch.setattr(update, "_BLOCK", 16)
        monkeypatch.setattr(update, "CHUNK", 24)
        width = 40
        with in_memory() as con:
            con.execute(WAVES.format(width=width, rows=30))
            wanted = specification(("v", "array", width), ("c", "category"))
            snapshot = take(con, wanted, "SELECT v, c FROM t")
            snapshot.activate(np.arange(30), np.arange(1, 31))
            encoding = local_encoding(snapshot)
            grams = [make_engine(n, con, snapshot, encoding).gram() for n in ("sql", "arrays")]
            np.testing.assert_allclose(grams[0].numeric, grams[1].numeric, atol=1e-9)
            np.testing.assert_allclose(grams[0].cross, grams[1].cross, atol=1e-9)
            np.testing.assert_allclose(grams[0].moments, grams[1].moments, atol=1e-9)


class TestArraysEngine(EngineConformance):
    name = "arrays"


class TestSparseArraysEngine(EngineConformance):
    """As of tables that are not small: categories stay codes."""

    name = "arrays"

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def no_table_is_small(cls) -> Iterator[None]:
        """And all steps take several pieces."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(predict, "_SMALL", 0)
            patch.setattr(columns, "_VALUES", 16)
            patch.setattr(columns, "_BLOCK", 16)
            yield

    def test_numbers_of_four_bytes_take_four(self, case: Case) -> None:
        engine = ArraysEngine(case.con, case.snapshot, case.encoding)
        held = engine._numeric
        # flag, the elements of vector, nothing
        assert held.at.tolist() == [2, 3, 4, 5, 9]
        assert (held.single.dtype, held.single.shape) == (np.float32, (90, 5))
        assert held.wide.shape == (90, engine.numeric - 5)
        np.testing.assert_array_equal(engine.columns(np.float32)[0], held.whole().astype("f4"))

    @pytest.mark.parametrize("null", [True, False])
    @pytest.mark.parametrize("kind", ["FLOAT", "BOOLEAN", "TINYINT", "USMALLINT"])
    @both_forms
    def test_numbers_of_four_bytes_are_not_rounded(self, kind: str, null: bool) -> None:
        """Nor far from 0, where a standardised one would not be exact in four bytes."""
        value = {"BOOLEAN": "range % 3 = 0", "TINYINT": "120 + range % 7"}.get(
            kind, "60000 + range % 13"
        )
        condition = "range % 5 > 0" if null else "true"
        with in_memory() as con:
            con.execute(
                f"CREATE TABLE t AS SELECT CASE WHEN {condition} THEN ({value})::{kind} END AS x, "
                "x::DOUBLE AS z, range AS id FROM range(200)"
            )
            wanted = specification(("x", "numeric"), ("z", "numeric"), identifiers=(0,))
            snapshot = take(con, wanted, "SELECT x, z, id AS sqlfl_id_0 FROM t")
            snapshot.activate(np.arange(200), np.arange(1, 201))
            engine = ArraysEngine(con, snapshot, local_encoding(snapshot))
            assert engine._numeric.at.tolist() == [0]
            unit = np.eye(engine.width)
            predicted = engine.predict(unit)
            np.testing.assert_allclose(predicted[:, 0], predicted[:, 1], rtol=1e-13, atol=1e-13)
            back = engine.gradient(predicted)
            np.testing.assert_allclose(back[0], back[1], rtol=1e-12, atol=1e-12)
            moments = engine.gram()
            np.testing.assert_allclose(moments.numeric[0], moments.numeric[1], rtol=1e-12)
