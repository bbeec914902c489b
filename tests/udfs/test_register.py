"""Trained blocks as functions of the party's own SQL."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given

import sqlfl
from sqlfl import udfs
from sqlfl.base.errors import Error, ModelError
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.models.towers import TowerShape
from sqlfl.planner.query.ucq import Slot
from sqlfl.udfs.blocks.blocks import SavedBlock
from sqlfl.udfs.blocks.register import BlockFunction
from sqlfl.udfs.encoding.features import Encoding
from tests.depth import examples
from tests.federations import assert_close, probabilities, trainable
from tests.strategies import Case, cases

A = """
CREATE TYPE colour AS ENUM ('red', 'green', 'blue');
CREATE TABLE t (id INTEGER, k INTEGER, x DOUBLE, "odd name" BOOLEAN, c VARCHAR, e colour,
  v FLOAT[3], h HUGEINT);
INSERT INTO t SELECT range, range % 25,
  CASE range % 11 WHEN 0 THEN NULL WHEN 1 THEN 'nan'::DOUBLE ELSE sin(range) END,
  CASE WHEN range % 7 > 0 THEN range % 3 = 0 END,
  CASE range % 5 WHEN 0 THEN NULL WHEN 1 THEN '' WHEN 2 THEN 'é"''n' ELSE 'v' || range % 4 END,
  (['red', 'green', 'blue', NULL])[range % 4 + 1]::colour,
  CASE WHEN range % 9 > 0
    THEN [range % 5, cos(range), CASE WHEN range % 4 > 0 THEN 1 + range END] END,
  range * 1000
FROM range(200);
"""
B = """
CREATE TABLE u (uid INTEGER, k INTEGER, z DOUBLE, y DOUBLE, c3 VARCHAR, late BOOLEAN);
INSERT INTO u SELECT range, range % 25, range % 13, sin(range) + range % 13,
  'class ' || range % 3, range % 3 = 0 FROM range(60);
