"""Ctrl-C ends queries and loops wherever they run, and leaves nothing behind."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random

import duckdb
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.base.interrupts import (
    AGAIN,
    Interrupts,
    Stopped,
    checkpoint,
    deferred,
    finish,
    heeding,
    interruptible,
    limited,
    noted,
    stoppable,
)
from sqlfl.contract.schema import Client
from sqlfl.messages.wire import decode
from sqlfl.transport.base import Transport
from sqlfl.transport.local import LocalTransport
from tests.conftest import Open
from tests.depth import SEED

ROOT = Path(__file__).parents[2]
FOREVER = "SELECT sum(p.range * q.range) FROM range(100000000000) p, range(100000000000) q"


@pytest.fixture(scope="module")
def program() -> Iterator[subprocess.Popen[str]]:
    """The process of tests.interrupting, which ends without a fault when it is told no more."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.interrupting"],
        cwd=ROOT,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            yield process
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0


def strike(program: subprocess.Popen[str], stage: str, times: int) -> dict[str, object]:
    """What the process says of a statement without end that is interrupted at the stage."""
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(f"{stage}\n")
    program.stdin.flush()
    assert program.stdout.readline() == "ready\n"
    program.send_signal(signal.SIGINT)
    for _ in range(times - 1):
        assert program.stdout.readline() == "noted\n"
        program.send_signal(signal.SIGINT)
    while (line := program.stdout.readline()) == "noted\n":
        continue
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
@pytest.mark.parametrize("stage", ENDS)
def test_ctrl_c_ends_a_statement_without_end(program: subprocess.Popen[str], stage: str) -> None:
    """A query of a party, or the coordinator's own, of 225 million rows; predictions, which leave
    no table; rounds, which keep the model so far; a client's own steps, where the first Ctrl-C
    waits for the end of the epoch, which is a billion passes away, and the second does not."""
    found = strike(program, stage, 2 if stage == "towers" else 1)
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

        def begin(futures: list[Future[None]]) -> None:
            futures.append(pool.submit(work))
            raise MemoryError("the second could not be begun")

        with pytest.raises(MemoryError):
            finish(begin, stop)
    assert len(told) >= 3


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What is raised in callbacks of the collector is lost, and Hypothesis has one."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
def test_a_ctrl_c_at_any_moment_ends_an_exchange() -> None:
    """While requests are handed out, while the main thread begins to wait, while replies come."""
    ended, lost = threading.Event(), threading.Event()
    clients = [Client("bank", number) for number in range(4)]

    def work(data: pa.Buffer) -> pa.Buffer:
        if not ended.wait(20):
            lost.set()
        return data

    transport = LocalTransport(dict.fromkeys(clients, work), dict.fromkeys(clients, ended.set))

    def exchange(begun: threading.Event) -> None:
        begun.set()
        transport.exchange([(client, pa.py_buffer(b"")) for client in clients])
        while not lost.wait(0.01):
            continue

    draws = Random(SEED)
    for _ in range(100):
        ended.clear()
        begun = threading.Event()
        thread = signalled(partial(_passed, begun, draws.uniform(0.0, 4e-4)))
        with pytest.raises(KeyboardInterrupt):
            exchange(begun)
        thread.join()
        assert not lost.is_set()
    transport.close()


def _passed(begun: threading.Event, delay: float) -> bool:
    """So long after it has begun."""
    begun.wait()
    end = time.perf_counter() + delay
    while time.perf_counter() < end:
        pass
    return True


# -- in other threads ------------------------------------------------------------------------------


def heeded(work: Callable[[], object], interrupts: Interrupts) -> Future[object]:
    done: Future[object] = Future()

    def run() -> None:
        try:
            with heeding(interrupts):
                done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run).start()
    return done


