"""The transport's protocol, the channel that encodes and counts messages, and the border."""

from __future__ import annotations

import datetime as dt
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import pyarrow as pa

from sqlfl.base.errors import (
    ApprovalError,
    Error,
    ForgottenError,
    InternalError,
    LostError,
    PartyError,
    PolicyError,
    WireError,
)
from sqlfl.base.sanitize import clipped, lines
from sqlfl.contract.schema import Address, Client
from sqlfl.messages import ENVELOPE, MAX_FAILURE_CHARACTERS, Failure, Message, Seal, Sealed
from sqlfl.messages.checks import refused
from sqlfl.messages.wire import encode, received
from sqlfl.transport.audit_chain import DOWN, LOST, STOPPED, UP, AuditChain, Keep, MemoryLinks, Row
from sqlfl.transport.network import Network


class Transport(Protocol):
    """Transport of one round: it carries every request to its client, and returns every reply in
    the same order.

    Clients work in parallel; a client serves its requests in their order. Several threads may make
    exchanges of different clients at once. A client that fails answers with a `Failure`. A
    transport raises LostError if it gets no answer.
    """

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]: ...


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """Record of one message between the coordinator and a client."""

    seq: int
    at: dt.datetime
    run: str | None
    party: str
    client: str
    direction: str
    """'down' to the client, 'up' from it."""
    kind: str
    """Kind of the message. UNREADABLE if the received bytes are no message; then only their size is
    known.
    """
    rows: int
    columns: int
    bytes: int
    crosses: bool
    """True if it left one party for another: the coordinator is not at the client's own party."""


AUDIT = pa.schema(
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
        ("crosses", pa.bool_()),
    ]
)
"""Fields of AuditRecord, as columns."""


UNREADABLE = "unreadable"
CHUNK = 5000
"""Maximum number of records of an audit in memory that are Python objects."""


class AuditLog(Protocol):
    """Permanent store of an audit's records."""

    @property
    def last(self) -> int:
        """Return the number of the last record; 0 without records."""
        ...

    def append(self, records: pa.Table) -> None:
        """Keep records with the columns of `AUDIT`, all or none."""
        ...

    def table(self) -> pa.Table:
        """Return all records in order, with the columns of `AUDIT`."""
        ...


class Audit:
    """Record of all messages in the order in which they were sent. It knows the coordinator's own
    party.

    log: keeps the records when `flush` is called. Without it they stay in memory. All but the last
    `CHUNK` are then Arrow tables, which take far less memory. at: the coordinator's party, whose
    name is compared as SQL does; None if it is at none of them.
    """

    def __init__(self, log: AuditLog | None = None, at: str | None = None) -> None:
        self._log = log
        self._at = None if at is None else at.lower()
        self._lock = threading.RLock()
        self._next = 1 if log is None else log.last + 1
        self._chunks: list[pa.Table] = []
        self.records: list[AuditRecord] = []
        """Records that are neither in the log nor in a chunk."""

    def crosses(self, client: Client) -> bool:
        """Return True if messages between the coordinator and this client cross a border between
        parties.
        """
        return client.party.lower() != self._at

    def add(self, client: Client, direction: str, message: Message) -> None:
        self._add(client, direction, message.run, message.kind, message.shape, message.nbytes)

    def add_unreadable(self, client: Client, run: str, size: int) -> None:
        """Record a reply of `size` bytes that is no message."""
        self._add(client, "up", run, UNREADABLE, (0, 0), size)

    def _add(
        self,
        client: Client,
        direction: str,
        run: str,
        kind: str,
        shape: tuple[int, int],
        size: int,
    ) -> None:
        with self._lock:
            record = AuditRecord(
                seq=self._next,
                at=dt.datetime.now(dt.UTC),
                run=run or None,
                party=client.party,
                client=str(client),
                direction=direction,
                kind=kind,
                rows=shape[0],
                columns=shape[1],
                bytes=size,
                crosses=self.crosses(client),
            )
            if self._log is None and len(self.records) >= CHUNK:
                self._chunks.append(self._pending())
                self.records.clear()
            self.records.append(record)
            self._next += 1

    def flush(self) -> None:
        """Move the records to the log. If that fails, they stay here."""
        with self._lock:
            if self._log is not None and self.records:
                self._log.append(self._pending())
                self.records.clear()

    def table(self) -> pa.Table:
        """Return a row for each message, with the columns of AuditRecord."""
        with self._lock:
            kept = self._chunks if self._log is None else [self._log.table()]
            return pa.concat_tables([*kept, self._pending()])

    def _pending(self) -> pa.Table:
        columns = [[getattr(r, name) for r in self.records] for name in AUDIT.names]
        return pa.table(dict(zip(AUDIT.names, columns, strict=True)), schema=AUDIT)


Note: TypeAlias = Callable[[Client, str, Message], None]
"""Takes a client, a direction, and a message."""