"""
FEATURES = 't.x, t."odd name", t.c, t.e, t.v, t.h'
ARGUMENTS = ("x", "odd name", "c", "e", "v", "h")
CALL = 'x, "odd name", c, e, v, h'
TARGETS = {
    "linear_regression": "y",
    "poisson_regression": "late",
    "logistic_regression": "late",
    "softmax_regression": "c3",
    "mlp_regressor": "y",
    "mlp_classifier": "c3",
}


def query(target: str, where: str = "", features: str = FEATURES) -> str:
    return f"SELECT {features}, u.z, u.{target} FROM a.t JOIN b.u ON t.k = u.k {where}"


Connect = Callable[[str, str], duckdb.DuckDBPyConnection]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    """A function that opens a database file of the name, with the script run on it if it is new."""
    with contextlib.ExitStack() as stack:

        def opened(name: str, script: str = "") -> duckdb.DuckDBPyConnection:
            path = tmp_path / f"{name}.duckdb"
            new = not path.exists()
            con = stack.enter_context(contextlib.closing(duckdb.connect(path)))
            if new and script:
                con.execute(script)
            return con

        yield opened


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[sqlfl.Federation]:
    with sqlfl.connect(tmp_path / "coordinator.duckdb", progress=False) as fed:
        yield fed


def link(score: np.ndarray, kind: str) -> np.ndarray:
    """Numbers, or probabilities, of scores (n, d_c)."""
    if kind in ("linear_regression", "mlp_regressor"):
        return score
    if kind == "poisson_regression":
        return np.exp(score)
    if kind == "logistic_regression":
        positive = 1 / (1 + np.exp(-score))
        return np.hstack([1 - positive, positive])
    raised = np.exp(score - score.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def part(
    con: duckdb.DuckDBPyConnection, call: str, table: str, identifier: str
) -> dict[int, np.ndarray]:
    found = con.execute(f"SELECT {identifier}, {call} FROM {table}").fetchall()
    return {key: np.atleast_1d(np.array(value, float)) for key, value in found}


# -- equal to PREDICT -----------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "target"), TARGETS.items())
@pytest.mark.parametrize("trained_on", ["", "WHERE t.id < 90 AND t.id % 4 <> 2"])
def test_the_parts_and_the_intercept_are_the_prediction(
    kind: str, target: str, trained_on: str, connect: Connect, lasting: sqlfl.Federation
) -> None:
    """Also for rows that training did not see, with categories that it did not know."""
    a, b = connect("a", A), connect("b", B)
    lasting.attach("a", a)
    lasting.attach("b", b)
    lasting.sql(
        f"TRAIN MODEL m USING {kind} TARGET {target} WITH (epochs = 4, seed = 1) "
        f"FROM ({query(target, trained_on)})"
    )
    predict = f"PREDICT MODEL m ID (t.id, u.uid) FROM ({query(target)})"
    shown = lasting.sql(predict).arrow()
    assert udfs.register(a) == {"sqlfl_predict_m": ARGUMENTS}
    assert udfs.register(b) == {"sqlfl_predict_m": ("z",)}
    left = part(a, f"sqlfl_predict_m({CALL})", "t", "id")
    right = part(b, "sqlfl_predict_m(z)", "u", "uid")
    assert len(left) == 200
    ids, uids = shown.column("id").to_pylist(), shown.column("uid").to_pylist()
    score = lasting.model("m").intercept + np.array(
        [left[i] + right[j] for i, j in zip(ids, uids, strict=True)]
    )
    names = [n for n in shown.column_names if n.startswith("probability_")] or ["prediction"]
    expected = np.column_stack([shown.column(n).to_numpy() for n in names])
    np.testing.assert_allclose(link(score, kind), expected, atol=2e-6, rtol=2e-6)
    assert np.ptp(score) > 0.1


@examples(1)
@given(case=cases())
def test_on_any_query_the_parts_and_the_intercept_are_the_prediction(case: Case) -> None:
    assume(case.identifiers)
    with (
        case.open() as databases,
        tempfile.TemporaryDirectory() as folder,
        sqlfl.connect(Path(folder) / "coordinator.duckdb", progress=False) as fed,
    ):
        trainable(case, databases)
        for party, (con,) in databases.parties.items():
            fed.attach(party, con, store=Path(folder) / f"{party}.duckdb")
        fed.sql(case.train(epochs=3))
        predict = case.predict(wide=True)
        shown, plan = fed.sql(predict).arrow(), fed.explain(predict)
        model = fed.model("m")
        score = np.tile(model.intercept, (shown.num_rows, 1))
        for slot, block in plan.blocks.items():
            client = plan.ucq.slots[slot].clients[0]
            con = databases.parties[client.party][0]
            found = udfs.register(con, store=Path(folder) / f"{client.party}.duckdb")
            alias = next(b.name for b in model.blocks if b.slot == block)
            name = "sqlfl_predict_m" if len(found) == 1 else f"sqlfl_predict_m_{alias}"
            parts = _parts(con, plan.ucq.slots[slot], name, found[name])
            ids = shown.column(plan.ucq.slots[slot].identifiers[0]).to_pylist()
            score += np.array([parts[i] for i in ids]).reshape(score.shape)
        expected = probabilities(shown, case.kind)
        assert_close(link(score, case.kind), expected, 1e-5)


def _parts(
    con: duckdb.DuckDBPyConnection, slot: Slot, name: str, features: tuple[str, ...]
) -> dict[object, np.ndarray]:
    """Identifier -> what the function says of the row's features, as the fragments give them."""
    given = ", ".join(f'"{feature}"' for feature in features)
    found: dict[object, np.ndarray] = {}
    for fragment in slot.fragments:
        call = f'SELECT sqlfl_id_{slot.identifiers[0]}, "{name}"({given}) FROM ({fragment.sql})'
        rows = con.execute(call).fetchall()
        found |= {key: np.atleast_1d(np.array(value, float)) for key, value in rows}
    return found


def test_clients_of_one_slot_have_the_same_function(
    connect: Connect, lasting: sqlfl.Federation
) -> None:
    """Their categories are kept as keyed hashes."""
    first, second = connect("a1", A), connect("a2", A)
    first.execute("DELETE FROM t WHERE id % 2 = 0")
    second.execute("DELETE FROM t WHERE id % 2 = 1 OR id > 120")
    lasting.attach("a", [first, second])
    lasting.attach("b", connect("b", B))
    lasting.sql(
        f"TRAIN MODEL m USING linear_regression TARGET y WITH (epochs = 4) FROM ({query('y')})"
    )
    shown = lasting.sql(f"PREDICT MODEL m ID (t.id, u.uid) FROM ({query('y')})").arrow()
    for con in (first, second):
        assert udfs.register(con) == {"sqlfl_predict_m": ARGUMENTS}
    left = {
        k: v
        for con in (first, second)
        for k, v in part(con, f"sqlfl_predict_m({CALL})", "t", "id").items()
    }
    b = connect("b", "")
    udfs.register(b)
    right = part(b, "sqlfl_predict_m(z)", "u", "uid")
    for i, j, prediction in zip(
        *(shown.column(n).to_pylist() for n in shown.column_names), strict=True
    ):
        assert (left[i] + right[j] + lasting.model("m").intercept)[0] == pytest.approx(
            prediction, abs=2e-6, rel=2e-6
        )


