"""Queries as text: written without a copy, and read with places for what differs."""

from __future__ import annotations

from contextlib import closing

import duckdb
import pytest
from sqlglot import exp, parse_one

from sqlfl.base.errors import InternalError
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


def test_a_text_that_is_run_again_is_of_no_connection() -> None:
    """Whichever connection it was parsed on, open or not, and beside others."""
    text = "UPDATE t SET n = n + $more RETURNING n"
    for _ in range(2):
        with closing(duckdb.connect()) as first, closing(duckdb.connect()) as second:
            for start, con in enumerate((first, second)):
                con.execute("CREATE TABLE t AS SELECT $start AS n", {"start": start})
            for turn in (1, 2):
                for start, con in enumerate((first, second)):
                    found = con.execute(sql.again(con, text), {"more": 10}).fetchall()
                    assert found == [(start + 10 * turn,)]
    constant = sql.constant(sql.query("SELECT n FROM t"))
    with closing(duckdb.connect()) as con:
        with pytest.raises(duckdb.CatalogException):
            sql.fetch(con, constant)
        for made in (
            "CREATE TABLE t AS SELECT 1 AS n",
            "CREATE OR REPLACE TABLE t AS SELECT 'a' AS n",
        ):
            con.execute(made)
            assert sql.fetch(con, constant) == con.execute("FROM t").fetchall()


def test_a_part_may_stand_in_two_queries() -> None:
    """Whatever is written first."""
    part = sql.clipped(sql.column("x"), sql.number(0), sql.parameter("high"))
    first, second = (exp.select(sql.named(part, name)) for name in ("a", "b"))
    texts = [sql.to_sql(first), sql.to_sql(second), sql.to_sql(first), sql.to_sql(second)]
    assert texts[:2] == texts[2:]
    assert texts[0].replace('"a"', '"b"') == texts[1]


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


NUMBERS = """SELECT CASE WHEN range = 4000000 THEN error('boom') ELSE range::VARCHAR END
FROM range(5000000)"""


def test_errors_while_rows_are_read_are_the_databases(con: duckdb.DuckDBPyConnection) -> None:
    def read(interrupted: bool) -> None:
        with sql.batches(con, sql.verbatim(con, NUMBERS)) as batches:
            for _ in batches:
                if interrupted:
                    con.interrupt()

    with pytest.raises(duckdb.Error, match="boom"):
        read(False)
    with pytest.raises(duckdb.InterruptException):
        read(True)
    # nothing is left open
    assert con.execute("SELECT 1").fetchall() == [(1,)]
