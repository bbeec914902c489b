"""Snapshots and their row ids."""

from __future__ import annotations

import hmac
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from sqlfl.base.errors import InternalError, ModelError
from sqlfl.contract.schema import (
    SlotSpecification,
    specifications_from_json,
    specifications_to_json,
)
from sqlfl.udfs.encoding.features import local_encoding, statistics
from sqlfl.udfs.numbering import numbering
from sqlfl.udfs.numbering.rows import Snapshot, folds_of, split_of
from sqlfl.udfs.updates.predict import make_engine, score
from tests.conftest import Open
from tests.udfs.snapshots import activate_all, specification, take, temporary_tables

pytestmark = pytest.mark.usefixtures("in_both_forms")

TABLE = (
    "CREATE TABLE t AS SELECT range AS id, range / 3.0 AS x, range % 4 AS k, "
    "CASE WHEN range % 5 = 0 THEN NULL ELSE range % 3 END AS y FROM range(100)"
)
FRAGMENT = "SELECT x, y AS sqlfl_target, id AS sqlfl_id_0, k AS sqlfl_key_0_0 FROM t"
WANTED = specification(
    ("x", "numeric"), target=True, classes=True, identifiers=(0,), join=(("BIGINT",),)
)


def test_rows_without_target_are_left_out_and_counted(database: Open) -> None:
    wanted = specification(
        ("x", "numeric"), target=True, identifiers=(0,), join=(("BIGINT",),), fragments=(1, 4)
    )
    con = database(TABLE)
    snapshot = take(con, wanted, FRAGMENT + " WHERE id < 20", FRAGMENT + " WHERE id >= 20")
    assert snapshot.rows == (16, 64)
    assert snapshot.null_targets == (4, 16)
    fragment, _, codes = snapshot.keys()
    assert fragment.dtype == np.uint16
    assert sorted(fragment.tolist()) == [1] * 16 + [4] * 64
    assert len(codes[0]) == 80


