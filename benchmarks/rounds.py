"""The coordinator's part of a round, beside one read of the joined rows at the speed of copying.

    python benchmarks/rounds.py [--movielens FOLDER] [--rows 2.1e6] [--repeats 5]

Of a star as large as MovieLens-1M with its genres, without rows that are equal, and of MovieLens-1M
itself. The part is from the last reply of an exchange to the first request of the next one:
residuals and their sums per table row, the search along the parties' directions (lbfgs) or new
auxiliary scores (admm), the objective, and the metrics of the history. Read is an int32 row number
per table and a 4-byte label of each joined row, whether or not those that are equal are trained on
as one. Of a round the passes over the joined rows are told apart: looks at the loss and its slopes,
curvatures of the search, and all others.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from measuring import bandwidth
from results import table
from stars import Shape, star
from tasks import Task, ratings

from sqlfl.contract.schema import Client
from sqlfl.coordinator.executors.base import HeldPartitions
from sqlfl.coordinator.executors.division import Division
from sqlfl.coordinator.executors.in_process import InProcess
from sqlfl.coordinator.executors.partition import PartitionSums, Work
from sqlfl.messages import Save, Start
from sqlfl.messages.wire import decode
from sqlfl.transport.base import Transport

WAYS = (("lbfgs", True), ("lbfgs", False), ("admm", True), ("admm", False))
"""Algorithms, and whether joined rows that are equal are trained on as one."""
EPOCHS = 4
"""Of a statement; no more than bring lbfgs to where rounding is all there is."""
LAST = 2
"""Exchanges by which the end is judged."""
TABLES = 2
"""That have features."""
FAN_OUT = 340
"""Joined rows of a user or a movie, on average."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--movielens", type=Path, help="folder with its Parquet files")
    parser.add_argument("--rows", type=float, default=2.1e6, help="of the star")
    parser.add_argument("--repeats", type=int, default=5)
    own = parser.parse_args()
    given = [star(Shape(round(own.rows), FAN_OUT))]
    if own.movielens is not None:
        given.append(ratings(own.movielens, "logistic_regression", "r.rating >= 4"))
    cells = [row for task in given for row in compare(task, own.repeats)]
    heads = (
        "task",
        "algorithm",
        "joined rows",
        "a round, ms",
        "processor",
        "looks",
        "ms each",
        "curvatures, ms",
        "other passes, ms",
        "a read, ms",
        "round / read",
    )
    print("\n".join(table(heads, cells)))


@dataclass
class Taken:
    """Between two exchanges."""

    seconds: float
    processor: float
    passes: dict[str, list[float]]
    """Seconds of each, by name."""

    def of(self, *names: str) -> float:
        return sum(sum(self.passes.get(name, [])) for name in names)

    @property
    def others(self) -> float:
        return self.of(*self.passes) - self.of("look", "curvatures")


class Timed:
    """Threads, and how long each pass takes them."""

    def __init__(self) -> None:
        self._threads = InProcess()
        self.passes: dict[str, list[float]] = {}

    def hold(self, division: Division) -> TimedRows:
        return TimedRows(self._threads.hold(division), self.passes)

    def close(self) -> None:
        self._threads.close()


class TimedRows:
    def __init__(self, held: HeldPartitions, passes: dict[str, list[float]]) -> None:
        self._held, self._passes = held, passes

    def ask(self, work: Work) -> PartitionSums:
        begun = time.perf_counter()
        found = self._held.ask(work)
        self._passes.setdefault(work.name, []).append(time.perf_counter() - begun)
        return found

    def close(self) -> None:
        self._held.close()


class Clock:
    """Passes messages on, and takes the time between the exchanges of a run's rounds."""

    def __init__(self, inner: Transport, passes: dict[str, list[float]]) -> None:
        self._inner, self._passes = inner, passes
        self._last: tuple[float, float] | None = None
        self.taken: list[Taken] = []
        """Since the first reply to Start."""

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        now = _now()
        first = decode(requests[0][1])
        if isinstance(first, Save):
            self._last = None
        elif self._last is not None:
            seconds, processor = now[0] - self._last[0], now[1] - self._last[1]
            self.taken.append(Taken(seconds, processor, dict(self._passes)))
        replies = self._inner.exchange(requests)
        self._passes.clear()
        if isinstance(first, Start) or self._last is not None:
            self._last = _now()
        return replies


def compare(task: Task, repeats: int) -> list[list[str]]:
    """A row per algorithm; reads and statements take turns."""
    clocks: list[Clock] = []
    timed = Timed()

    def wrap(transport: Transport) -> Transport:
        clocks.append(Clock(transport, timed.passes))
        return clocks[0]

    cells = []
    with closing(timed), task.federation(wrap, timed) as fed:
        for algorithm, merged in WAYS:
            options: dict[str, object] = {} if merged else {"merge_equal_rows": False}
            rounds: list[Taken] = []
            speeds = []
            for _ in range(repeats):
                clocks[0].taken.clear()
                options |= {"algorithm": algorithm, "epochs": EPOCHS, "tolerance": 0.0}
                fed.sql(task.statement(**options))
                rounds += clocks[0].taken[1:-LAST]
                speeds.append(bandwidth())
                rows = int(fed.model("m").metrics["rows"] or 0)
                fed.sql("DROP MODEL m")
            read = 4 * (TABLES + 1) * rows / statistics.median(speeds)
            name = algorithm + (", equal rows once" if merged else "")
            cells.append([task.name, name, f"{rows:,}", *_cells(rounds, read)])
    return cells


def _cells(rounds: Sequence[Taken], read: float) -> list[str]:
    def middle(of: Callable[[Taken], float]) -> float:
        return statistics.median(map(of, rounds))

    def milliseconds(of: Callable[[Taken], float]) -> str:
        return f"{1e3 * middle(of):.1f}"

    looks = [seconds for taken in rounds for seconds in taken.passes.get("look", [])]
    return [
        milliseconds(lambda taken: taken.seconds),
        milliseconds(lambda taken: taken.processor),
        f"{middle(lambda taken: len(taken.passes.get('look', []))):.0f}",
        f"{1e3 * statistics.median(looks):.1f}",
        milliseconds(lambda taken: taken.of("curvatures")),
        milliseconds(lambda taken: taken.others),
        f"{1e3 * read:.2f}",
        f"{middle(lambda taken: taken.seconds) / read:.1f}",
    ]


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


if __name__ == "__main__":
    main()