def test_a_softmax_has_an_array_of_scores(connect: Connect, lasting: sqlfl.Federation) -> None:
    a = connect("a", A)
    lasting.attach("a", a)
    lasting.attach("b", connect("b", B))
    lasting.sql(f"TRAIN MODEL m USING softmax_regression TARGET c3 FROM ({query('c3')})")
    udfs.register(a)
    kinds = a.execute(f"SELECT DISTINCT typeof(sqlfl_predict_m({CALL})) FROM t").fetchall()
    assert kinds == [("DOUBLE[3]",)]


# -- names and arguments --------------------------------------------------------------------------


TRAIN = f"TRAIN MODEL m USING linear_regression TARGET y WITH (epochs = 2) FROM ({query('y')})"


@pytest.fixture
def training(connect: Connect, lasting: sqlfl.Federation) -> duckdb.DuckDBPyConnection:
    """The database of party a, of which `lasting` has trained a model."""
    a = connect("a", A)
    lasting.attach("a", a)
    lasting.attach("b", connect("b", B))
    lasting.sql(TRAIN)
    return a


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a database like that of `training`."""
    path = tmp_path_factory.mktemp("trained")
    with (
        duckdb.connect(path / "a.duckdb") as a,
        duckdb.connect() as b,
        sqlfl.connect(path / "coordinator.duckdb", progress=False) as fed,
    ):
        a.execute(A)
        b.execute(B)
        fed.attach("a", a)
        fed.attach("b", b, store=path / "b.duckdb")
        fed.sql(TRAIN)
    return path / "a.duckdb"


@pytest.fixture
def trained(file: Path, tmp_path: Path, connect: Connect) -> duckdb.DuckDBPyConnection:
    """A copy of it."""
    shutil.copy(file, tmp_path / "a.duckdb")
    return connect("a", "")


def test_arguments_by_name_and_of_other_types(trained: duckdb.DuckDBPyConnection) -> None:
    udfs.register(trained)
    positions = trained.execute(f"SELECT sqlfl_predict_m({CALL}) FROM t ORDER BY id").fetchall()
    names = (
        'h := h::VARCHAR, v := v::DOUBLE[], x := x::FLOAT::DOUBLE, "odd name" := "odd name"::INT, '
    )
    names += "c := c, e := e::VARCHAR"
    by_name = trained.execute(f"SELECT sqlfl_predict_m({names}) FROM t ORDER BY id").fetchall()
    np.testing.assert_allclose(by_name, positions, atol=1e-6)
    with pytest.raises(duckdb.Error):
        trained.execute("SELECT sqlfl_predict_m(1, 2)")


def test_infinite_values_are_refused_as_in_predict(trained: duckdb.DuckDBPyConnection) -> None:
    udfs.register(trained)
    with pytest.raises(duckdb.Error, match="column x has infinite values"):
        trained.execute(
            f"SELECT sqlfl_predict_m({CALL.replace('x,', 'x / 0 + 1e308 * 10,', 1)}) FROM t"
        ).fetchall()


def test_many_rows_at_once_and_none(trained: duckdb.DuckDBPyConnection) -> None:
    udfs.register(trained)
    found = trained.execute(
        f"SELECT count(*), count(DISTINCT f), sum(f IS NULL::INT) FROM "
        f"(SELECT sqlfl_predict_m({CALL}) AS f FROM t, range(500))"
    ).fetchall()
    assert found[0][0] == 100_000
    assert 1 < found[0][1] <= 200
    assert trained.execute(f"SELECT sqlfl_predict_m({CALL}) FROM t WHERE false").fetchall() == []


def test_two_blocks_of_a_model_are_named_by_their_tables(
    connect: Connect, lasting: sqlfl.Federation
) -> None:
    both = connect("a", A + B)
    lasting.attach("a", both)
    lasting.sql(
        "TRAIN MODEL m USING linear_regression TARGET y WITH (epochs = 2) FROM "
        "(SELECT left_one.x, right_one.z, right_one.y FROM a.t left_one "
        "JOIN a.u right_one ON left_one.k = right_one.k)"
    )
    assert udfs.register(both) == {
        "sqlfl_predict_m_left_one": ("x",),
        "sqlfl_predict_m_right_one": ("z",),
    }
    found = both.execute("SELECT sqlfl_predict_m_left_one(1), sqlfl_predict_m_right_one(1)")
    assert len(set(found.fetchall()[0])) == 2


def test_a_name_that_stands_for_two_models(connect: Connect, lasting: sqlfl.Federation) -> None:
    both = connect("a", A + B)
    lasting.attach("a", both)
    for name, columns in (("m", "t.x, u.z"), ("m_t", "t.x")):
        lasting.sql(
            f"TRAIN MODEL {name} USING linear_regression TARGET y WITH (epochs = 2) FROM "
            f"(SELECT {columns}, u.y FROM a.t JOIN a.u ON t.k = u.k)"
        )
    with pytest.raises(
        ModelError, match="sqlfl_predict_m_t would be a function of model m_t and of m"
    ):
        udfs.register(both)


def test_a_model_with_an_odd_name(connect: Connect, lasting: sqlfl.Federation) -> None:
    a = connect("a", A)
    lasting.attach("a", a)
    lasting.attach("b", connect("b", B))
    lasting.sql(
        f'TRAIN MODEL "no. 1 ""x""" USING linear_regression TARGET y WITH (epochs = 2) '
        f"FROM ({query('y', features='t.x')})"
    )
    (name,) = udfs.register(a)
    assert name == 'sqlfl_predict_no. 1 "x"'
    assert a.execute('SELECT "sqlfl_predict_no. 1 ""x"""(1) IS NULL').fetchall() == [(False,)]


