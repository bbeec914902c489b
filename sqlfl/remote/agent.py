"""The party's end: it dials out, keeps one stream, and serves what comes down on it."""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from sqlfl.errors import Error, WireError
from sqlfl.remote.frames import (
    INTERRUPT,
    MOST_BYTES,
    REPLY,
    REQUEST,
    VERSIONS,
    Frame,
    spoken,
)
from sqlfl.remote.stream import PONG, Credentials, Stream, said

log = logging.getLogger("sqlfl.remote")

PARTY = "party"
"""The descriptor of a party's stream."""
HELLO, WELCOME, REFUSED = "hello", "welcome", "refused"
ENDS = "ends"
"""What a coordinator says last."""
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
"""Seconds between two attempts to connect: twice as long each time, and a random part of it."""
MOST_REPLIES, MOST_REPLY_BYTES = 512, 1 << 30
"""That are kept until the coordinator says that it has them."""


class Serves(Protocol):
    """What answers for the party's clients, by their numbers; from several threads."""

    def welcome(self, coordinator: str, session: str) -> None:
        """Of which coordinator, and which process of it, requests come from now on."""
        ...

    def handle(self, client: int, data: pa.Buffer, study: str, speaker: str) -> pa.Buffer: ...

    def interrupt(self, client: int, study: str, speaker: str) -> None:
        """End what is being served for this analyst."""
        ...

    def stop(self) -> None:
        """End all that is being served."""
        ...


@dataclass(frozen=True)
class Terms:
    """What the coordinator says in its welcome."""

    coordinator: str
    session: str
    lease: float
    heartbeat: float


class Refused(Error):
    """The coordinator does not take this party: another attempt would end alike."""


class Agent:
    """Of one party. `run` returns when `stop` is called.

    location : 'grpc+tls://host:8815'. clients : how many databases it serves. `seen` is called with
    what becomes of the connection, in words. server : as in `Stream`. called : the agent's name,
    where there is no certificate; None for the party's. first : the number of its first database
    among the party's.
    """

    def __init__(
        self,
        location: str,
        name: str,
        clients: int,
        serves: Serves,
        credentials: Credentials,
        seen: Callable[[str], None] = lambda _: None,
        most_bytes: int = MOST_BYTES,
        server: str | None = None,
        called: str | None = None,
        first: int = 0,
    ) -> None:
        self._server, self._called, self._first = server, called or name, first
        self._location, self._name, self._clients = location, name, clients
        self._serves, self._credentials, self._seen = serves, credentials, seen
        self._most_bytes = most_bytes
        self._boot = secrets.token_hex(16)
        self._session = ""
        self._replies = Replies()
        self._stopped = threading.Event()
        self._stream: Stream | None = None

    def run(self) -> None:
        """Connect, and again where that fails or breaks. Raises Refused."""
        wait = FIRST_WAIT
        with ThreadPoolExecutor(4 * self._clients + 4, "sqlfl-agent") as pool:
            while not self._stopped.is_set():
                began = time.monotonic()
                try:
                    self._connected(pool)
                    self._seen("the connection has ended")
                except Refused:
                    raise
                except (pa.ArrowException, OSError, EOFError, WireError) as error:
                    self._seen(f"no connection: {said(error)}")
                if time.monotonic() - began > LONGEST_WAIT:
                    wait = FIRST_WAIT
                self._stopped.wait(wait * random.uniform(0.5, 1.0))
                wait = min(2.0 * wait, LONGEST_WAIT)

    def stop(self) -> None:
        """From any thread: end what is being served, and the connection."""
        self._stopped.set()
        self._serves.stop()
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def _connected(self, pool: ThreadPoolExecutor) -> None:
        """One stream, from its beginning to its end."""
        stream = Stream(self._location, self._credentials, PARTY, self._server, self._most_bytes)
        with stream:
            hello = {
                "versions": list(VERSIONS), "name": self._name, "clients": self._clients,
                "boot": self._boot, "agent": self._called, "first": self._first,
            }  # fmt: skip
            stream.sender.send(Frame(HELLO, hello))
            terms = _terms(stream.receiver.receive())
            if terms.session != self._session:
                self._replies.clear()
                self._session = terms.session
            self._serves.welcome(terms.coordinator, terms.session)
            self._stream = stream
            self._seen(f"connected to {terms.coordinator}")
            watch = threading.Thread(
                target=stream.watch, args=(terms.heartbeat,), name="sqlfl-heartbeat"
            )
            watch.start()
            try:
                while not self._stopped.is_set():
                    self._received(stream.receive(), stream, pool)
            finally:
                self._stream = None
                stream.cancel()
                watch.join()

    def _received(self, frame: Frame, stream: Stream, pool: ThreadPoolExecutor) -> None:
        if frame.kind == PONG:
            return
        if frame.kind == ENDS:
            raise EOFError("the coordinator has ended")
        client = frame.number("client")
        if client >= self._clients:
            raise WireError(f"there is no client {client}")
        study, speaker = frame.text("study"), frame.text("pass")
        if frame.kind == INTERRUPT:
            self._serves.interrupt(client, study, speaker)
            return
        if frame.kind != REQUEST:
            raise WireError(f"{frame.kind} came where requests do")
        number = frame.number("number")
        received = frame.told.get("received")
        if isinstance(received, list):
            self._replies.forget(received)
        known, reply = self._replies.begin(number)
        if reply is not None:
            pool.submit(self._send, stream, number, reply)
        elif not known:
            pool.submit(self._serve, number, client, frame.body, study, speaker)

    def _serve(self, number: int, client: int, data: pa.Buffer, study: str, speaker: str) -> None:
        try:
            reply = self._serves.handle(client, data, study, speaker)
        except Exception:
            told = {"study": study}
            log.exception("%s failed beyond its own failures", self._name, extra=told)
            self._replies.drop(number)
            return
        self._replies.end(number, reply)
        stream = self._stream
        if stream is not None:
            self._send(stream, number, reply)

    def _send(self, stream: Stream, number: int, reply: pa.Buffer) -> None:
        try:
            stream.sender.send(Frame(REPLY, {"number": number}, reply))
        except (pa.ArrowException, OSError) as error:
            log.info("a reply waits for the next connection: %s", error)
            stream.cancel()


