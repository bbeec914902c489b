"""TablePuppet's comparison on MovieLens-1M: the traffic by which each method reaches an accuracy.

    python benchmarks/tablepuppet.py <folder with the Parquet files of MovieLens-1M>

Each run is stored in <work>/results.json when it ends, and not repeated. `--render` makes tables
and figures of the runs so far. `--only linear/titles/RFL` selects the runs whose name begins so.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from measuring import Results, insert
from movielens import HELD_OUT, MovieLens
from references import (
    LINES,
    Traffic,
    beginning,
    epochs,
    of_audit,
    optimum,
    train_centrally,
    train_vertically,
)

from sqlfl.federation.session import Federation

# -- tables ----------------------------------------------------------------------------------------


Runs = Mapping[str, Mapping[str, Any]]
TITLES = {
    "linear/plain": "Linear, without titles",
    "linear/titles": "Linear, with titles",
    "nn/plain": "Towers of 16 units, without titles",
    "nn/titles": "Towers of 16 units, with titles",
}
ON_PAGE = ("linear/titles", "nn/titles")
"""Settings whose tables the page has."""
GOALS = {"nn/titles": 1.05}
"""RMSEs to compare at that are the paper's."""
NEAR = 0.001
ORDER = (
    "centralised SGD",
    "VFL-SGD",
    "VFL-ADMM",
    "RFL-SGD-V",
    "RFL-ADMM-V",
    "L-BFGS, 1 client",
    "RFL-SGD",
    "RFL-ADMM, exact",
    "RFL-ADMM, consensus",
    "L-BFGS, 2 clients",
)


def render(results: Mapping[str, Any], settings: Iterable[str] = TITLES) -> str:
    """Return the tables of these settings, where they have runs."""
    parts = []
    if "data" in results:
        data = results["data"]
        parts.append(
            f"{data['train']:,} joined rows to train on, {data['test']:,} to test; "
            f"{data['machine']}."
        )
    for name in settings:
        runs = runs_of(results, name)
        if runs:
            parts.append(f"## {TITLES[name]}\n\n{_setting(results, name, runs)}")
    beside = _beside(results)
    if beside:
        parts.append("\n".join(["## Beside the paper", "", *beside]))
    return "\n\n".join(parts)


def runs_of(results: Mapping[str, Any], setting: str) -> dict[str, Any]:
    """Return method -> its run, in the order of methods."""
    runs = {name: results.get(f"{setting}/{name}") for name in ORDER}
    return {name: run for name, run in runs.items() if run is not None}


def equal(setting: str, runs: Runs) -> float:
    """Return the RMSE at which methods are compared. It is NEAR above the lowest RMSE that all
    methods with messages reach, or the paper's if that is higher."""
    lowest = [min(row["rmse"] for row in run["epochs"]) for run in runs.values() if sends(run)]
    return max(max(lowest, default=float("nan")) + NEAR, GOALS.get(setting, 0.0))


def sends(run: Mapping[str, Any]) -> bool:
    return run["place"] != "central"


def _setting(results: Mapping[str, Any], name: str, runs: Runs) -> str:
    same = equal(name, runs)
    lines = [_what(same), "", *_effort(runs)]
    best = results.get(f"{name}/optimum")
    if best is not None and name.startswith("linear"):
        lines[0] += f" The optimum, from one linear system, has {best['rmse']:.4f}."
    return "\n".join([*lines, "", *_ratios(runs, same)])


def _what(same: float) -> str:
    return f"Equal RMSE: {same:.4f}."


def _effort(runs: Runs) -> list[str]:
    heads = [
        "method", "rounds: an epoch", "in all", "MB: an epoch", "in all",
        "test RMSE: after an epoch", "at the end",
    ]  # fmt: skip
    lines = _heads(heads)
    for name, run in runs.items():
        rows = run["epochs"]
        last = rows[-1]
        if not sends(run):
            cells = ["-"] * 4
        else:
            rounds, size = _per_epoch(rows, _rounds), _per_epoch(rows, _bytes)
            cells = [
                _whole(rounds),
                _whole(last["rounds"]),
                f"{size / 1e6:.2f}",
                f"{_bytes(last) / 1e6:.2f}",
            ]
        lines.append(_line([name, *cells, *(f"{row['rmse']:.4f}" for row in (rows[0], last))]))
    return lines


