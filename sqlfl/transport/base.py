"""The transport's protocol, and the channel that encodes, counts and audits what it carries."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import pyarrow as pa

from sqlfl.errors import InternalError, PartyError
from sqlfl.messages import Failure, Message
from sqlfl.schema import Client
from sqlfl.wire import decode, encode

Address: TypeAlias = tuple[Client, int]
"""A client and a slot; slot `sqlfl.messages.CLIENT` for the client as a whole."""


class Transport(Protocol):
    """Carries one round: every request to its client, every reply back, in the same order.

    Clients work in parallel; the requests of one client are served in their order. A client that
    fails answers with a `Failure`; a transport raises PartyError where it gets no answer.
    """

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]: ...


@dataclass(frozen=True)
class AuditRecord:
    """One message that crossed a border."""

    seq: int
    at: dt.datetime
    run: str | None
    party: str
    client: str
    direction: str
    """'down' to the client, 'up' from it."""
    kind: str
    rows: int
    columns: int
    bytes: int


@dataclass
class Audit:
    """The record of all messages, in the order in which they crossed."""

    records: list[AuditRecord] = field(default_factory=list)

    def add(self, client: Client, direction: str, message: Message) -> None:
        rows, columns = message.shape
        self.records.append(
            AuditRecord(
                seq=len(self.records) + 1,
                at=dt.datetime.now(dt.UTC),
                run=message.run or None,
                party=client.party,
                client=str(client),
                direction=direction,
                kind=message.kind,
                rows=rows,
                columns=columns,
                bytes=message.nbytes,
            )
        )

    def table(self) -> pa.Table:
        """The columns of AuditRecord, a row per message."""
        schema = pa.schema(
            [
                ("seq", pa.int64()),
                ("at", pa.timestamp("us", tz="UTC")),
                ("run", pa.string()),
                ("party", pa.string()),
                ("client", pa.string()),
                ("direction", pa.string()),
                ("kind", pa.string()),
                ("rows", pa.int64()),
                ("columns", pa.int64()),
                ("bytes", pa.int64()),
            ]
        )
        columns = [[getattr(r, name) for r in self.records] for name in schema.names]
        return pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema)


class Channel:
    """The coordinator's end of the border for one run (or for planning).

    Attributes
    ----------
    rounds : exchanges so far.
    bytes_up, bytes_down : bytes of values (`Message.nbytes`) from and to the clients so far.
    """

    def __init__(self, transport: Transport, audit: Audit) -> None:
        self._transport = transport
        self._audit = audit
        self.rounds = 0
        self.bytes_up = 0
        self.bytes_down = 0

    def exchange(self, requests: Mapping[Address, Message]) -> dict[Address, Message]:
        """One round. Raises PartyError for the first client, in order, that failed."""
        if not requests:
            return {}
        order = list(requests)
        for client, slot in order:
            message = requests[client, slot]
            if message.slot != slot:
                raise InternalError(f"{message.kind} for slot {message.slot} sent to slot {slot}")
            self._audit.add(client, "down", message)
            self.bytes_down += message.nbytes
        answers = self._transport.exchange(
            [(address[0], encode(requests[address])) for address in order]
        )
        self.rounds += 1
        replies = {a: decode(data) for a, data in zip(order, answers, strict=True)}
        for (client, _), reply in replies.items():
            self._audit.add(client, "up", reply)
            self.bytes_up += reply.nbytes
        _raise_first((a[0], reply) for a, reply in replies.items())
        return replies


def _raise_first(replies: Iterable[tuple[Client, Message]]) -> None:
    for client, reply in replies:
        if isinstance(reply, Failure):
            raise PartyError(str(client), reply.text)


Handler: TypeAlias = Callable[[pa.Buffer], pa.Buffer]
"""What serves the requests of one client: bytes in, bytes out."""
