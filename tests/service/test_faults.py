"""Real processes that are killed, stopped and cut off: the right model, or a clear error in time,
and nothing is left."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from typing import TypeAlias

import pyarrow as pa
import pytest

import sqlfl
from sqlfl.base.errors import Error
from sqlfl.service.federation import RemoteFederation
from tests.depth import SEED, THOROUGH, spread
from tests.open_databases import in_memory
from tests.service.processes import LEASE, LONGEST, Distributed, stopped, until
from tests.service.test_federation import PATIENTS, QUERY, TESTS, ordered

TRAIN = f"""TRAIN OR REPLACE MODEL m USING logistic_regression TARGET ill
  WITH (algorithm = 'sgd', epochs = 5, tolerance = 0, seed = 3) FROM ({QUERY})"""
Expected: TypeAlias = tuple[pa.ChunkedArray, pa.Table]
"""Losses of the training, and predictions."""
PREDICT = f"PREDICT MODEL m FROM ({QUERY})"


def trained(fed: RemoteFederation | sqlfl.Federation) -> Expected:
    fed.sql(TRAIN)
    return used(fed)


def used(fed: RemoteFederation | sqlfl.Federation) -> Expected:
    return fed.model("m").history.column("train_loss"), ordered(fed.sql(PREDICT).arrow())


def undisturbed() -> Expected:
    """The model where nothing happens."""
    with in_memory() as clinic, in_memory() as lab, closing(sqlfl.connect(progress=False)) as fed:
        for con, name, made in ((clinic, "clinic", PATIENTS), (lab, "lab", TESTS)):
            con.execute(made)
            fed.attach(name, con)
        return trained(fed)


@pytest.fixture(scope="module")
def expected() -> Expected:
    return undisturbed()


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Distributed]:
    folder = tmp_path_factory.mktemp("faults")
    with Distributed(folder, {"clinic": PATIENTS, "lab": TESTS}) as own:
        yield own
        until(lambda: all(process.poll() is None for process in own.processes.values()))
        own.clean()


def same(found: Expected, expected: Expected) -> bool:
    return found[0].equals(expected[0]) and found[1].equals(expected[1])


def ends(fed: RemoteFederation, limit: float = LONGEST) -> Error | None:
    """A training does within the time."""
    began = time.monotonic()
    try:
        fed.sql(TRAIN)
        return None
    except Error as error:
        return error
    finally:
        assert time.monotonic() - began < limit


# planning, preparing, keys, training, saving: before the message is served, and after
PHASES = [
    "list_tables",
    "describe",
    "prepare",
    "send_keys",
    "activate",
    "start",
    "residuals",
    "save",
]
FAULTS = (signal.SIGKILL, signal.SIGSTOP)
CASES = [
    (kind, fault, after, soon)
    for (n, kind), (k, fault), after, soon in product(
        enumerate(PHASES), enumerate(FAULTS), (False, True), (False, True)
    )
    # else one case of each phase; of all of them each two values of two others stand together
    if THOROUGH
    or (k == n % 2 and soon == bool((n // 2 + k) % 2) and after == bool((n // 4 + k) % 2))
]


@pytest.mark.parametrize(("kind", "fault", "after", "soon"), CASES)
def test_a_party_that_is_killed_or_stopped(
    study: Distributed,
    expected: Expected,
    kind: str,
    fault: signal.Signals,
    after: bool,
    soon: bool,
) -> None:
    """And comes back soon, within the lease, or only when the training has ended."""
    lab = study.processes["lab"]

    def back() -> None:
        if fault == signal.SIGKILL:
            assert lab.wait(LONGEST)  # it was asked
            study.begin("lab")
            return
        until(lambda: stopped(lab.pid))
        time.sleep(LEASE / 2 if soon else 0.0)
        lab.send_signal(signal.SIGCONT)

    with study.analyst() as fed:
        study.connected(fed)
        study.arm("lab", kind, fault, after=after)
        watch = threading.Thread(target=back)
        if soon:
            watch.start()
        error = ends(fed)
        if not soon:
            watch.start()
        watch.join()
        assert study.struck("lab")
        if fault == signal.SIGKILL:
            assert error is None or "lab" in str(error), error
        elif soon:
            assert error is None
        else:
            assert error is not None
            assert "lab" in str(error), error
        study.connected(fed)
        if error is None:
            assert same(used(fed), expected)
        assert same(trained(fed), expected)
    until(study.idle)


@pytest.mark.parametrize("kind", spread(PHASES, 3))
def test_a_coordinator_that_is_killed(study: Distributed, expected: Expected, kind: str) -> None:
    """Who asks hears of it; parties come back to the next one, and forget what was going on."""
    with study.analyst() as fed:
        study.connected(fed)
        study.arm("lab", kind, signal.SIGKILL, pid=study.coordinator.pid)
        error = ends(fed)
        assert study.coordinator.wait(LONGEST)
        assert error is not None
        assert "the connection to" in str(error)
        assert "was lost" in str(error)
    study.restart_coordinator()
    with study.analyst() as fed:
        study.connected(fed)
        assert same(trained(fed), expected)
    until(study.idle)


@pytest.mark.parametrize("algorithm", ["sgd", "admm"])
def test_others_go_on_without_a_party_that_is_stopped(study: Distributed, algorithm: str) -> None:
    """And what is told of the model is true of the blocks that there are in the end."""
    lab = study.processes["lab"]
    options = f"algorithm = '{algorithm}', epochs = 40, tolerance = 0, stragglers = '0.1 s'"
    with study.analyst() as fed:
        study.connected(fed)
        study.arm("lab", "residuals", signal.SIGSTOP, nth=3)

        def wake() -> None:
            until(lambda: stopped(lab.pid))
            time.sleep(LEASE / 2)
            lab.send_signal(signal.SIGCONT)

        watch = threading.Thread(target=wake)
        watch.start()
        try:
            fed.sql(f"""TRAIN OR REPLACE MODEL late USING logistic_regression TARGET ill
              WITH ({options}) FROM ({QUERY})""")
        finally:
            watch.join()
            lab.send_signal(signal.SIGCONT)
        model = fed.model("late")
        assert model.history is not None
        assert sum(model.history.column("late").to_pylist()) > 3
        (found,) = fed.sql(f"EVALUATE MODEL late FROM ({QUERY})").arrow().to_pylist()
        assert found["log_loss"] == pytest.approx(model.metrics["log_loss"], rel=1e-5)
    until(study.idle)


def test_a_link_that_is_cut_within_the_lease(study: Distributed, expected: Expected) -> None:
    draw = random.Random(SEED)
    link = study.links["lab"]
    with study.analyst() as fed:
        study.connected(fed)
        before, over = link.connections, threading.Event()

        def cut() -> None:
            while not over.wait(draw.uniform(0.05, 0.4)):
                link.drop()
                over.wait(1.0)

        watch = threading.Thread(target=cut)
        watch.start()
        try:
            for _ in range(3):
                assert same(trained(fed), expected)
        finally:
            over.set()
            watch.join()
        study.connected(fed)
        assert link.connections > before
    until(study.idle)


@pytest.mark.parametrize("way", ["cut", "pause"])
def test_a_link_that_is_cut_for_longer(study: Distributed, expected: Expected, way: str) -> None:
    link = study.links["lab"]
    with study.analyst() as fed:
        study.connected(fed)
        threading.Timer(0.2, getattr(link, way)).start()
        error = None
        while error is None:
            error = ends(fed)
        assert "lab/0: is away, for" in str(error)
        link.mend()
        link.resume()
        study.connected(fed)
        assert same(trained(fed), expected)
    until(study.idle)


def test_a_slow_link(study: Distributed, expected: Expected) -> None:
    link = study.links["lab"]
    with study.analyst() as fed:
        study.connected(fed)
        link.rate = 100_000.0
        link.drop()
        try:
            study.connected(fed)
            assert same(trained(fed), expected)
        finally:
            link.rate = None
    until(study.idle)


@pytest.mark.skipif(not THOROUGH, reason="it waits for long")
def test_a_coordinator_that_is_stopped_for_longer(study: Distributed, expected: Expected) -> None:
    """Parties that it has left alone for longer than the lease have forgotten its runs."""

    def back() -> None:
        until(lambda: stopped(study.coordinator.pid))
        time.sleep(3 * LEASE)
        study.coordinator.send_signal(signal.SIGCONT)

    with study.analyst() as fed:
        study.connected(fed)
        study.arm("lab", "start", signal.SIGSTOP, pid=study.coordinator.pid)
        waker = threading.Thread(target=back)
        waker.start()
        assert ends(fed) is not None
        waker.join()
    with study.analyst() as fed:
        study.connected(fed)
        assert same(trained(fed), expected)
    until(study.idle)


@pytest.mark.parametrize("stops", [False, True] if THOROUGH else [False])
def test_a_coordinator_that_is_told_to_end(
    study: Distributed, expected: Expected, stops: bool
) -> None:
    """In time, beside a party that is stopped too; the others come back to the next one."""
    lab = study.processes["lab"]
    with study.analyst() as fed:
        study.connected(fed)
        if stops:
            lab.send_signal(signal.SIGSTOP)
        study.coordinator.terminate()
        try:
            assert study.coordinator.wait(LONGEST) == 0
        finally:
            lab.send_signal(signal.SIGCONT)
    study.restart_coordinator()
    with study.analyst() as fed:
        study.connected(fed)
        assert same(trained(fed), expected)
    until(study.idle)


def disturbed(study: Distributed, draw: random.Random) -> None:
    """One thing that goes wrong, and is put right."""
    party = draw.choice(["clinic", "lab"])
    link, process = study.links[party], study.processes[party]
    what = draw.choice(["drop", "cut", "pause", "stop", "kill", "coordinator"])
    seconds = draw.choice([0.1, 0.5, 1.0, 1.5 * LEASE])
    time.sleep(draw.uniform(0.0, 1.5))
    if what == "drop":
        link.drop()
    elif what == "cut":
        link.cut()
        time.sleep(seconds)
        link.mend()
    elif what == "pause":
        link.pause()
        time.sleep(seconds)
        link.resume()
    elif what == "stop":
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)
    elif what == "kill":
        study.kill(party)
        time.sleep(seconds)
        study.begin(party)
    else:
        study.restart_coordinator()


def schedule(study: Distributed, expected: Expected, draw: random.Random) -> int:
    """Trainings while things go wrong, each of which ends right or with an error in time; then one
    that ends right. How many ended with an error."""
    errors = 0
    faults = threading.Thread(target=lambda: [disturbed(study, draw) for _ in range(2)])
    fed = study.analyst()  # before the coordinator may be away
    faults.start()
    try:
        while faults.is_alive():
            began = time.monotonic()
            try:
                assert same(trained(fed), expected)
            except Error:
                errors += 1
                time.sleep(0.2)
            assert time.monotonic() - began < 2 * LONGEST
    finally:
        faults.join()
        fed.close()
    with study.analyst() as fed:
        study.connected(fed)
        assert same(trained(fed), expected)
    until(study.idle)
    return errors


@pytest.mark.parametrize("number", range(20 if THOROUGH else 1))
def test_a_schedule_of_faults(study: Distributed, expected: Expected, number: int) -> None:
    schedule(study, expected, random.Random(f"{SEED} {number}"))
