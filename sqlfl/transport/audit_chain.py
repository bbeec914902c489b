"""Hash chain of one side of a border: an entry for each message. A changed, dropped, added or moved
entry breaks the chain.

The head of entry n is the SHA-256 of a JSON text: the head of entry n − 1 and all fields of the
entry. The head of a run covers only what is `said` of the run's messages, one after the other. Both
sides send each other this head at the run's end.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _json
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeAlias, TypeVar

if TYPE_CHECKING:
    from pyarrow import Buffer

P = ParamSpec("P")
T = TypeVar("T")
DOWN, UP = "down", "up"
"""Directions: from the coordinator to a party, and back."""
FINISH, SEAL, SEALED = "finish", "seal", "sealed"
"""Kinds of messages. With the last two, each side sends the other the head of a run."""
CUT, LOST, STOPPED = "cut", "lost", "stopped"
"""Kind of an entry at the coordinator alone, which is no message, and its reasons.

The requests before it got no reply; `told` gives their number. LOST: the party did not answer, and
may have lost unwritten entries. STOPPED: the coordinator was stopped.
"""
START = "0" * 64
"""Head of an empty chain."""
WAITING = 1.0
"""Seconds for which entries stay in memory alone while more of them come."""
LARGE = 1 << 16
"""Size in bytes from which a message is hashed in another thread."""
SHARED = 8
"""Number of such hashes to remember for the other side."""
MAX_WAITING_BYTES = 64 << 20
"""Maximum bytes of messages that wait for their hash."""
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
"""Columns of the table `chain`, in which either side keeps the entries."""


class ChainEntry(NamedTuple):
    """Entry for one message.

    `told` describes the run in a proposal. In an exchange of heads it has the head of the run and
    that of the sender's whole chain.
    """

    at: int
    """Microseconds since 1970, UTC."""
    client: str
    analyst: str
    run: str
    direction: str
    kind: str
    size: int
    """Size in bytes."""
    sha256: str
    """Hash of its bytes; empty until it is computed."""
    told: str

    @property
    def said(self) -> bytes:
        """Return the part that both sides know."""
        return said_of(self.direction, self.kind, self.size, self.sha256)


def said_of(direction: str, kind: str, size: int, sha256: str) -> bytes:
    """Return the part of an entry that both sides know."""
    return f"{direction} {kind} {size} {sha256}\n".encode()


Row: TypeAlias = "tuple[int, int, str, str, str, str, str, int, str, str, str]"
"""Row of `COLUMNS`, with times in whole microseconds."""
Keep: TypeAlias = Callable[[Sequence[ChainEntry]], str]
"""Adds entries to the kept chain, all or none, and returns the chain's head."""


def linked(entries: Iterable[ChainEntry], seq: int, head: str) -> list[Row]:
    """Return the rows of the entries that follow the row with this number and head; 0 and START for
    the first.
    """
    rows: list[Row] = []
    for entry in entries:
        seq += 1
        at, client, analyst, run, direction, kind, size, sha256, told = entry
        named = _named(client, analyst, run, direction, kind)
        # the text of json.dumps, in a quarter of its time
        text = f'["{head}", {seq}, {at}, {named}, {size}, {_json(sha256)}, {_json(told)}]'
        head = hashlib.sha256(text.encode()).hexdigest()
        rows.append((seq, *entry, head))
    return rows


@lru_cache(maxsize=256)
def _named(*names: str) -> str:
    """Return the JSON of these texts, which are the same in many entries."""
    return ", ".join(map(_json, names))


