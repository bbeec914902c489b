"""Executor whose partitions are held by workers, each with several consecutive partitions.

A request goes to all workers at once. Each gets only the values of the rows that its partitions
need. It adds up its partitions' answers as far as the order of the sums allows. `WorkerService`
answers at the worker.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import Error
from sqlfl.coordinator.executors.base import HeldPartitions
from sqlfl.coordinator.executors.division import Division
from sqlfl.coordinator.executors.in_process import InProcess, check_number, cores, in_order
from sqlfl.coordinator.executors.packing import (
    WorkerFrame,
    answers_of,
    frame_of_answers,
    frame_of_join,
    frame_of_partitions,
    frame_of_work,
    join_of,
    partitions_of,
    work_of,
)
from sqlfl.coordinator.executors.partition import (
    Node,
    Partition,
    PartitionSums,
    PartitionTally,
    Reach,
    Work,
)
from sqlfl.coordinator.join.key_join import KeyJoin, together

HOLD, ASK, FORGET, JOIN = "hold", "ask", "forget", "join"


# -- requests --------------------------------------------------------------------------------------


def to_hold(held: int, division: Division, first: int, end: int) -> WorkerFrame:
    """Return a request to hold the partitions from `first` to `end`, as problem `held`."""
    return _request_frame(HOLD, held, frame_of_partitions(division, first, end))


def to_ask(held: int, work: Work) -> WorkerFrame:
    return _request_frame(ASK, held, frame_of_work(work))


def to_forget(held: int) -> WorkerFrame:
    return _request_frame(FORGET, held, WorkerFrame({}))


def to_join(join: KeyJoin) -> WorkerFrame:
    return _request_frame(JOIN, None, frame_of_join(join))


def checked(reply: WorkerFrame, worker: str) -> WorkerFrame:
    """Return the reply. Raise Error if the worker failed."""
    if "failed" in reply.facts:
        raise Error(f"{worker} failed: {reply.facts['failed']}")
    return reply


def _request_frame(do: str, held: int | None, content: WorkerFrame) -> WorkerFrame:
    return WorkerFrame({"do": do, "held": held, "content": content.facts}, content.arrays)


# -- at the worker ---------------------------------------------------------------------------------


class WorkerService:
    """Service of one worker."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[int, list[Partition], tuple[Reach, ...]]] = {}

    def answer(self, request: WorkerFrame) -> WorkerFrame:
        """Return the reply to a request. A failure is reported in it, not raised."""
        held = request.facts["held"]
        content = WorkerFrame(request.facts["content"], request.arrays)
        try:
            # nobody sees a warning here
            with np.errstate(all="ignore"):
                return _DOES[request.facts["do"]](self, held, content)
        except Exception as error:
            return WorkerFrame({"failed": f"{type(error).__name__}: {error}"})

    def _hold(self, held: int, frame: WorkerFrame) -> WorkerFrame:
        self._held[held] = partitions_of(frame)
        return frame_of_answers([])

    def _forget(self, held: int, frame: WorkerFrame) -> WorkerFrame:
        del self._held[held]
        return frame_of_answers([])

    def _join(self, held: None, frame: WorkerFrame) -> WorkerFrame:
        return WorkerFrame({}, join_of(frame).rows())

    def _ask(self, held: int, frame: WorkerFrame) -> WorkerFrame:
        first, partitions, base = self._held[held]
        work, tally = work_of(frame), PartitionTally()
        for number, partition in enumerate(partitions, first):
            tally.add(Node(number, 1, partition.answer(work, base)))
        return frame_of_answers(tally.nodes)


_DOES: Mapping[str, Callable[[WorkerService, Any, WorkerFrame], WorkerFrame]] = {
    HOLD: WorkerService._hold,
    ASK: WorkerService._ask,
    FORGET: WorkerService._forget,
    JOIN: WorkerService._join,
}


class Worker(Protocol):
    """One worker, here or on another machine."""

    @property
    def name(self) -> str:
        """Return its name for error messages."""
        ...

    def request(self, frame: WorkerFrame) -> WorkerFrame:
        """Return its reply. Requests of several threads run one after the other. Raise Error if the
        worker is gone.
        """
        ...

    def end(self) -> None:
        """End the worker at once. A caller that waits for its reply gets an Error."""
        ...


