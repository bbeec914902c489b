"""CHECK as a picture: what joins, how often, what is missing, and what tells the target."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from matplotlib.axes import Axes

from sqlfl.plots.training import TrainingFigure

_SIDE = 3.8
"""Inches of a panel's width."""
_BAR = 0.3
"""Inches of a bar."""
_MOST = 30
"""Bars of a panel."""
_PANELS = (
    ("table", "matched", "rows in the join", True),
    ("table", "fan_out", "joined rows of each, on average", False),
    ("feature", "missing", "NULL", True),
    ("feature", "explains", "explains of the target", True),
)
"""Part, column, title, and whether it is a share."""


def check_figure(table: pa.Table) -> TrainingFigure:
    """What `CHECK` gave; the panels of which there is anything, the largest bars of each."""
    rows = table.to_pylist()
    panels = [(title, share, _bars(rows, part, column)) for part, column, title, share in _PANELS]
    panels = [panel for panel in panels if panel[2]]
    longest = max((len(bars) for _, _, bars in panels), default=1)
    size = (_SIDE * max(len(panels), 1), 1.2 + _BAR * longest)
    figure = TrainingFigure(figsize=size)
    figure.set_layout_engine("constrained", wspace=0.05)
    axes = figure.subplots(1, max(len(panels), 1), squeeze=False)[0]
    for axis, (title, share, bars) in zip(axes, panels, strict=False):
        _draw(axis, title, share, bars)
    figure.description = "; ".join(
        f"{title}: " + ", ".join(f"{name} {value:.3g}" for name, value in bars)
        for title, _, bars in panels
    )
    return figure


def _bars(rows: list[dict[str, Any]], part: str, column: str) -> list[tuple[str, float]]:
    bars = [
        (row["table"] if part == "table" else row["name"], float(row[column]))
        for row in rows
        if row["part"] == part and row[column] is not None
    ]
    if part == "feature":
        bars = sorted(bars, key=lambda bar: -bar[1])
    return bars[:_MOST]


def _draw(axes: Axes, title: str, share: bool, bars: list[tuple[str, float]]) -> None:
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