def test_a_query_of_another_thread_is_interrupted(database: Open) -> None:
    con, interrupts = database(own=True), Interrupts()
    begun = threading.Event()

    def work() -> object:
        begun.set()
        return con.execute(FOREVER).fetchall()

    done = heeded(lambda: interruptible(work, con.interrupt), interrupts)
    assert begun.wait(20)
    interrupts.interrupt()
    assert isinstance(done.exception(20), KeyboardInterrupt)


def test_what_another_thread_notes_is_noted_there() -> None:
    interrupts, inside = Interrupts(), threading.Event()

    def work() -> object:
        with noted() as event:
            inside.set()
            return event.wait(20)

    done = heeded(work, interrupts)
    assert inside.wait(20)
    interrupts.interrupt()
    assert done.result(20) is True


def test_what_another_thread_defers_takes_effect_at_the_end() -> None:
    interrupts, inside, over = Interrupts(), threading.Event(), threading.Event()

    def work() -> None:
        with deferred():
            inside.set()
            assert over.wait(20)
        over.clear()

    done = heeded(work, interrupts)
    assert inside.wait(20)
    interrupts.interrupt()
    over.set()
    assert isinstance(done.exception(20), KeyboardInterrupt)
    assert over.is_set()  # nothing after the block was done


@pytest.mark.parametrize("times", [1, 2])
def test_a_training_of_another_thread(database: Open, times: int) -> None:
    """Once, the model so far is kept; twice, there is none."""
    con = database("CREATE TABLE t AS SELECT sin(i) AS x, cos(3 * i) AS y FROM range(500) r(i)")
    interrupts, rounds = Interrupts(), threading.Event()

    class Telling:
        def __init__(self, inner: Transport) -> None:
            self.inner = inner

        def exchange(self, requests):  # type: ignore[no-untyped-def]
            if any(decode(data).kind == "residuals" for _, data in requests):
                rounds.set()
                time.sleep(0.02)
            return self.inner.exchange(requests)

    with sqlfl.Federation(progress=False, wrap=Telling) as fed:
        fed.attach("a", con)
        text = """TRAIN MODEL m USING linear_regression TARGET y
          WITH (algorithm = 'sgd', epochs = 100000, tolerance = 0) FROM (FROM a.t)"""
        done = heeded(lambda: fed.sql(text), interrupts)
        assert rounds.wait(20)
        for _ in range(times):
            interrupts.interrupt()
        if times == 1:
            done.result(60)
            assert 1 <= len(fed.model("m").history) < 100_000
        else:
            assert isinstance(done.exception(60), KeyboardInterrupt)
            assert fed.models == ()
        assert not fed._parties.servers[Client("a")].working


# -- work that takes too long ----------------------------------------------------------------------


def test_what_takes_too_long_is_stopped_again_and_again_until_it_ends() -> None:
    stops: list[float] = []
    with limited(600, lambda: None), limited(0.1, lambda: stops.append(time.monotonic())) as own:
        begun = time.monotonic()
        while len(stops) < 3:
            time.sleep(0.005)
            assert time.monotonic() < begun + 20
    assert own.passed
    assert stops[0] >= own.due
    count = len(stops)
    time.sleep(3 * AGAIN)
    assert len(stops) == count


def test_what_has_ended_is_not_stopped() -> None:
    ended: set[int] = set()
    late: list[int] = []

    def stop(number: int) -> None:  # before the end where this machine is slow
        if number in ended:
            late.append(number)

    for number in range(20):
        with limited(600, lambda: pytest.fail("stopped")), limited(0.02, partial(stop, number)):
            pass
        ended.add(number)
    time.sleep(0.06)
    assert late == []
    with limited(0.02, lambda: None):  # by another thread, where the first one has ended
        time.sleep(0.05)


def test_one_that_cannot_be_stopped_keeps_no_other_from_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def deaf() -> None:
        raise RuntimeError("deaf")

    heard = threading.Event()
    with limited(0.01, deaf), limited(0.02, heard.set):
        assert heard.wait(20)
    assert "cannot be stopped" in caplog.text
