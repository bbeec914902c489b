"""Worker processes on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pytest

from sqlfl.base.errors import Error
from sqlfl.coordinator.executors import division
from sqlfl.coordinator.executors.partition import Work
from sqlfl.coordinator.executors.processes import Processes, ProcessWorker
from sqlfl.coordinator.join.join_size import SlotCodes
from sqlfl.coordinator.join.key_join import KeyJoin
from sqlfl.models.losses import Logistic
from tests.coordinator.executors.conformance import ExecutorConformance, written


@pytest.fixture(scope="module")
def make() -> Callable[[int], Processes]:
    return Processes


@pytest.fixture(scope="module")
def executor() -> Iterator[Processes]:
    with closing(Processes(2)) as executor:
        yield executor


class TestProcesses(ExecutorConformance):
    def test_a_worker_that_is_killed_ends_the_work(self, executor: Processes) -> None:
        case = written(Logistic())
        with closing(case.rows(executor)) as rows:
            before = rows.look(case.scores)
            killed, other = processes(executor)
            os.kill(killed.pid, signal.SIGSTOP)  # it does not answer, as if it had much to do
            threading.Timer(0.3, os.kill, (killed.pid, signal.SIGKILL)).start()
            with pytest.raises(Error, match=rf"worker 1 \(process {killed.pid}\) is gone") as told:
                rows.look(case.scores)
            assert "SIGKILL" in str(told.value)
            assert told.value.hint
            assert other.wait(10) is not None
            with pytest.raises(Error, match="was ended"):
                rows.look(case.scores)
        with closing(case.rows(executor)) as rows:  # others begin
            assert rows.look(case.scores).value == before.value
            assert not {own.pid for own in processes(executor)} & {killed.pid, other.pid}

    def test_a_worker_that_is_killed_while_it_joins_ends_the_join(
        self, executor: Processes
    ) -> None:
        own = SlotCodes(np.zeros(6, np.uint16), {0: np.arange(6, dtype=np.int32) % 3})
        sql = "SELECT slot_0.row AS slot_0, slot_1.row AS slot_1 FROM slot_0 JOIN slot_1 USING ({})"
        join = KeyJoin(sql.format("key_0"), ("slot_0", "slot_1"), {0: own, 1: own})
        before = executor.join(join, 0)
        assert before is not None
        killed, other = processes(executor)
        os.kill(killed.pid, signal.SIGSTOP)
        threading.Timer(0.3, os.kill, (killed.pid, signal.SIGKILL)).start()
        with pytest.raises(Error, match=rf"worker 1 \(process {killed.pid}\) is gone"):
            executor.join(join, 0)
        assert other.wait(10) is not None
        again = executor.join(join, 0)  # others begin
        assert again is not None
        np.testing.assert_array_equal(again, before)

    def test_an_interrupt_ends_the_workers(self, executor: Processes) -> None:
        case = written(Logistic())
        with closing(case.rows(executor)) as rows:
            rows.look(case.scores)
            stopped, other = processes(executor)
            os.kill(stopped.pid, signal.SIGSTOP)
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                rows.look(case.scores)
            assert {stopped.wait(10), other.wait(10)} == {-signal.SIGKILL}

    def test_what_fails_at_a_worker_is_told(self, executor: Processes) -> None:
        case = written(Logistic())
        made = division.divided(case.source, case.loss, case.measured)
        with (
            closing(executor.hold(made)) as held,
            pytest.raises(Error, match=r"worker \d \(process \d+\) failed: KeyError: 'gaze'"),
        ):
            held.ask(Work("gaze", case.scores))

    def test_few_rows_are_no_work_for_processes(
        self, executor: Processes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(division, "ROWS", 1 << 17)
        executor.close()
        case = written(Logistic())
        made = division.divided(case.source, case.loss, case.measured)
        with closing(executor.hold(made)) as held:
            held.ask(Work("look", case.scores))
            assert executor._crew is None


def processes(executor: Processes) -> list[subprocess.Popen[bytes]]:
    assert executor._crew is not None
    found = []
    for worker in executor._crew.workers:
        assert isinstance(worker, ProcessWorker)
        found.append(worker._process)
    return found


def test_workers_end_with_the_process_that_began_them() -> None:
    """Also where that is killed."""
    code = (
        "import sys, time\n"
        "from sqlfl.coordinator.executors.processes import Processes\n"
        "worker = Processes(1).begin(0)\n"
        "print(worker._process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.kill()
    for _ in range(100):
        if not alive(worker):
            break
        time.sleep(0.1)
    assert not alive(worker)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
