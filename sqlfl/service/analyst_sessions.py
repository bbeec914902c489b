"""Desks of a coordinator: the federation of one analyst in one study, and the statements there.

A desk has the parties that are there. Each analyst has a file of models and an audit of their own,
as parties bind models to whom they were trained for. Statements come from any of the analyst's
clients.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import pyarrow as pa

from sqlfl import messages as ms
from sqlfl.base.errors import Error, LostError, PolicyError
from sqlfl.base.progress import ProgressStep, Tell
from sqlfl.base.result import Result
from sqlfl.federation.script import Values, whole
from sqlfl.federation.session import Federation
from sqlfl.messages.wire import received
from sqlfl.planner.grammar import statements as st
from sqlfl.service.party_connection import PartyConnection
from sqlfl.service.status import ServiceStatus

log = logging.getLogger("sqlfl.service")

_steps: ContextVar[Tell | None] = ContextVar("sqlfl steps", default=None)


@contextmanager
def stepping(tell: Tell) -> Iterator[None]:
    """Steps of the statement that runs in the block are told to this."""
    token = _steps.set(tell)
    try:
        yield
    finally:
        _steps.reset(token)


def _tell(step: ProgressStep) -> None:
    tell = _steps.get()
    if tell is not None:
        tell(step)


Check: TypeAlias = Callable[[PartyConnection], object]
"""Raises PolicyError if the analyst may not ask this agent any more."""


@dataclass(frozen=True)
class RemoteEnd:
    """What serves one client elsewhere. speaker : the pass of the analyst just now. analyst : the
    name."""

    line: PartyConnection
    study: str
    speaker: Callable[[], str]
    analyst: str
    check: Check = lambda _: None

    def handle(self, data: pa.Buffer) -> pa.Buffer:
        try:
            self.check(self.line)
        except PolicyError:
            if not isinstance(received(data), ms.Finish):  # else the run stays open there
                raise
        try:
            return self.line.ask(0, data, self.study, self.speaker(), self.analyst)
        except LostError:
            if isinstance(received(data), ms.Finish):  # else the run stays open there
                self.line.leave(0, data, self.study, self.speaker())
            raise

    @property
    def secret(self) -> str:
        return self.line.secret

    @property
    def link(self) -> str:
        return self.line.link

    def interrupt(self) -> None:
        self.line.interrupt(0, self.study, self.speaker(), self.analyst)


class Admission:
    """Of a study's parties to a federation, whose lines are in order; safe to use from several
    threads. speaker, analyst, check : as in `RemoteEnd`."""

    def __init__(
        self,
        federation: Federation,
        study: str,
        parties: Mapping[str, tuple[PartyConnection, ...]],
        speaker: Callable[[], str],
        analyst: str,
        check: Check = lambda _: None,
    ) -> None:
        self._check = check
        self._federation, self._study, self._analyst = federation, study, analyst
        self._parties, self._speaker = parties, speaker
        self._lock = threading.Lock()
        self._refused: dict[str, str] = {}

    @property
    def refused(self) -> dict[str, str]:
        """Parties that were there, and why they were not admitted."""
        return dict(self._refused)

    def admit(self) -> None:
        """Admit the parties that joined since the last call."""
        with self._lock:
            known = set(self._federation.parties)
            for name, lines in self._parties.items():
                if name not in known and not any(line.away for line in lines):
                    self._admit(name, lines)

    def _admit(self, name: str, lines: tuple[PartyConnection, ...]) -> None:
        speaks = self._study, self._speaker, self._analyst, self._check
        ends = {n: RemoteEnd(line, *speaks) for n, line in enumerate(lines)}
        try:
            self._federation.admit(name, ends)
            self._refused.pop(name, None)
        except Error as error:
            self._refused[name] = error.message
            told = {"party": name, "study": self._study}
            text = "%s is not admitted to %s: %s"
            log.warning(text, name, self._study, error.message, extra=told)


class AnalystSession:
    """parties : of the study, each with its lines in order. path : the federation's file; None
    where nothing is kept. check : as in `RemoteEnd`. Raise Error where that cannot be used."""

    def __init__(
        self,
        study: str,
        analyst: str,
        parties: Mapping[str, tuple[PartyConnection, ...]],
        path: Path | None,
        check: Check = lambda _: None,
    ) -> None:
        self.study, self.analyst = study, analyst
        self._parties = parties
        self._counting = threading.Lock()
        self._speaker, self._until = "", dt.datetime.min.replace(tzinfo=dt.UTC)
        self._running = 0
        self.federation = Federation(path, analyst=analyst, progress=_tell)
        speaker = lambda: self._speaker  # noqa: E731
        self._admission = Admission(self.federation, study, parties, speaker, analyst, check)

    def speak(self, speaker: str, until: dt.datetime) -> None:
        """Ask parties by this pass of the analyst, unless the one before holds for longer. A client
        with a short pass so cuts off no statement of another client.
        """
        with self._counting:
            if until >= self._until:
                self._speaker, self._until = speaker, until

    @property
    def members(self) -> frozenset[str]:
        """Names of the study's parties."""
        return frozenset(self._parties)

    def begin(self, most: int) -> Error | None:
        """Begin another statement, by whichever connection; return why not, if `most` run."""
        with self._counting:
            if self._running < most:
                self._running += 1
                return None
        return Error(
            f"{most} statements of {self.analyst} are running", hint="wait for one of them"
        )

    def end(self) -> None:
        with self._counting:
            self._running -= 1

    def admit(self) -> None:
        """Admit the parties that joined since the last call."""
        self._admission.admit()

    @contextmanager
    def placed(self, text: str) -> Iterator[None]:
        """Errors of a statement say which of its parties have not come yet."""
        try:
            yield
        except Error as error:
            known, refused = set(self.federation.parties), self._admission.refused
            for name in self._parties:
                if name in known or not _named(name, text):
                    continue
                if name in refused:
                    error.say_where(f"{name} is not used in study {self.study}: {refused[name]}")
                else:
                    error.say_where(
                        f"of study {self.study}, {name} is not connected, and has not been since "
                        "the coordinator began"
                    )
            raise

    def close(self) -> None:
        self.federation.close()


