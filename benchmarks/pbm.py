"""Experiments of PBM-VFL with `algorithm = 'pbm'`: Phishing and Activity over parties with some
columns each, and a join of tables that are not aligned.

Each setting of bins and θ is trained with binomial draws (PBM). LDP replaces the draws by Gaussian
noise of each party, with the variance that the paper sets. NPQ has neither.

Each run is stored when it ends, and a second call makes only the missing runs; the first seed comes
first. The data may not be passed on: give the folders with their Parquet files.

    python benchmarks/pbm.py [--phishing folder] [--activity folder] [--work folder] [--epochs 20]
        [--seeds 3] [--processes 2] [--join 3] [--page docs/results/pbm.md] [--figures docs/figures]

It needs pip install 'sqlfl[bench,neural,plot]'.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from aligned import Setting, activity, phishing, run
from measuring import Results, insert, table
from workloads import Task, flights

# -- a join ----------------------------------------------------------------------------------------


OPTIONS = {
    "algorithm": "pbm",
    "hidden": [32, 16],
    "embedding": 16,
    "batch_size": 1000,
    "learning_rate": 0.01,
}
TEST = "f.flight % 5 = 0"
PRIVACY = {"NPQ": "", "PBM": "PRIVACY (bins = 64, theta = 0.25, statistics = 'none')"}
"""Clauses by method. Protection of the columns' scales does not matter here."""


