"""kill -9 while labels are noised: what has left once is what leaves again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.depth import SEED, THOROUGH
from tests.udfs.crashing_labels import KEPT, WAYS

ROOT = Path(__file__).parent.parent.parent
KILLS = 30 if THOROUGH else 2
"""Points of each way to attach the database."""


@pytest.mark.slow
def test_labels_that_have_left_are_not_drawn_anew(tmp_path: Path) -> None:
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.udfs.crashing_labels", str(tmp_path)]
    command += [str(KILLS), str(SEED), *WAYS]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    points = [json.loads(line) for line in done.stdout.splitlines()]
    assert not [point for point in points if point["error"]]
    for way in WAYS:
        killed = [p for p in points if p["way"] == way and p["killed"]]
        assert len(killed) == KILLS
        for point in killed:  # nothing had left, or what leaves now
            if point["left"]:
                np.testing.assert_array_equal(point["left"], point["again"])
            if point["since"] == KEPT:
                assert point["made"]
            else:
                assert not point["left"]
        first = [(p["made"], bool(p["left"])) for p in killed if p["k"] == 1]
        assert set(first) <= {(False, False), (True, False)}
        if THOROUGH:
            assert len(first) == 2
            assert killed[-1]["left"]
