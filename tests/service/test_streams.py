"""Streams that harm before a frame has come: what is unpacked, and who says nothing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from sqlfl.base.errors import WireError
from sqlfl.service import streams
from sqlfl.service.agent import PARTY, Agent
from sqlfl.service.frames import MAX_PIECE_BYTES, SCHEMA, Frame, Receiver
from sqlfl.service.server import CoordinatorServer
from sqlfl.service.stream import Credentials, Stream
from sqlfl.service.streams import Most, Streams, cut, peer_of
from tests.service.party import QUICK, Admitting, Serving, at, credentials, running, serving
from tests.service.processes import until

PLAIN = Credentials()
SIZE = 64 << 20
BATCH = pa.record_batch([pa.array(np.zeros(SIZE, np.uint8))], names=["bytes"])
ZSTD = pa.ipc.IpcWriteOptions(compression="zstd")


def test_who_brings_columns_is_sent_away() -> None:
    """By the schema, before a batch of it is read."""
    with serving(Admitting("bank"), secure=False) as server:
        client = flight.FlightClient(at(server, secure=False))
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_path(PARTY))
        writer.begin(BATCH.schema)
        told = Receiver(reader).receive()
        assert told.kind == "refused"
        assert "a stream of another format" in told.text("why")
        writer.close()
        client.close()


class Hostile(flight.FlightServerBase):  # type: ignore[misc]
    """A coordinator that begins a stream by what it likes."""

    def __init__(self, says: Callable[[Any, Any], None]) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._says = says

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with suppress(pa.ArrowException, OSError, StopIteration):
            self._says(context, writer)
            while True:
                reader.read_chunk()


def _batch(context: Any, writer: Any) -> None:
    writer.begin(BATCH.schema, options=ZSTD)
    writer.write_batch(BATCH)


def _packed(context: Any, writer: Any) -> None:
    """By gRPC itself, on the way."""
    context.add_header("grpc-internal-encoding-request", "gzip")
    writer.begin(SCHEMA)
    writer.write_metadata(pa.py_buffer(bytes(1 << 16)))


def _long(context: Any, writer: Any) -> None:
    writer.begin(SCHEMA)
    writer.write_metadata(pa.py_buffer(bytes(MAX_PIECE_BYTES + (1 << 13))))


SAID = {
    "a compressed batch": (_batch, WireError, "another format"),
    "what gRPC would unpack": (_packed, pa.ArrowException, "algorithm 'gzip' is disabled"),
    "more at once than a piece": (_long, (pa.ArrowException, EOFError), None),
}


@pytest.mark.parametrize(("says", "error", "why"), SAID.values(), ids=SAID)
def test_what_a_coordinator_would_have_unpacked(
    says: Callable[[Any, Any], None], error: type[Exception], why: str | None
) -> None:
    with Hostile(says) as server:
        stream = Stream(f"grpc://127.0.0.1:{server.port}", PLAIN, PARTY)
        with stream, pytest.raises(error, match=why):
            stream.greeted(Frame("hello", {}))


# -- who says nothing ------------------------------------------------------------------------------


def opened(server: CoordinatorServer, stack: ExitStack) -> Stream:
    return stack.enter_context(Stream(at(server, secure=False), PLAIN, PARTY))


def hello(name: str) -> Frame:
    return Frame("hello", {"versions": [1], "name": name, "clients": 1, "boot": "b"})


def test_streams_of_one_certificate_are_bounded() -> None:
    admits = Admitting("bank", "lab")
    with ExitStack() as stack:
        server = stack.enter_context(serving(admits, secure=True, most=Most(each=2)))
        bank, lab = credentials("bank"), credentials("lab")
        where = at(server, secure=True)
        silent = [stack.enter_context(Stream(where, bank, PARTY)) for _ in range(2)]
        until(lambda: server._streams._of == {"bank": 2})
        third = stack.enter_context(Stream(where, bank, PARTY))
        told = third.greeted(hello("bank"))
        assert told.kind == "refused"
        assert "'bank' has 2 streams already: `streams` in the" in told.text("why")
        other = stack.enter_context(Stream(where, lab, PARTY))
        assert other.greeted(hello("lab")).kind == "welcome"
        silent[0].cancel()
        until(lambda: server._streams._of == {"bank": 1, "lab": 1})
        again = stack.enter_context(Stream(where, bank, PARTY))
        assert again.greeted(hello("bank")).kind == "welcome"


def test_without_certificates_streams_of_one_name_are_bounded() -> None:
    admits = Admitting("bank")
    with ExitStack() as stack:
        server = stack.enter_context(serving(admits, secure=False, most=Most(each=1)))
        assert opened(server, stack).greeted(hello("bank")).kind == "welcome"
        assert "1 streams already" in opened(server, stack).greeted(hello("bank")).text("why")


def test_strangers_are_bounded() -> None:
    """Who has said who it is counts as none."""
    admits = Admitting("bank", "lab")
    with ExitStack() as stack:
        server = stack.enter_context(serving(admits, secure=False, most=Most(strangers=2)))
        assert opened(server, stack).greeted(hello("bank")).kind == "welcome"
        silent = [opened(server, stack) for _ in range(2)]
        until(lambda: server._streams._strangers == 2)
        with pytest.raises(pa.ArrowException, match="2 streams have not said who they are"):
            opened(server, stack).greeted(hello("lab"))
        assert admits.lines["bank"].away == 0.0
        silent[0].cancel()
        until(lambda: server._streams._strangers == 1)
        assert opened(server, stack).greeted(hello("lab")).kind == "welcome"
        silent[1].cancel()
        until(lambda: server._streams._strangers == 0)
    assert not server._streams._calls


def test_who_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream without a hello, and a connection without any stream."""
    admits = Admitting("lab")
    with ExitStack() as stack:
        server = stack.enter_context(serving(admits, secure=False, times=QUICK))
        stranger = opened(server, stack)
        bare = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        agent = Agent(at(server, secure=False), "lab", 1, Serving([lambda data: data]), PLAIN)
        stack.enter_context(running(agent))
        assert admits.there["lab"].wait(20)
        monkeypatch.setattr(streams, "HELLO", 0.5)
        late = threading.Timer(20.0, stranger.cancel)
        late.start()
        with pytest.raises(pa.ArrowException):
            stranger.receive()
        assert late.is_alive(), "it was not cut off"
        late.cancel()
        bare.settimeout(20)
        while bare.recv(4096):
            pass
        until(lambda: len(server._streams._calls) == 1)
        assert admits.lines["lab"].ask(0, pa.py_buffer(b"a"), "", "").to_pybytes() == b"a"


