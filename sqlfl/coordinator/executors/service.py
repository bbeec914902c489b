"""Worker's side: it holds partitions of problems and answers requests about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sqlfl.base.errors import Error
from sqlfl.coordinator.executors.division import Division
from sqlfl.coordinator.executors.frames import WorkerFrame
from sqlfl.coordinator.executors.packing import (
    frame_of_answers,
    frame_of_join,
    frame_of_partitions,
    frame_of_work,
    join_of,
    partitions_of,
    work_of,
)
from sqlfl.coordinator.executors.partition import Partition, Reach, Work
from sqlfl.coordinator.executors.sums import Node, PartitionTally
from sqlfl.coordinator.join.key_join import KeyJoin

HOLD, ASK, FORGET, JOIN = "hold", "ask", "forget", "join"


# -- requests --------------------------------------------------------------------------------------


def to_hold(held: int, division: Division, first: int, end: int) -> WorkerFrame:
    """Return a request to hold the partitions from `first` to `end`, as problem `held`."""
    return _request(HOLD, held, frame_of_partitions(division, first, end))


def to_ask(held: int, work: Work) -> WorkerFrame:
    return _request(ASK, held, frame_of_work(work))


def to_forget(held: int) -> WorkerFrame:
    return _request(FORGET, held, WorkerFrame({}))


def to_join(join: KeyJoin) -> WorkerFrame:
    return _request(JOIN, None, frame_of_join(join))


def checked(reply: WorkerFrame, worker: str) -> WorkerFrame:
    """Return the reply. Raise Error if the worker failed."""
    if "failed" in reply.facts:
        raise Error(f"{worker} failed: {reply.facts['failed']}")
    return reply


def _request(do: str, held: int | None, content: WorkerFrame) -> WorkerFrame:
    return WorkerFrame({"do": do, "held": held, "content": content.facts}, content.arrays)


# -- at the worker ---------------------------------------------------------------------------------


class WorkerService:
    """Service of one worker."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[int, list[Partition], tuple[Reach, ...]]] = {}

    def answer(self, request: WorkerFrame) -> WorkerFrame:
        """Return the reply to a request. A failure is reported in it, not raised."""
        held = request.facts["held"]
        content = WorkerFrame(request.facts["content"], request.arrays)
        try:
            # nobody sees a warning here
            with np.errstate(all="ignore"):
                return _DOES[request.facts["do"]](self, held, content)
        except Exception as error:
            return WorkerFrame({"failed": f"{type(error).__name__}: {error}"})

    def _hold(self, held: int, frame: WorkerFrame) -> WorkerFrame:
        self._held[held] = partitions_of(frame)
        return frame_of_answers([])

    def _forget(self, held: int, frame: WorkerFrame) -> WorkerFrame:
        del self._held[held]
        return frame_of_answers([])

    def _join(self, held: None, frame: WorkerFrame) -> WorkerFrame:
        return WorkerFrame({}, join_of(frame).rows())

    def _ask(self, held: int, frame: WorkerFrame) -> WorkerFrame:
        first, partitions, base = self._held[held]
        work, tally = work_of(frame), PartitionTally()
        for number, partition in enumerate(partitions, first):
            tally.add(Node(number, 1, partition.answer(work, base)))
        return frame_of_answers(tally.nodes)


_DOES: Mapping[str, Callable[[WorkerService, Any, WorkerFrame], WorkerFrame]] = {
    HOLD: WorkerService._hold,
    ASK: WorkerService._ask,
    FORGET: WorkerService._forget,
    JOIN: WorkerService._join,
}
