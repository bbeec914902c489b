"""Pictures of what a look shows: curves, matrices and bins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes

from sqlfl.base.errors import Error
from sqlfl.plots.training import TrainingFigure

_SIDE = 3.6
"""Inches of one panel."""
_MOST = 12
"""Classes that a matrix is written into, with numbers in its cells."""


def quality_figure(look: str, model: str, table: pa.Table) -> TrainingFigure:
    """What the statement `look` OF MODEL `model` gave, as one or two panels.

    Raises Error for what has no picture.
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
    for name, own in _classes(table):
        false, true = own["false_positive_rate"], own["recall"]
        area = np.trapezoid(true, false)
        axes.plot(false, true, label=f"{name}: area {area:.3f}")
    axes.plot([0, 1], [0, 1], color="0.5", linestyle=":", label="by chance")
    _unit(axes, "false positive rate", "recall")


def _precision(axes: Axes, table: pa.Table) -> None:
    for name, own in _classes(table):
        axes.step(own["recall"], own["precision"], where="pre", label=name)
        positive = own["true_positives"][-1]
        share = positive / (positive + own["false_positives"][-1])
        axes.axhline(share, color="0.5", linestyle=":", linewidth=1)
    _unit(axes, "recall", "precision")


def _calibration(axes: Axes, table: pa.Table) -> None:
    for name, own in _classes(table):
        axes.plot(own["predicted"], own["actual"], marker="o", markersize=3, label=name or None)
    low, high = axes.get_xlim()
    axes.plot([low, high], [low, high], color="0.5", linestyle=":", label="as predicted")
    probabilities = "class" in table.column_names
    axes.set_xlabel("predicted probability" if probabilities else "mean prediction")
    axes.set_ylabel("share of rows" if probabilities else "mean of the target")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)


def _residuals(axes: Axes, table: pa.Table) -> None:
    own = _columns(table)
    at = own["predicted"]
    axes.fill_between(at, own["q05"], own["q95"], color="C0", alpha=0.15, label="5 to 95 %")
    axes.fill_between(at, own["q25"], own["q75"], color="C0", alpha=0.3, label="25 to 75 %")
    axes.plot(at, own["residual"], marker="o", markersize=3, label="mean")
    axes.axhline(0.0, color="0.5", linestyle=":")
    axes.set_xlabel("mean prediction of the bin")
    axes.set_ylabel("truth less prediction")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)


def _confusion(axes: Axes, table: pa.Table) -> None:
    names = list(dict.fromkeys(_name(v) for v in table.column("actual").to_pylist()))
    side = len(names)
    own = _columns(table.select(["rows", "share_of_actual"]))
    rows, shares = own["rows"].reshape(side, side), own["share_of_actual"].reshape(side, side)
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    for (row, column), count in np.ndenumerate(rows) if side <= _MOST else ():
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
