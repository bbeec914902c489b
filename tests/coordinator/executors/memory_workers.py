"""Workers in memory, which get and return bytes as actors of Ray do."""

from __future__ import annotations

import threading

from sqlfl.base.errors import Error
from sqlfl.coordinator.executors.packing import WorkerFrame
from sqlfl.coordinator.executors.workers import WorkerExecutor, WorkerService


class MemoryWorkers(WorkerExecutor):
    """Executor with workers in this process."""

    def begin(self, number: int) -> MemoryWorker:
        return MemoryWorker(number)

    @property
    def members(self) -> list[MemoryWorker]:
        """The workers that have begun."""
        workers = () if self._crew is None else self._crew.workers
        return [worker for worker in workers if isinstance(worker, MemoryWorker)]


class MemoryWorker:
    """Worker, as `sqlfl.coordinator.executors.workers.Worker`, that can stop and be lost."""

    def __init__(self, number: int) -> None:
        self.name = f"worker {number + 1} (in memory)"
        self.ended = self.lost = False
        self._service = WorkerService()
        self._lock = threading.Lock()
        self._answers = threading.Event()
        self._answers.set()

    def request(self, frame: WorkerFrame) -> WorkerFrame:
        with self._lock:
            self._answers.wait()
            if self.lost:
                raise Error(f"{self.name} is gone", hint="run the statement again")
            if self.ended:
                raise Error(f"{self.name} was ended")
            reply = self._service.answer(WorkerFrame.from_bytes(frame.to_bytes()))
            return WorkerFrame.from_bytes(reply.to_bytes())

    def end(self) -> None:
        self.ended = True
        self._answers.set()

    def stop(self) -> None:
        """Answer nothing until the worker is lost or ended, as if it had much to do."""
        self._answers.clear()

    def lose(self) -> None:
        """Fail at every request from now on."""
        self.lost = True
        self._answers.set()
