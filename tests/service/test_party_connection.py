"""A party's line, over real streams."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
import pytest

from sqlfl.base.errors import LostError
from sqlfl.service import certificates as ct
from sqlfl.service.agent import Agent
from sqlfl.service.frames import PIECE
from sqlfl.service.party_connection import PartyConnection
from sqlfl.service.stream import Credentials
from tests.service.party import (
    QUICK,
    Admitting,
    Serving,
    at,
    connected,
    credentials,
    running,
    serving,
    texts_until,
)
from tests.service.processes import until

WAYS = pytest.mark.parametrize("secure", [True, False], ids=["TLS", "plain"])


def doubled(data: pa.Buffer) -> pa.Buffer:
    return pa.py_buffer(data.to_pybytes() * 2)


@WAYS
def test_requests_are_answered(secure: bool) -> None:
    large = pa.py_buffer(np.arange(PIECE, dtype=np.uint32))
    with connected({"bank": [doubled, lambda data: data]}, secure=secure) as (admits, served):
        line = admits.lines["bank"]
        assert line.ask(0, pa.py_buffer(b"ab"), "heart", "pass").to_pybytes() == b"abab"
        assert line.ask(1, large, "", "").equals(large)
        assert line.ask(1, pa.py_buffer(b""), "", "").to_pybytes() == b""
    assert served["bank"].asked == [(0, "heart", "pass"), (1, "", ""), (1, "", "")]


def test_several_threads_ask_at_once() -> None:
    with connected({"bank": [doubled], "lab": [doubled]}) as (admits, _):
        wrong: list[object] = []

        def ask(name: str, number: int) -> None:
            for turn in range(20):
                text = f"{name} {number} {turn} ".encode()
                reply = admits.lines[name].ask(0, pa.py_buffer(text), "", "")
                if reply.to_pybytes() != text * 2:
                    wrong.append(reply)

        threads = [
            threading.Thread(target=ask, args=(name, number))
            for name in ("bank", "lab")
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not wrong
        assert not any(thread.is_alive() for thread in threads)


def test_an_interrupt_reaches_the_party() -> None:
    begun, ended = threading.Event(), threading.Event()

    def slow(data: pa.Buffer) -> pa.Buffer:
        begun.set()
        assert ended.wait(20)
        return data

    with connected({"bank": [slow]}) as (admits, served):
        line = admits.lines["bank"]
        asking = threading.Thread(target=line.ask, args=(0, pa.py_buffer(b""), "", ""))
        asking.start()
        assert begun.wait(20)
        line.interrupt(0, "heart", "pass")
        deadline = time.monotonic() + 20
        while not served["bank"].interrupted and time.monotonic() < deadline:
            time.sleep(0.01)
        ended.set()
        asking.join(20)
        assert served["bank"].interrupted[0] == (0, "heart", "pass")


def test_a_party_that_never_comes_is_lost() -> None:
    admits = Admitting("bank", lease=0.3)
    with pytest.raises(LostError, match=r"party bank/0: is away, for \d+ seconds"):
        admits.lines["bank"].ask(0, pa.py_buffer(b""), "", "")


class Once:
    """Counts how often each request is served, and breaks the stream before it answers."""

    def __init__(self, broken: Callable[[], None]) -> None:
        self.broken, self.served = broken, 0

    def __call__(self, data: pa.Buffer) -> pa.Buffer:
        self.served += 1
        self.broken()
        return pa.py_buffer(f"{self.served}".encode())


@WAYS
def test_a_request_is_served_once_however_often_it_is_sent(secure: bool) -> None:
    """The stream breaks between request and reply: the party comes again, and answers alike."""
    admits = Admitting("bank", lease=20.0)
    agents: list[Agent] = []

    def broken() -> None:
        stream = agents[0]._stream
        assert stream is not None
        stream.cancel()
        time.sleep(0.1)

    once = Once(broken)
    with ExitStack() as stack:
        server = stack.enter_context(serving(admits, secure=secure))
        given = credentials("bank") if secure else Credentials()
        agents.append(Agent(at(server, secure=secure), "bank", 1, Serving([once]), given))
        stack.enter_context(running(agents[0]))
        assert admits.there["bank"].wait(20)
        for turn in range(1, 4):
            reply = admits.lines["bank"].ask(0, pa.py_buffer(b"x"), "", "")
            assert reply.to_pybytes() == str(turn).encode()
    assert once.served == 3


def test_what_a_restarted_party_was_asked_is_lost() -> None:
    admits = Admitting("bank", lease=20.0)
    begun, over = threading.Event(), threading.Event()

    def slow(data: pa.Buffer) -> pa.Buffer:
        begun.set()
        assert over.wait(20)
        return data

    found: list[LostError] = []

    def ask() -> None:
        try:
            admits.lines["bank"].ask(0, pa.py_buffer(b""), "", "")
        except LostError as error:
            found.append(error)

    with serving(admits, secure=False) as server:
        where = at(server, secure=False)
        first = Agent(where, "bank", 1, Serving([slow]), Credentials())
        process = threading.Thread(target=first.run)
        process.start()
        asking = threading.Thread(target=ask)
        asking.start()
        assert begun.wait(20)
        first.stop()
        assert admits.gone["bank"].wait(20)
        with running(Agent(where, "bank", 1, Serving([doubled]), Credentials())):
            assert admits.there["bank"].wait(20)
            asking.join(20)
            reply = admits.lines["bank"].ask(0, pa.py_buffer(b"a"), "", "")
            assert reply.to_pybytes() == b"aa"
            over.set()
            process.join(20)
    assert "party bank/0: was restarted, and has forgotten the run" in str(found[0])


def test_what_was_asked_before_it_came_is_answered() -> None:
    admits = Admitting("bank", lease=20.0)
    with ThreadPoolExecutor(1) as pool, serving(admits, secure=False) as server:
        reply = pool.submit(admits.lines["bank"].ask, 0, pa.py_buffer(b"a"), "", "")
        where = at(server, secure=False)
        with running(Agent(where, "bank", 1, Serving([doubled]), Credentials())):
            assert reply.result(20).to_pybytes() == b"aa"


def test_who_stops_reading_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is stopped keeps its connection open, and says nothing."""
    with connected({"bank": [doubled]}, times=QUICK) as (admits, _):
        line = admits.lines["bank"]
        until(lambda: line.away == 0.0)
        monkeypatch.setattr("sqlfl.service.frames.Sender._write", lambda *_: None)
        until(lambda: line.away > 0.0, 20)
        monkeypatch.undo()


