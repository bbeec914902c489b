"""Temporary files without a name, for data that does not fit memory. They never outlive the
process.
"""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import ExitStack

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, ModelError


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
