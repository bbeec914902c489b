"""The coordinator's work: executors, an epoch of ADMM, and TUNE beside TRAIN.

    python benchmarks/coordinator.py executors [--rows 1e5 1e6 1e7] [--workers 1 2 4]
        [--repeats 7] [--executors threads ray] [--page docs/executors.md]
    python benchmarks/coordinator.py epoch FOLDER [--repeats 5]
    python benchmarks/coordinator.py tune FOLDER [--turns 7]

FOLDER has the Parquet files of MovieLens-1M.

`executors`: a round of the coordinator by threads and by actors of Ray. The joined rows are those
of a star, without any party: facts with a number of their own for each, and three tables of a
thousandth of the rows each; logistic loss. A round computes scores, loss and slopes of all joined
rows, and the slopes' sums over the rows of all tables. Executors take turns; medians. Ray takes
part only where it is installed, and starts on this machine.

`epoch`: an epoch of ADMM as a multiple of the least work with its rows. The least work, in
numpy, gathers two numbers for each joined row, and subtracts the target. Then it sums the
differences of each user and of each movie. Epochs and passes take turns; the results are medians.
An epoch has the messages and their encoding, the clients' steps, the objective and the metric.

`tune`: TUNE beside TRAIN. Statements run in turn; medians of the ratios in each turn.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median

import duckdb
import numpy as np
import numpy.typing as npt
from measuring import dispatch, insert, table
from workloads import Task, ratings

import sqlfl
from sqlfl.base.threads import single
from sqlfl.coordinator.executors.base import Executor
from sqlfl.coordinator.executors.in_process import InProcess
from sqlfl.coordinator.executors.joined_rows import PartitionedRows
from sqlfl.coordinator.executors.workers import Rays
from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.coordinator.rounds.chunk import Scores
from sqlfl.coordinator.rounds.chunks import WrittenChunks
from sqlfl.models.losses import Logistic

# -- executors -------------------------------------------------------------------------------------


EXECUTORS: dict[str, Callable[[int], Executor]] = {"threads": InProcess, "ray": Rays}
FAN_OUT, TABLES = 1000, 3


def executors(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser("coordinator.py executors")
    parser.add_argument("--rows", type=float, nargs="+", default=[1e5, 1e6, 1e7])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    usual = [name for name in EXECUTORS if name != "ray" or find_spec("ray")]
    parser.add_argument("--executors", nargs="+", choices=EXECUTORS, default=usual)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--page", type=Path, help="Markdown file to put the table into")
    options = parser.parse_args(arguments)
    if "ray" in options.executors:
        # all are open at once, and each worker of Ray's takes one of what it believes are cores
        ray = importlib.import_module("ray")
        ray.init(num_cpus=sum(options.workers), include_dashboard=False, log_to_driver=False)
    kinds = [(name, workers) for name in options.executors for workers in options.workers]
    heads = ["executor", "workers", *(f"{rows:,.0f} rows" for rows in options.rows)]
    columns = [measured(round(rows), kinds, options.repeats) for rows in options.rows]
    lines = [
        [name, str(workers), *(column[number] for column in columns)]
        for number, (name, workers) in enumerate(kinds)
    ]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, numpy {np.__version__}."
    text = "\n".join([machine, "", *table(heads, lines)])
    print(text)
    if options.page is not None:
        insert(options.page, "executors", text)


def measured(rows: int, kinds: Sequence[tuple[str, int]], repeats: int) -> list[str]:
    """Return for each kind the seconds until its workers have the joined rows, and of a round."""
    source, scores = star(rows)
    sent, rounds, values = [], [[] for _ in kinds], set()
    with ExitStack() as stack:
        stack.enter_context(single())
        held = []
        for name, workers in kinds:
            executor = stack.enter_context(closing(EXECUTORS[name](workers)))
            joined = stack.enter_context(closing(PartitionedRows(source, Logistic(), executor)))
            begun = time.perf_counter()
            values.add(joined.look(scores).value)
            sent.append(time.perf_counter() - begun)
            held.append(joined)
        for _ in range(repeats):
            for joined, seconds in zip(held, rounds, strict=True):
                begun = time.perf_counter()
                joined.look(scores)
                seconds.append(time.perf_counter() - begun)
    assert len(values) == 1, "executors that differ"
    return [
        f"{first:.2f} s, {1e3 * statistics.median(seconds):.1f} ms"
        for first, seconds in zip(sent, rounds, strict=True)
    ]


def star(rows: int) -> tuple[WrittenChunks, Scores]:
    rng = np.random.default_rng(0)
    small = max(1, rows // FAN_OUT)
    slots = [np.arange(rows, dtype=np.int32)]
    slots += [rng.integers(0, small, rows, dtype=np.int32) for _ in range(TABLES)]
    sizes = [rows, *[small] * TABLES]
    targets = rng.integers(0, 2, rows).astype(np.uint8)
    scores = Scores(tuple(rng.normal(size=(1, size)) for size in sizes), np.zeros(1))
    return WrittenChunks(TableMapping(slots, sizes), targets, None), scores


# -- epoch -----------------------------------------------------------------------------------------


EPOCHS = 8
"""Epochs of one statement; the first is not counted, for its time holds the preparation."""
KINDS = (("linear_regression", "r.rating"), ("logistic_regression", "r.rating >= 4"))


@dataclass(frozen=True)
class Pass:
    """The joined rows, and a value for each row of the two slots, which are numbered at random."""

    rows: tuple[npt.NDArray[np.int32], ...]
    values: tuple[npt.NDArray[np.float32], ...]
    targets: npt.NDArray[np.float64]

    @classmethod
    def of(cls, task: Task) -> Pass:
        source = task.query[task.query.index("FROM") :]
        columns = "u.rowid AS user_row, m.rowid AS movie_row, r.rating AS y"
        rows_read = replace(task, query=f"SELECT {columns} {source}").joined()
        generator = np.random.default_rng(0)
        rows, values = [], []
        for name in ("user_row", "movie_row"):
            codes = rows_read[name].to_numpy()
            numbers = generator.permutation(int(codes.max()) + 1).astype(np.int32)
            rows.append(numbers[codes])
            values.append(generator.normal(size=len(numbers)).astype(np.float32))
        return cls(tuple(rows), tuple(values), rows_read["y"].to_numpy().astype(np.float64))

    def run(self) -> float:
        """Return the seconds of one pass."""
        started = time.perf_counter()
        scores = np.take(self.values[0], self.rows[0]) + np.take(self.values[1], self.rows[1])
        residual = scores - self.targets
        for rows, values in zip(self.rows, self.values, strict=True):
            np.bincount(rows, residual, len(values))
        return time.perf_counter() - started


def epoch(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser("coordinator.py epoch")
    parser.add_argument("movielens", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args(arguments)
    print("| task | joined rows | epoch | pass | epoch / pass |\n|---|---:|---:|---:|---:|")
    for kind, target in KINDS:
        task = ratings(given.movielens, kind, target)
        least = Pass.of(task)
        with task.federation() as fed:
            one, single = compare(fed, task, least, given.repeats)
        print(
            f"| {task.name}, {kind} | {len(least.targets):,} | {1e3 * one:.1f} ms "
            f"| {1e3 * single:.1f} ms | {one / single:.2f} |",
            flush=True,
        )


def compare(fed: sqlfl.Federation, task: Task, least: Pass, repeats: int) -> tuple[float, float]:
    """Return the median seconds of an epoch, and of a pass."""
    epochs: list[float] = []
    passes: list[float] = []
    for _ in range(repeats):
        fed.sql(task.statement(algorithm="admm", epochs=EPOCHS, tolerance=0.0))
        taken = fed.model("m").history["seconds"].to_pylist()
        epochs += [after - before for before, after in pairwise(taken)]
        passes += [least.run() for _ in range(EPOCHS - 1)]
        fed.sql("DROP MODEL m")
    return statistics.median(epochs), statistics.median(passes)


# -- tune ------------------------------------------------------------------------------------------


QUERY = """(SELECT u.gender, u.age, u.occupation::VARCHAR AS occupation, m.year, m.genre, {target}
  FROM shop.ratings r JOIN members.users u ON r.user_id = u.user_id
  JOIN studio.movies m ON r.movie_id = m.movie_id)"""
TARGETS = {"logistic_regression": "r.rating >= 4 AS liked", "linear_regression": "r.rating"}
FIVE = "[1e-5, 1e-4, 1e-3, 1e-2, 1e-1]"
TEN = "[1e-6, 3e-6, 1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1]"
STATEMENTS = {
    "TRAIN": "TRAIN OR REPLACE MODEL m USING {kind} TARGET {name} FROM {query}",
    "TRAIN with validation_fraction": "TRAIN OR REPLACE MODEL m USING {kind} TARGET {name} "
    "WITH (validation_fraction = 0.2) FROM {query}",
    "TUNE, 5 candidates, 2 folds: 11 fits": "TUNE OR REPLACE MODEL m USING {kind} TARGET {name} "
    f"WITH (l2 = {FIVE}, folds = 2) FROM {{query}}",
    "TUNE, 10 candidates, 20 % held out: 11 fits": "TUNE OR REPLACE MODEL m USING {kind} "
    f"TARGET {{name}} WITH (l2 = {TEN}, validation_fraction = 0.2) FROM {{query}}",
    "TUNE, 10 candidates, 5 folds: 51 fits": "TUNE OR REPLACE MODEL m USING {kind} "
    f"TARGET {{name}} WITH (l2 = {TEN}) FROM {{query}}",
}


@contextmanager
def federation(data: Path) -> Iterator[sqlfl.Federation]:
    tables = {
        "shop": ("ratings", f"'{data}/ratings.parquet'"),
        "members": ("users", f"'{data}/users.parquet'"),
        "studio": (
            "movies",
            f"'{data}/movies.parquet' JOIN '{data}/movie_genres.parquet' USING (movie_id)",
        ),
    }
    with ExitStack() as stack:
        fed = stack.enter_context(sqlfl.connect(progress=False))
        for party, (table, source) in tables.items():
            con = stack.enter_context(closing(duckdb.connect()))
            con.execute(f"CREATE TABLE {table} AS FROM {source}")
            fed.attach(party, con)
        yield fed


def tune(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser("coordinator.py tune")
    parser.add_argument("movielens", type=Path)
    parser.add_argument("--turns", type=int, default=7)
    given = parser.parse_args(arguments)
    with federation(given.movielens) as fed:
        for kind, target in TARGETS.items():
            name = target.split()[-1].removeprefix("r.")
            query = QUERY.format(target=target)
            texts = {
                key: text.format(kind=kind, name=name, query=query)
                for key, text in STATEMENTS.items()
            }
            seconds_of: dict[str, list[float]] = {key: [] for key in texts}
            for turn in range(given.turns + 1):
                for key, text in texts.items():
                    began = time.perf_counter()
                    fed.sql(text)
                    if turn:  # the first one warms up
                        seconds_of[key].append(time.perf_counter() - began)
            for key, seconds in seconds_of.items():
                ratios = [s / one for s, one in zip(seconds, seconds_of["TRAIN"], strict=True)]
                print(f"{kind}: {key}: {median(seconds):.2f} s, {median(ratios):.1f} times TRAIN")


if __name__ == "__main__":
    dispatch(__doc__, {"executors": executors, "epoch": epoch, "tune": tune})
