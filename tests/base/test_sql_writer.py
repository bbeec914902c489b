"""What is written without sqlglot is what sqlglot would write."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlglot import exp, parse_one
from sqlglot.dialects.dialect import Dialect, DialectType

from sqlfl.base.sql_writer import SqlWriter
from sqlfl.planner.grammar.writing import Dialect as Planner
from sqlfl.udfs import sql
from sqlfl.udfs.sql import PlainFunctions

USUAL = (
    "SELECT a, t.b AS \"odd \"\" name\", 'it''s', 1.5, NULL, * FROM t",
    "SELECT DISTINCT f(a, g(b)) FROM s.t AS u CROSS JOIN v LEFT JOIN w ON a = b WHERE b IS NULL",
    "SELECT a FROM (SELECT b FROM t GROUP BY b, c HAVING sum(b) > 1 ORDER BY b DESC, c) AS u",
    "SELECT CASE WHEN a < $low THEN $low ELSE a END, CAST(a AS DOUBLE), CAST(b AS VARCHAR) FROM t",
    "SELECT row_number() OVER (PARTITION BY a, b ORDER BY c), count(*) OVER () FROM t, u",
    "SELECT (a + b) * c - d - e / f || g FROM t WHERE NOT (a = 1 AND b >= 2 OR c <= d) AND e",
    "SELECT a IS DISTINCT FROM b, a IS NOT DISTINCT FROM c FROM t AS u(a, b)",
    "SELECT a FROM t UNION ALL SELECT b FROM u UNION ALL SELECT c FROM v",
)
ODD = (
    "SELECT a FROM (VALUES (1, 2)) AS t(a, b)",
    "SELECT a FROM t ORDER BY a NULLS FIRST, b DESC NULLS LAST LIMIT 3",
    "SELECT DISTINCT ON (a) b FROM t",
    "SELECT a FROM t GROUP BY ALL",
    "SELECT sum(a) OVER w FROM t WINDOW w AS (ORDER BY a)",
    "SELECT sum(a ORDER BY b) FILTER (WHERE a > 1) FROM t TABLESAMPLE 10%",
    "SELECT * EXCLUDE (a) FROM t LEFT JOIN u USING (k)",
    "WITH t AS (SELECT 1 AS a) SELECT a FROM t WHERE a IN (SELECT b FROM u)",
    "SELECT a /* why */ FROM t UNION ALL BY NAME SELECT b FROM u UNION SELECT c FROM v",
    "SELECT a[1], {'k': b}, CAST(c AS DECIMAL(9, 2)[]), a IS NOT NULL, b <> c FROM t",
    "SELECT INTERVAL 1 DAY, -a, NOT b, (SELECT 1), EXISTS (SELECT 1), x -> x + 1 FROM t",
)


def for_words(tree: exp.Expr) -> str:
    """sqlglot is asked for names without quotes and for types, once for each."""
    assert isinstance(tree, exp.Identifier | exp.DataType), f"left to sqlglot: {tree!r}"
    return tree.sql(dialect="duckdb")


def sqlglot_of(dialect: DialectType) -> Callable[[exp.Expr], str]:
    return lambda tree: tree.sql(dialect=dialect)


@pytest.mark.parametrize("text", USUAL)
def test_usual_trees_are_written_as_sqlglot_writes_them(text: str) -> None:
    tree = sql.expression(text)
    assert SqlWriter(for_words)(tree) == DUCKDB(tree)


@pytest.mark.parametrize("dialect", [PlainFunctions, Planner])
@pytest.mark.parametrize("text", USUAL + ODD)
def test_any_tree_is_written_as_sqlglot_writes_it(text: str, dialect: type[Dialect]) -> None:
    other = sqlglot_of(dialect)
    tree = parse_one(text, dialect=dialect)
    before = tree.copy()
    assert SqlWriter(other)(tree) == other(before)
    assert tree == before
    for part in tree.walk():
        if isinstance(part, exp.Column | exp.Select | exp.Subquery | exp.Anonymous):
            assert SqlWriter(other)(part) == other(part)


def test_names_are_quoted_where_the_dialect_needs_it() -> None:
    writer = SqlWriter(DUCKDB)
    for name, quoted in (("plain", False), ("Plain", False), ("1st", False), ('a "b"', True)):
        for _ in range(2):
            column = exp.column(name, quoted=quoted)
            assert writer(column) == DUCKDB(column)


def test_long_chains_of_one_operator_are_written() -> None:
    tree = parse_one(" OR ".join(f"a = {n}" for n in range(2000)), dialect=PlainFunctions)
    assert SqlWriter(for_words)(tree).count(" OR ") == 1999


DUCKDB = sqlglot_of("duckdb")
