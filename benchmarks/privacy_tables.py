"""The results of privacy_movielens.py and privacy_flights.py as Markdown, and as a figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from results import table

from sqlfl.planner.explain.card import upwards

Run = Mapping[str, Any]
Found = Mapping[str, Any]
COORDINATOR, USERS = "coordinator", "users of the model"
PLACES = {
    "linear/plain": "linear",
    "linear/titles": "linear, with titles",
    "nn/plain": "towers",
    "nn/titles": "towers, with titles",
}
LIMITS = {"linear": 0.05, "nn": 0.02}
"""By how much the paper's private models are worse, at most."""
WAYS = {
    "gaussian": "SGD, predictions 'gaussian'",
    "admm": "ADMM, predictions 'gaussian'",
    "none": "SGD, predictions 'none'",
}


def epsilons(run: Run, observer: str) -> dict[str, float | None]:
    """Unit -> the largest ε of what this observer sees of it; None where some of it has none.

    Labels apart; features by the table that they are of.
    """
    found: dict[str, float | None] = {}
    for release in run["report"]["releases"]:
        if observer not in release["observer"]:
            continue
        kind = "labels" if release["kind"] == "labels" else "features"
        unit = release["unit"] or kind
        known, own = found.get(unit, 0.0), release["epsilon"]
        found[unit] = None if known is None or own is None else max(known, own)
    return found


def told(run: Run, kind: str, observer: str, table_name: str = "") -> str:
    """ε of a kind of release, as the report says it: the largest, 'none' where one has none."""
    found = [
        release["epsilon"]
        for release in run["report"]["releases"]
        if release["kind"] == kind
        and observer in release["observer"]
        and (table_name in release["unit"] or not release["unit"])
    ]
    if not found:
        return "-"
    return "none" if None in found else upwards(max(found))


def movielens(found: Found) -> str:
    """All tables, of the runs that are there."""
    if "data" not in found:
        return ""
    data = found["data"]
    lines = [
        f"{data['train']:,} joined rows to train on, {data['test']:,} to test; "
        f"z = {data['multiplier']:.3f} in the paper's setting.",
    ]
    for title, part in (
        ("The paper's setting, and what it is worth", _paper(found)),
        ("By epoch", _by_epoch(found)),
        ("At a real ε", _real(found)),
        ("Options of the runs at a real ε", _options(found)),
    ):
        if len(part) > 2:
            lines += ["", f"### {title}", "", *part]
    return "\n".join(lines)


def _paper(found: Found) -> list[str]:
    heads = [
        "model", "test RMSE without privacy", "in the paper's setting", "worse by",
        "the paper: at most", "seconds of communication, US-UK", "ε as the paper counts",
        "labels: ε, anyone", "users' features: ε, users of the model",
        "movies' features: ε, users of the model", "features: ε, coordinator and other parties",
    ]  # fmt: skip
    rows = []
    for place, title in PLACES.items():
        for algorithm in ("sgd", "admm"):
            free, private = (
                found.get(f"{place}/{algorithm}"),
                found.get(f"{place}/{algorithm} paper"),
            )
            if free is None or private is None:
                continue
            name = f"{title}, {algorithm.upper()}"
            limit = f"{LIMITS[place.partition('/')[0]]:.2f}"
            if "refused" in private:
                rows.append([name, f"{free['rmse'][-1]:.4f}", "refused", "-", limit] + ["-"] * 6)
                continue
            before, after = free["rmse"][-1], private["rmse"][-1]
            rows.append([
                name,
                f"{before:.4f}",
                f"{after:.4f}",
                f"{after - before:+.4f}",
                limit,
                f"{private['comm_seconds']:.1f}",
                "1",
                told(private, "labels", COORDINATOR),
                told(private, "the model's parameters", USERS, "users"),
                told(private, "the model's parameters", USERS, "movies"),
                told(private, "predictions", COORDINATOR),
            ])  # fmt: skip
    return table(heads, rows)


def _by_epoch(found: Found) -> list[str]:
    rows = []
    epochs: list[int] = []
    for place, title in PLACES.items():
        for name, words in (("sgd", ""), ("sgd paper", ", the paper's setting"), ("admm", "")):
            run = found.get(f"{place}/{name}")
            if run is None or "epochs" not in run:
                continue
            kind = name.partition(" ")[0].upper()
            epochs = epochs or [row["epoch"] for row in run["epochs"]]
            cells = [f"{row['rmse']:.4f}" for row in run["epochs"]]
            cells += ["-"] * (len(epochs) - len(cells))
            times = [row["comm_seconds"] for row in run["epochs"]]
            each = (times[-1] - times[0]) / max(len(times) - 1, 1)
            rows.append([f"{title}, {kind}{words}", *cells, f"{times[0]:.1f} + {each:.2f}"])
    heads = ["test RMSE after epoch", *map(str, epochs), "seconds, US-UK: first, and each more"]
    return table(heads, rows)


