"""What the coordinator sends, without ever waiting for who is to read it."""

from __future__ import annotations

import logging
import threading
from collections import deque

import pyarrow as pa

from sqlfl.base.errors import WireError
from sqlfl.service.frames import Frame, FrameWriter, Sender, encoded

log = logging.getLogger("sqlfl.service")

AT_ONCE = 32 << 10
"""Bytes since the peer was last heard of that are written by whoever sends: HTTP/2 takes 64 KiB
before the peer has to read. Others wait their turn in a thread, as a peer may read nothing."""
MAX_WAITING = 1024
"""Frames that wait; beyond that, those that can be done without are left out."""
FULL = 2 * MAX_WAITING
FULL_BYTES = 1 << 30


class Outbox(Sender):
    """Frames to one stream, whole and in order, from any thread; `send` does not wait."""

    def __init__(self, writer: FrameWriter) -> None:
        super().__init__(writer)
        self._changed = threading.Condition()
        self._waiting: deque[tuple[pa.Buffer, bytes]] = deque()
        self._bytes = 0
        self._unheard = 0
        self._busy = self._over = self._works = False

    def heard(self) -> None:
        """The peer lives."""
        with self._changed:
            self._unheard = 0

    @property
    def full(self) -> bool:
        """So much waits that nothing more is to be begun for this peer."""
        with self._changed:
            return len(self._waiting) > FULL or self._bytes > FULL_BYTES

    def send(self, frame: Frame) -> None:
        """As of `Sender`; what goes wrong later ends the stream."""
        self._put(frame)

    def offer(self, frame: Frame) -> bool:
        """The same, but not where much waits."""
        with self._changed:
            if len(self._waiting) >= MAX_WAITING:
                return False
        self._put(frame)
        return True

    def flush(self, seconds: float = 1.0) -> None:
        """Wait until what was sent so far is on its way, but not for longer."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or not (self._waiting or self._busy), seconds)

    def close(self) -> None:
        with self._changed:
            self._end()
        super().close()

    def _put(self, frame: Frame) -> None:
        header = encoded(frame)
        size = len(header) + len(frame.body)
        with self._changed:
            if self._over:
                raise OSError("the stream has ended")
            if self._busy or self._waiting or self._unheard + size > AT_ONCE:
                self._waiting.append((frame.body, header))
                self._bytes += len(frame.body)
                self._begin()
                return
            self._busy = True
            self._unheard += size
        self._written(frame.body, header)

    def _written(self, body: pa.Buffer, header: bytes) -> None:
        """`busy` is set, by who calls."""
        try:
            with self._lock:
                self._write(body, header)
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _begin(self) -> None:
        if not self._works:
            self._works = True
            threading.Thread(target=self._work, name="sqlfl-outbox", daemon=True).start()
        self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._over or (self._waiting and not self._busy))
                if self._over:
                    return
                body, header = self._waiting.popleft()
                self._bytes -= len(body)
                self._busy = True
            try:
                self._written(body, header)
            except (pa.ArrowException, OSError, WireError) as error:
                log.info("what was sent did not arrive: %s", error)
                with self._changed:
                    self._end()
                return

    def _end(self) -> None:
        self._over = True
        self._waiting.clear()
        self._bytes = 0
        self._changed.notify_all()
