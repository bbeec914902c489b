"""Client work with a time limit, after which the others go on: threads, the time, and Ctrl-C."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from sqlfl.base.interrupts import AGAIN, HEARD, Interrupts, caught, heeding, interrupted

T = TypeVar("T")


class Lateness:
    """Time limit of steps.

    seconds : time that a step waits. groups : number of pieces of work that may run at once.
    """

    def __init__(self, seconds: float, groups: int) -> None:
        self.seconds = seconds
        self.everyone = False
        """True if the next step waits for all clients, however long that takes."""
        self._pool = ThreadPoolExecutor(groups, thread_name_prefix="sqlfl-step")
        self._working: dict[Future[Any], Interrupts] = {}

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """Start the work in a thread of its own."""
        interrupts = Interrupts()

        def done() -> T:
            with heeding(interrupts):
                return work()

        future = self._pool.submit(done)
        self._working = {f: i for f, i in self._working.items() if not f.done()}
        self._working[future] = interrupts
        return future

    def wait(self, work: Sequence[Future[T]]) -> None:
        """Wait until all work is done or some of it has failed. After the time limit, wait only
        until some of it is done.
        """
        due = math.inf if self.everyone else time.monotonic() + self.seconds
        left = set(work)
        with caught() as events:
            while left:
                over = time.monotonic() >= due
                if over and len(left) < len(work):
                    return
                pause = HEARD if over else min(HEARD, due - time.monotonic())
                when = FIRST_COMPLETED if over else FIRST_EXCEPTION
                done, left = wait(left, max(0.0, pause), when)
                if any(future.exception() is not None for future in done):
                    return
                if interrupted(events):
                    raise KeyboardInterrupt

    def close(self) -> None:
        """Interrupt all work that runs, and wait until none is left."""
        with caught():
            while left := {f for f in self._working if not f.done()}:
                for future in left:
                    self._working[future].interrupt()
                wait(left, AGAIN)
            self._pool.shutdown()
