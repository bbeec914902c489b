"""Passes are made in numpy and by the compiled library: tests of them run both ways."""

from __future__ import annotations

import pytest

from sqlfl import compiled

WAYS = ("compiled", "numpy")


def take_way(way: str, patch: pytest.MonkeyPatch) -> None:
    """Of `WAYS`; skips the test where there is no library."""
    if way == "numpy":
        patch.setenv(compiled.VARIABLE, "0")
        return
    patch.delenv(compiled.VARIABLE, raising=False)
    if compiled.library() is None:
        pytest.skip("nothing is compiled: see tests/test_compiled.py")
