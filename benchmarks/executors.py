"""A round of the coordinator by each executor: threads and actors of Ray.

    python benchmarks/executors.py [--rows 1e5 1e6 1e7] [--workers 1 2 4] [--repeats 7]
        [--executors threads ray] [--page docs/executors.md]

The joined rows are those of a star, without any party: facts with a number of their own for each,
and three tables of a thousandth of the rows each; logistic loss. A round is one look: scores, loss
and slopes of all joined rows, and the slopes' sums over the rows of all tables. Executors take
turns; medians. Ray only where it is installed, begun on this machine.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from results import insert, table

from sqlfl.base.threads import single
from sqlfl.coordinator.executors.base import Executor
from sqlfl.coordinator.executors.in_process import InProcess
from sqlfl.coordinator.executors.joined_rows import PartitionedRows
from sqlfl.coordinator.executors.rays import Rays
from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.coordinator.rounds.chunks import WrittenChunks
from sqlfl.coordinator.rounds.scores import Scores
from sqlfl.models.losses import Logistic

EXECUTORS: dict[str, Callable[[int], Executor]] = {"threads": InProcess, "ray": Rays}
FAN_OUT, TABLES = 1000, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, nargs="+", default=[1e5, 1e6, 1e7])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    usual = [name for name in EXECUTORS if name != "ray" or find_spec("ray")]
    parser.add_argument("--executors", nargs="+", choices=EXECUTORS, default=usual)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--page", type=Path, help="Markdown file to put the table into")
    own = parser.parse_args()
    if "ray" in own.executors:
        # all are open at once, and each worker of Ray's takes one of what it believes are cores
        ray = importlib.import_module("ray")
        ray.init(num_cpus=sum(own.workers), include_dashboard=False, log_to_driver=False)
    kinds = [(name, workers) for name in own.executors for workers in own.workers]
    heads = ["executor", "workers", *(f"{rows:,.0f} rows" for rows in own.rows)]
    columns = [measured(round(rows), kinds, own.repeats) for rows in own.rows]
    lines = [
        [name, str(workers), *(column[number] for column in columns)]
        for number, (name, workers) in enumerate(kinds)
    ]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, numpy {np.__version__}."
    text = "\n".join([machine, "", *table(heads, lines)])
    print(text)
    if own.page is not None:
        insert(own.page, "executors", text)


def measured(rows: int, kinds: Sequence[tuple[str, int]], repeats: int) -> list[str]:
    """Of each kind seconds until its workers have the joined rows, and those of a round."""
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
            for joined, own in zip(held, rounds, strict=True):
                begun = time.perf_counter()
                joined.look(scores)
                own.append(time.perf_counter() - begun)
    assert len(values) == 1, "executors that differ"
    return [
        f"{first:.2f} s, {1e3 * statistics.median(own):.1f} ms"
        for first, own in zip(sent, rounds, strict=True)
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


if __name__ == "__main__":
    main()
