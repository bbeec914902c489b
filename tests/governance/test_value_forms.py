"""Forms of windows and subqueries in values."""

from __future__ import annotations

import pytest

from sqlfl.governance.select_trees import node_of
from sqlfl.governance.value_forms import further_rows, is_bounded, is_linked
from tests.open_databases import in_memory


@pytest.mark.parametrize(
    ("text", "linked"),
    [
        ("(SELECT max(v.x) FROM v WHERE v.k = p.k)", True),
        ("(SELECT max(v.x) FROM v WHERE p.k = v.k AND v.x > 5)", True),
        ("(SELECT v.x FROM v WHERE v.k = p.k ORDER BY v.x LIMIT 1)", True),
        ("(SELECT max(v.x) FROM (SELECT * FROM v) AS v WHERE v.k = p.k)", True),
        ("EXISTS (SELECT 1 FROM v AS w WHERE w.k = p.k)", True),
        ("NOT EXISTS (SELECT 1 FROM v WHERE v.k = p.k)", True),
        ("p.k IN (SELECT k FROM v)", True),
        ("k IN (SELECT v.k FROM v WHERE v.x > 5)", True),
        ("(SELECT p.x)", True),
        ("(SELECT avg(v.x) FROM v)", True),
        ("(SELECT avg(v.x) FROM v LIMIT 1)", False),
        ("(SELECT avg(v.x) FROM v WHERE v.x > 5)", False),
        ("(SELECT avg(v.x) FILTER (v.x > 5) FROM v)", False),
        ("(SELECT avg(DISTINCT v.x) FROM v)", False),
        ("(SELECT avg(v.x + 1) FROM v)", False),
        ("(SELECT avg(v.x) FROM v GROUP BY v.k)", False),
        ("(SELECT avg(v.x) FROM (SELECT * FROM v) AS v)", True),
        ("(SELECT avg(v.x) + 1 FROM v)", False),
        ("(SELECT max(v.x) FROM v)", False),
        ("EXISTS (SELECT 1 FROM v)", False),
        ("(SELECT max(v.x) FROM v WHERE v.k = p.k OR v.x > 5)", False),
        ("(SELECT max(v.x) FROM v WHERE NOT v.k = p.k)", False),
        ("(SELECT max(v.x) FROM v WHERE v.k = p.k + 1)", False),
        ("(SELECT max(v.x) FROM v WHERE v.k = k)", False),
        ("(SELECT max(v.x) FROM v WHERE v.k = v.x)", False),
        ("(SELECT max(v.x) FROM v WHERE v.k > p.k)", False),
        ("(SELECT max(v.x) FROM v JOIN w USING (k) WHERE v.k = p.k)", False),
        ("(SELECT max(v.x) OVER () FROM v WHERE v.k = p.k)", False),
        ("(SELECT (SELECT max(w.x) FROM w WHERE w.k = v.k) FROM v WHERE v.k = p.k)", False),
        ("(SELECT v.x FROM v WHERE v.k = p.k UNION SELECT 1)", False),
        ("(WITH v AS (SELECT 1 AS x, 2 AS k) SELECT v.x FROM v WHERE v.k = p.k)", False),
        ("97 IN (SELECT v.x FROM v)", False),
        ("p.x + 1 IN (SELECT v.x FROM v)", False),
        ("p.x IN (SELECT v.x + 1 FROM v)", False),
        ("p.x > ANY (SELECT v.x FROM v)", False),
    ],
)  # fmt: skip
def test_subqueries_that_are_linked(text: str, linked: bool) -> None:
    with in_memory() as con:
        (node,) = node_of(con, f"SELECT {text} FROM p")["select_list"]
    while node["class"] != "SUBQUERY":
        node = node["children"][0]
    assert is_linked(node) is linked


@pytest.mark.parametrize(
    ("window", "further", "bounded"),
    [
        ("max(x) OVER ()", None, False),
        ("max(x) OVER (ORDER BY y)", None, False),
        ("max(x) OVER (PARTITION BY k)", None, True),
        ("avg(x) OVER ()", None, True),
        ("avg(x + 1) OVER ()", None, False),
        ("avg(DISTINCT x) OVER ()", None, False),
        ("avg(x) FILTER (x > 5) OVER ()", None, False),
        ("avg(x) OVER (ORDER BY y)", None, False),
        ("avg(x) OVER (RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW EXCLUDE TIES)", None,
         False),
        ("max(x) OVER (ORDER BY y ROWS 3 PRECEDING)", 3, True),
        ("max(x) OVER (ORDER BY y ROWS BETWEEN 3 PRECEDING AND 2 FOLLOWING)", 5, True),
        ("max(x) OVER (ORDER BY y ROWS BETWEEN 3 PRECEDING AND 2 PRECEDING)", 2, True),
        ("max(x) OVER (ORDER BY y ROWS BETWEEN CURRENT ROW AND 2 FOLLOWING)", 2, True),
        ("max(x) OVER (ORDER BY y ROWS BETWEEN 2 PRECEDING AND 3 PRECEDING)", 0, True),
        ("max(x) OVER (ORDER BY y ROWS y PRECEDING)", None, False),
        ("max(x) OVER (ORDER BY y ROWS UNBOUNDED PRECEDING)", None, False),
        ("max(x) OVER (ORDER BY y ROWS '00'::BLOB::BIT::BIGINT PRECEDING)", None, False),
        ("fill(x) OVER (ORDER BY y ROWS 1 PRECEDING)", None, False),
        ("last_value(x) OVER (ORDER BY y ROWS 1 PRECEDING)", 1, True),
        ("max(x) OVER (ORDER BY y RANGE BETWEEN 3 PRECEDING AND CURRENT ROW)", None, False),
        ("max(x) OVER (ORDER BY y GROUPS BETWEEN 3 PRECEDING AND CURRENT ROW)", None, False),
        ("lag(x) OVER (ORDER BY y)", 1, True),
        ("lead(x, 3, 0) OVER (ORDER BY y)", 1, True),
        ("lag(x, y) OVER (ORDER BY y)", None, False),
        ("lag(x IGNORE NULLS) OVER (ORDER BY y)", None, False),
        ("first_value(x) OVER (ORDER BY y)", None, False),
        ("rank() OVER (ORDER BY y)", None, True),
        ("rank() OVER (ORDER BY y + 1)", None, False),
        ("dense_rank() OVER (ORDER BY y)", None, False),
        ("ntile(4) OVER (ORDER BY y)", None, True),
        ("count(*) OVER (PARTITION BY k ORDER BY y)", None, True),
        ("count(x) OVER ()", None, False),
    ],
)  # fmt: skip
def test_windows_whose_reach_is_bounded(window: str, further: int | None, bounded: bool) -> None:
    with in_memory() as con:
        (node,) = node_of(con, f"SELECT {window} FROM p")["select_list"]
    assert further_rows(node) == further
    assert is_bounded(node) is bounded
