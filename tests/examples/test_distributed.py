"""The demo in processes of their own, as `sqlfl demo` and `make demo-remote` run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_demo_over_machines_of_their_own(tmp_path: Path) -> None:
    """It needs what sqlfl itself needs, and none of its extras."""
    for name in ("pandas", "sklearn"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('no extra is installed')")
    surroundings = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "sqlfl", "demo", "--keep", tmp_path / "kept"],
        capture_output=True, text=True, env=surroundings, timeout=400, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "converged      yes" in done.stdout
    assert "column id of main.flights is not granted to alice.example for IDENTIFY" in done.stdout
    assert "nothing was changed, dropped, added or reordered" in done.stdout
    assert (tmp_path / "kept" / "airline.toml").exists()
