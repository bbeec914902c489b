"""What should not come, by streams of the real doors: both ends stay, and so do other streams."""

from __future__ import annotations

import gc
import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from sqlfl import messages as ms
from sqlfl.base.errors import LostError
from sqlfl.messages.wire import encoded, received
from sqlfl.service import agent as agents
from sqlfl.service.agent import HELLO, PARTY, Agent, Refused
from sqlfl.service.analyst_sessions import RemoteEnd
from sqlfl.service.frames import END, REPLY, REQUEST, SCHEMA, Frame, Receiver, Sender
from sqlfl.service.party_connection import MAX_UNAWAITED, PartyConnection
from sqlfl.service.server import Times
from sqlfl.service.service import ANALYST, Service
from sqlfl.service.settings import Member
from sqlfl.service.stream import Credentials, Stream
from tests.depth import SEED, THOROUGH
from tests.service.party import (
    QUICK,
    Admitting,
    Serving,
    at,
    connected,
    running,
    serving,
)
from tests.service.processes import resident, until
from tests.service.study import settings
from tests.service.test_party_connection import doubled

PLAIN = Credentials()
NOTHING = pa.py_buffer(b"")
MORE = 96 << 20
"""Bytes of memory that twenty thousand frames of nonsense may take at most."""


def hello(**changed: Any) -> Frame:
    return Frame(HELLO, {"versions": [1], "name": "bank", "clients": 1, "boot": "x", **changed})


@contextmanager
def joined(admits: Admitting, **changed: Any) -> Iterator[Stream]:
    """A party by hand."""
    with (
        serving(admits, secure=False) as server,
        Stream(at(server, secure=False), PLAIN, PARTY) as stream,
    ):
        assert stream.greeted(hello(**changed)).kind == "welcome"
        yield stream


def asked(line: PartyConnection) -> tuple[threading.Thread, list[object]]:
    found: list[object] = []

    def ask() -> None:
        try:
            found.append(line.ask(0, NOTHING, "", "").to_pybytes())
        except LostError as error:
            found.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, found


# -- at the coordinator ----------------------------------------------------------------------------

BROKEN = {
    "a reply to no request": Frame(REPLY, {"number": 99}, pa.py_buffer(b"forged")),
    "a reply without a number": Frame(REPLY, {}),
    "a reply of number 0": Frame(REPLY, {"number": 0}),
    "a request": Frame(REQUEST, {"number": 1}),
    "a kind that is none": Frame("gossip", {}),
    "an end": Frame(END),
    "a secret itself": Frame("secret", {"check": "s" * 32}),
    "a secret of no length": Frame("secret", {"check": ""}),
}


@pytest.mark.parametrize("frame", BROKEN.values(), ids=BROKEN)
def test_a_party_that_breaks_the_rules(frame: Frame) -> None:
    """It is sent away, and what it was asked is lost at once: it would come again and again."""
    admits = Admitting("bank", lease=60.0)
    with joined(admits) as stream:
        thread, found = asked(admits.lines["bank"])
        assert stream.receive().kind == REQUEST
        stream.sender.send(frame)
        thread.join(10)
        assert "sent what it should not" in str(found[0]), found
        with pytest.raises((EOFError, pa.ArrowException)):
            stream.receive()


def test_replies_twice_and_too_late() -> None:
    admits = Admitting("bank", lease=60.0)
    line = admits.lines["bank"]
    with joined(admits) as stream:
        for number in (1, 2):
            thread, found = asked(line)
            request = stream.receive()
            assert request.number("number") == number
            assert request.told["received"] == ([] if number == 1 else [1])
            for _ in range(3):  # the first counts
                body = pa.py_buffer(f"{number} {len(found)}".encode())
                stream.sender.send(Frame(REPLY, {"number": number}, body))
                thread.join(10)
            assert found == [f"{number} 0".encode()]
        assert line.bytes_up == 6


def test_a_request_that_the_party_could_not_serve() -> None:
    def fails(data: pa.Buffer) -> pa.Buffer:
        raise ZeroDivisionError

    with (
        connected({"bank": [fails]}, secure=False) as (admits, _),
        pytest.raises(LostError, match="bank/0: failed beyond its own failures"),
    ):
        admits.lines["bank"].ask(0, NOTHING, "", "")


