"""Training on the generated sets: seconds, bytes and peak memory, and how near the best it comes.

A row per algorithm, each in a process of its own, whose peak of resident memory is all of it:
parties, coordinator and Python together. 15 % of the label's rows are held out; their metrics stand
beside those of the probabilities that labels were drawn by, which no model can beat but by chance.

    python benchmarks/generated.py mimic|yelp [--scale 0.01] [--folder where databases go]
        [--algorithms lbfgs admm sgd] [--kind mlp_classifier] [--memory 2GB] [--threads 2]

`--memory` and `--threads` are what each party's DuckDB may use; what it has beyond that it keeps on
disk, in the folder. The arrays of the engine are not in it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from generators import SETS, Generated
from measuring import peak

EPOCHS = {"lbfgs": 10, "admm": 10, "sgd": 2}
BATCH = 10_000
HELD_OUT = 0.15


def main() -> None:
    parser = argparse.ArgumentParser(description="training on generated tables")
    parser.add_argument("set", choices=sorted(SETS))
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--algorithms", nargs="+", choices=sorted(EPOCHS), default=list(EPOCHS))
    parser.add_argument("--kind", help="instead of the set's own: mlp_classifier")
    parser.add_argument("--engine", choices=("sql", "arrays"), default="arrays")
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        started = time.perf_counter()
        made = SETS[arguments.set](Path(folder), arguments.scale, arguments.seed)
        made = made if arguments.kind is None else replace(made, kind=arguments.kind)
        size = sum(path.stat().st_size for path in made.databases.values())
        print(
            f"{made.name} at scale {arguments.scale:g}, {made.kind}: {made.rows:,} joined rows, "
            f"{size / 1e9:.2f} GB in {time.perf_counter() - started:.0f} s; by the true "
            f"probabilities: {_written(made.bayes)}\n\n{heading()}",
            flush=True,
        )
        for algorithm in arguments.algorithms:
            # a fresh process each, for a peak of its own
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, context) as pool:
                options = (arguments.engine, arguments.memory, arguments.threads)
                print(pool.submit(report, made, algorithm, *options).result(), flush=True)


def heading() -> str:
    columns = ["algorithm", "epochs", "seconds", "an epoch", "exchanges", "MB", "peak GiB"]
    columns += ["objective", "held out"]
    return "\n".join([f"| {' | '.join(columns)} |", "|---|" + "---:|" * 7 + "---|"])


def report(made: Generated, algorithm: str, engine: str, memory: str, threads: int) -> str:
    """A row of the table: trains, in this process."""
    options: dict[str, object] = {
        "algorithm": algorithm,
        "epochs": EPOCHS[algorithm],
        "engine": engine,
        "validation_fraction": HELD_OUT,
    }
    if algorithm == "sgd":
        options["batch_size"] = BATCH
    with made.federation(memory_limit=memory, threads=threads) as fed:
        fed.sql(made.statement(**options))
        model = fed.model("m")
    history = model.history.to_pylist()
    last = history[-1]
    begun = history[0]["seconds"] if len(history) > 1 else 0.0
    each = (last["seconds"] - begun) / max(len(history) - 1, 1)
    cells = [
        algorithm,
        str(last["epoch"]),
        f"{last['seconds']:.1f}",
        f"{each:.2f} s",
        str(last["rounds"]),
        f"{(last['bytes_up'] + last['bytes_down']) / 1e6:.1f}",
        f"{peak() / 2**30:.2f}",
        f"{last['train_loss']:.5f}",
        _written({name: model.metrics[f"valid_{name}"] for name in made.bayes}),
    ]
    return f"| {' | '.join(cells)} |"


def _written(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())


if __name__ == "__main__":
    main()
