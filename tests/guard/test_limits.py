"""What a party lets a coordinator that lies take of its time and memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import duckdb
import numpy as np
import pytest

import sqlfl
from sqlfl import messages as ms
from sqlfl.guard import open_runs
from sqlfl.interrupts import checkpoint
from sqlfl.party.party import PartyClient
from sqlfl.udfs.rows import Snapshot
from tests.guard.clinic import TRAIN, Ask, prepared, ruled
from tests.guard.test_ledger import ACCOUNT, booked, private

KEYS = "SELECT pid AS sqlfl_key_0_0 FROM patients"
CROSS = """SELECT a.pid AS sqlfl_key_0_0 FROM patients AS a, patients AS b, patients AS c,
  patients AS d, patients AS e WHERE a.bmi * b.bmi * c.bmi * d.bmi * e.bmi = 0.123456789"""
"""2.4 · 10¹² rows."""
SOME, ONES = np.arange(100, dtype=np.uint32), np.ones(100, np.uint32)


def refused(reply: ms.Message, said: str) -> None:
    assert isinstance(reply, ms.Failure)
    assert reply.error == "PolicyError", reply.text
    assert said in reply.text


# -- time ------------------------------------------------------------------------------------------


def test_a_request_that_takes_too_long_is_ended(
    ask: Ask, clinic: duckdb.DuckDBPyConnection
) -> None:
    ruled(clinic, "seconds = 0.3", grant="")
    begun = time.monotonic()
    refused(prepared(ask, CROSS), "seconds = 0.3, and prepare took longer")
    assert time.monotonic() - begun < 20
    refused(ask(ms.SendKeys("r", 0)), "seconds = 0.3, and prepare took longer")
    assert isinstance(ask(ms.Finish("r", -1)), ms.Ready)
    assert isinstance(prepared(ask, KEYS, run="s"), ms.Prepared)


@pytest.mark.parametrize("stoppable", [True, False], ids=["loop", "deaf"])
def test_so_is_one_that_runs_no_query_and_its_run_with_it(
    ask: Ask, clinic: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch, stoppable: bool
) -> None:
    def slow(self: Snapshot, secret: bytes) -> None:
        until = time.monotonic() + (30 if stoppable else 0.4)
        while time.monotonic() < until:
            time.sleep(0.01)
            if stoppable:
                checkpoint()
        number(self, secret)

    number = Snapshot.number
    monkeypatch.setattr(Snapshot, "number", slow)
    ruled(clinic, "seconds = 0.2", grant="")
    assert isinstance(prepared(ask, KEYS), ms.Prepared)
    begun = time.monotonic()
    refused(ask(ms.SendKeys("r", 0)), "seconds = 0.2, and send_keys took longer")
    assert time.monotonic() - begun < 20
    temporary = "SELECT count(*) FROM duckdb_tables() WHERE temporary"
    assert clinic.sql(temporary).fetchall() == [(0,)]
    refused(ask(ms.Activate("r", 0, SOME, ONES, 100)), "seconds = 0.2, and send_keys took longer")


def test_the_analyst_is_told_which_rule(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection
) -> None:
    views = CROSS.replace("sqlfl_key_0_0", "pid").replace("SELECT", "SELECT a.age, a.days,")
    clinic.execute(f"CREATE VIEW slow AS {views}")
    ruled(clinic, "seconds = 0.3")
    with sqlfl.owner(clinic) as owner:
        owner.sql("GRANT TRAIN (age), JOIN (pid), LABEL (days) ON slow TO 'acme' UNDER r")
    query = "SELECT s.age, t.crp, s.days FROM clinic.slow s JOIN lab.tests t ON s.pid = t.pid"
    with pytest.raises(sqlfl.PolicyError, match=r"policy has seconds = 0\.3, and prepare took"):
        fed.sql(f"TRAIN MODEL m USING linear_regression TARGET days FROM ({query})")
    ruled(clinic, "seconds = 300", grant="")
    fed.sql(TRAIN)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass."""
    gone = 0.0

    def wait(seconds: float) -> None:
        nonlocal gone
        gone += seconds

    fake = SimpleNamespace(monotonic=lambda: time.monotonic() + gone)
    monkeypatch.setattr(open_runs, "time", fake)
    return wait


def test_a_run_of_which_nothing_is_heard_is_ended(
    ask: Ask, clinic: duckdb.DuckDBPyConnection, clock: Callable[[float], None]
) -> None:
    ruled(clinic, "lease = '2 hours'", grant="")
    assert isinstance(prepared(ask, KEYS), ms.Prepared)
    clock(7000)
    assert isinstance(ask(ms.SendKeys("r", 0)), ms.JoinKeys)
    clock(7000)  # since then
    assert isinstance(ask(ms.Activate("r", 0, SOME, ONES, 100)), ms.Ready)
    clock(7300)
    refused(ask(ms.SendFindings("r", 0)), "lease = '2 hours', and nothing was heard of this run")
    assert isinstance(ask(ms.Finish("r", -1)), ms.Ready)
    assert isinstance(prepared(ask, KEYS, run="s"), ms.Prepared)


def test_by_whatever_comes_next(
    ask: Ask, client: PartyClient, clock: Callable[[float], None]
) -> None:
    assert isinstance(prepared(ask, KEYS), ms.Prepared)
    assert client.working
    clock(3700)
    ask(ms.ListTables("", -1))
    assert not client.working
    refused(ask(ms.SendKeys("r", 0)), "lease = '1 hour'")


def test_runs_that_are_open_are_counted(ask: Ask, clinic: duckdb.DuckDBPyConnection) -> None:
    ruled(clinic, "open_runs = 2", grant="")
    for name in "ab":
        assert isinstance(prepared(ask, KEYS, run=name), ms.Prepared)
    refused(prepared(ask, KEYS, run="c"), "open_runs = 2")
    ask(ms.Finish("a", -1))
    assert isinstance(prepared(ask, KEYS, run="d"), ms.Prepared)


@pytest.mark.parametrize(
    ("kind", "state"),
    [("send_keys", "returned"), ("activate", "spent"), ("residuals", "spent")],
)
def test_what_it_has_reserved_is_settled(
    fed: sqlfl.Federation,
    clinic: duckdb.DuckDBPyConnection,
    clock: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    state: str,
) -> None:
    """Of a coordinator that is gone before it asks for what is of this kind."""
    honest, gone = PartyClient._answer, [True]

    def answer(self: PartyClient, request: ms.Message) -> ms.Message:
        if gone[0] and isinstance(request, ms.Finish):
            return ms.Ready(request.run, request.slot)
        if gone[0] and request.kind == kind and self.client.party == "lab":
            raise sqlfl.Error("it is gone")
        return honest(self, request)

    monkeypatch.setattr(PartyClient, "_answer", answer)
    ruled(clinic, ACCOUNT)
    with pytest.raises(sqlfl.PartyError, match="it is gone"):
        fed.sql(private())
    assert {found for _, found in booked(clinic)} == {"reserved"}
    gone[0] = False
    clock(3700)
    fed.explain(TRAIN)
    assert dict(booked(clinic))["features"] == state
