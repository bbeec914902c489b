"""What travels on a stream between two machines: frames, in pieces, over Arrow Flight.

A frame is a header, JSON, and a body of bytes. The body travels as record batches of one column of
bytes, which Flight sends as they lie in memory; the header comes beside the first of them, and its
`size` says how many bytes follow. So a body is in memory once at either end, but for a piece.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from sqlfl.errors import WireError

REQUEST, REPLY, INTERRUPT = "request", "reply", "interrupt"
END = "end"
"""No more comes: whoever gets it lets go of the stream."""
VERSIONS = (1,)
"""Of this format that are understood, in order; a connection speaks the newest that both know."""
SCHEMA = pa.schema([("bytes", pa.uint8())])
PIECE = 1 << 20
"""Bytes of a body that travel in one record batch: a sign of life on slow links, too."""
LONGEST_HEADER = 1 << 20
MOST_BYTES = 8 << 30
"""Of a body."""
_NONE = pa.py_buffer(b"")


class Reader(Protocol):
    def read_chunk(self) -> Any: ...


class Writer(Protocol):
    def write_with_metadata(self, batch: pa.RecordBatch, metadata: pa.Buffer) -> None: ...

    def write_batch(self, batch: pa.RecordBatch) -> None: ...


@dataclass(frozen=True, eq=False)
class Frame:
    """kind : what it is. told : what else the header says. body : its bytes."""

    kind: str
    told: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    body: pa.Buffer = field(default_factory=lambda: _NONE)

    def text(self, name: str, default: str | None = None) -> str:
        """A text of the header. Raises WireError where it is none."""
        found = self.told.get(name, default)
        if not isinstance(found, str):
            raise WireError(f"{self.kind} says no {name}")
        return found

    def number(self, name: str) -> int:
        """A whole number from 0 up of the header. Raises WireError where it is none."""
        found = self.told.get(name)
        if type(found) is not int or not 0 <= found < 2**63:
            raise WireError(f"{self.kind} says no {name}")
        return found


class Sender:
    """Frames to one stream, whole, from any thread."""

    def __init__(self, writer: Writer) -> None:
        self._writer: Writer | None = writer
        self._lock = threading.Lock()
        self.wrote = time.monotonic()
        """When a piece of a body was last taken: what has none waits in buffers on its way."""

    def close(self) -> None:
        """No frame is sent any more, nor half of one: who writes to a stream that Flight has let go
        of ends the process."""
        with self._lock:
            self._writer = None

    def send(self, frame: Frame) -> None:
        """Raises what the stream does, OSError where it has ended, and ValueError for what JSON
        does not have."""
        header = encoded(frame)
        with self._lock:
            self._write(frame.body, header)

    def offer(self, frame: Frame) -> bool:
        """The same, but not where another frame is on its way. Whether it was sent."""
        header = encoded(frame)
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._write(frame.body, header)
        finally:
            self._lock.release()
        return True

    def _write(self, body: pa.Buffer, header: bytes) -> None:
        """The lock is held."""
        first, *others = range(0, len(body) or 1, PIECE)
        if self._writer is None:
            raise OSError("the stream has ended")
        self._writer.write_with_metadata(_batch(body, first), pa.py_buffer(header))
        if len(body):
            self.wrote = time.monotonic()
        for start in others:
            self._writer.write_batch(_batch(body, start))
            self.wrote = time.monotonic()


class Receiver:
    """Frames from one stream; to be read by one thread.

    most_bytes : of a body. heard : is called for each piece as it comes.
    """

    def __init__(
        self,
        reader: Reader,
        most_bytes: int = MOST_BYTES,
        heard: Callable[[], object] = lambda: None,
    ) -> None:
        self._reader, self.most_bytes, self.heard = reader, most_bytes, heard

    def receive(self) -> Frame:
        """The next frame, once it has come. Raises EOFError at the end of the stream, WireError for
        what is no frame, and what the stream raises."""
        piece, header = self._chunk()
        if header is None:
            raise WireError("a piece of a body without a header")
        told = self._header(header)
        kind, size = told.pop("kind", None), told.pop("size", None)
        if not isinstance(kind, str) or type(size) is not int or not 0 <= size <= self.most_bytes:
            raise WireError(
                f"a header with no kind, or with a size that is not 0 to {self.most_bytes:,}"
            )
        if len(piece) == size:  # as it came
            return Frame(kind, MappingProxyType(told), piece)
        body, start = _room(size), 0
        while True:
            if start + len(piece) > size or (not len(piece) and start < size):
                raise WireError(f"a body of {size:,} bytes in pieces that do not make it")
            body[start : start + len(piece)] = np.frombuffer(piece, np.uint8)
            start += len(piece)
            if start == size:
                return Frame(kind, MappingProxyType(told), pa.py_buffer(body))
            piece, header = self._chunk()
            if header is not None:
                raise WireError("a header amid the pieces of a body")

    def _chunk(self) -> tuple[pa.Buffer, pa.Buffer | None]:
        try:
            chunk = self._reader.read_chunk()
        except StopIteration:
            raise EOFError from None
        self.heard()
        if chunk.data is None or chunk.data.schema != SCHEMA:
            raise WireError("a record batch of other columns than one of bytes")
        column = chunk.data.column(0)
        if column.null_count:
            raise WireError("a record batch with bytes that are NULL")
        data = column.buffers()[1]
        return _NONE if data is None else data.slice(column.offset, len(column)), chunk.app_metadata

    @staticmethod
    def _header(header: pa.Buffer) -> dict[str, Any]:
        if len(header) > LONGEST_HEADER:
            raise WireError(f"a header of {len(header):,} bytes; {LONGEST_HEADER:,} are taken")
        try:
            found = json.loads(header.to_pybytes())
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise WireError("a header that is no JSON object")
        return found


def spoken(offered: object) -> int:
    """The newest version that is offered and understood. Raises WireError where there is none."""
    if not isinstance(offered, list) or not all(type(version) is int for version in offered):
        raise WireError("no versions of the format are offered")
    known = sorted(set(offered) & set(VERSIONS))
    if not known:
        told = ", ".join(map(str, offered)) or "none"
        raise WireError(
            f"versions {told} of the format are offered, and {VERSIONS[-1]} is the newest "
            "that is understood here: the other side's sqlfl is too new, or too old"
        )
    return int(known[-1])


def encoded(frame: Frame) -> bytes:
    """The header of a frame. Raises ValueError for what JSON does not have, WireError where it is
    too long."""
    told = {"kind": frame.kind, "size": len(frame.body), **frame.told}
    header = json.dumps(told, allow_nan=False).encode()
    if len(header) > LONGEST_HEADER:
        raise WireError(f"a header of {len(header):,} bytes; {LONGEST_HEADER:,} are sent")
    return header


def _room(size: int) -> np.ndarray:
    try:
        return np.empty(size, np.uint8)
    except MemoryError:
        raise WireError(f"a body of {size:,} bytes, for which there is no memory") from None


def _batch(body: pa.Buffer, start: int) -> pa.RecordBatch:
    piece = body.slice(start, min(PIECE, len(body) - start))
    column = pa.Array.from_buffers(pa.uint8(), len(piece), [None, piece])
    return pa.record_batch([column], schema=SCHEMA)
