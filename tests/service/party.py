"""A server and agents in one process, which serve by functions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import pyarrow as pa

from sqlfl.service import certificates as ct
from sqlfl.service.agent import Agent, Refused
from sqlfl.service.party_connection import PartyConnection
from sqlfl.service.server import CoordinatorServer, Times
from sqlfl.service.stream import Credentials
from sqlfl.service.streams import Most, RefusedStream

AUTHORITY_KEY, AUTHORITY = ct.make_authority("authority")
CALM, QUICK = Times(lease=60.0, heartbeat=20.0), Times(lease=20.0, heartbeat=0.2)
"""Connections that no pause of a slow machine breaks, and such as soon notice one."""
Handler = Callable[[pa.Buffer], pa.Buffer]


def credentials(name: str, *hosts: str, key: bytes = AUTHORITY_KEY) -> Credentials:
    own = ct.make_key()
    signed = ct.sign(ct.signing_request(own, name, hosts), key, AUTHORITY)
    return Credentials(own, signed, AUTHORITY)


SERVER = credentials("coordinator", "localhost", "127.0.0.1")


class Serving:
    """Of a party's clients, by their handlers."""

    def __init__(self, handlers: list[Handler]) -> None:
        self.handlers = handlers
        self.sessions: list[str] = []
        self.interrupted: list[tuple[int, str, str]] = []
        self.asked: list[tuple[int, str, str]] = []

    def welcome(self, coordinator: str, session: str) -> str:
        self.sessions.append(session)
        return ""

    def handle(self, client: int, data: pa.Buffer, study: str, speaker: str) -> pa.Buffer:
        self.asked.append((client, study, speaker))
        return self.handlers[client](data)

    def interrupt(self, client: int, study: str, speaker: str) -> None:
        self.interrupted.append((client, study, speaker))

    def stop(self) -> None:
        pass

    def forget(self) -> None:
        self.sessions.append("")


class Admitting:
    """All whose names are known, once each."""

    def __init__(self, *names: str, lease: float = CALM.lease) -> None:
        self._lease = lease
        self.lines: dict[str, PartyConnection] = {}
        self.there: dict[str, threading.Event] = {}
        self.gone: dict[str, threading.Event] = {}
        for name in names:
            self.admit(name)

    def admit(self, name: str, lease: float | None = None) -> PartyConnection:
        self.there[name], self.gone[name] = threading.Event(), threading.Event()
        self.lines[name] = PartyConnection(name, self._lease if lease is None else lease)
        return self.lines[name]

    def party(self, identity: str, name: str, clients: int) -> PartyConnection:
        if name not in self.lines or identity != name:
            raise RefusedStream(f"there is no party {name} of {identity}")
        return self.lines[name]

    def connected(self, line: PartyConnection) -> None:
        self.gone[line.party].clear()
        self.there[line.party].set()

    def disconnected(self, line: PartyConnection) -> None:
        self.there[line.party].clear()
        self.gone[line.party].set()


@contextmanager
def serving(
    admits: Admitting, *, secure: bool, times: Times = CALM, most: Most | None = None
) -> Iterator[CoordinatorServer]:
    location = "grpc+tls://127.0.0.1:0" if secure else "grpc://127.0.0.1:0"
    own = SERVER if secure else Credentials()
    server = CoordinatorServer(location, "coordinator", admits, own, times, most=most)
    try:
        yield server
    finally:
        server.shutdown()


def at(server: CoordinatorServer, *, secure: bool) -> str:
    return f"{'grpc+tls' if secure else 'grpc'}://127.0.0.1:{server.port}"


@contextmanager
def running(agent: Agent) -> Iterator[Agent]:
    thread = threading.Thread(target=agent.run, name=f"agent of {agent}")
    thread.start()
    try:
        yield agent
    finally:
        agent.stop()
        thread.join(20)
        assert not thread.is_alive()


def texts_until(
    make: Callable[[Callable[[str], None]], Agent], enough: Callable[[list[str]], bool] = bool
) -> list[str]:
    """Run an agent until it has said enough, or is refused, and return its texts."""
    texts: list[str] = []

    def say(text: str) -> None:
        texts.append(text)
        if enough(texts):
            agent.stop()

    agent = make(say)
    late = threading.Timer(60.0, agent.stop)
    late.start()
    try:
        agent.run()
    except Refused as error:
        texts.append(str(error))
    finally:
        late.cancel()
    return texts


@contextmanager
def connected(
    parties: Mapping[str, list[Handler]], *, secure: bool = True, times: Times = CALM
) -> Iterator[tuple[Admitting, dict[str, Serving]]]:
    """Parties by their names, with what serves each of their clients."""
    admits = Admitting(*parties)
    served = {name: Serving(handlers) for name, handlers in parties.items()}
    with ExitStack() as stack:
        server = stack.enter_context(serving(admits, secure=secure, times=times))
        for name, own in served.items():
            given = credentials(name) if secure else Credentials()
            location = at(server, secure=secure)
            stack.enter_context(running(Agent(location, name, len(own.handlers), own, given)))
        for there in admits.there.values():
            assert there.wait(20)
        yield admits, served
