"""What a statement has to remark: Python warnings, once each, placed where the user called.

`Remarks` collects them for the card of a model as well. Where warnings are errors, `add` raises
one, so it is called before anything lasts.
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
    """What is remarked in the block is told to this function, for a user elsewhere."""
    token = _heard.set(by)
    try:
        yield
    finally:
        _heard.reset(token)


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
        remark(text)


def remark(text: str) -> None:
    """Tell whoever has `heard`, or else warn."""
    told = _heard.get()
    if told is not None:
        told(text)
    else:
        warn(text)


def warn(text: str) -> None:
    """Where the user called."""
    warnings.warn(text, Warning, stacklevel=_levels())


def _levels() -> int:
    """How far up the stack the user's own code is, for whoever calls `warn`."""
    frame: FrameType | None = sys._getframe(2)
    level = 2
    while frame is not None and _package(frame) in _BETWEEN:
        frame, level = frame.f_back, level + 1
    return level


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