class Replies:
    """By the numbers of their requests: each is served once, and answered alike."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: set[int] = set()
        self._done: OrderedDict[int, pa.Buffer] = OrderedDict()
        self._size = 0

    def begin(self, number: int) -> tuple[bool, pa.Buffer | None]:
        """Whether it has been begun before, and its reply, where there is one by now."""
        with self._lock:
            if number in self._done:
                return True, self._done[number]
            known = number in self._begun
            self._begun.add(number)
            return known, None

    def end(self, number: int, reply: pa.Buffer) -> None:
        with self._lock:
            self._begun.discard(number)
            self._done[number] = reply
            self._size += len(reply)
            while len(self._done) > MOST_REPLIES or self._size > MOST_REPLY_BYTES:
                if len(self._done) == 1:
                    break
                self._forget(next(iter(self._done)))

    def drop(self, number: int) -> None:
        with self._lock:
            self._begun.discard(number)

    def forget(self, numbers: list[object]) -> None:
        """The coordinator has these."""
        with self._lock:
            for number in numbers:
                if isinstance(number, int) and number in self._done:
                    self._forget(number)

    def clear(self) -> None:
        with self._lock:
            self._begun.clear()
            self._done.clear()
            self._size = 0

    def _forget(self, number: int) -> None:
        self._size -= len(self._done.pop(number))


def _terms(frame: Frame) -> Terms:
    """Of a welcome. Raises Refused where it is none."""
    if frame.kind == REFUSED:
        raise Refused(f"the coordinator refuses: {frame.text('why')}")
    if frame.kind != WELCOME:
        raise WireError(f"{frame.kind} came where a welcome does")
    spoken([frame.told.get("version")])
    lease, heartbeat = frame.number("lease_ms") / 1e3, frame.number("heartbeat_ms") / 1e3
    return Terms(frame.text("coordinator"), frame.text("session"), lease, heartbeat)
