"""Frames on a stream between two machines, in pieces, over Arrow Flight.

A frame is a JSON header and a body of bytes. The header's `size` is the number of bytes of the
body. All of it travels as application metadata of Flight, which passes bytes on unchanged.

The first piece has the header's length (uint32), the header, and a short body. The rest of a longer
body follows in pieces, straight from memory. So each end holds a body in memory once, plus one
piece.

Nothing travels as record batches. Flight decodes these before this module can check them, and 7 kB
of compressed batches become 200 MB. For a schema without columns it decodes nothing, whatever
batches and dictionaries arrive. So a stream of any other schema is refused before its first piece
is read.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from sqlfl.base.errors import WireError

REQUEST, REPLY, INTERRUPT = "request", "reply", "interrupt"
END = "end"
"""Kind of the last frame: its receiver lets go of the stream."""
VERSIONS = (1,)
"""Of this format that are understood, in order; a connection speaks the newest that both know."""
SCHEMA = pa.schema([])
PIECE = 1 << 20
"""Bytes of a body that travel at once: a sign of life on slow links, too."""
SHORT = 1 << 16
"""Bytes of a body, at most, that travel with the header."""
MAX_HEADER_BYTES = 1 << 20
MAX_PIECE_BYTES = 4 + MAX_HEADER_BYTES + SHORT
"""Bytes that come at once."""
_LENGTH = struct.Struct("<I")
MAX_BODY_BYTES = 8 << 30
"""Maximum bytes of a body."""
_NONE = pa.py_buffer(b"")


class Reader(Protocol):
    @property
    def schema(self) -> pa.Schema: ...

    def read_chunk(self) -> Any: ...


class FrameWriter(Protocol):
    def write_metadata(self, metadata: pa.Buffer) -> None: ...


@dataclass(frozen=True, eq=False)
class Frame:
    """Message of a stream. kind : its kind. told : other fields of the header. body : its bytes."""

    kind: str
    told: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    body: pa.Buffer = field(default_factory=lambda: _NONE)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text of the header. Raise WireError if it is not a text."""
        value = self.told.get(name, default)
        if not isinstance(value, str):
            raise WireError(f"{self.kind} says no {name}")
        return value

    def number(self, name: str) -> int:
        """Return a whole number of the header, at least 0. Raise WireError if it is not one."""
        value = self.told.get(name)
        if type(value) is not int or not 0 <= value < 2**63:
            raise WireError(f"{self.kind} says no {name}")
        return value


class Sender:
    """Writer of whole frames to one stream, from any thread."""

    def __init__(self, writer: FrameWriter) -> None:
        self._writer: FrameWriter | None = writer
        self._lock = threading.Lock()
        self.wrote = time.monotonic()
        """Time at which a piece of a body was last taken; until then a piece waits in buffers."""

    def close(self) -> None:
        """Stop sending: neither a whole frame nor a part is sent after this call. Writing to a
        stream that Flight has released ends the process."""
        with self._lock:
            self._writer = None

    def send(self, frame: Frame) -> None:
        """Send a frame. Raise the stream's errors, OSError if it has ended, and ValueError for
        values that JSON does not have."""
        header = encoded(frame)
        with self._lock:
            self._write(frame.body, header)

    def offer(self, frame: Frame) -> bool:
        """Send a frame unless another one is being sent. Return whether it was sent."""
        header = encoded(frame)
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._write(frame.body, header)
        finally:
            self._lock.release()
        return True

    def _write(self, body: pa.Buffer, header: bytes) -> None:
        """Send a frame; the caller holds the lock."""
        if self._writer is None:
            raise OSError("the stream has ended")
        first = [_LENGTH.pack(len(header)), header]
        if short := len(body) <= SHORT:
            first.append(body.to_pybytes())
        self._writer.write_metadata(pa.py_buffer(b"".join(first)))
        if short and len(body):
            self.wrote = time.monotonic()
        for start in () if short else range(0, len(body), PIECE):
            self._writer.write_metadata(body.slice(start, min(PIECE, len(body) - start)))
            self.wrote = time.monotonic()


