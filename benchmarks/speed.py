"""Training over the join beside making it: time, processor time and peak memory, in turn.

    python benchmarks/speed.py [--movielens FOLDER] [--workloads linear logistic ...] [--repeats 5]
        [--rows 1e6] [--fan-out 10] [--slots 3] [--clients 1] [--results FILE] [--page FILE]

Ours: the whole TRAIN statement over the parties' databases, until the model is stored. Central: the
usual alternative, on all tables in one place (materialised.py). Both read the same files. A search
before the runs selects the loosest tolerance of each side, and the best central solver, by which
the objective comes within 1e-4 of the optimum. Every run is a process of its own. Before its time
begins, it has imported everything and done the same on a toy table. Results are medians.

The bound: reading the joined rows once, as an int32 row number per table and a 4-byte label, at the
speed at which one thread copies memory.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import federated
import materialised
from federated import PHASES
from materialised import SUMS, TORCH, Optimum, Solver, optimum
from measuring import Failed, Results, bandwidth, fresh, insert, medians, table
from workloads import Shape, Stored, Workload, names, toy, workload

# -- both sides in turn ----------------------------------------------------------------------------


GAP = 1e-4
"""Relative distance of the objective from the optimum."""
SURE = 0.5
"""Share of the gap to which tolerances are chosen, as that is on fewer rows."""
SIDES = ("ours", "central", SUMS)
"""The last of linear models only."""


@dataclass(frozen=True)
class Way:
    """One side, ready to run."""

    how: str
    run: Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Comparison:
    workload: Workload
    stored: Stored
    trial: Stored
    """On which tolerances are chosen."""
    toy: Stored
    memory: float
    """Bytes that the central side may take."""

    @classmethod
    def of(cls, workload: Workload, folder: Path, memory: float) -> Comparison:
        """Write the databases into the folder."""
        stored = Stored.of(workload.task, folder / "all")
        same = workload.trial == workload.task
        trial = stored if same else Stored.of(workload.trial, folder / "trial")
        return cls(
            workload, stored, trial, Stored.of(toy(workload.task.kind), folder / "toy"), memory
        )

    def run(self, sides: Sequence[str], repeats: int) -> dict[str, Any]:
        """Return `rows`, `width`, `optimum`, `bandwidth`, `bound` (seconds), and facts of each
        side: the medians of `Watch`, its `gap` and `how` it was run; or the reason why it `failed`.
        """
        best = fresh(_optimum, self.stored)
        trial = best if self.trial is self.stored else fresh(_optimum, self.trial)
        given = [side for side in sides if side != SUMS or self._linear]
        found: dict[str, Any] = {}
        ways: dict[str, Way] = {}
        for side in given:
            try:
                ways[side] = self._way(side, best, trial)
            except Failed as reason:
                found[side] = {"failed": str(reason)}
        runs, speeds = _in_turn(ways, found, repeats)
        for side, measured in runs.items():
            found[side] = medians(measured) | {"how": ways[side].how}
            found[side]["gap"] = _gap(found[side]["objective"], best)
        speed = statistics.median(speeds)
        return found | {
            "at": f"{dt.datetime.now():%Y-%m-%d %H:%M}",
            "repeats": repeats,
            "rows": best.rows,
            "width": best.width,
            "optimum": best.objective,
            "bandwidth": speed,
            "bound": 4 * (self.workload.sides + 1) * best.rows / speed,
        }

    @property
    def _linear(self) -> bool:
        return self.workload.task.kind == "linear_regression"

    def _way(self, side: str, best: Optimum, trial: Optimum) -> Way:
        """Return the side's way to reach the optimum. Raise Failed if there is none."""
        if side == "ours":
            return self._ours(trial)
        return self._central(Solver(SUMS)) if side == SUMS else self._matrix(best, trial)

    def _ours(self, trial: Optimum) -> Way:
        options = dict(self.workload.options)
        if trial.objective is not None:
            goal = trial.objective * (1 + SURE * GAP)
            options["tolerance"] = fresh(federated.tolerance, self.trial, options, goal)
        how = f"{options['tolerance']:.0e}" if "tolerance" in options else "as given"
        return Way(how, lambda: fresh(federated.run, self.stored, options, self.toy))

    def _matrix(self, best: Optimum, trial: Optimum) -> Way:
        needed = materialised.needs(best.rows, best.columns, best.width)
        if needed > self.memory:
            raise Failed(
                f"the matrix and what it is made of need {needed / 2**30:.1f} GiB, and there are "
                f"{self.memory / 2**30:.1f}"
            )
        if trial.objective is None:
            return self._central(Solver(TORCH))
        goal = trial.objective * (1 + SURE * GAP)
        return self._central(fresh(materialised.choose, self.trial, goal))

    def _central(self, solver: Solver) -> Way:
        run, work = materialised.run, self.workload
        return Way(str(solver), lambda: fresh(run, self.stored, solver, work, self.toy))


def _in_turn(
    ways: Mapping[str, Way], found: dict[str, Any], repeats: int
) -> tuple[dict[str, list[dict[str, Any]]], list[float]]:
    """Return the figures of each of the `ways`, and bandwidths; a side that fails goes into
    `found`."""
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in ways}
    speeds = [bandwidth()]
    for _ in range(repeats):
        for side in list(runs):
            try:
                runs[side].append(ways[side].run())
            except Failed as reason:
                found[side] = {"failed": str(reason)}
                del runs[side]
        speeds.append(bandwidth())
    return runs, speeds


