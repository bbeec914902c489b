"""Pictures of what a model is made of: its weights, their errors, importances; and of TUNE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes

from sqlfl.plots.training import TrainingFigure

PANELS = 12
"""Features of a picture of curves, and categories of one of them."""
MOST = 30
"""Bars of a picture: those that are longest."""
_BAR, _WIDTH = 0.28, 6.0
"""Inches of a bar, and of the picture."""


def model_figure(look: str, model: str, table: pa.Table) -> TrainingFigure:
    """Of `CURVES OF MODEL` a panel for each feature, of `WEIGHTS` and `IMPORTANCE OF MODEL` a bar
    for each row that has a number; of `INFERENCE OF MODEL` and TUNE a point with its interval."""
    if look == "curves":
        return _curves_figure(model, table)
    rows, label, sort = _READERS[look](table.to_pylist())
    if sort:
        rows = sorted(rows, key=lambda row: -abs(row[1]))
    rows = rows[:MOST]
    figure = TrainingFigure(figsize=(_WIDTH, 1.0 + _BAR * max(len(rows), 2)))
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    _draw(axes, rows, bars=look in ("weights", "importance"))
    if look != "tune":
        axes.axvline(0.0, color="0.5", linewidth=1)
    axes.set_xlabel(label)
    axes.set_title(f"{model}: {look}", fontsize="medium")
    figure.description = f"{look} of model {model}, {len(rows)} of {table.num_rows} rows"
    return figure


def _curves_figure(model: str, table: pa.Table) -> TrainingFigure:
    """A panel for each feature (and class): a line over numbers with its band, else a point for
    each value with its interval."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        groups.setdefault(_named({**row, "category": None}), []).append(row)
    shown = list(groups.items())[:PANELS]
    figure = TrainingFigure(figsize=(_WIDTH, 1.0 + 2.0 * ((max(len(shown), 1) + 1) // 2)))
    figure.set_layout_engine("constrained")
    panels = figure.subplots((max(len(shown), 1) + 1) // 2, 2, squeeze=False).reshape(-1)
    for axes, (name, rows) in zip(panels, shown, strict=False):
        _curve(axes, name, [row for row in rows if row["value"] is not None])
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    figure.suptitle(f"{model}: curves", fontsize="medium")
    figure.description = f"curves of model {model}, {len(shown)} of {len(groups)} features"
    return figure


def _curve(axes: Axes, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    effects = np.array([row["effect"] for row in rows])
    low, high = (np.array([row[end] for row in rows]) for end in ("lower", "upper"))
    axes.axhline(0.0, color="0.5", linewidth=1)
    axes.set_title(name, fontsize="small")
    try:
        places = np.array([float(row["value"]) for row in rows])
    except ValueError:
        kept = np.argsort(-np.abs(effects), kind="stable")[:PANELS]
        places = np.arange(len(kept))
        ends = [effects[kept] - low[kept], high[kept] - effects[kept]]
        axes.errorbar(places, effects[kept], yerr=ends, fmt="o", markersize=3, linewidth=1)
        axes.set_xticks(places, [rows[n]["value"] for n in kept], rotation=60, fontsize="x-small")
        return
    axes.plot(places, effects)
    axes.fill_between(places, low, high, alpha=0.25)


Row = tuple[str, float, float | None, float | None]
"""Name, number, and the ends of an interval around it."""
Read = tuple[list[Row], str, bool]


def _draw(axes: Axes, rows: Sequence[Row], *, bars: bool) -> None:
    places = np.arange(len(rows))
    values = np.array([value for _, value, *_ in rows])
    if bars:
        axes.barh(places, values, height=0.7)
    else:
        axes.plot(values, places, "o", markersize=4)
    for place, (_, value, low, high) in zip(places, rows, strict=True):
        if low is not None and high is not None:
            ends = [[value - low], [high - value]]
            axes.errorbar([value], [place], xerr=ends, color="0.3", capsize=2, linewidth=1)
    axes.set_yticks(places, [name for name, *_ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="x", alpha=0.3)


def _named(row: Mapping[str, Any]) -> str:
    parts = [row.get("table"), row.get("feature") or ("all of it" if "table" in row else None)]
    name = ".".join(str(part) for part in parts if part)
    several = f" ({row['class']})" if row.get("class") is not None else ""
    if row.get("category"):
        name += f" = {row['category']}" if row["kind"] == "category" else f" {row['category']}"
    return name + several


def _weights(rows: list[dict[str, Any]]) -> Read:
    found: list[Row] = [
        (_named(row), row["standardised"], None, None)
        for row in rows
        if row["kind"] != "intercept" and row["standardised"] is not None
    ]
    return found, "coefficient, per standard deviation of a number", True


def _inference(rows: list[dict[str, Any]]) -> Read:
    found: list[Row] = [
        (_named(row), row["coefficient"], row["lower"], row["upper"])
        for row in rows
        if row["kind"] != "intercept" and row["lower"] is not None
    ]
    return found, "coefficient and its interval", False


def _importance(rows: list[dict[str, Any]]) -> Read:
    found: list[Row] = [
        (
            _named(row),
            row["importance"],
            row["importance"] - row["deviation"],
            row["importance"] + row["deviation"],
        )
        for row in rows
    ]
    return found, "how much worse, where its values are permuted (± a standard deviation)", True


def _tune(rows: list[dict[str, Any]]) -> Read:
    names = list(rows[0])
    metric = names[names.index("deviation") - 1]
    found: list[Row] = []
    for row in rows:
        if row[metric] is None:
            continue
        own = names[: names.index(metric)]
        spread = row["deviation"]
        low, high = (None, None) if spread is None else (row[metric] - spread, row[metric] + spread)
        found.append((", ".join(f"{n} = {row[n]}" for n in own) or metric, row[metric], low, high))
    return found, f"{metric} on rows held out (± a standard deviation over folds)", False


_READERS: Mapping[str, Callable[[list[dict[str, Any]]], Read]] = {
    "weights": _weights,
    "inference": _inference,
    "importance": _importance,
    "tune": _tune,
}
PICTURES = (*_READERS, "curves")
