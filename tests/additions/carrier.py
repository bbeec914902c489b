"""A transport as another package would offer it: it copies each message, as a socket would."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from sqlfl.base.errors import PartyError
from sqlfl.base.interrupts import finish
from sqlfl.contract.schema import Client
from sqlfl.transport.base import Handler

DISTRIBUTION = {
    "METADATA": "Metadata-Version: 2.1\nName: sqlfl-carrier\nVersion: 1.0\n",
    "entry_points.txt": (
        "[sqlfl.transports]\n"
        "carrier = tests.additions.carrier:CarrierTransport\n"
        "broken = tests.additions.carrier:NoSuchTransport\n"
    ),
}
"""What an installer would write to sqlfl_carrier-1.0.dist-info."""


class CarrierTransport:
    carried = 0
    """Messages down, of all transports so far."""
    closed = 0

    def __init__(
        self,
        handlers: Mapping[Client, Handler],
        interrupts: Mapping[Client, Callable[[], None]],
    ) -> None:
        self._handlers, self._interrupts = handlers, interrupts

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        queues: dict[Client, list[int]] = {}
        for place, (client, _) in enumerate(requests):
            if client not in self._handlers:
                raise PartyError(str(client), "it is not attached")
            queues.setdefault(client, []).append(place)
        CarrierTransport.carried += len(requests)
        with ThreadPoolExecutor(max(1, len(queues))) as pool:
            jobs: dict[Client, Future[dict[int, pa.Buffer]]] = {}

            def begin(begun: list[Future[dict[int, pa.Buffer]]]) -> None:
                for client, places in queues.items():
                    jobs[client] = pool.submit(self._serve, requests, places)
                    begun.append(jobs[client])

            def stop() -> None:
                for client, job in jobs.items():
                    if not job.done() and client in self._interrupts:
                        self._interrupts[client]()

            finish(begin, stop)
            found = {place: reply for job in jobs.values() for place, reply in job.result().items()}
        return [found[place] for place in range(len(requests))]

    def close(self) -> None:
        CarrierTransport.closed += 1

    def _serve(
        self, requests: Sequence[tuple[Client, pa.Buffer]], places: Sequence[int]
    ) -> dict[int, pa.Buffer]:
        copies = ((p, requests[p][0], pa.py_buffer(requests[p][1].to_pybytes())) for p in places)
        return {place: self._handlers[client](data) for place, client, data in copies}
