"""The party's end of the stream: it connects, keeps one stream, and serves the requests on it, in
an order in which none keeps the others waiting.
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import pyarrow as pa

from sqlfl.base.errors import Error, WireError
from sqlfl.service.frames import (
    INTERRUPT,
    MAX_BODY_BYTES,
    REPLY,
    REQUEST,
    VERSIONS,
    Frame,
    spoken,
)
from sqlfl.service.stream import PONG, Credentials, Stream, hint, said

EACH, ALL = 1, 64
"""Pieces of work at once, of one and altogether: the requests of one are served in order."""
MAX_WAITING = 1024
"""Maximum number of pieces that run or wait."""


class Turns:
    """Queue of pieces of work; a context, which ends with the last piece. most_bytes : bytes of the
    pieces that run or wait.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._pool = ThreadPoolExecutor(ALL, "sqlfl-agent")
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, deque[tuple[Callable[[], object], int]]] = {}
        self._running: Counter[Hashable] = Counter()
        self._count = self._bytes = 0

    def submit(self, of: Hashable, work: Callable[[], object], size: int) -> None:
        """Queue work of `of`, which holds so many bytes. Raise WireError if too much waits."""
        with self._lock:
            if self._count >= MAX_WAITING or (
                self._count and self._bytes + size > self._most_bytes
            ):
                raise WireError(
                    f"{self._count:,} requests with {self._bytes:,} bytes wait, and no more are "
                    "taken"
                )
            self._count += 1
            self._bytes += size
            if self._running[of] >= EACH:
                self._waiting.setdefault(of, deque()).append((work, size))
                return
            self._running[of] += 1
        self._pool.submit(self._work, of, work, size)

    @property
    def idle(self) -> bool:
        with self._lock:
            return not self._count

    def clear(self) -> None:
        """Drop the work that has not begun."""
        with self._lock:
            for waiting in self._waiting.values():
                self._count -= len(waiting)
                self._bytes -= sum(size for _, size in waiting)
            self._waiting.clear()

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def _work(self, of: Hashable, work: Callable[[], object], size: int) -> None:
        try:
            work()
        finally:
            with self._lock:
                self._count -= 1
                self._bytes -= size
                waiting = self._waiting.get(of)
                following = waiting.popleft() if waiting else None
                if following is None:
                    self._waiting.pop(of, None)
                    self._running[of] -= 1
                    if not self._running[of]:
                        del self._running[of]
            if following is not None:
                self._pool.submit(self._work, of, *following)


MAX_REPLIES, MAX_REPLY_BYTES = 512, 1 << 30


class Replies:
    """By the numbers of their requests, which rise: each is served once, and answered alike however
    often it comes. What was forgotten is not served again. Of one session of a coordinator; safe to
    use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: set[int] = set()
        self._done: OrderedDict[int, Frame] = OrderedDict()
        self._highest = -1
        self._size = 0

    def begin(self, number: int) -> tuple[bool, Frame | None]:
        """Return whether the request has come before, and its reply if there is one by now."""
        with self._lock:
            if number in self._done:
                return True, self._done[number]
            if number in self._begun:
                return True, None
            if number <= self._highest:
                why = "was asked again what it has answered, and has forgotten since"
                return True, failed(number, why)
            self._highest = number
            self._begun.add(number)
            return False, None

    def end(self, number: int, reply: Frame) -> None:
        with self._lock:
            self._begun.discard(number)
            self._done[number] = reply
            self._size += len(reply.body)
            while len(self._done) > MAX_REPLIES or self._size > MAX_REPLY_BYTES:
                if len(self._done) == 1:
                    break
                self._forget(next(iter(self._done)))

    def forget(self, numbers: list[object]) -> None:
        """The coordinator has these."""
        with self._lock:
            for number in numbers:
                if type(number) is int and number in self._done:
                    self._forget(number)

    def _forget(self, number: int) -> None:
        self._size -= len(self._done.pop(number).body)


def failed(number: int, why: str) -> Frame:
    """There is no reply, and will be none."""
    return Frame(REPLY, {"number": number, "failed": why})


log = logging.getLogger("sqlfl.service")

PARTY = "party"
"""Descriptor of a party's stream."""
HELLO, WELCOME, REFUSED = "hello", "welcome", "refused"
SECRET = "secret"
"""By what the parties' secrets are told apart, once a session is known."""
FIRST_WAIT, MAX_WAIT = 0.5, 30.0
"""Seconds between two attempts to connect: twice as long each time, and a random part of it."""
SHARE = 8
"""Divisor of the lease: a wait is at most this part of it, so that a party is back in time."""
AGAIN = 0.05
"""Seconds after which work that must end is told so again."""