def _optimum(stored: Stored) -> Optimum:
    with stored.centre() as con:
        return optimum(con, stored.task)


def _gap(objective: float, best: Optimum) -> float | None:
    return None if best.objective is None else objective / best.objective - 1


# -- tables ----------------------------------------------------------------------------------------


Found = Mapping[str, Any]
SUMMARY = (
    "workload", "joined rows",
    "ours, s", "central, s", "ours / central",
    "peak: ours, GiB", "central, GiB",
)  # fmt: skip
OURS = ("ours, seconds", *PHASES, "epochs", "gap")
CENTRAL = ("central, seconds", "join", "encode", "fit", "gap", "how")


def render(results: Mapping[str, Found]) -> str:
    """Return all tables."""
    runs = {name: run for name, run in results.items() if name != "about"}
    parts = []
    if "about" in results:
        about = results["about"]
        parts.append(f"{about['machine']}; {about['versions']}.")
    parts.append(
        "\n".join(table(SUMMARY, [row for item in runs.items() for row in _summary(*item)]))
    )
    ours = [[name, *_ours(run["ours"])] for name, run in _with(runs, "ours")]
    central = [
        [name, *_central(run[side])]
        for side in ("central", SUMS)
        for name, run in _with(runs, side)
    ]
    parts += ["\n".join(table(*t)) for t in ((OURS, ours), (CENTRAL, central)) if t[1]]
    reasons = list(_reasons(runs))
    return "\n\n".join([*parts, *(["\n".join(reasons)] if reasons else [])])


def lines(name: str, run: Found) -> str:
    """Return the rows of the first table."""
    return "\n".join(table(SUMMARY, _summary(name, run))[2:])


def _summary(name: str, run: Found) -> list[list[str]]:
    """A row, and one for sums in SQL, where there are any."""
    rows = [_beside(name, run, "central")]
    return [*rows, _beside(f"{name}, sums in SQL", run, SUMS)] if SUMS in run else rows


def _beside(name: str, run: Found, other: str) -> list[str]:
    sides = [run.get(side, {}) for side in ("ours", other)]
    cells = [name, f"{run['rows']:,}"]
    for key, unit in (("seconds", 1), ("peak", 2**30)):
        values = [side.get(key) for side in sides]
        cells += ["-" if value is None else f"{value / unit:.2f}" for value in values]
        if key == "seconds":
            cells.append("-" if None in values else f"{values[0] / values[1]:.2f}")
    return cells


def _with(runs: Mapping[str, Found], side: str) -> Iterator[tuple[str, Found]]:
    return ((name, run) for name, run in runs.items() if "seconds" in run.get(side, {}))


def _ours(side: Found) -> list[str]:
    cells = [f"{side['phases'][phase]:.2f}" for phase in PHASES]
    return [*cells, f"{side['epochs']:.0f}", _gap_cell(side)]


def _central(side: Found) -> list[str]:
    phases = side["phases"]
    cells = [f"{phases[p]:.2f}" if p in phases else "-" for p in ("join", "encode", "fit")]
    return [*cells, _gap_cell(side), side["how"]]


def _gap_cell(side: Found) -> str:
    """Return the text of a result's gap. For a network it is the objective, because nobody knows
    the optimum."""
    gap = side["gap"]
    return f"objective {side['objective']:.4f}" if gap is None else f"{gap:.0e}"


def _reasons(runs: Mapping[str, Found]) -> Iterator[str]:
    for name, run in runs.items():
        for side in ("ours", "central", SUMS):
            if "failed" in run.get(side, {}):
                yield f"- {name}, {side}: {run[side]['failed']}"


# -- command line ----------------------------------------------------------------------------------


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
    args = parser.parse_args()
    all_names = names(args.movielens)
    chosen = all_names if args.workloads is None else args.workloads
    if not set(chosen) <= set(all_names):
        parser.error(f"workloads are {', '.join(all_names)}; those of MovieLens need its folder")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        results = Results(Path(folder) / "results.json" if args.results is None else args.results)
        if not args.render:
            _measure(args, chosen, Path(folder), results)
        text = render(results.found)
    print(f"\n{text}")
    if args.page is not None:
        insert(args.page, "speed", text)


def _measure(args: argparse.Namespace, chosen: list[str], folder: Path, results: Results) -> None:
    results.add("about", about())
    shape = Shape(
        round(args.rows),
        args.fan_out,
        args.slots,
        args.clients,
        args.measures,
        seed=args.seed,
    )
    for name in chosen:
        made = workload(name, args.movielens, args.fraction, shape)
        compared = Comparison.of(made, folder / name, 1e9 * args.memory)
        results.add(made.task.name, compared.run(args.sides, args.repeats))
        print(lines(made.task.name, results.found[made.task.name]), flush=True)


def about() -> dict[str, str]:
    """Return a text about the machine and its software."""
    versions = [f"{name} {version(name)}" for name in LIBRARIES]
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {_memory() / 2**30:.0f} GiB",
        "versions": ", ".join([f"Python {platform.python_version()}", *versions]),
    }


def _memory() -> int:
    """Return the bytes of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


if __name__ == "__main__":
    main()
