"""benchmarks/rounds.py at toy size: what lies between the exchanges of training."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_rounds_are_told_from_reads() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "benchmarks/rounds.py", "--rows", "4000", "--repeats", "1"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    heads, _, *rows = (line.strip("| ").split(" | ") for line in done.stdout.splitlines())
    merged = ", equal rows once"
    assert [row[1] for row in rows] == ["lbfgs" + merged, "lbfgs", "admm" + merged, "admm"]
    for row in rows:
        found = dict(zip(heads, row, strict=True))
        assert found["joined rows"] == "4,000"
        ratio = float(found["round / read"].replace(",", ""))
        assert ratio > 1, "a round reads all joined rows"
        passes = float(found["curvatures, ms"]) + float(found["other passes, ms"])
        assert passes <= float(found["a round, ms"]) + 0.1
        assert ("lbfgs" in row[1]) == (float(found["curvatures, ms"]) > 0)
