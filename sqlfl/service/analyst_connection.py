"""An analyst's connection to their desk at a coordinator: calls up, answers down."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pyarrow as pa

from sqlfl.base.errors import Error, WireError
from sqlfl.base.interrupts import asked_to_stop
from sqlfl.service.agent import HELLO, REFUSED, WELCOME
from sqlfl.service.answers import bytes_to_error
from sqlfl.service.calls import ANSWER, CALL, FAILED, LEAVE, REMARK, STEP, TAKEN
from sqlfl.service.frames import INTERRUPT, VERSIONS, Frame, spoken
from sqlfl.service.passes import PassIssuer
from sqlfl.service.service import ANALYST, PASS
from sqlfl.service.settings import AnalystSettings, check_location
from sqlfl.service.stream import PONG, Credentials, Ended, Stream, hint, said

log = logging.getLogger("sqlfl.service")

HEARD = 0.1
"""Maximum seconds until a Ctrl-C is noticed."""
PAUSE, MAX_PAUSE = 0.1, 2.0
"""Seconds between two attempts to connect again: at first, and at most."""


AWAY = "away"
"""Kind of the frame that tells a call that there is no connection; it never travels."""
ANEW = ", and the coordinator has been started anew: what ran there has ended"
NOT_AGAIN = (
    ", and not made again in {:g} seconds; a statement that was running there goes on, where the "
    "coordinator does"
)

NO_STUDY = "there is no study"
"""Words of a refusal that lasts: to connect again would not help."""


class _Refusal(Error):
    """The coordinator was reached, and refuses the analyst."""


@dataclass(eq=False)
class _Call:
    """Call that waits for its answer. `heard` receives the frames that come before the answer, and
    `stopping` is called at each Ctrl-C.
    """

    heard: Callable[[Frame], None]
    stopping: Callable[[], None]
    frame: Frame
    done: threading.Event = field(default_factory=threading.Event)
    answer: Frame | None = None
    lost: str = ""
    """Reason why there will be no answer."""
    said: deque[Frame] = field(default_factory=deque)
    remarks: int = 0
    """Number of remarks that have come."""
    interrupts: int = 0


class AnalystConnection:
    """Connection of an analyst to a coordinator; it connects at once, and several threads may use
    it.

    location : 'grpc+tls://host:8815'. If the connection is lost while a call waits for its answer,
    the connection is made again and the call goes on. It is tried for as long as the coordinator
    waits for parties (its lease). Raise Error if the coordinator cannot be reached, or does not
    take the analyst.
    """

    def __init__(self, location: str, study: str, settings: AnalystSettings, name: str) -> None:
        insecure = location.startswith("grpc://")
        check_location(location, insecure=insecure)
        self._location, self.study = location, study
        self._credentials = Credentials() if insecure else settings.credentials(name or None)
        self._server = settings.coordinator_name or urlsplit(location).hostname or ""
        self._issuer = PassIssuer(self._credentials, name, self._server, study, settings.pass_hours)
        self.analyst = self._issuer.analyst
        self._lock = threading.Lock()
        self._end = secrets.token_hex(16)
        self._session = ""
        """Of the coordinator: another one knows of no call."""
        self._lease = 0.0
        self._number = 0
        self._calls: dict[int, _Call] = {}
        self._stream: Stream | None = None
        self._closed = False
        self._connected()

    def ask(
        self,
        what: str,
        text: str,
        heard: Callable[[Frame], None] = lambda _: None,
        stopping: Callable[[], None] = lambda: None,
    ) -> pa.Buffer:
        """The answer's body. Ctrl-C once ends a statement at the end of its round, and what it has
        then is the answer; twice it ends at once. In another thread than the main one, the
        `Interrupts` that it heeds are its Ctrl-C. Raises the error of the statement, and Error
        where the connection is lost."""
        with self._lock:
            if self._closed:
                raise Error("the federation is closed", hint="sqlfl.connect(...) makes a new one")
            if self._stream is None:
                self._connected()
            self._number += 1
            number = self._number
            frame = Frame(CALL, {"number": number, "what": what}, _bytes(text))
            call = _Call(heard, stopping, frame)
            self._calls[number] = call
        try:
            self._send(call.frame)
            self._wait(call, number)
        finally:
            self._calls.pop(number, None)  # without the lock, which a new connection may hold
        self._tell(call)
        if call.answer is None:
            raise Error(
                f"the connection to {self._location} was lost{call.lost}",
                hint="once it is back: SHOW MODELS says what has been trained, and what RESUME "
                "MODEL goes on with (of a training with checkpoint = n)",
            )
        self._send(Frame(TAKEN, {"number": number}))
        if call.answer.kind == FAILED:
            raise bytes_to_error(call.answer.body)
        return call.answer.body

    def close(self) -> None:
        with self._lock:
            self._closed = True
            stream = self._stream
            self._send(Frame(LEAVE, {"number": 0}))
            self._stream = None
            for call in tuple(self._calls.values()):
                _give_up(call, ", as it was closed; a statement that was running there goes on")
        if stream is not None:
            stream.__exit__()

    def _wait(self, call: _Call, number: int) -> None:
        while True:
            try:
                while not call.done.wait(HEARD):
                    self._tell(call)
                    if asked_to_stop():
                        raise KeyboardInterrupt
                return
            except KeyboardInterrupt:
                call.interrupts += 1
                if call.interrupts > 2:
                    raise
                self._send(_interrupt(call))
                call.stopping()

    @staticmethod
    def _tell(call: _Call) -> None:
        while call.said:
            call.heard(call.said.popleft())

    def _send(self, frame: Frame) -> None:
        """Send a frame on the current stream; the next stream sends waiting calls again."""
        stream = self._stream
        with suppress(pa.ArrowException, OSError):  # who reads notices
            if stream is not None:
                stream.sender.send(frame)

    def _connected(self) -> None:
        """Make a new stream, and send waiting calls again. The lock is held, except in the
        constructor.
        """
        with self._placed():
            stream = Stream(self._location, self._credentials, ANALYST, self._server)
        with self._placed(), ExitStack() as stack:
            stack.push(stream)
            hello = {
                "versions": list(VERSIONS),
                "study": self.study,
                "pass": self._issuer.issued(),
                "end": self._end,
            }
            welcome = stream.greeted(Frame(HELLO, hello))
            if welcome.kind == REFUSED:
                why = welcome.text("why")
                raise _Refusal(f"the coordinator refuses: {why}", hint=self._refused(why))
            if welcome.kind != WELCOME:
                raise WireError(f"{welcome.kind} came where a welcome does")
            spoken([welcome.told.get("version")])
            heartbeat = welcome.number("heartbeat_ms") / 1e3
            stack.pop_all()
        self._stream = stream
        session, before = welcome.text("session"), self._session
        self._session, self._lease = session, welcome.number("lease_ms") / 1e3
        for call in tuple(self._calls.values()):
            if session != before:
                _give_up(call, ANEW)
                continue
            self._send(call.frame)
            if call.interrupts:
                self._send(_interrupt(call))
        for work in (
            lambda: self._read(stream),
            lambda: self._renew(stream),
            lambda: stream.watch(heartbeat),
        ):
            threading.Thread(target=work, name="sqlfl-desk", daemon=True).start()

    def _refused(self, why: str) -> str | None:
        if "another coordinator" in why:
            return self._named()
        if "pass" in why:
            return "is the clock of this machine right?"
        if NO_STUDY in why:
            return "`study` in the settings; a study's analysts are in the coordinator's"
        return None

    def _named(self) -> str:
        return (
            f"it was taken for {self._server}: `coordinator_name` in the settings is the name of "
            "its certificate, where that is not the host's"
        )

    @contextmanager
    def _placed(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, EOFError, WireError) as error:
            why = said(error)
            looked = self._named() if "Peer name" in why else hint(why)
            raise Error(f"cannot connect to {self._location}: {why}", hint=looked) from error

    def _read(self, stream: Stream) -> None:
        try:
            while True:
                frame = stream.receive()
                if frame.kind != PONG:
                    self._received(frame)
        except Ended:
            for call in tuple(self._calls.values()):
                _give_up(call, ", as the coordinator has ended, and what ran there")
        except (pa.ArrowException, OSError, EOFError, WireError) as error:
            log.info("the stream to %s has ended: %s", self._location, said(error))
        finally:
            with self._lock:
                mine = self._stream is stream
                if mine:
                    self._stream = None
            stream.__exit__()
        if mine:
            self._again()

    def _again(self) -> None:
        """Make another stream if calls wait for their answers."""
        due, pause = time.monotonic() + self._lease, PAUSE
        for call in tuple(self._calls.values()):
            call.said.append(Frame(AWAY))
        while True:
            with self._lock:
                waiting = [call for call in tuple(self._calls.values()) if not call.done.is_set()]
                if self._closed or self._stream is not None or not waiting:
                    return
                try:
                    self._connected()
                    return
                except _Refusal as refusal:
                    log.info("%s", refusal.message)
                    if NO_STUDY in refusal.message:
                        for call in waiting:
                            _give_up(call, f", and {refusal.message}")
                        return
                except Error as error:
                    log.info("%s", error.message)
                if time.monotonic() > due:
                    for call in waiting:
                        _give_up(call, NOT_AGAIN.format(self._lease))
                    return
            time.sleep(pause)
            pause = min(2.0 * pause, MAX_PAUSE)

    def _received(self, frame: Frame) -> None:
        with self._lock:
            call = self._calls.get(frame.number("number"))
            if call is None:
                return
            if frame.kind == REMARK:
                if frame.number("index") < call.remarks:
                    return  # by the stream before
                call.remarks += 1
            if frame.kind in (STEP, REMARK):
                call.said.append(frame)
                return
        if frame.kind not in (ANSWER, FAILED):
            raise WireError(f"{frame.kind} came where answers do")
        call.answer = frame
        call.done.set()

    def _renew(self, stream: Stream) -> None:
        """Another pass at half the time of the one before, for as long as the stream lasts."""
        pause = min(60.0, self._issuer.half)
        while not stream.ended.wait(pause):
            if self._issuer.due:
                self._send(Frame(PASS, {"pass": self._issuer.issued()}))


def _give_up(call: _Call, why: str) -> None:
    call.lost = why
    call.done.set()


def _interrupt(call: _Call) -> Frame:
    return Frame(INTERRUPT, {"number": call.frame.number("number"), "times": call.interrupts})


def _bytes(text: str) -> pa.Buffer:
    return pa.py_buffer(text.encode())
