"""Pictures of results: weights, errors, importances, curves, matrices, bins, TUNE and CHECK."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes

from sqlfl.base.errors import Error
from sqlfl.plots.training import TrainingFigure

PANELS = 12
"""Features of a picture of curves, and categories of one of them."""
MAX_BARS = 30
"""Bars of a picture: those that are longest."""
_BAR, _WIDTH = 0.28, 6.0
"""Inches of a bar, and of the picture."""


def model_figure(look: str, model: str, table: pa.Table) -> TrainingFigure:
    """Return the figure of a table about a model. `CURVES` has a panel for each feature; `WEIGHTS`
    and `IMPORTANCE` have a bar for each row with a number; `INFERENCE` and TUNE have a point with
    its interval."""
    if look == "curves":
        return _curves_figure(model, table)
    rows, label, sort = _READERS[look](table.to_pylist())
    if sort:
        rows = sorted(rows, key=lambda row: -abs(row[1]))
    rows = rows[:MAX_BARS]
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
            axes.errorbar([value], [place], xerr=ends, color="0.5", capsize=2, linewidth=1)
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
    bars: list[Row] = [
        (_named(row), row["standardised"], None, None)
        for row in rows
        if row["kind"] != "intercept" and row["standardised"] is not None
    ]
    return bars, "coefficient, per standard deviation of a number", True


def _inference(rows: list[dict[str, Any]]) -> Read:
    bars: list[Row] = [
        (_named(row), row["coefficient"], row["lower"], row["upper"])
        for row in rows
        if row["kind"] != "intercept" and row["lower"] is not None
    ]
    return bars, "coefficient and its interval", False


def _importance(rows: list[dict[str, Any]]) -> Read:
    bars: list[Row] = [
        (
            _named(row),
            row["importance"],
            row["importance"] - row["deviation"],
            row["importance"] + row["deviation"],
        )
        for row in rows
    ]
    return bars, "how much worse, where its values are permuted (± a standard deviation)", True


def _tune(rows: list[dict[str, Any]]) -> Read:
    names = list(rows[0])
    metric = names[names.index("deviation") - 1]
    bars: list[Row] = []
    for row in rows:
        if row[metric] is None:
            continue
        tuned = names[: names.index(metric)]
        spread = row["deviation"]
        low, high = (None, None) if spread is None else (row[metric] - spread, row[metric] + spread)
        bars.append((", ".join(f"{n} = {row[n]}" for n in tuned) or metric, row[metric], low, high))
    return bars, f"{metric} on rows held out (± a standard deviation over folds)", False


_READERS: Mapping[str, Callable[[list[dict[str, Any]]], Read]] = {
    "weights": _weights,
    "inference": _inference,
    "importance": _importance,
    "tune": _tune,
}
PICTURES = (*_READERS, "curves")


_SIDE = 3.6
"""Inches of one panel."""
_MAX_CLASSES = 12
"""Classes that a matrix is written into, with numbers in its cells."""


def quality_figure(look: str, model: str, table: pa.Table) -> TrainingFigure:
    """Draw the result of the statement `look` OF MODEL `model`, in one or two panels.

    Raise Error for what has no picture.
    """
    panels = _PANELS.get(look)
    if panels is None:
        raise Error(
            f"{look.upper()} OF MODEL has no picture",
            hint=f"{', '.join(name.upper() for name in _PANELS)} OF MODEL have",
        )
    figure = TrainingFigure(figsize=(1.25 * _SIDE * len(panels), _SIDE))
    figure.set_layout_engine("constrained", wspace=0.05)
    for axes, draw in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw(axes, table)
    figure.suptitle(f"{model}: {look}", fontsize="medium")
    figure.description = f"{look} of model {model}, {table.num_rows} points"
    return figure


def _classes(table: pa.Table) -> list[tuple[str, dict[str, Any]]]:
    """Columns of each class; of numbers one without a name."""
    if "class" not in table.column_names:
        return [("", _columns(table))]
    names = np.array([_name(value) for value in table.column("class").to_pylist()])
    return [
        (name, _columns(table.filter(pa.array(names == name))))
        for name in dict.fromkeys(names.tolist())
    ]


def _columns(table: pa.Table) -> dict[str, Any]:
    """Numbers, NULL as NaN."""
    return {
        name: np.array([np.nan if v is None else float(v) for v in table.column(name).to_pylist()])
        for name in table.column_names
        if name != "class"
    }


def _name(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _roc(axes: Axes, table: pa.Table) -> None:
    for name, curve in _classes(table):
        false, true = curve["false_positive_rate"], curve["recall"]
        area = np.trapezoid(true, false)
        axes.plot(false, true, label=f"{name}: area {area:.3f}")
    axes.plot([0, 1], [0, 1], color="0.5", linestyle=":", label="by chance")
    _unit(axes, "false positive rate", "recall")


def _precision(axes: Axes, table: pa.Table) -> None:
    for name, curve in _classes(table):
        axes.step(curve["recall"], curve["precision"], where="pre", label=name)
        positive = curve["true_positives"][-1]
        share = positive / (positive + curve["false_positives"][-1])
        axes.axhline(share, color="0.5", linestyle=":", linewidth=1)
    _unit(axes, "recall", "precision")


def _calibration(axes: Axes, table: pa.Table) -> None:
    for name, curve in _classes(table):
        axes.plot(curve["predicted"], curve["actual"], marker="o", markersize=3, label=name or None)
    low, high = axes.get_xlim()
    axes.plot([low, high], [low, high], color="0.5", linestyle=":", label="as predicted")
    probabilities = "class" in table.column_names
    axes.set_xlabel("predicted probability" if probabilities else "mean prediction")
    axes.set_ylabel("share of rows" if probabilities else "mean of the target")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)


def _residuals(axes: Axes, table: pa.Table) -> None:
    columns = _columns(table)
    at = columns["predicted"]
    axes.fill_between(at, columns["q05"], columns["q95"], color="C0", alpha=0.15, label="5 to 95 %")
    axes.fill_between(at, columns["q25"], columns["q75"], color="C0", alpha=0.3, label="25 to 75 %")
    axes.plot(at, columns["residual"], marker="o", markersize=3, label="mean")
    axes.axhline(0.0, color="0.5", linestyle=":")
    axes.set_xlabel("mean prediction of the bin")
    axes.set_ylabel("truth less prediction")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)


def _confusion(axes: Axes, table: pa.Table) -> None:
    names = list(dict.fromkeys(_name(v) for v in table.column("actual").to_pylist()))
    side = len(names)
    columns = _columns(table.select(["rows", "share_of_actual"]))
    rows, shares = (
        columns["rows"].reshape(side, side),
        columns["share_of_actual"].reshape(side, side),
    )
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    for (row, column), count in np.ndenumerate(rows) if side <= _MAX_CLASSES else ():
        share = shares[row, column]
        text = "hidden" if np.isnan(count) else f"{count:,.0f}"
        color = "white" if share > 0.6 else "black"
        axes.text(column, row, text, ha="center", va="center", color=color, fontsize="small")
    axes.set_xticks(range(side), names, rotation=45 if side > 3 else 0)
    axes.set_yticks(range(side), names)
    axes.set_xlabel("predicted")
    axes.set_ylabel("actual")


def _unit(axes: Axes, x: str, y: str) -> None:
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)


_PANELS: Mapping[str, tuple[Callable[[Axes, pa.Table], None], ...]] = {
    "roc": (_roc, _precision),
    "confusion": (_confusion,),
    "calibration": (_calibration,),
    "residuals": (_residuals,),
}


_CHECK_WIDTH = 3.8
"""Inches of a panel's width."""
_CHECK_BAR = 0.3
"""Inches of a bar."""
_CHECK_PANELS = (
    ("table", "matched", "rows in the join", True),
    ("table", "fan_out", "joined rows of each, on average", False),
    ("feature", "missing", "NULL", True),
    ("feature", "explains", "explains of the target", True),
)
"""Part, column, title, and whether it is a share."""


