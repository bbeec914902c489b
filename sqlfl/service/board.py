"""What a coordinator shows of itself: parties and statements as they are just now, and counts."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlfl.progress import Step
from sqlfl.service.line import Line

LAST = 50
"""Statements that are over, and shown."""
POINTS = 500
"""Of an objective's curve that are kept."""


@dataclass(eq=False)
class Running:
    """A statement. Of its text nothing is shown: it may hold values."""

    number: int
    study: str
    analyst: str
    verb: str
    began: dt.datetime
    since: float
    name: str = ""
    epoch: int = 0
    epochs: int | None = None
    note: str = ""
    sent: int = 0
    curve: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=POINTS))
    ended: dt.datetime | None = None
    seconds: float | None = None
    error: str | None = None

    def step(self, step: Step) -> None:
        self.name, self.epoch, self.epochs = step.name, step.epoch, step.epochs
        self.note, self.sent = step.note, step.sent
        if step.objective is not None:
            self.curve.append((step.epoch, step.objective))


class Board:
    """Safe to use from several threads."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.lines = tuple(lines)
        self.began = dt.datetime.now(dt.UTC)
        self._lock = threading.Lock()
        self._number = 0
        self._running: dict[int, Running] = {}
        self._over: deque[Running] = deque(maxlen=LAST)
        self.counts: Counter[tuple[str, str]] = Counter()
        """Statements by verb and by how they ended: 'done', 'failed' or 'stopped'."""
        self.bytes = 0
        """That have crossed borders, in statements that are over."""

    def begin(self, study: str, analyst: str, verb: str) -> Running:
        with self._lock:
            self._number += 1
            now = dt.datetime.now(dt.UTC)
            own = Running(self._number, study, analyst, verb, now, time.monotonic())
            self._running[own.number] = own
            return own

    def end(self, own: Running, how: str, error: str | None = None) -> None:
        with self._lock:
            own.ended, own.error = dt.datetime.now(dt.UTC), error
            own.seconds = time.monotonic() - own.since
            del self._running[own.number]
            self._over.append(own)
            self.counts[own.verb, how] += 1
            self.bytes += own.sent

    @property
    def running(self) -> int:
        with self._lock:
            return len(self._running)

    def told(self, study: str | None = None, analyst: str | None = None) -> dict[str, Any]:
        """All of it, as JSON has it; of one study, and its statements of one analyst."""
        with self._lock:
            own = [*self._over, *self._running.values()]
        return {
            "began": self.began.isoformat(),
            "parties": [
                {
                    "party": line.party,
                    "client": line.first,
                    "connected": not line.away,
                    "away_seconds": round(line.away, 1),
                    "bytes_down": line.bytes_down,
                    "bytes_up": line.bytes_up,
                    "requests": line.requests,
                    "reconnections": line.reconnections,
                }
                for line in self.lines
            ],
            "statements": [
                _statement(run)
                for run in own
                if study in (None, run.study) and analyst in (None, run.analyst)
            ],
        }


def _statement(own: Running) -> dict[str, Any]:
    seconds = time.monotonic() - own.since if own.seconds is None else own.seconds
    return {
        "number": own.number,
        "study": own.study,
        "analyst": own.analyst,
        "verb": own.verb,
        "name": own.name,
        "began": own.began.isoformat(),
        "ended": None if own.ended is None else own.ended.isoformat(),
        "seconds": round(seconds, 3),
        "epoch": own.epoch,
        "epochs": own.epochs,
        "note": own.note,
        "bytes": own.sent,
        "curve": list(own.curve),
        "error": own.error,
    }
