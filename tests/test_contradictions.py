"""What random tests do where DuckDB answers one query in two ways."""

from __future__ import annotations

from collections import Counter

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from tests import contradictions, strategies
from tests.conftest import Open
from tests.contradictions import contradicts_itself, note_contradiction, unoptimized
from tests.planner.random import truth
from tests.planner.random.statements import Statement
from tests.planner.random.truth import CONTRADICTED, WRONG, Result
from tests.planner.random.world import WORLD, World, opened
from tests.strategies import BlockCase, Case, ColumnData, Source, TableData

KNOWN = pytest.mark.skipif(
    duckdb.__version__ != "2.0.1", reason="tests/thorough.md says what DuckDB 2.0.1 does"
)
TABLE = "CREATE TABLE t AS FROM (VALUES (1, 0, 0), (1, 2, 1)) v(i, k, n)"
SELF_JOIN = "FROM t a JOIN t b ON a.i = b.i"
TWICE = f"SELECT a.n, b.k {SELF_JOIN} UNION ALL SELECT b.k, b.n {SELF_JOIN}"


@KNOWN
def test_equal_joins_of_a_table_with_itself_contradict_each_other(database: Open) -> None:
    con = database(TABLE)
    assert contradicts_itself(con, TWICE)
    assert not contradicts_itself(con, f"SELECT a.n, b.k {SELF_JOIN}")
    assert not contradicts_itself(con, "SELECT missing FROM t")


def test_the_optimizer_is_off_for_a_while_only(database: Open) -> None:
    con = database()
    asked = "SELECT current_setting('enable_optimizer')"
    with pytest.raises(AssertionError, match=r"within: \(False,\)"), unoptimized(con):
        raise AssertionError(f"within: {con.execute(asked).fetchone()}")
    assert con.execute(asked).fetchone() == (True,)


def test_contradictions_are_reported_and_there_are_not_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contradictions, "_noted", [])
    for number in range(contradictions.MAX_NOTED):
        with pytest.warns(UserWarning, match=f"contradicts itself.*SELECT {number}"):
            note_contradiction(f"SELECT {number}")
    with pytest.raises(AssertionError, match="too often"):
        note_contradiction("SELECT 10")


# -- plans -----------------------------------------------------------------------------------------

JOINED = "SELECT t.n AS c0, u.z AS c1 FROM a.t JOIN b.u ON t.k = u.k"
ASOF = """SELECT u.k AS c0, u.k AS c1 FROM b.u AS u JOIN (
  SELECT 1 AS q, count(*) AS c1 FROM b.n AS n
  ASOF JOIN range(2) r ON NOT (n.n <> r.range) AND (r.range, 1) < (n.n, n.n) GROUP BY 1
) q1 ON u.k = q1.q"""


@pytest.mark.parametrize(("optimized", "kind"), [(True, CONTRADICTED), (False, WRONG)])
def test_a_plan_is_wrong_only_if_both_answers_are_others(
    optimized: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The central database loses a row: with its optimizer, or always."""
    usual = truth.central

    def losing(world: World, statement: Statement) -> Result:
        found = usual(world, statement)
        with_optimizer = world.central.execute("SELECT current_setting('enable_optimizer')")
        if optimized and with_optimizer.fetchone() == (False,):
            return found
        return Result(found.names, found.types, found.rows - Counter(list(found.rows)[:1]))

    with opened(1188) as world:
        statement = Statement(JOINED, (1, 1, 1))
        assert truth.check(world, statement).kind == truth.EQUAL
        monkeypatch.setattr(truth, "central", losing)
        verdict = truth.check(world, statement)
    assert verdict.kind == kind
    assert WRONG in f"{verdict.kind} {verdict.detail}"


@KNOWN
def test_what_duckdb_only_evaluates_by_leaving_it_out_is_no_wrong_plan() -> None:
    """The central database knows that no row joins. A party does not, and fails as DuckDB does."""
    with opened(68378 // WORLD) as world:
        verdict = truth.check(world, Statement(ASOF, (1, 1, 1)))
    assert verdict.kind == CONTRADICTED
    assert "Unsupported ASOF JOIN" in verdict.detail


# -- cases -----------------------------------------------------------------------------------------

TABLE_OF_CASE = TableData("ana", "t", (ColumnData("id_t", "INTEGER", [1, 2]),))
CASE = Case(
    "linear_regression",
    "label",
    (TABLE_OF_CASE,),
    (BlockCase((Source("s0", "ana.t", (TABLE_OF_CASE,)),), (), (("s0.id_t", "label"),), ()),),
    seed=0,
)


@given(st.just(CASE))
def fail(case: Case) -> None:
    with case.open():
        raise AssertionError("the federation has other rows")


def test_a_case_is_discarded_if_duckdb_contradicts_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contradictions, "_noted", [])
    monkeypatch.setattr(strategies, "contradicts_itself", lambda *_: True)
    with (
        pytest.warns(UserWarning, match="contradicts itself"),
        pytest.raises(Unsatisfiable),
    ):
        fail()


def test_a_failure_stands_if_duckdb_agrees_with_itself() -> None:
    with pytest.raises(AssertionError, match="other rows"):
        fail()
