"""Interface of executors, which compute on the partitions of joined rows."""

from __future__ import annotations

from typing import Protocol

from sqlfl.base.arrays import Array
from sqlfl.coordinator.executors.division import Division
from sqlfl.coordinator.executors.partition import PartitionSums, Work
from sqlfl.coordinator.join.key_join import KeyJoin


class HeldPartitions(Protocol):
    """Partitions of one problem, at the executor that computes on them."""

    def ask(self, work: Work) -> PartitionSums:
        """Return the answers of all partitions, added up by a `PartitionTally`.

        Partitions keep λ as the work has left it. Ctrl-C ends the work. After a failure the held
        partitions are unusable. Raise ModelError if a worker is gone.
        """
        ...

    def close(self) -> None:
        """Forget the partitions. It may be called twice."""
        ...


class Executor(Protocol):
    """Executor of the partitions of problems. Several threads may use it for several problems at
    once.
    """

    def hold(self, division: Division) -> HeldPartitions:
        """Take the partitions. Raise Error if that is impossible."""
        ...

    def join(self, join: KeyJoin, slot: int) -> list[Array] | None:
        """Return the joined rows, made by parts of the `slot`. Return None if the coordinator must
        make them.

        Raise Error if a worker is gone, or if its memory does not suffice.
        """
        ...

    def close(self) -> None:
        """Release everything that it holds, including workers. It may be used again."""
        ...