def _ratios(runs: Runs, same: float) -> list[str]:
    """Return the communication seconds of one method over those of another."""
    pairs = (
        ("VFL-ADMM", "RFL-ADMM-V"),
        ("RFL-ADMM-V", "L-BFGS, 1 client"),
        ("RFL-ADMM, exact", "L-BFGS, 2 clients"),
        ("RFL-ADMM, consensus", "RFL-ADMM, exact"),
    )
    heads = ["seconds of communication", "US-UK, to equal RMSE", "per epoch", "one line, per epoch"]
    lines = _heads(heads)
    for more, less in pairs:
        if more not in runs or less not in runs:
            continue
        cells = [f"{more} / {less}"]
        reached = [first(runs[name], same) for name in (more, less)]
        if None in reached:
            cells.append("-")
        else:
            times = [row["seconds"]["us-uk"] for row in reached if row is not None]
            cells.append(f"{times[0] / times[1]:.2f}")
        cells += [_ratio(runs, more, less, kind) for kind in ("seconds", "shared")]
        lines.append(_line(cells))
    return lines if len(lines) > 2 else []


def _beside(results: Mapping[str, Any]) -> list[str]:
    """Return a table of the paper's numbers on this data set, for US-UK, and ours with titles."""
    linear, nn = runs_of(results, "linear/titles"), runs_of(results, "nn/titles")
    lines = _heads(["US-UK, with titles", "the paper", "here"])

    def add(what: str, theirs: str, ours: str) -> None:
        lines.append(_line([what, theirs, ours]))

    for title, runs, theirs in (("linear", linear, "about 1.09"), ("towers", nn, "about 1.05")):
        if "RFL-ADMM-V" in runs:
            rows = runs["RFL-ADMM-V"]["epochs"]
            best = f"{rows[min(5, len(rows)) - 1]['rmse']:.3f}, {rows[-1]['rmse']:.3f} at the end"
            add(f"test RMSE after 5 epochs of RFL-ADMM-V, {title}", theirs, best)
    pairs = (
        ("SGD", "RFL-SGD-V", "RFL-SGD", "175", "23.35"),
        ("ADMM", "RFL-ADMM-V", "RFL-ADMM, consensus", "10", "1.36"),
    )
    for title, single, several, rounds, seconds in pairs:
        if single in linear and several in linear:
            own = [linear[name]["epochs"] for name in (several, single)]
            more = [_per_epoch(rows, _rounds) for rows in own]
            add(
                f"rounds that the union adds to an epoch of {title}",
                rounds,
                _whole(more[0] - more[1]),
            )
            more = [_per_epoch(rows, _us_uk) for rows in own]
            add(f"seconds that it adds, {title}", seconds, f"{more[0] - more[1]:.2f}")
    return lines if len(lines) > 2 else []


def _ratio(runs: Runs, more: str, less: str, kind: str) -> str:
    """Return the seconds that an epoch adds; `kind`: 'seconds' or 'shared'."""
    times = [
        _per_epoch(runs[name]["epochs"], lambda row: row[kind]["us-uk"]) for name in (more, less)
    ]
    return f"{times[0] / times[1]:.2f}" if times[1] else "-"


def _us_uk(row: Mapping[str, Any]) -> float:
    return float(row["seconds"]["us-uk"])


def first(run: Mapping[str, Any], rmse: float) -> Mapping[str, Any] | None:
    """Return the first epoch whose test RMSE is at most the goal."""
    return next((row for row in run["epochs"] if row["rmse"] <= rmse), None)


def _per_epoch(rows: list[Mapping[str, Any]], of: Any) -> float:
    """Return the mean increase by an epoch. Costs before the first epoch are not counted."""
    if len(rows) == 1:
        return float(of(rows[0]))
    return float(of(rows[-1]) - of(rows[0])) / (len(rows) - 1)


