"""The text of a query: written without a copy, which leaves the tree as it was."""

from __future__ import annotations

import pytest
from sqlglot import exp, parse_one

from sqlfl.udfs import sql

QUERIES = (
    "SELECT 1",
    'SELECT coalesce(sum(CAST("x" * "cnt" AS DOUBLE)), 0) FROM temp.main.t WHERE NOT x IS NULL',
    "SELECT *, row_number() OVER (PARTITION BY f ORDER BY tag, h) - 1 AS pos FROM (FROM t) AS s",
    "SELECT CASE WHEN x < $low THEN $low ELSE x END, x // 2, x / 2 FROM t LEFT JOIN u USING (k)",
    "SELECT f, count(*) FROM t GROUP BY f HAVING count(*) > 1 ORDER BY f LIMIT 3",
    "SELECT 1 UNION ALL SELECT TRY_CAST(x AS INTEGER) FROM t SEMI JOIN u ON t.k = u.k",
    "SELECT COLUMNS(name -> name = current_schema()) FROM (SELECT 1 AS main) AS given",
    "SELECT list_transform([1, 2], x -> x + 1), {'a': 1}, m['k'], unnest(l) FROM t",
    "CREATE OR REPLACE TEMPORARY MACRO temp.main.f(a) AS unhex(sha256(a))[1:16]",
    "CREATE TEMPORARY TABLE temp.main.t AS WITH c AS (SELECT 1 AS x) SELECT x FROM c",
    "INSERT INTO c.sqlfl.blocks (run) SELECT $run",
    "DELETE FROM c.sqlfl.blocks WHERE lower(client) = lower($client)",
    "DROP TABLE IF EXISTS temp.main.t",
)


@pytest.mark.parametrize("text", QUERIES)
def test_a_query_is_as_it_was_once_it_is_written(text: str) -> None:
    query = parse_one(text, dialect="duckdb")
    before = query.copy()
    written = sql.to_sql(query)
    assert written == before.sql(dialect="duckdb")
    assert repr(query) == repr(before)
    assert sql.to_sql(query) == written


def test_a_part_may_stand_in_two_queries() -> None:
    """Whatever is written first."""
    part = sql.clipped(sql.column("x"), sql.number(0), sql.parameter("high"))
    first, second = (exp.select(sql.named(part, name)) for name in ("a", "b"))
    texts = [sql.to_sql(first), sql.to_sql(second), sql.to_sql(first), sql.to_sql(second)]
    assert texts[:2] == texts[2:]
    assert texts[0].replace('"a"', '"b"') == texts[1]
