"""The coordinator's door, by Arrow Flight: parties dial in, and requests go down their streams."""

from __future__ import annotations

import logging
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as flight

from sqlfl.base.errors import Error, WireError
from sqlfl.service.agent import HELLO, PARTY, REFUSED, SECRET, WELCOME
from sqlfl.service.frames import END, MAX_BODY_BYTES, SCHEMA, Frame, Receiver, spoken
from sqlfl.service.outbox import Outbox
from sqlfl.service.party_connection import PartyConnection
from sqlfl.service.stream import PING, PONG, Credentials
from sqlfl.service.streams import NAME, Call, Most, RefusedStream, Streams, cut

log = logging.getLogger("sqlfl.service")


@dataclass(frozen=True)
class Times:
    """In seconds."""

    lease: float = 60.0
    """For which a party that is away is waited for."""
    heartbeat: float = 5.0
    """Between two signs of life; a stream without any for three is given up, and ended after
    twelve."""


ENDS = "the coordinator ends"
MAX_HELLO_BYTES = 1 << 16
"""Bytes of a body, from whom nobody knows yet."""
CHECK = re.compile("[0-9a-f]{32}")
MAX_END_SECONDS = 10.0
READ = 0.5
"""Seconds for who is sent away unheard to read why."""
LET_GO = 1.0
"""Seconds in which whoever is told of the end lets go of a stream; others are cut off."""


class Admits(Protocol):
    """Decisions about who may connect, taken in the streams' threads."""

    def party(self, identity: str, name: str, clients: int) -> PartyConnection:
        """Return the connection of this agent of the party. Raise RefusedStream if it may not
        connect.
        """
        ...

    def connected(self, line: PartyConnection) -> None:
        """Note that it has a stream. Work on its replies belongs in another thread."""
        ...

    def disconnected(self, line: PartyConnection) -> None: ...


class FlightSql(Protocol):
    """Answers calls of Flight SQL, with FlightError alone."""

    def get_flight_info(self, context: Any, descriptor: Any) -> Any: ...

    def do_get(self, context: Any, ticket: Any) -> Any: ...

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None: ...

    def do_action(self, context: Any, action: Any) -> Any: ...

    def list_actions(self, context: Any) -> Any: ...

    def end(self, seconds: float) -> None:
        """End running statements as by Ctrl-C, and at once after that time."""
        ...


SQL_METHODS = (
    flight.FlightMethod.GET_FLIGHT_INFO, flight.FlightMethod.DO_GET, flight.FlightMethod.DO_PUT,
    flight.FlightMethod.DO_ACTION, flight.FlightMethod.LIST_ACTIONS,
)  # fmt: skip
"""Calls of Flight SQL. GetSchema is not served: pyarrow sends tracebacks of its errors."""
Door = Callable[[str, Receiver, Outbox, Call], None]
"""Speaks with one that has connected: identity, and both directions; it ends with its return. It
says of the call whose it is, where there is no certificate, and that it has been let in."""


