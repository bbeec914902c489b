"""An analyst's line to their desk at a coordinator: calls up, answers down."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from sqlfl.errors import Error, WireError
from sqlfl.remote.agent import HELLO, REFUSED, WELCOME
from sqlfl.remote.certificates import names_of
from sqlfl.remote.frames import INTERRUPT, VERSIONS, Frame, spoken
from sqlfl.remote.locations import check_location
from sqlfl.remote.passes import issue
from sqlfl.remote.settings import AnalystSettings
from sqlfl.remote.stream import PONG, Credentials, Stream, said
from sqlfl.service.answers import told_to_error
from sqlfl.service.calls import ANSWER, CALL, FAILED, REMARK, STEP
from sqlfl.service.service import ANALYST, PASS

log = logging.getLogger("sqlfl.remote")

HEARD = 0.1
"""Seconds after which a Ctrl-C is heard at the latest."""


@dataclass(eq=False)
class _Call:
    """A call that waits for its answer. `heard` is told of what comes before that."""

    heard: Callable[[Frame], None]
    done: threading.Event = field(default_factory=threading.Event)
    answer: Frame | None = None
    said: list[Frame] = field(default_factory=list)


class DeskLine:
    """location : 'grpc+tls://host:8815'. Connects at once. Safe to use from several threads.

    Raises Error where the coordinator cannot be reached, or does not take the analyst.
    """

    def __init__(self, location: str, study: str, settings: AnalystSettings, name: str) -> None:
        insecure = location.startswith("grpc://")
        check_location(location, insecure=insecure)
        self._location, self.study, self._settings = location, study, settings
        self._credentials = Credentials() if insecure else settings.credentials(name or None)
        self._server = settings.coordinator_name or urlsplit(location).hostname or ""
        self.analyst = name if insecure else names_of(self._credentials.certificate or b"")[0]
        self._lock = threading.Lock()
        self._number = 0
        self._calls: dict[int, _Call] = {}
        self._stream: Stream | None = None
        self._closed = False
        self._connected()

    def ask(
        self, what: str, text: str, heard: Callable[[Frame], None] = lambda _: None
    ) -> pa.Buffer:
        """The answer's body. Ctrl-C once ends a statement at the end of its round, and what it has
        then is the answer; twice it ends at once. Raises the error of the statement, and Error
        where the connection is lost."""
        own = _Call(heard)
        with self._lock:
            if self._closed:
                raise Error("the federation is closed", hint="sqlfl.connect(...) makes a new one")
            stream = self._connected() if self._stream is None else self._stream
            self._number += 1
            number = self._number
            self._calls[number] = own
        try:
            self._send(stream, Frame(CALL, {"number": number, "what": what}, _bytes(text)))
            self._wait(own, stream, number)
        finally:
            with self._lock:
                self._calls.pop(number, None)
        for frame in own.said:
            heard(frame)
        if own.answer is None:
            raise Error(
                f"the connection to {self._location} was lost, and a statement that was running "
                "there goes on",
                hint="once it is back: SHOW MODELS says what has been trained",
            )
        if own.answer.kind == FAILED:
            raise _failed(own.answer.told)
        return own.answer.body

    def close(self) -> None:
        with self._lock:
            self._closed = True
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.__exit__()

    def _wait(self, own: _Call, stream: Stream, number: int) -> None:
        interrupts = 0
        while True:
            try:
                while not own.done.wait(HEARD):
                    with self._lock:
                        said, own.said = own.said, []
                    for frame in said:
                        own.heard(frame)
                return
            except KeyboardInterrupt:
                interrupts += 1
                if interrupts > 2:
                    raise
                self._send(stream, Frame(INTERRUPT, {"number": number}))

    def _send(self, stream: Stream, frame: Frame) -> None:
        with suppress(pa.ArrowException, OSError):  # who reads notices
            stream.sender.send(frame)

    def _pass(self) -> str:
        own = self._credentials
        if own.key is None or own.certificate is None:
            return self.analyst
        length = dt.timedelta(hours=self._settings.pass_hours)
        return issue(own.key, own.certificate, self._server, self.study, length)

    def _connected(self) -> Stream:
        """A new stream; the lock is held, but by the constructor."""
        with self._placed():
            stream = Stream(self._location, self._credentials, ANALYST, self._server)
        with self._placed(), ExitStack() as stack:
            stack.push(stream)
            hello = {"versions": list(VERSIONS), "study": self.study, "pass": self._pass()}
            welcome = stream.greeted(Frame(HELLO, hello))
            if welcome.kind == REFUSED:
                why = welcome.text("why")
                hint = self._named() if "another coordinator" in why else None
                raise Error(f"the coordinator refuses: {why}", hint=hint)
            if welcome.kind != WELCOME:
                raise WireError(f"{welcome.kind} came where a welcome does")
            spoken([welcome.told.get("version")])
            heartbeat = welcome.number("heartbeat_ms") / 1e3
            stack.pop_all()
        self._stream = stream
        for work in (
            lambda: self._read(stream),
            lambda: self._renew(stream),
            lambda: stream.watch(heartbeat),
        ):
            threading.Thread(target=work, name="sqlfl-desk", daemon=True).start()
        return stream

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
            hint = "is the coordinator there, and are the certificates of one authority?"
            if "Peer name" in why:
                hint = self._named()
            raise Error(f"cannot connect to {self._location}: {why}", hint=hint) from error

    def _read(self, stream: Stream) -> None:
        try:
            while True:
                frame = stream.receive()
                if frame.kind != PONG:
                    self._received(frame)
        except (pa.ArrowException, OSError, EOFError, WireError) as error:
            log.info("the stream to %s has ended: %s", self._location, said(error))
        finally:
            with self._lock:
                if self._stream is stream:
                    self._stream = None
                lost, self._calls = tuple(self._calls.values()), {}
            stream.__exit__()
            for own in lost:
                own.done.set()

    def _received(self, frame: Frame) -> None:
        with self._lock:
            own = self._calls.get(frame.number("number"))
            if own is None:
                return
            if frame.kind in (STEP, REMARK):
                own.said.append(frame)
                return
        if frame.kind not in (ANSWER, FAILED):
            raise WireError(f"{frame.kind} came where answers do")
        own.answer = frame
        own.done.set()

    def _renew(self, stream: Stream) -> None:
        """Another pass at half the time of the one before, for as long as the stream lasts."""
        half = 1800.0 * self._settings.pass_hours
        due = time.monotonic() + half
        while not stream.ended.wait(min(60.0, half)):
            if time.monotonic() > due and self._credentials.key is not None:
                self._send(stream, Frame(PASS, {"pass": self._pass()}))
                due = time.monotonic() + half


def _bytes(text: str) -> pa.Buffer:
    return pa.py_buffer(text.encode())


def _failed(told: Mapping[str, Any]) -> BaseException:
    if told.get("error") == "KeyboardInterrupt":
        return KeyboardInterrupt()
    return told_to_error(told)
