"""A link between two processes that can be cut, held up, and made slow."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress


class Proxy:
    """Listens on a port of its own and passes bytes on to `port`; a context."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._lock = threading.Lock()
        self._links: set[socket.socket] = set()
        self._flows = threading.Event()
        self._flows.set()
        self._down = self._over = False
        self.rate: float | None = None
        """Bytes a second of each direction of a connection."""
        self.connections = 0

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._listening.close()
        self.resume()
        self.drop()

    def drop(self) -> None:
        """Cut what is connected; others can connect."""
        with self._lock:
            links, self._links = self._links, set()
        for link in links:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()

    def cut(self) -> None:
        """Cut what is connected, and whatever connects, until `mend`."""
        self._down = True
        self.drop()

    def mend(self) -> None:
        self._down = False

    def pause(self) -> None:
        """Nothing passes, and nobody is told."""
        self._flows.clear()

    def resume(self) -> None:
        self._flows.set()

    def _accept(self) -> None:
        while not self._over:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            if self._down:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            self.connections += 1
            with self._lock:
                self._links |= {near, far}
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 14 if self.rate else 1 << 18):
                while not self._flows.wait(1.0):
                    pass
                if self.rate:
                    time.sleep(len(data) / self.rate)
                target.sendall(data)
        for link in (source, target):
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()
        with self._lock:
            self._links -= {source, target}
