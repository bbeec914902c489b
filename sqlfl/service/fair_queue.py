"""Order of service: work of several, none of whom keeps the others waiting."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from sqlfl.base.errors import WireError

EACH, ALL = 1, 64
"""Pieces of work at once, of one and altogether: the requests of one are served in order."""
MAX_WAITING = 1024
"""Maximum number of pieces that run or wait."""


class Turns:
    """Queue of pieces of work; a context, which ends with the last piece. most_bytes : bytes of the
    pieces that run or wait.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._pool = ThreadPoolExecutor(ALL, "sqlfl-agent")
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, deque[tuple[Callable[[], object], int]]] = {}
        self._running: Counter[Hashable] = Counter()
        self._count = self._bytes = 0

    def submit(self, of: Hashable, work: Callable[[], object], size: int) -> None:
        """Queue work of `of`, which holds so many bytes. Raise WireError if too much waits."""
        with self._lock:
            if self._count >= MAX_WAITING or (
                self._count and self._bytes + size > self._most_bytes
            ):
                raise WireError(
                    f"{self._count:,} requests with {self._bytes:,} bytes wait, and no more are "
                    "taken"
                )
            self._count += 1
            self._bytes += size
            if self._running[of] >= EACH:
                self._waiting.setdefault(of, deque()).append((work, size))
                return
            self._running[of] += 1
        self._pool.submit(self._work, of, work, size)

    @property
    def idle(self) -> bool:
        with self._lock:
            return not self._count

    def clear(self) -> None:
        """Drop the work that has not begun."""
        with self._lock:
            for waiting in self._waiting.values():
                self._count -= len(waiting)
                self._bytes -= sum(size for _, size in waiting)
            self._waiting.clear()

    def __enter__(self) -> Turns:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown()

    def _work(self, of: Hashable, work: Callable[[], object], size: int) -> None:
        try:
            work()
        finally:
            with self._lock:
                self._count -= 1
                self._bytes -= size
                waiting = self._waiting.get(of)
                following = waiting.popleft() if waiting else None
                if following is None:
                    self._waiting.pop(of, None)
                    self._running[of] -= 1
                    if not self._running[of]:
                        del self._running[of]
            if following is not None:
                self._pool.submit(self._work, of, *following)
