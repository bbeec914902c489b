"""Which queries are the same, and of which each row of a table is one row at most."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from sqlfl.governance.canonical import canonical, nobodys, nodes, stable
from sqlfl.governance.tree import PARSE
from sqlfl.udfs import sql
from tests.open_databases import in_memory

AGGREGATES = frozenset({"max", "count_star"})


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with in_memory() as found:
        yield found


def tree(con: duckdb.DuckDBPyConnection, text: str) -> dict[str, Any]:
    ((found,),) = sql.fetch(con, PARSE, {"text": text})
    statement: dict[str, Any] = json.loads(found)["statements"][0]
    return statement


STABLE = [
    "SELECT a FROM t", "SELECT a + 1 AS k, lower(c) AS c FROM t AS q WHERE b > 0",
    "SELECT * FROM t", "SELECT q.k FROM t AS q(k)",
]  # fmt: skip
UNSTABLE = [
    "SELECT a FROM t ORDER BY a", "SELECT a FROM t LIMIT 3", "SELECT DISTINCT a FROM t",
    "SELECT a FROM t GROUP BY a", "SELECT a FROM t GROUP BY ()", "SELECT a FROM t HAVING a > 0",
    "SELECT a FROM t QUALIFY a > 0", "SELECT a FROM t USING SAMPLE 3",
    "WITH q AS (SELECT 1) SELECT a FROM t", "SELECT a FROM t WHERE a IN (SELECT d FROM u)",
    "SELECT (SELECT d FROM u) AS k FROM t", "SELECT a FROM t WHERE EXISTS (FROM u)",
    "SELECT rank() OVER () AS k FROM t", "SELECT max(a) AS k FROM t", "SELECT MAX(a) AS k FROM t",
    "SELECT unnest([a, b]) AS k FROM t", "SELECT UNNEST([a, b]) AS k FROM t",
    "SELECT 1 + max(a) AS k FROM t", "SELECT a FROM t, u", "SELECT a FROM t JOIN u USING (id)",
    "SELECT a FROM (SELECT a FROM t)", "SELECT a FROM t UNION ALL SELECT d FROM u",
    "SELECT 1 AS k", "SELECT k FROM (VALUES (1)) AS v(k)", "SELECT count(*) AS k FROM t",
]  # fmt: skip


@pytest.mark.parametrize("text", [*STABLE, *UNSTABLE])
def test_each_row_of_a_table_is_one_row_at_most(con: duckdb.DuckDBPyConnection, text: str) -> None:
    assert stable(tree(con, text), AGGREGATES) == (text in STABLE)
    assert not nobodys(tree(con, text), AGGREGATES)


NOBODYS = "SELECT t.a, 1 AS k FROM (SELECT 1 AS o) AS q LEFT JOIN t ON FALSE"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LEFT JOIN t ON FALSE", "LEFT JOIN t ON TRUE"), ("LEFT JOIN t ON FALSE", ", t"),
        ("LEFT JOIN t ON FALSE", "LEFT JOIN t ON 1 = 0"), ("ON FALSE", "ON NULL"),
        ("ON FALSE", "USING (o)"), ("ON FALSE", "ON 'false'"),
        ("LEFT", "INNER"), ("LEFT", "RIGHT"), ("LEFT", "FULL"),
        ("FALSE", "FALSE LIMIT 1"), ("FALSE", "FALSE GROUP BY t.a"), ("t.a", "max(t.a)"),
        ("(SELECT 1 AS o) AS q", "u AS q"), ("JOIN t", "JOIN (SELECT a FROM t) AS t"),
        ("SELECT 1 AS o", "SELECT 1 AS o FROM u"), ("SELECT 1 AS o", "SELECT max(1) AS o"),
        ("SELECT 1 AS o", "SELECT unnest([1, 2]) AS o"),
        ("SELECT 1 AS o", "SELECT 1 AS o UNION ALL SELECT 2"),
        ("(SELECT 1 AS o)", "(SELECT 1 AS o LIMIT 0)"),
    ],
)  # fmt: skip
def test_the_row_that_is_nobodys(con: duckdb.DuckDBPyConnection, old: str, new: str) -> None:
    assert nobodys(tree(con, NOBODYS), AGGREGATES)
    assert not stable(tree(con, NOBODYS), AGGREGATES)
    text = NOBODYS.replace(old, new, 1)
    assert text != NOBODYS
    assert not nobodys(tree(con, text), AGGREGATES)


def test_the_row_that_is_nobodys_may_have_a_condition(con: duckdb.DuckDBPyConnection) -> None:
    """It is of no table, whether the condition holds for it or not."""
    assert nobodys(tree(con, f"{NOBODYS} WHERE t.a IS NULL"), AGGREGATES)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("SELECT a FROM t", "select  a\nFROM t -- of t", True),
        ("SELECT q.a, r.b FROM t AS q, u AS r", "SELECT x.a, y.b FROM t AS x, u AS y", True),
        ("SELECT q.a FROM t AS q", "SELECT Q.a FROM t AS Q", True),
        ("SELECT q.a, r.b FROM t AS q, u AS r", "SELECT r.a, q.b FROM t AS q, u AS r", False),
        ("SELECT q.a FROM t AS q", "SELECT q.b FROM t AS q", False),
        ("SELECT q.a FROM t AS q", "SELECT q.a FROM u AS q", False),
        ("SELECT q.a AS k FROM t AS q", "SELECT q.a AS l FROM t AS q", False),
        ("SELECT a FROM t WHERE b > 1", "SELECT a FROM t WHERE b > 2", False),
        (
            "SELECT list_transform([q.a], lambda x: x + q.b) AS f FROM t AS q",
            "SELECT list_transform([x.a], lambda x: x + x.b) AS f FROM t AS x",
            False,
        ),
        ("SELECT q.* FROM t AS q, u AS r", "SELECT q.* FROM t AS r, u AS q", False),
        (
            "SELECT q.a FROM t AS q, u AS r WHERE EXISTS (SELECT q.a FROM t AS r)",
            "SELECT q.a FROM t AS q, u AS r WHERE EXISTS (SELECT q.a FROM t AS q)",
            False,
        ),
        ("SELECT q.a, x FROM t AS q", "SELECT r.a, x FROM t AS r", True),
        ("SELECT t.a FROM t, u", "SELECT u.a FROM t, u", False),
        ("SELECT t.a FROM t", "SELECT a.a FROM t", False),
        ("SELECT q.a FROM t AS q, u, v", "SELECT r.a FROM t AS r, u, v", True),
        ("SELECT q.a AS q FROM t AS q", "SELECT r.a AS q FROM t AS r", True),
        # a column of the name of a table is no table
        ("SELECT q FROM t AS q", "SELECT r FROM t AS r", False),
        # two of one name, as no query may have them
        ("SELECT q.a FROM t AS q, u AS q", "SELECT r.a FROM t AS q, u AS r", False),
    ],
)
def test_queries_that_are_the_same(
    con: duckdb.DuckDBPyConnection, first: str, second: str, same: bool
) -> None:
    assert (canonical(tree(con, first)) == canonical(tree(con, second))) == same


def test_all_objects_of_a_tree() -> None:
    inner: dict[str, Any] = {"c": 1}
    outer = {"a": [[inner], 2], "b": {"d": inner}}
    assert list(nodes(outer)) == [outer, inner, {"d": inner}, inner]
    assert list(nodes([1, "x", None])) == []
