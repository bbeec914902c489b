"""Rows whose values follow from a row, by windows and subqueries."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import duckdb
import pytest

import sqlfl
from sqlfl.base.errors import PolicyError
from sqlfl.governance.copies import copies
from sqlfl.governance.reach import Means
from tests import depth
from tests.conftest import Open
from tests.governance.clinic import ruled
from tests.open_databases import in_memory

MADE = """CREATE TABLE p AS SELECT i AS pid, i % 4 AS site, 1.0 * i AS every,
    CASE WHEN i = 17 THEN 123.5 END AS rare, CASE WHEN i % 4 <> 1 OR i = 17 THEN i END AS part,
    CASE WHEN i % 10 = 0 THEN i END AS tenth, i = 17 AS lone, i % 2 AS two, i % 3 AS three,
    CASE WHEN i = 17 THEN 0.0 ELSE i END AS near, CASE WHEN i % 20 = 0 THEN i END AS few,
    CASE WHEN i < 3 THEN repeat('0', i) || '7' ELSE (100 + i)::VARCHAR END AS code
    FROM range(60) AS r(i);
  CREATE TABLE six AS SELECT i // 6 AS who, i % 6 AS visit,
    CASE WHEN i % 6 = 0 THEN i END AS lab, CASE WHEN i = 17 THEN 5000 ELSE 0 END AS bonus
    FROM range(60) AS r(i);
  CREATE TABLE v AS SELECT CASE WHEN i = 0 THEN 17 ELSE 1000 + i END AS pid, 7.0 + i AS cost
    FROM range(60) AS r(i)"""


@pytest.fixture
def clinic() -> Iterator[duckdb.DuckDBPyConnection]:
    with in_memory() as con:
        con.execute(MADE)
        yield con


MEANS, NONE = True, False


@pytest.mark.parametrize(
    ("text", "most", "means"),
    [
        ("SELECT every FROM p", 1, NONE),
        # means of many, by sets of columns that contain one another
        ("SELECT avg(every) OVER () FROM p", 1, MEANS),
        ("SELECT avg(every) OVER (PARTITION BY site) FROM p", 1, MEANS),
        ("SELECT avg(every) OVER w FROM p WINDOW w AS (PARTITION BY site)", 1, MEANS),
        ("SELECT sum(every) OVER (PARTITION BY site) - avg(every) OVER () FROM p", 1, MEANS),
        ("SELECT avg(every) OVER (PARTITION BY site, two), stddev(every) OVER (PARTITION BY two), "
         "sum(every) OVER () FROM p", 1, MEANS),
        ("SELECT avg(part) OVER () FROM p", 1, MEANS),
        ("SELECT avg(tenth) OVER () FROM p", 1, MEANS),  # six rows
        ("SELECT cost - avg(cost) OVER (), avg(cost) OVER (PARTITION BY pid) FROM v", 1, MEANS),
        ("SELECT avg(visit) OVER (PARTITION BY who), avg(visit) OVER (PARTITION BY visit) FROM six",
         6, MEANS),
        ("WITH a AS (SELECT * FROM p) SELECT every - (SELECT avg(every) FROM a) FROM a", 1, MEANS),
        ("SELECT avg(p.every) OVER () FROM p LEFT JOIN v ON p.pid = v.pid", 1, MEANS),
        ("SELECT avg(every) OVER () FROM p WHERE pid <> 17", 1, MEANS),
        ("WITH a AS (SELECT every AS x FROM p), b AS (SELECT avg(x) OVER () AS f FROM a) "
         "SELECT f FROM b", 1, MEANS),
        ("SELECT f, g FROM (SELECT avg(every) OVER () AS f, every AS g FROM p) AS q", 1, MEANS),
        # means of few
        ("SELECT avg(rare) OVER () FROM p", 60, NONE),
        ("SELECT 1 + every * coalesce(sum(rare) OVER (), 0) FROM p", 60, NONE),
        ("SELECT avg(part) OVER (PARTITION BY site) FROM p", 15, NONE),
        ("SELECT avg(v.cost) OVER () FROM p LEFT JOIN v ON p.pid = v.pid", 60, NONE),
        ("SELECT every FROM p UNION ALL SELECT avg(rare) OVER () FROM p", 61, NONE),
        ("SELECT sum(bonus) OVER () FROM six", 60, NONE),  # 5,000 in one row, and 0 in others
        # of columns that are computed, or not those of the table
        ("SELECT every = 17 AS z, avg(z) OVER () FROM p", 60, NONE),
        ("SELECT avg(every * 2) OVER () FROM p", 60, NONE),
        ("SELECT avg(every) FILTER (pid <> 17) OVER () FROM p", 60, NONE),
        ("SELECT avg(x) OVER () FROM (SELECT CASE WHEN pid = 17 THEN 9 END AS x FROM p)", 60, NONE),
        ("SELECT avg(every) OVER (PARTITION BY pid = 17) FROM p", 59, NONE),
        ("SELECT avg(every) OVER (PARTITION BY z) FROM (SELECT every, pid = 17 AS z FROM p)", 59,
         NONE),
        # differences of sums
        ("SELECT avg(every) OVER (PARTITION BY lone) - avg(every) OVER () FROM p", 59, MEANS),
        ("SELECT avg(every) OVER (PARTITION BY site), avg(every) OVER (PARTITION BY three) FROM p",
         15, MEANS),
        ("SELECT sum(every) OVER () - sum(near) OVER () FROM p", 60, NONE),
        ("SELECT avg(every) OVER (), avg(every) OVER (ORDER BY pid) FROM p", 60, MEANS),
        ("SELECT s - sum(every) OVER () FROM (SELECT *, sum(every) OVER () AS s FROM p) AS q "
         "WHERE pid <> 17", 59, MEANS),
        # bounded reach
        ("SELECT max(rare) OVER () FROM p", 60, NONE),
        ("SELECT max(rare) OVER (PARTITION BY site) FROM p", 15, NONE),
        ("SELECT max(rare) OVER (PARTITION BY site), min(rare) OVER (PARTITION BY site) FROM p", 15,
         NONE),
        ("SELECT max(rare) OVER (PARTITION BY site), max(rare) OVER (PARTITION BY pid) FROM p", 15,
         NONE),
        ("SELECT avg(lab) OVER (PARTITION BY who) FROM six", 6, NONE),
        ("SELECT lag(rare) OVER (ORDER BY pid) FROM p", 2, NONE),
        ("SELECT lag(rare) OVER w, lag(rare, 2) OVER w, lead(rare) OVER w FROM p "
         "WINDOW w AS (ORDER BY pid)", 4, NONE),
        ("SELECT coalesce(x, lag(x) OVER (ORDER BY pid)) FROM "
         "(SELECT pid, coalesce(rare, lag(rare) OVER (ORDER BY pid)) AS x FROM p) AS q", 4, NONE),
        ("SELECT lag(rare IGNORE NULLS) OVER (ORDER BY pid) FROM p", 60, NONE),
        ("SELECT sum(rare) OVER (ORDER BY pid ROWS 8 PRECEDING) FROM p", 9, NONE),
        ("SELECT sum(rare) OVER (ORDER BY pid ROWS BETWEEN 2 PRECEDING AND 1 PRECEDING) FROM p", 3,
         NONE),
        ("SELECT sum(rare) OVER (ORDER BY pid ROWS BETWEEN 1 FOLLOWING AND 3 FOLLOWING) FROM p", 4,
         NONE),
        ("SELECT sum(rare) OVER (ORDER BY pid RANGE BETWEEN 2 PRECEDING AND CURRENT ROW) FROM p",
         60, NONE),
        ("SELECT max(rare) OVER (PARTITION BY who) FROM p JOIN six ON six.who = p.pid", 36, NONE),
        ("SELECT fill(rare) OVER (ORDER BY pid ROWS 1 PRECEDING) FROM p", 60, NONE),
        ("SELECT max(rare) OVER (ORDER BY pid ROWS BETWEEN '00'::BLOB::BIT::BIGINT PRECEDING "
         "AND CURRENT ROW) FROM p", 60, NONE),
        # places
        ("SELECT rank() OVER (ORDER BY every), count(*) OVER (PARTITION BY site) FROM p", 1, MEANS),
        ("SELECT ntile(4) OVER (PARTITION BY site ORDER BY every) FROM p", 1, MEANS),
        ("SELECT count(*) OVER (PARTITION BY pid), avg(cost) OVER () FROM v", 1, MEANS),
        ("SELECT rank() OVER (ORDER BY every), rank() OVER (ORDER BY two, pid) FROM p", 1, MEANS),
        ("SELECT count(*) OVER (PARTITION BY two), count(*) OVER (PARTITION BY three) FROM p", 1,
         MEANS),
        # their differences are of few
        ("SELECT rank() OVER (ORDER BY every) - rank() OVER (PARTITION BY lone ORDER BY every) "
         "FROM p", 118, NONE),
        ("SELECT count(*) OVER (PARTITION BY two) - count(*) OVER (PARTITION BY two, lone) FROM p",
         59, NONE),
        ("SELECT sum(every) OVER (PARTITION BY two) / avg(every) OVER (PARTITION BY two) - "
         "count(*) OVER (PARTITION BY two, lone) FROM p", 30, MEANS),
        ("SELECT row_number() OVER (ORDER BY every) - row_number() OVER (ORDER BY near) FROM p",
         60, NONE),
        ("SELECT row_number() OVER (ORDER BY every) + row_number() OVER (ORDER BY near DESC) "
         "FROM p", 60, NONE),
        ("SELECT count(*) OVER () - count(*) OVER (PARTITION BY two) - count(*) OVER (PARTITION BY "
         "three) + count(*) OVER (PARTITION BY two, three) FROM p", 117, NONE),
        ("SELECT a.r - b.r FROM (SELECT pid, rank() OVER (ORDER BY every) AS r FROM p) AS a JOIN "
         "(SELECT pid, rank() OVER (PARTITION BY lone ORDER BY every) AS r FROM p) AS b "
         "ON a.pid = b.pid", 60, MEANS),
        ("SELECT rank() OVER (ORDER BY few) - dense_rank() OVER (ORDER BY few) FROM p", 60, MEANS),
        ("SELECT rank() OVER (ORDER BY every = 17) FROM p", 60, NONE),
        ("SELECT rank() OVER (ORDER BY z) FROM (SELECT every = 17 AS z FROM p) AS q", 60, NONE),
        ("SELECT every = 17 AS z, count(*) OVER (PARTITION BY z) FROM p", None, NONE),
        ("SELECT count(rare) OVER () FROM p", 60, NONE),
        # subqueries
        ("SELECT (SELECT max(v.cost) FROM v WHERE v.pid = p.pid) FROM p", 1, NONE),
        ("SELECT (SELECT max(x.lab) FROM six AS x WHERE x.who = p.site) FROM p", 15, NONE),
        ("SELECT (SELECT max(x.lab) FROM six AS x WHERE x.visit > 0 AND p.site = x.who) FROM p", 15,
         NONE),
        ("SELECT (SELECT max(q.rare) FROM p AS q WHERE q.site = p.site) FROM p", 16, NONE),
        ("SELECT max((SELECT max(v.cost) FROM v WHERE v.pid = p.pid)) OVER (PARTITION BY site) "
         "FROM p", 15, NONE),
        ("SELECT EXISTS (SELECT 1 FROM v WHERE v.pid = p.pid) FROM p", 1, NONE),
        ("SELECT NOT EXISTS (SELECT 1 FROM six WHERE six.who = p.site) FROM p", 15, NONE),
        ("SELECT p.pid IN (SELECT v.pid FROM v) FROM p", 1, NONE),
        ("SELECT pid IN (SELECT site FROM p) FROM p", 2, NONE),
        ("SELECT p.rare IN (SELECT q.rare FROM p AS q) FROM p", 61, NONE),  # NULL is in no list
        ("SELECT p.rare IN (SELECT v.pid FROM v) FROM p", 1, NONE),
        # NULL is in no list, and in an empty one it is not
        ("SELECT p.rare IN (SELECT v.pid FROM v WHERE v.cost = 7) FROM p", 59, NONE),
        ("SELECT (SELECT every) FROM p", 1, NONE),
        ("SELECT p.pid - (SELECT avg(q.every) FROM p AS q) FROM p", 1, MEANS),
        ("SELECT avg(p.every) OVER () - (SELECT avg(q.every) FROM p AS q) FROM p", 1, MEANS),
        ("SELECT (SELECT sum(q.every) FROM p AS q) - sum(every) OVER (PARTITION BY site) FROM p",
         1, MEANS),
        ("SELECT (SELECT avg(every) FROM p) - (SELECT avg(q.pid) FROM p AS q) FROM p", 1, MEANS),
        ("SELECT (SELECT avg(cost) FROM v) FROM p WHERE p.pid > 3", 1, MEANS),
        ("SELECT (SELECT max(every) OVER ()) FROM p", 60, NONE),
        ("SELECT 1 FROM p WHERE p.pid > (SELECT avg(q.pid) FROM p AS q)", 1, NONE),
        # texts that are one key for the subquery
        ("SELECT (SELECT max(six.lab) FROM six WHERE six.who = p.code) FROM p", 3, NONE),
    ],
)  # fmt: skip
def test_values_of_a_row_reach_so_many(
    clinic: duckdb.DuckDBPyConnection, text: str, most: int | None, means: bool
) -> None:
    noted = Means()
    if most is None:
        with pytest.raises(PolicyError, match="cannot be counted"):
            copies(clinic, text, 5, None, noted)
        return
    assert copies(clinic, text, 5, None, noted).values.most == most
    assert bool(noted.of_table) is means
    assert copies(clinic, text).values.most == copies(clinic, text).rows.most


def test_values_are_those_of_the_first_columns(clinic: duckdb.DuckDBPyConnection) -> None:
    text = "SELECT every, max(rare) OVER () AS kept FROM p"
    assert copies(clinic, text, 5, 1).values.most == 1
    assert copies(clinic, text, 5, 2).values.most == 60
    assert copies(clinic, f"SELECT * FROM ({text}) AS q", 5, 1).values.most == 60


def test_copies_of_one_value_are_few(clinic: duckdb.DuckDBPyConnection) -> None:
    text = "SELECT avg(q.few) OVER () FROM p AS q JOIN (SELECT site FROM p) AS s USING (site)"
    assert copies(clinic, text, 4).values.most > 4
    joined = copies(clinic, text.replace("q.few", "q.every"), 4)
    assert joined.values.most == joined.rows.most


def test_means_of_a_run_are_of_the_same_rows(clinic: duckdb.DuckDBPyConnection) -> None:
    noted = Means()
    first = "SELECT avg(every) OVER (PARTITION BY site) FROM p"
    copies(clinic, first, 5, None, noted)
    copies(clinic, f"SELECT 1 + f FROM ({first.replace(') FROM', ') AS f FROM')}) AS q", 5, None,
           noted)  # fmt: skip
    for other in (first.replace("site", "three"), f"{first} WHERE pid <> 17"):
        with pytest.raises(PolicyError, match="their differences may be of few rows"):
            copies(clinic, other, 5, None, noted)
    copies(clinic, "SELECT avg(cost) OVER () FROM v", 5, None, noted)


@pytest.mark.parametrize(("one", "other"), [("p", "seen"), ("seen", "p"), ("seen", "again")])
def test_means_of_a_table_and_a_view_of_it_tell_no_single_row(
    clinic: duckdb.DuckDBPyConnection, one: str, other: str
) -> None:
    """The view leaves out one row, whose value would be left."""
    clinic.execute("CREATE VIEW seen AS FROM p WHERE pid <> 17; CREATE VIEW again AS FROM p")
    sums = [f"(SELECT sum(q.every) FROM {name} AS q)" for name in (one, other)]
    rows = clinic.execute(f"SELECT abs({sums[0]} - {sums[1]})").fetchall()
    assert rows == [(17,)]
    with pytest.raises(PolicyError, match="their differences may be of few rows"):
        copies(clinic, f"SELECT {sums[0]} - {sums[1]} FROM p", 5)
    copies(clinic, f"SELECT {sums[0]} - (SELECT avg(v.cost) FROM v) FROM p", 5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT (SELECT avg(q.rare) FROM p AS q) FROM p", "in which few rows have a value"),
        ("SELECT (SELECT sum(q.every) FROM p AS q) - sum(every) OVER () FROM p WHERE pid <> 17",
         "their differences may be of few rows"),
        ("SELECT (SELECT sum(q.every) FROM p AS q) - (SELECT sum(r.near) FROM p AS r) FROM p",
         "their differences may be of few rows"),
        ("SELECT a.s - b.s FROM (SELECT pid, sum(every) OVER () AS s FROM p) AS a JOIN "
         "(SELECT pid, sum(near) OVER () AS s FROM p) AS b ON a.pid = b.pid",
         "their differences may be of few rows"),
        ("SELECT a.s - b.s FROM (SELECT pid, sum(every) OVER () AS s FROM p) AS a JOIN "
         "(SELECT pid, sum(every) OVER () AS s FROM p AS q(pid, site, near, rare, part, tenth, "
         "lone, two, three, every)) AS b ON a.pid = b.pid", "their differences may be of few rows"),
        ("SELECT (SELECT avg(n) FROM (SELECT max(rare) AS n FROM p GROUP BY site) AS q) FROM p",
         "cannot be counted"),
        ("SELECT (SELECT sum(every) FROM p), q.n FROM (SELECT pid, "
         "count(*) OVER (PARTITION BY lone) AS n FROM p) AS q",
         "their differences may be of few rows"),
        ("SELECT (SELECT avg(r.x) FROM r) FROM p, (SELECT 1)", "cannot be counted"),
    ],
)  # fmt: skip
def test_a_mean_of_a_table_is_of_many_and_alone(
    clinic: duckdb.DuckDBPyConnection, text: str, said: str
) -> None:
    with pytest.raises(PolicyError, match=said):
        copies(clinic, text, 5)


def test_four_sums_tell_no_single_row(clinic: duckdb.DuckDBPyConnection) -> None:
    """Each two of these differ in many rows, and all together in the one with neither a nor b."""
    clinic.execute(
        """CREATE TABLE t AS SELECT i > 20 AS a, i < 40 AND i <> 5 AS b, 1.0 * i AS x
        FROM range(60) AS r(i)"""
    )
    every, of_a, of_b, both = (
        f"sum(x) OVER ({by})"
        for by in ("", "PARTITION BY a", "PARTITION BY b", "PARTITION BY a, b")
    )
    text = f"SELECT {every} - {of_a} - {of_b} + {both} AS f FROM t"
    rows = clinic.execute(f"SELECT count(*) FROM ({text}) WHERE f = 5").fetchall()
    assert rows == [(19,)]  # of the others
    assert copies(clinic, text, 5).values.most > 60


@pytest.mark.parametrize(
    "text",
    [
        "SELECT sum(site) OVER () FROM p GROUP BY site",
        "SELECT q.f FROM p, LATERAL (SELECT avg(p.every) OVER () AS f FROM v) AS q",
        "SELECT x.f FROM p, LATERAL (VALUES ((SELECT max(v.cost) FROM v WHERE v.pid = p.pid))) "
        "AS x(f)",
        "SELECT (SELECT max(v.cost) FROM v) FROM p",
        "SELECT (SELECT max(v.cost) FROM v WHERE v.pid = q.pid) FROM p",
        # s.pid is a field of v's own rows
        "SELECT (SELECT max(v.cost) FROM (SELECT *, {'pid': pid} AS s FROM v) AS v "
        "WHERE v.pid = s.pid) FROM p AS s",
    ],
)
def test_other_forms_are_refused(clinic: duckdb.DuckDBPyConnection, text: str) -> None:
    with pytest.raises(PolicyError, match="cannot be counted"):
        copies(clinic, text, 5)


# -- random statements -----------------------------------------------------------------------------

WORLD = """CREATE TABLE a AS SELECT i AS id, i % 7 AS k, i % 4 AS g, (i * 37 % 41)::INTEGER AS x
    FROM range(40) AS r(i);
  CREATE TABLE b AS SELECT i AS id, i * 3 % 7 AS k, i * 3 % 40 AS aid, (i * 17 % 29)::INTEGER AS x
    FROM range(60) AS r(i)"""


def some_window(draw: random.Random) -> str:
    by = draw.choice(("", "PARTITION BY {t}.k", "PARTITION BY {t}.g", "PARTITION BY {t}.id // 3"))
    frame = draw.choice(
        ("", "ROWS 2 PRECEDING", "ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING",
         "ROWS BETWEEN 1 FOLLOWING AND 2 FOLLOWING", "ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
         "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW EXCLUDE GROUP", "ROWS {t}.k PRECEDING")
    )  # fmt: skip
    call = draw.choice(
        ("max({t}.x)", "sum({t}.x + 1)", "count(nullif({t}.x, 5))", "lag({t}.x)", "lead({t}.x, 2)",
         "first_value({t}.x)", "lag({t}.x IGNORE NULLS)", "sum({t}.x) FILTER ({t}.x > 9)",
         "max((SELECT max(b.x) FROM b WHERE b.aid = {t}.id))")
    )  # fmt: skip
    return f"{call} OVER ({by} ORDER BY {{t}}.id {frame})"


def some_value(draw: random.Random, deep: int = 0) -> str:
    """An expression over a source {t} with columns id, k, g and x."""
    value = draw.choice(
        (some_window(draw), some_window(draw), "{t}.x",
         "(SELECT max(b.x) FROM b WHERE b.aid = {t}.id)",
         "(SELECT sum(b.x) FROM b WHERE b.k = {t}.k AND b.x > {t}.g)",
         "(SELECT b.x FROM b WHERE {t}.g = b.k ORDER BY b.x LIMIT 1)",
         "EXISTS (SELECT 1 FROM b WHERE b.k = {t}.k AND b.x > 20)::INTEGER",
         "({t}.k IN (SELECT b.k FROM b WHERE b.x > 20))::INTEGER",
         "(SELECT max(c.x) FROM a AS c WHERE c.g = {t}.g)",
         "(SELECT max(c.x) FROM (SELECT a.k, max(b.x) AS x FROM a JOIN b ON b.k = a.g "
         "GROUP BY a.k) AS c WHERE c.k = {t}.k)",
         "(SELECT {t}.x)")
    )  # fmt: skip
    return (
        f"coalesce({value}, {some_value(draw, 1)})" if not deep and draw.random() < 0.3 else value
    )


def some_select(draw: random.Random, deep: int = 0) -> str:
    """A SELECT with columns id, k, g and x."""
    form = draw.choice(("table", "table", "nested", "join", "with", "union", "groups", "sets"))
    value = some_value(draw).format(t="t")
    if deep > 2 or form == "table":
        return f"SELECT t.id, t.k, t.g, {value} AS x FROM a AS t"
    inner = some_select(draw, deep + 1)
    if form == "nested":
        where = draw.choice(("", " WHERE t.id % 3 > 0"))
        return f"SELECT t.id, t.k, t.g, {value} AS x FROM ({inner}) AS t{where}"
    if form == "join":
        on = draw.choice(("u.k = t.k", "u.aid = t.id", "u.k = t.g AND u.id > t.id"))
        kind = draw.choice(("JOIN", "LEFT JOIN"))
        mixed = draw.choice((value, "u.x", "coalesce(u.x, 0) + t.x"))
        return f"SELECT t.id, t.k, t.g, {mixed} AS x FROM ({inner}) AS t {kind} b AS u ON {on}"
    if form == "with":
        other = draw.choice(("a", "w"))
        return (
            f"WITH w AS ({inner}), a AS (SELECT * FROM w) SELECT t.id, t.k, t.g, {value} AS x "
            f"FROM a AS t JOIN {other} AS u ON u.id = t.id"
        )
    if form == "union":
        return f"{inner} UNION ALL SELECT t.id, t.k, t.g, {value} AS x FROM a AS t"
    if form == "groups":
        return (
            f"SELECT t.id, t.k, t.g, u.x FROM a AS t JOIN (SELECT k, max(x) AS x FROM ({inner}) "
            "GROUP BY k) AS u ON u.k = t.k"
        )
    return (
        f"SELECT max(id) AS id, max(k) AS k, max(g) AS g, max(x) AS x FROM ({inner}) "
        "GROUP BY GROUPING SETS ((id), (k), ())"
    )


def test_no_value_reaches_more_rows_than_are_counted() -> None:
    """The rows that change with one row's value are no more than are said."""
    number = 4_000 if depth.THOROUGH else 12 if depth.QUICK else 60
    checked, several = 0, 0
    with in_memory() as here, in_memory() as there:
        here.execute(WORLD)
        there.execute(WORLD)
        for case in range(number):
            draw = random.Random(f"{depth.SEED} reach {case}")
            text = some_select(draw)
            try:
                before = Counter(here.execute(text).fetchall())
                bound = copies(here, text, 3).values.most
            except (PolicyError, duckdb.Error):
                continue
            table, row = draw.choice(("a", "b")), draw.randrange(40)
            value = draw.choice((1000, -1000, None))
            there.execute("BEGIN")
            there.execute(f"UPDATE {table} SET x = ? WHERE id = ?", [value, row])
            after = Counter(there.execute(text).fetchall())
            there.execute("ROLLBACK")
            changed = sum((before - after).values())
            assert changed <= bound, (text, table, row, value)
            checked += 1
            several += changed > 1
    print(f"reach: {number} statements, {checked} counted, {several} changes of several rows")
    assert checked > number / 4
    assert several > 0


