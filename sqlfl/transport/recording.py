"""Transport that keeps every byte that crosses the border, for tests and auditors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from sqlfl.contract.schema import Client
from sqlfl.transport.base import Transport


@dataclass(frozen=True)
class Recorded:
    direction: str
    """'down' to the client, 'up' from it."""
    client: Client
    data: bytes
    """The message as it travelled."""


class RecordingTransport:
    """Transport that passes everything on to `inner` and appends it to `recorded`, in order."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.recorded: list[Recorded] = []

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        self.recorded += [Recorded("down", c, data.to_pybytes()) for c, data in requests]
        answers = self.inner.exchange(requests)
        self.recorded += [
            Recorded("up", c, data.to_pybytes())
            for (c, _), data in zip(requests, answers, strict=True)
        ]
        return answers
