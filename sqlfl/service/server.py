"""The coordinator's door, by Arrow Flight: parties dial in, and requests go down their streams."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.flight as flight

from sqlfl.errors import Error, WireError
from sqlfl.remote.agent import ENDS, HELLO, PARTY, REFUSED, WELCOME
from sqlfl.remote.frames import MOST_BYTES, SCHEMA, Frame, Receiver, Sender, spoken
from sqlfl.remote.stream import PING, PONG, Credentials
from sqlfl.service.line import Line

log = logging.getLogger("sqlfl.remote")


@dataclass(frozen=True)
class Times:
    """In seconds."""

    lease: float = 60.0
    """For which a party that is away is waited for."""
    heartbeat: float = 5.0
    """Between two signs of life; a stream without any for three is given up."""


class Refusal(Error):
    """Whoever connects is told why, and goes."""


class Admits(Protocol):
    """Who may connect; called from the streams' threads."""

    def party(self, identity: str, name: str, clients: int) -> Line:
        """The line of this agent of the party. Raises Refusal."""
        ...

    def connected(self, line: Line) -> None:
        """It has a stream; what takes its replies is not to be done in this thread."""
        ...

    def disconnected(self, line: Line) -> None: ...


Door = Callable[[str, Receiver, Sender], None]
"""Speaks with one that has connected: identity, and both directions; it ends with its return."""


class CoordinatorServer(flight.FlightServerBase):  # type: ignore[misc]
    """location : 'grpc+tls://0.0.0.0:8815', or 'grpc://...' where no credentials are given, and
    everybody is taken for whom they say. coordinator : what it is called. doors : for streams of
    other descriptors than a party's.
    """

    def __init__(
        self,
        location: str,
        coordinator: str,
        admits: Admits,
        credentials: Credentials,
        times: Times,
        doors: Mapping[str, Door] | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        tls = {}
        if credentials.certificate is not None:
            tls = {
                "tls_certificates": [(credentials.certificate, credentials.key)],
                "verify_client": True,
                "root_certificates": credentials.authority,
            }
        super().__init__(location, **tls)
        self._coordinator, self._admits, self._times = coordinator, admits, times
        self._doors = {} if doors is None else dict(doors)
        self._most_bytes = most_bytes
        self._insecure = not tls
        self.session = secrets.token_hex(16)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._senders: set[Sender] = set()
        self._watches: set[_Watch] = set()
        self._watching = threading.Thread(target=self._watch, name="sqlfl-watch", daemon=True)
        self._watching.start()

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        writer.begin(SCHEMA)
        receiver, sender = Receiver(reader, self._most_bytes), Sender(writer)
        identity = context.peer_identity().decode("utf-8", "replace")
        what = b"/".join(descriptor.path or []).decode("utf-8", "replace")
        with self._lock:
            self._senders.add(sender)
        try:
            if self._over.is_set():
                raise Refusal("the coordinator ends")
            door = self._party if what == PARTY else self._doors.get(what)
            if door is None:
                raise Refusal(f"there is nothing called {what!r:.60} here")
            door(identity, receiver, sender)
        except (Refusal, WireError) as error:
            log.warning("%s (%s) is sent away: %s", identity or "somebody", context.peer(), error)
            with suppress(pa.ArrowException, OSError):
                sender.send(Frame(REFUSED, {"why": error.message}))
        except (EOFError, pa.ArrowException, OSError) as error:
            log.info("%s (%s) has gone: %s", identity or "somebody", context.peer(), error)
        finally:
            with self._lock:
                self._senders.discard(sender)
            sender.close()

    def _party(self, identity: str, receiver: Receiver, sender: Sender) -> None:
        hello = receiver.receive()
        if hello.kind != HELLO:
            raise WireError(f"{hello.kind} came where a hello does")
        version = spoken(hello.told.get("versions"))
        name, clients = hello.text("name"), hello.number("clients")
        if self._insecure:
            identity = hello.text("agent", name)
        line = self._admits.party(identity, name, clients)
        first = hello.told.get("first", line.first)
        if first != line.first:
            raise Refusal(
                f"{identity} is agent {line.first} of party {name}, and serves its database "
                f"{first!r:.20}: `index` in its configuration is to be {line.first}"
            )
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
        with self._watched(lambda: line.disconnect(sender)) as watch:
            try:
                line.connect(sender, boot)
                self._admits.connected(line)
                while True:
                    frame = receiver.receive()
                    if watch.heard():  # it had been given up
                        line.connect(sender, boot)
                    if frame.kind == PING:
                        sender.send(Frame(PONG))
                    else:
                        line.receive(frame)
            finally:
                line.disconnect(sender)
                self._admits.disconnected(line)

    def shutdown(self, seconds: float = 5.0) -> bool:
        """Streams end; what was asked of parties and not answered is lost. Who is told, and has not
        gone within these seconds, is left; whether all have."""
        self._over.set()
        with self._lock:
            senders = tuple(self._senders)
        # gRPC waits for the ends of all streams, and who has stopped reading may hold a sender up
        work = [threading.Thread(target=_tell_end, args=(own,), daemon=True) for own in senders]
        ending = threading.Thread(target=super().shutdown, daemon=True)
        for thread in (*work, ending):
            thread.start()
        ending.join(seconds)
        if ending.is_alive():
            log.warning("%d streams have not ended, and are left", len(self._senders))
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


def _tell_end(sender: Sender) -> None:
    with suppress(pa.ArrowException, OSError):
        sender.send(Frame(ENDS))


class _Watch:
    """Of a stream: `late` is called where nothing has come for long."""

    def __init__(self, late: Callable[[], None]) -> None:
        self._late = late
        self._heard = time.monotonic()
        self._given_up = False

    def heard(self) -> bool:
        """Something has come; whether it was late."""
        self._heard = time.monotonic()
        late, self._given_up = self._given_up, False
        return late

    def look(self, seconds: float) -> None:
        if not self._given_up and time.monotonic() > self._heard + seconds:
            self._given_up = True
            self._late()
