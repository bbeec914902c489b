"""Workers as actors of Ray, on this machine or on several: `pip install sqlfl[ray]`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from typing import Any

from sqlfl.base.errors import Error
from sqlfl.coordinator.executors.packing import WorkerFrame
from sqlfl.coordinator.executors.workers import WorkerExecutor, WorkerService

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
