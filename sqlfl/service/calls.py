"""Calls of analysts elsewhere to their desks, each in a thread of its own."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from sqlfl.base.errors import Error, InternalError, WireError
from sqlfl.base.interrupts import Interrupts, heeding
from sqlfl.base.progress import ProgressStep
from sqlfl.base.result import Result
from sqlfl.federation.user_warnings import heard
from sqlfl.service import answers
from sqlfl.service.analyst_sessions import AnalystSession, run_statement
from sqlfl.service.frames import INTERRUPT, Frame
from sqlfl.service.outbox import Outbox
from sqlfl.service.status import ServiceStatus

log = logging.getLogger("sqlfl.service")

CALL, ANSWER, FAILED, STEP, REMARK = "call", "answer", "failed", "step", "remark"
TAKEN = "taken"
"""Kind of the frame that says: the answer to this call has come."""
LEAVE = "leave"
"""Kind of the frame that says: no answer is waited for any more."""
SQL, EXPLAIN, MODEL, TABLE, QUERY, LIST = "sql", "explain", "model", "table", "query", "list"
SCHEMA = "schema"
LISTS = ("parties", "models", "tables", "audit", "chain", "status", "statements")
MAX_TEXT_BYTES = 4 << 20
"""Maximum bytes of a text that an analyst sends."""
MAX_BEGUN = 1024
MAX_INTERRUPTS = 3
"""Maximum number of times that a call is interrupted."""
MAX_KEPT_ANSWERS, MAX_KEPT_BYTES = 16, 256 << 20
"""Answers, and their bytes, that are kept until they are taken: beyond it but the last one."""
STATEMENTS = pa.schema(
    [
        ("number", pa.int64()), ("verb", pa.string()), ("name", pa.string()),
        ("began", pa.string()), ("ended", pa.string()), ("seconds", pa.float64()),
        ("epoch", pa.int64()), ("epochs", pa.int64()), ("note", pa.string()),
        ("bytes", pa.int64()), ("error", pa.string()),
    ]
)  # fmt: skip
"""Statements of an analyst: the running ones, and the last that are over."""


@dataclass(eq=False)
class _Call:
    """Call that runs, or whose answer is kept."""

    interrupts: Interrupts
    thread: threading.Thread | None = None
    heard: int = 0
    """Number of interruptions by the caller."""
    remarks: list[str] = field(default_factory=list)
    reply: Frame | None = None


class Calls:
    """Calls of one end of an analyst's, each in a thread of its own.

    Streams of that end come and go, one at a time. A call is made once, however often it is
    requested by its number. Its answer is kept until it is taken.
    """

    def __init__(
        self, desk: AnalystSession, sender: Outbox, most: int, board: ServiceStatus
    ) -> None:
        self._desk, self._most, self._board = desk, most, board
        self._sender: Outbox | None = sender
        self._away_since = time.monotonic()
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._begun: set[int] = set()
        self._floor = 0
        """All calls up to this number have begun; of later ones those in `begun`."""
        self._ending = self._left = False

    # -- streams ----------------------------------------------------------------------------------

    def connect(self, sender: Outbox) -> None:
        """Use another stream of the same end, in place of the one before. Remarks may be lost with
        that: they are sent again before any answer, and the end leaves out those it has.
        """
        with self._lock:
            self._sender = sender
            for number, call in self._calls.items():
                for index, text in enumerate(tuple(call.remarks)):
                    with suppress(pa.ArrowException, OSError):
                        sender.offer(_remark(number, index, text))

    def carries(self, sender: Outbox) -> bool:
        with self._lock:
            return self._sender is sender

    def disconnect(self, sender: Outbox) -> None:
        """Note that the stream is gone; running calls go on."""
        with self._lock:
            if self._sender is sender:
                self._sender, self._away_since = None, time.monotonic()

    def over(self, lease: float) -> bool:
        """Return whether nobody will ask for any of these calls any more."""
        with self._lock:
            running = any(call.reply is None for call in self._calls.values())
            if self._sender is not None or running:
                return False
            late = time.monotonic() > self._away_since + lease
            return self._left or late or not self._calls

    def take(self, frame: Frame) -> None:
        number = frame.number("number")
        with self._lock:
            known = self._calls.get(number)
            if frame.kind == TAKEN:
                if known is not None and known.reply is not None:
                    del self._calls[number]
                return
            if frame.kind == LEAVE:
                self._left = True
                return
            if frame.kind == INTERRUPT:
                if known is not None and known.reply is None:
                    self._interrupt(known, frame)
                return
            if frame.kind != CALL:
                raise WireError(f"{frame.kind} came where a call does")
            work = self._begin(number, frame) if known is None else None
        if work is not None:
            work.start()
        if known is not None and known.reply is not None:
            self._send(known.reply)

    def _begin(self, number: int, frame: Frame) -> threading.Thread | None:
        if number <= self._floor or number in self._begun:
            raise WireError(f"call {number} was answered, and that is forgotten")
        self._begun.add(number)
        if len(self._begun) > MAX_BEGUN:  # calls in between were given up before they came
            self._floor = min(self._begun) - 1
        while self._floor + 1 in self._begun:
            self._floor += 1
            self._begun.remove(self._floor)
        call = self._calls[number] = _Call(Interrupts())
        busy = self._busy()
        if busy is not None:
            call.reply = _failed(number, busy)
            self._forget(number)
            self._put(self._sender, call.reply)
            return None
        call.thread = threading.Thread(
            target=self._call, args=(number, frame, call), name="sqlfl-statement"
        )
        return call.thread

    def _busy(self) -> Error | None:
        """Return the reason why nothing more is begun; None if a place is taken for the call."""
        if self._ending:
            return Error("the coordinator ends", hint="wait until it is back")
        return self._desk.begin(self._most)

    @staticmethod
    def _interrupt(call: _Call, frame: Frame) -> None:
        """Interrupt the call. The same interruption, sent again by another stream, counts once."""
        while call.heard < min(frame.number("times"), MAX_INTERRUPTS):
            call.heard += 1
            call.interrupts.interrupt()

    @property
    def running(self) -> int:
        with self._lock:
            return sum(call.reply is None for call in self._calls.values())

    def end(self) -> None:
        """End running calls as by Ctrl-C, and begin no more."""
        with self._lock:
            self._ending = True
        self.interrupt_all()

    def interrupt_all(self) -> None:
        with self._lock:
            for call in self._calls.values():
                if call.reply is None:
                    call.interrupts.interrupt()

    def join(self, due: float) -> None:
        """Wait for running calls until that time, of the monotonic clock, at the latest."""
        with self._lock:
            threads = [call.thread for call in self._calls.values() if call.reply is None]
        for thread in threads:
            if thread is not None:
                thread.join(max(0.0, due - time.monotonic()))

    def _call(self, number: int, frame: Frame, call: _Call) -> None:
        try:
            with heeding(call.interrupts):
                body = self._answer(number, frame)
            reply = Frame(ANSWER, {"number": number}, body)
        except KeyboardInterrupt as interrupt:
            ended = Error("the coordinator has ended, and the statement")
            reply = _failed(number, ended if self._ending else interrupt)
        except Error as error:
            reply = _failed(number, error)
        except Exception:
            log.exception("a statement failed beyond sqlfl's own errors")
            reply = _failed(number, InternalError("the coordinator failed; its log says how"))
        with self._lock:
            call.reply = reply
            self._desk.end()
            self._forget(number)
            sender = self._sender
        self._put(sender, reply)

    def _forget(self, last: int) -> None:
        """Forget the oldest answers, except the last one, if many are kept."""
        sizes = {
            n: len(call.reply.body) for n, call in self._calls.items() if call.reply is not None
        }
        size = sum(sizes.values())
        for number in [n for n in sizes if n != last]:
            if len(sizes) <= MAX_KEPT_ANSWERS and size <= MAX_KEPT_BYTES:
                return
            size -= sizes.pop(number)
            del self._calls[number]

    def _answer(self, number: int, frame: Frame) -> pa.Buffer:
        what = frame.text("what")
        try:
            text = frame.body.to_pybytes().decode()
        except UnicodeDecodeError:
            raise WireError("a text that is not UTF-8") from None
        desk, fed = self._desk, self._desk.federation
        desk.admit()
        with desk.placed(text):
            if what == SQL:
                return answers.result_to_bytes(self._ran(number, text))
            if what == EXPLAIN:
                return answers.plan_to_bytes(fed.explain(text))
            if what == SCHEMA:
                return answers.result_to_bytes(Result(fed.result_schema(text).empty_table()))
            if what == MODEL:
                return answers.model_to_bytes(fed.model(text))
            if what in (TABLE, QUERY):
                relation = fed.table(text) if what == TABLE else fed.query(text)
                return answers.result_to_bytes(Result(relation.schema().arrow(), text=relation.sql))
        if what != LIST or text not in LISTS:
            raise WireError(f"{what} {text!r:.40} is nothing that is answered")
        return answers.result_to_bytes(self._listed(text))

    def _listed(self, what: str) -> Result:
        fed = self._desk.federation
        if what in ("tables", "audit", "chain"):
            return {"tables": fed.tables, "audit": fed.audit, "chain": fed.chain}[what]()
        if what in ("status", "statements"):
            desk = self._desk
            told = self._board.told_to(desk.study, desk.analyst, desk.members)
            return _status(told) if what == "status" else _statements(told)
        names = fed.parties if what == "parties" else fed.models
        return Result(pa.table({"name": pa.array(names, pa.string())}))

    def _ran(self, number: int, text: str) -> Result:
        def stepped(step: ProgressStep) -> None:
            told = {name: getattr(step, name) for name in step.__dataclass_fields__}
            if step.objective is not None and not math.isfinite(step.objective):
                told["objective"] = None
            self._offer(Frame(STEP, {"number": number, **told}))

        with heard(self._remark(number)):
            return run_statement(self._desk, self._board, text, None, stepped)

    def _remark(self, number: int) -> Callable[[str], None]:
        call = self._calls[number]

        def said(text: str) -> None:
            call.remarks.append(text)
            self._offer(_remark(number, len(call.remarks) - 1, text))

        return said

    def _offer(self, frame: Frame) -> None:
        """Send a frame that the receiver can do without, and that a receiver may never read."""
        with self._lock:
            sender = self._sender
        with suppress(pa.ArrowException, OSError):
            if sender is not None:
                sender.offer(frame)

    def _send(self, frame: Frame) -> None:
        with self._lock:
            sender = self._sender
        self._put(sender, frame)

    @staticmethod
    def _put(sender: Outbox | None, frame: Frame) -> None:
        """Send a frame to a receiver that may have gone."""
        with suppress(pa.ArrowException, OSError):
            if sender is not None:
                sender.send(frame)


def _failed(number: int, error: Error | KeyboardInterrupt) -> Frame:
    return Frame(FAILED, {"number": number}, answers.error_to_bytes(error))


def _remark(number: int, index: int, text: str) -> Frame:
    return Frame(REMARK, {"number": number, "index": index, "text": text})


def _status(told: dict[str, Any]) -> Result:
    """The study's parties, one row for each client."""
    return Result(pa.Table.from_pylist(told["parties"]))


def _statements(told: dict[str, Any]) -> Result:
    return Result(pa.Table.from_pylist(told["statements"], STATEMENTS))
