"""Warnings of a statement: Python warnings, once each, at the user's call.

`Remarks` also collects them for the model's card. If warnings are errors, `add` raises, so it is
called before anything is saved.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

from sqlfl.base.errors import Warning

_BETWEEN = ("sqlfl", "IPython", "decorator", "contextlib")
"""Packages between the user's code and the place that warns."""


_heard: ContextVar[Callable[[str], None] | None] = ContextVar("sqlfl remarks", default=None)


@contextmanager
def heard(by: Callable[[str], None]) -> Iterator[None]:
    """Send warnings of the block to this function, for a remote user."""
    token = _heard.set(by)
    try:
        yield
    finally:
        _heard.reset(token)


class Remarks:
    """The warnings of one statement, in order, each once."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self._texts)

    def add(self, text: str) -> None:
        """Warn, unless the text was added before. Raises it if warnings are errors."""
        if text in self._texts:
            return
        self._texts.append(text)
        remark(text)


def remark(text: str) -> None:
    """Send the text to the function that `heard` set, or warn."""
    told = _heard.get()
    if told is not None:
        told(text)
    else:
        warn(text)


def warn(text: str) -> None:
    """Warn at the line of the user's call."""
    warnings.warn(text, Warning, stacklevel=_levels())


def _levels() -> int:
    """Return the stack level of the user's own code, for the caller of `warn`."""
    frame: FrameType | None = sys._getframe(2)
    level = 2
    while frame is not None and _package(frame) in _BETWEEN:
        frame, level = frame.f_back, level + 1
    return level


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
