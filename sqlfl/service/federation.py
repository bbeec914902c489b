"""A federation whose coordinator is elsewhere, with the methods of one in this process, and its
connection to the coordinator: calls up, answers down.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

import pyarrow as pa

from sqlfl.base.errors import Error, WireError
from sqlfl.base.foreign_names import FEDERATION, no_attribute
from sqlfl.base.interrupts import asked_to_stop
from sqlfl.base.progress import Progress
from sqlfl.base.result import Result
from sqlfl.base.sanitize import line
from sqlfl.contract.schema import Column
from sqlfl.federation import user_warnings
from sqlfl.federation.relation import Relation
from sqlfl.federation.script import Values, pieces, whole
from sqlfl.planner.grammar import statements as st
from sqlfl.planner.grammar.clauses import read_path
from sqlfl.planner.grammar.parameters import fill
from sqlfl.planner.grammar.tokens import decoded
from sqlfl.service import answers
from sqlfl.service.agent import HELLO, REFUSED, WELCOME
from sqlfl.service.answers import bytes_to_error
from sqlfl.service.calls import (
    ANSWER,
    CALL,
    EXPLAIN,
    FAILED,
    LEAVE,
    LIST,
    MODEL,
    QUERY,
    REMARK,
    SCHEMA,
    SQL,
    STEP,
    TABLE,
    TAKEN,
)
from sqlfl.service.frames import INTERRUPT, VERSIONS, Frame, spoken
from sqlfl.service.passes import PassIssuer
from sqlfl.service.service import ANALYST, PASS
from sqlfl.service.settings import AnalystSettings, check_location, read_settings
from sqlfl.service.stream import PONG, Credentials, Ended, Stream, hint, said
from sqlfl.store.registry import Model

log = logging.getLogger("sqlfl.service")


# -- the connection --------------------------------------------------------------------------------

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
        """Name of the coordinator's process: another one knows of no call."""
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


# -- the federation --------------------------------------------------------------------------------

SETTINGS = "SQLFL_CONFIG"
"""The variable of the environment that names an analyst's settings."""


