"""The coordinator's end of a connection to a party: requests down, replies up, on any stream.
A party that stays away for longer than its lease is lost (`LostError`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from sqlfl.base.errors import LostError, WireError
from sqlfl.base.sanitize import clipped, line
from sqlfl.messages import MAX_FAILURE_CHARACTERS
from sqlfl.service.frames import INTERRUPT, REPLY, REQUEST, Frame, Sender

log = logging.getLogger("sqlfl.service")

AGAIN = 0.5
"""Seconds after which an interrupt is sent again while it is asked for."""
SHORTEST = 0.2
"""Seconds that a party may be away where nobody means to wait for it."""
MAX_ATTEMPTS = 20
"""Times that a request is sent: where each ends the stream, another would too."""
MAX_UNAWAITED = 256
"""Requests that nobody waits for, to a party that is away."""
MAX_ACKNOWLEDGED = 4096
"""Numbers of replies that have come which one request tells."""


@dataclass(eq=False)
class _Pending:
    """A request without a reply yet."""

    frame: Frame
    of: tuple[int, str, str]
    """The client, and the study and analyst who asks."""
    done: threading.Event = field(default_factory=threading.Event)
    reply: pa.Buffer | None = None
    why: str = ""
    """It will have none, and why."""
    sent: int = 0


class PartyConnection:
    """Connection to one agent of a party, which serves some of the party's clients.

    party: the party's name. first: the number of the agent's first client among the party's. lease:
    seconds for which requests wait for a party that is away.

    Each request has a number. After a reconnection it is sent again under the same number, and a
    party that has served it repeats its answer. Requests go out in the order of their numbers. A
    party's process that was restarted has lost its state, so requests to the earlier process fail.
    The connection counts requests, bytes of messages, and streams after the first one.

    Several threads may use it; `send` of a sender must not wait.
    """

    def __init__(self, party: str, lease: float, first: int = 0) -> None:
        self.party, self.first, self._lease = party, first, lease
        self._lock = threading.Lock()
        self._number = 0
        self._pending: dict[int, _Pending] = {}
        self._left: dict[int, _Pending] = {}
        """Of these, those that nobody waits for."""
        self._received: set[int] = set()
        self._sender: Sender | None = None
        self._boot = ""
        self.secret = ""
        """Check value of the party's secret; empty if it has sent none."""
        self.link = ""
        """How the party is reached, 'over TLS'; empty before its first stream."""
        self._away_since = time.monotonic()
        self._closed = False
        self._interrupted: dict[tuple[int, str, str], float] = {}
        self.requests = self.bytes_down = self.bytes_up = self.reconnections = 0

    # -- streams ----------------------------------------------------------------------------------

    def connect(self, sender: Sender, boot: str) -> bool:
        """Take a new stream of the party, by a process `boot`, and send unanswered requests again.
        Return whether it is another process than before."""
        with self._lock:
            other = self._boot not in ("", boot)
            if other:
                self._fail("was restarted, and has forgotten the run")
            self.reconnections += self._boot != ""
            self._boot, self._sender, self.secret = boot, sender, ""
            for number in sorted(self._pending):
                self._send(number, sender)
        return other

    def carries(self, sender: Sender, boot: str) -> bool:
        """Return True if this stream is the party's. A stream that had been given up is the party's
        again if no other one has come.
        """
        with self._lock:
            if self._sender is not None:
                return self._sender is sender
        self.connect(sender, boot)
        return True

    def broken(self, sender: Sender, why: str) -> None:
        """Note that this stream brought bytes that no party sends."""
        with self._lock:
            if self._sender is sender:
                self._fail(f"sent what it should not: {why}")

    def disconnect(self, sender: Sender) -> None:
        """The stream is gone; another one may have taken its place already."""
        with self._lock:
            if self._sender is sender:
                self._sender, self._away_since = None, time.monotonic()

    def hurry(self) -> None:
        """A party that is away is waited for no longer; for one that is there as ever."""
        with self._lock:
            self._lease = min(self._lease, SHORTEST)
            if self._sender is None:
                self._fail("is away")

    def close(self, why: str) -> None:
        """No party will come any more."""
        with self._lock:
            self._closed = True
            self._fail(why)

    @property
    def away(self) -> float:
        """For how many seconds the party has had no stream; 0 while it has one."""
        with self._lock:
            return 0.0 if self._sender is not None else time.monotonic() - self._away_since

    def receive(self, frame: Frame) -> None:
        """Take a frame of the stream. Raise WireError if it is no reply to a request."""
        if frame.kind != REPLY:
            raise WireError(f"{frame.kind} came where replies do")
        number = frame.number("number")
        with self._lock:
            if not 0 < number <= self._number:
                raise WireError("a reply to no request")
            self._received.add(number)  # by a stream before, or too late, it may have come twice
            pending = self._pending.pop(number, None)
            self._left.pop(number, None)
            if pending is None:
                return
            self.bytes_up += len(frame.body)
        if "failed" in frame.told:
            pending.why = clipped(line(frame.text("failed")), MAX_FAILURE_CHARACTERS)
        else:
            pending.reply = frame.body
        pending.done.set()

    # -- requests ---------------------------------------------------------------------------------

    def ask(
        self, client: int, data: pa.Buffer, study: str, speaker: str, analyst: str | None = None
    ) -> pa.Buffer:
        """The reply to a request, in bytes. speaker : the pass of the analyst who asks; empty for
        the coordinator's own. analyst : their name, however often the pass is another; None for the
        pass itself. Raise LostError where none comes within the lease."""
        pending, number = self._begin(client, data, study, speaker, analyst)
        try:
            while not pending.done.wait(min(1.0, self._lease)):
                if self.away > self._lease:
                    raise self._lost(client, f"is away, for {self.away:.0f} seconds now")
        finally:
            with self._lock:
                self._pending.pop(number, None)
        if pending.reply is None:
            raise self._lost(client, pending.why)
        return pending.reply

    def leave(self, client: int, data: pa.Buffer, study: str, speaker: str) -> None:
        """A request for when the party is back, unless it has been restarted by then; nobody waits
        for its reply."""
        with self._lock:
            if self._closed or not self._boot:
                return
            pending, number = self._numbered(client, data, study, speaker)
            self._left[number] = pending
            if len(self._left) > MAX_UNAWAITED:
                del self._pending[next(iter(self._left))]
                del self._left[next(iter(self._left))]

    def interrupt(self, client: int, study: str, speaker: str, analyst: str | None = None) -> None:
        """End the client's work for this analyst; if the party is away, end the wait for it."""
        of = client, study, speaker if analyst is None else analyst
        now = time.monotonic()
        with self._lock:
            sender = self._sender
            if sender is None:
                self._fail("is away", of)
                return
            if now < self._interrupted.get(of, 0.0) + AGAIN:
                return
            recent = {o: at for o, at in self._interrupted.items() if now < at + AGAIN}
            self._interrupted = {**recent, of: now}
        told = {"client": client, "study": study, "pass": speaker}
        self._try(lambda: sender.send(Frame(INTERRUPT, told)))

    def _begin(
        self, client: int, data: pa.Buffer, study: str, speaker: str, analyst: str | None
    ) -> tuple[_Pending, int]:
        with self._lock:
            if self._closed:
                raise self._lost(client, "is not there any more")
            return self._numbered(client, data, study, speaker, analyst)

    def _numbered(
        self, client: int, data: pa.Buffer, study: str, speaker: str, analyst: str | None = None
    ) -> tuple[_Pending, int]:
        """The lock is held, so that numbers rise on their way."""
        self._number += 1
        self.requests += 1
        self.bytes_down += len(data)
        number = self._number
        received = [self._received.pop() for _ in range(min(MAX_ACKNOWLEDGED, len(self._received)))]
        told = {
            "number": number, "client": client, "study": study, "pass": speaker,
            "received": received,
        }  # fmt: skip
        of = client, study, speaker if analyst is None else analyst
        pending = _Pending(Frame(REQUEST, told, data), of)
        self._pending[number] = pending
        if self._sender is not None:
            self._send(number, self._sender)
        return pending, number

    def _send(self, number: int, sender: Sender) -> None:
        """The lock is held."""
        pending = self._pending[number]
        pending.sent += 1
        if pending.sent > MAX_ATTEMPTS:
            del self._pending[number]
            self._left.pop(number, None)
            pending.why = f"was asked {MAX_ATTEMPTS} times, and the connection has broken each time"
            pending.done.set()
            return
        self._try(lambda: sender.send(pending.frame))

    def _try(self, send: Callable[[], None]) -> None:
        """Send a frame. If the stream has just broken, the next one sends it again."""
        try:
            send()
        except (pa.ArrowException, OSError) as error:
            log.info("%s: %s", self.party, error)

    def _fail(self, why: str, of: tuple[int, str, str] | None = None) -> None:
        """Fail all waiting requests, or those of one analyst."""
        for number, pending in tuple(self._pending.items()):
            if of in (None, pending.of):
                del self._pending[number]
                self._left.pop(number, None)
                pending.why = why
                pending.done.set()

    def _lost(self, client: int, why: str) -> LostError:
        hint = "sqlfl status, or fed.status(), shows who is connected; its agent is `sqlfl party`"
        return LostError(f"{self.party}/{self.first + client}", why, hint=hint)
