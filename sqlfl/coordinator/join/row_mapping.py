"""Mapping of joined rows to the rows of every slot: in arrays, in files, or found again each
time.

Data that does not fit memory is in temporary files without a name, which never outlive the process.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator, Mapping, Sized
from contextlib import ExitStack
from typing import Generic, Protocol, TypeVar

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, ModelError
from sqlfl.base.interrupts import checkpoint


class Scratch:
    """Arrays of a statement on disk, in the folder for temporary files.

    The files have no name there. They vanish when the context ends, or when the process ends in any
    way.
    """

    def __init__(self) -> None:
        self._open = ExitStack()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def numbers(self) -> StoredNumbers:
        """Return an empty array on disk."""
        return StoredNumbers(self._open.enter_context(tempfile.TemporaryFile(buffering=0)).fileno())


class StoredNumbers:
    """int32 (n,) in a file. Reading copies, so that no page of the file counts as memory."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, values: Array) -> None:
        """Append numbers. Raise ModelError if the disk is full."""
        self._put(self._size, values)
        self._size += len(values)

    def part(self, first: int, end: int) -> Array:
        """Return the numbers from `first` to `end` as a new array."""
        numbers = np.empty(end - first, np.int32)
        read = os.preadv(self._file, [numbers.data], numbers.itemsize * first)
        if read != numbers.nbytes:
            raise InternalError(f"{read} bytes of {numbers.nbytes} at number {first} of a file")
        return numbers

    def replace(self, first: int, values: Array) -> None:
        """Overwrite numbers from `first` on."""
        self._put(first, values)

    def _put(self, first: int, values: Array) -> None:
        numbers = np.ascontiguousarray(values, np.int32)
        left, place = numbers.data.cast("B"), numbers.itemsize * first
        while left:
            try:
                written = os.pwrite(self._file, left, place)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise ModelError(
                    "the joined rows do not fit the coordinator's memory, nor the disk: "
                    f"{tempfile.gettempdir()} is full",
                    hint="make room there, name another folder by the environment variable "
                    "TMPDIR, or raise memory_limit",
                ) from error
            left, place = left[written:], place + written


Numbers = TypeVar("Numbers", bound=Sized)

CHUNK = 1 << 16
"""Joined rows that are taken at once. So many fit the processor's cache."""


class RowMapping(Protocol):
    """Joined rows of a query, in an order that is the same each time."""

    @property
    def slots(self) -> tuple[int, ...]:
        """Return the numbers of the slots that the mapping covers."""
        ...

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the number of rows of each of these slots."""
        ...

    @property
    def total(self) -> int:
        """Return N, the number of joined rows."""
        ...

    def counts(self, slot: int) -> Array:
        """Return cnt of every row of a slot, by the slot's number: integers (n_i,) of any type."""
        ...

    def chunks(self, size: int = CHUNK) -> Iterator[tuple[Array, ...]]:
        """Yield the row of each of `slots`, for up to `size` joined rows at a time: integers
        (n,).
        """
        ...

    def renumbered(self, active: Mapping[int, Array]) -> RowMapping:
        """Return the mapping over slots that keep only their `active` rows. These must include all
        joined rows. The result reuses the arrays or files, so this mapping is unusable afterwards.
        """
        ...

    def written(self) -> Mapping[int, Array]:
        """Return slot -> int32 (N,): its row of each joined row. The arrays are kept once
        written.
        """
        ...


class _ByArrays(Generic[Numbers]):
    """Slot -> the row that each joined row comes from, and the slot's number of rows."""

    def __init__(self, rows: Mapping[int, Numbers], sizes: Mapping[int, int]) -> None:
        self._rows = dict(rows)
        self._sizes = dict(sizes)
        self.slots = tuple(rows)
        self.total = len(next(iter(rows.values())))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self._sizes[slot] for slot in self.slots)


class WrittenMapping(_ByArrays[Array]):
    """Joined rows as an array for each slot: int32 (N,)."""

    def counts(self, slot: int) -> Array:
        return np.bincount(self._rows[slot], minlength=self._sizes[slot])

    def chunks(self, size: int = CHUNK) -> Iterator[tuple[Array, ...]]:
        for start in range(0, self.total, size):
            yield tuple(rows[start : start + size] for rows in self._rows.values())

    def renumbered(self, active: Mapping[int, Array]) -> WrittenMapping:
        for slot, kept in active.items():
            rows, place = self._rows[slot], positions(kept, self._sizes[slot])
            for start in range(0, self.total, CHUNK):
                piece = rows[start : start + CHUNK]
                piece[:] = place[piece]
        sizes = self._sizes | {slot: len(kept) for slot, kept in active.items()}
        return WrittenMapping(self._rows, sizes)

    def written(self) -> Mapping[int, Array]:
        return self._rows


class StoredMapping(_ByArrays[StoredNumbers]):
    """Joined rows in files, an array for each slot."""

    def counts(self, slot: int) -> Array:
        occurrences = np.zeros(self._sizes[slot], np.int64)
        for start in range(0, self.total, CHUNK):
            np.add.at(occurrences, self.part(slot, start, min(start + CHUNK, self.total)), 1)
            checkpoint()
        return occurrences

    def part(self, slot: int, first: int, end: int) -> Array:
        """Return the slot's rows of these joined rows: int32 (end − first,)."""
        return self._rows[slot].part(first, end)

    def chunks(self, size: int = CHUNK) -> Iterator[tuple[Array, ...]]:
        for start in range(0, self.total, size):
            end = min(start + size, self.total)
            yield tuple(self.part(slot, start, end) for slot in self.slots)

    def renumbered(self, active: Mapping[int, Array]) -> StoredMapping:
        for slot, kept in active.items():
            if len(kept) == self._sizes[slot]:
                continue
            place = positions(kept, self._sizes[slot])
            for start in range(0, self.total, CHUNK):
                rows = self.part(slot, start, min(start + CHUNK, self.total))
                self._rows[slot].replace(start, place[rows])
                checkpoint()
        sizes = self._sizes | {slot: len(kept) for slot, kept in active.items()}
        return StoredMapping(self._rows, sizes)

    def written(self) -> Mapping[int, Array]:
        return {slot: self.part(slot, 0, self.total) for slot in self.slots}


def positions(active: Array, size: int) -> Array:
    """Return the position of each of some ascending rows among them: int32 (size,); 0 for other
    rows.
    """
    place = np.zeros(size, np.int32)
    place[active] = np.arange(len(active), dtype=np.int32)
    return place
