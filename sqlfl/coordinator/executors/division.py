"""How the joined rows of a problem are divided into partitions.

A partition is a range of joined rows, or of blocks where these are not written down. Where its
joined rows come from neighbouring rows of a slot, as those of the largest slot mostly do, it has to
do with their values alone; others it shares with all partitions, and their sums with it. The number
of partitions depends on the join alone, never on who computes: so sums have the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.interrupts import checkpoint
from sqlfl.coordinator.executors.partition import Partition, Reach
from sqlfl.coordinator.join.mapping import SlotMapping, TableMapping
from sqlfl.coordinator.rounds.chunks import (
    Chunks,
    FoundPieces,
    ProductPieces,
    StoredPieces,
    WrittenPieces,
)
from sqlfl.coordinator.rounds.measured import EVERY, MeasuredRows
from sqlfl.coordinator.rounds.passes import sampled
from sqlfl.models.losses import Loss

ROWS = 1 << 17
"""Joined rows of a partition, where there are many."""
LEAST = 1 << 16
"""At least: of fewer, to begin and to add up costs what it spares."""
FEW = 4
"""Partitions up to which they are smaller than `ROWS`."""
SHARED = 4
"""Joined rows at least, of a partition, for each row of a slot that all partitions share: to add up
what these answer is little beside their passes then."""
MOST = 64
CHUNK = 1 << 20


@dataclass(frozen=True, eq=False)
class Division:
    """All joined rows of a problem, by partition."""

    whole: Chunks
    pieces: tuple[Chunks, ...]
    """Of each partition, with the rows of slots counted from the beginning of their reach."""
    reaches: tuple[tuple[Reach, ...], ...]
    """Of each partition, by slot."""
    drawn: tuple[Array | None, ...]
    """Of each partition, as `Partition` has it."""
    measured: tuple[MeasuredRows, ...]
    """Of each partition."""
    loss: Loss
    parts: int
    """Partitions that were asked for: of blocks there may be fewer."""

    @property
    def count(self) -> int:
        return len(self.pieces)

    def partition(self, number: int) -> Partition:
        own = self.pieces[number], self.loss, self.reaches[number]
        return Partition(*own, self.drawn[number], self.measured[number])

    def reach(self, first: int, end: int) -> tuple[Reach, ...]:
        """Of some partitions together, by slot."""
        by_slot = zip(*self.reaches[first:end], strict=True)
        return tuple((min(a for a, _ in own), max(b for _, b in own)) for own in by_slot)


def divided(source: Chunks, loss: Loss, measured: MeasuredRows) -> Division:
    """The joined rows of `source`; what is `measured` of them."""
    if isinstance(source, WrittenPieces):
        return _written(source, loss, measured)
    if not isinstance(source, FoundPieces | ProductPieces | StoredPieces):
        return _one(source, loss, measured)
    parts = _parts(source.total, loss.outputs * sum(source.sizes))
    if parts == 1:
        return _one(source, loss, measured)
    pieces: tuple[Chunks, ...] = tuple(source.cut(parts))
    count = len(pieces)
    reach = tuple((0, size) for size in source.sizes)
    # in the order of the mapping: any of them may be any partition's
    every = sampled(source.total)
    drawn = (None,) * count if every is None else tuple(np.array_split(every, count))
    return Division(source, pieces, (reach,) * count, drawn, (EVERY,) * count, loss, parts)


def _one(source: Chunks, loss: Loss, measured: MeasuredRows) -> Division:
    reach = tuple((0, size) for size in source.sizes)
    return Division(source, (source,), (reach,), (sampled(source.total),), (measured,), loss, 1)


def _written(source: WrittenPieces, loss: Loss, measured: MeasuredRows) -> Division:
    if _parts(source.total, 0) == 1:
        return _one(source, loss, measured)
    slots = source.mapping.slots
    ascending = [_is_ascending(slot) for slot in slots]
    shared = sum(slot.size for slot, own in zip(slots, ascending, strict=True) if not own)
    parts = _parts(source.total, loss.outputs * shared)
    if parts == 1:
        return _one(source, loss, measured)
    bounds = [source.total * number // parts for number in range(parts + 1)]
    ranges = [slice(a, b) for a, b in pairwise(bounds)]
    reaches = [
        tuple(
            _reach(slot, rows) if own else (0, slot.size)
            for slot, own in zip(slots, ascending, strict=True)
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
        tuple(_part(source, *own) for own in zip(ranges, reaches, strict=True)),
        tuple(reaches),
        tuple(drawn),
        tuple(measured.cut(rows) for rows in ranges),
        loss,
        parts,
    )


def _parts(total: int, shared: int) -> int:
    """The number of partitions, where they share the sums of so many numbers."""
    most = max(total // ROWS, min(FEW, total // LEAST))
    return max(1, min(MOST, most, total // max(1, SHARED * shared)))


def _is_ascending(slot: SlotMapping) -> bool:
    """Joined rows come in the order of the slot's rows."""
    rows = slot.rows
    for start in range(0, len(rows) - 1, CHUNK):
        own = rows[start : start + CHUNK + 1]
        if np.any(own[1:] < own[:-1]):
            return False
        checkpoint()
    return True


def _reach(slot: SlotMapping, rows: slice) -> Reach:
    return int(slot.rows[rows.start]), int(slot.rows[rows.stop - 1]) + 1


def _part(source: WrittenPieces, rows: slice, reaches: Sequence[Reach]) -> WrittenPieces:
    own = []
    for slot, (first, _) in zip(source.mapping.slots, reaches, strict=True):
        if slot.identity:
            own.append(slot.rows[: rows.stop - rows.start])
        else:
            part = slot.rows[rows]
            own.append(part - np.int32(first) if first else part)
    mapping = TableMapping(own, [end - first for first, end in reaches])
    shares = None if source.shares is None else source.shares[rows]
    return WrittenPieces(mapping, source.targets[rows], shares)