def test_for_how_long_one_may_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []
    peer = ("127.0.0.1", 7)
    monkeypatch.setattr(streams, "cut", lambda port, which: found.append(which(peer)))
    own = Streams(Most(), 60.0)
    info = SimpleNamespace(method=flight.FlightMethod.DO_EXCHANGE)
    call = own.start_call(info, {})
    call.peer = peer
    for let_in, seconds, cut_off in (
        (False, 9.0, False), (False, 11.0, True), (True, 11.0, False), (True, 59.0, False),
        (True, 61.0, True),
    ):  # fmt: skip
        if let_in:
            call.enter()
        call.last = time.monotonic() - seconds
        own.look(1)
        assert found.pop() == cut_off, (let_in, seconds)
    call.heard()
    own.look(1)
    assert found == [False]


def test_nothing_but_streams_is_served() -> None:
    with serving(Admitting(), secure=False) as server:
        client = flight.FlightClient(at(server, secure=False))
        with pytest.raises(flight.FlightUnavailableError, match="nothing of this kind"):
            list(client.do_action("x"))
        with pytest.raises(pa.ArrowException, match="nothing of this kind"):  # by either
            client.do_put(flight.FlightDescriptor.for_path("x"), SCHEMA)[0].close()
        assert server._streams._strangers == 0
        client.close()


PEERS = {
    "ipv4:127.0.0.1:40546": ("127.0.0.1", 40546),
    "ipv6:[::1]:7": ("::1", 7),
    "ipv6:%5B::1%5D:7": ("::1", 7),
    "ipv6:%5Bfe80::1%25eth0%5D:7": ("fe80::1", 7),
    "ipv6:[::ffff:10.0.0.1]:7": ("10.0.0.1", 7),
    "unix:/tmp/x": None,
    "ipv4:": None,
    "": None,
}


@pytest.mark.parametrize("text", PEERS)
def test_what_grpc_calls_a_peer(text: str) -> None:
    assert peer_of(text) == PEERS[text]


def test_only_connections_of_the_port_are_cut() -> None:
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        pairs = []
        for server in servers:
            for _ in range(2):
                client = stack.enter_context(socket.create_connection(server.getsockname()))
                pairs.append((client, stack.enter_context(server.accept()[0])))
        (first, _), (second, own), *others = pairs
        port = servers[0].getsockname()[1]
        assert cut(port, lambda peer: peer == second.getsockname()) == 1
        assert second.recv(1) == own.recv(1) == b""
        for client, end in ((first, pairs[0][1]), *others):
            end.sendall(b"x")
            assert client.recv(1) == b"x"
