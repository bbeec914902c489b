"""Queries that are written as text, with places for what differs."""

from __future__ import annotations

import duckdb
import pytest
from sqlglot import exp

from sqlfl.errors import InternalError
from sqlfl.udfs import sql


def test_places_take_tables_queries_expressions_and_lists(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("CREATE TEMP TABLE t AS SELECT i % 3 AS g, i AS x FROM range(9) r(i)")
    inner = sql.query("SELECT $group, sum(x) AS s FROM $t GROUP BY $group",
                      group=[sql.column("g")], t=sql.temp("t"))  # fmt: skip
    found = sql.query(
        """SELECT $columns, $sum * 2 AS twice, row_number() OVER (ORDER BY $order) - 1 AS n
        FROM $inner AS d JOIN $t AS t ON d.g = t.g AND t.x < $limit ORDER BY n""",
        columns=sql.columns_of(["g", "s"], "d"),
        sum=exp.Add(this=sql.column("s", "d"), expression=sql.number(1)),
        order=[sql.column("s", "d"), sql.column("x", "t")],
        inner=inner,
        t=sql.temp("t"),
    )
    expected = [(0, 9, 20, 0), (0, 9, 20, 1), (1, 12, 26, 2), (2, 15, 32, 3)]
    assert sql.fetch(con, found, {"limit": 4}) == expected


def test_a_tree_that_is_part_of_a_query_is_copied_into_the_next_one() -> None:
    name = sql.column("x")
    first = sql.query("SELECT $name AS a, $name AS b", name=name)
    second = sql.expression("$name + 1", name=name)
    name.set("this", exp.to_identifier("other", quoted=True))
    assert sql.to_sql(first) == 'SELECT "other" AS "a", "x" AS "b"'
    assert sql.to_sql(second) == '"x" + 1'


def test_functions_stay_as_they_are_written() -> None:
    """sqlglot would write [1, 2] and other names."""
    for text in ("list_value(1, 2)", "array_slice(b, 1, 2)", "date_part('day', d)", "epoch_us(t)"):
        kept = sql.to_sql(sql.expression(text)).replace('"', "").lower()
        assert kept == text


def test_what_has_no_place_is_an_error() -> None:
    with pytest.raises(InternalError, match="not all of x, y have a place: SELECT"):
        sql.query("SELECT $x, $z", x=sql.number(1), y=sql.number(2))
    with pytest.raises(InternalError, match="no SELECT: a \\+ 1"):
        sql.query("a + 1")


@pytest.fixture
def con() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()
