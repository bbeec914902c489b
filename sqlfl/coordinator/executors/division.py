"""Division of the joined rows of a problem into partitions.

A partition is a range of joined rows, or of blocks if the rows are not written down. Often its
joined rows come from neighbouring rows of a slot, as those of the largest slot mostly do. Then the
partition needs only the values of these rows. All partitions share the other values and the sums
over them.

The number of partitions depends on the join alone, never on the executor. So sums have the same
bits everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.interrupts import checkpoint
from sqlfl.coordinator.executors.partition import Partition, Reach
from sqlfl.coordinator.join.table_mapping import SlotMapping, TableMapping
from sqlfl.coordinator.rounds.chunks import (
    Chunks,
    FoundChunks,
    ProductChunks,
    StoredChunks,
    WrittenChunks,
)
from sqlfl.coordinator.rounds.passes import EVERY, MeasuredRows, sampled
from sqlfl.models.losses import Loss

ROWS = 1 << 17
"""Joined rows of a partition in a large join."""
MIN_PARTITION_ROWS = 1 << 16
"""Minimum number of joined rows of a partition. For fewer, starting and adding up costs as much as
it saves.
"""
FEW = 4
"""Number of partitions up to which they are smaller than `ROWS`."""
SHARED = 4
"""Minimum ratio of a partition's joined rows to the slot rows that all partitions share. Adding up
the answers then costs little compared with the passes.
"""
MAX_PARTITIONS = 64
CHUNK = 1 << 20


@dataclass(frozen=True, eq=False)
class Division:
    """All joined rows of a problem, by partition."""

    whole: Chunks
    pieces: tuple[Chunks, ...]
    """Chunks of each partition, with the rows of slots counted from the start of their reach."""
    reaches: tuple[tuple[Reach, ...], ...]
    """Reaches of each partition, by slot."""
    drawn: tuple[Array | None, ...]
    """Sampled rows of each partition, as `Partition` has them."""
    measured: tuple[MeasuredRows, ...]
    """Measured rows of each partition."""
    loss: Loss
    parts: int
    """Number of partitions that were asked for. Blocks may give fewer."""

    @property
    def count(self) -> int:
        return len(self.pieces)

    def partition(self, number: int) -> Partition:
        parts = self.pieces[number], self.loss, self.reaches[number]
        return Partition(*parts, self.drawn[number], self.measured[number])

    def reach(self, first: int, end: int) -> tuple[Reach, ...]:
        """Return the reach of the partitions from `first` to `end` together, by slot."""
        by_slot = zip(*self.reaches[first:end], strict=True)
        return tuple(
            (min(a for a, _ in reaches), max(b for _, b in reaches)) for reaches in by_slot
        )


def divided(source: Chunks, loss: Loss, measured: MeasuredRows) -> Division:
    """Return the joined rows of `source` and their `measured` rows by partition."""
    if isinstance(source, WrittenChunks):
        return _written(source, loss, measured)
    if not isinstance(source, FoundChunks | ProductChunks | StoredChunks):
        return _one(source, loss, measured)
    parts = _parts(source.total, loss.outputs * sum(source.sizes))
    if parts == 1:
        return _one(source, loss, measured)
    pieces: tuple[Chunks, ...] = tuple(source.cut(parts))
    count = len(pieces)
    reach = tuple((0, size) for size in source.sizes)
    # In the order of the mapping: any of them may lie in any partition.
    every = sampled(source.total)
    drawn = (None,) * count if every is None else tuple(np.array_split(every, count))
    return Division(source, pieces, (reach,) * count, drawn, (EVERY,) * count, loss, parts)


def _one(source: Chunks, loss: Loss, measured: MeasuredRows) -> Division:
    reach = tuple((0, size) for size in source.sizes)
    return Division(source, (source,), (reach,), (sampled(source.total),), (measured,), loss, 1)


def _written(source: WrittenChunks, loss: Loss, measured: MeasuredRows) -> Division:
    if _parts(source.total, 0) == 1:
        return _one(source, loss, measured)
    slots = source.mapping.slots
    ascending = [_is_ascending(slot) for slot in slots]
    shared = sum(
        slot.size for slot, arguments in zip(slots, ascending, strict=True) if not arguments
    )
    parts = _parts(source.total, loss.outputs * shared)
    if parts == 1:
        return _one(source, loss, measured)
    bounds = [source.total * number // parts for number in range(parts + 1)]
    ranges = [slice(a, b) for a, b in pairwise(bounds)]
    reaches = [
        tuple(
            _reach(slot, rows) if arguments else (0, slot.size)
            for slot, arguments in zip(slots, ascending, strict=True)
        )
        for rows in ranges
    ]
    drawn: list[Array | None] = [None] * parts
    every = sampled(source.total)
    if every is not None:
        places = np.searchsorted(every, bounds)
        drawn = [every[places[n] : places[n + 1]] - bounds[n] for n in range(parts)]
    return Division(
        source,
        tuple(_part(source, *arguments) for arguments in zip(ranges, reaches, strict=True)),
        tuple(reaches),
        tuple(drawn),
        tuple(measured.cut(rows) for rows in ranges),
        loss,
        parts,
    )


def _parts(total: int, shared: int) -> int:
    """Return the number of partitions if they share the sums of `shared` numbers."""
    most = max(total // ROWS, min(FEW, total // MIN_PARTITION_ROWS))
    return max(1, min(MAX_PARTITIONS, most, total // max(1, SHARED * shared)))


def _is_ascending(slot: SlotMapping) -> bool:
    """Return True if joined rows come in the order of the slot's rows."""
    rows = slot.rows
    for start in range(0, len(rows) - 1, CHUNK):
        part = rows[start : start + CHUNK + 1]
        if np.any(part[1:] < part[:-1]):
            return False
        checkpoint()
    return True


def _reach(slot: SlotMapping, rows: slice) -> Reach:
    return int(slot.rows[rows.start]), int(slot.rows[rows.stop - 1]) + 1


def _part(source: WrittenChunks, rows: slice, reaches: Sequence[Reach]) -> WrittenChunks:
    slot_rows = []
    for slot, (first, _) in zip(source.mapping.slots, reaches, strict=True):
        if slot.identity:
            slot_rows.append(slot.rows[: rows.stop - rows.start])
        else:
            part = slot.rows[rows]
            slot_rows.append(part - np.int32(first) if first else part)
    mapping = TableMapping(slot_rows, [end - first for first, end in reaches])
    shares = None if source.shares is None else source.shares[rows]
    return WrittenChunks(mapping, source.targets[rows], shares)