def _real(found: Found) -> list[str]:
    heads = [
        "model", "test RMSE: no privacy", *(f"ε = {e}" for e in (8, 4, 1)),
        "of ε = 1: against whom", "joined rows kept", "seconds of communication, US-UK",
    ]  # fmt: skip
    rows = []
    for model, title in (("linear", "linear"), ("nn", "towers")):
        free = found.get(f"{model}/plain/sgd")
        for way, words in WAYS.items():
            runs = [found.get(f"{model}/plain/{way}/{epsilon}") for epsilon in (8, 4, 1)]
            if free is None or all(run is None for run in runs):
                continue
            last = next(run for run in reversed(runs) if run is not None)
            rows.append([
                f"{title}, {words}",
                f"{free['rmse'][-1]:.4f}",
                *map(_spread, runs),
                _against(last),
                _kept(last),
                "-" if "refused" in last else f"{last['comm_seconds']:.1f}",
            ])  # fmt: skip
    return table(heads, rows)


def _spread(run: Run | None) -> str:
    """The mean of the repeated runs, and their range."""
    if run is None:
        return "-"
    if "refused" in run:
        return "refused"
    low, high = min(run["rmse"]), max(run["rmse"])
    return f"{sum(run['rmse']) / len(run['rmse']):.4f} ({low:.4f} to {high:.4f})"


def _against(run: Run) -> str:
    if "refused" in run:
        return "-"
    if told(run, "predictions", COORDINATOR) == "none":
        return "users of the model"
    return "all but the row's own client"


def _kept(run: Run) -> str:
    if "refused" in run:
        return "-"
    return f"{run['metrics']['rows']:,}" if "rows" in run["metrics"] else "-"


def _options(found: Found) -> list[str]:
    rows = []
    for model in ("linear", "nn"):
        for way in WAYS:
            for epsilon in (8, 4, 1):
                run = found.get(f"{model}/plain/{way}/{epsilon}")
                if run is None:
                    continue
                given = run["options"] | {
                    name: value
                    for name, value in run["privacy"].items()
                    if name not in ("feature_bounds", "label_bounds")
                }
                text = ", ".join(f"{name} = {value}" for name, value in given.items())
                rows.append([f"{model}, {way}, ε = {epsilon}", f"`{text}`"])
    return table(["run", "options"], rows)


NAMES = {
    "labels": "labels, L-BFGS",
    "parameters": "parameters, SGD with exact predictions",
    "both": "predictions and parameters, SGD",
}


def flights(found: Found) -> str:
    if "data" not in found:
        return ""
    data = found["data"]
    lines = [f"{data['train']:,} flights to train on, {data['test']:,} to test."]
    columns: Sequence[str] = [*data["epsilons"], "none"]
    heads = ["AUC on the test flights, ε =", *map(str, columns)]
    rows = [
        [title, *(_auc(found.get(f"{name}/{epsilon}")) for epsilon in columns)]
        for name, title in NAMES.items()
    ]
    lines += ["", *table(heads, rows), "", *_flight_options(found, columns)]
    return "\n".join(lines)


def _auc(run: Run | None) -> str:
    if run is None:
        return "-"
    if "refused" in run:
        return "refused"
    low, high = min(run["auc"]), max(run["auc"])
    mean = sum(run["auc"]) / len(run["auc"])
    return f"{mean:.4f}" if len(run["auc"]) == 1 else f"{mean:.4f} ({low:.4f} to {high:.4f})"


def _flight_options(found: Found, columns: Iterable[object]) -> list[str]:
    rows = []
    for name, title in NAMES.items():
        for epsilon in columns:
            run = found.get(f"{name}/{epsilon}")
            if run is None:
                continue
            privacy = {k: v for k, v in run["privacy"].items() if k != "feature_bounds"}
            text = ", ".join(f"{k} = {v}" for k, v in (run["options"] | privacy).items())
            rows.append([f"{title}, ε = {epsilon}", f"`{text}`"])
    return table(["run", "options"], rows)


def figure(found: Found, path: Path) -> None:
    """AUC by ε, the three ways, beside the models without privacy."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn, axis = pyplot.subplots(figsize=(6.0, 3.8), layout="constrained")
    epsilons = found["data"]["epsilons"]
    for name, colour, marker in (
        ("labels", "tab:green", "o"),
        ("parameters", "tab:orange", "s"),
        ("both", "tab:blue", "^"),
    ):
        runs = [(e, found.get(f"{name}/{e}")) for e in epsilons]
        there = [(e, run["auc"]) for e, run in runs if run is not None and "auc" in run]
        if not there:
            continue
        means = [sum(auc) / len(auc) for _, auc in there]
        places = [e for e, _ in there]
        low, high = ([end(auc) for _, auc in there] for end in (min, max))
        axis.plot(places, means, color=colour, marker=marker, label=NAMES[name])
        axis.fill_between(places, low, high, color=colour, alpha=0.2, linewidth=0)
        free = found.get(f"{name}/none")
        if free is not None:
            axis.axhline(free["auc"][0], color=colour, linestyle=":", linewidth=1)
    axis.set_xscale("log", base=2)
    axis.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
    axis.set_xlabel("ε (dotted: without privacy)")
    axis.set_ylabel("AUC on the test flights")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, dpi=100)
    pyplot.close(drawn)
