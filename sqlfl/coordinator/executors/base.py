"""What computes on the partitions of joined rows."""

from __future__ import annotations

from typing import Protocol

from sqlfl.base.arrays import Array
from sqlfl.coordinator.executors.division import Division
from sqlfl.coordinator.executors.partition import Work
from sqlfl.coordinator.executors.sums import PartitionSums
from sqlfl.coordinator.join.key_join import KeyJoin


class HeldPartitions(Protocol):
    """The partitions of one problem, where they are computed on."""

    def ask(self, work: Work) -> PartitionSums:
        """What all partitions answer, added up by a `Tally`.

        Partitions keep λ as the work has left it. Ctrl-C ends it; where it fails, what is held is
        of no more use. Raises ModelError where a worker is gone.
        """
        ...

    def close(self) -> None:
        """Forget the partitions. It may be called twice."""
        ...


class Executor(Protocol):
    """Takes the partitions of problems; those of several at once, from several threads."""

    def hold(self, division: Division) -> HeldPartitions:
        """Raises Error where it cannot take them."""
        ...

    def join(self, join: KeyJoin, slot: int) -> list[Array] | None:
        """The joined rows, made by parts of the `slot`; None where the coordinator is to make them.

        Raises Error where a worker is gone, or its memory does not suffice.
        """
        ...

    def close(self) -> None:
        """Let go of all that it holds, workers among it. It may be used again."""
        ...
