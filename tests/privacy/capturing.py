"""What the coordinator holds after a statement: every message that crossed a border, decoded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import sqlfl
from sqlfl.contract.schema import Client
from sqlfl.messages import Message
from sqlfl.messages.wire import decode
from sqlfl.transport.base import Transport
from sqlfl.transport.recording import RecordingTransport
from tests.federations import Parties, federation


class View:
    """The messages of one run, in order."""

    def __init__(self, messages: list[tuple[str, Client, Message]]) -> None:
        self._messages = messages

    def of(self, kind: str, direction: str, party: str, client: int | None = None) -> list[Message]:
        """Messages of a kind from ('up') or to ('down') a party, or one of its clients."""
        return [
            message
            for way, who, message in self._messages
            if way == direction
            and message.kind == kind
            and who.party == party
            and client in (None, who.index)
        ]


class Coordinator:
    """The transport's recorder, read as the coordinator that follows the protocol can read it."""

    def __init__(self) -> None:
        self._taken = 0

    def __call__(self, inner: Transport) -> Transport:
        self._transport = RecordingTransport(inner)
        return self._transport

    def view(self) -> View:
        """What was captured since the last call."""
        fresh = self._transport.recorded[self._taken :]
        self._taken = len(self._transport.recorded)
        return View([(r.direction, r.client, decode(r.data)) for r in fresh])


@contextlib.contextmanager
def watched(parties: Parties) -> Iterator[tuple[sqlfl.Federation, Coordinator]]:
    """A federation of these databases, and the one who sees all its traffic."""
    coordinator = Coordinator()
    with federation(parties, wrap=coordinator) as fed:
        yield fed, coordinator
