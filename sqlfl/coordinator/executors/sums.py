"""Answers of partitions, and their sums.

Sums of floats depend on their order. Answers are added in pairs of neighbours, pairs of pairs and
so on, by the number of the partition. So the result has the same bits whoever adds up some of them
beforehand, and however many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.models.metrics import Meter


@dataclass(frozen=True, eq=False)
class Segment:
    """Values of consecutive rows of a slot."""

    first: int
    values: Array
    """(c, rows)"""

    @property
    def end(self) -> int:
        return self.first + int(self.values.shape[1])


@dataclass(frozen=True, eq=False)
class PartitionSums:
    """Answer of one partition, or of some together."""

    numbers: Array = field(default_factory=lambda: np.zeros(0))
    """float64 (k,): they are added."""
    tops: Array = field(default_factory=lambda: np.zeros(0))
    """float64 (m,): the largest of each; NaN if one of them is NaN."""
    slots: tuple[tuple[Segment, ...], ...] = ()
    """Sums of every slot. They are added if partitions have the same rows; otherwise they stand
    side by side.
    """
    rows: tuple[Array, ...] = ()
    """(c, b) each: values of joined rows, one partition after the other."""
    meters: tuple[Meter, ...] = ()
    """Meters, which are merged."""

    def plus(self, other: PartitionSums) -> PartitionSums:
        """Return the sums with the answers of the following partitions. Neither operand is usable
        afterwards.
        """
        slots = zip(self.slots, other.slots, strict=True)
        for meter, more in zip(self.meters, other.meters, strict=True):
            meter.merge(more)
        return PartitionSums(
            self.numbers + other.numbers,
            np.maximum(self.tops, other.tops),
            tuple(_joined(before, after) for before, after in slots),
            self.rows + other.rows,
            self.meters,
        )

    def of_slots(self, sizes: Sequence[int]) -> tuple[Array, ...]:
        """Return sums of the rows of all slots: (c, n_i) each."""
        return tuple(
            _whole(segments, size) for segments, size in zip(self.slots, sizes, strict=True)
        )

    def of_rows(self) -> Array:
        """Return values of all joined rows: (c, N)."""
        return self.rows[0] if len(self.rows) == 1 else np.concatenate(self.rows, axis=1)


def _joined(before: tuple[Segment, ...], after: tuple[Segment, ...]) -> tuple[Segment, ...]:
    if len(before) == len(after) == 1:
        (a,), (b,) = before, after
        if (a.first, a.end) == (b.first, b.end):
            # arrays from another process are read-only
            into = a.values if a.values.flags.writeable else None
            return (Segment(a.first, np.add(a.values, b.values, out=into)),)
    return before + after


def _whole(segments: tuple[Segment, ...], size: int) -> Array:
    if len(segments) == 1 and segments[0].values.shape[1] == size:
        return segments[0].values
    total = np.zeros((len(segments[0].values), size))
    for segment in segments:
        total[:, segment.first : segment.end] += segment.values
    return total


@dataclass(frozen=True, eq=False)
class Node:
    """Answers of some neighbouring partitions together."""

    first: int
    """Number of the first partition: a multiple of `count`, which is a power of 2."""
    count: int
    sums: PartitionSums


class PartitionTally:
    """Sum of answers, in the order of the partitions."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        """Sums so far. No two of them form a pair."""

    def add(self, node: Node) -> None:
        while self.nodes and _are_pair(self.nodes[-1], node):
            before = self.nodes.pop()
            node = Node(before.first, 2 * node.count, before.sums.plus(node.sums))
        self.nodes.append(node)

    def total(self) -> PartitionSums:
        """Return the sums of all partitions."""
        total = self.nodes[-1].sums
        for node in reversed(self.nodes[:-1]):
            total = node.sums.plus(total)
        return total


def _are_pair(left: Node, right: Node) -> bool:
    together = left.first + left.count == right.first
    return together and left.count == right.count and left.first % (2 * left.count) == 0