def _rounds(row: Mapping[str, Any]) -> float:
    return float(row["rounds"])


def _bytes(row: Mapping[str, Any]) -> float:
    return float(row["bytes_up"] + row["bytes_down"])


def _whole(number: float) -> str:
    return f"{round(number):,}"


def _heads(names: list[str]) -> list[str]:
    return [_line(names), "|---|" + "---:|" * (len(names) - 1)]


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


# -- figures ---------------------------------------------------------------------------------------


STYLES = {
    "centralised SGD": ("black", "--"),
    "VFL-SGD": ("tab:gray", "-"),
    "VFL-ADMM": ("tab:brown", "-"),
    "RFL-SGD-V": ("tab:orange", "-"),
    "RFL-ADMM-V": ("tab:blue", "-"),
    "L-BFGS, 1 client": ("tab:green", "-"),
    "RFL-SGD": ("tab:orange", ":"),
    "RFL-ADMM, exact": ("tab:blue", ":"),
    "RFL-ADMM, consensus": ("tab:purple", ":"),
    "L-BFGS, 2 clients": ("tab:green", ":"),
}
MARKED = 12
"""Epochs up to which each has a mark."""


def draw(results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw tablepuppet-epochs.png and one tablepuppet-<network>.png each; return the files."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    made = [
        _figure(
            results,
            folder / "tablepuppet-epochs.png",
            "epoch",
            lambda row: row["epoch"],
            central=True,
            log=False,
        )
    ]
    for network in ("us-uk", "us-us"):
        made.append(
            _figure(
                results,
                folder / f"tablepuppet-{network}.png",
                f"seconds of communication, {network.upper()}",
                lambda row, network=network: row["seconds"][network],
                central=False,
                log=True,
            )
        )
    return made


def _figure(
    results: Mapping[str, Any],
    path: Path,
    label: str,
    place: Callable[[Mapping[str, Any]], float],
    *,
    central: bool,
    log: bool,
) -> Path:
    from matplotlib import pyplot

    shown = [name for name in TITLES if runs_of(results, name)]
    columns = min(len(shown), 2)
    lines = -(-len(shown) // columns)
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(5.0 * columns, 3.4 * lines), squeeze=False, layout="constrained"
    )
    handles: dict[str, Any] = {}
    for name, axis in zip(shown, axes.flat, strict=False):
        runs = {n: r for n, r in runs_of(results, name).items() if central or sends(r)}
        for method, run in runs.items():
            colour, style = STYLES[method]
            rows = run["epochs"]
            marker = "." if len(rows) <= MARKED else ""
            (handles[method],) = axis.plot(
                [place(row) for row in rows],
                [row["rmse"] for row in rows],
                color=colour,
                linestyle=style,
                marker=marker,
                linewidth=1.2,
            )
        lowest = min(row["rmse"] for run in runs.values() for row in run["epochs"])
        highest = max(run["epochs"][0]["rmse"] for run in runs.values())
        axis.set_ylim(lowest - 0.002, min(highest + 0.002, lowest + 0.06))
        axis.set_title(TITLES[name], fontsize=10)
        axis.set_xlabel(label)
        axis.set_ylabel("test RMSE")
        axis.grid(alpha=0.3)
        if log:
            axis.set_xscale("log")
    for axis in list(axes.flat)[len(shown) :]:
        axis.set_visible(False)
    order = [method for method in STYLES if method in handles]
    figure.legend(
        [handles[method] for method in order],
        order,
        loc="outside lower center",
        ncols=4,
        fontsize=8,
    )
    figure.savefig(path, dpi=80)
    pyplot.close(figure)
    return path


# -- runs ------------------------------------------------------------------------------------------


Options = dict[str, Any]
MODELS = {"linear": "linear_regression", "nn": "mlp_regressor"}
HIDDEN = [16]


