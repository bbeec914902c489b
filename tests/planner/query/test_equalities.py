"""Equalities between parties in all their spellings, and NULL equal to NULL where it is."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import duckdb
import pytest

from sqlfl.base.errors import PlanError
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.statements import EvaluateModel
from sqlfl.planner.query.rules import to_ucq
from sqlfl.planner.query.ucq import Ucq
from tests.depth import SEED, THOROUGH
from tests.planner.central import ordered, planned_rows
from tests.planner.conftest import DatabaseCatalog, database

TABLES = {
    "a": """CREATE TABLE t (x INTEGER, y SMALLINT, s VARCHAR, d DATE, v INTEGER);
      INSERT INTO t VALUES (1, 1, 'p', '2024-01-01', 1), (1, NULL, 'q', NULL, 2),
        (NULL, NULL, NULL, '2024-01-02', 3), (NULL, 2, '', NULL, 4),
        (0, 0, '7', '1970-01-01', 5)""",
    "b": """CREATE TABLE u (x BIGINT, y INTEGER, s VARCHAR, d TIMESTAMP, w INTEGER);
      INSERT INTO u VALUES (1, 1, 'p', '2024-01-01', 10), (1, NULL, NULL, NULL, 20),
        (NULL, NULL, '', '2024-01-02', 30), (0, NULL, 'q', '1970-01-01', 40),
        (0, 0, '7', NULL, 50)""",
    "c": """CREATE TABLE w (x INTEGER, y DOUBLE, z INTEGER);
      INSERT INTO w VALUES (1, 1, 100), (NULL, NULL, 200), (0, 0, 300)""",
}


@pytest.fixture(scope="module")
def parties() -> Iterator[DatabaseCatalog]:
    found = DatabaseCatalog({party: (database(script),) for party, script in TABLES.items()})
    yield found
    for con in found.databases.values():
        con.close()


@pytest.fixture(scope="module")
def together() -> Iterator[duckdb.DuckDBPyConnection]:
    con = duckdb.connect()
    for party, script in TABLES.items():
        con.execute(f"ATTACH ':memory:' AS {party}; USE {party}; {script}")
    yield con
    con.close()


def plan(parties: DatabaseCatalog, query: str) -> Ucq:
    statement = parse(f"EVALUATE MODEL m FROM ({query})")
    assert isinstance(statement, EvaluateModel)
    return to_ucq(statement.query, statement.sql, parties)


CONDITIONS = (
    "(t.x, t.y) = (u.x, u.y)", "row(t.x, t.y) = row(u.x, u.y)", "(t.x, t.y) IN ((u.x, u.y))",
    "(t.x,) = (u.x,)", "t.x IN (u.x)", "NOT (t.x <> u.x)", "NOT t.x <> u.x", "NOT NOT t.x = u.x",
    "NOT (t.x <> u.x OR t.y <> u.y)", "NOT (NOT (t.x = u.x AND t.y = u.y))",
    "t.x IS NOT DISTINCT FROM u.x", "NOT (t.x IS DISTINCT FROM u.x)",
    "t.x IS NOT DISTINCT FROM u.x AND t.y = u.y", "t.s IS NOT DISTINCT FROM u.s",
    "t.d IS NOT DISTINCT FROM u.d", "(t.s, t.d) = (u.s, u.d)", "NOT ((t.x, t.y) <> (u.x, u.y))",
    "(t.x, t.y, 1) = (u.x, u.y, u.x)", "(t.x, u.y) = (u.x, t.y)",
    "t.v::VARCHAR IN (u.x) AND t.v > 4",
    "t.x = u.x AND NOT (t.v > 2 OR u.w < 20)", "t.x IS NOT DISTINCT FROM u.x + 0",
    "coalesce(t.x, 5) IS NOT DISTINCT FROM u.x",
    "t.x IN (u.x) AND (t.y = u.y) IS NOT FALSE OR false",
)  # fmt: skip
FORMS = (
    "SELECT t.v, u.w FROM a.t JOIN b.u ON {}",
    "SELECT t.v, u.w FROM a.t, b.u WHERE {}",
    "SELECT t.v, u.w, coalesce(u.w, -1) AS c FROM a.t LEFT JOIN b.u ON {}",
    "SELECT t.v, u.w, w.z FROM a.t JOIN b.u ON {} LEFT JOIN c.w ON "
    "(w.x, w.y) = (u.x, u.y) WHERE u.w > 0",
    "SELECT t.v, u.w, w.z FROM a.t LEFT JOIN b.u ON {} LEFT JOIN c.w ON "
    "w.x IS NOT DISTINCT FROM u.x",
    "SELECT t.v, u.w, w.z FROM a.t JOIN b.u ON {} JOIN c.w ON w.x IS NOT DISTINCT FROM t.x "
    "AND w.x IS NOT DISTINCT FROM u.x",
)


@pytest.mark.parametrize("form", range(len(FORMS)))
def test_rows_are_those_of_the_query(
    form: int, parties: DatabaseCatalog, together: duckdb.DuckDBPyConnection
) -> None:
    conditions, joined = CONDITIONS[:-1], 0
    some = Random(f"{SEED} {form}").sample(conditions, 5)
    for condition in conditions if THOROUGH else some:
        query = FORMS[form].format(condition)
        found = planned_rows(plan(parties, query), parties.databases)
        assert found == ordered(together.execute(query).fetchall()), condition
        joined += len(found)
    assert joined > 4  # one of the conditions joins nothing, the others a row or more


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        (CONDITIONS[-1], "a condition needs columns of 2 parties"),
        ("(t.x, t.s) = (u.x, u.y)", "rows cannot be compared here"),
        ("(t.x, t.y) = (u.x, u.y, 1)", "cannot compare rows as a whole"),
        ("t.x IN (u.x, t.y)", "a condition needs columns of 2 parties"),
        ("NOT (t.x = u.x AND t.y = u.y)", "a condition needs columns of 2 parties"),
    ],
)
def test_what_is_no_equality_is_refused(
    condition: str, said: str, parties: DatabaseCatalog
) -> None:
    with pytest.raises(PlanError) as caught:
        plan(parties, f"SELECT t.v, u.w FROM a.t JOIN b.u ON {condition}")
    assert said in str(caught.value)
    assert caught.value.hint
