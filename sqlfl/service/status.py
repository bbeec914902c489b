"""What a coordinator shows of itself: parties and statements as they are just now, and counts."""

from __future__ import annotations

import datetime as dt
import math
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlfl.base.progress import ProgressStep
from sqlfl.service.party_connection import PartyConnection

LAST = 50
"""Statements that are over, and shown."""
POINTS = 500
"""Of an objective's curve that are kept."""
DRAWN = 100
"""Of them that are told."""
BOUNDS = (0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, math.inf)
"""Seconds by which statements are counted."""
RUNNING = "running"


@dataclass(eq=False)
class Running:
    """A statement. Of its text nothing is kept: it may hold values."""

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
    how: str = RUNNING
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def step(self, step: ProgressStep) -> None:
        with self.lock:
            self.name, self.epoch, self.epochs = step.name, step.epoch, step.epochs
            self.note, self.sent = step.note, step.sent
            if step.objective is not None:
                self.curve.append((step.epoch, step.objective))


@dataclass(frozen=True)
class Totals:
    """Of all statements so far."""

    running: int
    ended: Counter[tuple[str, str]]
    """By verb and by how: 'done', 'failed' or 'stopped'."""
    times: tuple[int, ...]
    """Statements over by seconds: those within each of `BOUNDS` and beyond the bound before it."""
    seconds: float
    bytes: int
    """That have crossed borders, in statements that are over."""


class ServiceStatus:
    """Safe to use from several threads."""

    def __init__(self, lines: Iterable[PartyConnection]) -> None:
        self.lines = tuple(lines)
        self.began = dt.datetime.now(dt.UTC)
        self._lock = threading.Lock()
        self._number = 0
        self._running: dict[int, Running] = {}
        self._over: deque[Running] = deque(maxlen=LAST)
        self.counts: Counter[tuple[str, str]] = Counter()
        """As in `Totals`, and so are these."""
        self.bytes = 0
        self.seconds = 0.0
        self.times = [0] * len(BOUNDS)

    def begin(self, study: str, analyst: str, verb: str) -> Running:
        with self._lock:
            self._number += 1
            now = dt.datetime.now(dt.UTC)
            statement = Running(self._number, study, analyst, verb, now, time.monotonic())
            self._running[statement.number] = statement
            return statement

    def end(self, statement: Running, how: str, error: str | None = None) -> None:
        with self._lock:
            statement.ended, statement.error, statement.how = dt.datetime.now(dt.UTC), error, how
            statement.seconds = time.monotonic() - statement.since
            del self._running[statement.number]
            self._over.append(statement)
            self.counts[statement.verb, how] += 1
            self.bytes += statement.sent
            self.seconds += statement.seconds
            self.times[bisect_left(BOUNDS, statement.seconds)] += 1

    @property
    def running(self) -> int:
        with self._lock:
            return len(self._running)

    def totals(self) -> Totals:
        with self._lock:
            return Totals(
                len(self._running), self.counts.copy(), tuple(self.times), self.seconds, self.bytes
            )

    def told(self) -> dict[str, Any]:
        """For whoever may see the coordinator, as JSON has it: what its configuration names, and
        numbers. Nothing that an analyst wrote, and no errors, which name columns."""
        return {
            "began": self.began.isoformat(),
            "parties": [
                {
                    **_presence(line),
                    "bytes_down": line.bytes_down,
                    "bytes_up": line.bytes_up,
                    "requests": line.requests,
                    "reconnections": line.reconnections,
                }
                for line in self.lines
            ],
            "statements": [_statement(run) for run in self._all()],
        }

    def told_to(self, study: str, analyst: str, parties: Container[str]) -> dict[str, Any]:
        """For an analyst: whether these parties are there, and of the statements the analyst's own,
        with the names of their models, stages and errors. No counts: they are of all studies."""
        statements = [run for run in self._all() if (run.study, run.analyst) == (study, analyst)]
        return {
            "began": self.began.isoformat(),
            "parties": [_presence(line) for line in self.lines if line.party in parties],
            "statements": [
                {
                    **_statement(run),
                    "number": number,
                    "name": run.name,
                    "note": run.note,
                    "error": run.error,
                }
                for number, run in enumerate(statements, 1)
            ],
        }

    def _all(self) -> list[Running]:
        with self._lock:
            return [*self._over, *self._running.values()]


def _presence(line: PartyConnection) -> dict[str, Any]:
    away = line.away
    return {
        "party": line.party,
        "client": line.first,
        "connected": not away,
        "away_seconds": round(away, 1),
    }


def _statement(statement: Running) -> dict[str, Any]:
    with statement.lock:
        epoch, epochs, sent, curve = (
            statement.epoch,
            statement.epochs,
            statement.sent,
            tuple(statement.curve),
        )
    seconds = time.monotonic() - statement.since if statement.seconds is None else statement.seconds
    return {
        "number": statement.number,
        "study": statement.study,
        "analyst": statement.analyst,
        "verb": statement.verb,
        "outcome": statement.how,
        "began": statement.began.isoformat(),
        "ended": None if statement.ended is None else statement.ended.isoformat(),
        "seconds": round(seconds, 3),
        "epoch": epoch,
        "epochs": epochs,
        "bytes": sent,
        "curve": _drawn(curve),
    }


def _drawn(curve: tuple[tuple[int, float], ...]) -> list[tuple[int, float]]:
    """At most `DRAWN` and the last one, to six digits; without those that are no numbers."""
    step = max(1, -(-len(curve) // DRAWN))
    thin = [*curve[:-1:step], *curve[-1:]]
    return [(epoch, float(f"{value:.6g}")) for epoch, value in thin if math.isfinite(value)]
