"""How soon lbfgs, admm and sgd come near the centralised optimum, at their default options.

Gap: (objective - optimum) / optimum, the optimum by Newton's method on the join.
Exchanges and bytes count from the beginning of the run, preparation (keys, statistics, labels)
included; its share stands above each table.

    python benchmarks/convergence.py [folder with the Parquet files of MovieLens-1M] [--epochs 50]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from reference import optimum
from tasks import Task, tasks

import sqlfl

GAPS = (1e-2, 1e-3, 1e-4, 1e-6)
ALGORITHMS = ("lbfgs", "admm", "sgd")


def main() -> None:
    parser = argparse.ArgumentParser(description="convergence of the algorithms")
    parser.add_argument("movielens", nargs="?", type=Path)
    parser.add_argument("--epochs", type=int, help="instead of the default")
    arguments = parser.parse_args()
    for task in tasks(arguments.movielens):
        with task.database() as con:
            best = optimum(con, task).objective
        print(f"\n## {task.name}\n\noptimum {best:.9f}", end="")
        with task.federation() as fed:
            for number, algorithm in enumerate(ALGORITHMS):
                options = {} if arguments.epochs is None else {"epochs": arguments.epochs}
                fed.sql(task.statement(algorithm=algorithm, **options))
                if number == 0:
                    print(f"; {preparation(fed)}\n\n{heading()}")
                report(algorithm, task, fed.model("m").history, best)
                fed.sql("DROP MODEL m")


def preparation(fed: sqlfl.Federation) -> str:
    """Rows, and what was exchanged before training began."""
    log = fed.audit().arrow()
    log = log.filter(pc.equal(log["run"], fed.model("m").run))
    begun = pc.index(log["kind"], "start").as_py()
    before = log.slice(0, begun)
    size = pc.sum(before["bytes"]).as_py()
    rows = fed.model("m").metrics["rows"]
    return f"{rows:,} joined rows; {megabytes(size)} MB before the first round of training"


def heading() -> str:
    columns = ["algorithm", *(f"to {gap:.0e}" for gap in GAPS), "at the end", "seconds"]
    return "\n".join(["| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)])


def report(algorithm: str, task: Task, history: pa.Table, best: float) -> None:
    """A row: epochs / exchanges / megabytes until each gap."""
    rows = history.to_pylist()
    gaps = [(row["train_loss"] - best) / best for row in rows]
    cells = []
    for limit in GAPS:
        reached = next((row for row, gap in zip(rows, gaps, strict=True) if gap <= limit), None)
        cells.append("not reached" if reached is None else state(reached))
    last = rows[-1]
    cells += [f"{gaps[-1]:.1e} after {state(last)}", f"{last['seconds']:.1f}"]
    print(f"| {algorithm} | " + " | ".join(cells) + " |", flush=True)


def state(row: dict[str, float]) -> str:
    size = row["bytes_up"] + row["bytes_down"]
    return f"{row['epoch']} / {row['rounds']} / {megabytes(size)} MB"


def megabytes(size: float) -> str:
    return f"{size / 1e6:.1f}"


if __name__ == "__main__":
    main()