def test_nan_targets_count_as_null(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT unnest(['nan', '1.5', NULL])::FLOAT AS y")
    for classes in (False, True):
        wanted = specification(target=True, classes=classes)
        snapshot = take(con, wanted, "SELECT y AS sqlfl_target FROM t", run=str(classes))
        assert (snapshot.rows, snapshot.null_targets) == ((1,), (2,))


def test_a_column_may_be_written_in_another_case(database: Open) -> None:
    """DuckDB describes `K AS k` as "K"."""
    con = database("CREATE TABLE t AS SELECT range AS K FROM range(3)")
    assert take(con, specification(("k", "numeric")), "SELECT K AS k FROM t").rows == (3,)


def test_a_fragment_may_have_rows_and_no_columns(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT range AS k FROM range(3)")
    assert take(con, specification(), "SELECT 1 AS sqlfl_row FROM t WHERE k > 0").rows == (2,)


def test_every_column_is_in_the_order_of_the_row_ids(database: Open) -> None:
    con = database(TABLE)
    snapshot = take(con, WANTED, FRAGMENT)
    _, tags, codes = snapshot.keys()
    counts = np.arange(1, 41)
    rows = np.sort(np.random.default_rng(0).choice(80, 40, replace=False))
    snapshot.activate(rows, counts)
    assert snapshot.active == 40
    assert snapshot.weight == counts.sum()
    (ids,) = snapshot.identifiers()
    ids = ids.to_numpy()
    _, classes, labels = snapshot.labels()
    assert classes == ("0", "1", "2")
    np.testing.assert_array_equal(labels, ids % 3)
    values, _, _ = snapshot.labels(classes=False)
    np.testing.assert_array_equal(values, ids % 3)
    pairs = {(int(i % 4), int(code)) for i, code in zip(ids, codes[0][rows], strict=True)}
    assert len(pairs) == len(tags[0]) == 4


def test_row_ids_follow_the_tags_of_the_finest_key(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT range % 3 AS a, range % 50 AS b FROM range(500)")
    wanted = specification(join=(("BIGINT",), ("BIGINT",)))
    fragment = "SELECT a AS sqlfl_key_0_0, b AS sqlfl_key_1_0 FROM t"
    _, _, (coarse, fine) = take(con, wanted, fragment).keys()
    assert (np.diff(fine.astype(int)) >= 0).all()
    assert (np.diff(coarse.astype(int)) < 0).any()


def test_row_ids_do_not_show_the_storage_order(database: Open) -> None:
    """Sentinel: within a tag, storage order and row order are not correlated."""
    con = database("CREATE TABLE t AS SELECT range AS id, 1 AS k FROM range(4000)")
    wanted = specification(identifiers=(0,), join=(("INTEGER",),))
    fragment = "SELECT id AS sqlfl_id_0, k AS sqlfl_key_0_0 FROM t"
    orders = []
    for run in ("a", "b"):
        snapshot = activate_all(take(con, wanted, fragment, run=run))
        (ids,) = snapshot.identifiers()
        orders.append(ids.to_numpy())
    for order in orders:
        # ρ of a random order has deviation 1/√n
        assert abs(np.corrcoef(order, np.arange(4000))[0, 1]) < 6 / np.sqrt(4000)
    assert abs(np.corrcoef(*orders)[0, 1]) < 6 / np.sqrt(4000)


@pytest.mark.parametrize("leading", [None, 1, 3, 50])
@pytest.mark.parametrize("rows", [0, 1, 2, 63, 64, 65, 5000])
def test_every_row_has_one_number(rows: int, leading: int | None) -> None:
    own = None
    if leading is not None:
        own = np.random.default_rng(rows).integers(0, leading, rows).astype(np.uint32)
    orders = [numbering.shuffled(rows, own, leading or 1, salt) for salt in (b"a", b"a", b"b")]
    for order in orders:
        assert np.sort(order).tolist() == list(range(rows))
        if own is not None:
            assert (np.diff(own[order].astype(np.int64)) >= 0).all()
    np.testing.assert_array_equal(orders[0], orders[1])
    if rows >= 63:
        assert (orders[0] != orders[2]).any()


@pytest.mark.parametrize("bits", [0, 60])
def test_every_order_is_as_likely(bits: int) -> None:
    """Also where hardly any of the 64 bits are left for chance."""
    rows, size = 4, (1 << bits) + 1
    leading = np.full(rows, size - 1, np.uint64)
    counts = np.zeros((rows, rows))
    for number in range(4000):
        order = numbering.shuffled(rows, leading, size, number.to_bytes(4, "little"))
        counts[np.arange(rows), order] += 1
    # each is binomial, with deviation 27
    assert np.abs(counts - 1000).max() < 6 * 27.4


@pytest.mark.parametrize("seed", [None, 3])
def test_large_tables_keep_their_rows_in_any_order_of_storage(
    database: Open, seed: int | None, in_both_forms: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several row groups, written by several threads that need not keep the order."""
    monkeypatch.setattr(numbering, "_LARGE", 200_000)
    con = database(
        "SET threads = 4",
        "SET preserve_insertion_order = false",
        "CREATE TABLE t AS SELECT range AS id, range % 1000 AS k, range % 3 AS y "
        "FROM range(300000) ORDER BY hash(range)",
    )
    wanted = specification(
        target=True, classes=True, identifiers=(0,), join=(("BIGINT",),), seed=seed
    )
    fragment = (
        "SELECT CASE WHEN id % 5 > 0 THEN y END AS sqlfl_target, id AS sqlfl_id_0, "
        "k AS sqlfl_key_0_0 FROM t"
    )
    snapshot = take(con, wanted, fragment)
    if in_both_forms == "tables":
        raw = snapshot.table("raw").sql(dialect="duckdb")
        assert con.sql(f"FROM {raw}").columns == ["fragment", "y", "id0"]
    else:
        assert snapshot.held is not None
        assert list(snapshot.held.columns) == ["y", "id0"]
    _, tags, (codes,) = snapshot.keys()
    with pytest.raises(InternalError, match="once"):
        snapshot.keys()
    assert len(tags[0]) == 800
    rows = np.flatnonzero(np.random.default_rng(0).random(240_000) < 0.9)
    snapshot.activate(rows, np.ones(len(rows), int))
    for _ in range(2):
        (ids,) = snapshot.identifiers()
        ids = ids.to_numpy()
        np.testing.assert_array_equal(snapshot.labels()[2], ids % 3)
        code_of = np.full(1000, -1)
        code_of[ids % 1000] = codes[rows]
        np.testing.assert_array_equal(code_of[ids % 1000], codes[rows])
        snapshot.weigh(ids.astype(np.float64))
        counts, own = (
            con.execute(f"SELECT cnt, id0 FROM {snapshot.active_table.sql(dialect='duckdb')}")
            .fetchnumpy()
            .values()
        )
        np.testing.assert_array_equal(counts, own)


def test_without_keys_row_ids_follow_fragments_and_chance(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT range AS id FROM range(1000)")
    wanted = specification(identifiers=(0,), fragments=(0, 1))
    parts = [f"SELECT id AS sqlfl_id_0 FROM t WHERE id {test}" for test in (">= 300", "< 300")]
    snapshot = activate_all(take(con, wanted, *parts))
    (ids,) = snapshot.identifiers()
    ids = ids.to_numpy()
    assert snapshot.rows == (700, 300)
    assert (ids[:700] >= 300).all()
    assert (np.diff(ids[:700]) < 0).any()


def test_classes_are_in_the_order_of_their_type(database: Open) -> None:
    con = database(
        "CREATE TYPE size AS ENUM ('small', 'big', 'A')",
        "CREATE TABLE t AS SELECT unnest([10, 9, 100]) AS n, unnest(['b', 'B', 'a']) AS v, "
        "unnest([true, false, true]) AS b, unnest(['big', 'A', 'small'])::size AS e, "
        "unnest([0.0, '-0.0', -1]::DOUBLE[]) AS d",
    )
    expected = {
        "n": ("9", "10", "100"),
        "v": ("B", "a", "b"),
        "b": ("false", "true"),
        "e": ("small", "big", "A"),
        "d": ("-1.0", "0.0"),
    }
    for name, classes in expected.items():
        wanted = specification(target=True, classes=True)
        fragment = f"SELECT {name} AS sqlfl_target FROM t"
        snapshot = activate_all(take(con, wanted, fragment, run=name))
        values, found, codes = snapshot.labels()
        assert found == classes
        assert values.shape == (0,)
        assert len(codes) == 3


def test_identifiers_keep_their_types(database: Open) -> None:
    con = database(
        "CREATE TABLE t AS SELECT 'a'::ENUM('a', 'b') AS e, 1.50::DECIMAL(9,2) AS d, "
        "'2020-01-01 00:00+00'::TIMESTAMPTZ AS z, NULL::VARCHAR AS n"
    )
    fragment = "SELECT e AS sqlfl_id_0, d AS sqlfl_id_2, z AS sqlfl_id_3, n AS sqlfl_id_5 FROM t"
    snapshot = activate_all(take(con, specification(identifiers=(0, 2, 3, 5)), fragment))
    e, d, z, n = snapshot.identifiers()
    assert e.to_pylist() == ["a"]
    assert d.type == pa.decimal128(9, 2)
    assert pa.types.is_timestamp(z.type)
    assert n.to_pylist() == [None]


def test_columns_that_differ_in_case_stay_apart(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT range AS p, -range AS q FROM range(5)")
    wanted = specification(("a", "numeric"), ("A", "numeric"), identifiers=(0,))
    fragment = 'SELECT p AS "a", q AS "A", p AS sqlfl_id_0 FROM t'
    snapshot = activate_all(take(con, wanted, fragment))
    np.testing.assert_allclose(local_encoding(snapshot).mean, [2, -2])


def test_names_with_quotes_and_blanks(database: Open) -> None:
    con = database('CREATE TABLE "t;""x" AS SELECT range AS "a ""b" FROM range(5)')
    snapshot = take(
        con,
        specification(('a "b', "numeric"), slot=3),
        'SELECT "a ""b" FROM "t;""x"',
        run='r"; DROP TABLE t --',
    )
    assert activate_all(snapshot).active == 5
    snapshot.drop()
    assert temporary_tables(con) == []


@pytest.mark.parametrize(
    ("fragment", "text"),
    [
        ("SELECT x FROM t", "has columns x; expected"),
        ("SELECT y AS sqlfl_target, x FROM t", "has columns"),
        ("DROP TABLE t", "must be one SELECT"),
        ("SELECT x FROM t; DROP TABLE t", "must be one SELECT"),
        ("SELECT 1 AS x) AS f; DROP TABLE t --", "is not SQL"),
        ("SELECT FROM WHERE", "is not SQL"),
    ],
)
def test_wrong_fragments_are_refused(database: Open, fragment: str, text: str) -> None:
    con = database(TABLE)
    with pytest.raises(ModelError, match=text):
        take(con, specification(("x", "numeric"), target=True), fragment)
    con.rollback()
    assert con.execute("SELECT count(*) FROM t").fetchone() == (100,)
    assert temporary_tables(con) == []


def test_a_fragment_runs_as_it_came(database: Open) -> None:
    """With its comments and its own spelling."""
    con = database("CREATE TABLE t AS SELECT '12:00:00+01'::TIMETZ AS z")
    fragment = "SELECT CAST(z AS TIMETZ) AS sqlfl_key_0_0 FROM t /* ; */ -- )"
    assert take(con, specification(join=(("TIME WITH TIME ZONE",),)), fragment).rows == (1,)


def test_null_join_keys_are_refused(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT unnest([1, NULL]) AS k")
    with pytest.raises(ModelError, match="NULL join keys"):
        take(con, specification(join=(("INTEGER",),)), "SELECT k AS sqlfl_key_0_0 FROM t")


def test_rows_with_a_null_in_a_nullable_key_stay_without_a_tag(database: Open) -> None:
    con = database(
        "CREATE TABLE t AS SELECT range AS id, CASE WHEN range % 3 > 0 THEN range % 5 END AS a, "
        "CASE WHEN range % 7 > 0 THEN 'b' || range % 2 END AS b, range % 4 AS c FROM range(60)"
    )
    wanted = specification(
        identifiers=(0,), join=(("BIGINT", "VARCHAR"), ("BIGINT",)), nullable=(0,)
    )
    fragment = (
        "SELECT id AS sqlfl_id_0, a AS sqlfl_key_0_0, b AS sqlfl_key_0_1, c AS sqlfl_key_1_0 FROM t"
    )
    snapshot = take(con, wanted, fragment)
    assert snapshot.rows == (60,)
    _, tags, codes = snapshot.keys()
    (ids,) = activate_all(snapshot).identifiers()
    ids = ids.to_numpy()
    null = (ids % 3 == 0) | (ids % 7 == 0)
    np.testing.assert_array_equal(codes[0] == len(tags[0]), null)
    assert (codes[1] < len(tags[1])).all()
    keys = {
        (int(i % 5), int(i % 2)): int(c) for i, c in zip(ids[~null], codes[0][~null], strict=True)
    }
    assert sorted(keys.values()) == list(range(len(tags[0])))
    assert len(keys) == 10


def test_keys_of_rows_that_are_left_out_may_lie_apart(database: Open) -> None:
    con = database(
        "CREATE TABLE t AS SELECT range AS id, CASE range WHEN 3 THEN -9000000000 WHEN 4 THEN "
        "9000000000 ELSE range % 4 + 3000000000 END AS k, CASE WHEN range > 4 THEN 1.5 END AS y "
        "FROM range(20)"
    )
    wanted = specification(target=True, identifiers=(0,), join=(("BIGINT",),))
    snapshot = take(
        con,
        wanted,
        "SELECT y AS sqlfl_target, id AS sqlfl_id_0, k AS sqlfl_key_0_0 FROM t",
    )
    _, (tags,), (codes,) = snapshot.keys()
    (ids,) = activate_all(snapshot).identifiers()
    assert len(tags) == 4
    tag_of_key = dict(zip((ids.to_numpy() % 4).tolist(), codes.tolist(), strict=True))
    assert [tag_of_key[i % 4] for i in ids.to_pylist()] == codes.tolist()
    assert sorted(tag_of_key.values()) == [0, 1, 2, 3]


def test_a_key_that_is_always_null_has_no_tag(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT range AS id, NULL::INTEGER AS a FROM range(9)")
    wanted = specification(identifiers=(0,), join=(("INTEGER",),), nullable=(0,))
    snapshot = take(con, wanted, "SELECT id AS sqlfl_id_0, a AS sqlfl_key_0_0 FROM t")
    _, tags, codes = snapshot.keys()
    assert tags[0].shape == (0, 16)
    assert codes[0].tolist() == [0] * 9
    (ids,) = activate_all(snapshot).identifiers()
    assert sorted(ids.to_pylist()) == list(range(9))


def test_links_keep_their_rows_without_a_target(database: Open) -> None:
    wanted = specification(
        ("x", "numeric"), target=True, identifiers=(0,), join=(("BIGINT",), ("BIGINT",)),
        fragments=(0, 1), links=((0, 1),), nullable=(1,),
    )  # fmt: skip
    con = database(TABLE)
    both = "SELECT x, y AS sqlfl_target, id AS sqlfl_id_0, k AS sqlfl_key_0_0, "
    both += "nullif(k, 0) AS sqlfl_key_1_0, id < 20 AS sqlfl_kept FROM t"
    snapshot = take(con, wanted, both, both)
    assert snapshot.rows == (16, 80)
    assert snapshot.null_targets == (4, 16)
    fragment, tags, codes = snapshot.keys()
    assert sorted(fragment.tolist()) == [0] * 16 + [1] * 80
    assert len(tags[0]) == 4
    assert int((codes[1] == 3).sum()) == 4 + 20
    # only rows of the first fragment become active
    rows = np.flatnonzero(fragment == 0)
    snapshot.activate(rows, np.ones(16))
    values, _, _ = snapshot.labels(classes=False)
    (ids,) = snapshot.identifiers()
    np.testing.assert_array_equal(values, ids.to_numpy() % 3)
    assert (ids.to_numpy() < 20).all()


WEIGHED = (
    "SELECT x, y AS sqlfl_target, CASE WHEN id % 10 = 1 THEN NULL ELSE id / 8 END AS sqlfl_weight, "
    "t AS sqlfl_base, id AS sqlfl_id_0, k AS sqlfl_key_0_0 FROM t"
)


def weighed(split: float, **changes: Any) -> SlotSpecification:
    return replace(WANTED, weight=True, split=split, base=split > 0, **changes)


def test_weights_of_the_active_rows(database: Open) -> None:
    snapshot = take(database(TABLE), weighed(0.5), WEIGHED)
    rows = np.arange(3, 80, 2)
    snapshot.activate(rows, np.full(len(rows), 7))
    (ids,) = snapshot.identifiers()
    ids = ids.to_numpy()
    values = snapshot.weights()
    np.testing.assert_array_equal(np.isnan(values), ids % 10 == 1)
    np.testing.assert_array_equal(values[ids % 10 != 1], ids[ids % 10 != 1] / 8)


def test_weighing_keeps_every_column_in_its_row(database: Open) -> None:
    snapshot = activate_all(take(database(TABLE), weighed(0.5), WEIGHED))
    before = [snapshot.labels(), snapshot.weights(), split_of(snapshot), snapshot.identifiers()[0]]
    counts = np.random.default_rng(0).random(80)
    counts[::5] = 0
    snapshot.weigh(counts)
    after = [snapshot.labels(), snapshot.weights(), split_of(snapshot), snapshot.identifiers()[0]]
    assert after[0][1] == before[0][1]
    np.testing.assert_array_equal(after[0][2], before[0][2])
    np.testing.assert_array_equal(after[1], before[1])
    np.testing.assert_array_equal(after[2], before[2])
    assert after[3].equals(before[3])
    assert snapshot.weight == pytest.approx(counts.sum(), rel=1e-15)
    x = after[3].to_numpy() / 3
    assert local_encoding(snapshot).mean[0] == pytest.approx(counts @ x / counts.sum(), rel=1e-12)
    snapshot.weigh(np.ones(80))
    assert local_encoding(snapshot).mean[0] == pytest.approx(x.mean(), rel=1e-12)
    snapshot.drop()
    assert temporary_tables(snapshot.con) == []


@pytest.mark.parametrize(
    "counts", [[1.0] * 79, [[1.0]] * 80, [-1.0] * 80, [np.nan] * 80, [np.inf] * 80]
)
def test_wrong_weights_are_refused(database: Open, counts: list[float]) -> None:
    snapshot = activate_all(take(database(TABLE), WANTED, FRAGMENT))
    with pytest.raises(InternalError, match="80 active rows"):
        snapshot.weigh(np.array(counts))


def drawn(snapshot: Snapshot) -> set[int]:
    """The ids of the rows for validation."""
    validation = split_of(activate_all(snapshot))
    assert validation.dtype == np.uint8
    (ids,) = snapshot.identifiers()
    return set(ids.to_numpy()[validation.astype(bool)].tolist())


def test_the_split_is_the_same_hash_as_pythons(database: Open) -> None:
    con = database(TABLE)
    found = drawn(take(con, weighed(0.3), WEIGHED, draws=b"own"))
    expected = set()
    for number, text in con.execute("SELECT id, t::VARCHAR FROM t WHERE y IS NOT NULL").fetchall():
        digest = hmac.digest(b"own", text.encode(), "sha256")
        if int.from_bytes(digest[:8], "big") < 0.3 * 2**64:
            expected.add(number)
    assert found == expected
    assert 0 < len(found) < 80


def test_the_split_depends_on_the_row_and_the_key_alone(database: Open) -> None:
    con = database(TABLE)
    first = drawn(take(con, weighed(0.3), WEIGHED, draws=b"own"))
    narrow = specification(identifiers=(0,), split=0.3)
    again = "SELECT s AS sqlfl_base, id AS sqlfl_id_0 FROM (FROM t ORDER BY id DESC) AS s"
    again += " WHERE y IS NOT NULL"
    assert drawn(take(con, narrow, again, run="b", secret=b"other", draws=b"own")) == first
    assert drawn(take(con, narrow, again, run="c", draws=b"another")) != first
    larger = replace(narrow, split=0.6)
    assert drawn(take(con, larger, again, run="d", draws=b"own")) > first


def test_copies_of_a_row_stay_on_one_side(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT range % 40 AS id FROM range(400)")
    wanted = specification(identifiers=(0,), split=0.5)
    snapshot = activate_all(take(con, wanted, "SELECT t AS sqlfl_base, id AS sqlfl_id_0 FROM t"))
    (ids,) = snapshot.identifiers()
    sides = np.bincount(ids.to_numpy(), split_of(snapshot))
    assert set(sides.tolist()) == {0.0, 10.0}


def test_the_drawn_share_is_the_one_asked_for(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT range AS id FROM range(20000)")
    for share in (0.01, 0.2, 0.9):
        wanted = specification(split=share)
        snapshot = activate_all(
            take(
                con, wanted, "SELECT t AS sqlfl_base FROM t", run=f"r{share}", draws=os.urandom(32)
            )
        )
        deviation = np.sqrt(share * (1 - share) / 20000)
        assert abs(split_of(snapshot).mean() - share) < 6 * deviation


FOLDED = replace(specification(target=True, classes=True, identifiers=(0,), split=0.25), folds=4)


def folded(
    con: duckdb.DuckDBPyConnection, *fragments: str, run: str = "r1", draws: bytes = b"own"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, codes of classes and folds of the rows, in the order of the ids."""
    wanted = replace(FOLDED, fragments=tuple(range(len(fragments))))
    snapshot = activate_all(take(con, wanted, *fragments, run=run, draws=draws))
    folds, ids = folds_of(snapshot), snapshot.identifiers()[0].to_numpy()
    order = np.lexsort((folds, ids))
    return ids[order], snapshot.labels()[2][order], folds[order]


@pytest.mark.parametrize("seed", range(3))
def test_each_fold_has_as_many_rows_of_a_class(database: Open, seed: int) -> None:
    counts = np.random.default_rng(seed).integers(1, 12, 5).tolist()
    con = database("CREATE TABLE t (id INTEGER, y VARCHAR)")
    for name, count in enumerate(counts):
        con.execute(f"INSERT INTO t SELECT range, 'class {name}' FROM range({count})")
    text = "SELECT y AS sqlfl_target, t AS sqlfl_base, id AS sqlfl_id_0 FROM t"
    _, codes, folds = folded(con, text)
    found = np.bincount(codes * 4 + folds, minlength=20).reshape(5, 4)
    assert found.sum(axis=1).tolist() == counts
    assert (np.ptp(found, axis=1) <= 1).all()


def test_folds_depend_on_rows_and_key_alone(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT range AS id, range % 7 = 0 AS y FROM range(200)")
    text = "SELECT y AS sqlfl_target, t AS sqlfl_base, id AS sqlfl_id_0 FROM t"
    _, _, first = folded(con, text)
    _, _, again = folded(con, text + " ORDER BY id DESC", run="b")
    _, _, other = folded(con, text, run="c", draws=b"another")
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_copies_of_a_row_are_in_one_fold_whatever_their_class(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT range AS id FROM range(60)")
    text = "SELECT {} AS sqlfl_target, t AS sqlfl_base, id AS sqlfl_id_0 FROM t"
    ids, _, folds = folded(con, text.format("id % 5 = 0"), text.format("id % 3 = 0"))
    assert np.bincount(ids).tolist() == [2] * 60
    np.testing.assert_array_equal(folds[::2], folds[1::2])
    # 4 rows have `true` twice, and the 56 others are dealt as rows of `false`
    np.testing.assert_array_equal(np.bincount(folds[::2]), [15] * 4)


def test_a_fragment_has_one_link() -> None:
    twice = replace(WANTED, fragments=(0, 1, 2), links=((0, 1), (0, 2)))
    with pytest.raises(InternalError, match="a fragment has two links"):
        specifications_from_json(specifications_to_json((twice,)))


def test_neither_weights_nor_a_split_where_the_slot_has_none(database: Open) -> None:
    snapshot = activate_all(take(database(TABLE), WANTED, FRAGMENT))
    with pytest.raises(InternalError, match="does not hold the weight"):
        snapshot.weights()
    with pytest.raises(InternalError, match="draws a share"):
        split_of(snapshot)
    with pytest.raises(InternalError, match="without a key"):
        take(database(TABLE), weighed(0.5), WEIGHED, draws=b"")


@pytest.mark.parametrize(
    ("rows", "counts"),
    [([1, 0], [1, 1]), ([0, 0], [1, 1]), ([0, 80], [1, 1]), ([0], [0]), ([0], [])],
)
def test_wrong_active_rows_are_refused(database: Open, rows: list[int], counts: list[int]) -> None:
    snapshot = take(database(TABLE), WANTED, FRAGMENT)
    with pytest.raises(InternalError):
        snapshot.activate(np.array(rows), np.array(counts, int))


def test_nothing_is_left_behind(database: Open, in_both_forms: str) -> None:
    con = database(TABLE)
    cursor = con.cursor()
    snapshot = take(cursor, WANTED, FRAGMENT)
    assert bool(temporary_tables(cursor)) == (in_both_forms == "tables")
    assert all(name.startswith("sqlfl_r1_0_") for name in temporary_tables(cursor))
    assert temporary_tables(con) == []
    activate_all(snapshot)
    snapshot.labels()
    encoding = local_encoding(snapshot)
    statistics(snapshot, b"key")
    for name in ("sql", "arrays"):
        make_engine(name, cursor, snapshot, encoding).close()
        score(cursor, snapshot, encoding, np.zeros((encoding.width, 1)), name)
    assert temporary_tables(cursor) == ["sqlfl_r1_0_active"]
    snapshot.drop()
    snapshot.drop()
    assert temporary_tables(cursor) == []
    cursor.close()
    assert con.execute("SELECT table_name FROM duckdb_tables()").fetchall() == [("t",)]


def test_several_runs_and_slots_live_side_by_side(database: Open) -> None:
    con = database(TABLE)
    snapshots = [
        take(
            con,
            specification(("x", "numeric"), slot=slot),
            f"SELECT x FROM t LIMIT {size}",
            run=run,
        )
        for slot, run, size in ((0, "a", 10), (1, "a", 20), (0, "b", 30))
    ]
    assert [activate_all(s).active for s in snapshots] == [10, 20, 30]
    snapshots[0].drop()
    assert local_encoding(snapshots[1]).total == 20
    assert local_encoding(snapshots[2]).total == 30


def test_a_read_only_database_serves(database: Open, tmp_path: Path) -> None:
    path = str(tmp_path / "source.duckdb")
    with duckdb.connect(path) as writer:
        writer.execute(TABLE)
    with duckdb.connect(path, read_only=True) as con:
        cursor = con.cursor()
        snapshot = activate_all(take(cursor, WANTED, FRAGMENT))
        encoding = local_encoding(snapshot)
        assert score(cursor, snapshot, encoding, np.ones((1, 1))).shape == (80, 1)
        snapshot.drop()
        cursor.close()


def test_the_owners_open_transaction_is_undisturbed(database: Open) -> None:
    con = database(TABLE)
    con.begin()
    con.execute("INSERT INTO t VALUES (1000, 0, 0, 1)")
    cursor = con.cursor()
    snapshot = take(cursor, WANTED, FRAGMENT)
    assert snapshot.rows == (80,)
    activate_all(snapshot)
    con.rollback()
    assert con.execute("SELECT count(*) FROM t").fetchone() == (100,)
    snapshot.drop()


def test_later_changes_do_not_reach_the_snapshot(database: Open) -> None:
    con = database(TABLE)
    cursor = con.cursor()
    snapshot = take(cursor, WANTED, FRAGMENT)
    con.execute("DROP TABLE t")
    assert activate_all(snapshot).active == 80
    assert local_encoding(snapshot).total == 80