def test_registering_again_follows_the_models(
    training: duckdb.DuckDBPyConnection, lasting: sqlfl.Federation
) -> None:
    call = f"SELECT sqlfl_predict_m({CALL}) FROM t WHERE id = 5"
    udfs.register(training)
    before = training.execute(call).fetchall()
    lasting.sql(
        "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y WITH (epochs = 2, l2 = 10.0) "
        f"FROM ({query('y')})"
    )
    assert training.execute(call).fetchall() == before  # until it is asked for
    udfs.register(training)
    assert training.execute(call).fetchall() != before
    lasting.sql("DROP MODEL m")
    assert udfs.register(training) == {}
    with pytest.raises(duckdb.CatalogException):
        training.execute(call)
    hidden = "SELECT count(*) FROM duckdb_functions() WHERE function_name LIKE 'sqlfl%'"
    assert training.execute(hidden).fetchall() == [(0,)]


def test_functions_are_the_connections_own(trained: duckdb.DuckDBPyConnection) -> None:
    cursor = trained.cursor()
    udfs.register(cursor)
    call = f"SELECT count(sqlfl_predict_m({CALL})) FROM t"
    assert cursor.execute(call).fetchall() == [(200,)]
    with pytest.raises(duckdb.CatalogException):
        trained.execute(call)
    cursor.close()
    udfs.register(trained)
    assert trained.execute(call).fetchall() == [(200,)]


def test_a_database_without_models(connect: Connect) -> None:
    assert udfs.register(connect("a", A)) == {}


# -- where blocks are kept ------------------------------------------------------------------------


def test_blocks_in_a_store(connect: Connect, lasting: sqlfl.Federation, tmp_path: Path) -> None:
    con = duckdb.connect()
    con.execute(A)
    store = tmp_path / "store.duckdb"
    lasting.attach("a", con, store=store)
    lasting.attach("b", connect("b", B))
    lasting.sql(
        f"TRAIN MODEL m USING linear_regression TARGET y WITH (epochs = 2) FROM ({query('y')})"
    )
    assert udfs.register(con) == {}
    assert udfs.register(con, store=store) == {"sqlfl_predict_m": ARGUMENTS}
    lasting.close()
    assert udfs.register(con, store=str(store)) == {"sqlfl_predict_m": ARGUMENTS}
    with contextlib.closing(duckdb.connect(store)) as opened:
        assert udfs.register(con, store=opened) == {"sqlfl_predict_m": ARGUMENTS}
    assert con.execute(f"SELECT count(sqlfl_predict_m({CALL})) FROM t").fetchall() == [(200,)]
    with pytest.raises(Error, match="there is no database file"):
        udfs.register(con, store=tmp_path / "gone.duckdb")
    with pytest.raises(Error, match="a connection or a path, got int"):
        udfs.register(con, store=5)  # type: ignore[arg-type]
    con.close()


def test_models_of_several_coordinators(
    training: duckdb.DuckDBPyConnection, connect: Connect, tmp_path: Path
) -> None:
    with sqlfl.connect(tmp_path / "second.duckdb", progress=False) as other:
        other.attach("a", training)
        other.attach("b", connect("b", ""))
        other.sql(
            "TRAIN MODEL m USING linear_regression TARGET y WITH (epochs = 2) "
            f"FROM ({query('y', features='t.x')})"
        )
        with pytest.raises(ModelError, match="2 coordinators have a model m here") as caught:
            udfs.register(training)
        owners = str(caught.value).split("here: ")[1].split("\n")[0].split(", ")
        found = [udfs.register(training, coordinator=owner) for owner in owners]
        assert sorted(f["sqlfl_predict_m"] for f in found) == [("x",), ARGUMENTS]
        with pytest.raises(ModelError, match="no blocks of a coordinator nobody"):
            udfs.register(training, coordinator="nobody")