def _named(party: str, text: str) -> bool:
    return re.search(rf"\b{re.escape(party)}\b", text, re.IGNORECASE) is not None


_HERE = (st.ExportModel, st.ImportModel)
"""Statements whose files would be the coordinator's, and whose blocks are at the parties."""


def run_statement(
    desk: AnalystSession,
    board: ServiceStatus,
    text: str,
    parameters: Values = None,
    stepped: Callable[[ProgressStep], None] = lambda step: None,
) -> Result:
    """Run a statement at the desk, and show it on the board. Raises the statement's errors."""
    statement = whole(text, parameters).statement()
    if isinstance(statement, _HERE):
        raise Error(
            f"{_verb(statement)} MODEL is not built for parties on other machines: no message "
            "carries a block of a model",
            hint="where a party's database is, a federation of that process's own exports it",
        )
    running = board.begin(desk.study, desk.analyst, _verb(statement))
    known = {"study": desk.study, "analyst": desk.analyst, "statement": running.number}
    log.info("%s begins", running.verb, extra=known)

    def tell(step: ProgressStep) -> None:
        running.step(step)
        stepped(step)

    how, error = "failed", None
    try:
        with stepping(tell):
            result = desk.federation.sql(text, parameters)
        how = "done"
        return result
    except KeyboardInterrupt:
        how = "stopped"
        raise
    except Error as problem:
        error = problem.message
        raise
    finally:
        board.end(running, how, error)
        log.info("%s: %s after %.1f s", running.verb, how, running.seconds, extra=known)


class Runs(Protocol):
    """A federation, whose coordinator is in this process or elsewhere."""

    def sql(self, text: str, parameters: Values = None) -> Result: ...

    def result_schema(self, text: str, parameters: Values = None) -> pa.Schema: ...

    @property
    def parties(self) -> tuple[str, ...]: ...

    def tables(self) -> Result: ...


class DeskStatements:
    """Statements of a desk's analyst for a client that has no stream. most : that run at once."""

    def __init__(self, desk: AnalystSession, board: ServiceStatus, most: int) -> None:
        self._desk, self._board, self._most = desk, board, most

    def sql(self, text: str, parameters: Values = None) -> Result:
        """Run one statement, as `Federation.sql`. Raise Error too where many are running."""
        busy = self._desk.begin(self._most)
        if busy is not None:
            raise busy
        try:
            self._desk.admit()
            with self._desk.placed(text):
                return run_statement(self._desk, self._board, text, parameters)
        finally:
            self._desk.end()

    def result_schema(self, text: str, parameters: Values = None) -> pa.Schema:
        """As `Federation.result_schema`."""
        self._desk.admit()
        with self._desk.placed(text):
            return self._desk.federation.result_schema(text, parameters)

    @property
    def parties(self) -> tuple[str, ...]:
        self._desk.admit()
        return self._desk.federation.parties

    def tables(self) -> Result:
        self._desk.admit()
        return self._desk.federation.tables()


@dataclass(frozen=True)
class Caller:
    """Whose call of Flight SQL it is."""

    name: str
    """No other caller of the server has it."""
    federation: Runs
    works: Callable[[], AbstractContextManager[object]] = nullcontext
    """Block in which the server works, and waits for nothing of the client."""
    heard: Callable[[], object] = lambda: None
    """Called when the client has sent or taken something."""


def _verb(statement: st.Statement) -> str:
    """Return the verb, such as 'TRAIN' of a `TrainModel`. The text's first word may be a comment,
    so it is not used.
    """
    return re.split("(?<!^)(?=[A-Z])", type(statement).__name__)[0].upper()