def check_figure(table: pa.Table) -> TrainingFigure:
    """Return the picture of `CHECK`: the largest bars of each panel; empty panels are left out."""
    rows = table.to_pylist()
    panels = [
        (title, share, _check_bars(rows, part, column))
        for part, column, title, share in _CHECK_PANELS
    ]
    panels = [panel for panel in panels if panel[2]]
    longest = max((len(bars) for _, _, bars in panels), default=1)
    size = (_CHECK_WIDTH * max(len(panels), 1), 1.2 + _CHECK_BAR * longest)
    figure = TrainingFigure(figsize=size)
    figure.set_layout_engine("constrained", wspace=0.05)
    axes = figure.subplots(1, max(len(panels), 1), squeeze=False)[0]
    for axis, (title, share, bars) in zip(axes, panels, strict=False):
        _draw_panel(axis, title, share, bars)
    figure.description = "; ".join(
        f"{title}: " + ", ".join(f"{name} {value:.3g}" for name, value in bars)
        for title, _, bars in panels
    )
    return figure


def _check_bars(rows: list[dict[str, Any]], part: str, column: str) -> list[tuple[str, float]]:
    bars = [
        (row["table"] if part == "table" else row["name"], float(row[column]))
        for row in rows
        if row["part"] == part and row[column] is not None
    ]
    if part == "feature":
        bars = sorted(bars, key=lambda bar: -bar[1])
    return bars[:MAX_BARS]


def _draw_panel(axes: Axes, title: str, share: bool, bars: list[tuple[str, float]]) -> None:
    names = [name for name, _ in bars]
    drawn = axes.barh(range(len(bars)), [value for _, value in bars], height=0.7)
    axes.bar_label(drawn, fmt="{:.0%}" if share else "{:,.3g}", padding=2, fontsize="small")
    axes.set_yticks(range(len(bars)), names)
    axes.invert_yaxis()
    if share:
        axes.set_xlim(0.0, 1.18)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}" if value <= 1 else "")
    else:
        axes.margins(x=0.18)
    axes.set_title(title, fontsize="medium")
    axes.grid(axis="y", visible=False)
