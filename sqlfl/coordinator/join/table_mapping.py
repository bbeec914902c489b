"""Table mapping: the row of every slot from which each joined row comes (p_i)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError

CHUNK = 1 << 15
"""Joined rows that are added up at once. So many fit the processor's cache."""


@dataclass(frozen=True, eq=False)
class SlotMapping:
    """p_i of one slot; as a matrix, the 0/1 incidence A_i (N × n_i)."""

    rows: Array
    """int32 (N,): the slot's row of each joined row."""
    size: int
    """n_i, the number of rows of the slot."""

    def part(self, values: Array, joined: slice) -> Array:
        """Return A_i h of some joined rows: (n_i, c) -> (b, c), of the type of `values`."""
        self._check(values, self.size)
        return values[joined] if self.identity else np.take(values, self.rows[joined], axis=0)

    def scatter(self, values: Array) -> Array:
        """Return A_iᵀ g: (N, c) -> (n_i, c) float64. The sums over G_i(r) run in the order of
        joined rows.
        """
        self._check(values, len(self.rows))
        if self.identity:
            return np.array(values, np.float64)
        if values.shape[1] == 1:
            flat = np.ascontiguousarray(values[:, 0], np.float64)
            sums = np.bincount(self.rows, flat, self.size)  # integers if there are no joined rows
            return sums.astype(np.float64, copy=False)[:, None]
        product: Array = self._transposed @ np.asarray(values, np.float64)
        return product

    @cached_property
    def counts(self) -> Array:
        """Return cnt: int64 (n_i,)."""
        return np.bincount(self.rows, minlength=self.size)

    @cached_property
    def identity(self) -> bool:
        """Return True if each joined row j comes from row j."""
        n = len(self.rows)
        return n == self.size and bool(np.array_equal(self.rows, np.arange(n, dtype=np.int32)))

    @cached_property
    def _transposed(self) -> sparse.csr_array:
        joined: Array = np.argsort(self.rows, kind="stable").astype(np.int32)
        bounds: Array = np.append(0, np.cumsum(self.counts)).astype(np.int32)
        shape = (self.size, len(self.rows))
        return sparse.csr_array((np.ones(len(joined)), joined, bounds), shape=shape)

    def _check(self, values: Array, rows: int) -> None:
        if values.ndim != 2 or len(values) != rows:
            raise InternalError(f"expected an array of {rows} rows, got shape {values.shape}")


@dataclass(frozen=True, eq=False)
class Subset:
    """Some joined rows, and the rows of every slot that occur in them."""

    mapping: TableMapping
    """Mapping over the subset: its sizes are the numbers of unique rows."""
    rows: tuple[Array, ...]
    """int32 (b_i,) for each slot: its unique rows, ascending."""


class TableMapping:
    """p_i for several slots over the same N joined rows.

    `rows` has an integer array (N,) for each slot, with values in [0, size). Raise InternalError if
    lengths differ or a row is out of range.
    """

    def __init__(self, rows: Sequence[Array], sizes: Sequence[int]) -> None:
        if len(rows) != len(sizes):
            raise InternalError(f"{len(rows)} mappings for {len(sizes)} sizes")
        self.total = len(rows[0]) if rows else 0
        slots = []
        for number, (row, size) in enumerate(zip(rows, sizes, strict=True)):
            if row.ndim != 1 or len(row) != self.total or row.dtype.kind not in "iu":
                raise InternalError(
                    f"mapping {number} must be {self.total} integers, got {row.dtype} {row.shape}"
                )
            if self.total and not (int(row.min()) >= 0 and int(row.max()) < size):
                raise InternalError(f"mapping {number} has rows outside [0, {size})")
            if max(size, self.total) >= 2**31:
                raise InternalError(f"mapping {number} has more rows than int32 holds")
            slots.append(SlotMapping(row.astype(np.int32, copy=False), int(size)))
        self._slots = tuple(slots)

    @property
    def slots(self) -> tuple[SlotMapping, ...]:
        return self._slots

    def __len__(self) -> int:
        return len(self.slots)

    def beside(self, slot: SlotMapping) -> TableMapping:
        """Return the mapping with one more slot, behind the others."""
        rows = [member.rows for member in self.slots]
        return TableMapping([*rows, slot.rows], [*self.sizes, slot.size])

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(slot.size for slot in self.slots)

    def counts(self, slot: int) -> Array:
        """Return cnt of every row of `slot`: int64 (n_i,)."""
        return self.slots[slot].counts

    def scatter(self, slot: int, values: Array) -> Array:
        """Return A_iᵀ g: (N, c) -> (n_i, c)."""
        return self.slots[slot].scatter(values)

    def gather_sum(self, values: Sequence[Array]) -> Array:
        """Return Σ_i A_i h_i: one (n_i, c) for each slot -> (N, c) float64."""
        if len(values) != len(self.slots):
            raise InternalError(f"{len(values)} vectors for {len(self.slots)} slots")
        total = np.empty((self.total, values[0].shape[1]))
        for start in range(0, self.total, CHUNK):
            rows = slice(start, start + CHUNK)
            part = total[rows]
            part[:] = self.slots[0].part(values[0], rows)
            for slot, value in zip(self.slots[1:], values[1:], strict=True):
                part += slot.part(value, rows)
        return total

    def restricted(self, joined: Array) -> TableMapping:
        """Return the mapping of the joined rows `joined` (b,), over all rows of the slots."""
        if len(joined) == self.total and np.array_equal(joined, np.arange(self.total)):
            return self
        return TableMapping([slot.rows.take(joined) for slot in self.slots], self.sizes)

    def compacted(self) -> Subset:
        """Return the mapping over the slot rows that occur."""
        rows, inner = [], []
        for slot in self.slots:
            # numpy indexes by its own width of integers in a third of the time
            picked = slot.rows.astype(np.intp)
            if len(picked) * 8 < slot.size:
                numbered: tuple[Array, Array] = np.unique(picked, return_inverse=True)
                unique, position = numbered
            else:
                present = np.zeros(slot.size, bool)
                present[picked] = True
                unique = np.flatnonzero(present)
                position = (np.cumsum(present, dtype=np.int32) - np.int32(1)).take(picked)
            rows.append(unique.astype(np.int32))
            inner.append(position.astype(np.int32, copy=False))
        return Subset(TableMapping(inner, [len(unique) for unique in rows]), tuple(rows))


class CountedMapping(TableMapping):
    """Mapping without an array of joined rows: their number, and the number of occurrences of each
    slot's rows.

    A request for single joined rows raises InternalError.
    """

    def __init__(self, total: int, counts: Sequence[Array]) -> None:
        self.total = total
        self._counts = tuple(counts)

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(counts) for counts in self._counts)

    def counts(self, slot: int) -> Array:
        return self._counts[slot]

    @property
    def slots(self) -> tuple[SlotMapping, ...]:
        raise InternalError("these joined rows are not written down")