class AuditChain:
    """Hash chain of one side. Several threads may use it.

    aside: called before another thread writes entries; the writing runs within the context that it
    returns.

    A thread of the chain hashes large messages. Another one writes entries if that can wait. Both
    end in `close`. An error of `keep` is raised, possibly to the next caller, and the entries wait.
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
        """Entries with their messages, or with the work that hashes these. They are not in
        `_waiting` yet.
        """
        self._size = 0
        self._waiting: list[ChainEntry] = []
        self._since = time.monotonic()
        self._failed = False
        """True if the last entries could not be written. Nothing else is noted until they are."""
        self._heads: dict[tuple[str, str], hashlib._Hash] = {}
        self._cut: set[tuple[str, str]] = set()
        """Runs at a client that were cut off. The two sides may know different messages of them."""
        self._last: str | None = None

    def note(
        self, client: str, run: str, direction: str, kind: str, data: Buffer, told: str = ""
    ) -> None:
        """Note a message that was sent or received. `data`: its bytes."""
        at = time.time_ns() // 1000
        size = data.size
        if self._failed:
            self.flush()
        # Small messages are hashed together later, when nobody waits.
        hashed = data if size < LARGE else _HASHES.of(data, self._hashing.submit)
        entry = ChainEntry(at, client, self._analyst, run, direction, kind, size, "", told)
        now = time.monotonic()
        with self._lock:
            if not self._waiting and not self._noted:
                self._since = now
            self._noted.append((entry, hashed))
            self._size += size
            if self._size > MAX_WAITING_BYTES:
                self._settle()
            late = now - self._since > WAITING
        if late:
            self.flush_aside()

    def cut(self, client: str, run: str, why: str, requests: int) -> None:
        """Note that the last `requests` requests of the run got no reply.

        why : STOPPED, or LOST: then the party may lack messages of all its open runs.
        """
        at = time.time_ns() // 1000
        entry = ChainEntry(at, client, self._analyst, run, UP, CUT, 0, "", f"{why} {requests}")
        with self._lock:
            cut = {(client, run)}
            if why == LOST:
                cut |= self._heads.keys() | {(line.client, line.run) for line, _ in self._noted}
            self._cut |= {key for key in cut if key[0] == client and key[1]}
            self._noted.append((entry, None))

    def is_whole(self, client: str, run: str) -> bool:
        """Return True if the party knows all messages of the run, as far as this side can tell."""
        with self._lock:
            return (client, run) not in self._cut

    def heads(self, client: str, run: str) -> tuple[str, str]:
        """Return the head of the run so far, and the head of the kept chain."""
        with self._writing, self._lock:
            self._settle()
            if self._last is None:
                self._last = self._keep(())
            return self._heads.get((client, run), hashlib.sha256()).hexdigest(), self._last

    def flush(self) -> None:
        """Keep the waiting entries. No other thread writes afterwards."""
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
        """Keep the waiting entries soon, in another thread."""
        with self._lock:
            if self._kept is None or self._kept.done():
                self._kept = self._later.submit(self._flush_within, self._aside())

    def _flush_within(self, aside: AbstractContextManager[object]) -> None:
        with aside:
            self._flush()

    def close(self) -> None:
        """Keep the waiting entries and end the threads. Later entries start new ones."""
        try:
            self.flush()
        finally:
            self._later.close()
            self._hashing.close()

    def _settle(self) -> None:
        """Move all noted entries to those that wait to be written, in their order."""
        heads, waiting = self._heads, self._waiting
        for entry, hashed in self._noted:
            at, client, analyst, run, direction, kind, size, _, told = entry
            if hashed is None:
                waiting.append(entry)
                continue
            sha256 = hashed.result() if isinstance(hashed, Future) else _digest(hashed)
            waiting.append(
                ChainEntry(at, client, analyst, run, direction, kind, size, sha256, told)
            )
            if run:
                head = heads.get((client, run))
                if head is None:
                    head = heads[client, run] = hashlib.sha256()
                head.update(said_of(direction, kind, size, sha256))
            if kind == FINISH and direction == DOWN:
                heads.pop((client, run), None)
                self._cut.discard((client, run))
        self._noted.clear()
        self._size = 0


class _Aside:
    """One thread for occasional work."""

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
    """Hashes of recent large messages. If both sides are in this process, one hashes for the other.

    A buffer is kept as long as its hash, so that no other buffer can get its address.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[int, int], tuple[Buffer, Future[str]]] = OrderedDict()

    def of(self, data: Buffer, submit: Callable[..., Future[str]]) -> Future[str]:
        key = (data.address, data.size)
        with self._lock:
            known = self._known.pop(key, None)
            if known is not None:  # now the other side has it too
                return known[1]
            hashed = submit(_digest, data)
            self._known[key] = data, hashed
            while len(self._known) > SHARED:
                self._known.popitem(last=False)
            return hashed


_HASHES = _Hashes()


def _digest(data: Buffer) -> str:
    return hashlib.sha256(data).hexdigest()


class MemoryLinks:
    """Chain entries that last as long as the process."""

    def __init__(self) -> None:
        self._rows: list[Row] = []

    def keep(self, entries: Sequence[ChainEntry]) -> str:
        seq, head = (self._rows[-1][0], self._rows[-1][-1]) if self._rows else (0, START)
        self._rows += linked(entries, seq, head)
        return self._rows[-1][-1] if self._rows else START

    def rows(self) -> list[Row]:
        return list(self._rows)