class Channel:
    """The coordinator's end of the border for one run (or for planning). Several threads may ask
    clients that do not wait for one another.

    Attributes
    ----------
    rounds : exchanges so far, including those in which nothing crossed.
    bytes_up, bytes_down : bytes of values (`Message.nbytes`) from and to the clients so far, if
        they crossed a border.
    comm_seconds : time of these exchanges by the model `network`; None without a model.

    `check` is called before each exchange; an error from it ends the work. `chain` keeps the
    messages of the clients `chained`. `note` is called for each message that is sent or received.
    """

    def __init__(
        self,
        transport: Transport,
        audit: Audit,
        check: Callable[[], None] | None = None,
        network: Network | None = None,
        chain: AuditChain | None = None,
        chained: Container[Client] = (),
        note: Note | None = None,
    ) -> None:
        self._transport = transport
        self._audit = audit
        self._check = check
        self._network = network
        self._chain, self._chained, self._note = chain, chained, note
        self._counting = threading.Lock()
        self.rounds = 0
        self.bytes_up = 0
        self.bytes_down = 0
        self.comm_seconds = None if network is None else 0.0

    def sent(self) -> int:
        """Return the bytes of values that have crossed a border so far, in both directions."""
        return self.bytes_up + self.bytes_down

    def exchange(self, requests: Mapping[Address, Message]) -> dict[Address, Message]:
        """Make one round. Everything received is in the audit afterwards, even after an error.

        Raise PartyError or PolicyError for the first client, in order, that failed, or whose reply
        is no message or belongs to another request. If nothing else failed, raise ApprovalError for
        all clients that wait for an owner.
        """
        if not requests:
            return {}
        if self._check is not None:
            self._check()
        crossed = {client: 0 for client, _ in requests if self._audit.crosses(client)}
        asked = {a: self._asked(a, message, crossed) for a, message in requests.items()}
        sent = [(client, encode(message)) for (client, _), message in asked.items()]
        try:
            answers = self._transport.exchange(sent)
        except BaseException as error:
            self._unanswered(sent, asked.values(), error)
            raise
        replies: dict[Address, Message] = {}
        problems: list[PartyError | PolicyError] = []
        exchanged = zip(asked.items(), sent, answers, strict=True)
        for (address, request), (_, request_data), data in exchanged:
            try:
                replies[address] = self._answered(address[0], request, request_data, data, crossed)
            except (PartyError, PolicyError) as error:
                problems.append(error)
        with self._counting:
            self.rounds += 1
            if self._network is not None and self.comm_seconds is not None:
                self.comm_seconds += self._network.seconds(crossed.values())
        if problems:
            raise _first(problems)
        return replies

    def heads(self, client: Client, run: str) -> tuple[str, str]:
        """Return the head of the run's messages at this client so far, and the head of the kept
        chain.
        """
        assert self._chain is not None
        return self._chain.heads(str(client), run)

    def is_whole(self, client: Client, run: str) -> bool:
        """Return True if all requests of the run at this client have had replies."""
        assert self._chain is not None
        return self._chain.is_whole(str(client), run)

    def _unanswered(
        self,
        sent: Sequence[tuple[Client, pa.Buffer]],
        asked: Iterable[Message],
        error: BaseException,
    ) -> None:
        """Keep requests whose replies did not come, with the reason."""
        cut: Counter[tuple[Client, str]] = Counter()
        for (client, data), message in zip(sent, asked, strict=True):
            self._kept(client, message, DOWN, data)
            cut[client, message.run] += 1
        for (client, run), requests in cut.items():
            lost = isinstance(error, LostError) and error.party == str(client)
            self._cut(client, run, LOST if lost else STOPPED, requests)

    def _cut(self, client: Client, run: str, why: str, requests: int) -> None:
        if self._chain is not None and client in self._chained:
            self._chain.cut(str(client), run, why, requests)

    def _kept(self, client: Client, message: Message, direction: str, data: pa.Buffer) -> None:
        if self._chain is None or client not in self._chained:
            return
        told = f"{message.head} {message.chain}" if isinstance(message, (Seal, Sealed)) else ""
        self._chain.note(str(client), message.run, direction, message.kind, data, told)

    def _asked(self, address: Address, message: Message, crossed: dict[Client, int]) -> Message:
        """Return the request with a number, after recording it in the audit. `crossed` counts each
        client's bytes.
        """
        client, slot = address
        if message.slot != slot:
            raise InternalError(f"{message.kind} for slot {message.slot} sent to slot {slot}")
        self._audit.add(client, "down", message)
        if self._note is not None:
            self._note(client, DOWN, message)
        if client in crossed:
            crossed[client] += message.nbytes
            with self._counting:
                self.bytes_down += message.nbytes
        if message.number:
            return message
        # Random, so that only who sees the request knows it, and it says nothing about other
        # requests.
        return replace(message, number=secrets.randbits(63))

    def _answered(
        self,
        client: Client,
        request: Message,
        request_data: pa.Buffer,
        data: pa.Buffer,
        crossed: dict[Client, int],
    ) -> Message:
        """Return the reply, after recording it in the audit. Raise PartyError if it is no reply.

        A request is kept with its reply, in the order in which the client keeps both.
        """
        try:
            reply = received(data)
        except WireError as error:
            self._kept(client, request, DOWN, request_data)
            self._audit.add_unreadable(client, request.run, len(data))
            raise refused(client, request, f"cannot be read: {error.message}") from None
        self._audit.add(client, "up", reply)
        if self._note is not None:
            self._note(client, UP, reply)
        if _has_forgotten(reply):
            self._cut(client, request.run, LOST, 0)
        self._kept(client, request, DOWN, request_data)
        self._kept(client, reply, UP, data)
        if client in crossed:
            crossed[client] += reply.nbytes
            with self._counting:
                self.bytes_up += reply.nbytes
        _check(client, request, reply)
        return reply


