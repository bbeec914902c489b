"""A CTE that is named twice is one table, also where its rows are others each time."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

import sqlfl
from sqlfl.base.errors import PlanError

SAMPLE = "WITH s AS (SELECT k, x, y FROM a.t USING SAMPLE 50 PERCENT (bernoulli))"
SELF = "SELECT p.k, p.x, q.x AS w, p.y FROM s p JOIN s q ON p.k = q.k"
JOINED = "SELECT p.x, q.x AS w, v.z, p.y FROM s p JOIN s q ON p.k = q.k LEFT JOIN b.v ON p.k = v.k"


@pytest.fixture(scope="module")
def fed() -> Iterator[sqlfl.Federation]:
    a, b = duckdb.connect(), duckdb.connect()
    a.execute("CREATE TABLE t AS SELECT i AS k, sin(i) AS x, cos(i) AS y FROM range(4000) r(i)")
    b.execute("CREATE TABLE v AS SELECT i AS k, i * 0.5 AS z FROM range(0, 4000, 3) r(i)")
    with sqlfl.connect(progress=False) as found:
        found.attach("a", a)
        found.attach("b", b)
        yield found


@pytest.mark.parametrize(
    "query",
    [
        f"{SAMPLE} {SELF}",
        f"{SAMPLE} SELECT d.x, d.w, v.z, d.y FROM ({SELF}) AS d LEFT JOIN b.v ON d.k = v.k",
        f"SELECT d.x, d.w, v.z, d.y FROM ({SAMPLE} {SELF}) AS d LEFT JOIN b.v ON d.k = v.k",
    ],
)
def test_each_sampled_row_meets_itself(fed: sqlfl.Federation, query: str) -> None:
    fed.sql(f"TRAIN OR REPLACE MODEL m USING linear_regression TARGET y FROM ({query})")
    assert 1700 < fed.model("m").metrics["rows"] < 2300


@pytest.mark.parametrize(
    "query",
    [
        f"{SAMPLE} {JOINED}",
        f"WITH s AS (SELECT k, x, y FROM a.t LIMIT 2000) {JOINED}",
        f"WITH s AS (SELECT k, first(x) AS x, list(y)[1] AS y FROM a.t GROUP BY k) {JOINED}",
        f"{SAMPLE}, r AS (FROM s) {JOINED.replace('s q', 'r q')}",
        f"{SAMPLE} SELECT s.x, v.z, s.y FROM s LEFT JOIN b.v ON v.k = s.k "
        "WHERE s.k IN (SELECT k FROM s)",
    ],
)
def test_what_would_be_evaluated_twice_is_refused(fed: sqlfl.Federation, query: str) -> None:
    with pytest.raises(PlanError, match="s is named more than once") as error:
        fed.sql(f"EXPLAIN TRAIN MODEL m USING linear_regression TARGET y FROM ({query})")
    assert "FROM s AS p JOIN s AS q" in str(error.value)


def test_the_same_rows_each_time_are_taken_apart(fed: sqlfl.Federation) -> None:
    query = f"WITH s AS (SELECT k, x, y FROM a.t ORDER BY k LIMIT 2000) {JOINED}"
    fed.sql(f"TRAIN OR REPLACE MODEL m USING linear_regression TARGET y FROM ({query})")
    assert fed.model("m").metrics["rows"] == 2000
