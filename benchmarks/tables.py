"""The results as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Runs = Mapping[str, Mapping[str, Any]]
SETTINGS = {
    "linear/plain": "Linear, without titles",
    "linear/titles": "Linear, with titles",
    "nn/plain": "Towers of 16 units, without titles",
    "nn/titles": "Towers of 16 units, with titles",
}
TARGET = 1.10
EPOCHS = (1, 2, 3, 4, 5, 7, 10)
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


def render(found: Mapping[str, Any]) -> str:
    """All tables, for the settings that have runs."""
    parts = []
    if "data" in found:
        data = found["data"]
        parts.append(
            f"{data['train']:,} joined rows to train on, {data['test']:,} to test; "
            f"{data['machine']}."
        )
    for name, title in SETTINGS.items():
        runs = runs_of(found, name)
        if runs:
            parts.append(f"## {title}\n\n{_setting(found, name, runs)}")
    beside = _beside(found)
    if beside:
        parts.append("\n".join(["## Beside the paper", "", *beside]))
    return "\n\n".join(parts)


def runs_of(found: Mapping[str, Any], setting: str) -> dict[str, Any]:
    """Method -> its run, in the order of methods."""
    runs = {name: found.get(f"{setting}/{name}") for name in ORDER}
    return {name: run for name, run in runs.items() if run is not None}


def equal(setting: str, runs: Runs) -> float:
    """The RMSE that is compared at: NEAR above the lowest that all methods that send reach, or the
    paper's, where that is higher."""
    lowest = [min(row["rmse"] for row in run["epochs"]) for run in runs.values() if sends(run)]
    return max(max(lowest, default=float("nan")) + NEAR, GOALS.get(setting, 0.0))


def sends(run: Mapping[str, Any]) -> bool:
    return run["place"] != "central"


def _setting(found: Mapping[str, Any], name: str, runs: Runs) -> str:
    total = found["data"]["train"]
    same = equal(name, runs)
    lines = [_what(same), "", *_effort(runs, total), "", *_quality(runs), "", *_time(runs, same)]
    best = found.get(f"{name}/optimum")
    if best is not None and name.startswith("linear"):
        lines[0] += f" The optimum, from one linear system, has {best['rmse']:.4f}."
    return "\n".join([*lines, "", *_ratios(runs, same)])


def _what(same: float) -> str:
    return f"Equal RMSE: {same:.4f}."


def _effort(runs: Runs, total: int) -> list[str]:
    heads = [
        "method", "rounds: setup", "per epoch", "in all", "MB: setup", "per epoch", "in all",
        "operations per epoch: busiest client", "coordinator", "seconds measured",
        "test RMSE at the end",
    ]  # fmt: skip
    lines = _heads(heads)
    for name, run in runs.items():
        rows = run["epochs"]
        last = rows[-1]
        if not sends(run):
            cells = ["-"] * 6 + [_whole(total), "-"]
        else:
            rounds, size = _per_epoch(rows, _rounds), _per_epoch(rows, _bytes)
            operations = _per_epoch(rows, _client_rows) * run["passes"]
            merges = _per_epoch(rows, _merges) / run["clients"]
            cells = [
                _whole(rows[0]["rounds"] - rounds),
                _whole(rounds),
                _whole(last["rounds"]),
                f"{(_bytes(rows[0]) - size) / 1e6:.2f}",
                f"{size / 1e6:.2f}",
                f"{_bytes(last) / 1e6:.2f}",
                _whole(operations),
                _whole(total) + (f" + {_whole(merges)}" if merges else ""),
            ]
        cells += [f"{last['measured']:.1f}", f"{last['rmse']:.4f}"]
        lines.append(_line([name, *cells]))
    return lines


def _quality(runs: Runs) -> list[str]:
    last = max(len(run["epochs"]) for run in runs.values())
    shown = [epoch for epoch in EPOCHS if epoch <= last]
    lines = _heads(["test RMSE after epoch", *map(str, shown)])
    for name, run in runs.items():
        found = [row["rmse"] for row in run["epochs"]]
        # a method that has converged stays where it is
        cells = [f"{found[min(epoch, len(found)) - 1]:.4f}" for epoch in shown]
        lines.append(_line([name, *cells]))
    return lines


