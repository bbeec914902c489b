"""Analysts at a party's host."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa
import pytest

from sqlfl import messages as ms
from sqlfl.base.errors import Error
from sqlfl.governance import measuring
from sqlfl.messages.wire import encoded, received
from sqlfl.service import hosting
from sqlfl.service.agent import Agent
from sqlfl.service.hosting import Host
from sqlfl.service.party_connection import PartyConnection
from tests import courier
from tests.conftest import Open
from tests.governance.clinic import PATIENTS, prepared, ruled
from tests.governance.test_limits import KEYS, refused
from tests.governance.test_trial import SLOW
from tests.service.party import Admitting, at, credentials, running, serving

LISTS = pa.py_buffer(encoded(ms.ListTables("", -1)))


def host(database: Open) -> Host:
    con = database("CREATE TABLE t AS SELECT 1 AS a", own=True)
    return Host("bank", con, secret=bytes(32), known=lambda study, speaker: speaker, open=True)


def test_so_many_analysts(database: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """In studies whose names a coordinator and an analyst may make up."""
    monkeypatch.setattr(hosting, "MAX_ENDS", 2)
    with host(database) as own:
        own.welcome("coordinator", "s")
        for study in ("a", "b", "a"):
            assert isinstance(received(own.handle(0, LISTS, study, "alice")), ms.Tables)
        with pytest.raises(Error, match="2 analysts are served already"):
            own.handle(0, LISTS, "c", "alice")
        own.welcome("coordinator", "t")
        assert isinstance(received(own.handle(0, LISTS, "c", "alice")), ms.Tables)


@pytest.mark.parametrize("how", ["another session", "it forgets", "the same session"])
def test_what_is_forgotten(database: Open, how: str) -> None:
    with host(database) as own:
        own.welcome("coordinator", "s")
        own.handle(0, LISTS, "heart", "alice")
        (before,) = own._ends.values()
        if how == "it forgets":
            own.forget()
        own.welcome("coordinator", "t" if how == "another session" else "s")
        own.handle(0, LISTS, "heart", "alice")
        (after,) = own._ends.values()
        assert (after is before) == (how == "the same session")


@dataclass(eq=False)
class PassIssuer:
    """An analyst whose messages go by the coordinator's stream to the party's agent."""

    line: PartyConnection
    name: str

    def handle(self, data: pa.Buffer) -> pa.Buffer:
        return self.line.ask(0, data, "heart", self.name)

    def ask(self, message: ms.Message) -> ms.Message:
        return courier.ask(self, message)  # type: ignore[arg-type]


def test_a_worker_that_is_killed_ends_one_analysts_run(
    database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over TLS; the party's agent stays, and the run of another analyst goes on."""
    monkeypatch.setattr(measuring, "MAX_BYTES", 1e18)
    monkeypatch.setattr(measuring, "MAX_WORK", 1e18)
    con = database(PATIENTS)
    for analyst in ("acme", "bcme"):
        grant = f"GRANT FILTER (pid, ward), JOIN (pid) ON patients TO '{analyst}' UNDER r"
        ruled(con, "memory = '1TB', seconds = 500", grant)
    admits = Admitting("clinic")
    with ExitStack() as stack:
        server = stack.enter_context(serving(admits, secure=True))
        known = lambda study, speaker: speaker  # noqa: E731
        own = stack.enter_context(Host("clinic", con, secret=bytes(32), known=known))
        agent = Agent(at(server, secure=True), "clinic", 1, own, credentials("clinic"))
        stack.enter_context(running(agent))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        assert admits.there["clinic"].wait(20)
        acme, bcme = (PassIssuer(admits.lines["clinic"], name) for name in ("acme", "bcme"))
        waiting = pool.submit(prepared, acme.ask, SLOW)
        process = trial_of(own, "acme")
        assert isinstance(prepared(bcme.ask, KEYS, run="s"), ms.Prepared)
        assert not waiting.done()
        os.kill(process, signal.SIGKILL)
        refused(waiting.result(60), "memory = '1TB', and evaluating the query takes more")
        assert isinstance(bcme.ask(ms.SendKeys("s", 0)), ms.JoinKeys)
        assert isinstance(prepared(acme.ask, KEYS, run="t"), ms.Prepared)


def trial_of(host: Host, analyst: str) -> int:
    """The worker process of the analyst, once there is one."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        end = host._ends.get(("heart", analyst))
        if end is not None and end._trial is not None and end._trial.running:
            return end._trial.running[0]
        time.sleep(0.01)
    raise AssertionError("no worker came")
