"""Frames of work and answers between the coordinator and its own workers: JSON and the arrays'
bytes.

A frame is the length of its header, the header, and the arrays as they lie in memory. The
coordinator starts the workers, and they run the same code. So they need neither the message forms
between parties nor their checks. Nothing is pickled.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sqlfl.base.arrays import Array

LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, eq=False)
class WorkerFrame:
    facts: Mapping[str, Any]
    """Contents of the JSON header."""
    arrays: Sequence[Array] = ()

    def parts(self) -> Iterator[bytes | memoryview]:
        """Yield the bytes, part after part."""
        forms = [[array.dtype.str, array.shape] for array in self.arrays]
        header = json.dumps({"facts": self.facts, "arrays": forms}).encode()
        yield LENGTH.pack(len(header)) + header
        for array in self.arrays:
            if array.size:
                yield _bytes(np.ascontiguousarray(array))

    def to_bytes(self) -> bytes:
        return b"".join(self.parts())

    @classmethod
    def from_bytes(cls, data: bytes) -> WorkerFrame:
        """Return the frame. Its arrays are copies, which may be changed."""
        (length,) = LENGTH.unpack_from(data)
        at = LENGTH.size + length
        header = json.loads(data[LENGTH.size : at])
        arrays = []
        for kind, shape in header["arrays"]:
            array = np.empty(shape, np.dtype(kind))
            if array.size:
                _bytes(array)[:] = data[at : at + array.nbytes]
                at += array.nbytes
            arrays.append(array)
        return cls(header["facts"], arrays)


def _bytes(values: Array) -> memoryview:
    """Return a view of the array's bytes."""
    return values.reshape(-1).view(np.uint8).data


@dataclass(eq=False)
class Writing:
    """Frame under construction. Its header refers to arrays by their places."""

    arrays: list[Array] = field(default_factory=list)

    def one(self, values: Array | None) -> int | None:
        """Add an array and return its place; None for None."""
        if values is None:
            return None
        self.arrays.append(values)
        return len(self.arrays) - 1

    def several(self, values: Sequence[Array]) -> list[int | None]:
        return [self.one(array) for array in values]


@dataclass(frozen=True, eq=False)
class FrameReading:
    """Reader of a received frame."""

    arrays: Sequence[Array]

    def one(self, place: int | None) -> Array | None:
        return None if place is None else self.arrays[place]

    def several(self, places: Sequence[int]) -> tuple[Array, ...]:
        return tuple(self.arrays[place] for place in places)
