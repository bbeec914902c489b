"""Training over the join beside making it: time, processor time and peak memory, in turn.

    python benchmarks/speed.py [--movielens FOLDER] [--workloads linear logistic ...] [--repeats 5]
        [--rows 1e6] [--fan-out 10] [--slots 3] [--clients 1] [--results FILE] [--page FILE]

Ours: the whole TRAIN statement over the parties' databases, until the model is kept. Central: what
one would do instead, on all tables in one place (materialised.py). Both read the same files, and
each has the loosest of its tolerances, and central the best of its solvers, by which the objective
comes within 1e-4 of the optimum; that is looked for before. Every run is a process of its own that
has imported everything, and done the same on a toy table, before its time begins. Medians.

The bound: reading the joined rows once, as an int32 row number per table and a 4-byte label, at the
speed at which one thread copies memory.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path

from comparison import SIDES, Comparison
from results import Results, insert
from speed_tables import lines, render
from stars import Shape
from workloads import names, workload

LIBRARIES = ("duckdb", "numpy", "scipy", "scikit-learn", "torch", "sqlfl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--movielens", type=Path, help="folder with its Parquet files")
    parser.add_argument("--fraction", type=float, default=1.0, help="of the rows of real tables")
    parser.add_argument("--workloads", nargs="+", help="of those that there are")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=float, default=1e6, help="joined rows of generated tables")
    parser.add_argument("--fan-out", type=int, default=10)
    parser.add_argument("--slots", type=int, default=3, help="generated tables")
    parser.add_argument("--clients", type=int, default=1, help="databases of a generated table")
    parser.add_argument("--measures", type=int, default=0, help="features of the facts of a star")
    parser.add_argument("--seed", type=int, default=0)
    usual = 0.8 * _memory() / 1e9
    parser.add_argument("--memory", type=float, default=usual, help="GB for the central side")
    parser.add_argument("--folder", type=Path, help="where databases go meanwhile")
    parser.add_argument("--results", type=Path, help="JSON file to keep results in, beside others")
    parser.add_argument("--page", type=Path, help="Markdown file to put the tables into")
    parser.add_argument("--render", action="store_true", help="the tables of --results, no runs")
    own = parser.parse_args()
    known = names(own.movielens)
    chosen = known if own.workloads is None else own.workloads
    if not set(chosen) <= set(known):
        parser.error(f"workloads are {', '.join(known)}; those of MovieLens need its folder")
    with tempfile.TemporaryDirectory(dir=own.folder) as folder:
        results = Results(Path(folder) / "results.json" if own.results is None else own.results)
        if not own.render:
            _measure(own, chosen, Path(folder), results)
        text = render(results.found)
    print(f"\n{text}")
    if own.page is not None:
        insert(own.page, "speed", text)


def _measure(own: argparse.Namespace, chosen: list[str], folder: Path, results: Results) -> None:
    results.add("about", about())
    shape = Shape(round(own.rows), own.fan_out, own.slots, own.clients, own.measures, seed=own.seed)
    for name in chosen:
        made = workload(name, own.movielens, own.fraction, shape)
        compared = Comparison.of(made, folder / name, 1e9 * own.memory)
        results.add(made.task.name, compared.run(own.sides, own.repeats))
        print(lines(made.task.name, results.found[made.task.name]), flush=True)


def about() -> dict[str, str]:
    """The machine, and what runs on it."""
    versions = [f"{name} {version(name)}" for name in LIBRARIES]
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {_memory() / 2**30:.0f} GiB",
        "versions": ", ".join([f"Python {platform.python_version()}", *versions]),
    }


def _memory() -> int:
    """Bytes of the machine's."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


if __name__ == "__main__":
    main()
