"""Kills processes in the midst of saving, replacing or dropping a model, and looks at what is left.

A program of its own, so that it can fork: python -m tests.store.crashing FOLDER SEED KILLS DELAYS
OPERATIONS. It makes a federation with a model in FOLDER, copies it for every point, has a child do
one operation and die at that point, and another process, which stays, open the files again. It
prints a line of JSON for each point: {"operation", "k", "delay", "killed", "error"}.

A point is the k-th call or return of a function, Python's or C's, since the saving began (KILLS of
them for each operation), or a time after the saving began, when DuckDB may be anywhere (DELAYS).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TypeAlias, TypeVar

import pandas  # noqa: F401  DuckDB loads it in every child if it is not there before the fork

import sqlfl
from sqlfl.planner.grammar.dialect import parse
from tests import lasting

OPERATIONS = {
    "save": lasting.train("n", l2=0.5, epochs=1),
    "replace": lasting.train("m", head="TRAIN OR REPLACE MODEL", l2=0.5, epochs=1),
    "drop": "DROP MODEL m",
}
WATCHED = ("blocks", "sql", "saving", "registry", "coordinator_file", "base", "party", "session")
STORE = "geo_models.duckdb"
T = TypeVar("T")


class Trigger:
    """Calls `act` at the k-th event since the saving began; counts them where k is 0."""

    def __init__(self, k: int, act: Callable[[], None]) -> None:
        self.events = 0
        self.started = 0.0
        self.armed = False
        self._k = k
        self._act = act

    def around(self, work: Callable[..., T]) -> Callable[..., T]:
        """`work`, which the saving begins with."""

        def begun(*arguments: object, **options: object) -> T:
            self.started = time.perf_counter()
            self.armed = True
            sys.setprofile(self)  # type: ignore[arg-type]
            return work(*arguments, **options)

        return begun

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if not self.armed:
            return
        module = os.path.basename(frame.f_code.co_filename).removesuffix(".py")
        if module in WATCHED:
            self.events += 1
            if self.events == self._k:
                self._act()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[sqlfl.Federation]:
    """One party keeps its block in its own database, the other in a store."""
    with sqlfl.Federation(folder / "coordinator.duckdb", progress=False) as fed:
        fed.attach("census", folder / lasting.FILES[0])
        fed.attach("geo", folder / lasting.FILES[2], folder / STORE)
        yield fed


def begun(pipe: int) -> None:
    os.write(pipe, b".")


def operate(folder: Path, operation: str, trigger: Trigger) -> float:
    """Seconds from the first event to the end of the statement, if it comes to that."""
    threading.setprofile(trigger)  # type: ignore[arg-type]
    with opened(folder) as fed:
        saving = fed._saving
        saving.keep = trigger.around(saving.keep)  # type: ignore[method-assign]
        saving.drop = trigger.around(saving.drop)  # type: ignore[method-assign]
        fed.sql(OPERATIONS[operation])
        trigger.armed = False
        sys.setprofile(None)
        seconds = time.perf_counter() - trigger.started
    threading.setprofile(None)  # type: ignore[arg-type]
    return seconds


Then: TypeAlias = Callable[[int, int], None]


def forked(work: Callable[[int], None], then: Then | None = None) -> tuple[int, str]:
    """Run `work(end of a pipe)` in a child, `then(its id, other end)` here: its status and text."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(readable)
            work(writable)
            status = 0
        except BaseException:
            os.write(writable, traceback.format_exc()[-3000:].encode())
        finally:
            os._exit(status)
    os.close(writable)
    if then is not None:
        then(child, readable)
    with os.fdopen(readable) as pipe:
        text = pipe.read()
    return os.waitpid(child, 0)[1], text


def count(folder: Path, operation: str) -> tuple[int, float]:
    """Events and seconds of an operation that nothing interrupts."""

    def work(pipe: int) -> None:
        trigger = Trigger(0, die)
        seconds = operate(folder, operation, trigger)
        os.write(pipe, json.dumps([trigger.events, seconds]).encode())

    status, text = forked(work)
    assert status == 0, text
    events, seconds = json.loads(text)
    return events, seconds


