"""A coordinator's desks: the federation of one analyst in one study, with the parties that are
there.

Each analyst has a file of models and an audit of their own, as parties bind models to whom they
were trained for.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from sqlfl import messages as ms
from sqlfl.base.errors import Error, LostError, PolicyError
from sqlfl.base.progress import ProgressStep, Tell
from sqlfl.federation.session import Federation
from sqlfl.messages.wire import received
from sqlfl.service.party_connection import PartyConnection

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
        """Those that are there, and were not before."""
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
        """Those that are there, and were not before."""
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
