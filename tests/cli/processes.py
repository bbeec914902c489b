"""`python -m sqlfl` as processes of their own, and what they say."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
LONGEST = 120.0
"""Seconds that a test waits for a line, or for an end."""


class Process:
    """A service; the lines that it has written on standard error are in `said`."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        program: Sequence[str] = (sys.executable, "-m", "sqlfl"),
        **environment: str,
    ) -> None:
        command = [*program, *arguments]
        self._process = subprocess.Popen(
            command, cwd=folder, env=surroundings(environment), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.said: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first line, from the ones not looked at yet, in which the pattern is found."""
        while True:
            line = self._lines.get(timeout=LONGEST)
            assert line is not None, f"it has ended, and said {self.said}"
            found = re.search(pattern, line)
            if found:
                return found

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def ended(self) -> int:
        """Its exit status."""
        status = self._process.wait(LONGEST)
        self._reading.join(LONGEST)
        return status

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(LONGEST)
        self._reading.join(LONGEST)

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self.said.append(line)
                self._lines.put(line)
        self._lines.put(None)


@contextmanager
def process(
    arguments: Sequence[str],
    folder: Path,
    program: Sequence[str] = (sys.executable, "-m", "sqlfl"),
    **environment: str,
) -> Iterator[Process]:
    found = Process(arguments, folder, program, **environment)
    try:
        yield found
    finally:
        found.close()


def surroundings(more: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", **more}


def ran(
    arguments: Sequence[str], folder: Path, given: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sqlfl", *arguments]
    return subprocess.run(
        command, cwd=folder, env=surroundings(environment), text=True, input=given,
        capture_output=True, timeout=LONGEST,
    )  # fmt: skip


__all__ = ["LONGEST", "ROOT", "Process", "process", "ran", "signal"]
