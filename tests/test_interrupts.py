"""Ctrl-C ends queries and loops wherever they run, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import duckdb
import pytest

from sqlfl.interrupts import Stopped, checkpoint, interruptible, stop_all, stoppable
from tests.conftest import Open

ROOT = Path(__file__).parent.parent
FOREVER = "SELECT sum(p.range * q.range) FROM range(100000000000) p, range(100000000000) q"


def strike(stage: str, times: int) -> dict[str, object]:
    """What a process says of a statement without end that is interrupted at the stage."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.interrupting", stage]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        for _ in range(times - 1):
            assert process.stdout.readline() == "noted\n"
            process.send_signal(signal.SIGINT)
        *noted, line = process.stdout.read().splitlines()
    assert set(noted) <= {"noted"}
    assert process.returncode == 0
    found: dict[str, object] = json.loads(line)
    return found


CLEAN = {"runs": [0, 0], "cursors": [0, 0], "usable": 40}


ENDS: dict[str, dict[str, object]] = {
    "snapshot": {"ended": "interrupted", "models": [], "tables": [["t"], ["u"]]},
    "join": {"ended": "interrupted", "models": [], "tables": [["t"], ["u"]]},
    "into": {"ended": "interrupted", "models": ["m"], "tables": [["t"], ["u"]]},
    "rounds": {"ended": "done", "models": ["m"]},
    "towers": {"ended": "interrupted", "models": []},
}


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("stage", ENDS)
def test_ctrl_c_ends_a_statement_without_end(stage: str) -> None:
    """A query of a party, or the coordinator's own, of 225 million rows; predictions, which leave
    no table; rounds, which keep the model so far; a client's own steps, where the first Ctrl-C
    waits for the end of the epoch, which is a billion passes away, and the second does not."""
    found = strike(stage, 2 if stage == "towers" else 1)
    assert {name: found[name] for name in ENDS[stage]} == ENDS[stage]
    assert (found["epochs"] in range(1, 1_000_000)) == (stage == "rounds")
    assert {name: found[name] for name in CLEAN} == CLEAN


# -- the parts -------------------------------------------------------------------------------------


def signalled(when: Callable[[], bool]) -> threading.Thread:
    """Sends this process a Ctrl-C once it is time."""

    def send() -> None:
        waiting = threading.Event()
        while not when():
            waiting.wait(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_an_interruptible_query_ends(database: Open) -> None:
    con = database()
    assert interruptible(lambda: con.execute("SELECT 7").fetchall(), con.interrupt) == [(7,)]
    begun = threading.Event()

    def work() -> object:
        begun.set()
        return con.execute(FOREVER).fetchall()

    thread = signalled(begun.is_set)
    with pytest.raises(KeyboardInterrupt):
        interruptible(work, con.interrupt)
    thread.join()
    assert con.execute("SELECT 8").fetchall() == [(8,)]
    with pytest.raises(duckdb.BinderException):
        interruptible(lambda: con.execute("SELECT nothing").fetchall(), con.interrupt)


def test_in_another_thread_the_work_is_done_there() -> None:
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(interruptible, threading.get_ident, lambda: None)
        assert found.result() == pool.submit(threading.get_ident).result()


def test_a_checkpoint_is_that_of_its_thread() -> None:
    stop, other = threading.Event(), threading.Event()
    checkpoint()
    with stoppable(stop):
        checkpoint()
        with stoppable(other):
            stop.set()
            checkpoint()
        with pytest.raises(Stopped):
            checkpoint()
    checkpoint()


def test_work_is_told_to_stop_until_it_has(database: Open) -> None:
    """Between two queries nothing hears; and a further Ctrl-C changes nothing."""
    con = database()
    told: list[int] = []

    def work() -> None:
        for _ in range(3):
            try:
                con.execute(FOREVER).fetchall()
            except duckdb.InterruptException:
                continue

    def stop() -> None:
        told.append(0)
        con.interrupt()
        if len(told) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        future: Future[None] = pool.submit(work)
        stop_all([future], stop)
    assert future.done()
    assert len(told) >= 3
