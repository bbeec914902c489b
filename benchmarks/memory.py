"""Memory that a TRAIN takes: of each joined row, by method; and of one large join under a limit.

    python benchmarks/memory.py rows [--rows 5e6]
    python benchmarks/memory.py grid|many|star [--rows 1e8] [--limit 4GB] [--fan-out 1000]
        [--measures 0] [--parties 1GB] [--apart] [--folder where databases go]

`rows` trains on two joins of the same few table rows, a fifth of the joined rows in one of them,
each in a process of its own, and divides the difference of their peaks of resident memory by that
of their joined rows: so Python, and what belongs to the tables, is not in it. The others train on
one generated join; resident memory is of parties and coordinator, which are in one process, or
with --apart of the coordinator alone.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from apart import Apart
from federated import train
from measuring import Failed, fresh
from stars import Shape, grid, many_to_many, star
from workloads import Stored, toy

Options = Mapping[str, object]
MAKERS = {"grid": grid, "many": many_to_many, "star": star}
RUNS: Mapping[str, tuple[Options, ...]] = {
    "linear_regression": (
        {"algorithm": "lbfgs"},
        {"algorithm": "lbfgs", "validation_fraction": 0.2},
        {"algorithm": "sgd", "learning_rate": 0.1},
        {"algorithm": "sgd", "batch_size": 10_000, "learning_rate": 0.1},
        {"algorithm": "admm"},
    ),
    "logistic_regression": (
        {"algorithm": "lbfgs"},
        {"algorithm": "lbfgs", "validation_fraction": 0.2},
        {"algorithm": "sgd", "batch_size": 10_000, "learning_rate": 0.1},
        {"algorithm": "admm"},
    ),
    "softmax_regression": (
        {"algorithm": "lbfgs"},
        {"algorithm": "sgd", "learning_rate": 0.1},
        {"algorithm": "sgd", "batch_size": 10_000, "learning_rate": 0.1},
        {"algorithm": "admm"},
    ),
    "mlp_classifier": (
        {"algorithm": "sgd", "batch_size": 10_000},
        {"algorithm": "sgd", "batch_size": 10_000, "head": "linear", "embedding": 4},
        {"algorithm": "admm"},
    ),
}
EPOCHS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["rows", *MAKERS])
    parser.add_argument("--rows", type=float, help="joined rows: 5e6, or 1e8")
    parser.add_argument("--limit", help="memory_limit of the statement")
    parser.add_argument("--fan-out", type=int, default=1000)
    parser.add_argument("--measures", type=int, default=0, help="features of the facts of a star")
    parser.add_argument("--parties", default="1GB", help="memory_limit of the parties' databases")
    parser.add_argument("--apart", action="store_true", help="parties in a process of their own")
    parser.add_argument("--kinds", nargs="+", choices=sorted(RUNS), default=list(RUNS))
    parser.add_argument("--folder", type=Path, help="where databases go meanwhile")
    own = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=own.folder) as folder:
        if own.what == "rows":
            _rows(round(own.rows or 5e6), own.kinds, Path(folder))
        else:
            shape = Shape(round(own.rows or 1e8), own.fan_out, measures=own.measures)
            _join(own, shape, Path(folder))


def _rows(large: int, kinds: list[str], folder: Path) -> None:
    print("| kind | options | bytes a joined row |\n|---|---|---:|")
    for kind in kinds:
        sizes = (large // 5, large)
        tables = {
            rows: Stored.of(grid(Shape(rows, 1000, kind=_drawn(kind))), folder / f"{kind}{rows}")
            for rows in sizes
        }
        for options in RUNS[kind]:
            peaks = []
            for rows, stored in tables.items():
                task = replace(stored.task, kind=kind)
                found = fresh(run, replace(stored, task=task), {**options, "epochs": EPOCHS})
                peaks.append((found["joined"], found["peak"]))
                del rows
            (few, low), (many, high) = peaks
            written = ", ".join(f"{name} = {value}" for name, value in options.items())
            print(f"| {kind} | {written} | {(high - low) / (many - few):.0f} |", flush=True)


def _drawn(kind: str) -> str:
    """Whose labels the generators draw."""
    return "softmax_regression" if kind == "mlp_classifier" else kind


def _join(own: argparse.Namespace, shape: Shape, folder: Path) -> None:
    kind = Apart if own.apart else Stored
    stored = kind.of(MAKERS[own.what](shape), folder / own.what)
    options: dict[str, object] = {"max_joined_rows": 2 * shape.rows, "tolerance": 1e-4}
    if own.limit is not None:
        options["memory_limit"] = own.limit
    try:
        found = fresh(run, stored, options, own.parties)
    except Failed as failure:
        print(f"{stored.task.name}: {failure}")
        return
    print(f"{stored.task.name}: {', '.join(_told(found))}")


def run(stored: Stored, options: Options, parties: str | None = None) -> dict[str, Any]:
    """One statement, after one on a toy table: what `train` tells."""
    with tempfile.TemporaryDirectory() as folder:
        first = Stored.of(toy("linear_regression"), Path(folder) / "toy")
        train(first, {"epochs": EPOCHS})
    return train(replace(stored, memory_limit=parties), options)


def _told(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{found['joined']:,} joined rows"
    yield f"{found['seconds']:.0f} s, {found['cpu']:.0f} of the processor"
    yield f"{found['epochs']} epochs"
    yield f"resident memory at most {found['peak'] / 2**30:.2f} GiB"
    yield f"{found['before'] / 2**30:.2f} GiB of it before"
    for phase, seconds in found["phases"].items():
        yield f"{phase} {seconds:.1f}"


if __name__ == "__main__":
    main()
