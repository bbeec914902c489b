"""What analysts elsewhere ask of their desks, each call in a thread of its own."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa

from sqlfl.errors import Error, InternalError, WireError
from sqlfl.interrupts import Interrupts, heeding
from sqlfl.planner.grammar import statements as st
from sqlfl.progress import Step
from sqlfl.remarks import heard
from sqlfl.remote.frames import INTERRUPT, Frame
from sqlfl.result import Result
from sqlfl.service import answers
from sqlfl.service.board import Board
from sqlfl.service.desks import Desk, stepping
from sqlfl.service.outbox import Outbox
from sqlfl.texts import whole

log = logging.getLogger("sqlfl.remote")

CALL, ANSWER, FAILED, STEP, REMARK = "call", "answer", "failed", "step", "remark"
SQL, EXPLAIN, MODEL, TABLE, QUERY, LIST = "sql", "explain", "model", "table", "query", "list"
LISTS = ("parties", "models", "tables", "audit", "chain", "status", "statements")
MOST_TEXT = 4 << 20
"""Bytes of what an analyst sends."""
STATEMENTS = pa.schema(
    [
        ("number", pa.int64()), ("verb", pa.string()), ("name", pa.string()),
        ("began", pa.string()), ("ended", pa.string()), ("seconds", pa.float64()),
        ("epoch", pa.int64()), ("epochs", pa.int64()), ("note", pa.string()),
        ("bytes", pa.int64()), ("error", pa.string()),
    ]
)  # fmt: skip
"""Of an analyst: those that run, and the last that are over."""
_HERE = (st.ExportModel, st.ImportModel)
"""Statements whose files would be the coordinator's, and whose blocks are at the parties."""


class Calls:
    """What one stream of an analyst has asked, each in a thread of its own."""

    def __init__(self, desk: Desk, sender: Outbox, most: int, board: Board) -> None:
        self._desk, self._sender, self._most, self._board = desk, sender, most, board
        self._lock = threading.Lock()
        self._running: dict[int, tuple[threading.Thread, Interrupts]] = {}
        self._done: Callable[[], object] | None = None
        self._ending = False

    def take(self, frame: Frame) -> None:
        number = frame.number("number")
        with self._lock:
            known = self._running.get(number)
            if frame.kind == INTERRUPT:
                if known is not None:
                    known[1].interrupt()
                return
            if frame.kind != CALL or known is not None:
                raise WireError(f"{frame.kind} came where a call does")
            busy = None
            if self._ending:
                busy = Error("the coordinator ends", hint="wait until it is back")
            elif not self._desk.begin(self._most):
                busy = Error(
                    f"{self._most} statements of {self._desk.analyst} are running",
                    hint="wait for one of them",
                )
            if busy is not None:
                self._send(Frame(FAILED, {"number": number, **answers.error_to_told(busy)}))
                return
            interrupts = Interrupts()
            work = threading.Thread(
                target=self._call, args=(number, frame, interrupts), name="sqlfl-statement"
            )
            self._running[number] = work, interrupts
        work.start()

    @property
    def running(self) -> int:
        with self._lock:
            return len(self._running)

    def end(self) -> None:
        """What runs ends as by Ctrl-C, and nothing more begins."""
        with self._lock:
            self._ending = True
        self.interrupt_all()

    def interrupt_all(self) -> None:
        with self._lock:
            for _, interrupts in self._running.values():
                interrupts.interrupt()

    def join(self, due: float) -> None:
        """Until that time, of the monotonic clock, at the latest."""
        with self._lock:
            threads = [thread for thread, _ in self._running.values()]
        for thread in threads:
            thread.join(max(0.0, due - time.monotonic()))

    def when_done(self, done: Callable[[], object]) -> None:
        """The stream is gone; what runs goes on. `done` is called after the last of it."""
        with self._lock:
            self._done = done
            idle = not self._running
        if idle:
            done()

    def _call(self, number: int, frame: Frame, interrupts: Interrupts) -> None:
        try:
            with heeding(interrupts):
                body = self._answer(number, frame)
            reply = Frame(ANSWER, {"number": number}, body)
        except KeyboardInterrupt:
            told: dict[str, object] = {"error": "KeyboardInterrupt"}
            if self._ending:
                told = answers.error_to_told(Error("the coordinator has ended, and the statement"))
            reply = Frame(FAILED, {"number": number, **told})
        except Error as error:
            reply = Frame(FAILED, {"number": number, **answers.error_to_told(error)})
        except Exception:
            log.exception("a statement failed beyond sqlfl's own errors")
            fault = InternalError("the coordinator failed; its log says how")
            reply = Frame(FAILED, {"number": number, **answers.error_to_told(fault)})
        with self._lock:
            del self._running[number]
            self._desk.end()
            done = None if self._running else self._done
        self._send(reply)
        if done is not None:
            done()

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
            if what == MODEL:
                return answers.model_to_bytes(fed.model(text))
            if what in (TABLE, QUERY):
                own = fed.table(text) if what == TABLE else fed.query(text)
                return answers.result_to_bytes(Result(own.schema().arrow(), text=own.sql))
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
        statement = whole(text).statement()
        if isinstance(statement, _HERE):
            raise Error(
                f"{_verb(statement)} MODEL is not built for parties on other machines: no message "
                "carries a block of a model",
                hint="where a party's database is, a federation of that process's own exports it",
            )
        desk = self._desk
        own = self._board.begin(desk.study, desk.analyst, _verb(statement))
        known = {"study": desk.study, "analyst": desk.analyst, "statement": own.number}
        log.info("%s begins", own.verb, extra=known)

        def stepped(step: Step) -> None:
            own.step(step)
            told = {name: getattr(step, name) for name in step.__dataclass_fields__}
            if step.objective is not None and not math.isfinite(step.objective):
                told["objective"] = None
            self._offer(Frame(STEP, {"number": number, **told}))

        how, error = "failed", None
        try:
            with stepping(stepped), heard(self._remark(number)):
                found = self._desk.federation.sql(text)
            how = "done"
            return found
        except KeyboardInterrupt:
            how = "stopped"
            raise
        except Error as problem:
            error = problem.message
            raise
        finally:
            self._board.end(own, how, error)
            log.info("%s: %s after %.1f s", own.verb, how, own.seconds, extra=known)

    def _remark(self, number: int) -> Callable[[str], None]:
        return lambda text: self._offer(Frame(REMARK, {"number": number, "text": text}))

    def _offer(self, frame: Frame) -> None:
        """What can be done without, to whoever may have gone, or may not read it."""
        with suppress(pa.ArrowException, OSError):
            self._sender.offer(frame)

    def _send(self, frame: Frame) -> None:
        """To whoever may have gone."""
        with suppress(pa.ArrowException, OSError):
            self._sender.send(frame)


def _status(told: dict[str, Any]) -> Result:
    """The study's parties, one row for each client."""
    return Result(pa.Table.from_pylist(told["parties"]))


def _statements(told: dict[str, Any]) -> Result:
    return Result(pa.Table.from_pylist(told["statements"], STATEMENTS))


def _verb(statement: st.Statement) -> str:
    """'TRAIN' of a `TrainModel`: never by the text, whose first word may be any comment."""
    return re.split("(?<!^)(?=[A-Z])", type(statement).__name__)[0].upper()