VALUE = {
    "window": "SELECT *, avg(rare) OVER () + 0 * every AS f FROM clinic.p",
    "subquery": "SELECT *, every + (SELECT max(q.rare) FROM clinic.p AS q WHERE q.site = p.site) "
    "AS f FROM clinic.p AS p",
    "place": "SELECT *, rank() OVER (ORDER BY every) - rank() OVER (PARTITION BY lone "
    "ORDER BY every) + every AS f FROM clinic.p",
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
        """GRANT TRAIN (*), JOIN (pid, site) ON p TO 'acme' UNDER r;
        GRANT TRAIN (*), JOIN (pid) ON v TO 'acme' UNDER r""",
    )
    with sqlfl.connect(analyst="acme", progress=False) as fed:
        fed.attach("clinic", clinic)
        fed.attach(
            "lab", database("CREATE TABLE y AS SELECT i AS pid, sin(i) AS y FROM range(60) r(i)")
        )
        train = """TRAIN OR REPLACE MODEL m USING linear_regression TARGET y FROM (
          SELECT q.f, y.y FROM ({}) AS q JOIN lab.y AS y ON q.pid = y.pid)"""
        with pytest.raises(PolicyError, match="many rows may have a value of few"):
            fed.sql(train.format(VALUE[name]))
        fed.sql(train.format(VALUE["window"].replace("rare", "part")))


def test_a_join_that_lasts_is_counted_as_it_was(
    clinic: duckdb.DuckDBPyConnection, database: Open
) -> None:
    ruled(
        clinic,
        "min_rows = 5, min_cell = 5, join_time = '1 hour'",
        "GRANT TRAIN (*), JOIN (pid, site) ON p TO 'acme' UNDER r",
    )
    with sqlfl.connect(analyst="acme", progress=False) as fed:
        fed.attach("clinic", clinic)
        fed.attach(
            "lab", database("CREATE TABLE y AS SELECT i AS pid, sin(i) AS y FROM range(60) r(i)")
        )
        fed.sql(f"CREATE JOIN j AS (SELECT q.f, y.y FROM ({VALUE['window']}) AS q "
                "JOIN lab.y AS y ON q.pid = y.pid)")  # fmt: skip
        clinic.execute("UPDATE p SET rare = pid")
        with pytest.raises(PolicyError, match="many rows may have a value of few"):
            fed.sql("TRAIN MODEL m USING linear_regression TARGET y FROM j")