def examine(folder: Path, operation: str, losses: dict[str, float], runs: dict[str, str]) -> None:
    """Assert that all is as before the operation or as after it, and nothing is left over."""
    with opened(folder) as fed:
        models = {row[0]: fed.model(row[0]) for row in fed.sql("SHOW MODELS").fetchall()}
        for name, model in models.items():
            new = model.run != runs["m"]
            assert name == "m" or operation == "save", name
            assert new == (model.options["l2"] == 0.5), "a mixture"
            loss = lasting.evaluate(fed, name)
            expected = losses["new" if new else "old"]
            assert abs(loss - expected) < 1e-6 * expected, (name, new, loss, losses)
        assert operation == "drop" or "m" in models, "the model is gone"
        if operation == "save":
            assert models["m"].run == runs["m"], "another model has changed"
        numbers = fed.audit().arrow().column("seq").to_pylist()
        assert numbers == list(range(1, len(numbers) + 1)), "the audit has gaps"
        kept = sorted(model.run for model in models.values())
        for file, client in ((lasting.FILES[0], "census/0"), (STORE, "geo/0")):
            found = lasting.kept_runs(folder / file)
            assert found == [(client, run) for run in kept], (file, found, kept)


class Examiner:
    """A process that calls `examine`, and stays, so that it need not warm up again."""

    def __init__(self, losses: dict[str, float], runs: dict[str, str]) -> None:
        asked, ask = os.pipe()
        answer, answered = os.pipe()
        if os.fork() == 0:
            os.close(ask)
            with os.fdopen(asked) as questions:
                for line in questions:
                    folder, operation = json.loads(line)
                    error = ""
                    try:
                        examine(Path(folder), operation, losses, runs)
                    except BaseException:
                        error = traceback.format_exc()
                    os.write(answered, (json.dumps(error) + "\n").encode())
            os._exit(0)
        os.close(asked)
        os.close(answered)
        self._ask = ask
        self._answers = os.fdopen(answer)

    def __call__(self, folder: Path, operation: str) -> str:
        """The error, or nothing."""
        os.write(self._ask, (json.dumps([str(folder), operation]) + "\n").encode())
        return str(json.loads(self._answers.readline()))


def prepare(folder: Path) -> tuple[dict[str, float], dict[str, str]]:
    losses: dict[str, float] = {}
    runs: dict[str, str] = {}

    def work(pipe: int) -> None:
        lasting.make(folder)
        with opened(folder) as fed:
            fed.sql(OPERATIONS["save"])
            losses["new"] = lasting.evaluate(fed, "n")
            fed.sql("DROP MODEL n")
            fed.sql(lasting.train("m"))
            losses["old"] = lasting.evaluate(fed, "m")
            runs["m"] = fed.model("m").run
        os.write(pipe, json.dumps([losses, runs, list(sys.modules)]).encode())

    status, text = forked(work)
    assert status == 0, text
    found, named, modules = json.loads(text)
    assert abs(found["old"] - found["new"]) > 1e-3
    for module in modules:  # the children find loaded what each would have to load
        if module != "__main__":
            importlib.import_module(module)
    for statement in OPERATIONS.values():
        parse(statement)
    return found, named


def strike(folder: Path, operation: str, k: int, delay: float) -> tuple[bool, str]:
    """Do the operation in a child and kill it: whether that came in time, and else its error."""

    def work(pipe: int) -> None:
        if k:
            operate(folder, operation, Trigger(k, die))
        else:
            operate(folder, operation, Trigger(1, lambda: begun(pipe)))

    def kill(child: int, pipe: int) -> None:
        os.read(pipe, 1)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)

    status, text = forked(work, None if k else kill)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    return killed, "" if killed or status == 0 else text


def main(home: Path, seed: int, kills: int, delays: int, operations: list[str]) -> None:
    base, folder = home / "base", home / "case"
    base.mkdir()
    examiner = Examiner(*prepare(base))
    chance = random.Random(seed)
    for operation in operations:
        shutil.copytree(base, folder)
        events, seconds = count(folder, operation)
        shutil.rmtree(folder)
        points = [(k, 0.0) for k in chance.sample(range(1, events), kills)]
        points += [(0, chance.uniform(0.0, seconds)) for _ in range(delays)]
        for k, delay in points:
            shutil.copytree(base, folder)
            killed, error = strike(folder, operation, k, delay)
            point = {"operation": operation, "k": k, "delay": delay, "killed": killed}
            print(json.dumps(point | {"error": error or examiner(folder, operation)}), flush=True)
            shutil.rmtree(folder)


if __name__ == "__main__":
    assert sqlfl.Federation  # loaded before the first fork
    main(Path(sys.argv[1]), *(int(argument) for argument in sys.argv[2:5]), sys.argv[5:])