class WorkerExecutor(ABC):
    """Executor with workers. They start with the first problem that has several partitions. They
    stay until `close`, or until one of them is gone.

    workers : number of workers; None for one per core. Raise Error for fewer than one.
    """

    def __init__(self, workers: int | None = None) -> None:
        check_number("workers", workers)
        self.workers = workers
        self._lock = threading.Lock()
        self._crew: Crew | None = None
        self._numbers = itertools.count()

    def prepare(self) -> int:
        """Return the number of workers, after preparing their start. Raise Error if no worker can
        start.
        """
        return self.workers or cores()

    @abstractmethod
    def begin(self, number: int) -> Worker:
        """Return a new worker. Raise Error if none can start."""

    def hold(self, division: Division) -> HeldPartitions:
        if division.count == 1:
            return InProcess(1).hold(division)
        crew, held = self._together(), next(self._numbers)
        count = min(len(crew.workers), division.count)
        bounds = [division.count * n // count for n in range(count + 1)]
        shares = [
            Share(worker, a, b, division.reach(a, b))
            for worker, a, b in zip(crew.workers, bounds, bounds[1:], strict=False)
        ]
        crew.ask(
            [(share.worker, to_hold(held, division, share.first, share.end)) for share in shares]
        )
        whole = tuple((0, size) for size in division.whole.sizes)
        return HeldByWorkers(crew, held, shares, whole)

    def join(self, join: KeyJoin, slot: int) -> list[Array] | None:
        crew = self._together()
        count = min(len(crew.workers), len(join.codes[slot].fragment))
        if count < 2:
            return None
        parts = zip(crew.workers, join.parts(slot, count), strict=False)
        replies = crew.ask([(worker, to_join(part)) for worker, part in parts])
        return together([reply.arrays for reply in replies])

    def close(self) -> None:
        with self._lock:
            crew, self._crew = self._crew, None
        if crew is not None:
            crew.end()

    def _together(self) -> Crew:
        with self._lock:
            if self._crew is None or self._crew.ended:
                self._crew = None
                self._crew = Crew.of(self, self.prepare())
            return self._crew


class Crew:
    """Workers that begin and end together."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = tuple(workers)
        self.ended = False
        self._pool = ThreadPoolExecutor(len(workers), thread_name_prefix="sqlfl worker")

    @classmethod
    def of(cls, executor: WorkerExecutor, count: int) -> Crew:
        begun: list[Worker] = []
        try:
            for number in range(count):
                begun.append(executor.begin(number))
        except BaseException:
            for worker in begun:
                worker.end()
            raise
        return cls(begun)

    def ask(self, requests: Sequence[tuple[Worker, WorkerFrame]]) -> list[WorkerFrame]:
        """Return the workers' answers, in their order. After a failure or Ctrl-C, all workers
        end.
        """
        replies: list[WorkerFrame] = []
        tasks = [partial(_request, worker, frame) for worker, frame in requests]
        try:
            in_order(self._pool, tasks, lambda number, reply: replies.append(reply), self.end)
        except BaseException:
            self.end()
            raise
        return replies

    def end(self) -> None:
        # Another statement may still ask; it gets an error that they are gone.
        self.ended = True
        for worker in self.workers:
            worker.end()


def _request(worker: Worker, frame: WorkerFrame) -> WorkerFrame:
    return checked(worker.request(frame), worker.name)


@dataclass(frozen=True, eq=False)
class Share:
    """Partitions of one worker."""

    worker: Worker
    first: int
    end: int
    base: tuple[Reach, ...]
    """Rows of every slot whose values it uses."""


class HeldByWorkers:
    """Held partitions at workers, as `sqlfl.coordinator.executors.base.HeldPartitions`."""

    def __init__(
        self, crew: Crew, held: int, shares: Sequence[Share], whole: tuple[Reach, ...]
    ) -> None:
        self._crew = crew
        self._held = held
        self._shares = tuple(shares)
        self._whole = whole

    def ask(self, work: Work) -> PartitionSums:
        frames: dict[tuple[Reach, ...], WorkerFrame] = {}
        requests = []
        for share in self._shares:
            if share.base not in frames:
                frames[share.base] = to_ask(self._held, work.within(share.base, self._whole))
            requests.append((share.worker, frames[share.base]))
        tally = PartitionTally()
        for reply in self._crew.ask(requests):
            for node in answers_of(reply):
                tally.add(node)
        return tally.total()

    def close(self) -> None:
        shares, self._shares = self._shares, ()
        if shares and not self._crew.ended:
            with suppress(Error):  # workers that are gone have forgotten already
                self._crew.ask([(share.worker, to_forget(self._held)) for share in shares])
