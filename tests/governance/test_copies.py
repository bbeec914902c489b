"""Copies of a table's rows in a SELECT, which fill no cell."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pytest

import sqlfl
from sqlfl.base.errors import PolicyError
from sqlfl.governance.copies import ONCE, Copies, copies
from tests.depth import SEED
from tests.governance.clinic import ruled
from tests.open_databases import in_memory

MADE = """CREATE TABLE p AS SELECT i AS pid, i % 10 AS site, i % 3 AS w,
    CASE WHEN i = 17 THEN 'rare' WHEN i % 2 = 0 THEN 'x' ELSE 'y' END AS diag
    FROM range(60) AS r(i);
  CREATE TABLE v AS SELECT i % 20 AS pid, i AS vid FROM range(240) AS r(i)"""
MINE = "CREATE TABLE mine AS SELECT i AS pid, sin(i) AS y FROM range(60) AS r(i)"
GRANTS = """GRANT TRAIN (*), JOIN (pid, site) ON p TO 'acme' UNDER r;
  GRANT TRAIN (*), JOIN (pid) ON v TO 'acme' UNDER r"""
SIX = "(VALUES (1), (2), (3), (4), (5), (6)) AS x(a)"
LEFT = "(SELECT a.pid, a.diag, b.vid FROM {0}p AS a LEFT JOIN {0}v AS b ON a.pid = b.pid)"


@pytest.fixture
def clinic() -> Iterator[duckdb.DuckDBPyConnection]:
    with in_memory() as con:
        con.execute(MADE)
        yield con


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("SELECT pid FROM p", 1),
        (f"SELECT q.pid FROM (SELECT p.* FROM p, {SIX}) AS q", 6),
        (f"SELECT q.pid FROM (SELECT p.* FROM p, {SIX} WHERE x.a < 3) AS q", 2),
        ("SELECT a.pid FROM p AS a JOIN p AS b ON a.site = b.site", 12),
        (f"SELECT q.diag FROM {LEFT.format('')} AS q WHERE q.pid > 19", 12),
        ("SELECT p.w + v.vid FROM p CROSS JOIN v WHERE p.pid = v.pid", 12),
        ("SELECT p.w FROM p JOIN v USING (pid)", 12),
        ("SELECT p.w FROM p JOIN (SELECT DISTINCT pid FROM v) AS x USING (pid)", 1),
        ("SELECT a.pid, avg(b.vid) FROM p AS a JOIN v AS b ON a.pid = b.pid GROUP BY a.pid", 1),
        (f"SELECT w, max(diag) FROM p, {SIX} GROUP BY w, x.a", 6),
        (f"SELECT w, x.a, max(diag) FROM p, {SIX} GROUP BY 1, 2", 6),
        ("SELECT pid FROM p UNION ALL SELECT pid FROM p", 2),
        ("SELECT (SELECT count(*) FROM v WHERE v.pid = p.pid) AS n FROM p", 1),
        ("WITH c AS (SELECT * FROM p) SELECT pid FROM c", 1),
        ("WITH c AS (SELECT p.* FROM p JOIN v USING (pid)) SELECT pid FROM c", 12),
        ("WITH c(k) AS (SELECT pid FROM v), d AS (SELECT * FROM c) "
         "SELECT p.w FROM p JOIN d ON d.k = p.pid", 12),
        ("WITH v AS (SELECT DISTINCT pid FROM v) SELECT p.w FROM p JOIN v USING (pid)", 1),
        ("SELECT max(diag) FROM p GROUP BY GROUPING SETS ((), (), (), (w))", 4),
        ("SELECT w, site, max(diag) FROM p GROUP BY CUBE (w, site)", 4),
        # once by itself, and once in each row of its site
        ("SELECT a.w, g.d FROM p AS a JOIN (SELECT site, max(diag) AS d FROM p GROUP BY site) AS g "
         "ON a.site = g.site", 7),
    ],
)  # fmt: skip
def test_copies_are_counted(clinic: duckdb.DuckDBPyConnection, text: str, most: int) -> None:
    assert copies(clinic, text).rows.most == most


def test_rows_that_so_many_of_a_table_fill(clinic: duckdb.DuckDBPyConnection) -> None:
    """Patients have 12 visits each in v, and one has 100 more."""
    clinic.execute("INSERT INTO v SELECT 3, 1000 + i FROM range(100) AS r(i)")
    found = copies(clinic, "SELECT p.w + v.vid FROM p JOIN v USING (pid)").rows
    assert [found.rows_of(least) for least in (1, 2, 3, 20, 22)] == [1, 113, 125, 329, 453]
    twice = found + found
    assert [twice.rows_of(least) for least in (1, 2, 3)] == [1, 225, 249]
    assert [(found | ONCE * 20).rows_of(least) for least in (1, 2, 3)] == [1, 113, 133]


def test_any_rows_of_a_table_are_no_more_than_that() -> None:
    rng = np.random.default_rng(SEED)
    for _ in range(200):
        counts = rng.geometric(0.2, rng.integers(1, 20))
        bound = Copies(np.sort(counts)[::-1].astype(np.int64), int(counts.max()))
        least = int(rng.integers(1, len(counts) + 1))
        fewer = rng.permutation(counts)[: least - 1]
        assert fewer.sum() < bound.rows_of(least) <= 1 + (least - 1) * bound.most


@pytest.mark.parametrize(
    "text",
    [
        "SELECT p.pid FROM p, (SELECT a.vid FROM v AS a JOIN v AS b USING (vid) "
        "WHERE a.pid = p.pid) AS x",
    ],
)
def test_what_cannot_be_counted_is_refused(clinic: duckdb.DuckDBPyConnection, text: str) -> None:
    with pytest.raises(PolicyError, match="copies of their rows cannot be counted"):
        copies(clinic, text)


UNION = " UNION ALL ".join(
    f"SELECT p.diag, {k} AS k, o.y FROM clinic.p AS p JOIN own.mine AS o ON p.pid = o.pid"
    for k in range(6)
)
OF_P = "SELECT {} FROM {} JOIN own.mine AS o ON p.pid = o.pid"


@pytest.mark.parametrize(
    ("query", "refused"),
    [
        (OF_P.format("p.diag, o.y", "clinic.p AS p"), True),
        (OF_P.format("p.diag, o.y", f"(SELECT p.* FROM clinic.p AS p, {SIX}) AS p"), True),
        (OF_P.format("p.diag, o.y", f"{LEFT.format('clinic.')} AS p"), True),
        (UNION, True),
        (UNION.replace("p.diag", "p.w"), False),
        (OF_P.format("p.w + x.a AS s, o.y", f"(SELECT p.* FROM clinic.p AS p, {SIX}) AS p").replace(
            "p.w + x.a", "p.w"), False),
    ],
)  # fmt: skip
def test_copies_of_a_row_fill_no_cell(
    clinic: duckdb.DuckDBPyConnection, query: str, refused: bool
) -> None:
    ruled(clinic, "min_cell = 3, min_rows = 5", GRANTS)
    with in_memory() as own, sqlfl.connect(analyst="acme", progress=False) as fed:
        own.execute(MINE)
        fed.attach("clinic", clinic)
        fed.attach("own", own)
        train = f"TRAIN MODEL m USING linear_regression TARGET y WITH (l2 = 1) FROM ({query})"
        if not refused:
            fed.sql(train)
            return
        with pytest.raises(PolicyError, match="min_cell = 3, of values of features: of diag"):
            fed.sql(train)


VIEWED = UNION.split(" UNION ALL ")[0]
VIEWED = f"{VIEWED} UNION ALL {VIEWED.replace('clinic.p', 'clinic.w')}"


@pytest.mark.parametrize(
    "query",
    [
        VIEWED,
        OF_P.format("p.diag, o.y", "(SELECT pid, diag FROM clinic.p UNION ALL "
                    "SELECT pid, diag FROM clinic.w) AS p"),
        VIEWED.replace("clinic.p", "clinic.u"),
    ],
)  # fmt: skip
def test_copies_of_a_row_under_two_names_fill_no_cell(
    clinic: duckdb.DuckDBPyConnection, query: str
) -> None:
    """Two rows have the value, and each is in a table and in a view of it, or in two views."""
    clinic.execute("UPDATE p SET diag = 'rare' WHERE pid = 18")
    clinic.execute("CREATE VIEW w AS FROM p; CREATE MACRO every() AS TABLE FROM p")
    clinic.execute("CREATE VIEW u AS FROM every() WHERE pid > 3")
    views = [GRANTS.split(";")[0].replace("ON p", f"ON {name}") for name in ("w", "u")]
    ruled(clinic, "min_cell = 3, min_rows = 5", "; ".join([GRANTS, *views]))
    with in_memory() as own, sqlfl.connect(analyst="acme", progress=False) as fed:
        own.execute(MINE)
        fed.attach("clinic", clinic)
        fed.attach("own", own)
        with pytest.raises(PolicyError, match="min_cell = 3, of values of features: of diag"):
            fed.sql(f"TRAIN MODEL m USING linear_regression TARGET y FROM ({query})")


def test_copies_do_not_make_rows_many(clinic: duckdb.DuckDBPyConnection) -> None:
    ruled(clinic, "min_cell = 1, min_rows = 61", GRANTS)
    with in_memory() as own, sqlfl.connect(analyst="acme", progress=False) as fed:
        own.execute(MINE)
        fed.attach("clinic", clinic)
        fed.attach("own", own)
        query = OF_P.format("p.w, o.y", f"(SELECT p.* FROM clinic.p AS p, {SIX}) AS p")
        with pytest.raises(
            PolicyError, match=r"min_rows = 61, and one row of a table is in several"
        ):
            fed.sql(f"TRAIN MODEL m USING linear_regression TARGET y FROM ({query})")


def test_copies_of_a_row_are_no_class(clinic: duckdb.DuckDBPyConnection) -> None:
    ruled(
        clinic, "min_cell = 3, min_rows = 5", f"{GRANTS}; GRANT LABEL (diag) ON p TO 'acme' UNDER r"
    )
    with in_memory() as own, sqlfl.connect(analyst="acme", progress=False) as fed:
        own.execute(MINE)
        fed.attach("clinic", clinic)
        fed.attach("own", own)
        query = UNION.replace("SELECT p.diag", "SELECT p.diag = 'rare' AS few")
        with pytest.raises(PolicyError, match="min_cell = 3, of classes of the target: too few"):
            fed.sql(f"TRAIN MODEL m USING logistic_regression TARGET few FROM ({query})")
