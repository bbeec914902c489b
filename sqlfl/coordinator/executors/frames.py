"""How work and answers travel between the coordinator and its own workers: JSON and arrays' bytes.

A frame is the length of its header, the header, and the arrays as they lie in memory. Workers are
started by the coordinator and run the same code, so that the forms of messages between parties, and
their checks, are not for them; but nothing is pickled here either.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import IO, Any

import numpy as np

from sqlfl.base.arrays import Array

LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, eq=False)
class WorkerFrame:
    facts: Mapping[str, Any]
    """What JSON tells."""
    arrays: Sequence[Array] = ()

    def parts(self) -> Iterator[bytes | memoryview]:
        """The bytes, one after the other."""
        forms = [[own.dtype.str, own.shape] for own in self.arrays]
        header = json.dumps({"facts": self.facts, "arrays": forms}).encode()
        yield LENGTH.pack(len(header)) + header
        for own in self.arrays:
            if own.size:
                yield _bytes(np.ascontiguousarray(own))

    def to_bytes(self) -> bytes:
        return b"".join(self.parts())

    def write(self, stream: IO[bytes]) -> None:
        for part in self.parts():
            stream.write(part)
        stream.flush()

    @classmethod
    def read(cls, stream: IO[bytes]) -> WorkerFrame:
        """Raises EOFError where the stream has ended."""
        (length,) = LENGTH.unpack(_exactly(stream, LENGTH.size))
        header = json.loads(_exactly(stream, length))
        arrays = []
        for kind, shape in header["arrays"]:
            own = np.empty(shape, np.dtype(kind))
            if own.size:
                _fill(stream, _bytes(own))
            arrays.append(own)
        return cls(header["facts"], arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> WorkerFrame:
        return cls.read(BytesIO(data))


def _bytes(values: Array) -> memoryview:
    """Where they lie."""
    return values.reshape(-1).view(np.uint8).data


def _exactly(stream: IO[bytes], size: int) -> bytes:
    found = bytearray(size)
    _fill(stream, memoryview(found))
    return bytes(found)


def _fill(stream: IO[bytes], room: memoryview) -> None:
    filled = 0
    while filled < len(room):
        # of a pipe as much as there is
        read = stream.readinto(room[filled:])  # type: ignore[attr-defined]
        if not read:
            raise EOFError
        filled += read


@dataclass(eq=False)
class Writing:
    """A frame in the making: arrays are told by their places."""

    arrays: list[Array] = field(default_factory=list)

    def one(self, values: Array | None) -> int | None:
        """The place of an array; None where there is none."""
        if values is None:
            return None
        self.arrays.append(values)
        return len(self.arrays) - 1

    def several(self, values: Sequence[Array]) -> list[int | None]:
        return [self.one(own) for own in values]


@dataclass(frozen=True, eq=False)
class FrameReading:
    """A frame that has come."""

    arrays: Sequence[Array]

    def one(self, place: int | None) -> Array | None:
        return None if place is None else self.arrays[place]

    def several(self, places: Sequence[int]) -> tuple[Array, ...]:
        return tuple(self.arrays[place] for place in places)
