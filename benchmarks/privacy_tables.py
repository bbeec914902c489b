"""The results of privacy_movielens.py and privacy_flights.py as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def flights(found: Found) -> str:
    if "data" not in found:
        return ""
    data = found["data"]
    columns: Sequence[str] = [*data["epsilons"], "none"]
    heads = ["AUC on the test flights, ε of a label =", *map(str, columns)]
    rows = [["labels, L-BFGS", *(_auc(found.get(f"labels/{epsilon}")) for epsilon in columns)]]
    lines = [f"{data['train']:,} flights to train on, {data['test']:,} to test."]
    return "\n".join([*lines, "", *table(heads, rows)])


def _auc(run: Run | None) -> str:
    if run is None:
        return "-"
    if "refused" in run:
        return "refused"
    low, high = min(run["auc"]), max(run["auc"])
    mean = sum(run["auc"]) / len(run["auc"])
    return f"{mean:.4f}" if len(run["auc"]) == 1 else f"{mean:.4f} ({low:.4f} to {high:.4f})"