@dataclass(frozen=True)
class Method:
    name: str
    place: str
    """'central', 'vfl' or 'rfl'."""
    algorithm: str
    clients: int = 1
    """Clients of each table, of rfl."""
    linear: Options | None = field(default_factory=dict)
    """Options for the linear model; None: it is not for it."""
    nn: Options | None = field(default_factory=dict)


CONSENSUS = {"union": "consensus", "inner_rounds": 10}
LOCAL = {"local_epochs": 20, "learning_rate": 0.03}
# a client of the materialised join has 300 times the rows: one pass is more steps than these 20
PASS = {"local_epochs": 1, "learning_rate": 0.03, "batch_size": 4096}
METHODS = (
    Method("centralised SGD", "central", "sgd", 1, {"learning_rate": 0.3}, {"learning_rate": 0.01}),
    Method("VFL-SGD", "vfl", "sgd"),
    Method("VFL-ADMM", "vfl", "admm", 1, {}, PASS),
    Method("RFL-SGD-V", "rfl", "sgd"),
    Method("RFL-ADMM-V", "rfl", "admm", 1, {}, LOCAL),
    Method("L-BFGS, 1 client", "rfl", "lbfgs", 1, {}, None),
    Method("RFL-SGD", "rfl", "sgd", 2),
    Method("RFL-ADMM, exact", "rfl", "admm", 2, {}, None),
    Method("RFL-ADMM, consensus", "rfl", "admm", 2, CONSENSUS, LOCAL | {"inner_rounds": 10}),
    Method("L-BFGS, 2 clients", "rfl", "lbfgs", 2, {}, None),
)


@dataclass(frozen=True)
class Setting:
    """A model, with titles or without."""

    model: str
    titles: bool

    @property
    def name(self) -> str:
        return f"{self.model}/{'titles' if self.titles else 'plain'}"

    def options(self, method: Method, arguments: argparse.Namespace) -> Options | None:
        found = method.linear if self.model == "linear" else method.nn
        if found is None:
            return None
        usual: Options = {"epochs": arguments.epochs}
        if method.algorithm == "sgd":
            usual["batch_size"] = arguments.batch
        return usual | found

    def statement(self, method: Method, options: Options) -> str:
        more = "2" if method.clients == 2 else ""
        given = options | {
            "algorithm": method.algorithm,
            "validation_fraction": HELD_OUT,
            "network": "us-uk",
        }
        written = ", ".join(f"{name} = {value!r}" for name, value in given.items())
        return f"""
            TRAIN MODEL m USING {MODELS[self.model]} TARGET rating WITH ({written})
            FROM (
              SELECT u.gender, u.age, u.occupation, m.year, m.genre,
                {"m.title, " if self.titles else ""}r.rating
              FROM shop.ratings r
              JOIN members{more}.users u USING (user_id)
              JOIN studio{more}.movies m USING (movie_id, genre)
            )"""


