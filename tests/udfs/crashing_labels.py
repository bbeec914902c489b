"""Kills processes while they noise labels, and looks at what leaves of later ones.

A program of its own, so that it can fork: python -m tests.udfs.crashing_labels FOLDER KILLS SEED
WAYS. For every point a child trains on noised labels over a fresh database, tells what labels leave
as soon as they do, and dies at the k-th call or return of a function since it asked for its secret,
or since it has it. Then another child trains. It prints a line of JSON for each point: {"way",
"since", "k", "killed", "made", "left", "again", "error"}; made: the secret was there when the first
one had died.

A third of the points is before the secret is kept. Where there are many, the first of each kind is
the first event: before anything is written, and when the secret is kept and no label has left.
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
from contextlib import suppress
from pathlib import Path
from types import FrameType

import duckdb
import numpy as np
import pandas  # noqa: F401  DuckDB loads it in every child if it is not there before the fork
import pyarrow as pa

from sqlfl.contract.schema import Client
from sqlfl.messages import Activate, Labels
from sqlfl.messages.wire import decode
from sqlfl.transport.local import LocalTransport
from sqlfl.udfs.labels.label_secret import SUFFIX
from tests.privacy import sessions
from tests.privacy.sessions import by_row, session, train
from tests.store.crashing import die, forked

WATCHED = ("label_secret", "label_noise", "party", "sql", "slot_state", "rows", "local")
FILE = "clinic.duckdb"
WAYS = {"beside": None, "inside": "coordinator.duckdb"}
ASKED, KEPT = "asked", "kept"
"""Since when events are counted."""


class Trigger:
    """Dies at the k-th event since the secret is `ASKED` for, or `KEPT`; with k = 0 it only counts.

    Until it is kept only the events of the thread that asks count.
    """

    def __init__(self, since: str = ASKED, k: int = 0) -> None:
        self.events = {ASKED: 0, KEPT: 0}
        self._point = (since, k)
        self._phase: str | None = None
        self._asking: int | None = None

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        module = os.path.basename(frame.f_code.co_filename).removesuffix(".py")
        getting = module == "label_secret" and frame.f_code.co_name == "get"
        if getting and self._phase is None:
            self._phase, self._asking = ASKED, threading.get_ident()
        elif getting and event == "return":
            self._phase = KEPT
        other = self._phase == ASKED and threading.get_ident() != self._asking
        if self._phase is None or other or module not in WATCHED:
            return
        self.events[self._phase] += 1
        if (self._phase, self.events[self._phase]) == self._point:
            die()


def tell(pipe: int, **found: object) -> None:
    os.write(pipe, (json.dumps(found) + "\n").encode())


def telling(pipe: int) -> None:
    """Have what leaves told: by then the party has handed it over, and may die."""
    serve = LocalTransport._serve
    counts: list[np.ndarray] = []

    def served(transport: LocalTransport, client: Client, data: list[pa.Buffer]) -> list[pa.Buffer]:
        replies = serve(transport, client, data)
        if client.party == "clinic":
            counts.extend(m.counts for m in map(decode, data) if isinstance(m, Activate))
            for labels in (m for m in map(decode, replies) if isinstance(m, Labels)):
                tell(pipe, left=by_row(counts[-1], labels.codes).tolist())
        return replies

    LocalTransport._serve = served  # type: ignore[method-assign]


def work(folder: Path, way: str, trigger: Trigger | None, pipe: int) -> None:
    """`trigger`: None for a run that nothing interrupts or watches."""
    telling(pipe)
    threading.setprofile(trigger)  # type: ignore[arg-type]
    coordinator = WAYS[way]
    with session(folder / FILE, None if coordinator is None else folder / coordinator) as own:
        own.labels(train())
    threading.setprofile(None)  # type: ignore[arg-type]
    if trigger is not None:
        tell(pipe, **trigger.events)


def again(folder: Path, way: str, pipe: int) -> None:
    look(folder, way, pipe)
    work(folder, way, None, pipe)


def look(folder: Path, way: str, pipe: int) -> None:
    """Whether there is a secret."""
    made = (folder / f"{FILE}{SUFFIX}").exists()
    if way == "inside":
        with contextlib.closing(duckdb.connect(str(folder / FILE), read_only=True)) as con:
            tables = "FROM duckdb_tables() WHERE table_name = 'label_secrets'"
            made = bool(con.execute(tables).fetchall())
    tell(pipe, made=made)


def told(text: str) -> dict[str, object]:
    return {k: v for line in text.splitlines() for k, v in json.loads(line).items()}


def strike(folder: Path, way: str, since: str, k: int) -> dict[str, object]:
    """Of one point, over a copy of the database."""
    place = folder / f"{way}-{since}-{k}"
    place.mkdir()
    shutil.copy(folder / FILE, place / FILE)
    status, text = forked(lambda pipe: work(place, way, Trigger(since, k), pipe))
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    found: dict[str, object] = {"way": way, "since": since, "k": k, "killed": killed, "error": ""}
    if not killed:
        return found | {"error": text}
    found |= {"left": None} | told(text)
    status, text = forked(lambda pipe: again(place, way, pipe))
    if status:
        return found | {"error": text}
    shutil.rmtree(place)
    later = told(text)
    return found | {"again": later["left"], "made": later["made"]}


def count(folder: Path, way: str) -> tuple[int, int]:
    """Events of a run that nothing interrupts: until the secret is kept, and then."""

    def counted(pipe: int) -> None:
        work(folder / f"{way}0", way, Trigger(), pipe)
        tell(pipe, modules=list(sys.modules))

    (folder / f"{way}0").mkdir()
    shutil.copy(folder / FILE, folder / f"{way}0" / FILE)
    status, text = forked(counted)
    assert status == 0, text
    found = told(text)
    for module in found["modules"]:  # type: ignore[attr-defined]
        if module != "__main__":  # the children find loaded what each would have to load
            with suppress(ModuleNotFoundError):  # a part of a compiled one
                importlib.import_module(module)
    return int(str(found[ASKED])), int(str(found[KEPT]))


def main(folder: Path, kills: int, seed: int, ways: list[str]) -> None:
    def make(pipe: int) -> None:
        with contextlib.closing(duckdb.connect(str(folder / FILE))) as con:
            con.execute(sessions.VISITS)

    assert forked(make)[0] == 0
    draw = random.Random(seed)
    for way in ways:
        asked, kept = count(folder, way)
        few = max(1, kills // 3)
        many = kills - few
        # the threads of a run come in any order: near its end an event may be missing
        last = kept * 9 // 10
        if few > 1:
            points = [(ASKED, k) for k in {1, *draw.sample(range(2, asked), few - 1)}]
            points += [(KEPT, 1 + int(last * n / (many - 1))) for n in range(many)]
        else:
            points = [(ASKED, draw.randrange(1, asked))]
            points += [(KEPT, k) for k in sorted(draw.sample(range(1, last + 2), many))]
        for since, k in points:
            print(json.dumps(strike(folder, way, since, k)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
