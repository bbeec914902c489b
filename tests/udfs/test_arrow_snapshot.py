"""Rows that are held as columns are those that temporary tables would hold."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pytest

from sqlfl.base.errors import ModelError
from sqlfl.contract.schema import SlotSpecification
from sqlfl.udfs import sql
from sqlfl.udfs.encoding.features import local_encoding, statistics
from sqlfl.udfs.encoding.findings import of_scoring, of_training
from sqlfl.udfs.numbering import arrow_snapshot, numbering
from sqlfl.udfs.numbering.rows import Snapshot
from sqlfl.udfs.updates.predict import make_engine
from tests.conftest import Open
from tests.udfs import snapshots
from tests.udfs.snapshots import specification, take

TABLE = """CREATE TABLE t AS SELECT range AS id,
  CASE WHEN range % 7 = 0 THEN NULL WHEN range % 11 = 0 THEN 'nan'::DOUBLE
    ELSE range / 3.0 END::DOUBLE AS x,
  CASE WHEN range % 5 > 0 THEN range END::FLOAT AS f, range % 2 = 0 AS b, 4.5::FLOAT AS one,
  CASE WHEN range % 3 > 0 THEN 'ä' || range % 4 END AS c,
  CASE WHEN range % 6 > 0 THEN [range, NULL, 'nan'::FLOAT]::FLOAT[3] END AS v,
  CASE WHEN range % 9 > 0 THEN range % 3 END AS y, range % 13 AS k,
  CASE WHEN range % 4 > 0 THEN chr(65 + (range % 8)::INT) END AS l
