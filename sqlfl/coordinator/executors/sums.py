"""What partitions answer, and how their answers are added up.

Sums of floats depend on their order. Answers are added in pairs of neighbours, pairs of pairs and
so on, by the number of the partition: whoever adds up some of them beforehand, be they as many as
they may, the result has the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.models.metrics import Meter


@dataclass(frozen=True, eq=False)
class Segment:
    """Values of some rows of a slot, one after the other."""

    first: int
    values: Array
    """(c, rows)"""

    @property
    def end(self) -> int:
        return self.first + int(self.values.shape[1])


@dataclass(frozen=True, eq=False)
class PartitionSums:
    """What one partition answers, or some together."""

    numbers: Array = field(default_factory=lambda: np.zeros(0))
    """float64 (k,): added."""
    tops: Array = field(default_factory=lambda: np.zeros(0))
    """float64 (m,): the largest of each; NaN where one is."""
    slots: tuple[tuple[Segment, ...], ...] = ()
    """Of every slot, added where partitions have the same rows, else side by side."""
    rows: tuple[Array, ...] = ()
    """(c, b) each: of joined rows, one after the other."""
    meters: tuple[Meter, ...] = ()
    """Merged."""

    def plus(self, other: PartitionSums) -> PartitionSums:
        """With what the following partitions answered; neither is of more use then."""
        slots = zip(self.slots, other.slots, strict=True)
        for own, more in zip(self.meters, other.meters, strict=True):
            own.merge(more)
        return PartitionSums(
            self.numbers + other.numbers,
            np.maximum(self.tops, other.tops),
            tuple(_joined(before, after) for before, after in slots),
            self.rows + other.rows,
            self.meters,
        )

    def of_slots(self, sizes: Sequence[int]) -> tuple[Array, ...]:
        """Sums of the rows of all slots: (c, n_i) each."""
        return tuple(_whole(own, size) for own, size in zip(self.slots, sizes, strict=True))

    def of_rows(self) -> Array:
        """Of all joined rows: (c, N)."""
        return self.rows[0] if len(self.rows) == 1 else np.concatenate(self.rows, axis=1)


def _joined(before: tuple[Segment, ...], after: tuple[Segment, ...]) -> tuple[Segment, ...]:
    if len(before) == len(after) == 1:
        (a,), (b,) = before, after
        if (a.first, a.end) == (b.first, b.end):
            # what another process sent can only be read
            into = a.values if a.values.flags.writeable else None
            return (Segment(a.first, np.add(a.values, b.values, out=into)),)
    return before + after


def _whole(segments: tuple[Segment, ...], size: int) -> Array:
    if len(segments) == 1 and segments[0].values.shape[1] == size:
        return segments[0].values
    found = np.zeros((len(segments[0].values), size))
    for own in segments:
        found[:, own.first : own.end] += own.values
    return found


@dataclass(frozen=True, eq=False)
class Node:
    """The answers of some neighbours together."""

    first: int
    """A multiple of `count`, which is a power of 2."""
    count: int
    sums: PartitionSums


class PartitionTally:
    """Adds up answers, in the order of the partitions."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        """What those so far have come to: no two of them are a pair."""

    def add(self, node: Node) -> None:
        while self.nodes and _are_pair(self.nodes[-1], node):
            before = self.nodes.pop()
            node = Node(before.first, 2 * node.count, before.sums.plus(node.sums))
        self.nodes.append(node)

    def total(self) -> PartitionSums:
        """Of all partitions."""
        found = self.nodes[-1].sums
        for node in reversed(self.nodes[:-1]):
            found = node.sums.plus(found)
        return found


def _are_pair(left: Node, right: Node) -> bool:
    together = left.first + left.count == right.first
    return together and left.count == right.count and left.first % (2 * left.count) == 0
