"""Golden files, which SQLFL_UPDATE_GOLDENS=1 has the tests write anew."""

from __future__ import annotations

import os
from pathlib import Path

RENEWED = bool(os.environ.get("SQLFL_UPDATE_GOLDENS"))


def check(path: Path, text: str) -> None:
    """`text` is that of the file, once this has renewed it where that is asked for."""
    if RENEWED:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
