"""The two engines on the same statement: seconds of a whole TRAIN, as medians, and their ratio.

python benchmarks/engines.py [folder with the Parquet files of MovieLens-1M] [--repeats 3]
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from tasks import Task, tasks

import sqlfl

ENGINES = ("sql", "arrays")
ALGORITHMS = ("lbfgs", "admm")


def main() -> None:
    parser = argparse.ArgumentParser(description="seconds of the engines")
    parser.add_argument("movielens", nargs="?", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    print("| task | algorithm | sql | arrays | sql / arrays |\n|---|---|---:|---:|---:|")
    for task in tasks(arguments.movielens):
        with task.federation() as fed:
            for algorithm in ALGORITHMS:
                sql, arrays = compare(fed, task, algorithm, arguments.repeats)
                print(
                    f"| {task.name} | {algorithm} | {sql:.2f} s | {arrays:.2f} s "
                    f"| {sql / arrays:.2f} |",
                    flush=True,
                )


def compare(fed: sqlfl.Federation, task: Task, algorithm: str, repeats: int) -> tuple[float, float]:
    """Median seconds of each engine; the engines take turns, so that both see the same machine."""
    taken: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    for _ in range(repeats):
        for engine in ENGINES:
            started = time.perf_counter()
            fed.sql(task.statement(algorithm=algorithm, engine=engine))
            taken[engine].append(time.perf_counter() - started)
            fed.sql("DROP MODEL m")
    return statistics.median(taken["sql"]), statistics.median(taken["arrays"])


if __name__ == "__main__":
    main()