def _first(problems: Sequence[PartyError | PolicyError]) -> Error:
    """Return the error to raise: nobody should wait for a run that others refuse."""
    others = [error for error in problems if not isinstance(error, ApprovalError)]
    if others or len(problems) == 1:
        return (others or problems)[0]
    return ApprovalError("; ".join(error.message for error in problems), hint=problems[0].hint)


def _has_forgotten(reply: Message) -> bool:
    """Return True if a process of the party that does not know the run has answered."""
    return isinstance(reply, Failure) and reply.error == ForgottenError.__name__


AGAIN = "run the statement again; a training with checkpoints goes on by RESUME MODEL"
_REFUSALS = {kind.__name__: kind for kind in (PolicyError, ApprovalError)}


def _check(client: Client, request: Message, reply: Message) -> None:
    """Raise PartyError if the message is no reply to this request."""
    if isinstance(reply, Failure) and reply.error in _REFUSALS:
        text = clipped(lines(reply.text), MAX_FAILURE_CHARACTERS)
        told, _, hint = text.partition("\nhint: ")
        raise _REFUSALS[reply.error](f"party {client}: {told}", hint=hint or None)
    if _has_forgotten(reply):
        raise LostError(str(client), "was restarted, and has forgotten the run", hint=AGAIN)
    if isinstance(reply, Failure):
        raise PartyError(
            str(client), clipped(lines(reply.text), MAX_FAILURE_CHARACTERS), at=reply.at
        )
    for name in ENVELOPE:
        if getattr(reply, name) != getattr(request, name):
            what = "exchange" if name == "number" else name
            raise refused(client, request, f"is one of another {what}")


Handler: TypeAlias = Callable[[pa.Buffer], pa.Buffer]
"""Server of one client's requests: bytes in, bytes out."""


class Handlers(dict[Client, Handler]):
    """Handlers by client. This process does the work of clients in `here`; the others are waited
    for.

    `here` is replaced as a whole, never changed: exchanges of other threads read it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.here: frozenset[Client] = frozenset()

    def leave(self, client: Client) -> None:
        del self[client]
        self.here -= {client}


# The coordinator's side of all borders: the transport of its messages, their audit and their
# chain.
class Links(Protocol):
    """Store of a chain's entries."""

    @property
    def keep(self) -> Keep: ...

    def rows(self) -> list[Row]: ...


class Log(AuditLog, Links, Protocol):
    """File that keeps both an audit and a chain."""


class Border:
    """The coordinator's side of all borders.

    log : the coordinator's file; None to keep nothing. at : as in `Audit`.
    """

    def __init__(self, transport: Transport, log: Log | None, at: str | None, analyst: str) -> None:
        self.transport = transport
        self.audit = Audit(log, at)
        self._links: Links = MemoryLinks() if log is None else log
        self._chain = AuditChain(analyst, self._links.keep)
        self._governed: set[Client] = set()

    def govern(self, clients: Iterable[Client]) -> None:
        """Keep the messages of these clients on both sides from now on, because their owners have
        policies.
        """
        self._governed.update(clients)

    def channel(
        self,
        check: Callable[[], None] | None = None,
        network: Network | None = None,
        note: Note | None = None,
    ) -> Channel:
        """Return a channel with `check`, `network` and `note` as in `Channel`."""
        chained = self._chain, self._governed
        return Channel(self.transport, self.audit, check, network, *chained, note)

    def links(self) -> list[Row]:
        """Return all entries of the chain, in order."""
        self._chain.flush()
        return self._links.rows()

    def close(self) -> None:
        """Keep the waiting entries; nothing may follow."""
        self.audit.flush()
        self._chain.close()

    def flush(self) -> None:
        """Keep the waiting entries. Raise Error if the file refuses them; then they wait on."""
        self.audit.flush()
        self._chain.flush()