class Receiver:
    """Reader of frames from one stream, for one thread.

    most_bytes : maximum bytes of a body. heard : called for each piece when it arrives.
    """

    def __init__(
        self,
        reader: Reader,
        most_bytes: int = MAX_BODY_BYTES,
        heard: Callable[[], object] = lambda: None,
    ) -> None:
        self._reader, self.most_bytes, self.heard = reader, most_bytes, heard
        self._begun = False

    def receive(self) -> Frame:
        """Return the next frame, once it has come. Raise EOFError at the end of the stream,
        WireError for bytes that are no frame, and the stream's errors."""
        piece = self._piece()
        end = self._end(piece)
        header = self._header(piece.slice(_LENGTH.size, end - _LENGTH.size))
        kind, size = header.pop("kind", None), header.pop("size", None)
        if not isinstance(kind, str) or type(size) is not int or not 0 <= size <= self.most_bytes:
            raise WireError(
                f"a header with no kind, or with a size that is not 0 to {self.most_bytes:,}"
            )
        short = piece.slice(end)
        if len(short) == size:  # copied, so that it begins where arrays may
            return Frame(kind, MappingProxyType(header), pa.py_buffer(short.to_pybytes()))
        if len(short):
            raise WireError(f"a body of {size:,} bytes, of which {len(short):,} are at its header")
        body, start = _room(size), 0
        while start < size:
            piece = self._piece()
            if not 0 < len(piece) <= size - start:
                raise WireError(f"a body of {size:,} bytes in pieces that do not make it")
            body[start : start + len(piece)] = np.frombuffer(piece, np.uint8)
            start += len(piece)
        return Frame(kind, MappingProxyType(header), pa.py_buffer(body))

    def _piece(self) -> pa.Buffer:
        if not self._begun and self._reader.schema != SCHEMA:
            raise WireError("a stream of another format: the other side has another sqlfl, or none")
        self._begun = True
        try:
            chunk = self._reader.read_chunk()
        except StopIteration:
            raise EOFError from None
        self.heard()
        if chunk.data is not None or chunk.app_metadata is None:
            raise WireError("a record batch, where there are none")
        if len(chunk.app_metadata) > MAX_PIECE_BYTES:
            raise WireError(
                f"{len(chunk.app_metadata):,} bytes at once; {MAX_PIECE_BYTES:,} are taken"
            )
        return chunk.app_metadata

    @staticmethod
    def _end(piece: pa.Buffer) -> int:
        """Return the end of the header with which this piece begins."""
        if len(piece) < _LENGTH.size:
            raise WireError("a piece of a body without a header")
        (length,) = _LENGTH.unpack(piece.slice(0, _LENGTH.size))
        if length > MAX_HEADER_BYTES:
            raise WireError(f"a header of {length:,} bytes; {MAX_HEADER_BYTES:,} are taken")
        if _LENGTH.size + length > len(piece):
            raise WireError(f"a header of {length:,} bytes in a piece of {len(piece):,}")
        return _LENGTH.size + int(length)

    @staticmethod
    def _header(header: pa.Buffer) -> dict[str, Any]:
        try:
            facts = json.loads(header.to_pybytes())
        except (ValueError, RecursionError):
            facts = None
        if not isinstance(facts, dict):
            raise WireError("a header that is no JSON object")
        return facts


def spoken(offered: object) -> int:
    """Return the newest version that both sides understand. Raise WireError if there is none."""
    if not isinstance(offered, list) or not all(type(version) is int for version in offered):
        raise WireError("no versions of the format are offered")
    common = sorted(set(offered) & set(VERSIONS))
    if not common:
        versions = ", ".join(map(str, offered)) or "none"
        raise WireError(
            f"versions {versions} of the format are offered, and {VERSIONS[-1]} is the newest "
            "that is understood here: the other side's sqlfl is too new, or too old"
        )
    return int(common[-1])


def encoded(frame: Frame) -> bytes:
    """Return the header of a frame. Raise ValueError for values that JSON does not have, WireError
    if it is too long."""
    told = {"kind": frame.kind, "size": len(frame.body), **frame.told}
    header = json.dumps(told, allow_nan=False).encode()
    if len(header) > MAX_HEADER_BYTES:
        raise WireError(f"a header of {len(header):,} bytes; {MAX_HEADER_BYTES:,} are sent")
    return header


def _room(size: int) -> np.ndarray:
    try:
        return np.empty(size, np.uint8)
    except MemoryError:
        raise WireError(f"a body of {size:,} bytes, for which there is no memory") from None
