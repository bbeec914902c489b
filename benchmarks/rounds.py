"""The coordinator's part of a round, beside one read of the joined rows at the speed of copying.

    python benchmarks/rounds.py [--movielens FOLDER] [--rows 2.1e6] [--repeats 5]

Of a star as large as MovieLens-1M with its genres, without rows that are equal, and of MovieLens-1M
itself. The part is from the last reply of an exchange to the first request of the next one:
residuals and their sums per table row, the search along the parties' directions (lbfgs) or new
auxiliary scores (admm), the objective, and the metrics of the history. Read is an int32 row number
per table and a 4-byte label of each joined row.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from measuring import bandwidth
from results import table
from stars import Shape, star
from tasks import Task, ratings

from sqlfl.messages import Save, Start
from sqlfl.schema import Client
from sqlfl.transport.base import Transport
from sqlfl.wire import decode

ALGORITHMS = ("lbfgs", "admm")
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
        "a read, ms",
        "round / read",
    )
    print("\n".join(table(heads, cells)))


class Clock:
    """Passes messages on, and takes the time between the exchanges of a run's rounds."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self._last: tuple[float, float] | None = None
        self.taken: list[tuple[float, float]] = []
        """Seconds, and those of processors, since the first reply to Start."""

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        now = _now()
        first = decode(requests[0][1])
        if isinstance(first, Save):
            self._last = None
        elif self._last is not None:
            self.taken.append((now[0] - self._last[0], now[1] - self._last[1]))
        replies = self._inner.exchange(requests)
        if isinstance(first, Start) or self._last is not None:
            self._last = _now()
        return replies


def compare(task: Task, repeats: int) -> list[list[str]]:
    """A row per algorithm; reads and statements take turns."""
    clocks: list[Clock] = []

    def wrap(transport: Transport) -> Transport:
        clocks.append(Clock(transport))
        return clocks[0]

    cells = []
    with task.federation(wrap) as fed:
        for algorithm in ALGORITHMS:
            rounds: list[tuple[float, float]] = []
            speeds = []
            for _ in range(repeats):
                clocks[0].taken.clear()
                fed.sql(task.statement(algorithm=algorithm, epochs=EPOCHS, tolerance=0.0))
                rounds += clocks[0].taken[1:-LAST]
                speeds.append(bandwidth())
                rows = int(fed.model("m").metrics["rows"] or 0)
                fed.sql("DROP MODEL m")
            read = 4 * (TABLES + 1) * rows / statistics.median(speeds)
            each, cpu = (statistics.median(seconds) for seconds in zip(*rounds, strict=True))
            milliseconds = [f"{1e3 * each:.1f}", f"{1e3 * cpu:.1f}", f"{1e3 * read:.2f}"]
            cells.append([task.name, algorithm, f"{rows:,}", *milliseconds, f"{each / read:.1f}"])
    return cells


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


if __name__ == "__main__":
    main()
