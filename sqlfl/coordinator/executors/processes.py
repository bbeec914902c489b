"""Worker processes on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

from sqlfl.base.errors import Error
from sqlfl.coordinator.executors.frames import WorkerFrame
from sqlfl.coordinator.executors.workers import WorkerExecutor

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
PATIENCE = 5.0
"""Seconds to wait for the end of a process whose output has ended."""
GONE = "run the statement again; where the system ended it for want of memory, take fewer workers"


class Processes(WorkerExecutor):
    """Workers in processes of their own, which end with this process."""

    def begin(self, number: int) -> ProcessWorker:
        return ProcessWorker(number)


class ProcessWorker:
    """Worker process, as `sqlfl.coordinator.executors.workers.Worker`."""

    def __init__(self, number: int) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sqlfl.coordinator.executors.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": path},
                start_new_session=True,  # a Ctrl-C in the terminal must reach only the coordinator
            )
        except OSError as error:
            raise Error(f"no worker process can be started: {error}") from error
        self.name = f"worker {number + 1} (process {self._process.pid})"
        self._lock = threading.Lock()
        self._ended = False

    def request(self, frame: WorkerFrame) -> WorkerFrame:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with self._lock:
                frame.write(process.stdin)
                return WorkerFrame.read(process.stdout)
        except (OSError, EOFError, ValueError) as error:
            if self._ended:
                raise Error(f"{self.name} was ended") from error
            raise Error(f"{self.name} is gone: {_how(process)}", hint=GONE) from error

    def end(self) -> None:
        self._ended = True
        self._process.kill()
        self._process.wait()
        with self._lock, suppress(OSError):  # unsent output may remain
            for pipe in (self._process.stdout, self._process.stdin):
                if pipe is not None:
                    pipe.close()


def _how(process: subprocess.Popen[bytes]) -> str:
    """Return how a process ended that no longer answers."""
    try:
        code = process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        return "it answers no longer"
    if code >= 0:
        return f"it ended with status {code}"
    return f"it was ended by {signal.Signals(-code).name}"
