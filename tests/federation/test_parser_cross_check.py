"""Fragments are read back by DuckDB's parser before a statement sends anything to be run."""

from __future__ import annotations

import pytest
from sqlglot import exp

from sqlfl.base.errors import InternalError
from sqlfl.planner.query import ucq
from tests.federations import federation
from tests.open_databases import in_memory

QUERY = "SELECT (t.x + t.z) * t.z AS p, w.v, t.y FROM one.t t JOIN two.w w USING (id)"
TRAIN = "TRAIN MODEL m USING linear_regression TARGET y"


STATEMENTS = (TRAIN, "CHECK TARGET y", "EVALUATE MODEL n", "PREDICT MODEL n")


@pytest.mark.parametrize(("more", "statement"), list(enumerate(STATEMENTS)))
def test_a_fragment_that_is_written_otherwise_is_refused(
    more: int, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that leaves out parentheses makes another expression of a sum in a product."""
    with in_memory() as one, in_memory() as two:
        one.execute("CREATE TABLE t AS SELECT i AS id, i % 7 AS x, i % 5 AS z, i % 3 AS y "
                    "FROM range(60) r(i)")  # fmt: skip
        two.execute("CREATE TABLE w AS SELECT i AS id, i % 11 AS v FROM range(60) r(i)")
        with federation({"one": [one], "two": [two]}) as fed:
            fed.sql(f"{TRAIN.replace(' m ', ' n ')} FROM ({QUERY})")
            _without_parentheses(monkeypatch)
            before = {row["kind"] for row in fed.audit().arrow().to_pylist()}
            count = len(fed.audit().arrow())
            with pytest.raises(InternalError, match="reads a fragment otherwise"):
                fed.sql(f"{statement} FROM ({QUERY} WHERE t.x > {more})")
            sent = fed.audit().arrow().slice(count).to_pylist()
            assert "prepared" in before
            assert not any(row["kind"] in ("prepare", "prepared") for row in sent)


def _without_parentheses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the texts of fragments, and not those that they are compared with."""
    write = ucq.to_sql

    def broken(tree: exp.Expr) -> str:
        bare = tree.copy()
        for paren in list(bare.find_all(exp.Paren)):
            if isinstance(paren.this, exp.Add) and isinstance(paren.parent, exp.Mul):
                paren.replace(paren.this)
        return write(bare)

    monkeypatch.setattr(ucq, "to_sql", broken)
