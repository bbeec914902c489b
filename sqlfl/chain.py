"""What one side of a border keeps of each message: entries that hang together by their hashes, so
that one that is changed, dropped, added or put elsewhere shows.

The head of entry n is the SHA-256 of the JSON of the head of entry n − 1 and all fields of the
entry; that of a run, which both sides tell each other at its end, is of the run's messages alone.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pyarrow import Buffer

DOWN, UP = "down", "up"
"""From the coordinator to a party, and back."""
FINISH, SEAL, SEALED = "finish", "seal", "sealed"
"""Kinds of messages: with the last two, each side tells the other the head of a run."""
START = "0" * 64
"""The head of no entries."""
WAITING = 1.0
"""Seconds for which entries are in memory alone, while there are more of them."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
COLUMNS = {
    "seq": "BIGINT",
    "noted_at": "TIMESTAMP WITH TIME ZONE",
    "client": "VARCHAR",
    "analyst": "VARCHAR",
    "run": "VARCHAR",
    "direction": "VARCHAR",
    "kind": "VARCHAR",
    "bytes": "BIGINT",
    "sha256": "VARCHAR",
    "told": "VARCHAR",
    "head": "VARCHAR",
}
"""Of the table `chain` in which either side keeps them."""


@dataclass(frozen=True)
class Entry:
    """One message. `told`: of a run that is proposed what it is; of a head that is told the head,
    and that of the teller's whole chain."""

    at: int
    """µs since 1970, UTC."""
    client: str
    analyst: str
    run: str
    direction: str
    kind: str
    bytes: int
    sha256: str
    """Of the message as it was sent."""
    told: str

    def after(self, run_head: str) -> str:
        """The head of its run."""
        return _hash([run_head, self.direction, self.kind, self.bytes, self.sha256])


Row: TypeAlias = "tuple[int, int, str, str, str, str, str, int, str, str, str]"
"""Of `COLUMNS`, times as whole µs."""
Keep: TypeAlias = Callable[[Sequence[Entry]], str]
"""Adds entries to what is kept, all or none; the head of it all."""


def linked(entries: Iterable[Entry], seq: int, head: str) -> list[Row]:
    """The rows that follow on that of this number and head; 0 and START before the first."""
    rows: list[Row] = []
    for own in entries:
        seq += 1
        fields = astuple(own)
        head = _hash([head, seq, *fields])
        rows.append((seq, *fields, head))
    return rows


def _hash(fields: list[object]) -> str:
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def microseconds(at: dt.datetime) -> int:
    return (at - _EPOCH) // dt.timedelta(microseconds=1)


class Chain:
    """Of one side. Safe to use from several threads. What `keep` raises is raised, and the entries
    wait."""

    def __init__(self, analyst: str, keep: Keep) -> None:
        self._analyst, self._keep = analyst, keep
        self._lock = threading.RLock()
        self._waiting: list[Entry] = []
        self._since = time.monotonic()
        self._heads: dict[tuple[str, str], str] = {}
        self._last: str | None = None

    def note(
        self, client: str, run: str, direction: str, kind: str, data: Buffer, told: str = ""
    ) -> None:
        """That this message was sent, or came; `data`: its bytes, or a buffer of them."""
        sha256 = hashlib.sha256(data).hexdigest()
        at = microseconds(dt.datetime.now(dt.UTC))
        entry = Entry(at, client, self._analyst, run, direction, kind, len(data), sha256, told)
        with self._lock:
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting.append(entry)
            if run:
                self._heads[client, run] = entry.after(self._heads.get((client, run), START))
            if kind == FINISH and direction == DOWN:
                self._heads.pop((client, run), None)
            if time.monotonic() - self._since > WAITING:
                self.flush()

    def heads(self, client: str, run: str) -> tuple[str, str]:
        """Of the run so far, and of all that is kept by now."""
        with self._lock:
            if self._last is None:
                self._last = self._keep(())
            return self._heads.get((client, run), START), self._last

    def flush(self) -> None:
        """Keep what waits."""
        with self._lock:
            if self._waiting:
                self._last = self._keep(tuple(self._waiting))
                self._waiting.clear()
            self._since = time.monotonic()


class MemoryLinks:
    """Entries that are kept as long as the process lasts."""

    def __init__(self) -> None:
        self._rows: list[Row] = []

    def keep(self, entries: Sequence[Entry]) -> str:
        seq, head = (self._rows[-1][0], self._rows[-1][-1]) if self._rows else (0, START)
        self._rows += linked(entries, seq, head)
        return self._rows[-1][-1] if self._rows else START

    def rows(self) -> list[Row]:
        return list(self._rows)