FROM range(500)"""
FRAGMENT = (
    "SELECT x, f, b, one, c, v, y AS sqlfl_target, id AS sqlfl_id_0, k AS sqlfl_key_0_0, "
    "l AS sqlfl_key_1_0, k AS sqlfl_key_1_1 FROM t"
)


def wanted(seed: int | None = 5) -> SlotSpecification:
    """With a seed rows have the same ids in both forms."""
    return specification(
        ("x", "numeric"),
        ("f", "numeric"),
        ("b", "boolean"),
        ("one", "numeric"),
        ("c", "category"),
        ("v", "array", 3),
        target=True,
        classes=True,
        identifiers=(0,),
        join=(("BIGINT",), ("VARCHAR", "BIGINT")),
        nullable=(1,),
        seed=seed,
    )


def both(
    con: duckdb.DuckDBPyConnection, specified: SlotSpecification, *fragments: str
) -> tuple[Snapshot, Snapshot]:
    """Of the same rows: in tables, and as columns."""
    found = []
    for form in snapshots.FORMS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(snapshots, "form", form)
            found.append(take(con, specified, *fragments, run=form))
    tables, columns = found
    assert tables.held is None
    assert columns.held is not None
    return tables, columns


def equal(one: Any, other: Any) -> None:
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


def test_keys_labels_statistics_and_engines_agree(database: Open) -> None:
    con = database(TABLE)
    tables, columns = both(con, wanted(), FRAGMENT)
    assert tables.rows == columns.rows
    assert tables.null_targets == columns.null_targets
    one, other = tables.keys(), columns.keys()
    for left, right in zip(one, other, strict=True):
        equal(left, right)
    rows = np.flatnonzero(np.random.default_rng(0).random(sum(tables.rows)) < 0.7)
    counts = np.random.default_rng(1).integers(1, 5, len(rows))
    for snapshot in (tables, columns):
        snapshot.activate(rows, counts)
    equal(tables.labels(), columns.labels())
    equal(tables.labels(classes=False), columns.labels(classes=False))
    assert tables.identifiers()[0].equals(columns.identifiers()[0])
    assert tables.single == columns.single
    ours, theirs = local_encoding(columns), local_encoding(tables)
    for name in ("mean", "scale", "missing"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-13)
    assert ours.vocabularies == theirs.vocabularies
    equal(ours.counts, theirs.counts)
    equal(of_training(tables, theirs, 400), of_training(columns, theirs, 400))
    equal(of_scoring(tables, theirs), of_scoring(columns, theirs))
    told, said = (statistics(snapshot, b"key") for snapshot in (tables, columns))
    equal(told.tags, said.tags)
    equal(told.counts, said.counts)
    engines = [make_engine("arrays", con, own, theirs) for own in (tables, columns)]
    for left, right in zip(*(engine.columns() for engine in engines), strict=True):
        left, right = (m if isinstance(m, np.ndarray) else m.toarray() for m in (left, right))
        np.testing.assert_allclose(left, right, rtol=1e-15)
    equal([engines[0].counts], [engines[1].counts])


def test_queries_read_them_as_they_read_a_table(database: Open) -> None:
    con = database(TABLE)
    read = []
    for snapshot in both(con, wanted(), FRAGMENT):
        snapshot.activate(np.arange(0, 300, 2), np.arange(1, 151))
        query = f"FROM {sql.to_sql(snapshot.active_table)} ORDER BY r"
        found = con.sql(query)
        read.append((found.columns, found.types, repr(found.fetchall())))
    assert read[0] == read[1]


@pytest.mark.parametrize("span", [0, numbering.MAX_SPAN])
@pytest.mark.parametrize("dense", [0, numbering.DENSE])
@pytest.mark.parametrize(
    ("types", "values"),
    [
        (("BIGINT",), "range - 7"),
        (("BIGINT",), "nullif(range, 5) * 1 - 20"),
        (("UBIGINT",), "nullif(range, 0) + 3"),
        (("UBIGINT",), "range::UBIGINT * 461168601842738790"),
        (("INTEGER",), "CASE WHEN range > 37 THEN 2147483647 - range % 2 END"),
        (("UTINYINT",), "range"),
        (("TINYINT",), "range * 6 - 128"),
        (("BIGINT",), "range * range * range * 10000000000"),
        (("SMALLINT", "UBIGINT"), "range // 3 - 5, 18446744073709551615 - range % 3"),
        (("UBIGINT",), "range::UBIGINT + 18446744073709551000"),
        (("VARCHAR",), "CASE WHEN range % 3 > 0 THEN 'ß' || range END"),
        (("DOUBLE",), "CASE range WHEN 1 THEN 'nan' WHEN 2 THEN '-0' ELSE range / 7 END::DOUBLE"),
        (("HUGEINT",), "range::HUGEINT * 1000000000000000000000"),
        (("DECIMAL(9,2)",), "range::DECIMAL(9,2) / 4"),
        (("BLOB",), "('\\xAA' || range)::BLOB"),
        (("TIMESTAMP WITH TIME ZONE",), "to_timestamp(range)"),
        (("BOOLEAN", "VARCHAR", "INTEGER"), "range % 2 = 0, chr(65 + (range % 5)::INT), range % 3"),
    ],
)
def test_tags_are_those_of_tables(
    database: Open,
    types: tuple[str, ...],
    values: str,
    dense: int,
    span: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(numbering, "DENSE", dense)
    monkeypatch.setattr(numbering, "MAX_SPAN", span)
    monkeypatch.setattr(numbering, "PART", 16)
    con = database()
    listed = ", ".join(f"v{p}" for p in range(len(types)))
    parts = ", ".join(f"v{p}::{kind} AS sqlfl_key_0_{p}" for p, kind in enumerate(types))
    fragment = f"SELECT {parts} FROM (SELECT {values} FROM range(40)) AS s({listed})"
    tables, columns = both(con, specification(join=(types,), nullable=(0,), seed=1), fragment)
    (_, (one,), (codes,)), (_, (other,), (held_codes,)) = tables.keys(), columns.keys()
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(codes, held_codes)
    assert len(one) > 1


def test_null_keys_are_refused_where_they_may_not_be(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT nullif(range, 3) AS k FROM range(9)")
    with pytest.raises(ModelError, match="NULL join keys"):
        both(con, specification(join=(("BIGINT",),)), "SELECT k AS sqlfl_key_0_0 FROM t")


def test_rows_of_several_fragments_some_of_which_only_match(database: Open) -> None:
    con = database(TABLE)
    specified = specification(
        ("x", "numeric"),
        target=True,
        join=(("BIGINT",),),
        fragments=(1, 4),
        links=((1, 4),),
        seed=3,
    )
    fragment = "SELECT x, y AS sqlfl_target, k AS sqlfl_key_0_0, id < 100 AS sqlfl_kept FROM t"
    tables, columns = both(con, specified, fragment, fragment)
    assert tables.rows == columns.rows
    assert tables.null_targets == columns.null_targets
    for left, right in zip(tables.keys(), columns.keys(), strict=True):
        equal(left, right)


def test_what_is_too_large_is_kept_in_tables(
    database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where rows are left that were not read."""
    monkeypatch.setattr(arrow_snapshot, "MAX_ARROW_BYTES", 1 << 20)
    monkeypatch.setattr(snapshots, "form", "columns")
    con = database("CREATE TABLE t AS SELECT range % 9 AS k, range / 2 AS x FROM range(300000)")
    fragment = "SELECT x, k AS sqlfl_key_0_0 FROM t"
    snapshot = take(con, specification(("x", "numeric"), join=(("BIGINT",),)), fragment)
    assert snapshot.held is None
    assert snapshot.rows == (300_000,)
    assert snapshots.temporary_tables(con) == ["sqlfl_r1_0_raw"]