class RemoteFederation:
    """An analyst's desk at a coordinator. Use `sqlfl.connect("grpc+tls://host:8815", ...)`.

    config : the TOML file of the analyst's settings (docs/distributed.md); by default the file that
        the variable SQLFL_CONFIG names. study : which of the coordinator's; by default the one of
        the settings. analyst : the analyst's name, where there is no certificate. progress : as in
        `sqlfl.connect`.

    Parties come and go by themselves: `attach` and `detach` are not built, and neither are `trace`,
    as no party discloses its queries, and EXPORT and IMPORT MODEL. Raise Error where the
    coordinator cannot be reached, or does not take the analyst.
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute(self, name, FEDERATION, dir(type(self)))

    def __init__(
        self,
        location: str,
        *,
        config: str | os.PathLike[str] | None = None,
        study: str | None = None,
        analyst: str | None = None,
        progress: bool | None = None,
    ) -> None:
        path = os.environ.get(SETTINGS) if config is None else config
        settings = AnalystSettings() if path is None else read_settings(AnalystSettings, path)
        study = study or settings.study
        if study is None:
            raise Error("no study is named", hint="sqlfl.connect(location, study='name')")
        self._progress = progress
        self._location = location
        self._line = AnalystConnection(location, study, settings, analyst or settings.name or "")

    # -- statements -------------------------------------------------------------------------------

    def sql(self, text: str, parameters: Values = None) -> Result:
        """As `Federation.sql`: of several statements, those before one that fails are done."""
        read = [(piece, piece.statement()) for piece in pieces(text, parameters)]
        for piece, statement in read:
            with piece.placed(done=True):
                result = answers.bytes_to_result(self._asked(SQL, piece.sql, statement))
        return result

    def explain(self, text: str, parameters: Values = None) -> answers.RemotePlan:
        """As `Federation.explain`: text and HTML of the plan, and its `details`."""
        piece = whole(text, parameters)
        statement = piece.statement()
        with piece.placed():
            return answers.bytes_to_plan(self._asked(EXPLAIN, piece.sql, statement))

    def result_schema(self, text: str, parameters: Values = None) -> pa.Schema:
        """Return the schema as `Federation.result_schema` does."""
        piece = whole(text, parameters)
        piece.statement()
        with piece.placed():
            return answers.bytes_to_result(self._line.ask(SCHEMA, piece.sql)).arrow().schema

    def model(self, name: str) -> Model:
        """As `Federation.model`."""
        model = answers.bytes_to_model(self._line.ask(MODEL, name))
        return replace(model, ask=self.sql)

    @property
    def parties(self) -> tuple[str, ...]:
        return self._names("parties")

    @property
    def models(self) -> tuple[str, ...]:
        return self._names("models")

    def tables(self) -> Result:
        return self._list("tables")

    def chain(self) -> Result:
        return self._list("chain")

    def audit(self) -> Result:
        return self._list("audit")

    def status(self) -> Result:
        """Return the coordinator's parties: whether they are connected, and their traffic."""
        return self._list("status")

    def statements(self) -> Result:
        """Yours in this study: those that run (`ended` is NULL), and the last of the others."""
        return self._list("statements")

    def table(self, name: str) -> Relation:
        path = read_path(name, "a table", 2, 4)
        return self._relation(TABLE, name, path)

    def query(self, text: str, parameters: Values = None) -> Relation:
        return self._relation(QUERY, fill(decoded(text, "a query"), parameters).sql)

    # -- what is not there ------------------------------------------------------------------------

    def attach(self, name: str, *_: object, **__: object) -> None:
        raise Error(
            "a party joins a coordinator on another machine by itself",
            hint=f"where its database is: sqlfl party --join {self._location} --config party.toml",
        )

    def detach(self, name: str) -> None:
        raise Error("a party leaves a coordinator on another machine by itself")

    def trace(self) -> NoReturn:
        raise Error("parties on other machines do not say what SQL they run")

    # -- the connection ---------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the connection; models stay, and running statements go on."""
        self._line.close()

    def __enter__(self) -> RemoteFederation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return line(f"<sqlfl federation at {self._location}, study {self._line.study}>")

    def _names(self, what: str) -> tuple[str, ...]:
        return tuple(name for (name,) in self._list(what))

    def _list(self, what: str) -> Result:
        return answers.bytes_to_result(self._line.ask(LIST, what))

    def _relation(self, what: str, text: str, path: tuple[str, ...] = ()) -> Relation:
        described = answers.bytes_to_result(self._line.ask(what, text))
        columns = tuple(Column(name, kind) for name, kind in described)
        return Relation(described.own()[0] or text, columns, self, path)  # type: ignore[arg-type]

    def _asked(self, what: str, text: str, statement: st.Statement) -> Any:
        shown = _Shown(self._progress)
        try:
            return self._line.ask(what, text, shown.heard, shown.stopping)
        finally:
            shown.close()
            for said in shown.remarks:
                user_warnings.remark(said)


class _Shown:
    """Frames before an answer: the progress of a statement, and its warnings."""

    def __init__(self, enabled: bool | None) -> None:
        self._enabled = enabled
        self._bar: Progress | None = None
        self._sent = self._first = 0
        self.remarks: list[str] = []

    def heard(self, frame: Frame) -> None:
        if frame.kind == REMARK:
            self.remarks.append(frame.text("text"))
            return
        if frame.kind == AWAY:
            if self._bar is not None:
                self._bar.stage("the connection was lost, and is made again")
            return
        told: Mapping[str, Any] = frame.told
        if told.get("over"):
            self.close()
            return
        self._sent, objective = frame.number("sent"), told.get("objective")
        if self._bar is None:
            epochs, tolerance = told.get("epochs"), told.get("tolerance")
            if objective is None:  # else the first was not heard
                self._first = frame.number("epoch")
            self._bar = Progress(
                frame.text("name"),
                epochs if type(epochs) is int else None,
                self._enabled,
                float(tolerance) if isinstance(tolerance, (int, float)) else 0.0,
                self._bytes,
                self._first,
            )
        if isinstance(objective, (int, float)):
            self._bar.epoch(frame.number("epoch") - self._first, float(objective))
        elif frame.text("note", ""):
            self._bar.stage(frame.text("note"))

    def stopping(self) -> None:
        """A first Ctrl-C ends a training at the end of its round, which may take long."""
        if self._bar is not None:
            self._bar.remark("ending; Ctrl-C again: at once")

    def close(self) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()

    def _bytes(self) -> int:
        return self._sent