class Serves(Protocol):
    """Server of the requests to the party's clients, by their numbers; called from several
    threads.
    """

    def welcome(self, coordinator: str, session: str) -> str:
        """Note the coordinator, and its process, that requests come from now on. Return the check
        value of the secret (`sqlfl.udfs.numbering.keys.check_value`); empty without a secret."""
        ...

    def forget(self) -> None:
        """Forget the runs that the coordinator has given up."""
        ...

    def handle(self, client: int, data: pa.Buffer, study: str, speaker: str) -> pa.Buffer: ...

    def interrupt(self, client: int, study: str, speaker: str) -> None:
        """End the work that is being served for this analyst."""
        ...

    def stop(self) -> None:
        """End all work that is being served."""
        ...


@dataclass(frozen=True)
class WelcomeTerms:
    """Terms that the coordinator sends in its welcome."""

    coordinator: str
    session: str
    lease: float
    heartbeat: float


class Refused(Error):
    """Refusal of this party by the coordinator: another attempt would end alike."""


class Agent:
    """Agent of one party. `run` returns when `stop` is called.

    The agent connects again by itself. If it has been away for longer than the lease, it forgets
    its runs: the coordinator has given them up by then. Of two agents with one certificate the
    later one serves, and `run` of the other raises Refused.

    location : 'grpc+tls://host:8815'. clients : number of databases that it serves. seen : called
    with the state of the connection, in words. server : as in `Stream`. called : the agent's name
    if there is no certificate; None for the party's. first : number of its first database among the
    party's.
    """

    def __init__(
        self,
        location: str,
        name: str,
        clients: int,
        serves: Serves,
        credentials: Credentials,
        seen: Callable[[str], None] = lambda _: None,
        most_bytes: int = MAX_BODY_BYTES,
        server: str | None = None,
        called: str | None = None,
        first: int = 0,
    ) -> None:
        self._server, self._called, self._first = server, called or name, first
        self._location, self._name, self._clients = location, name, clients
        self._serves, self._credentials, self._seen = serves, credentials, seen
        self._most_bytes = most_bytes
        self._boot = secrets.token_hex(16)
        self._terms: WelcomeTerms | None = None
        self._replies = Replies()
        self._stopped = threading.Event()
        self._stream: Stream | None = None
        """That is served."""
        self._open: Stream | None = None
        """That is being opened, or is served."""
        self._served = False
        self._hinted = ""
        self._longest = MAX_WAIT

    def run(self) -> None:
        """Connect, and connect again after a failure or a break. Raise Refused."""
        with Turns(self._most_bytes) as turns:
            try:
                self._connect(turns)
            finally:
                turns.clear()
                while not turns.idle:
                    self._serves.stop()
                    time.sleep(AGAIN)

    def _connect(self, turns: Turns) -> None:
        wait, there = FIRST_WAIT, time.monotonic()
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                self._connected(turns, self._left(there))
                self._seen("the connection has ended")
            except (pa.ArrowException, OSError, EOFError, WireError) as error:
                self._seen(f"no connection: {self._told(said(error))}")
            longest = self._longest
            if self._served:
                there = time.monotonic()
            if self._served and there - began > longest:
                wait = FIRST_WAIT
            self._stopped.wait(min(wait, longest) * random.uniform(0.5, 1.0))
            wait = min(2.0 * wait, longest)
            if self._terms is not None and time.monotonic() - there > self._terms.lease:
                self._forget(turns)

    def _left(self, there: float) -> float | None:
        """Return the seconds of the lease that are left for an attempt; None without a lease."""
        if self._terms is None:
            return None
        return max(AGAIN, there + self._terms.lease - time.monotonic())

    def _told(self, why: str) -> str:
        """Return the reason with a hint, unless the hint was given just before."""
        before, self._hinted = self._hinted, "" if self._served else hint(why)
        return why if self._hinted in ("", before) else f"{why} ({self._hinted})"

    def _forget(self, turns: Turns) -> None:
        """Reset the agent, as if it had been restarted."""
        log.info("%s has been away for longer than the lease, and forgets its runs", self._name)
        self._terms, self._boot = None, secrets.token_hex(16)
        turns.clear()
        self._replies = Replies()
        self._serves.forget()

    def stop(self) -> None:
        """End the work that is being served, and the connection. Callable from any thread."""
        self._stopped.set()
        self._serves.stop()
        for stream in (self._open, self._stream):
            if stream is not None:
                stream.cancel()

    def _connected(self, turns: Turns, within: float | None) -> None:
        """Serve one stream, from its beginning to its end. within : seconds until it is taken."""
        self._served = False
        stream = Stream(
            self._location, self._credentials, PARTY, self._server, self._most_bytes, within
        )
        with stream:
            hello = {
                "versions": list(VERSIONS), "name": self._name, "clients": self._clients,
                "boot": self._boot, "agent": self._called, "first": self._first,
            }  # fmt: skip
            self._open = stream
            terms = _terms(stream.greeted(Frame(HELLO, hello)))
            if self._terms is None or terms.session != self._terms.session:
                turns.clear()
                self._replies = Replies()  # what is still served ends up in those before
            check = self._serves.welcome(terms.coordinator, terms.session)
            if check:
                stream.sender.send(Frame(SECRET, {"check": check}))
            self._terms, self._stream, self._served = terms, stream, True
            self._longest = min(MAX_WAIT, max(FIRST_WAIT, terms.lease / SHARE))
            self._seen(f"connected to {terms.coordinator}")
            watch = threading.Thread(
                target=stream.watch, args=(terms.heartbeat,), name="sqlfl-heartbeat"
            )
            watch.start()
            try:
                while not self._stopped.is_set():
                    self._received(stream.receive(), stream, turns)
            finally:
                self._stream = self._open = None
                stream.cancel()
                watch.join()

    def _received(self, frame: Frame, stream: Stream, turns: Turns) -> None:
        if frame.kind == PONG:
            return
        if frame.kind == REFUSED:
            raise Refused(f"the coordinator refuses: {frame.text('why')}")
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
        replies = self._replies
        known, reply = replies.begin(number)
        of = client, study, speaker
        if reply is not None:
            turns.submit((of, "again"), partial(self._send, stream, reply), 0)
        elif not known:
            served = partial(self._serve, replies, number, client, frame.body, study, speaker)
            turns.submit(of, served, len(frame.body))

    def _serve(
        self,
        replies: Replies,
        number: int,
        client: int,
        data: pa.Buffer,
        study: str,
        speaker: str,
    ) -> None:
        if replies is not self._replies:
            return  # the reply belongs to a session that is over
        try:
            body = self._serves.handle(client, data, study, speaker)
            reply = Frame(REPLY, {"number": number}, body)
        except Exception:
            told = {"study": study}
            log.exception("%s failed beyond its own failures", self._name, extra=told)
            reply = failed(number, "failed beyond its own failures; its log says how")
        replies.end(number, reply)
        stream = self._stream
        if stream is not None and replies is self._replies:
            self._send(stream, reply)

    def _send(self, stream: Stream, reply: Frame) -> None:
        try:
            stream.sender.send(reply)
        except (pa.ArrowException, OSError) as error:
            log.info("a reply waits for the next connection: %s", error)
            stream.cancel()


def _terms(frame: Frame) -> WelcomeTerms:
    """Return the terms of a welcome. Raise Refused if the coordinator refuses, and WireError for
    another frame.
    """
    if frame.kind == REFUSED:
        raise Refused(f"the coordinator refuses: {frame.text('why')}")
    if frame.kind != WELCOME:
        raise WireError(f"{frame.kind} came where a welcome does")
    spoken([frame.told.get("version")])
    lease, heartbeat = frame.number("lease_ms") / 1e3, frame.number("heartbeat_ms") / 1e3
    return WelcomeTerms(frame.text("coordinator"), frame.text("session"), lease, heartbeat)
