"""Executors with workers, over workers in memory."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pytest

from sqlfl.base.errors import Error
from sqlfl.coordinator.executors import division
from sqlfl.coordinator.executors.packing import WorkerFrame
from sqlfl.coordinator.executors.partition import Work
from sqlfl.coordinator.join.join_size import SlotCodes
from sqlfl.coordinator.join.key_join import KeyJoin
from sqlfl.models.losses import Logistic
from tests.coordinator.executors.conformance import ExecutorConformance, written
from tests.coordinator.executors.memory_workers import MemoryWorkers


@pytest.fixture(scope="module")
def make() -> Callable[[int], MemoryWorkers]:
    return MemoryWorkers


@pytest.fixture(scope="module")
def executor() -> Iterator[MemoryWorkers]:
    with closing(MemoryWorkers(2)) as executor:
        yield executor


class TestMemoryWorkers(ExecutorConformance):
    def test_a_worker_that_is_lost_ends_the_work(self, executor: MemoryWorkers) -> None:
        case = written(Logistic())
        with closing(case.rows(executor)) as rows:
            before = rows.look(case.scores)
            lost, other = executor.members
            lost.stop()
            threading.Timer(0.3, lost.lose).start()
            with pytest.raises(Error, match=r"worker 1 \(in memory\) is gone") as told:
                rows.look(case.scores)
            assert told.value.hint
            assert other.ended
            with pytest.raises(Error, match=r"is gone|was ended"):
                rows.look(case.scores)
        with closing(case.rows(executor)) as rows:  # others begin
            assert rows.look(case.scores).value == before.value
            assert not {*executor.members} & {lost, other}

    def test_a_worker_that_is_lost_while_it_joins_ends_the_join(
        self, executor: MemoryWorkers
    ) -> None:
        codes = SlotCodes(np.zeros(6, np.uint16), {0: np.arange(6, dtype=np.int32) % 3})
        sql = "SELECT slot_0.row AS slot_0, slot_1.row AS slot_1 FROM slot_0 JOIN slot_1 USING ({})"
        join = KeyJoin(sql.format("key_0"), ("slot_0", "slot_1"), {0: codes, 1: codes})
        before = executor.join(join, 0)
        assert before is not None
        lost, other = executor.members
        lost.stop()
        threading.Timer(0.3, lost.lose).start()
        with pytest.raises(Error, match=r"worker 1 \(in memory\) is gone"):
            executor.join(join, 0)
        assert other.ended
        again = executor.join(join, 0)  # others begin
        assert again is not None
        np.testing.assert_array_equal(again, before)

    def test_an_interrupt_ends_the_workers(self, executor: MemoryWorkers) -> None:
        case = written(Logistic())
        with closing(case.rows(executor)) as rows:
            rows.look(case.scores)
            stopped, other = executor.members
            stopped.stop()
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                rows.look(case.scores)
            assert stopped.ended
            assert other.ended

    def test_a_failure_at_a_worker_is_reported(self, executor: MemoryWorkers) -> None:
        case = written(Logistic())
        made = division.divided(case.source, case.loss, case.measured)
        with (
            closing(executor.hold(made)) as held,
            pytest.raises(Error, match=r"worker \d \(in memory\) failed: KeyError: 'gaze'"),
        ):
            held.ask(Work("gaze", case.scores))

    def test_few_rows_are_no_work_for_workers(
        self, executor: MemoryWorkers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(division, "ROWS", 1 << 17)
        executor.close()
        case = written(Logistic())
        made = division.divided(case.source, case.loss, case.measured)
        with closing(executor.hold(made)) as held:
            held.ask(Work("look", case.scores))
            assert not executor.members


def test_a_frame_keeps_its_arrays() -> None:
    """Of all kinds, empty ones among them. They may be changed, as a partition does."""
    arrays = [
        np.arange(6, dtype=np.int32).reshape(2, 3).T,
        np.zeros((0, 4)),
        np.array(2.5),
        np.array([True, False]),
    ]
    frame = WorkerFrame.from_bytes(WorkerFrame({"do": "hold"}, arrays).to_bytes())
    assert frame.facts == {"do": "hold"}
    for array, expected in zip(frame.arrays, arrays, strict=True):
        assert array.dtype == expected.dtype
        assert array.flags.writeable
        np.testing.assert_array_equal(array, expected)
