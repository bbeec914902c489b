"""Ctrl-C: it ends work in other threads too, and waits while half a step would leave traces."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TypeVar

from sqlfl.base.errors import Error

log = logging.getLogger("sqlfl.base.interrupts")

T = TypeVar("T")

AGAIN = 0.02
"""Seconds after which work is told again to stop: between two queries it does not notice."""

HEARD = 0.1
"""Maximum seconds until a signal is noticed. A signal just before the main thread begins to wait
does not end the wait.
"""

_here = threading.local()


class Interrupts:
    """Ctrl-C for work in a thread other than the main one. The person who asked for the work is
    elsewhere.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._noting: list[threading.Event] = []
        self._due = False

    def interrupt(self) -> None:
        """Act as one Ctrl-C; any thread may call it."""
        with self._lock:
            if self._noting and not self._noting[-1].is_set():
                self._noting[-1].set()
            else:
                self._due = True

    def taken(self) -> bool:
        """Return True, once, if the work must end now."""
        with self._lock:
            due, self._due = self._due, False
            return due

    @contextmanager
    def noted(self) -> Iterator[threading.Event]:
        event = threading.Event()
        with self._lock:
            self._noting.append(event)
        try:
            yield event
        finally:
            with self._lock:
                self._noting.remove(event)


@contextmanager
def heeding(interrupts: Interrupts) -> Iterator[None]:
    """Let these interrupts interrupt the block, which runs in this thread."""
    _here.interrupts = interrupts
    try:
        yield
        if interrupts.taken():
            raise KeyboardInterrupt
    finally:
        _here.interrupts = None


def _heeded() -> Interrupts | None:
    interrupts: Interrupts | None = getattr(_here, "interrupts", None)
    return interrupts


def asked_to_stop() -> bool:
    """Return True if the `Interrupts` that this thread heeds have come; each is reported once."""
    heeded = _heeded()
    return heeded is not None and heeded.taken()


def _signalled() -> bool:
    """Return True if signals reach this thread."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def noted() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event; a second one interrupts at once.

    Signals reach the main thread only. Elsewhere the `Interrupts` that the thread is `heeding` set
    the event, if there are any.
    """
    heeded = _heeded()
    if heeded is not None:
        with heeded.noted() as event:
            yield event
        return
    event = threading.Event()
    previous = signal.getsignal(signal.SIGINT)
    if previous is None or not _signalled():
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
    """Let the first Ctrl-C take effect at the end of the block; a second one interrupts at once."""
    event = threading.Event()
    try:
        with noted() as event:
            yield
    finally:
        if event.is_set():
            _again()


def _again() -> None:
    """Let a noted Ctrl-C take effect."""
    heeded = _heeded()
    if heeded is None:
        signal.raise_signal(signal.SIGINT)
        return
    heeded.interrupt()
    if heeded.taken():
        raise KeyboardInterrupt


# -- work in other threads -------------------------------------------------------------------------


class Stopped(Error):
    """The work was told to stop."""


@contextmanager
def stoppable(stop: threading.Event) -> Iterator[None]:
    """Let the block, in this thread, end at its next `checkpoint` once `stop` is set."""
    previous = getattr(_here, "stop", None)
    _here.stop = stop
    try:
        yield
    finally:
        _here.stop = previous


def checkpoint() -> None:
    """Raise Stopped if this thread's work must stop. Long loops without a query call it."""
    stop: threading.Event | None = getattr(_here, "stop", None)
    if stop is not None and stop.is_set():
        raise Stopped("its work was interrupted")


@contextmanager
def caught() -> Iterator[SimpleQueue[object]]:
    """Turn the Ctrl-C that would interrupt the block into an item of a queue: KeyboardInterrupt.

    Raised anywhere, it may leave a lock of a future held for ever. A Ctrl-C that is only noted, or
    waits for the end of an outer block, still is. Outside the main thread no signal comes.
    """
    events: SimpleQueue[object] = SimpleQueue()
    previous = signal.getsignal(signal.SIGINT)
    if not callable(previous) or not _signalled():
        yield events
        return

    def put(signum: int, frame: FrameType | None) -> None:
        try:
            previous(signum, frame)
        except KeyboardInterrupt as interrupt:
            events.put(interrupt)

    signal.signal(signal.SIGINT, put)
    try:
        yield events
    finally:
        signal.signal(signal.SIGINT, previous)


