"""Seeded bytes in place of the operating system's, for as long as tests run.

Noise, secrets, nonces and folds draw from `os.urandom`, some of them through `secrets`. Under the
tests these bytes follow from the seed, the test (or the fixture that several tests share), and the
client that draws. So they depend neither on the order of tests, nor on which worker runs one, nor
on which of the clients' threads draws first.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Iterator

import pyarrow as pa

from sqlfl.contract.schema import Client
from sqlfl.transport.local import LocalTransport

_served = threading.local()
"""Of a thread: `client`, the client whose requests it serves."""


class SeededEntropy:
    """A stream of bytes for each client within a scope; callable as `os.urandom` is."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._scope = "collection"
        self._streams: dict[str, random.Random] = {}

    def __call__(self, count: int) -> bytes:
        client = str(getattr(_served, "client", ""))
        stream = self._streams.get(client)
        if stream is None:
            new = random.Random(f"{self._seed} {self._scope} {client}")
            stream = self._streams.setdefault(client, new)
        return stream.randbytes(count)

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Draw from streams of this name within the block: new ones, which are then forgotten."""
        previous = self._scope, self._streams
        self._scope, self._streams = name, {}
        try:
            yield
        finally:
            self._scope, self._streams = previous

    def install(self) -> None:
        """Replace the system's generator in this process."""
        os.urandom = self
        random._urandom = self  # type: ignore[attr-defined]
        serve = LocalTransport._serve

        def serving(
            transport: LocalTransport, client: Client, data: list[pa.Buffer]
        ) -> list[pa.Buffer]:
            previous = getattr(_served, "client", "")
            _served.client = client
            try:
                return serve(transport, client, data)
            finally:
                _served.client = previous

        LocalTransport._serve = serving  # type: ignore[method-assign]
