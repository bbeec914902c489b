"""Executors by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlfl.base.errors import Error, nearest
from sqlfl.coordinator.executors.base import Executor
from sqlfl.coordinator.executors.in_process import InProcess
from sqlfl.coordinator.executors.workers import Rays

THREADS = "threads"
REMOVED = "processes"
NAMED: Mapping[str, Callable[[], Executor]] = {THREADS: InProcess, "ray": Rays}


def executor_of(given: str | Executor) -> Executor:
    """Return a new executor with that name. Return an executor object unchanged.

    Raise Error for an unknown name, for a missing Ray, and for an object that is no executor.
    """
    if not isinstance(given, str):
        if not all(callable(getattr(given, name, None)) for name in ("hold", "close")):
            raise Error(
                f"an executor must be a name or have hold() and close(), got {given!r:.60}",
                hint=f"executor={THREADS!r}, or InProcess(threads) of "
                "sqlfl.coordinator.executors.in_process",
            )
        return given
    if given == REMOVED:
        raise Error(
            f"executor {REMOVED!r} was removed: threads were faster on every join that we measured",
            hint=f"use executor={THREADS!r}, which is the default, or executor='ray' for several "
            "machines",
        )
    if given not in NAMED:
        near = nearest(given, NAMED)
        raise Error(
            f"there is no executor {given}",
            hint=f"did you mean {near}?" if near else f"there is {', '.join(sorted(NAMED))}",
        )
    return NAMED[given]()
