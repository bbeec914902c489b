"""A stream to a coordinator's server, from the end that dials."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.flight as flight

from sqlfl.service.frames import (
    END,
    MAX_BODY_BYTES,
    MAX_PIECE_BYTES,
    SCHEMA,
    Frame,
    Receiver,
    Sender,
)

log = logging.getLogger("sqlfl.service")

PING, PONG = "ping", "pong"
WELCOMED = 30.0
"""Seconds within which a coordinator is to say whom it takes."""
LIMITS = [
    ("grpc.max_receive_message_length", MAX_PIECE_BYTES + (1 << 12)),
    ("grpc.compression_enabled_algorithms_bitset", 1),
]
"""Of what gRPC takes: no more at once than a piece, and nothing that it would have to unpack."""


@dataclass(frozen=True)
class Credentials:
    """Each as PEM; None where there is no TLS."""

    key: bytes | None = None
    certificate: bytes | None = None
    authority: bytes | None = None


class Ended(EOFError):
    """The other side has said so."""


class Stream:
    """One call of a coordinator's server, a context. server : the name that its certificate must
    have; None for that of the location. `descriptor` says what kind of stream it is. within :
    seconds for opening the stream and for the answer to its first frame, 30 by default. A
    coordinator that is frozen takes connections, and answers nothing.
    """

    def __init__(
        self,
        location: str,
        credentials: Credentials,
        descriptor: str,
        server: str | None = None,
        most_bytes: int = MAX_BODY_BYTES,
        within: float | None = None,
    ) -> None:
        within = WELCOMED if within is None else min(WELCOMED, within)
        self._late = threading.Timer(within, self.cancel)
        self._late.daemon = True
        self._client = flight.FlightClient(
            location,
            override_hostname=server if credentials.authority else None,
            tls_root_certs=credentials.authority,
            cert_chain=credentials.certificate,
            private_key=credentials.key,
            generic_options=[*LIMITS, ("grpc.min_reconnect_backoff_ms", max(1, int(1e3 * within)))],
        )
        self.ended = threading.Event()
        self._closing = threading.Lock()
        self._heard = time.monotonic()
        try:
            writer, self._reader = self._client.do_exchange(
                flight.FlightDescriptor.for_path(descriptor)
            )
            self._writer = writer
            self._late.start()
            writer.begin(SCHEMA)
        except (pa.ArrowException, OSError):
            self._late.cancel()
            with suppress(pa.ArrowException, OSError):
                self._client.close()
            raise
        self.sender = Sender(writer)
        self.receiver = Receiver(self._reader, most_bytes, self._hear)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        self.sender.close()
        with self._closing:
            for close in (self._writer.close, self._client.close):
                with suppress(pa.ArrowException, OSError):
                    close()

    def receive(self) -> Frame:
        """The next frame. Raises as `Receiver.receive`, and Ended where the other side does."""
        frame = self.receiver.receive()
        if frame.kind == END:
            raise Ended("the coordinator has ended")
        return frame

    def greeted(self, hello: Frame) -> Frame:
        """The answer to the first frame. The stream is given up where none comes in time."""
        try:
            self.sender.send(hello)
            return self.receive()
        finally:
            self._late.cancel()

    def watch(self, heartbeat: float) -> None:
        """A sign of life every `heartbeat` seconds, but while a frame is being sent; where the
        other side has neither sent nor taken anything for three, the stream is given up: who waits
        for it, or writes to it, goes on."""
        self._hear()
        while not self.ended.wait(heartbeat):
            if time.monotonic() - max(self._heard, self.sender.wrote) > 3.0 * heartbeat:
                log.info("nothing was heard for %.0f seconds", 3.0 * heartbeat)
                self.cancel()
                return
            with suppress(pa.ArrowException, OSError):
                self.sender.offer(Frame(PING))

    def _hear(self) -> None:
        self._heard = time.monotonic()

    def cancel(self) -> None:
        self._late.cancel()
        self.ended.set()
        with suppress(pa.ArrowException, OSError):
            self._reader.cancel()


_HINTS = (
    (("Peer name",), "its certificate has another name than the one in the settings"),
    (("lookup", "resolving"), "no machine of that name is known here: is it spelt right?"),
    (("refused",), "nothing listens there: is the coordinator running, and is it that port?"),
    (("verify failed", "unknown ca"), "both ends need certificates of one authority"),
    (("timed out", "Timeout", "No route", "unreachable"),
     "nothing answers there: is it that host, and does a firewall let this through?"),
)  # fmt: skip
"""What an attempt to connect has failed of, by words of gRPC's."""


def hint(why: str) -> str:
    """Return the hint for a missing connection, by the words of `why`."""
    for words, text in _HINTS:
        if any(word in why for word in words):
            return text
    return "is the coordinator there, and are the certificates of one authority?"


def said(error: BaseException) -> str:
    first = str(error).partition("\n")[0].partition(". gRPC client debug")[0]
    return first.rpartition(", with message: ")[2] or "it was closed"
