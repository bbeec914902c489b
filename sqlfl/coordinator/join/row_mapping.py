"""Which row of every slot each joined row comes from: in arrays, in files, or found each time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Generic, Protocol, TypeVar

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.interrupts import checkpoint
from sqlfl.coordinator.join.scratch import StoredNumbers

Numbers = TypeVar("Numbers", bound=Sized)

CHUNK = 1 << 16
"""Joined rows that are taken at once: few enough for the processor's cache."""


class RowMapping(Protocol):
    """The joined rows of a query, in an order of their own that is the same each time."""

    @property
    def slots(self) -> tuple[int, ...]:
        """Numbers of the slots that joined rows are told by."""
        ...

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each of them."""
        ...

    @property
    def total(self) -> int:
        """N, joined rows."""
        ...

    def counts(self, slot: int) -> Array:
        """cnt of every row of a slot, by its number: integers (n_i,) of any type."""
        ...

    def chunks(self, size: int = CHUNK) -> Iterator[tuple[Array, ...]]:
        """Of up to `size` joined rows after another, the row of each of `slots`: integers (n,)."""
        ...

    def renumbered(self, active: Mapping[int, Array]) -> RowMapping:
        """With slots that have only their `active` rows left, among them all that are joined; in
        the same arrays, or files: these rows here are gone then."""
        ...

    def written(self) -> Mapping[int, Array]:
        """Slot -> int32 (N,): its row of each joined row. Once written they stay."""
        ...


class _ByArrays(Generic[Numbers]):
    """Slot -> the row that each joined row comes from, and how many rows the slot has."""

    def __init__(self, rows: Mapping[int, Numbers], sizes: Mapping[int, int]) -> None:
        self._rows = dict(rows)
        self._sizes = dict(sizes)
        self.slots = tuple(rows)
        self.total = len(next(iter(rows.values())))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self._sizes[slot] for slot in self.slots)


class WrittenMapping(_ByArrays[Array]):
    """Joined rows as an array of each slot: int32 (N,)."""

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
    """Joined rows in files, an array of each slot."""

    def counts(self, slot: int) -> Array:
        found = np.zeros(self._sizes[slot], np.int64)
        for start in range(0, self.total, CHUNK):
            np.add.at(found, self.part(slot, start, min(start + CHUNK, self.total)), 1)
            checkpoint()
        return found

    def part(self, slot: int, first: int, end: int) -> Array:
        """int32 (end − first,): the slot's rows of these joined rows."""
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
                own = self.part(slot, start, min(start + CHUNK, self.total))
                self._rows[slot].replace(start, place[own])
                checkpoint()
        sizes = self._sizes | {slot: len(kept) for slot, kept in active.items()}
        return StoredMapping(self._rows, sizes)

    def written(self) -> Mapping[int, Array]:
        return {slot: self.part(slot, 0, self.total) for slot in self.slots}


def positions(active: Array, size: int) -> Array:
    """int32 (size,): where each of some rows, ascending, stands among them; 0 for others."""
    place = np.zeros(size, np.int32)
    place[active] = np.arange(len(active), dtype=np.int32)
    return place
