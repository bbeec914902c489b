"""benchmarks/memory.py at toy size: what it measures is told."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def run(*arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "benchmarks/memory.py", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_join_is_trained_under_a_limit_or_refused() -> None:
    size = ("--rows", "20000", "--fan-out", "100", "--parties", "200MB")
    told = run("grid", *size, "--limit", "2MB")
    rows = re.search(r": ([\d,]+) joined rows", told)
    assert rows is not None
    assert 10_000 < int(rows[1].replace(",", "")) < 40_000
    assert re.search(r"resident memory at most 0\.\d\d GiB, 0\.\d\d GiB of it before", told)
    assert "memory_limit is 4.9 KiB" in run("grid", *size, "--limit", "5KB")


@pytest.mark.slow
def test_the_coordinator_is_measured_alone() -> None:
    told = run("star", "--rows", "20000", "--fan-out", "100", "--limit", "50MB", "--apart")
    assert "20,000 joined rows" in told
    assert "resident memory at most 0." in told
