"""Executor whose partitions are held by workers, each with several consecutive partitions.

A request goes to all workers at once. Each gets only the values of the rows that its partitions
need. It adds up its partitions' answers as far as the order of the sums allows. `WorkerService`
answers at the worker.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
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


# Workers as actors of Ray, on this machine or on several: `pip install sqlfl[ray]`.
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
PATIENCE = 120.0
"""Seconds to wait for the start of an actor."""
GONE = "run the statement again; what Ray's dashboard or logs say of the actor tells more"


class Rays(WorkerExecutor):
    """Workers that are actors of Ray, each with one core.

    The executor uses the Ray that the process has joined, or joins the one of RAY_ADDRESS.
    Otherwise it starts Ray on this machine until `close`, without usage statistics. Only bytes pass
    through Ray, so it pickles nothing.

    Its actors see the same data as the coordinator: targets, and predictions of the rows that they
    need.

    workers : number of workers; None for one per core of Ray. Raise Error if Ray is not installed.
    """

    def __init__(self, workers: int | None = None) -> None:
        super().__init__(workers)
        if importlib.util.find_spec("ray") is None:
            raise Error("Ray is not installed", hint="pip install 'sqlfl[ray]'")
        self._ray: Any = None
        self._began = False
        """True if this executor started Ray itself."""
        self._sending = threading.Lock()
        self._sent: tuple[WorkerFrame, Any] | None = None

    def begin(self, number: int) -> RayWorker:
        actor = self._actors().remote()
        try:
            self._ray.get(actor.process.remote(), timeout=PATIENCE)
        except self._ray.exceptions.GetTimeoutError as error:
            self._ray.kill(actor)
            raise Error(
                f"Ray has had no core for worker {number + 1} for {PATIENCE:.0f} seconds",
                hint="take fewer workers, or wait until others have ended",
            ) from error
        return RayWorker(self, self._ray, actor, number)

    def prepare(self) -> int:
        """Start or join Ray, and return the number of workers. Raise Error if Ray has too few
        cores.
        """
        ray = self._ray = _imported()
        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            address = os.environ.get("RAY_ADDRESS")
            local = {} if address else {"include_dashboard": False}
            ray.init(address, log_to_driver=False, configure_logging=False, **local)
            self._began = True
        cores = int(ray.cluster_resources().get("CPU", 0))
        if not 0 < (self.workers or 1) <= cores:
            raise Error(
                f"Ray has {cores} cores, fewer than {self.workers or 1} workers take",
                hint="each worker takes one",
            )
        return self.workers or cores

    def close(self) -> None:
        super().close()
        if self._began:
            self._began = False
            self._ray.shutdown()

    def sent(self, frame: WorkerFrame) -> Any:
        """Return a frame in Ray's store. A frame for several workers is put there once."""
        with self._sending:
            if self._sent is None or self._sent[0] is not frame:
                self._sent = (frame, self._ray.put(frame.to_bytes()))
            return self._sent[1]

    def _actors(self) -> Any:
        environment = {"env_vars": dict(ONE_THREAD)}
        options = {"num_cpus": 1, "runtime_env": environment, "scheduling_strategy": "SPREAD"}
        return self._ray.remote(**options)(Actor)


class Actor:
    """Ray actor at the worker."""

    def __init__(self) -> None:
        self._service = WorkerService()

    def process(self) -> int:
        """Return the number of its process."""
        return os.getpid()

    def answer(self, request: bytes) -> bytes:
        return self._service.answer(WorkerFrame.from_bytes(request)).to_bytes()


class RayWorker:
    """Worker that is an actor of Ray, as `sqlfl.coordinator.executors.workers.Worker`."""

    def __init__(self, executor: Rays, ray: Any, actor: Any, number: int) -> None:
        self._executor, self._ray, self._actor = executor, ray, actor
        self.name = f"worker {number + 1} (an actor of Ray)"
        self._ended = False

    def request(self, frame: WorkerFrame) -> WorkerFrame:
        try:
            reply = self._actor.answer.remote(self._executor.sent(frame))
            return WorkerFrame.from_bytes(self._ray.get(reply))
        except self._ray.exceptions.RayError as error:
            if self._ended:
                raise Error(f"{self.name} was ended") from error
            said = str(error).strip().splitlines()[0]
            raise Error(f"{self.name} is gone: {said}", hint=GONE) from error

    def end(self) -> None:
        self._ended = True
        self._ray.kill(self._actor)


def _imported() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise Error(f"Ray cannot be loaded: {error}", hint="pip install 'sqlfl[ray]'") from error