def _time(runs: Runs, same: float) -> list[str]:
    heads = ["method", "epochs to equal RMSE"]
    for network in ("US-UK", "US-US"):
        heads += [f"{network}: seconds to {TARGET:.2f}", "to equal RMSE", "all epochs"]
    lines = _heads(heads)
    for name, run in runs.items():
        if not sends(run):
            continue
        reached = first(run, same)
        cells = [name, "-" if reached is None else str(reached["epoch"])]
        for network in ("us-uk", "us-us"):
            cells += [
                _seconds(first(run, TARGET), network),
                _seconds(reached, network),
                _seconds(run["epochs"][-1], network),
            ]
        lines.append(_line(cells))
    return lines


def _ratios(runs: Runs, same: float) -> list[str]:
    """Communication seconds of one method over those of another."""
    pairs = (
        ("VFL-ADMM", "RFL-ADMM-V"),
        ("RFL-ADMM-V", "L-BFGS, 1 client"),
        ("RFL-ADMM, exact", "L-BFGS, 2 clients"),
        ("RFL-ADMM, consensus", "RFL-ADMM, exact"),
        ("RFL-SGD-V", "RFL-ADMM-V"),
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


def _beside(found: Mapping[str, Any]) -> list[str]:
    """The paper's numbers on this data set, for US-UK, and ours with titles."""
    linear, nn = runs_of(found, "linear/titles"), runs_of(found, "nn/titles")
    lines = _heads(["US-UK, with titles", "the paper", "here"])

    def add(what: str, theirs: str, ours: str) -> None:
        lines.append(_line([what, theirs, ours]))

    for title, runs, theirs in (("linear", linear, "about 1.09"), ("towers", nn, "about 1.05")):
        if "RFL-ADMM-V" in runs:
            rows = runs["RFL-ADMM-V"]["epochs"]
            best = f"{rows[min(5, len(rows)) - 1]['rmse']:.3f}, {rows[-1]['rmse']:.3f} at the end"
            add(f"test RMSE after 5 epochs of RFL-ADMM-V, {title}", theirs, best)
    for title, runs in (("linear", linear), ("towers", nn)):
        if "VFL-ADMM" in runs and "RFL-ADMM-V" in runs:
            ratio = _ratio(runs, "VFL-ADMM", "RFL-ADMM-V", "seconds")
            add(f"seconds of an epoch, VFL-ADMM over RFL-ADMM-V, {title}", "4.3", ratio)
            ratio = _ratio(runs, "VFL-ADMM", "RFL-ADMM-V", "shared")
            add(f"the same, clients on one line, {title}", "4.3", ratio)
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
    """Of the seconds that an epoch adds; `kind`: 'seconds' or 'shared'."""
    times = [
        _per_epoch(runs[name]["epochs"], lambda row: row[kind]["us-uk"]) for name in (more, less)
    ]
    return f"{times[0] / times[1]:.2f}" if times[1] else "-"


def _us_uk(row: Mapping[str, Any]) -> float:
    return float(row["seconds"]["us-uk"])


def first(run: Mapping[str, Any], rmse: float) -> Mapping[str, Any] | None:
    """The first epoch whose test RMSE is no more."""
    return next((row for row in run["epochs"] if row["rmse"] <= rmse), None)


def _per_epoch(rows: list[Mapping[str, Any]], of: Any) -> float:
    """What an epoch adds; what comes before the first one is in no epoch."""
    if len(rows) == 1:
        return float(of(rows[0]))
    return float(of(rows[-1]) - of(rows[0])) / (len(rows) - 1)


def _rounds(row: Mapping[str, Any]) -> float:
    return float(row["rounds"])


def _bytes(row: Mapping[str, Any]) -> float:
    return float(row["bytes_up"] + row["bytes_down"])


def _client_rows(row: Mapping[str, Any]) -> float:
    return float(row["client_rows"])


def _merges(row: Mapping[str, Any]) -> float:
    return float(row["merges"])


def _seconds(row: Mapping[str, Any] | None, network: str) -> str:
    return "-" if row is None else f"{row['seconds'][network]:.2f}"


def _whole(number: float) -> str:
    return f"{round(number):,}"


def _heads(names: list[str]) -> list[str]:
    return [_line(names), "|---|" + "---:|" * (len(names) - 1)]


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
