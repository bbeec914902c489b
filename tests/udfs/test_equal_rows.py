"""Equal rows at a client: which they are, and that training them once changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any
from unittest import mock

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from sqlfl.base.errors import InternalError
from sqlfl.udfs.encoding import columns
from sqlfl.udfs.encoding.columns import merge_equal_rows
from sqlfl.udfs.encoding.features import Encoding, local_encoding
from sqlfl.udfs.numbering.rows import Snapshot
from sqlfl.udfs.updates.predict import make_engine
from sqlfl.udfs.updates.update import LinearEngine
from tests.conftest import Open
from tests.udfs.snapshots import activate_all, specification, take, temporary_tables

pytestmark = pytest.mark.usefixtures("in_both_forms")

Array = np.ndarray

VALUES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "real": ("DOUBLE", (0.0, -0.0, float("nan"), None)),
    "flag": ("BOOLEAN", (True, None)),
    "vector": ("FLOAT[2]", ([1.0, None], [1.0, float("nan")], [None, None], None, [0.0, -0.0])),
    "colour": ("VARCHAR", ("red", "Red", "", "n", None)),
    "money": ("DECIMAL(9,2)", (Decimal("1.10"), Decimal("1.1"))),
}
FEATURES = (
    ("real", "numeric"),
    ("flag", "boolean"),
    ("vector", "array", 2),
    ("colour", "category"),
    ("money", "numeric"),
)
FRAGMENT = f"SELECT {', '.join(VALUES)}, y AS sqlfl_target, w AS sqlfl_weight FROM t"
ENGINES = ("sql", "arrays")


def comparable(value: Any) -> Any:
    """Equal for what encoding does not tell apart: NULL and NaN, 0 and -0."""
    if isinstance(value, list):
        return tuple(map(comparable, value))
    if isinstance(value, float):
        return None if value != value else value + 0.0
    return value


def filled(con: duckdb.DuckDBPyConnection, rows: int, seed: int) -> list[tuple[Any, ...]]:
    """The table t, and what its rows are compared by, by y."""
    rng = np.random.default_rng(seed)
    types = ", ".join(f"{name} {kind}" for name, (kind, _) in VALUES.items())
    con.execute(f"CREATE TABLE t ({types}, y DOUBLE, w DOUBLE)")
    known = {name: values for name, (_, values) in VALUES.items()}
    places = {name: rng.integers(len(values), size=rows) for name, values in known.items()}
    con.register("drawn", pa.table({**places, "y": np.arange(rows)}))
    columns = (f"CAST(${name} AS {kind}[])[1 + {name}]" for name, (kind, _) in VALUES.items())
    lists = {name: list(values) for name, values in known.items()}
    con.execute(f"INSERT INTO t SELECT {', '.join(columns)}, y, 0.1 * y FROM drawn", lists)
    con.unregister("drawn")
    made = zip(*([known[name][k] for k in found] for name, found in places.items()), strict=True)
    return [tuple(map(comparable, row)) for row in made]


def taken(con: duckdb.DuckDBPyConnection) -> Snapshot:
    return take(con, specification(*FEATURES, target=True, weight=True), FRAGMENT)


def engines(snapshot: Snapshot, encoding: Encoding) -> list[LinearEngine]:
    return [make_engine(name, snapshot.con, snapshot, encoding) for name in ENGINES]


@pytest.mark.parametrize("few", [0, columns.FEW])
@pytest.mark.parametrize("seed", range(3))
def test_classes_are_of_rows_that_are_equal_in_all_features(
    database: Open, seed: int, few: int
) -> None:
    con = database()
    made = filled(con, 600, seed)
    snapshot = activate_all(taken(con))
    rows = [made[int(y)] for y in snapshot.labels()[0]]
    numbers = {row: number for number, row in enumerate(dict.fromkeys(rows))}
    with mock.patch.object(columns, "FEW", few):
        classes = merge_equal_rows(snapshot)
    assert classes.dtype == np.uint32
    assert classes.tolist() == [numbers[row] for row in rows]
    assert snapshot.active == len(numbers)


@pytest.mark.parametrize("counted", ["counts", "weights"])
def test_engines_of_classes_do_what_those_of_rows_do(database: Open, counted: str) -> None:
    con = database()
    filled(con, 500, 4)
    snapshot = taken(con)
    rng = np.random.default_rng(1)
    rows, counts = np.sort(rng.choice(500, 400, replace=False)), rng.integers(1, 5, 400)
    snapshot.activate(rows, counts)
    if counted == "weights":
        counts = rng.choice([0.0, 0.1, 0.7, 2.0], 400)
        snapshot.weigh(counts)
    encoding = local_encoding(snapshot)
    before = engines(snapshot, encoding)
    weight = snapshot.weight
    classes = merge_equal_rows(snapshot)
    theta, values = rng.normal(size=(encoding.width, 2)), rng.normal(size=(400, 2))
    sums = np.array([np.bincount(classes, column) for column in values.T]).T
    assert snapshot.weight == pytest.approx(weight)
    for rows_of, found in zip(before, engines(snapshot, encoding), strict=True):
        np.testing.assert_allclose(found.predict(theta)[classes], rows_of.predict(theta), atol=1e-9)
        np.testing.assert_allclose(found.gradient(sums), rows_of.gradient(values), atol=1e-9)
        np.testing.assert_allclose(found.counts, np.bincount(classes, counts), atol=1e-9)
        np.testing.assert_allclose(found.gram().numeric, rows_of.gram().numeric, atol=1e-7)
        onehot = rows_of.gram().onehot.toarray()
        np.testing.assert_allclose(found.gram().onehot.toarray(), onehot, atol=1e-9)
        part = np.array([3, 0, 7])
        np.testing.assert_allclose(found.predict(theta, part), found.predict(theta)[part])
    again = local_encoding(snapshot)
    np.testing.assert_allclose(again.mean, encoding.mean, atol=1e-9)
    np.testing.assert_allclose(again.scale, encoding.scale, atol=1e-9)
    assert again.vocabularies == encoding.vocabularies


MADE: dict[str, tuple[str, int]] = {
    "all rows are equal": ("SELECT 2.5 AS x, 'a' AS c FROM range(40)", 1),
    "all rows are NULL": ("SELECT NULL::DOUBLE AS x, NULL::VARCHAR AS c FROM range(40)", 1),
    "one row in two": ("SELECT range // 2 AS x, 'a' AS c FROM range(40)", 20),
    "few rows are equal": ("SELECT greatest(range, 5) AS x, 'a' AS c FROM range(40)", 0),
    "no rows are equal": ("SELECT range AS x, 'a' AS c FROM range(40)", 0),
    "one row": ("SELECT 1 AS x, 'a' AS c", 0),
    "no row": ("SELECT 1 AS x, 'a' AS c FROM range(0)", 0),
}


@pytest.mark.parametrize("case", MADE)
def test_rows_are_merged_where_a_third_of_them_is_spared(database: Open, case: str) -> None:
    select, distinct = MADE[case]
    snapshot = activate_all(
        take(database(), specification(("x", "numeric"), ("c", "category")), select)
    )
    rows = snapshot.active
    classes = merge_equal_rows(snapshot)
    assert len(np.unique(classes)) == distinct
    assert classes.size == (rows if distinct else 0)
    assert snapshot.active == (distinct or rows)
    assert snapshot.weight == rows
    assert merge_equal_rows(snapshot).size == 0


def test_many_columns(database: Open) -> None:
    select = "SELECT [range % 3 + i FOR i IN range(400)]::DOUBLE[400] AS v FROM range(30)"
    snapshot = activate_all(take(database(), specification(("v", "array", 400)), select))
    assert len(np.unique(merge_equal_rows(snapshot))) == 3


def asked_labels(snapshot: Snapshot) -> None:
    snapshot.labels()


def asked_weights(snapshot: Snapshot) -> None:
    snapshot.weights()


@pytest.mark.parametrize("ask", [asked_labels, asked_weights])
def test_classes_are_no_rows_of_the_table(database: Open, ask: Callable[[Snapshot], None]) -> None:
    con = database()
    filled(con, 300, 2)
    snapshot = activate_all(taken(con))
    ask(snapshot)
    assert merge_equal_rows(snapshot).size == 300
    with pytest.raises(InternalError, match="does not hold"):
        ask(snapshot)
    snapshot.drop()
    assert temporary_tables(con) == []


def test_a_slot_without_features_has_no_classes(database: Open) -> None:
    snapshot = activate_all(
        take(database(), specification(target=True), "SELECT range AS sqlfl_target FROM range(3)")
    )
    with pytest.raises(InternalError, match="no features"):
        merge_equal_rows(snapshot)
