"""What a statement has to remark: Python warnings, once each, placed where the user called.

`Remarks` collects them for the card of a model as well. Where warnings are errors, `add` raises
one, so it is called before anything lasts.
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType

from sqlfl.errors import Warning

_BETWEEN = ("sqlfl", "IPython", "decorator", "contextlib")
"""Packages between the user's code and the place that warns."""


class Remarks:
    """The remarks of one statement, in order, each once."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self._texts)

    def add(self, text: str) -> None:
        """Warn of it, unless that is done already. Raises it where warnings are errors."""
        if text in self._texts:
            return
        self._texts.append(text)
        warnings.warn(text, Warning, stacklevel=_levels())


def _levels() -> int:
    """How far up the stack the user's own code is, for whoever calls `add`."""
    frame: FrameType | None = sys._getframe(2)
    level = 2
    while frame is not None and _package(frame) in _BETWEEN:
        frame, level = frame.f_back, level + 1
    return level


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
