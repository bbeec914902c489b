"""Work at clients that others do not wait for beyond a time: threads, the time, and Ctrl-C."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from sqlfl.base.interrupts import AGAIN, HEARD, Interrupts, caught, heeding, interrupted

T = TypeVar("T")


class Lateness:
    """seconds : for which a step waits. groups : how much work may be under way at once."""

    def __init__(self, seconds: float, groups: int) -> None:
        self.seconds = seconds
        self.everyone = False
        """The next step waits for all, as long as that takes: what follows is of all of them."""
        self._pool = ThreadPoolExecutor(groups, thread_name_prefix="sqlfl-step")
        self._working: dict[Future[Any], Interrupts] = {}

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """The work, in a thread of its own."""
        interrupts = Interrupts()

        def done() -> T:
            with heeding(interrupts):
                return work()

        future = self._pool.submit(done)
        self._working = {f: i for f, i in self._working.items() if not f.done()}
        self._working[future] = interrupts
        return future

    def wait(self, work: Sequence[Future[T]]) -> None:
        """Until all of it is done, or some has failed; or the time is over, and some is done."""
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
        """What is under way is interrupted; nothing of it is left at work."""
        with caught():
            while left := {f for f in self._working if not f.done()}:
                for future in left:
                    self._working[future].interrupt()
                wait(left, AGAIN)
            self._pool.shutdown()
