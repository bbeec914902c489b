"""How much of the tests is run, and which random cases.

`make test` runs some of the cases, other ones with each commit; `make thorough` runs all.
SQLFL_SEED=n repeats those of a failure, whose report says n.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from hypothesis import settings

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


def _seed() -> int:
    given = os.environ.get("SQLFL_SEED")
    if given is not None:
        return int(given)
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    try:
        told = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # not a checkout
        return 0
    return int(told.stdout, 16)


SEED = _seed()


def examples(few: int, many: int | None = None) -> settings:
    """Of a test whose examples take long: so many, or `many` in the profile thorough; 20 times as
    many without."""
    return settings(max_examples=(many or 20 * few) if THOROUGH else few)
