"""Partition of the joined rows: the operations that it can answer, its answers and their sums.

Sums of floats depend on their order. Answers are added in pairs of neighbours, pairs of pairs and
so on, by the number of the partition. So the result has the same bits whoever adds up some of them
beforehand, and however many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.coordinator.rounds.chunk import Scores
from sqlfl.coordinator.rounds.chunks import Chunks
from sqlfl.coordinator.rounds.passes import MeasuredRows, Passes, PassResult
from sqlfl.models.losses import Loss
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


Reach: TypeAlias = tuple[int, int]
"""Rows of a slot that joined rows of a partition may come from: first and end."""


@dataclass(frozen=True, eq=False)
class Work:
    """Request to every partition."""

    name: str
    """Key of `OPERATIONS`."""
    scores: Scores
    along: tuple[Array, ...] = ()
    """Further values of the rows of every slot, in the last axis."""
    number: float = 0.0
    flag: bool = False
    rows: tuple[int, ...] = ()
    """Numbers of measured rows of all partitions, for each part."""

    def within(self, reaches: Sequence[Reach], base: Sequence[Reach]) -> Work:
        """Return the work with the values of the rows in `reaches` alone. The given values start at
        `base`.
        """
        if tuple(reaches) == tuple(base):
            return self

        def cut(values: tuple[Array, ...]) -> tuple[Array, ...]:
            parts = zip(values, reaches, base, strict=bool(values))
            return tuple(_cut(slot_values, reach, whole) for slot_values, reach, whole in parts)

        scores = Scores(cut(self.scores.slots), self.scores.constant)
        return replace(self, scores=scores, along=cut(self.along))


def _cut(values: Array, reach: Reach, base: Reach) -> Array:
    if reach == base:
        return values
    # Contiguous, because it is read row by row many times.
    return np.ascontiguousarray(values[..., reach[0] - base[0] : reach[1] - base[0]])


class Partition:
    """Consecutive joined rows.

    pieces : chunks, with the rows of slots counted from the start of their reach. drawn : numbers
    of the rows in samples, as `pieces` takes them; None for all rows.
    """

    def __init__(
        self,
        pieces: Chunks,
        loss: Loss,
        reaches: Sequence[Reach],
        drawn: Array | None,
        measured: MeasuredRows,
    ) -> None:
        self.passes = Passes(pieces, loss, drawn)
        self.loss = loss
        self.reaches = tuple(reaches)
        self.measured = measured
        self.dual: Array | None = None
        """λ of the rows: (d_c, b); None if it is 0."""

    def answer(self, work: Work, base: Sequence[Reach]) -> PartitionSums:
        """Return the answer to the work. `base`: the rows whose values `work` has."""
        return OPERATIONS[work.name](self, work.within(self.reaches, base))

    def segments(self, slots: Sequence[Array]) -> tuple[tuple[Segment, ...], ...]:
        """Return sums of the rows of every slot as segments; () without sums."""
        pairs = zip(self.reaches, slots, strict=bool(slots))
        return tuple((Segment(reach[0], values),) for reach, values in pairs)


def _look(partition: Partition, work: Work) -> PartitionSums:
    return _looked(partition, partition.passes.look(work.scores, sums=work.flag))


def _looked(partition: Partition, look: PassResult) -> PartitionSums:
    total = partition.passes.total
    bend = np.nan if look.bend is None else look.bend * total
    numbers = np.append([look.value * total, bend], look.total)
    tops = np.array([look.largest, look.highest])
    return PartitionSums(numbers, tops, partition.segments(look.slots))


def _curvatures(partition: Partition, work: Work) -> PartitionSums:
    products, counted = partition.passes.curvature_sums(work.scores, work.along, sampled=work.flag)
    return PartitionSums(np.append(products, counted))


def _square(partition: Partition, work: Work) -> PartitionSums:
    return PartitionSums(np.array(partition.passes.square_sum(work.scores, sampled=work.flag)))


def _mean_curvature(partition: Partition, work: Work) -> PartitionSums:
    return PartitionSums(np.array(partition.passes.mean_curvature_sum(work.scores)))


def _separates(partition: Partition, work: Work) -> PartitionSums:
    return PartitionSums(np.array([0.0 if partition.passes.separates(work.scores) else 1.0]))


def _sums(partition: Partition, work: Work) -> PartitionSums:
    return PartitionSums(slots=partition.segments(partition.passes.sums(work.scores.slots)))


def _slope_square(partition: Partition, work: Work) -> PartitionSums:
    return PartitionSums(np.array([partition.passes.slope_square_sum(work.scores)]))


def _slopes(partition: Partition, work: Work) -> PartitionSums:
    return PartitionSums(rows=(partition.passes.slopes(work.scores),))


def _rows(partition: Partition, work: Work) -> PartitionSums:
    return PartitionSums(rows=(partition.passes.rows(work.scores).T,))


def _dual(partition: Partition, work: Work) -> PartitionSums:
    partition.dual = partition.passes.slopes(work.scores)
    return PartitionSums()


def _proximal(partition: Partition, work: Work) -> PartitionSums:
    if partition.dual is None:
        partition.dual = np.zeros((partition.loss.outputs, partition.passes.total))
    return _looked(partition, partition.passes.proximal(work.scores, partition.dual, work.number))


def _headlines(partition: Partition, work: Work) -> PartitionSums:
    means = partition.measured.headlines(partition.passes, partition.loss, work.scores)
    return PartitionSums(
        np.array([number for mean in means for number in (mean.total, mean.weight)])
    )


def _held_loss(partition: Partition, work: Work) -> PartitionSums:
    return PartitionSums(
        np.array([partition.measured.held_loss(partition.passes, partition.loss, work.scores)])
    )


def _meters(partition: Partition, work: Work) -> PartitionSums:
    meters = partition.measured.meters(partition.passes, partition.loss, work.scores, work.rows)
    return PartitionSums(meters=tuple(meters))


OPERATIONS: Mapping[str, Callable[[Partition, Work], PartitionSums]] = {
    "look": _look,
    "curvatures": _curvatures,
    "square": _square,
    "mean_curvature": _mean_curvature,
    "separates": _separates,
    "sums": _sums,
    "slope_square": _slope_square,
    "slopes": _slopes,
    "rows": _rows,
    "dual": _dual,
    "proximal": _proximal,
    "headlines": _headlines,
    "held_loss": _held_loss,
    "meters": _meters,
}
