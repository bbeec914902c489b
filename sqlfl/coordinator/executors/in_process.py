"""Partitions in this process, on a few threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from queue import Empty
from typing import TypeVar

from sqlfl.base.errors import Error
from sqlfl.base.interrupts import HEARD, caught
from sqlfl.coordinator.executors.division import Division
from sqlfl.coordinator.executors.partition import (
    Node,
    Partition,
    PartitionSums,
    PartitionTally,
    Work,
)
from sqlfl.coordinator.join.key_join import KeyJoin

T = TypeVar("T")


class InProcess:
    """Executor with threads of this process.

    threads : number of threads; None for one per core. Raise Error for fewer than one.
    """

    def __init__(self, threads: int | None = None) -> None:
        check_number("threads", threads)
        self.threads = threads or cores()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def hold(self, division: Division) -> HeldHere:
        partitions = [division.partition(number) for number in range(division.count)]
        return HeldHere(self, division, partitions)

    def join(self, join: KeyJoin, slot: int) -> None:
        """Return None: DuckDB has threads of its own."""

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def pool(self) -> ThreadPoolExecutor:
        """Return the threads. The first call starts them."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="sqlfl rows")
            return self._pool


class HeldHere:
    """Held partitions in this process, as `sqlfl.coordinator.executors.base.HeldPartitions`."""

    def __init__(
        self, executor: InProcess, division: Division, partitions: Sequence[Partition]
    ) -> None:
        self._executor = executor
        self._partitions = list(partitions)
        self._base = tuple((0, size) for size in division.whole.sizes)

    def ask(self, work: Work) -> PartitionSums:
        tally = PartitionTally()
        if len(self._partitions) == 1 or self._executor.threads == 1:
            for number, partition in enumerate(self._partitions):
                tally.add(Node(number, 1, partition.answer(work, self._base)))
            return tally.total()
        in_order(
            self._executor.pool(),
            [partial(partition.answer, work, self._base) for partition in self._partitions],
            lambda number, sums: tally.add(Node(number, 1, sums)),
        )
        return tally.total()

    def close(self) -> None:
        self._partitions = []


def in_order(
    pool: ThreadPoolExecutor,
    tasks: Sequence[Callable[[], T]],
    take: Callable[[int, T], None],
    stop: Callable[[], None] = lambda: None,
) -> None:
    """Pass the results of the tasks to `take`, in their order, while other tasks still run.

    After Ctrl-C or a failure, no further task starts. `stop` is called, which may end the running
    ones. The error is raised once they have ended.
    """
    failure: BaseException | None = None
    stopped = threading.Event()
    waiting: dict[int, T] = {}
    taken = 0
    with caught() as events:

        def run(number: int, task: Callable[[], T]) -> None:
            try:
                events.put((number, None if stopped.is_set() else task(), None))
            except BaseException as error:
                stopped.set()
                events.put((number, None, error))

        for number, task in enumerate(tasks):
            pool.submit(copy_context().run, run, number, task)
        left = len(tasks)
        while left:
            try:
                item = events.get(timeout=HEARD)
            except Empty:
                continue
            error: BaseException | None = None
            if isinstance(item, BaseException):
                error = item
            elif isinstance(item, tuple):
                number, value, error = item
                waiting[number] = value
                left -= 1
            if error is not None and failure is None:
                failure = error
                stopped.set()
                stop()
            while failure is None and taken in waiting:
                take(taken, waiting.pop(taken))
                taken += 1
    if failure is not None:
        raise failure


def check_number(name: str, number: int | None) -> None:
    if number is not None and number < 1:
        raise Error(f"{name} must be 1 or more, not {number}", hint="leave it out for all cores")


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