@pytest.mark.parametrize("kind", ["VARCHAR COLLATE nocase", "ENUM ('b', 'a')", "HUGEINT", "TIMETZ"])
def test_types_that_arrow_has_otherwise_are_kept_in_tables(
    database: Open, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "form", "columns")
    con = database(f"CREATE TABLE t (c {kind})")
    for number, (name, specified) in enumerate(
        (
            ("sqlfl_target", specification(target=True, classes=True)),
            ("sqlfl_id_0", specification(identifiers=(0,))),
        )
    ):
        snapshot = take(con, specified, f"SELECT c AS {name} FROM t", run=f"r{number}")
        assert snapshot.held is None


def test_rows_are_read_once(database: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "form", "columns")
    con = database("CREATE SEQUENCE drawn", "CREATE TABLE t AS SELECT range AS k FROM range(5)")
    specified = specification(
        ("n", "numeric"), target=True, classes=True, identifiers=(0,), fragments=(0, 1)
    )
    fragment = "SELECT nextval('drawn') AS n, k AS sqlfl_target, k AS sqlfl_id_0 FROM t"
    snapshot = take(con, specified, fragment, f"{fragment} LIMIT 3")
    assert snapshot.held is not None
    assert con.execute("SELECT last_value FROM duckdb_sequences()").fetchone() == (8,)


def test_weights_and_merged_rows_take_the_place_of_active_ones(
    database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "form", "columns")
    con = database(TABLE)
    snapshot = take(con, wanted(), FRAGMENT)
    snapshot.activate(np.arange(100), np.ones(100, int))

    def counts() -> list[tuple[float]]:
        query = sql.query("SELECT cnt FROM $active ORDER BY r", active=snapshot.active_table)
        return sql.fetch(con, query)

    assert counts() == [(1,)] * 100
    snapshot.weigh(np.arange(100) / 2)
    assert counts() == [(r / 2,) for r in range(100)]
    assert snapshot.weight == np.arange(100).sum() / 2
    snapshot.merge(np.array([1, 5]), np.array([3.0, 4.0]))
    assert counts() == [(3.0,), (4.0,)]
    assert (snapshot.active, snapshot.weight) == (2, 7.0)
    assert snapshots.temporary_tables(con) == ["sqlfl_r1_0_active"]
    snapshot.drop()
    assert snapshots.temporary_tables(con) == []