REFUSED = {
    "no certificate": (lambda: Credentials(authority=credentials("x").authority), "bank"),
    "another name": (lambda: credentials("eve"), "bank"),
    "of no party": (lambda: credentials("eve"), "eve"),
}


@pytest.mark.parametrize(("given", "name"), REFUSED.values(), ids=REFUSED)
def test_who_is_not_admitted(given: Callable[[], Credentials], name: str) -> None:
    admits, served = Admitting("bank"), Serving([doubled])
    with serving(admits, secure=True) as server:
        where = at(server, secure=True)
        said = texts_until(lambda say: Agent(where, name, 1, served, given(), say))
    assert not admits.there["bank"].is_set()
    assert not served.sessions
    assert any("refuses: there is no party" in t or "no connection" in t for t in said), said


def test_a_certificate_of_another_authority_does_not_connect() -> None:
    key, other = ct.make_authority("authority")
    own = ct.make_key()
    forged = Credentials(own, ct.sign(ct.signing_request(own, "bank"), key, other), None)
    admits, served = Admitting("bank"), Serving([doubled])
    with serving(admits, secure=True) as server:
        where = at(server, secure=True)
        trusted = Credentials(forged.key, forged.certificate, credentials("x").authority)
        said = texts_until(lambda say: Agent(where, "bank", 1, served, trusted, say))
    assert not admits.there["bank"].is_set()
    assert any("no connection" in text for text in said)


def test_what_to_look_at_is_said_once() -> None:
    away, served = "grpc://127.0.0.1:1", Serving([doubled])
    first, *others = texts_until(
        lambda say: Agent(away, "bank", 1, served, Credentials(), say), lambda said: len(said) == 3
    )
    assert "(nothing listens there: is the coordinator running" in first
    assert others
    assert not [text for text in others if "nothing listens" in text]


def test_plaintext_to_a_server_with_tls_does_not_connect() -> None:
    admits, served = Admitting("bank"), Serving([doubled])
    with serving(admits, secure=True) as server:
        where = f"grpc://127.0.0.1:{server.port}"
        said = texts_until(lambda say: Agent(where, "bank", 1, served, Credentials(), say))
    assert not admits.there["bank"].is_set()
    assert any("no connection" in text for text in said)


def test_who_waits_for_a_party_that_is_away_is_interrupted_after_another_pass() -> None:
    """By their name: a pass is another one every few hours. Others go on waiting."""
    line = PartyConnection("bank", 60.0)
    found: dict[str, str] = {}

    def ask(analyst: str) -> None:
        try:
            line.ask(0, pa.py_buffer(b""), "heart", f"a pass of {analyst}", analyst)
        except LostError as error:
            found[analyst] = str(error)

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("alice", "carol")]
    for thread in threads:
        thread.start()
    until(lambda: len(line._pending) == 2)
    line.interrupt(0, "lung", "another pass", "alice")
    assert len(line._pending) == 2
    line.interrupt(0, "heart", "another pass", "alice")
    threads[0].join(20)
    assert "is away" in found["alice"]
    assert "carol" not in found
    line.close("over")
    threads[1].join(20)
    assert "over" in found["carol"]
