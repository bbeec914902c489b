"""Sums and means of few values, which no many rows have."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

import sqlfl
from sqlfl.base.errors import PolicyError
from sqlfl.governance.mixtures import mixes_few
from tests.conftest import Open
from tests.governance.clinic import ruled
from tests.open_databases import in_memory

MADE = """CREATE TABLE p AS SELECT i AS pid, i % 4 AS site, 1.0 * i AS every,
    CASE WHEN i = 17 THEN 123.5 END AS rare, CASE WHEN i % 4 <> 1 OR i = 17 THEN i END AS part,
    CASE WHEN i % 10 = 0 THEN i END AS tenth
    FROM range(60) AS r(i);
  CREATE TABLE six AS SELECT i // 6 AS who, i % 6 AS visit,
    CASE WHEN i % 6 = 0 THEN i END AS lab FROM range(60) AS r(i);
  CREATE TABLE v AS SELECT CASE WHEN i = 0 THEN 17 ELSE 1000 + i END AS pid, 7.0 + i AS cost
    FROM range(60) AS r(i)"""
LEFT = "FROM p LEFT JOIN v ON p.pid = v.pid"


@pytest.fixture
def clinic() -> Iterator[duckdb.DuckDBPyConnection]:
    with in_memory() as con:
        con.execute(MADE)
        yield con


@pytest.mark.parametrize(
    ("text", "few"),
    [
        ("SELECT every FROM p", False),
        ("SELECT avg(every) OVER () FROM p", False),
        ("SELECT avg(rare) OVER () FROM p", True),
        ("SELECT 1 + every * coalesce(sum(rare) OVER (), 0) FROM p", True),
        ("SELECT avg(every) OVER (PARTITION BY site) FROM p", False),
        ("SELECT avg(part) OVER () FROM p", False),
        ("SELECT avg(part) OVER (PARTITION BY site) FROM p", True),
        ("SELECT avg(part) OVER w FROM p WINDOW w AS (PARTITION BY site)", True),
        ("SELECT avg(tenth) OVER () FROM p", False),  # six rows
        ("SELECT avg(tenth) OVER (ORDER BY pid) FROM p", True),
        ("SELECT avg(every) OVER (ORDER BY pid) FROM p", False),
        ("SELECT avg(every) OVER (ORDER BY pid ROWS 2 PRECEDING) FROM p", False),
        ("SELECT sum(rare) OVER (ORDER BY pid ROWS 2 PRECEDING) FROM p", False),  # three rows
        ("SELECT sum(rare) OVER (ORDER BY pid ROWS 8 PRECEDING) FROM p", True),
        ("SELECT avg(every) OVER (PARTITION BY pid) FROM p", False),  # of each row for itself
        ("SELECT lag(rare) OVER (ORDER BY pid) FROM p", False),
        ("SELECT count(*) OVER (PARTITION BY site) FROM p", False),
        (f"SELECT avg(v.cost) OVER () {LEFT}", True),
        (f"SELECT avg(p.every) OVER () {LEFT}", False),
        ("SELECT avg(v.cost) OVER () FROM p, (SELECT cost FROM v) AS v", False),
        ("SELECT f FROM (SELECT avg(x) OVER () AS f FROM (SELECT rare AS x FROM p))", True),
        ("SELECT avg(x) OVER () FROM p, (SELECT rare AS x FROM p) WHERE every = 1", True),
        ("SELECT every FROM p UNION ALL SELECT avg(rare) OVER () FROM p", True),
        ("WITH q AS (SELECT rare AS x FROM p) SELECT avg(x) OVER () FROM q", True),
        ("WITH a AS (SELECT rare AS x FROM p), b AS (SELECT avg(x) OVER () AS f FROM a) "
         "SELECT f FROM b", True),
        ("WITH a AS (SELECT every AS x FROM p), b AS (SELECT avg(x) OVER () AS f FROM a) "
         "SELECT f FROM b", False),
        ("SELECT (SELECT avg(rare) FROM p AS q) FROM p", True),
        ("SELECT every + (SELECT sum(q.rare) FROM p AS q) FROM p", True),
        ("SELECT (SELECT avg(every) FROM p AS q) FROM p", False),
        ("SELECT (SELECT count(*) FROM p AS q WHERE q.pid = p.pid) FROM p", False),
        ("SELECT avg(rare) OVER () FROM p WHERE pid <> 17", False),  # of nobody
        # of the one value that each of many patients has in some of six visits
        ("SELECT avg(lab) OVER (PARTITION BY who) FROM six", False),
        ("SELECT avg(lab) OVER (PARTITION BY who % 2) FROM six WHERE who < 2", True),
        ("SELECT avg(lab) OVER (PARTITION BY CASE WHEN who > 5 THEN who END) FROM six "
         "WHERE who > 5 OR visit > 0 OR who = 0", True),
        # two of the same column, of rows that are few apart
        ("SELECT sum(every) OVER () - sum(every) OVER (PARTITION BY pid = 17) FROM p", True),
        ("SELECT avg(every) OVER (), sum(every) OVER (PARTITION BY pid = 17) FROM p", True),
        ("SELECT avg(every) OVER (PARTITION BY pid = 17) FROM p", False),
        ("SELECT sum(every) OVER (ORDER BY pid) - sum(every) OVER (PARTITION BY pid = 17 "
         "ORDER BY pid) FROM p", True),
        ("SELECT (SELECT sum(every) FROM p AS q) - sum(every) OVER (PARTITION BY pid = 17) FROM p",
         True),
        ("SELECT sum(every) OVER (ROWS UNBOUNDED PRECEDING), sum(every) OVER (PARTITION BY "
         "pid = 17 ROWS UNBOUNDED PRECEDING) FROM p", True),
        ("SELECT (SELECT sum(every) FROM p AS q) FROM p WHERE pid <> 17", True),
        ("SELECT (SELECT sum(every) FROM p AS q) FROM p WHERE pid > 17", False),
        ("SELECT avg(every) OVER (PARTITION BY site) - avg(every) OVER () FROM p", False),
        ("SELECT avg(every) OVER (PARTITION BY pid) - avg(every) OVER () FROM p", False),
        ("SELECT avg(every) OVER (PARTITION BY site), avg(every) OVER (PARTITION BY pid % 3) "
         "FROM p",
         False),
        ("SELECT avg(every) OVER (PARTITION BY site), avg(every) OVER (PARTITION BY "
         "CASE WHEN pid = 17 THEN 9 ELSE site END) FROM p", True),
        ("SELECT every - avg(every) OVER (ORDER BY pid ROWS 2 PRECEDING), "
         "avg(every) OVER (ORDER BY pid ROWS 6 PRECEDING) FROM p", False),
    ],
)  # fmt: skip
def test_few_values_in_many_rows(clinic: duckdb.DuckDBPyConnection, text: str, few: bool) -> None:
    assert mixes_few(clinic, text, 5) is few


def test_copies_of_one_value_are_few(clinic: duckdb.DuckDBPyConnection) -> None:
    """The caller asks for as many rows as copies of fewer do not fill."""
    text = "SELECT avg(p.rare) OVER () FROM p, (VALUES (1), (2))"
    assert not mixes_few(clinic, text, 2)
    assert mixes_few(clinic, text, 3)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT sum(site) OVER () FROM p GROUP BY site",
        "SELECT q.f FROM p, LATERAL (SELECT avg(p.every) OVER () AS f FROM v) AS q",
    ],
)
def test_other_forms_are_refused(clinic: duckdb.DuckDBPyConnection, text: str) -> None:
    with pytest.raises(PolicyError, match="cannot be counted"):
        mixes_few(clinic, text, 5)


VALUE = {
    "window": "SELECT *, avg(rare) OVER () + 0 * every AS f FROM clinic.p",
    "subquery": "SELECT *, every + (SELECT avg(rare) FROM clinic.p) AS f FROM clinic.p",
    "join": "SELECT p.*, avg(v.cost) OVER () + every AS f FROM clinic.p AS p "
    "LEFT JOIN clinic.v AS v ON p.pid = v.pid",
}


@pytest.mark.parametrize("name", VALUE)
def test_one_patients_value_is_no_feature_of_all(
    clinic: duckdb.DuckDBPyConnection, database: Open, name: str
) -> None:
    ruled(
        clinic,
        "min_rows = 5, min_cell = 5",
        """GRANT TRAIN (*), JOIN (pid) ON p TO 'acme' UNDER r;
        GRANT TRAIN (*), JOIN (pid) ON v TO 'acme' UNDER r""",
    )
    with sqlfl.connect(analyst="acme", progress=False) as fed:
        fed.attach("clinic", clinic)
        fed.attach(
            "lab", database("CREATE TABLE y AS SELECT i AS pid, sin(i) AS y FROM range(60) r(i)")
        )
        train = """TRAIN OR REPLACE MODEL m USING linear_regression TARGET y FROM (
          SELECT q.f, y.y FROM ({}) AS q JOIN lab.y AS y ON q.pid = y.pid)"""
        with pytest.raises(PolicyError, match="many rows would have a sum or a mean of few values"):
            fed.sql(train.format(VALUE[name]))
        fed.sql(train.format(VALUE["window"].replace("rare", "part")))


def test_a_join_that_lasts_is_counted_as_it_was(
    clinic: duckdb.DuckDBPyConnection, database: Open
) -> None:
    ruled(
        clinic,
        "min_rows = 5, min_cell = 5, join_time = '1 hour'",
        "GRANT TRAIN (*), JOIN (pid) ON p TO 'acme' UNDER r",
    )
    with sqlfl.connect(analyst="acme", progress=False) as fed:
        fed.attach("clinic", clinic)
        fed.attach(
            "lab", database("CREATE TABLE y AS SELECT i AS pid, sin(i) AS y FROM range(60) r(i)")
        )
        fed.sql(f"CREATE JOIN j AS (SELECT q.f, y.y FROM ({VALUE['window']}) AS q "
                "JOIN lab.y AS y ON q.pid = y.pid)")  # fmt: skip
        clinic.execute("UPDATE p SET rare = pid")
        with pytest.raises(PolicyError, match="many rows would have a sum or a mean of few values"):
            fed.sql("TRAIN MODEL m USING linear_regression TARGET y FROM j")
