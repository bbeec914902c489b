"""An epoch of ADMM on MovieLens-1M as a multiple of the least that must be done with its rows.

The least: gather two numbers for each joined row, subtract the target, and add the differences up
for each user and each movie, in numpy. Epochs and passes take turns; medians. An epoch is the
whole of it: messages and their encoding, the clients' steps, the objective and the metric.

    python benchmarks/epoch.py folder with the Parquet files of MovieLens-1M [--repeats 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tasks import Task, ratings

import sqlfl

EPOCHS = 8
"""Of one statement; the first is not counted, for its time holds the preparation."""
KINDS = (("linear_regression", "r.rating"), ("logistic_regression", "r.rating >= 4"))


@dataclass(frozen=True)
class Pass:
    """The joined rows, and a value for each row of the two slots, numbered at random."""

    rows: tuple[npt.NDArray[np.int32], ...]
    values: tuple[npt.NDArray[np.float32], ...]
    targets: npt.NDArray[np.float64]

    @classmethod
    def of(cls, task: Task) -> Pass:
        source = task.query[task.query.index("FROM") :]
        columns = "u.rowid AS user_row, m.rowid AS movie_row, r.rating AS y"
        found = replace(task, query=f"SELECT {columns} {source}").joined()
        generator = np.random.default_rng(0)
        rows, values = [], []
        for name in ("user_row", "movie_row"):
            codes = found[name].to_numpy()
            numbers = generator.permutation(int(codes.max()) + 1).astype(np.int32)
            rows.append(numbers[codes])
            values.append(generator.normal(size=len(numbers)).astype(np.float32))
        return cls(tuple(rows), tuple(values), found["y"].to_numpy().astype(np.float64))

    def run(self) -> float:
        """Seconds of one pass."""
        started = time.perf_counter()
        scores = np.take(self.values[0], self.rows[0]) + np.take(self.values[1], self.rows[1])
        residual = scores - self.targets
        for rows, values in zip(self.rows, self.values, strict=True):
            np.bincount(rows, residual, len(values))
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description="seconds of an ADMM epoch")
    parser.add_argument("movielens", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print("| task | joined rows | epoch | pass | epoch / pass |\n|---|---:|---:|---:|---:|")
    for kind, target in KINDS:
        task = ratings(arguments.movielens, kind, target)
        least = Pass.of(task)
        with task.federation() as fed:
            epoch, single = compare(fed, task, least, arguments.repeats)
        print(
            f"| {task.name}, {kind} | {len(least.targets):,} | {1e3 * epoch:.1f} ms "
            f"| {1e3 * single:.1f} ms | {epoch / single:.2f} |",
            flush=True,
        )


def compare(fed: sqlfl.Federation, task: Task, least: Pass, repeats: int) -> tuple[float, float]:
    """Median seconds of an epoch, and of a pass."""
    epochs: list[float] = []
    passes: list[float] = []
    for _ in range(repeats):
        fed.sql(task.statement(algorithm="admm", epochs=EPOCHS, tolerance=0.0))
        taken = fed.model("m").history["seconds"].to_pylist()
        epochs += [after - before for before, after in pairwise(taken)]
        passes += [least.run() for _ in range(EPOCHS - 1)]
        fed.sql("DROP MODEL m")
    return statistics.median(epochs), statistics.median(passes)


if __name__ == "__main__":
    main()
