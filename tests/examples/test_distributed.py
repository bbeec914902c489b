"""The demo in processes of their own, as `make demo-remote` runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "examples" / "distributed" / "run.py"


def test_the_demo_over_machines_of_their_own() -> None:
    surroundings = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, SCRIPT], capture_output=True, text=True, env=surroundings, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "converged      yes" in done.stdout
    assert "column id of main.flights is not granted to alice.example for IDENTIFY" in done.stdout
    assert "nothing was changed, dropped, added or reordered" in done.stdout