SETTINGS = tuple(Setting(model, titles) for model in MODELS for titles in (False, True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("movielens", type=Path)
    usual = Path(tempfile.gettempdir()) / "sqlfl-tablepuppet"
    parser.add_argument("--work", type=Path, default=usual, help=f"folder of work ({usual})")
    parser.add_argument("--fraction", type=float, default=1.0, help="of the ratings")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=10_000, help="joined rows of a batch of SGD")
    parser.add_argument("--only", default="", help="runs whose name begins so")
    parser.add_argument("--again", action="store_true", help="also runs that are there")
    parser.add_argument("--render", action="store_true", help="tables and figures, no runs")
    parser.add_argument("--page", type=Path, help="Markdown file to put the tables into")
    parser.add_argument("--figures", type=Path, help="folder for the figures")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    results = Results(arguments.work / "results.json")
    if not arguments.render:
        run_all(arguments, results)
    text = render(results.found)
    print(text)
    if arguments.page is not None:
        insert(arguments.page, "tablepuppet", render(results.found, ON_PAGE))
    if arguments.figures is not None:
        draw(results.found, arguments.figures)


def run_all(arguments: argparse.Namespace, results: Results) -> None:
    data = MovieLens(arguments.movielens, arguments.work, arguments.fraction)
    data.prepare()
    joins = {titles: data.joined(titles=titles) for titles in (False, True)}
    results.add("data", about(joins[False].held_out))
    with data.federation() as fed:
        for setting in SETTINGS:
            joined = joins[setting.titles]
            if setting.name + "/optimum" not in results.found:
                results.add(f"{setting.name}/optimum", optimum(joined))
            for method in METHODS:
                name = f"{setting.name}/{method.name}"
                options = setting.options(method, arguments)
                done = name in results.found and not arguments.again
                if options is None or done or not name.startswith(arguments.only):
                    continue
                print(f"{name} ...", flush=True)
                found = run(fed, joined, setting, method, options, arguments)
                found |= {"options": options, "clients": method.clients, "place": method.place}
                results.add(name, found | {"at": f"{dt.datetime.now():%Y-%m-%d %H:%M}"})
                print(f"{name}: test RMSE {found['epochs'][-1]['rmse']:.4f}", flush=True)


def run(
    fed: Federation,
    joined: Any,
    setting: Setting,
    method: Method,
    options: Options,
    arguments: argparse.Namespace,
) -> dict[str, Any]:
    hidden = HIDDEN if setting.model == "nn" else []
    if method.place == "central":
        rate = options["learning_rate"]
        return {
            "epochs": train_centrally(
                joined, hidden, arguments.epochs, arguments.batch, rate, seed=0
            )
        }
    if method.place == "vfl":
        if hidden:
            options = options | {"hidden": tuple(hidden), "activation": "relu"}
            options |= {"optimizer": "adam"} if method.algorithm == "sgd" else {}
        return {"epochs": train_vertically(joined, method.algorithm, options).rows}
    if hidden:
        options = options | {"hidden": hidden}
    fed.sql(setting.statement(method, options))
    try:
        return measured(fed)
    finally:
        fed.sql("DROP MODEL m")


def measured(fed: Federation) -> dict[str, Any]:
    """Return the history of the model m, and the traffic of its run since training began. Raise
    RuntimeError if the audit and the history disagree about the traffic."""
    model = fed.model("m")
    records = fed.audit().arrow()
    records = records.filter(pc.equal(records["run"], model.run)).sort_by("seq")
    exchanges = of_audit(records)
    first = beginning(exchanges)
    begun = records["at"][pc.index(records["kind"], "start").as_py()].as_py()
    history = model.history.to_pylist()
    ends = [row["rounds"] for row in history]
    mapped = Traffic.of(exchanges[:first])
    sums = epochs(exchanges[first:], [end - first for end in ends])
    waited = (begun - records["at"][0].as_py()).total_seconds()
    found = []
    for row, sum_ in zip(history, sums, strict=True):
        reckoned = mapped.seconds["us-uk"] + sum_["seconds"]["us-uk"]
        sent = mapped.bytes_up + sum_["bytes_up"], mapped.bytes_down + sum_["bytes_down"]
        if sent != (row["bytes_up"], row["bytes_down"]):
            raise RuntimeError(f"{sent} bytes in the audit, and in the history {row}")
        if not np.isclose(reckoned, row["comm_seconds"], rtol=1e-9):
            raise RuntimeError(f"{reckoned} s in the audit, and in the history {row}")
        found.append({
            "epoch": row["epoch"],
            "rmse": row["valid_metric"],
            "objective": row["train_loss"],
            "measured": row["seconds"] - waited,
            **sum_,
        })  # fmt: skip
    return {"epochs": found, "mapping": vars(mapped)}


def about(held_out: Any) -> dict[str, Any]:
    """Return the numbers of rows, the machine and the networks."""
    return {
        "train": int((~held_out).sum()),
        "test": int(held_out.sum()),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, numpy {np.__version__}",
        "networks": {name: [line.latency, line.bandwidth] for name, line in LINES.items()},
    }


if __name__ == "__main__":
    main()
