"""Many parties in one statement: long unions, what is said of many, threads, and attaching them."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import duckdb
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.contract.schema import Client
from sqlfl.transport.base import Handlers
from sqlfl.transport.local import HERE, LocalTransport
from sqlfl.udfs import connection

PARTIES = 14
BRANCHES = 140
DEPTH = 260
"""Calls within each other that a statement may take: fewer than two for each branch of parties, and
than one for each of those of one party, which are bound together."""


@contextmanager
def shallow() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + DEPTH)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@pytest.fixture(scope="module")
def many() -> Iterator[sqlfl.Federation]:
    """Parties p0, p1, ... with tables t0, t1, ...: all in one database, which costs little."""
    with duckdb.connect() as con, sqlfl.connect(progress=False) as fed:
        for n in range(PARTIES):
            con.execute(
                f"CREATE TABLE t{n} AS SELECT i AS k, sin(i + {n}) AS x, i % 3 AS z, "
                f"2 * sin(i + {n}) + i % 3 + cos(i * {n}) AS y FROM range(20) r(i)"
            )
            fed.attach(f"p{n}", con.cursor())
        branches = " UNION ALL ".join(f"SELECT * FROM t{n}" for n in range(PARTIES))
        con.execute(f"CREATE VIEW every AS {branches}")
        fed.attach("whole", con.cursor())
        yield fed


def branches(number: int, what: str = "x, z, y") -> list[str]:
    return [f"SELECT {what} FROM p{n % PARTIES}.t{n % PARTIES}" for n in range(number)]


UNION = " UNION ALL ".join(branches(PARTIES))
TRAIN = "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y {options} FROM ({query})"
LONG = " UNION ALL ".join(branches(BRANCHES))
OF_ONE = " UNION ALL ".join(["SELECT x, z, y FROM p0.t0"] * (2 * BRANCHES))


@pytest.mark.parametrize(
    "query",
    [
        LONG,
        f"({UNION} UNION ALL {UNION}) UNION ALL ({UNION})",
        f"SELECT u.x, u.y FROM ({LONG}) AS u",
        f"WITH u AS ({OF_ONE}) SELECT x, y FROM u LIMIT 100",
        f"SELECT * FROM p0.t0 WHERE x IN (SELECT x FROM ({OF_ONE}) AS u)",
        OF_ONE.replace("UNION ALL", "UNION", 1),
    ],
    ids=["parties", "brackets", "in FROM", "whole", "in a condition", "distinct"],
)
def test_no_union_is_too_long(many: sqlfl.Federation, query: str) -> None:
    noised = "PRIVACY (label_epsilon = 1, label_bounds = [0, 1])" if " IN (" in query else ""
    with shallow():
        plan = many.explain(TRAIN.format(options=noised, query=query))
    assert plan.ucq.slots


def test_a_union_of_parties_that_is_distinct_is_still_refused(many: sqlfl.Federation) -> None:
    query = LONG.replace("UNION ALL", "UNION", 1)
    with shallow(), pytest.raises(sqlfl.PlanError, match="UNION without ALL cannot be done over"):
        many.explain(TRAIN.format(options="", query=query))


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT {'(' * 300}x{')' * 300} AS x, y FROM p0.t0",
        f"{'(' * 300}SELECT x, y FROM p0.t0{')' * 300}",
        f"{'SELECT * FROM (' * 300}SELECT x, y FROM p0.t0{') AS u' * 300}",
    ],
    ids=["parentheses", "queries", "FROM"],
)
def test_what_is_nested_too_deeply_is_refused(many: sqlfl.Federation, query: str) -> None:
    with shallow(), pytest.raises(sqlfl.Error, match="nested too deeply"):
        many.explain(TRAIN.format(options="", query=query))


@pytest.mark.parametrize("algorithm", ["lbfgs", "sgd", "admm"])
def test_many_parties_train_what_one_does(many: sqlfl.Federation, algorithm: str) -> None:
    options = f"WITH (algorithm = '{algorithm}', epochs = 4, tolerance = 0)"
    found = []
    for query in (UNION, "SELECT x, z, y FROM whole.every"):
        many.sql(TRAIN.format(options=options, query=query))
        evaluated = many.sql(f"EVALUATE MODEL m FROM ({query})").fetchall()
        found.append((*evaluated[0], many.model("m").metrics["objective"]))
    assert found[0] == pytest.approx(found[1], rel=2e-3 if algorithm == "sgd" else 1e-5)


def test_what_is_said_of_many_parties_is_said_once(many: sqlfl.Federation) -> None:
    """All are named in full."""
    plan = many.explain(TRAIN.format(options="", query=UNION))
    short, full = str(plan), str(plan.details)
    assert "p0 and 13 others: in clear leave" in short
    assert "14 databases, 280 rows" in short
    assert "p9" not in short
    assert all(f"p{n}/0" in full for n in range(PARTIES))
    picture = plan._repr_html_()
    assert "p1 and 12 others" in picture


def test_clients_of_this_process_share_threads() -> None:
    """Others are waited for, each by a thread of its own."""
    handlers, seen = Handlers(), set()
    together = threading.Barrier(HERE + 1, timeout=20)

    def work(data: pa.Buffer) -> pa.Buffer:
        seen.add(threading.get_ident())
        return data

    def wait(data: pa.Buffer) -> pa.Buffer:
        together.wait()
        return data

    here = [Client("here", n) for n in range(3 * HERE)]
    away = [Client("away", n) for n in range(HERE + 1)]
    handlers |= dict.fromkeys(here, work) | dict.fromkeys(away, wait)
    handlers.here = frozenset(here)
    data = pa.py_buffer(b"x")
    with closing(LocalTransport(handlers)) as transport:
        transport.exchange([(client, data) for client in here])
        assert len(seen) <= HERE
        assert len(transport.exchange([(client, data) for client in here + away])) == 4 * HERE + 1
    handlers.leave(here[0])
    assert here[0] not in handlers.here


def test_a_party_is_not_compared_with_each_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """But where it may have one's database."""
    asked = []
    number = connection._number
    monkeypatch.setattr(connection, "_number", lambda con: asked.append(con) or number(con))
    with ExitStack() as stack:
        cons = [stack.enter_context(duckdb.connect()) for _ in range(4)]
        fed = stack.enter_context(sqlfl.connect(progress=False))
        counts = []
        for n, con in enumerate(cons):
            con.execute("CREATE TABLE t AS SELECT 1 AS x, 2 AS y")
            fed.attach(f"p{n}", con)
            counts.append(len(asked))
            asked.clear()
        assert len(set(counts[1:])) == 1
        fed.attach("again", cons[1].cursor())
        query = "SELECT x, y FROM p1.t UNION ALL SELECT x, y FROM again.t"
        with pytest.warns(sqlfl.Warning, match="parties p1 and again have one database"):
            fed.sql(TRAIN.format(options="", query=query))
