"""Sparse regression by Frank-Wolfe, beside its paper's claims: convergence with samples of columns,
excess risk and uplink by the epsilon, and a real join.

Tables of uniform columns are divided by columns among parties; every setting has `--seeds` draws of
data and noise. The centralised private method (Talwar, Thakurta and Zhang, 2015) chooses among all
columns by noised exact slopes; scikit-learn's Lasso has the optimum.

    python benchmarks/lasso.py [--work /tmp/lasso] [--seeds 5] [--page docs/results/lasso.md]
        [--figures docs/figures]

It needs pip install 'sqlfl[bench,plot]'.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from lasso_join import joined
from lasso_private import central, private
from lasso_split import Task, train
from lasso_tables import draw, render
from results import Results, insert

STEPS = (("corrective", None), ("search", None), ("fixed", None), ("search", 20), ("search", 5),
         ("search", 1), ("corrective", 5), ("fixed", 5))  # fmt: skip
"""And columns of each party that are looked at: None for all."""
ITERATIONS = 2000
CONVERGENCE = (2000, 400, 4)
"""Rows, columns, parties."""
SIZES = ((1_000, 100, 4), (10_000, 100, 4), (100_000, 100, 4), (10_000, 1_000, 4),
         (1_000, 10_000, 4), (10_000, 100, 2), (10_000, 100, 8))  # fmt: skip
EPSILONS = (1.0, 4.0, 16.0, 64.0)
SLOPES = tuple(2.0 ** np.arange(0, 7))
"""ε of the log-log slopes, at 100,000 rows, of 100 columns of which five have a weight, and of 200
that all weigh alike, which is as slow as Frank-Wolfe can be."""


def main() -> None:
    parser = argparse.ArgumentParser(description="the LASSO's experiments")
    parser.add_argument("--work", type=Path, default=Path("/tmp/lasso"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--figures", type=Path)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    results = Results(arguments.work / "lasso.json")
    make(results, arguments.seeds)
    print(render(results.found))
    if arguments.page is not None:
        insert(arguments.page, "lasso", render(results.found))
    if arguments.figures is not None:
        draw(results.found, arguments.figures / "lasso.png")


def make(results: Results, seeds: int) -> None:
    """The runs that are missing."""
    for step, sample in STEPS:
        name = f"convergence/{step}/{sample or 'all'}"
        if name not in results.found:
            results.add(name, convergence(step, sample, seeds))
            print(name, flush=True)
    for size in SIZES:
        for epsilon in EPSILONS:
            name = f"private/{'/'.join(map(str, size))}/{epsilon:g}"
            if name not in results.found:
                results.add(name, compared(size, epsilon, seeds))
                print(name, results.found[name], flush=True)
    for kind, epsilon in product(("sparse", "spread"), SLOPES):
        name = f"slopes/{kind}/{epsilon:g}"
        if name not in results.found:
            results.add(name, slopes(kind, epsilon, seeds))
            print(name, results.found[name], flush=True)
    if "join" not in results.found:
        results.add("join", {"runs": joined()})


@lru_cache(8)
def _task(size: tuple[int, int, int], seed: int) -> Task:
    return Task.drawn(*size, seed)


@lru_cache(1)
def _spread() -> Task:
    return Task.spread(100_000, 200, 4, 0)


def convergence(step: str, sample: int | None, seeds: int) -> dict[str, Any]:
    """Mean of objective − minimum after each iteration."""
    gaps = []
    for seed in range(seeds):
        task = Task.drawn(*CONVERGENCE, seed)
        best = train(task, {"tolerance": 1e-13, "epochs": 500}).steps[-1].objective
        options: dict[str, Any] = {
            "step": step, "epochs": ITERATIONS, "tolerance": 0.0, "seed": seed,
        }  # fmt: skip
        if sample is not None:
            options["sample"] = sample
        found = [s.objective - best for s in train(task, options).steps]
        gaps.append(found + [found[-1]] * (ITERATIONS - len(found)))
    return {"gaps": np.maximum(np.mean(gaps, axis=0), 0.0).tolist()}


def compared(size: Sequence[int], epsilon: float, seeds: int) -> dict[str, Any]:
    """Medians of the excess risk over the optimum within the ball, and bytes up."""
    rows: dict[str, list[float]] = {}
    for seed in range(seeds):
        task = _task(tuple(size), seed)
        best = task.optimum
        ours = private(task, epsilon, {"step": "corrective", "epochs": 6}, seed)
        paper = private(task, epsilon, {"step": "fixed", "epochs": 20}, seed)
        for name, loss, up in (
            ("ours", task.loss(ours.theta), ours.up),
            ("fixed", task.loss(paper.theta), paper.up),
            ("central", task.loss(central(task, epsilon, 20, seed)), 0),
        ):
            rows.setdefault(name, []).append(loss - best)
            rows.setdefault(f"{name} up", []).append(up)
        rows.setdefault("nothing", []).append(0.5 * float(np.var(task.y)) - best)
    return {name: float(np.median(values)) for name, values in rows.items()}


def slopes(kind: str, epsilon: float, seeds: int) -> dict[str, Any]:
    """Of iterations that grow as (n ε)^(2/3), by the paper's step and ours."""
    task = _task((100_000, 100, 4), 0) if kind == "sparse" else _spread()
    count = max(2, round(2.5 * epsilon ** (2.0 / 3.0)))
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        for step in ("fixed", "corrective"):
            run = private(task, epsilon, {"step": step, "epochs": count}, seed)
            found.setdefault(step, []).append(task.loss(run.theta) - task.optimum)
            found.setdefault(f"{step} up", []).append(run.up)
        theta = central(task, epsilon, count, seed)
        found.setdefault("central", []).append(task.loss(theta) - task.optimum)
    return {"iterations": count} | {k: float(np.mean(v)) for k, v in found.items()}


if __name__ == "__main__":
    main()
