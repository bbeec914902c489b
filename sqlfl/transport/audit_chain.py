"""What one side of a border keeps of each message: entries that hang together by their hashes, so
that one that is changed, dropped, added or put elsewhere shows.

The head of entry n is the SHA-256 of the JSON of the head of entry n − 1 and all fields of the
entry; that of a run, which both sides tell each other at its end, is of what is `said` of the run's
messages alone, one after the other.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from json.encoder import encode_basestring_ascii as _json
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeAlias, TypeVar

if TYPE_CHECKING:
    from pyarrow import Buffer

P = ParamSpec("P")
T = TypeVar("T")
DOWN, UP = "down", "up"
"""From the coordinator to a party, and back."""
FINISH, SEAL, SEALED = "finish", "seal", "sealed"
"""Kinds of messages: with the last two, each side tells the other the head of a run."""
CUT, LOST, STOPPED = "cut", "lost", "stopped"
"""Kind of an entry at the coordinator alone, which is no message: the requests before it, as many
as `told` says, got no reply. The party did not answer, so that it may have lost what it had not
written, or the coordinator was stopped."""
START = "0" * 64
"""The head of no entries."""
WAITING = 1.0
"""Seconds for which entries are in memory alone, while there are more of them."""
LARGE = 1 << 16
"""Bytes from which a message is hashed beside what goes on with it."""
SHARED = 8
"""Of those, how many are remembered for the other side."""
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


class ChainEntry(NamedTuple):
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
Keep: TypeAlias = Callable[[Sequence[ChainEntry]], str]
"""Adds entries to what is kept, all or none; the head of it all."""


def linked(entries: Iterable[ChainEntry], seq: int, head: str) -> list[Row]:
    """The rows that follow on that of this number and head; 0 and START before the first."""
    rows: list[Row] = []
    for own in entries:
        seq += 1
        at, client, analyst, run, direction, kind, size, sha256, told = own
        # the same text as of json.dumps, in a third of the time
        text = (
            f'["{head}", {seq}, {at}, {_json(client)}, {_json(analyst)}, {_json(run)}, '
            f"{_json(direction)}, {_json(kind)}, {size}, {_json(sha256)}, {_json(told)}]"
        )
        head = hashlib.sha256(text.encode()).hexdigest()
        rows.append((seq, *own, head))
    return rows


class AuditChain:
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
        self._noted: list[tuple[ChainEntry, Buffer | Future[str] | None]] = []
        """Entries, with their messages or what hashes these; they are not among what waits yet."""
        self._size = 0
        self._waiting: list[ChainEntry] = []
        self._since = time.monotonic()
        self._failed = False
        """Whether what is written last was not taken: nothing else is noted until it is."""
        self._heads: dict[tuple[str, str], hashlib._Hash] = {}
        self._cut: set[tuple[str, str]] = set()
        """Runs at a client that were cut off: the two sides may know different messages of them."""
        self._last: str | None = None

    def note(
        self, client: str, run: str, direction: str, kind: str, data: Buffer, told: str = ""
    ) -> None:
        """That this message was sent, or came; `data`: its bytes."""
        at = time.time_ns() // 1000
        size = data.size
        if self._failed:
            self.flush()
        # a small one is hashed with all others, when nothing waits for it
        hashed = data if size < LARGE else _HASHES.of(data, self._hashing.submit)
        entry = ChainEntry(at, client, self._analyst, run, direction, kind, size, "", told)
        with self._lock:
            if not self._waiting and not self._noted:
                self._since = time.monotonic()
            self._noted.append((entry, hashed))
            self._size += size
            if self._size > MOST_BYTES:
                self._settle()
            late = time.monotonic() - self._since > WAITING
        if late:
            self.flush_aside()

    def cut(self, client: str, run: str, why: str, requests: int) -> None:
        """Note that the last `requests` requests of the run got no reply.

        why : STOPPED, or LOST: the party may then lack messages of all its open runs.
        """
        at = time.time_ns() // 1000
        entry = ChainEntry(at, client, self._analyst, run, UP, CUT, 0, "", f"{why} {requests}")
        with self._lock:
            cut = {(client, run)}
            if why == LOST:
                cut |= self._heads.keys() | {(own.client, own.run) for own, _ in self._noted}
            self._cut |= {key for key in cut if key[0] == client and key[1]}
            self._noted.append((entry, None))

    def is_whole(self, client: str, run: str) -> bool:
        """Return True where the party knows all messages of the run, as far as is known here."""
        with self._lock:
            return (client, run) not in self._cut

    def heads(self, client: str, run: str) -> tuple[str, str]:
        """Of the run so far, and of all that is kept by now."""
        with self._writing, self._lock:
            self._settle()
            if self._last is None:
                self._last = self._keep(())
            return self._heads.get((client, run), hashlib.sha256()).hexdigest(), self._last

    def flush(self) -> None:
        """Keep what waits; nothing of it goes on in another thread."""
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None:
            wait([kept])
        self._flush()

    def _flush(self) -> None:
        with self._writing:
            with self._lock:
                self._settle()
                entries = tuple(self._waiting)
                self._since = time.monotonic()
            self._failed = bool(entries)
            if entries:
                self._last = self._keep(entries)
                self._failed = False
                with self._lock:
                    del self._waiting[: len(entries)]

    def flush_aside(self) -> None:
        """The same, in a moment."""
        with self._lock:
            if self._kept is None or self._kept.done():
                self._kept = self._later.submit(self._flush_within, self._aside())

    def _flush_within(self, aside: AbstractContextManager[object]) -> None:
        with aside:
            self._flush()

    def close(self) -> None:
        """Keep what waits, and end the threads; what comes later begins others."""
        try:
            self.flush()
        finally:
            self._later.close()
            self._hashing.close()

    def _settle(self) -> None:
        """All that are noted wait to be written, in their order."""
        for entry, hashed in self._noted:
            at, client, analyst, run, direction, kind, size, _, told = entry
            if hashed is None:
                self._waiting.append(entry)
                continue
            sha256 = hashed.result() if isinstance(hashed, Future) else _digest(hashed)
            own = ChainEntry(at, client, analyst, run, direction, kind, size, sha256, told)
            self._waiting.append(own)
            if run:
                head = self._heads.get((client, run))
                if head is None:
                    head = self._heads[client, run] = hashlib.sha256()
                head.update(own.said)
            if kind == FINISH and direction == DOWN:
                self._heads.pop((client, run), None)
                self._cut.discard((client, run))
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


class _Hashes:
    """Of large messages just now: where both sides are in this process, one hashes for the other.

    A buffer is held as long as its hash, so that no other one has its address meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[int, int], tuple[Buffer, Future[str]]] = OrderedDict()

    def of(self, data: Buffer, submit: Callable[..., Future[str]]) -> Future[str]:
        key = (data.address, data.size)
        with self._lock:
            known = self._known.pop(key, None)
            if known is not None:  # the other side has it now, too
                return known[1]
            found = submit(_digest, data)
            self._known[key] = data, found
            while len(self._known) > SHARED:
                self._known.popitem(last=False)
            return found


_HASHES = _Hashes()


def _digest(data: Buffer) -> str:
    return hashlib.sha256(data).hexdigest()


class MemoryLinks:
    """Entries that are kept as long as the process lasts."""

    def __init__(self) -> None:
        self._rows: list[Row] = []

    def keep(self, entries: Sequence[ChainEntry]) -> str:
        seq, head = (self._rows[-1][0], self._rows[-1][-1]) if self._rows else (0, START)
        self._rows += linked(entries, seq, head)
        return self._rows[-1][-1] if self._rows else START

    def rows(self) -> list[Row]:
        return list(self._rows)
