"""What one side of a border keeps of each message: entries that hang together by their hashes, so
that one that is changed, dropped, added or put elsewhere shows.

The head of entry n is the SHA-256 of the JSON of the head of entry n − 1 and all fields of the
entry; that of a run, which both sides tell each other at its end, is of what is `said` of the run's
messages alone, one after the other.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeAlias, TypeVar

if TYPE_CHECKING:
    from pyarrow import Buffer

P = ParamSpec("P")
T = TypeVar("T")
DOWN, UP = "down", "up"
"""From the coordinator to a party, and back."""
FINISH, SEAL, SEALED = "finish", "seal", "sealed"
"""Kinds of messages: with the last two, each side tells the other the head of a run."""
START = "0" * 64
"""The head of no entries."""
WAITING = 1.0
"""Seconds for which entries are in memory alone, while there are more of them."""
LARGE = 1 << 16
"""Bytes from which a message is hashed beside what goes on with it."""
MOST_BYTES = 64 << 20
"""Of messages that wait for that."""
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


class Entry(NamedTuple):
    """One message. `told`: of a run that is proposed what it is; of a head that is told the head,
    and that of the teller's whole chain."""

    at: int
    """µs since 1970, UTC."""
    client: str
    analyst: str
    run: str
    direction: str
    kind: str
    size: int
    """In bytes."""
    sha256: str
    """Of its bytes; empty while that is worked out."""
    told: str

    @property
    def said(self) -> bytes:
        """What both sides know of it."""
        return f"{self.direction} {self.kind} {self.size} {self.sha256}\n".encode()


Row: TypeAlias = "tuple[int, int, str, str, str, str, str, int, str, str, str]"
"""Of `COLUMNS`, times as whole µs."""
Keep: TypeAlias = Callable[[Sequence[Entry]], str]
"""Adds entries to what is kept, all or none; the head of it all."""


def linked(entries: Iterable[Entry], seq: int, head: str) -> list[Row]:
    """The rows that follow on that of this number and head; 0 and START before the first."""
    rows: list[Row] = []
    for own in entries:
        seq += 1
        head = hashlib.sha256(json.dumps([head, seq, *own]).encode()).hexdigest()
        rows.append((seq, *own, head))
    return rows


class Chain:
    """Of one side. Safe to use from several threads. `aside` is called before entries are written
    in another thread, which does that within what it returns.

    Large messages are hashed by a thread of its own, and entries written by another one where that
    can wait; both end in `close`. What `keep` raises is raised, if need be to who comes next, and
    the entries wait.
    """

    def __init__(
        self,
        analyst: str,
        keep: Keep,
        aside: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._analyst, self._keep, self._aside = analyst, keep, aside
        self._lock, self._writing = threading.RLock(), threading.RLock()
        self._hashing = _Aside("sqlfl-chain-hash")
        self._later = _Aside("sqlfl-chain-keep")
        self._kept: Future[None] | None = None
        self._noted: list[tuple[Entry, Future[str] | None]] = []
        """Entries, with what hashes their messages; they are not among what waits yet."""
        self._size = 0
        self._waiting: list[Entry] = []
        self._since = time.monotonic()
        self._heads: dict[tuple[str, str], hashlib._Hash] = {}
        self._last: str | None = None

    def note(
        self, client: str, run: str, direction: str, kind: str, data: Buffer, told: str = ""
    ) -> None:
        """That this message was sent, or came; `data`: its bytes."""
        at = time.time_ns() // 1000
        size = len(data)
        self._check_kept()
        with self._lock:
            if size < LARGE:
                sha256, hashed = _digest(data), None
            else:
                sha256, hashed = "", self._hashing.submit(_digest, data)
            if not self._waiting and not self._noted:
                self._since = time.monotonic()
            entry = Entry(at, client, self._analyst, run, direction, kind, size, sha256, told)
            self._noted.append((entry, hashed))
            self._size += size
            if self._size > MOST_BYTES:
                self._settle()
            late = time.monotonic() - self._since > WAITING
        if late:
            self.flush_aside()

    def heads(self, client: str, run: str) -> tuple[str, str]:
        """Of the run so far, and of all that is kept by now."""
        with self._writing, self._lock:
            self._settle()
            if self._last is None:
                self._last = self._keep(())
            return self._heads.get((client, run), hashlib.sha256()).hexdigest(), self._last

    def flush(self) -> None:
        """Keep what waits."""
        with self._writing:
            with self._lock:
                self._settle()
                entries = tuple(self._waiting)
                self._since = time.monotonic()
            if entries:
                self._last = self._keep(entries)
                with self._lock:
                    del self._waiting[: len(entries)]

    def flush_aside(self) -> None:
        """The same, in a moment."""
        with self._lock:
            if self._kept is None:
                self._kept = self._later.submit(self._flush_within, self._aside())

    def _flush_within(self, aside: AbstractContextManager[object]) -> None:
        """Until nothing waits, as who comes meanwhile does not begin another one of these."""
        with aside:
            while True:
                self.flush()
                with self._lock:
                    if not self._noted and not self._waiting:
                        self._kept = None
                        return

    def close(self) -> None:
        """Keep what waits, and end the threads; what comes later begins others."""
        try:
            self.flush()
        finally:
            self._later.close()
            self._hashing.close()

    def _check_kept(self) -> None:
        """Raises what has kept entries from being written, if it still does."""
        kept = self._kept
        if kept is not None and kept.done() and kept.exception() is not None:
            self.flush()
            with self._lock:
                self._kept = None

    def _settle(self) -> None:
        """All that are noted wait to be written, in their order."""
        for entry, hashed in self._noted:
            own = entry if hashed is None else entry._replace(sha256=hashed.result())
            self._waiting.append(own)
            key = own.client, own.run
            if own.run:
                self._heads.setdefault(key, hashlib.sha256()).update(own.said)
            if own.kind == FINISH and own.direction == DOWN:
                self._heads.pop(key, None)
        self._noted.clear()
        self._size = 0


class _Aside:
    """One thread, as long as there is something for it to do now and then."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> Future[T]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, self._name)
        return self._pool.submit(work, *given, **named)

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()


def _digest(data: Buffer) -> str:
    return hashlib.sha256(data).hexdigest()


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
