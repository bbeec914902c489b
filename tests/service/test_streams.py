"""Streams that harm before a frame has come: what is unpacked, and who says nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from sqlfl.errors import WireError
from sqlfl.remote.agent import PARTY
from sqlfl.remote.frames import LONGEST_PIECE, SCHEMA, Frame, Receiver
from sqlfl.remote.stream import Credentials, Stream
from tests.remote.party import Admitting, at, serving

PLAIN = Credentials()
SIZE = 64 << 20
BATCH = pa.record_batch([pa.array(np.zeros(SIZE, np.uint8))], names=["bytes"])
ZSTD = pa.ipc.IpcWriteOptions(compression="zstd")


def test_who_brings_columns_is_sent_away() -> None:
    """By the schema, before a batch of it is read."""
    with serving(Admitting("bank"), secure=False) as server:
        client = flight.FlightClient(at(server, secure=False))
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_path(PARTY))
        writer.begin(BATCH.schema)
        told = Receiver(reader).receive()
        assert told.kind == "refused"
        assert "a stream of another format" in told.text("why")
        writer.close()
        client.close()


class Hostile(flight.FlightServerBase):  # type: ignore[misc]
    """A coordinator that begins a stream by what it likes."""

    def __init__(self, says: Callable[[Any, Any], None]) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._says = says

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with suppress(pa.ArrowException, OSError, StopIteration):
            self._says(context, writer)
            while True:
                reader.read_chunk()


def _batch(context: Any, writer: Any) -> None:
    writer.begin(BATCH.schema, options=ZSTD)
    writer.write_batch(BATCH)


def _packed(context: Any, writer: Any) -> None:
    """By gRPC itself, on the way."""
    context.add_header("grpc-internal-encoding-request", "gzip")
    writer.begin(SCHEMA)
    writer.write_metadata(pa.py_buffer(bytes(1 << 16)))


def _long(context: Any, writer: Any) -> None:
    writer.begin(SCHEMA)
    writer.write_metadata(pa.py_buffer(bytes(LONGEST_PIECE + (1 << 13))))


SAID = {
    "a compressed batch": (_batch, WireError, "another format"),
    "what gRPC would unpack": (_packed, pa.ArrowException, "algorithm 'gzip' is disabled"),
    "more at once than a piece": (_long, (pa.ArrowException, EOFError), None),
}


@pytest.mark.parametrize(("says", "error", "why"), SAID.values(), ids=SAID)
def test_what_a_coordinator_would_have_unpacked(
    says: Callable[[Any, Any], None], error: type[Exception], why: str | None
) -> None:
    with Hostile(says) as server:
        stream = Stream(f"grpc://127.0.0.1:{server.port}", PLAIN, PARTY)
        with stream, pytest.raises(error, match=why):
            stream.greeted(Frame("hello", {}))
