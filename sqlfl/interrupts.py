"""Ctrl-C waits where stopping half-way would leave something behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def noted() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event; a second one interrupts at once.

    Signals reach the main thread only; elsewhere the event is never set.
    """
    event = threading.Event()
    previous = signal.getsignal(signal.SIGINT)
    if previous is None or threading.current_thread() is not threading.main_thread():
        yield event
        return

    def note(signum: int, frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def deferred() -> Iterator[None]:
    """The first Ctrl-C takes effect at the end of the block; a second one interrupts at once."""
    event = threading.Event()
    try:
        with noted() as event:
            yield
    finally:
        if event.is_set():
            signal.raise_signal(signal.SIGINT)
