"""benchmarks/memory.py at toy size: what it measures is told."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.benchmarks.scripts import imported

Tell = Callable[..., str]


@pytest.fixture
def memory() -> Iterator[Any]:
    with imported("memory") as found:
        yield found.memory


@pytest.fixture
def tell(memory: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tell:
    """A function that runs the program with the arguments, and returns what it prints."""

    def tell(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["memory.py", *arguments])
        memory.main()
        return capsys.readouterr().out

    return tell


@pytest.mark.slow
def test_a_join_is_trained_under_a_limit_or_refused(
    tell: Tell, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = ("--rows", "20000", "--fan-out", "100", "--parties", "200MB")
    told = tell("grid", *size, "--limit", "2MB")
    rows = re.search(r": ([\d,]+) joined rows", told)
    assert rows is not None
    assert 10_000 < int(rows[1].replace(",", "")) < 40_000
    assert re.search(r"resident memory at most 0\.\d\d GiB, 0\.\d\d GiB of it before", told)

    # in this process: nothing is measured of what is refused
    monkeypatch.setattr(memory, "fresh", lambda function, *arguments: function(*arguments))
    assert "memory_limit is 4.9 KiB" in tell("grid", *size, "--limit", "5KB")


@pytest.mark.slow
def test_the_coordinator_is_measured_alone(tell: Tell) -> None:
    told = tell("star", "--rows", "20000", "--fan-out", "100", "--limit", "50MB", "--apart")
    assert "20,000 joined rows" in told
    assert "resident memory at most 0." in told
