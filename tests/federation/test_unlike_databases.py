"""Databases of one party whose tables are not alike: types, columns and names."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pytest

import sqlfl
from sqlfl.base.errors import PlanError
from tests.open_databases import in_memory

NORTH = """CREATE TABLE t AS SELECT i AS id, i % 20 AS k, sin(i * 1.7)::VARCHAR AS x,
  i::INTEGER AS w, [i::INTEGER] AS l, cos(i) + i % 20 AS y, DATE '2024-01-01' + i::INTEGER AS d,
  1 AS extra, 2 AS "É" FROM range(60) r(i)"""
SOUTH = """CREATE TABLE T AS SELECT i AS id, (i % 20)::VARCHAR AS K, sin(i * 1.7) AS x,
  -i * 0.75::DOUBLE AS w, [i * 0.5::DOUBLE] AS l, cos(i) + i % 20 AS y,
  (DATE '2024-01-01' + i::INTEGER)::VARCHAR AS d, 2 AS "é" FROM range(60, 140) r(i)"""
JOINED = "FROM a.t t JOIN b.u u ON t.k::BIGINT = u.k"


@pytest.fixture(scope="module")
def fed() -> Iterator[sqlfl.Federation]:
    with in_memory() as north, in_memory() as south, in_memory() as other:
        north.execute(NORTH)
        south.execute(SOUTH)
        other.execute("CREATE TABLE u AS SELECT i AS k, cos(i) AS z FROM range(18) r(i)")
        with sqlfl.connect(progress=False) as found:
            found.attach("a", [north, south])
            found.attach("b", other)
            yield found


@pytest.fixture(scope="module")
def central() -> Iterator[duckdb.DuckDBPyConnection]:
    """The two tables as one, with each column cast by itself to one type."""
    with in_memory() as con:
        con.execute("CREATE SCHEMA a; CREATE SCHEMA b; SET schema = 'a'")
        con.execute(NORTH)
        con.execute("ALTER TABLE t RENAME TO north")
        con.execute(SOUTH)
        con.execute("ALTER TABLE t RENAME TO south")
        con.execute("CREATE TABLE b.u AS SELECT i AS k, cos(i) AS z FROM range(18) r(i)")
        own = (
            "id, k::BIGINT AS k, x::DOUBLE AS x, w::DOUBLE AS w, l::DOUBLE[] AS l, y, d::DATE AS d"
        )
        con.execute(
            f"CREATE TABLE a.t AS SELECT {own} FROM north UNION ALL SELECT {own} FROM south"
        )
        yield con


@pytest.mark.parametrize(
    ("columns", "where"),
    [
        ("t.x::DOUBLE AS f", ""),
        ("TRY_CAST((t.x) AS DOUBLE) AS f", "WHERE t.x IS NOT NULL"),
        ("abs(CAST(t.x AS DOUBLE)) AS f", "WHERE t.x::DOUBLE > 0.1"),
        ("t.w // 2 AS f", ""),
        ("t.l[1] // 2 AS f", "WHERE t.w % 2 > 0 OR t.w < 0"),
        ("dayofyear(t.d::DATE) AS f", ""),
        ("CASE WHEN t.x IS NULL THEN 0 ELSE t.x::DOUBLE + t.w END AS f", ""),
    ],
)
def test_each_database_evaluates_what_the_query_casts(
    fed: sqlfl.Federation, central: duckdb.DuckDBPyConnection, columns: str, where: str
) -> None:
    query = f"SELECT {columns}, u.z, t.y {JOINED} {where}"
    train = "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y WITH (l2 = 0)"
    fed.sql(f"{train} FROM ({query})")
    f, z, y = (np.array(c, float) for c in zip(*central.execute(query).fetchall(), strict=True))
    assert fed.model("m").metrics["rows"] == len(y)
    design = np.column_stack([np.ones_like(f), f, z])
    residuals = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    assert fed.model("m").metrics["rmse"] == pytest.approx(np.sqrt(np.mean(residuals**2)), rel=1e-6)


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT t.x, u.z, t.y {JOINED}",
        f"SELECT u.z, t.y {JOINED} WHERE t.x > '0'",
        f"SELECT coalesce(t.x, '0')::DOUBLE AS f, u.z, t.y {JOINED}",
        "SELECT u.z, t.y FROM a.t t JOIN b.u u ON t.k = u.k",
        "SELECT u.z, t.y FROM a.t t JOIN b.u u USING (k)",
        "SELECT u.z, t.y FROM a.t t LEFT JOIN b.u u ON t.k IS NOT DISTINCT FROM u.k",
        f"SELECT (t.x)[1] AS f, u.z, t.y {JOINED}",
        "SELECT f, y FROM (SELECT t.x > 0 AS f, y FROM a.t t UNION ALL SELECT z > 0, z FROM b.u)",
        "SELECT v.x::DOUBLE AS f, v.y FROM (SELECT x, y FROM a.t UNION ALL SELECT z, z FROM b.u) v",
    ],
)
def test_what_means_another_thing_in_each_database_is_refused(
    fed: sqlfl.Federation, query: str
) -> None:
    told = r"column [xk] of \w+ is (VARCHAR|BIGINT) at a/0 and (DOUBLE|VARCHAR) at a/1"
    with pytest.raises(PlanError, match=told) as error:
        fed.sql(f"TRAIN MODEL never USING linear_regression TARGET y FROM ({query})")
    # a text may hold a number, and not the other way round
    assert "hint: cast it " in str(error.value)
    assert "::VARCHAR" not in str(error.value).split("hint:")[1]


def test_check_lists_what_databases_have_unlike(fed: sqlfl.Federation) -> None:
    result = fed.sql(f"CHECK TARGET y FROM (SELECT t.x::DOUBLE AS x, u.z, t.y {JOINED})")
    rows = [r for r in result.arrow().to_pylist() if r["part"] == "database"]
    assert {(r["table"], r["name"], r["kind"]) for r in rows} == {
        ("a.t", "k", "k at a/0, K at a/1"),
        ("a.t", "k", "BIGINT at a/0, VARCHAR at a/1"),
        ("a.t", "x", "VARCHAR at a/0, DOUBLE at a/1"),
        ("a.t", "w", "INTEGER at a/0, DOUBLE at a/1"),
        ("a.t", "l", "INTEGER[] at a/0, DOUBLE[] at a/1"),
        ("a.t", "d", "DATE at a/0, VARCHAR at a/1"),
        ("a.t", "extra", "not at a/1"),
        ("a.t", "É", "not at a/1"),
        ("a.t", "é", "not at a/0"),
    }
    text = str(result)
    assert "a.t: column w is INTEGER at a/0, DOUBLE at a/1; it is read as DOUBLE" in text
    assert "cast it wherever the query reads it: x::DOUBLE" in text
    assert "a.t: a/1 lacks column É, and has é, which differs in case only" in text


def test_check_lists_them_where_the_query_cannot_be_planned(fed: sqlfl.Federation) -> None:
    with pytest.raises(PlanError, match=r"differ: .*column k is BIGINT.*lacks column extra"):
        fed.sql(f"CHECK TARGET y FROM (SELECT t.x, u.z, t.y {JOINED})")


def test_check_names_the_database_that_lacks_a_table() -> None:
    with in_memory() as one, in_memory() as two, sqlfl.connect(progress=False) as fed:
        one.execute("CREATE TABLE t AS SELECT 1 AS x, 2 AS y")
        fed.attach("a", [one, two])
        with pytest.raises(PlanError, match=r"databases differ: a\.t: a/1 lacks the table"):
            fed.sql("CHECK (SELECT x, y FROM a.t)")
