"""Executors by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlfl.base.errors import Error, nearest
from sqlfl.coordinator.executors.base import Executor
from sqlfl.coordinator.executors.in_process import InProcess
from sqlfl.coordinator.executors.processes import Processes
from sqlfl.coordinator.executors.rays import Rays

THREADS = "threads"
NAMED: Mapping[str, Callable[[], Executor]] = {
    THREADS: InProcess,
    "processes": Processes,
    "ray": Rays,
}


def executor_of(given: str | Executor) -> Executor:
    """Return a new executor with that name. Return an executor object unchanged.

    Raise Error for an unknown name, for a missing Ray, and for an object that is no executor.
    """
    if not isinstance(given, str):
        if not all(callable(getattr(given, name, None)) for name in ("hold", "close")):
            raise Error(
                f"an executor must be a name or have hold() and close(), got {given!r:.60}",
                hint=f"executor={THREADS!r}, or Processes(workers) of "
                "sqlfl.coordinator.executors.processes",
            )
        return given
    if given not in NAMED:
        near = nearest(given, NAMED)
        raise Error(
            f"there is no executor {given}",
            hint=f"did you mean {near}?" if near else f"there is {', '.join(sorted(NAMED))}",
        )
    return NAMED[given]()