class CoordinatorServer(flight.FlightServerBase):  # type: ignore[misc]
    """location : 'grpc+tls://0.0.0.0:8815', or 'grpc://...' where no credentials are given, and
    everybody is taken for whom they say. coordinator : what it is called. doors : for streams of
    other descriptors than a party's. each : called at every heartbeat. most : streams that there
    may be. flight_sql : answers analysts' own clients; None where they are not served. Raise Error
    where it cannot listen.
    """

    def __init__(
        self,
        location: str,
        coordinator: str,
        admits: Admits,
        credentials: Credentials,
        times: Times,
        doors: Mapping[str, Door] | None = None,
        most_bytes: int = MAX_BODY_BYTES,
        each: Callable[[], object] = lambda: None,
        most: Most | None = None,
        flight_sql: FlightSql | None = None,
    ) -> None:
        tls = {}
        if credentials.certificate is not None:
            tls = {
                "tls_certificates": [(credentials.certificate, credentials.key)],
                "verify_client": True,
                "root_certificates": credentials.authority,
            }
        methods = () if flight_sql is None else SQL_METHODS
        self._streams = Streams(most or Most(), 12.0 * times.heartbeat, methods)
        self._sql = flight_sql
        try:
            super().__init__(location, middleware={NAME: self._streams}, **tls)
        except (pa.ArrowException, OSError) as error:
            raise Error(f"cannot listen at {location}: {_taken(error, location)}") from error
        self._coordinator, self._admits, self._times = coordinator, admits, times
        self._doors = {} if doors is None else dict(doors)
        self._most_bytes, self._each = most_bytes, each
        self._insecure = not tls
        self.session = secrets.token_hex(16)
        self._over = threading.Event()
        self._watches: set[_Watch] = set()
        self._outboxes: set[Outbox] = set()
        self._watching = threading.Thread(target=self._watch, name="sqlfl-watch", daemon=True)
        self._watching.start()

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        writer.begin(SCHEMA)
        sender = Outbox(writer)
        call = self._streams.of(context)

        def heard() -> None:
            sender.heard()
            call.heard()

        receiver = Receiver(reader, MAX_HELLO_BYTES, heard)
        self._outboxes.add(sender)
        identity = context.peer_identity().decode("utf-8", "replace")
        what = b"/".join(descriptor.path or []).decode("utf-8", "replace")
        try:
            if self._over.is_set():
                raise RefusedStream(ENDS)
            if not self._insecure:
                call.known(identity)
            door = self._party if what == PARTY else self._doors.get(what)
            if door is None:
                receiver.receive()  # who is still writing would not read why
                raise RefusedStream(f"there is nothing called {what!r:.60} here")
            door(identity, receiver, sender, call)
        except (RefusedStream, WireError) as error:
            log.warning("%s (%s) is sent away: %s", identity or "somebody", context.peer(), error)
            with suppress(pa.ArrowException, OSError):
                sender.send(Frame(REFUSED, {"why": error.message}))
                sender.flush()
            if not (self._insecure or call.who):
                self._over.wait(READ)  # who is still writing would not read why
        except (EOFError, pa.ArrowException, OSError) as error:
            log.info("%s (%s) has gone", identity or "somebody", context.peer())
            log.debug("of what it has gone: %s", error)
        finally:
            self._outboxes.discard(sender)
            sender.close()

    # -- Flight SQL, which `Streams` lets come where it is served --------------------------------

    def call_of(self, context: Any) -> Call:
        """The call with this context. Raise RefusedStream where the coordinator ends."""
        if self._over.is_set():
            raise RefusedStream(ENDS)
        return self._streams.of(context)

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        return self._answers.get_flight_info(context, descriptor)

    def do_get(self, context: Any, ticket: Any) -> Any:
        return self._answers.do_get(context, ticket)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self._answers.do_put(context, descriptor, reader, writer)

    def do_action(self, context: Any, action: Any) -> Any:
        return self._answers.do_action(context, action)

    def list_actions(self, context: Any) -> Any:
        return self._answers.list_actions(context)

    @property
    def _answers(self) -> FlightSql:
        assert self._sql is not None, "Streams refuses these calls where they are not served"
        return self._sql

    # -- parties ---------------------------------------------------------------------------------

    def _party(self, identity: str, receiver: Receiver, sender: Outbox, call: Call) -> None:
        hello = receiver.receive()
        if hello.kind != HELLO:
            raise WireError(f"{hello.kind} came where a hello does")
        version = spoken(hello.told.get("versions"))
        name, clients = hello.text("name"), hello.number("clients")
        if self._insecure:
            identity = hello.text("agent", name)
            call.known(identity)
        line = self._admits.party(identity, name, clients)
        first = hello.told.get("first", line.first)
        if first != line.first:
            raise RefusedStream(
                f"{identity} is agent {line.first} of party {name}, and serves its database "
                f"{first!r:.20}: `index` in its configuration is to be {line.first}"
            )
        call.enter()
        sender.send(
            Frame(
                WELCOME,
                {
                    "version": version,
                    "coordinator": self._coordinator,
                    "session": self.session,
                    "lease_ms": int(1e3 * self._times.lease),
                    "heartbeat_ms": int(1e3 * self._times.heartbeat),
                },
            )
        )
        boot = hello.text("boot")
        line.link = "over gRPC without TLS" if self._insecure else "over TLS"
        receiver.most_bytes = self._most_bytes
        with self._watched(lambda: line.disconnect(sender)) as watch:
            before = receiver.heard

            def heard() -> None:
                before()
                watch.heard()

            receiver.heard = heard
            try:
                line.connect(sender, boot)
                self._admits.connected(line)
                while line.carries(sender, boot) and not self._over.is_set():
                    frame = receiver.receive()
                    if frame.kind == PING:
                        sender.offer(Frame(PONG))
                    elif frame.kind == SECRET:
                        line.secret = _check(frame)
                    else:
                        line.receive(frame)
                if not self._over.is_set():
                    raise RefusedStream("another agent of this name has connected since")
            except WireError as error:
                line.broken(sender, error.message)
                log.warning("%s: sent what it should not: %s", line.party, error.message)
                sender.send(Frame(END))
                sender.flush()
            finally:
                line.disconnect(sender)
                self._admits.disconnected(line)

    def shutdown(self, seconds: float = MAX_END_SECONDS) -> bool:
        """Streams end; what was asked of parties and not answered is lost. Who does not let go of
        a stream, as a process that is stopped, is cut off, and after that time not waited for;
        whether all have gone."""
        self._over.set()
        for sender in tuple(self._outboxes):
            with suppress(pa.ArrowException, OSError):
                sender.send(Frame(END))
        ending = threading.Thread(target=super().shutdown, name="sqlfl-end", daemon=True)
        ending.start()
        ending.join(min(LET_GO, seconds))
        if ending.is_alive() and (ended := cut(self.port)):
            log.info("%d connections that were not let go of are ended", ended)
        ending.join(seconds)
        if ending.is_alive():
            log.warning("%d streams have not ended, and are left", len(self._outboxes))
        self._watching.join()
        return not ending.is_alive()

    @contextmanager
    def _watched(self, late: Callable[[], None]) -> Iterator[_Watch]:
        watch = _Watch(late)
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)

    def _watch(self) -> None:
        while not self._over.wait(self._times.heartbeat):
            for watch in tuple(self._watches):
                watch.look(3.0 * self._times.heartbeat)
            self._each()
            self._streams.look(self.port)


def _taken(error: BaseException, location: str) -> str:
    """gRPC does not say why: whoever tries the same is told."""
    place = urlsplit(location)
    host = place.hostname or ""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, place.port or 0), family=family).close()
    except OSError as problem:
        return problem.strerror or str(problem)
    return str(error).partition("\n")[0]


def _check(frame: Frame) -> str:
    check = frame.text("check")
    if not CHECK.fullmatch(check):
        raise WireError("what a secret is told apart by is 32 hexadecimal digits")
    return check


class _Watch:
    """Of a stream: `late` is called where nothing has come for long."""

    def __init__(self, late: Callable[[], None]) -> None:
        self._late = late
        self._heard = time.monotonic()
        self._given_up = False

    def heard(self) -> None:
        """Something has come."""
        self._heard = time.monotonic()
        self._given_up = False

    def look(self, seconds: float) -> None:
        if not self._given_up and time.monotonic() > self._heard + seconds:
            self._given_up = True
            self._late()
