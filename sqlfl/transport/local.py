"""Transport to clients in the same process. Threads serve them, with the same bytes as over a
network.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from sqlfl.base.errors import PartyError
from sqlfl.base.interrupts import finish
from sqlfl.contract.schema import Client
from sqlfl.transport.base import Handler, Handlers

HERE = 32
"""Maximum number of threads for clients in this process. More would find no core, and each keeps
some memory.
"""


class LocalTransport:
    """Transport that serves each client by its handler. `handlers` may change meanwhile.

    Each client has a thread, except those in this process (`Handlers`), of which there may be many.
    interrupts : client -> a function that ends the request being served; any thread may call it.
    """

    def __init__(
        self,
        handlers: Mapping[Client, Handler],
        interrupts: Mapping[Client, Callable[[], None]] | None = None,
    ) -> None:
        self._handlers = handlers
        self._interrupts = {} if interrupts is None else interrupts
        self._pool: ThreadPoolExecutor | None = None
        self._workers = 0
        self._lock = threading.Lock()

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        work: dict[Client, list[int]] = {}
        for position, (client, _) in enumerate(requests):
            if client not in self._handlers:
                raise PartyError(str(client), "it is not attached")
            work.setdefault(client, []).append(position)
        done: dict[Client, Future[list[pa.Buffer]]] = {}

        def begin(futures: list[Future[list[pa.Buffer]]]) -> None:
            with self._lock:  # no other thread may replace the pool meanwhile
                here = self._here() & work.keys()
                pool = self._threads(len(work) - len(here) + min(len(here), HERE))
                # Waiting comes first: clients elsewhere are asked before threads here start to
                # work.
                for client, positions in sorted(work.items(), key=lambda item: item[0] in here):
                    data = [requests[p][1] for p in positions]
                    done[client] = pool.submit(self._serve, client, data)
                    futures.append(done[client])

        def stop() -> None:
            for client, future in done.items():
                if not future.done() and client in self._interrupts:
                    self._interrupts[client]()

        finish(begin, stop)  # no client is left at work when an error is seen
        answers = {
            position: answer
            for client, positions in work.items()
            for position, answer in zip(positions, done[client].result(), strict=True)
        }
        return [answers[position] for position in range(len(requests))]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._pool = None

    def _serve(self, client: Client, data: list[pa.Buffer]) -> list[pa.Buffer]:
        handler = self._handlers[client]
        return [handler(item) for item in data]

    def _here(self) -> frozenset[Client]:
        return self._handlers.here if isinstance(self._handlers, Handlers) else frozenset()

    def _threads(self, threads: int) -> ThreadPoolExecutor:
        if self._pool is None or self._workers < threads:
            self.close()
            here = len(self._here())
            self._workers = max(threads, len(self._handlers) - here + min(here, HERE))
            self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="sqlfl")
        return self._pool
