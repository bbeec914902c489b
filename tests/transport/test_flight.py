"""Conformance of Arrow Flight: real agents over real streams, with certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager

import duckdb

import sqlfl
from sqlfl.contract.schema import Client
from sqlfl.service.agent import Agent
from sqlfl.service.analyst_sessions import RemoteEnd
from sqlfl.service.hosting import Host
from sqlfl.service.party_connection import PartyConnection
from sqlfl.transport.base import Handler, Transport
from sqlfl.transport.local import LocalTransport
from tests.service.party import Admitting, at, credentials, running, serving
from tests.transport.conformance import PASS, ElsewhereConformance, Handling, Interrupting

SECRET = bytes(32)


def end(line: PartyConnection) -> RemoteEnd:
    return RemoteEnd(line, "heart", lambda: PASS, "alice")


def transport_over(ends: Mapping[Client, RemoteEnd]) -> LocalTransport:
    """As `Federation.admit` has it: the transport of one process, over the lines' ends."""
    return LocalTransport(
        {client: own.handle for client, own in ends.items()},
        {client: own.interrupt for client, own in ends.items()},
    )


class TestFlight(ElsewhereConformance):
    @contextmanager
    def lines(
        self, handlers: Mapping[Client, Handler], interrupts: Interrupting
    ) -> Iterator[tuple[Transport, Callable[[Client], None]]]:
        admits = Admitting(*(client.party for client in handlers))
        agents = {}
        with ExitStack() as stack:
            server = stack.enter_context(serving(admits, secure=True))
            for client, handler in handlers.items():
                name = client.party
                own = Handling(handler, interrupts.get(client))
                agent = Agent(at(server, secure=True), name, 1, own, credentials(name))
                agents[client] = stack.enter_context(running(agent))
            for there in admits.there.values():
                assert there.wait(20)
            ends = {client: end(admits.lines[client.party]) for client in handlers}

            def lose(client: Client) -> None:
                agents[client].stop()
                admits.lines[client.party].hurry()

            yield stack.enter_context(closing(transport_over(ends))), lose

    @contextmanager
    def opened(
        self, handlers: Mapping[Client, Handler], interrupts: Interrupting
    ) -> Iterator[Transport]:
        with self.lines(handlers, interrupts) as (transport, _):
            yield transport

    @contextmanager
    def losing(
        self, handlers: Mapping[Client, Handler]
    ) -> Iterator[tuple[Transport, Callable[[Client], None]]]:
        with self.lines(handlers, {}) as found:
            yield found

    @contextmanager
    def federated(
        self, parties: Mapping[str, duckdb.DuckDBPyConnection]
    ) -> Iterator[sqlfl.Federation]:
        admits = Admitting(*parties)
        with ExitStack() as stack:
            server = stack.enter_context(serving(admits, secure=True))
            for name, con in parties.items():
                known = lambda study, speaker: speaker  # noqa: E731
                host = stack.enter_context(Host(name, con, secret=SECRET, known=known, open=True))
                agent = Agent(at(server, secure=True), name, 1, host, credentials(name))
                stack.enter_context(running(agent))
            fed = stack.enter_context(sqlfl.Federation(progress=False, analyst=PASS))
            for name in parties:
                assert admits.there[name].wait(20)
                fed.admit(name, {0: end(admits.lines[name])})
            yield fed
