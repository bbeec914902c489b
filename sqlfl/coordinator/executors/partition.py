"""Partition of the joined rows, and the operations that a partition can answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.coordinator.executors.sums import PartitionSums, Segment
from sqlfl.coordinator.rounds.chunks import Chunks
from sqlfl.coordinator.rounds.measured import MeasuredRows
from sqlfl.coordinator.rounds.passes import Passes, PassResult
from sqlfl.coordinator.rounds.scores import Scores
from sqlfl.models.losses import Loss

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
