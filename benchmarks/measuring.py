"""Time, processor time and memory of a run; results in a file, tables in a page, subcommands."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import duckdb
import numpy as np

# -- runs in a process of their own ----------------------------------------------------------------


BLOCK = 1 << 28
"""Bytes that are copied to measure the bandwidth: more than caches hold."""
COPIES = 7
_STATUS = Path("/proc/self/status")
P = ParamSpec("P")
T = TypeVar("T")


class Failed(Exception):
    """The side cannot do the task; the message has the reason."""


def fresh(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the function's result, from a new process. Raise Failed, also if the process is ended
    from outside, as for want of memory.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(function, *args, **kwargs).result()
        except BrokenProcessPool:
            raise Failed("the process was ended, as for want of memory") from None
        except (MemoryError, duckdb.OutOfMemoryException) as error:
            raise Failed(f"out of memory: {error}") from None


def peak() -> int:
    """Return the peak of resident memory, in bytes, since this process began. On Linux getrusage is
    not used: its peak starts at that of the parent process."""
    if _STATUS.exists():
        (line,) = (x for x in _STATUS.read_text().splitlines() if x.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else 1024 * found


class Watch:
    """Seconds of each phase of a run, and of the whole run."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self._before = peak()
        self._cpu = _cpu()
        self._begun = self._last = time.perf_counter()

    def ends(self, phase: str) -> None:
        """Assign the time since the last phase to this one."""
        now = time.perf_counter()
        self.phases[phase] = now - self._last
        self._last = now

    def measured(self) -> dict[str, Any]:
        """Return `phases`, `seconds`, `cpu` (all threads) and `peak`, up to the end of the last
        phase; `before` is the part of the peak from before the run."""
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
    """Return the bytes a second that one thread reads and writes while it copies an array; the
    median."""
    source = np.ones(BLOCK, np.uint8)
    target = np.empty_like(source)
    taken = []
    for _ in range(COPIES):
        begun = time.perf_counter()
        np.copyto(target, source)
        taken.append(time.perf_counter() - begun)
    return 2 * BLOCK / statistics.median(taken)


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of numbers that all runs have, by phase; else the last run's value."""
    last = runs[-1]
    values: dict[str, Any] = {}
    for name, value in last.items():
        if isinstance(value, dict):
            values[name] = medians([run[name] for run in runs])
        elif isinstance(value, (int, float)):
            values[name] = statistics.median(run[name] for run in runs)
        else:
            values[name] = value
    return values


# -- results and tables ----------------------------------------------------------------------------


class Results:
    """The runs so far, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def add(self, name: str, result: Mapping[str, Any]) -> None:
        self.found[name] = result
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(self.found, indent=1))
        fresh.replace(self._path)


def insert(page: Path, mark: str, text: str) -> None:
    """Put `text` between the page's lines `<!-- mark: begin -->` and `<!-- mark: end -->`.

    Raises ValueError where these are missing.
    """
    first, last = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, begin, rest = page.read_text().partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"{page} has no lines {first} and {last}")
    page.write_text(f"{before}{first}\n\n{text}\n\n{last}{after}")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of Markdown: the first column to the left, the others to the right."""
    lines = [heads, *rows]
    markdown = ["| " + " | ".join(cells) + " |" for cells in lines]
    return [markdown[0], "|---|" + "---:|" * (len(heads) - 1), *markdown[1:]]


# -- command line ----------------------------------------------------------------------------------


def dispatch(description: str, commands: Mapping[str, Callable[[Sequence[str]], None]]) -> None:
    """Run the subcommand that the command line names, with the arguments after it."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=commands)
    command = parser.parse_args(sys.argv[1:2]).command
    commands[command](sys.argv[2:])
