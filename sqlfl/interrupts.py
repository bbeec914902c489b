"""Ctrl-C: it ends work in other threads too, and waits where half a step would leave something."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from sqlfl.errors import Error

log = logging.getLogger("sqlfl.interrupts")

T = TypeVar("T")

AGAIN = 0.02
"""Seconds after which work that is to stop is told so again: between two queries nothing hears."""

_here = threading.local()


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
        log.info("Ctrl-C takes effect at the end of this step; a second one does at once")

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


# -- work in other threads -------------------------------------------------------------------------


class Stopped(Error):
    """The work was told to stop."""


@contextmanager
def stoppable(stop: threading.Event) -> Iterator[None]:
    """What runs in the block, in this thread, ends at its next `checkpoint` once `stop` is set."""
    previous = getattr(_here, "stop", None)
    _here.stop = stop
    try:
        yield
    finally:
        _here.stop = previous


def checkpoint() -> None:
    """Raise Stopped where this thread's work is to stop: for long loops without a query."""
    stop: threading.Event | None = getattr(_here, "stop", None)
    if stop is not None and stop.is_set():
        raise Stopped("its work was interrupted")


def stop_all(work: Collection[Future[T]], stop: Callable[[], None]) -> None:
    """Call `stop`, again and again, until all of the work is done. Ctrl-C changes nothing."""
    while True:
        try:
            if all(future.done() for future in work):
                return
            stop()
            wait(work, timeout=AGAIN)
        except KeyboardInterrupt:
            continue


def interruptible(work: Callable[[], T], stop: Callable[[], None]) -> T:
    """What `work` returns; Ctrl-C calls `stop`, which is to end it, until it has ended.

    The work is done in a thread of its own, for a signal reaches the main thread between two steps
    of Python only. Where that is not the one that calls, no signal comes.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=run, name="sqlfl query")
    try:
        with deferred():
            thread.start()
        wait([done])
    except BaseException:
        if thread.ident is not None:
            stop_all([done], stop)
        raise
    return done.result()
