"""kill -9 in saving, replacing or dropping: the old or the new model, never a mixture."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.depth import SEED, THOROUGH

ROOT = Path(__file__).parent.parent.parent
SEEDS = (SEED, SEED + 1) if THOROUGH else (SEED,)
"""One process each, which work side by side."""
ALL = ("save", "replace", "drop")
OPERATIONS = ALL if THOROUGH else (ALL[SEED % 3],)
KILLS, DELAYS = (34, 4) if THOROUGH else (1 + SEED % 2, 1 - SEED % 2)
"""Points of each operation and seed: with all of them, 200 and more."""


@pytest.mark.slow
def test_a_model_is_whole_wherever_its_process_is_killed(tmp_path: Path) -> None:
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    processes = []
    for seed in SEEDS:
        folder = tmp_path / str(seed)
        folder.mkdir()
        command = [sys.executable, "-m", "tests.store.crashing", str(folder)]
        command += [str(seed), str(KILLS), str(DELAYS), *OPERATIONS]
        processes.append(
            subprocess.Popen(
                command, cwd=ROOT, env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
    points = []
    for process in processes:
        out, err = process.communicate()
        assert process.returncode == 0, err
        points += [json.loads(line) for line in out.splitlines()]
    assert not [point for point in points if point["error"]]
    for operation in OPERATIONS:
        killed = [p for p in points if p["operation"] == operation and p["killed"]]
        assert len(killed) >= len(SEEDS) * KILLS, operation
    assert len(points) == len(OPERATIONS) * len(SEEDS) * (KILLS + DELAYS)
    assert not THOROUGH or sum(point["killed"] for point in points) >= 200
