"""Streams of a server: how many there may be, and for how long one may say nothing.

Each is served by a thread that waits for what comes, from its first byte on. So what is not bounded
here is bounded by the machine's threads alone: by how many have not said who they are, and by how
many one certificate has. Calls of Flight SQL count as streams. A client's connection has none
between two calls, and stays for a while.

Flight's server cannot end a stream whose peer says nothing: the thread that serves it waits for
ever. The process that has the TCP connection can end it (`cut`), whatever holds it. If a system
does not list a process's own files (neither /proc nor /dev/fd), no connections are found.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow.flight as flight

from sqlfl.base.errors import Error

Peer: TypeAlias = tuple[str, int]
"""Address and port of the other end."""
_PLACES = ("/proc/self/fd", "/dev/fd")
_MAPPED = "::ffff:"


def peer_of(text: str) -> Peer | None:
    """Return the peer that gRPC calls 'ipv4:127.0.0.1:40546' or 'ipv6:[::1]:40546'; None if it is
    neither.
    """
    kind, _, place = unquote(text).partition(":")
    host, _, port = place.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return _host(host.strip("[]")), int(port)


def cut(port: int, which: Callable[[Peer], bool] = lambda _: True) -> int:
    """End this process's connections to the port that `which` accepts; return their number. Readers
    and writers there go on with an error.
    """
    count = 0
    for connection, peer in _connections(port):
        if which(peer):
            with suppress(OSError):  # the connection has ended by itself
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def _connections(port: int) -> Iterator[tuple[socket.socket, Peer]]:
    place = next((place for place in _PLACES if os.path.isdir(place)), None)
    for name in os.listdir(place) if place is not None else ():
        with suppress(OSError):  # a file that was closed since, or another one's
            number = os.dup(int(name))  # of which nobody makes another one meanwhile
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                os.close(number)
                continue
            with socket.socket(fileno=number) as connection:
                if (
                    connection.family in (socket.AF_INET, socket.AF_INET6)
                    and _port(connection) == port
                ):
                    host, peer, *_ = connection.getpeername()
                    yield connection, (_host(host), peer)


def _port(listening: socket.socket) -> int:
    return int(listening.getsockname()[1])


def _host(text: str) -> str:
    host = text.partition("%")[0]  # without its zone
    return host.removeprefix(_MAPPED) if "." in host else host


log = logging.getLogger("sqlfl.service")

NAME = "streams"
HELLO = 10.0
"""Seconds within which a connection is to say who it is."""
IDLE = 3600.0
"""Seconds for which a connection that has made a call of Flight SQL may make none."""
BEARER = "Bearer "


class RefusedStream(Error):
    """Refusal of a stream: the other end gets the reason, and the stream ends."""


@dataclass(frozen=True)
class Most:
    each: int = 16
    """Streams of one certificate."""
    strangers: int = 256
    """Streams that have not said who they are."""


class Call(flight.ServerMiddleware):  # type: ignore[misc]
    """One stream. `who` is empty until it is known. bearer : the token of a call of Flight SQL."""

    def __init__(self, streams: Streams, bearer: str = "") -> None:
        self._streams = streams
        self.bearer = bearer
        self.peer: Peer | None = None
        self.who = ""
        self.let_in = False
        self.working = False
        """The server works, and the other end has nothing to say."""
        self.last = time.monotonic()

    def heard(self) -> None:
        """Note that something has come."""
        self.last = time.monotonic()

    def known(self, who: str) -> None:
        """Note the name of the other end. Raise RefusedStream if it has too many streams."""
        self._streams.known(self, who)

    def enter(self) -> None:
        """Note that the other end has said who it is, and may stay."""
        self._streams.enter(self)

    def stay(self) -> None:
        """Let the connection have no call for `IDLE` seconds."""
        self._streams.stay(self)

    @contextmanager
    def works(self) -> Iterator[None]:
        """Wait in the block for nothing that the other end says."""
        before, self.working = self.working, True
        try:
            yield
        finally:
            self.heard()
            self.working = before

    def call_completed(self, exception: Any) -> None:
        self._streams.over(self)


class Streams(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Streams of one server.

    silent : seconds after which a stream that was let in, and says nothing, is ended.
    methods : calls that are served beside streams, to whoever has a bearer token.

    Everything else that Flight serves is refused, before it has a thread that waits.
    """

    def __init__(
        self, most: Most, silent: float, methods: Collection[flight.FlightMethod] = ()
    ) -> None:
        self._most, self._silent, self._methods = most, silent, methods
        self._lock = threading.Lock()
        self._calls: set[Call] = set()
        self._of: Counter[str] = Counter()
        self._strangers = 0
        self._since: dict[Peer, float] = {}
        """When a connection without streams was first seen."""
        self._staying: dict[Peer, str] = {}
        """Connections that may have none, and the names of their ends; the latest call last."""

    def start_call(self, info: Any, headers: Any) -> Call:
        bearer = ""
        if info.method in self._methods:
            bearer = _bearer(headers)
        elif info.method != flight.FlightMethod.DO_EXCHANGE:
            raise flight.FlightUnavailableError("there is nothing of this kind here")
        with self._lock:
            if self._strangers >= self._most.strangers:
                why = f"{self._strangers} streams have not said who they are: come again later"
                log.warning("somebody is sent away: %s", why)
                raise flight.FlightUnavailableError(why)
            self._strangers += 1
            call = Call(self, bearer)
            self._calls.add(call)
        return call

    def of(self, context: Any) -> Call:
        """Return the stream that this call of Flight serves."""
        call: Call = context.get_middleware(NAME)
        call.peer = peer_of(context.peer())
        return call

    def known(self, call: Call, who: str) -> None:
        with self._lock:
            if call.who == who:
                return
            if self._of[who] >= self._most.each:
                raise RefusedStream(
                    f"{who!r:.80} has {self._most.each} streams already: `streams` in the "
                    "coordinator's configuration says how many"
                )
            call.who = who
            self._of[who] += 1

    def enter(self, call: Call) -> None:
        call.heard()
        with self._lock:
            self._strangers -= not call.let_in
            call.let_in = True

    def stay(self, call: Call) -> None:
        with self._lock:
            if call.peer is None:
                return
            self._staying.pop(call.peer, None)
            self._staying[call.peer] = call.who
            theirs = [peer for peer, who in self._staying.items() if who == call.who]
            for peer in theirs[: -self._most.each]:
                del self._staying[peer]

    def over(self, call: Call) -> None:
        with self._lock:
            self._calls.discard(call)
            self._strangers -= not call.let_in
            if call.who:
                self._of[call.who] -= 1
                self._of += Counter()  # those with none are left out

    def look(self, port: int) -> None:
        """End streams, and connections without one, that have said nothing for too long."""
        now = time.monotonic()
        with self._lock:
            calls, staying = tuple(self._calls), set(self._staying)
        late = {call.peer for call in calls if now > call.last + self._patience(call)}
        busy = {call.peer for call in calls}
        seen: dict[Peer, float] = {}

        def is_late(peer: Peer) -> bool:
            seen[peer] = now if peer in busy else self._since.get(peer, now)
            return peer in late or now > seen[peer] + (IDLE if peer in staying else HELLO)

        if ended := cut(port, is_late):
            log.warning("%d connections that said nothing are ended", ended)
        self._since = seen
        with self._lock:
            for peer in staying - seen.keys():
                self._staying.pop(peer, None)

    def _patience(self, call: Call) -> float:
        if call.working:
            return math.inf
        return max(HELLO, self._silent) if call.let_in else HELLO


def _bearer(headers: Any) -> str:
    """Return the token of the call. Raise FlightUnauthenticatedError if there is none."""
    values = [text for name, texts in headers.items() if name.lower() == "authorization"
              for text in texts]  # fmt: skip
    if len(values) != 1 or not str(values[0]).startswith(BEARER):
        raise flight.FlightUnauthenticatedError(
            "the analyst's pass is needed, as `authorization: Bearer ...`\n"
            "hint: sqlfl keygen pass --config alice.toml prints one"
        )
    return str(values[0]).removeprefix(BEARER)
