"""`now()` and its like have one value in all fragments of a statement."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import duckdb
import pytest

from sqlfl.base.errors import PlanError
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.statements import EvaluateModel
from sqlfl.planner.query.clock import Clock
from sqlfl.planner.query.rules import to_ucq
from tests.planner.central import planned_rows
from tests.planner.conftest import DatabaseCatalog, database

NOW = dt.datetime(2024, 2, 29, 22, 30, 15, 250000, dt.timezone(dt.timedelta(hours=2)))
TABLE = """
CREATE TABLE t (k INTEGER, born TIMESTAMP);
INSERT INTO t VALUES (1, '2024-01-01'), (2, '2023-06-30 12:00');
CREATE TABLE odd (k INTEGER, "current_date" INTEGER, "user" VARCHAR);
INSERT INTO odd VALUES (1, 7, 'me'), (2, 8, 'you');
"""


@pytest.fixture(scope="module")
def parties() -> Iterator[DatabaseCatalog]:
    found = DatabaseCatalog({"a": (database(TABLE),), "b": (database(TABLE), database(TABLE))})
    yield found
    for con in found.databases.values():
        con.close()


def rows(parties: DatabaseCatalog, query: str) -> list[tuple[str, ...]]:
    statement = parse(f"EVALUATE MODEL m FROM ({query})")
    assert isinstance(statement, EvaluateModel)
    ucq = to_ucq(statement.query, statement.sql, parties, now=NOW)
    return planned_rows(ucq, parties.databases)


def test_parties_are_told_one_time(parties: DatabaseCatalog) -> None:
    columns = (
        "{0}.born < now() AS p{1}, epoch(now()) AS e{1}, current_date - {0}.born::DATE AS d{1}"
    )
    own = ", ".join(columns.format(alias, n) for n, alias in enumerate("xy"))
    found = rows(parties, f"SELECT {own} FROM a.t x JOIN b.t y ON x.k = y.k")
    assert len(found) == 4
    assert {row[1] for row in found} == {row[4] for row in found} == {f"{NOW.timestamp():.9g}"}
    assert {row[2] for row in found} == {row[5] for row in found} == {"59", "244"}


SPELLINGS = (
    "now()", "NOW()", "current_timestamp", "transaction_timestamp()", "get_current_timestamp()",
    "current_date", "current_date()", "today()", "current_time", "get_current_time()", "localtime",
    "current_localtime()", "localtimestamp", "current_localtimestamp()", "main.now()",
    "system.main.today()", "age(TIMESTAMP '2020-01-01 10:00')", "age(DATE '2020-01-01')",
    "age(TIMESTAMPTZ '2020-01-01 10:00+03')",
)  # fmt: skip


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_the_time_is_told_as_what_it_stands_for(zone: str) -> None:
    con = duckdb.connect()
    try:
        con.execute(f"SET TimeZone = '{zone}'")
        con.begin()
        now = con.execute("SELECT now() AT TIME ZONE 'UTC'").fetchall()[0][0]
        for text in SPELLINGS:
            statement = parse(f"EVALUATE MODEL m FROM (SELECT {text} AS x FROM a.t)")
            assert isinstance(statement, EvaluateModel)
            clock = Clock(now.replace(tzinfo=dt.UTC))
            (shown,) = (e.unalias() for e in clock.told(statement.query).selects)
            given = to_sql(clock.word(text) or shown)
            assert given != text
            kinds = f"typeof({text}), typeof({given}), ({text})::VARCHAR = ({given})::VARCHAR"
            left, right, same = con.execute(f"SELECT {kinds}").fetchall()[0]
            assert (left, same) == (right, True), text
    finally:
        con.close()


def test_a_column_goes_before_the_word(parties: DatabaseCatalog) -> None:
    found = rows(parties, "SELECT current_date AS f, user AS u, k FROM a.odd")
    assert found == [("7", "'me'", "1"), ("8", "'you'", "2")]
    found = rows(parties, 'SELECT o."current_date" + 1 AS f FROM a.odd o')
    assert found == [("8",), ("9",)]


def test_words_of_a_database_are_its_own(parties: DatabaseCatalog) -> None:
    found = rows(
        DatabaseCatalog({"a": (database(TABLE.partition("CREATE TABLE odd")[0]),)}),
        "SELECT current_user AS u, session_user AS s, user AS w, k FROM a.t WHERE k = 1",
    )
    assert found == [("'duckdb'", "'duckdb'", "'duckdb'", "1")]


def test_subqueries_and_queries_that_go_whole_are_told_too(parties: DatabaseCatalog) -> None:
    found = rows(
        parties,
        """SELECT q.e, (SELECT epoch(max(now())) FROM a.t) AS f, x.k
        FROM (SELECT epoch(min(now())) AS e, 1 AS k FROM a.t) q JOIN a.t x ON q.k = x.k
        JOIN b.t y ON y.k = x.k""",
    )
    assert {row[:2] for row in found} == {(f"{NOW.timestamp():.9g}",) * 2}


def test_age_as_a_method_is_refused(parties: DatabaseCatalog) -> None:
    with pytest.raises(PlanError, match="age\\(\\) as a method") as caught:
        rows(parties, "SELECT born.age() AS f FROM a.t")
    assert "age(column)" in (caught.value.hint or "")
