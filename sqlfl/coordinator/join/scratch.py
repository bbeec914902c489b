"""Files for what does not fit memory: without a name, so that nothing of them is ever left."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import ExitStack
from types import TracebackType

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, ModelError


class Scratch:
    """Where a statement keeps arrays on disk, in the folder for temporary files.

    The files have no name there: they are gone once this is left, or once the process has ended, in
    whatever way.
    """

    def __init__(self) -> None:
        self._open = ExitStack()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    def numbers(self) -> StoredNumbers:
        """An empty array on disk."""
        return StoredNumbers(self._open.enter_context(tempfile.TemporaryFile(buffering=0)).fileno())


class StoredNumbers:
    """int32 (n,) in a file. What is read is copied, so that no page of it counts as memory."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, values: Array) -> None:
        """Raises ModelError where the disk is full."""
        self._put(self._size, values)
        self._size += len(values)

    def part(self, first: int, end: int) -> Array:
        """Of these numbers, from 0 to the length, an array of its own."""
        found = np.empty(end - first, np.int32)
        read = os.preadv(self._file, [found.data], found.itemsize * first)
        if read != found.nbytes:
            raise InternalError(f"{read} bytes of {found.nbytes} at number {first} of a file")
        return found

    def replace(self, first: int, values: Array) -> None:
        """Other numbers in the place of as many from `first` on."""
        self._put(first, values)

    def _put(self, first: int, values: Array) -> None:
        own = np.ascontiguousarray(values, np.int32)
        left, place = own.data.cast("B"), own.itemsize * first
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
