"""The modules of benchmarks, which import each other by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"


@contextmanager
def imported(*names: str) -> Iterator[SimpleNamespace]:
    """Those of these names, as attributes; forgotten afterwards."""
    others = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    try:
        yield SimpleNamespace(**{name: import_module(name) for name in names})
    finally:
        sys.path.remove(str(FOLDER))
        for name in {path.stem for path in FOLDER.glob("*.py")} - others:
            sys.modules.pop(name, None)