def interrupted(events: SimpleQueue[object]) -> bool:
    """Return True if Ctrl-C has come. If signals reach this thread, the queue of `caught` tells;
    otherwise the heeded interrupts tell.
    """
    heeded = _heeded()
    return not events.empty() if heeded is None else heeded.taken()


def finish(
    begin: Callable[[list[Future[T]]], None], stop: Callable[[], None]
) -> tuple[Future[T], ...]:
    """Return the work that `begin` has put into its list, once all of it is done.

    After a Ctrl-C, or if `begin` fails, `stop` is called repeatedly until all work has ended. Then
    the error is raised.
    """
    work: list[Future[T]] = []
    failure: BaseException | None = None
    with caught() as events:
        try:
            begin(work)
        except BaseException as error:
            failure = error
        for future in work:
            future.add_done_callback(events.put)
        left, heeded = len(work), _heeded()
        while left:
            if heeded is not None and heeded.taken():
                failure = failure or KeyboardInterrupt()
            if failure is not None:
                stop()
            try:
                item = events.get(timeout=AGAIN if failure else HEARD)
            except Empty:
                continue
            if isinstance(item, KeyboardInterrupt):
                failure = failure or item
            else:
                left -= 1
        if failure is None and not events.empty():
            failure = KeyboardInterrupt()
    if failure is not None:
        raise failure
    return tuple(work)


def interruptible(work: Callable[[], T], stop: Callable[[], None]) -> T:
    """Return the result of `work`. Ctrl-C calls `stop`, which must end the work, until it has
    ended.

    The work runs in a thread of its own, because a signal reaches the main thread only between two
    steps of Python. If another thread calls, no signal comes.
    """
    if not _signalled() and _heeded() is None:
        return work()
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    def begin(futures: list[Future[T]]) -> None:
        threading.Thread(target=run, name="sqlfl query").start()
        futures.append(done)

    finish(begin, stop)
    return done.result()


# -- work that takes too long ----------------------------------------------------------------------


class Deadline:
    """Time at which work must have ended."""

    def __init__(self, seconds: float, stop: Callable[[], None]) -> None:
        self.due, self.stop = time.monotonic() + seconds, stop

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.due


class _Watch(threading.Thread):
    """Thread that stops work that takes too long. It sleeps until the next known deadline. Most
    work has ended by then, and has neither woken it nor waited for it.
    """

    def __init__(self) -> None:
        super().__init__(name="sqlfl deadlines", daemon=True)
        self.changed = threading.Condition()
        self.deadlines: set[Deadline] = set()
        self.wakes = 0.0
        self.ended = False

    def run(self) -> None:
        with self.changed:
            while self.deadlines:
                for deadline in self.deadlines:
                    if deadline.passed:
                        self._stop_work(deadline)
                soonest = min(deadline.due for deadline in self.deadlines)
                self.wakes = max(soonest, time.monotonic() + AGAIN)
                self.changed.wait(self.wakes - time.monotonic())
            self.ended = True

    @staticmethod
    def _stop_work(deadline: Deadline) -> None:
        try:
            deadline.stop()
        except Exception:
            log.exception("work that takes too long cannot be stopped")

    def add(self, deadline: Deadline) -> bool:
        """Add a deadline. Return False if the thread has ended, or if this process was forked from
        its own.
        """
        with self.changed:
            if self.ended or not self.is_alive():
                return False
            self.deadlines.add(deadline)
            if deadline.due < self.wakes:
                self.changed.notify()
            return True

    def remove(self, deadline: Deadline) -> None:
        with self.changed:
            self.deadlines.discard(deadline)


_watches: list[_Watch] = []
_watching = threading.Lock()


@contextmanager
def limited(seconds: float, stop: Callable[[], None]) -> Iterator[Deadline]:
    """Call `stop` from another thread if the block takes longer, repeatedly until the block has
    ended, and not afterwards. The caller must check the block's result.
    """
    deadline = Deadline(seconds, stop)
    watch = _watch(deadline)
    try:
        yield deadline
    finally:
        watch.remove(deadline)


def _watch(deadline: Deadline) -> _Watch:
    with _watching:
        if _watches and _watches[0].add(deadline):
            return _watches[0]
        new = _Watch()
        new.deadlines.add(deadline)
        _watches[:] = [new]
        new.start()
        return new