def joined(runs: int, epochs: int, rows: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield each run's method, auc and accuracy on the test rows, bytes, seconds and joined rows.
    `rows`: maximum number of flights of each airport."""
    task = late(rows)
    for _ in range(runs):
        for method, clause in PRIVACY.items():
            with task.federation() as fed:
                statement = _of(task, f"NOT ({TEST})").statement(**OPTIONS, epochs=epochs)
                fed.sql(statement.replace("FROM (SELECT", f"{clause} FROM (SELECT", 1))
                model = fed.model("m")
                last = model.history.to_pylist()[-1]
                found = fed.sql(f"EVALUATE MODEL m FROM ({_of(task, TEST).query})").arrow()
            yield {
                "method": method,
                "rows": model.metrics["rows"],
                "test rows": found["rows"][0].as_py(),
                "auc": found["auc"][0].as_py(),
                "accuracy": found["accuracy"][0].as_py(),
                "up": last["bytes_up"],
                "down": last["bytes_down"],
                "seconds": last["seconds"],
                "epochs": epochs,
            }


def late(rows: int | None) -> Task:
    task = replace(flights(airports=False), kind="mlp_classifier")
    if rows is None:
        return task
    few = tuple(f"{own} ORDER BY ALL LIMIT {rows}" for own in task.tables["airline.flights"])
    return replace(task, tables={**task.tables, "airline.flights": few})


def _of(task: Task, condition: str) -> Task:
    return replace(task, query=f"{task.query} AND {condition}")


# -- tables and figure -----------------------------------------------------------------------------


Found = Mapping[str, Any]
THETAS = (0.1, 0.15, 0.2, 0.25)
SHOWN_THETAS = (0.1, 0.25)
BINS = {"phishing": (8, 16, 32, 64), "activity": (8, 16, 64, 128)}
SHOWN = (8, 64)
"""Bins of the rows of tables; SHOWN_THETAS are their θ."""
PARTIES = (5, 10)
TITLES = {"phishing": "Phishing, AUPRC", "activity": "Activity, accuracy"}
TARGETS = {"phishing": 0.9, "activity": 0.8}
OUTSIDE: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
PAPER: dict[str, dict[tuple[int, float], tuple[int, float]]] = {
    "phishing": {
        (8, 0.15): (86, 2.18),
        (8, 0.2): (41, 1.04),
        (8, 0.25): (23, 0.58),
        (16, 0.1): (98, 2.54),
        (16, 0.15): (34, 0.88),
        (16, 0.2): (15, 0.39),
        (16, 0.25): (8, 0.21),
        (32, 0.1): (35, 0.92),
        (32, 0.15): (12, 0.32),
        (32, 0.2): (5, 0.13),
        (32, 0.25): (3, 0.08),
        (64, 0.1): (15, 0.40),
        (64, 0.15): (4, 0.11),
        (64, 0.2): (3, 0.08),
        (64, 0.25): (2, 0.05),
        (0, 0.0): (2, 0.09),
    },
    "activity": {
        (8, 0.2): (92, 1.94),
        (8, 0.25): (66, 1.39),
        (16, 0.15): (92, 1.98),
        (16, 0.2): (54, 1.16),
        (16, 0.25): (31, 0.67),
        (64, 0.1): (56, 1.25),
        (64, 0.15): (23, 0.51),
        (64, 0.2): (12, 0.27),
        (64, 0.25): (10, 0.22),
        (128, 0.1): (24, 0.55),
        (128, 0.15): (12, 0.27),
        (128, 0.2): (10, 0.22),
        (128, 0.25): (10, 0.22),
        (0, 0.0): (10, 0.38),
    },
}
"""Tables 2 and 3 of the paper, 5 parties: (bins, θ) -> epochs and GB to the target; not reached in
100 epochs where there is none. (0, 0) is NPQ."""


def run_key(
    data: str, parties: int, method: str, bins: int, theta: float, seed: int, epochs: int
) -> str:
    return f"{data}/{parties}/{method}/{bins}/{theta}/{seed}/{epochs}"


def runs(
    results: Found, data: str, parties: int, method: str, bins: int, theta: float
) -> list[Any]:
    """Return the epochs of each run of this setting, for every seed."""
    start = f"{data}/{parties}/{method}/{bins}/{theta}/"
    return [run["epochs"] for name, run in results.items() if name.startswith(start)]


def render(results: Found) -> str:
    """Return all tables for which there are runs."""
    parts = []
    for data, title in TITLES.items():
        if runs(results, data, 5, "NPQ", 0, 0.0):
            parts += [f"## {title}", "\n".join(_setting(results, data))]
    if "join" in results:
        parts += ["## A join", "\n".join(_join(results["join"]["runs"]))]
    return "\n\n".join(parts)


def _setting(results: Found, data: str) -> list[str]:
    """Return a table with a row for each setting: epochs and bytes to the target, and the test's
    measure after the last epoch."""
    heads = [f"setting; to {TARGETS[data]}:", "epochs", "MB up", "MB", "paper: epochs", "GB"]
    for parties in PARTIES:
        heads += [f"test, {parties} parties: PBM", "LDP"]
    shown = [("NPQ", 0, 0.0), *(("PBM", bins, theta) for bins in SHOWN for theta in SHOWN_THETAS)]
    rows = [[*_reaching(results, data, *one), *_ends(results, data, *one[1:])] for one in shown]
    return table(heads, rows)


def _reaching(results: Found, data: str, method: str, bins: int, theta: float) -> list[str]:
    histories = runs(results, data, 5, method, bins, theta)
    reached = [first(epochs, TARGETS[data]) for epochs in histories]
    label = "NPQ" if not bins else f"b = {bins}, θ = {theta:g}"
    paper = PAPER[data].get((bins, theta))
    paper_cells = ["> 100", "-"] if paper is None else [str(paper[0]), f"{paper[1]:.2f}"]
    if not histories:
        return [label, "-", "-", "-", *paper_cells]
    finished = [row for row in reached if row is not None]
    if len(finished) < len(reached):
        return [label, f"> {histories[0][-1]['epoch']}", "-", "-", *paper_cells]
    ups = mean(row["up"] for row in finished) / 1e6
    total = mean(row["up"] + row["down"] for row in finished) / 1e6
    epochs = mean(row["epoch"] for row in finished)
    return [label, f"{epochs:.3g}", f"{ups:.2f}", f"{total:.1f}", *paper_cells]


def first(epochs: Sequence[Mapping[str, float]], target: float) -> Mapping[str, float] | None:
    """Return the first epoch that reaches the target, as the coordinator sees it."""
    return next((row for row in epochs if row["train seen"] >= target), None)


def _ends(results: Found, data: str, bins: int, theta: float) -> list[str]:
    cells = []
    for parties in PARTIES:
        for method in ("PBM", "LDP") if bins else ("NPQ", ""):
            histories = runs(results, data, parties, method, bins, theta if bins else 0.0)
            has_cell = histories and method
            cells.append(f"{mean(r[-1]['test seen'] for r in histories):.3f}" if has_cell else "-")
    return cells


def _join(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    heads = ["method", "joined rows", "test AUC", "test accuracy", "MB up", "MB down", "seconds"]
    rows = []
    for method in ("NPQ", "PBM"):
        method_runs = [run for run in runs if run["method"] == method]
        sizes = [f"{mean(run[k] for run in method_runs) / 1e6:.0f}" for k in ("up", "down")]
        scores = [f"{100 * mean(run[k] for run in method_runs):.2f} %" for k in ("auc", "accuracy")]
        seconds = f"{mean(run['seconds'] for run in method_runs):.0f}"
        rows.append(
            [
                f"{method}, {len(method_runs)} runs",
                f"{method_runs[0]['rows']:,}",
                *scores,
                *sizes,
                seconds,
            ]
        )
    return table(heads, rows)


def draw(results: Found, path: Path) -> None:
    """Draw the test's measure by epoch, as the coordinator sees it, at the largest θ."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [data for data in TITLES if runs(results, data, 5, "NPQ", 0, 0.0)]
    figure, axes = pyplot.subplots(
        len(shown), 2, figsize=(11.0, 3.4 * len(shown)), squeeze=False, layout="constrained"
    )
    for data, line in zip(shown, axes, strict=True):
        for parties, axis in zip(PARTIES, line, strict=True):
            _lines(results, data, parties, axis)
            axis.set_title(f"{TITLES[data]}, {parties} parties, θ = {THETAS[-1]}", fontsize=10)
            axis.set_xlabel("epoch")
            axis.grid(alpha=0.3)
        if line[0].lines:
            line[1].legend(*line[0].get_legend_handles_labels(), fontsize=8, **OUTSIDE)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def _lines(results: Found, data: str, parties: int, axis: Any) -> None:
    _line(axis, runs(results, data, parties, "NPQ", 0, 0.0), "NPQ", "black", "-")
    colours = ("tab:blue", "tab:green", "tab:orange", "tab:red")
    for bins, colour in zip(BINS[data], colours, strict=True):
        for method, style in (("PBM", "-"), ("LDP", ":")):
            histories = runs(results, data, parties, method, bins, THETAS[-1])
            _line(axis, histories, f"{method}, b = {bins}", colour, style)


def _line(axis: Any, runs: Sequence[Any], label: str, colour: str, style: str) -> None:
    if runs:
        epochs = [row["epoch"] for row in runs[0]]
        values = [mean(run[place]["test seen"] for run in runs) for place in range(len(epochs))]
        axis.plot(epochs, values, color=colour, linestyle=style, linewidth=1.2, label=label)


# -- experiments -----------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description="PBM-VFL's experiments")
    parser.add_argument("--phishing", type=Path)
    parser.add_argument("--activity", type=Path)
    parser.add_argument("--work", type=Path, default=Path("/tmp/pbm"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--join", type=int, default=0, help="runs of the join")
    parser.add_argument("--flights", type=int, help="of each airport, for the join; all by default")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--figures", type=Path)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    results = Results(arguments.work / "pbm.json")
    folders = {"phishing": arguments.phishing, "activity": arguments.activity}
    make(results, folders, settings(arguments.seeds, arguments.epochs), arguments.processes)
    if arguments.join and "join" not in results.found:
        results.add("join", {"runs": list(joined(arguments.join, 5, arguments.flights))})
    print(render(results.found))
    if arguments.page is not None:
        insert(arguments.page, "pbm", render(results.found))
    if arguments.figures is not None:
        draw(results.found, arguments.figures / "pbm.png")


def make(
    results: Results,
    folders: Mapping[str, Path | None],
    wanted: Iterable[Setting],
    processes: int,
) -> None:
    """Make the runs that are missing."""
    jobs = {
        key(name, setting): (name, str(folder), setting)
        for setting in wanted
        for name, folder in folders.items()
        if folder is not None and setting.bins in (0, *BINS[name])
    }
    missing = {name: job for name, job in jobs.items() if name not in results.found}
    if not missing:
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        waiting = {pool.submit(trained, *job): name for name, job in missing.items()}
        for number, done in enumerate(as_completed(waiting)):
            results.add(waiting[done], {"epochs": done.result()})
            last = done.result()[-1]
            measured = f"test {last['test']:.4f}, seen {last['test seen']:.4f}"
            print(f"{number + 1}/{len(missing)} {waiting[done]}: {measured}", flush=True)


def settings(seeds: int, epochs: int) -> list[Setting]:
    """Return the cases that show most first: few parties, the first seed, large θ."""
    found = []
    for seed, parties in product(range(seeds), PARTIES):
        found.append(Setting(parties, seed=seed, epochs=epochs))
        for theta, bins in product(THETAS, sorted({b for own in BINS.values() for b in own})):
            drawn = Setting(parties, bins, theta, seed=seed, epochs=epochs)
            found += [drawn, replace(drawn, local=True)]
    return sorted(found, key=_rank)


def _rank(setting: Setting) -> tuple[object, ...]:
    return (
        setting.seed + PARTIES.index(setting.parties),
        setting.bins > 0,
        -setting.theta,
        setting.local,
        -setting.bins,
    )


def key(name: str, setting: Setting) -> str:
    return run_key(
        name,
        setting.parties,
        setting.method,
        setting.bins,
        setting.theta,
        setting.seed,
        setting.epochs,
    )


def trained(name: str, folder: str, setting: Setting) -> list[dict[str, float]]:
    data = phishing(Path(folder), setting.seed) if name == "phishing" else activity(Path(folder))
    return run(data, setting)


if __name__ == "__main__":
    main()
