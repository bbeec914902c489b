"""Passes are made in numpy and by the compiled library: tests of them run both ways."""

from __future__ import annotations

import pytest

from sqlfl.models import native

WAYS = ("compiled", "numpy")


def take_way(way: str, patch: pytest.MonkeyPatch) -> None:
    """Of `WAYS`; skips the test where there is no library."""
    if way == "numpy":
        patch.setenv(native.VARIABLE, "0")
        return
    patch.delenv(native.VARIABLE, raising=False)
    if native.library() is None:
        pytest.skip("nothing is compiled: see tests/models/test_native.py")