def test_a_block_of_a_newer_format_is_refused(trained: duckdb.DuckDBPyConnection) -> None:
    trained.execute("UPDATE sqlfl.blocks SET format = 99").fetchall()
    with pytest.raises(ModelError, match="saved by a newer sqlfl, in format 99"):
        udfs.register(trained)


# -- the function itself --------------------------------------------------------------------------


def test_the_arithmetic_by_hand() -> None:
    features = (FeatureSpecification("x", "numeric"), FeatureSpecification("c", "category"))
    encoding = Encoding(
        features,
        mean=np.array([2.0]),
        scale=np.array([4.0]),
        missing=np.array([1.0]),
        vocabularies=(("n", "va", "vb"),),
        counts=(np.array([1.0, 2.0, 1.0]),),
        total=4.0,
        vocabulary_key=None,
    )
    theta = np.array([[8.0], [np.sqrt(3)], [1.0], [2.0], [3.0]])
    function = BlockFunction(SavedBlock(encoding, theta))
    columns = [
        pa.chunked_array([[6.0], [None, float("nan"), 2.0]], pa.float64()),
        pa.chunked_array([["a", "b", None, "other"]], pa.string()),
    ]
    base = np.array([8.0, 0.0, 0.0, 0.0])
    indicator = np.array([-1.0, 3.0, 3.0, -1.0])  # (0 or 1, minus 1/4) / sqrt(3/16), times sqrt(3)
    category = np.array([2.0, 3.0, 1.0, 0.0]) - (0.25 * 1 + 0.5 * 2 + 0.25 * 3)
    np.testing.assert_allclose(function(*columns).to_numpy(), base + indicator + category)


@pytest.mark.parametrize("bounded", [False, True])
def test_a_tower_by_hand(bounded: bool) -> None:
    """|x − 2| as relu(x − 2) + relu(2 − x); a missing x is the mean, 1."""
    encoding = Encoding(
        (FeatureSpecification("x", "numeric"),),
        mean=np.array([1.0]),
        scale=np.array([2.0]),
        missing=np.array([0.0]),
        vocabularies=(),
        counts=(),
        total=1.0,
        vocabulary_key=None,
    )
    tower = TowerShape(1, (2,), 2, "relu", bounded)
    upper = (np.array([-1.0, 1.0]), np.array([[1.0, 0.0], [1.0, 3.0]]))
    block = SavedBlock(encoding, np.array([[2.0, -2.0]]), "t", tower, upper)
    function = BlockFunction(block)
    assert function.type == "DOUBLE[2]"
    found = function(pa.array([5.0, 0.0, None], pa.float64()))
    expected = np.array([[3.0, 0.0], [2.0, 6.0], [1.0, 3.0]])
    assert found.to_pylist() == (np.tanh(expected) if bounded else expected).tolist()


def test_a_block_keeps_its_name() -> None:
    encoding = Encoding(
        (FeatureSpecification("x", "numeric"),),
        mean=np.array([0.0]),
        scale=np.array([1.0]),
        missing=np.array([0.0]),
        vocabularies=(),
        counts=(),
        total=1.0,
        vocabulary_key=None,
    )
    block = SavedBlock(encoding, np.ones((1, 1)), "flights é")
    assert SavedBlock.from_bytes(block.to_bytes()).name == "flights é"


def test_an_open_transaction_is_refused_and_left_as_it_was(
    trained: duckdb.DuckDBPyConnection,
) -> None:
    functions = udfs.register(trained)
    trained.begin()
    trained.execute("CREATE TABLE other AS SELECT 1 AS x")
    with pytest.raises(Error, match="open transaction") as caught:
        udfs.register(trained)
    assert "roll it back" in (caught.value.hint or "")
    assert trained.execute("FROM other").fetchall() == [(1,)]
    with pytest.raises(duckdb.CatalogException):
        trained.execute("FROM nowhere")
    with pytest.raises(Error, match="open transaction"):
        udfs.register(trained)
    trained.rollback()
    (name,) = functions
    assert trained.execute(f"SELECT count({name}({CALL})) FROM t").fetchall() == [(200,)]
    assert udfs.register(trained) == functions
