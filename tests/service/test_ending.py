"""The end of a coordinator while others are connected."""

from __future__ import annotations

from contextlib import ExitStack

import pyarrow as pa
import pytest

from sqlfl.service.agent import HELLO, PARTY, Agent
from sqlfl.service.answers import bytes_to_error
from sqlfl.service.calls import CALL, FAILED, SQL, Calls
from sqlfl.service.frames import VERSIONS, Frame
from sqlfl.service.server import CoordinatorServer
from sqlfl.service.status import ServiceStatus
from sqlfl.service.stream import Credentials, Stream
from tests.service.party import QUICK, Admitting, Serving, at, running


def served(admits: Admitting) -> CoordinatorServer:
    return CoordinatorServer("grpc://127.0.0.1:0", "coordinator", admits, Credentials(), QUICK)


def test_who_is_connected_is_told_and_goes() -> None:
    admits, said = Admitting("bank"), list[str]()
    server = served(admits)
    where = at(server, secure=False)
    with ExitStack() as stack:
        agent = Agent(where, "bank", 1, Serving([]), Credentials(), said.append)
        stack.enter_context(running(agent))
        assert admits.there["bank"].wait(20)
        assert server.shutdown(20.0)
        assert admits.gone["bank"].is_set()
    assert "no connection: the coordinator has ended" in said


class Sent:
    """A sender that keeps what it is to send."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def send(self, frame: Frame) -> None:
        self.frames.append(frame)


def test_nothing_begins_while_it_ends() -> None:
    sent = Sent()
    calls = Calls(None, sent, 4, ServiceStatus(()))  # type: ignore[arg-type]
    calls.end()
    calls.take(Frame(CALL, {"number": 1, "what": SQL}, pa.py_buffer(b"SHOW MODELS")))
    (frame,) = sent.frames
    assert frame.kind == FAILED
    assert str(bytes_to_error(frame.body)).startswith("the coordinator ends")
    assert calls.running == 0


def test_who_does_not_go_is_cut_off() -> None:
    """A process that is stopped reads nothing, and keeps its connection."""
    admits = Admitting("bank")
    server = served(admits)
    with Stream(at(server, secure=False), Credentials(), PARTY) as stream:
        told = {"versions": list(VERSIONS), "name": "bank", "clients": 1, "boot": "b"}
        stream.sender.send(Frame(HELLO, told))
        assert admits.there["bank"].wait(20)
        assert server.shutdown()
        assert admits.gone["bank"].is_set()


def test_who_cannot_be_cut_off_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a system does not say which files a process has."""
    admits = Admitting("bank")
    server = served(admits)
    with Stream(at(server, secure=False), Credentials(), PARTY) as stream:
        told = {"versions": list(VERSIONS), "name": "bank", "clients": 1, "boot": "b"}
        stream.sender.send(Frame(HELLO, told))
        assert admits.there["bank"].wait(20)
        monkeypatch.setattr("sqlfl.service.streams._PLACES", ())
        assert not server.shutdown(0.3)
        assert not admits.gone["bank"].is_set()
    assert admits.gone["bank"].wait(20)