def test_a_request_that_ends_every_stream() -> None:
    """It is not sent for ever."""
    sent: list[Frame] = []

    class Breaks(Sender):
        def __init__(self) -> None:
            pass

        def send(self, frame: Frame) -> None:
            sent.append(frame)

    line = PartyConnection("bank", 60.0)
    thread, found = asked(line)
    for _ in range(30):
        sender = Breaks()
        line.connect(sender, "boot")
        line.disconnect(sender)
    thread.join(10)
    assert "the connection has broken each time" in str(found[0])
    assert len(sent) == 20


def test_requests_rise_in_number() -> None:
    """Whoever sends them: the party takes a lower one for one that it has forgotten."""
    seen: list[int] = []

    class Notes(Sender):
        def __init__(self) -> None:
            pass

        def send(self, frame: Frame) -> None:
            seen.append(frame.number("number"))
            threading.Thread(
                target=line.receive, args=(Frame(REPLY, {"number": seen[-1]}),)
            ).start()

    line = PartyConnection("bank", 5.0)
    line.connect(Notes(), "boot")
    threads = [
        threading.Thread(target=lambda: [line.ask(0, NOTHING, "", "") for _ in range(50)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == sorted(seen)
    assert len(set(seen)) == 400
    assert not line._pending


def test_of_two_agents_of_one_name_the_later_serves() -> None:
    admits = Admitting("bank", lease=20.0)
    refused: list[str] = []

    def first() -> None:
        try:
            older.run()
        except Refused as error:
            refused.append(str(error))

    with serving(admits, secure=False, times=Times(60.0, 2.0)) as server:
        where = at(server, secure=False)
        older = Agent(where, "bank", 1, Serving([lambda _: pa.py_buffer(b"old")]), PLAIN)
        thread = threading.Thread(target=first)
        thread.start()
        assert admits.there["bank"].wait(20)
        line = admits.lines["bank"]
        assert line.ask(0, NOTHING, "", "").to_pybytes() == b"old"
        newer = Serving([lambda _: pa.py_buffer(b"new")])
        with running(Agent(where, "bank", 1, newer, PLAIN)):
            thread.join(20)
            assert not thread.is_alive()
            assert "another agent of this name has connected since" in refused[0]
            for _ in range(20):
                assert line.ask(0, NOTHING, "", "").to_pybytes() == b"new"
                time.sleep(0.02)
            assert line.away == 0.0
        assert line.reconnections == 1


def test_a_run_is_ended_once_the_party_is_back() -> None:
    """Where it was away for too long, nobody waits any more, and the party would keep the run."""
    line = PartyConnection("bank", 0.2)
    end = RemoteEnd(line, "heart", lambda: "pass", "alice")
    kept: list[Frame] = []

    class Notes(Sender):
        def __init__(self) -> None:
            pass

        def send(self, frame: Frame) -> None:
            kept.append(frame)

    first, second = Notes(), Notes()
    line.connect(first, "boot")
    line.disconnect(first)
    for message in (ms.SendKeys("r", 0), ms.Finish("r", -1)):
        line._away_since = -1e9
        with pytest.raises(LostError):
            end.handle(pa.py_buffer(encoded(message)))
    for _ in range(MAX_UNAWAITED + 5):
        line.leave(0, pa.py_buffer(encoded(ms.Finish("r", -1))), "heart", "pass")
    line.connect(second, "boot")
    assert len(kept) == MAX_UNAWAITED
    assert {received(frame.body).kind for frame in kept} == {"finish"}
    for frame in kept:
        line.receive(Frame(REPLY, {"number": frame.number("number")}))
    assert not line._pending
    assert not line._left


def test_a_peer_that_reads_nothing_holds_up_nobody() -> None:
    """It is asked for much and takes nothing: who asks is told in time, and others go on."""
    admits = Admitting("lab")
    admits.admit("bank", lease=1.0)
    large = pa.py_buffer(np.zeros(64 << 20, np.uint8))
    with serving(admits, secure=False, times=QUICK) as server, ExitStack() as stack:
        where = at(server, secure=False)
        stuck = stack.enter_context(Stream(where, PLAIN, PARTY))
        assert stuck.greeted(hello()).kind == "welcome"
        stack.enter_context(running(Agent(where, "lab", 1, Serving([doubled]), PLAIN)))
        assert admits.there["lab"].wait(20)
        began = time.monotonic()
        with pytest.raises(LostError, match="bank/0: is away"):
            admits.lines["bank"].ask(0, large, "", "")
        assert time.monotonic() - began < 10
        assert admits.lines["lab"].ask(0, pa.py_buffer(b"a"), "", "").to_pybytes() == b"aa"
        began = time.monotonic()
        server.shutdown(0.5)
        assert time.monotonic() - began < 10


# -- at the party ----------------------------------------------------------------------------------


class Coordinator(flight.FlightServerBase):  # type: ignore[misc]
    """One that says what it likes: `says` speaks with each agent that connects."""

    def __init__(self, says: Callable[[Receiver, Any], None]) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._says = says
        self.session = "s"

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        writer.begin(SCHEMA)
        with suppress(EOFError, pa.ArrowException, OSError):
            receiver = Receiver(reader)
            assert receiver.receive().kind == HELLO
            told = {"version": 1, "coordinator": "c", "session": self.session,
                    "lease_ms": 60_000, "heartbeat_ms": 500}  # fmt: skip
            Sender(writer).send(Frame("welcome", told))
            self._says(receiver, writer)


def numbered(number: int, body: bytes = b"", **told: Any) -> Frame:
    given = {"number": number, "client": 0, "study": "heart", "pass": "p", **told}
    return Frame(REQUEST, given, pa.py_buffer(body))


def replies(receiver: Receiver, count: int) -> list[Frame]:
    found: list[Frame] = []
    while len(found) < count:
        frame = receiver.receive()
        if frame.kind == REPLY:
            found.append(frame)
    return found


def test_requests_twice_and_out_of_order() -> None:
    """Noise included: what was drawn for a number is told for it, and nothing else."""
    served: list[bytes] = []

    def noisy(data: pa.Buffer) -> pa.Buffer:
        served.append(data.to_pybytes())
        return pa.py_buffer(os.urandom(8))

    found: list[Frame] = []
    over = threading.Event()

    def says(receiver: Receiver, writer: Any) -> None:
        sender = Sender(writer)
        for number in (5, 5, 9, 5, 9):
            sender.send(numbered(number, f"{number}".encode()))
            found.extend(replies(receiver, 1))
        sender.send(numbered(5, b"other"))
        sender.send(numbered(4, b"4"))  # below what has come
        found.extend(replies(receiver, 2))
        sender.send(numbered(10, b"10", received=[5]))
        sender.send(numbered(5, b"5"))  # it was forgotten
        found.extend(replies(receiver, 2))
        over.set()

    with Coordinator(says) as server:
        where = f"grpc://127.0.0.1:{server.port}"
        with running(Agent(where, "bank", 1, Serving([noisy]), PLAIN)):
            assert over.wait(20)
    assert sorted(served) == [b"10", b"5", b"9"]
    five, nine = found[0].body.to_pybytes(), found[2].body.to_pybytes()
    assert five != nine
    assert [frame.body.to_pybytes() for frame in found[:5]] == [five, five, nine, five, nine]
    told = {frame.number("number"): frame for frame in found[5:7]}
    assert told[5].body.to_pybytes() == five
    assert "has forgotten" in told[4].text("failed")
    told = {frame.number("number"): frame for frame in found[7:]}
    assert told[10].body.to_pybytes() not in (five, nine)
    assert "has forgotten" in told[5].text("failed")


def test_a_reply_of_one_session_is_none_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is being served while the coordinator is restarted: the next one's request of the
    same number is another one."""
    monkeypatch.setattr(agents, "FIRST_WAIT", 0.05)
    begun, go = threading.Event(), threading.Event()
    found: list[bytes] = []
    over = threading.Event()

    def slow(data: pa.Buffer) -> pa.Buffer:
        if data.to_pybytes() == b"old":
            begun.set()
            assert go.wait(20)
        return data

    def says(receiver: Receiver, writer: Any) -> None:
        sender = Sender(writer)
        if server.session == "s":
            sender.send(numbered(1, b"old"))
            assert begun.wait(20)
            server.session = "t"
            return
        go.set()
        time.sleep(0.2)  # the old one has ended
        sender.send(numbered(1, b"new"))
        found.extend(frame.body.to_pybytes() for frame in replies(receiver, 1))
        over.set()

    with Coordinator(says) as server:
        where = f"grpc://127.0.0.1:{server.port}"
        with running(Agent(where, "bank", 1, Serving([slow]), PLAIN)):
            assert over.wait(20)
    assert found == [b"new"]


def test_a_party_that_is_alone_for_longer_than_the_lease_forgets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agents, "FIRST_WAIT", 0.05)
    admits, served = Admitting("bank", lease=1.0), Serving([doubled])
    with ExitStack() as stack:
        server = stack.enter_context(
            serving(admits, secure=False, times=Times(1.0, QUICK.heartbeat))
        )
        agent = Agent(at(server, secure=False), "bank", 1, served, PLAIN)
        stack.enter_context(running(agent))
        assert admits.there["bank"].wait(20)
        boot = agent._boot
        server.shutdown()
        until(lambda: len(served.sessions) == 2)
        assert served.sessions[1] == ""  # it has forgotten
        assert agent._boot != boot


def test_who_says_no_welcome_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlfl.service.stream.WELCOMED", 0.3)

    class Silent(flight.FlightServerBase):  # type: ignore[misc]
        def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            writer.begin(SCHEMA)
            with suppress(pa.ArrowException, OSError, StopIteration):
                while True:
                    reader.read_chunk()

    said: list[str] = []
    with Silent("grpc://127.0.0.1:0") as server:
        where = f"grpc://127.0.0.1:{server.port}"
        with running(Agent(where, "bank", 1, Serving([doubled]), PLAIN, said.append)):
            until(lambda: len(said) > 1, 10)
    assert "no connection" in said[0]


def test_a_coordinator_that_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Amid a reply: the agent comes again, and answers."""
    monkeypatch.setattr(agents, "FIRST_WAIT", 0.05)
    streams: list[int] = []
    answered, over = threading.Event(), threading.Event()
    large = pa.py_buffer(np.zeros(64 << 20, np.uint8))

    def says(receiver: Receiver, writer: Any) -> None:
        streams.append(1)
        Sender(writer).send(numbered(1))
        if len(streams) == 1:
            assert over.wait(20)
            return
        (reply,) = replies(receiver, 1)
        assert reply.body.equals(large)
        answered.set()

    with Coordinator(says) as server:
        where = f"grpc://127.0.0.1:{server.port}"
        with running(Agent(where, "bank", 1, Serving([lambda _: large]), PLAIN)):
            assert answered.wait(20)
        over.set()


def test_a_party_is_stopped_while_it_serves() -> None:
    """And told so again: between two queries nothing hears."""
    begun = threading.Event()
    told: list[int] = []

    class Deaf(Serving):
        def stop(self) -> None:
            told.append(1)

    def slow(data: pa.Buffer) -> pa.Buffer:
        begun.set()
        until(lambda: len(told) > 3, 20)
        return data

    admits, served = Admitting("bank"), Deaf([slow])
    with serving(admits, secure=False) as server:
        with running(Agent(at(server, secure=False), "bank", 1, served, PLAIN)):
            assert admits.there["bank"].wait(20)
            asked(admits.lines["bank"])
            assert begun.wait(20)
        admits.lines["bank"].close("over")


# -- nonsense --------------------------------------------------------------------------------------

KINDS = (REQUEST, REPLY, "interrupt", "ping", "pong", "hello", "welcome", "call", "pass", "end",
         "answer", "step", "", "x" * 1000)  # fmt: skip
VALUES = (0, 1, -1, 2**63, 2**200, 1.5, True, None, "", "p", "x" * 2000, [], [1, "a", None], {})
NAMES = ("number", "client", "study", "pass", "received", "what", "failed", "versions", "name",
         "boot", "clients")  # fmt: skip


def nonsense(draw: random.Random) -> list[bytes | None]:
    """Pieces, and batches (None): truncated, oversized, changed, and such as could be."""
    told: dict[str, Any] = {name: draw.choice(VALUES) for name in draw.sample(NAMES, 4)}
    told |= {"kind": draw.choice(KINDS), "size": draw.choice([0, 0, 1, 3, 2**33, 2**62, -1, "1"])}
    if draw.random() < 0.5:
        told |= {"number": draw.randrange(5), "client": 0, "study": "s", "pass": "p"}
    header = json.dumps(told).encode()
    shape = draw.random()
    if shape < 0.15:
        header = header[: draw.randrange(len(header))]
    elif shape < 0.3:
        at = draw.randrange(len(header))
        header = header[:at] + draw.randbytes(3) + header[at:]
    elif shape < 0.35:
        header = draw.randbytes(draw.randrange(200))
    elif shape < 0.37:
        header = b"[" * 50_000
    elif shape < 0.38:
        header = b" " * (1 << 20) + header
    size = draw.choice([0, 0, 1, 3, 10, 10_000])
    length = draw.choice([0, 2**31]) if draw.random() < 0.05 else len(header)
    found: list[bytes | None] = [length.to_bytes(4, "little") + header + bytes(size)]
    found += [draw.choice([None, b"", b"x", bytes(5)]) for _ in range(draw.randrange(3))]
    return found


def put(writer: Any, draw: random.Random) -> int:
    pieces = nonsense(draw)
    for piece in pieces:
        if piece is None:
            writer.write_batch(pa.record_batch([], schema=SCHEMA))
        else:
            writer.write_metadata(pa.py_buffer(piece))
    return len(pieces)


SCHEMAS = (SCHEMA, SCHEMA, SCHEMA, SCHEMA, pa.schema([("bytes", pa.string())]),
           pa.schema([("bytes", pa.uint8())]),
           pa.schema([("a", pa.dictionary(pa.int8(), pa.string()))]))  # fmt: skip
FRAMES = 20_000 if THOROUGH else 300


@pytest.mark.parametrize("door", ["party", "analyst", "nobody"])
def test_nonsense_at_the_coordinators_doors(door: str, tmp_path: Path) -> None:
    own = settings(tmp_path, {"bank": 1, "lab": 1}, lease=2.0, heartbeat=0.5)
    own = replace(own, parties={name: Member(agents=(name,)) for name in own.parties})
    service = Service(own, "grpc://127.0.0.1:0", None, insecure=True)
    where = f"grpc://127.0.0.1:{service.port}"
    greeting = {
        "party": Frame(HELLO, {"versions": [1], "name": "bank", "clients": 1, "boot": "x"}),
        "analyst": Frame(HELLO, {"versions": [1], "study": "heart", "pass": "alice"}),
        "nobody": Frame("gossip"),
    }[door]
    what = {"party": PARTY, "analyst": ANALYST, "nobody": "x"}[door]
    draw, before, sent = random.Random(f"{SEED} {door}"), 0, 0
    client = flight.FlightClient(where)
    try:
        with running(Agent(where, "lab", 1, Serving([doubled]), PLAIN)):
            line = service._lines["lab"][0]
            until(lambda: line.away == 0.0)
            while sent < FRAMES:
                writer, reader = client.do_exchange(flight.FlightDescriptor.for_path(what))
                with suppress(pa.ArrowException, OSError, StopIteration):
                    schema = draw.choice(SCHEMAS)
                    writer.begin(schema)
                    sent += schema is not SCHEMA
                    if schema is SCHEMA and draw.random() < 0.8:
                        Sender(writer).send(greeting)
                        reader.read_chunk()
                    for _ in range(draw.randrange(1, 6) if schema is SCHEMA else 0):
                        sent += put(writer, draw)
                if draw.random() < 0.5:
                    with suppress(pa.ArrowException, OSError):
                        writer.close()
                reader.cancel()
                if sent % 50 == 0:
                    assert line.ask(0, pa.py_buffer(b"a"), "", "").to_pybytes() == b"aa"
                if not before and sent > FRAMES // 4:
                    gc.collect()
                    before = resident(os.getpid())
            gc.collect()
            assert resident(os.getpid()) - before < MORE
            assert line.ask(0, pa.py_buffer(b"a"), "", "").to_pybytes() == b"aa"
            until(lambda: len(service._server._outboxes) <= 2)  # those of nobody are gone
    finally:
        client.close()
        service.close(5.0)


def test_nonsense_at_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(agents, "MAX_WAIT", 0.001)
    draw = random.Random(f"{SEED} agent")
    sent, over, good = [0], threading.Event(), threading.Event()
    before = [0]

    def says(receiver: Receiver, writer: Any) -> None:
        if sent[0] >= FRAMES:
            over.set()
            Sender(writer).send(numbered(10**6, b"a"))
            (frame,) = [f for f in replies(receiver, 1) if f.number("number") == 10**6]
            if frame.body.to_pybytes() == b"aa":
                good.set()
            return
        if not before[0] and sent[0] > FRAMES // 4:
            before[0] = resident(os.getpid())
        for _ in range(draw.randrange(1, 6)):
            sent[0] += put(writer, draw)

    with Coordinator(says) as server:
        where = f"grpc://127.0.0.1:{server.port}"
        with running(Agent(where, "bank", 1, Serving([doubled]), PLAIN)) as agent:
            assert over.wait(3000 if THOROUGH else 120)
            assert good.wait(20)
            gc.collect()
            assert resident(os.getpid()) - before[0] < MORE
            assert len(agent._replies._done) <= 512
