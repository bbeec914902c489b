"""Time, processor time and memory of one run, in a process of its own."""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import duckdb
import numpy as np

BLOCK = 1 << 28
"""Bytes that are copied to measure the bandwidth: more than caches hold."""
COPIES = 7
_STATUS = Path("/proc/self/status")
P = ParamSpec("P")
T = TypeVar("T")


class Failed(Exception):
    """The side cannot do it, and says why."""


def fresh(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What the function returns, in a new process. Raises Failed, also where the process is ended
    from outside, as for want of memory."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(function, *args, **kwargs).result()
        except BrokenProcessPool:
            raise Failed("the process was ended, as for want of memory") from None
        except (MemoryError, duckdb.OutOfMemoryException) as error:
            raise Failed(f"out of memory: {error}") from None


def peak() -> int:
    """Bytes of resident memory, at most, since this process began.

    On Linux not by getrusage, whose number begins with that of the process which started this one.
    """
    if _STATUS.exists():
        (line,) = (x for x in _STATUS.read_text().splitlines() if x.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else 1024 * found


class Watch:
    """Seconds of the phases of a run, and of all of it."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self._before = peak()
        self._cpu = _cpu()
        self._begun = self._last = time.perf_counter()

    def ends(self, phase: str) -> None:
        """What has passed since the last phase was this one."""
        now = time.perf_counter()
        self.phases[phase] = now - self._last
        self._last = now

    def measured(self) -> dict[str, Any]:
        """To the end of the last phase: `phases`, `seconds`, `cpu` (all threads), and `peak`, of
        which `before` is what the process had already."""
        return {
            "phases": self.phases,
            "seconds": self._last - self._begun,
            "cpu": _cpu() - self._cpu,
            "peak": peak(),
            "before": self._before,
        }


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def bandwidth() -> float:
    """Bytes a second that one thread reads and writes while it copies an array: the median."""
    source = np.ones(BLOCK, np.uint8)
    target = np.empty_like(source)
    taken = []
    for _ in range(COPIES):
        begun = time.perf_counter()
        np.copyto(target, source)
        taken.append(time.perf_counter() - begun)
    return 2 * BLOCK / statistics.median(taken)


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of numbers that all the runs have, phase by phase; of anything else the last run's."""
    last = runs[-1]
    found: dict[str, Any] = {}
    for name, value in last.items():
        if isinstance(value, dict):
            found[name] = medians([run[name] for run in runs])
        elif isinstance(value, (int, float)):
            found[name] = statistics.median(run[name] for run in runs)
        else:
            found[name] = value
    return found
