"""A training method is added by a folder of another distribution alone: no file here changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
METHOD = Path(__file__).parent / "method"


def test_a_method_of_another_distribution_is_one_like_any_other() -> None:
    """In a process of its own, in whose path the distribution lies with its entry point."""
    path = os.pathsep.join([str(METHOD), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(METHOD / "check_steady.py")],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
