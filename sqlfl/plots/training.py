"""Figures of a model's training, drawn with matplotlib but without its global state."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sqlfl.base.errors import Error
from sqlfl.models.kinds import kind_of

try:
    from matplotlib.axes import Axes
    from matplotlib.colors import same_color
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from matplotlib.text import Text
    from matplotlib.ticker import MaxNLocator
except ModuleNotFoundError as missing:
    raise Error(
        "plots need matplotlib, which is not installed", hint="pip install 'sqlfl[plot]'"
    ) from missing

AXES = ("epoch", "bytes", "comm_seconds", "seconds")
"""What the horizontal axis can be."""
MARKED = 30
"""Points are marked where there are no more than this."""
_WIDTH, _HEIGHT = 4.6, 3.2
"""Inches of one panel."""
_DPI = 144
"""Twice what a notebook shows, for screens of high resolution."""
_GREY = "#767676"
"""4.5 times as bright as black, and white 4.5 times as bright (WCAG 2)."""
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))


class DrawnModel(Protocol):
    """What is drawn of a model."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def history(self) -> pa.Table: ...


class TrainingFigure(Figure):
    """A matplotlib Figure that notebooks show although pyplot does not manage it."""

    description = ""
    """What the picture shows, for those who do not see it."""

    def _repr_png_(self) -> tuple[bytes, dict[str, object]]:
        buffer = io.BytesIO()
        with _on_any_ground(self):
            self.savefig(buffer, format="png", dpi=_DPI, transparent=True)
        width, height = (round(float(inches) * _DPI / 2) for inches in self.get_size_inches())
        return buffer.getvalue(), {"width": width, "height": height, "alt": self.description}


@contextmanager
def _on_any_ground(figure: Figure) -> Iterator[None]:
    """Draw black things in a grey that is legible on light and on dark pages, and no ground, in the
    block. A file that is saved has them in black on white.
    """
    within = {text for axes in figure.axes for text in axes.texts}  # on colours of their own
    texts = [text for text in figure.findobj(Text) if text not in within]
    setters: list[tuple[Any, Any]] = [(text.set_color, text.get_color()) for text in texts]
    for axes in figure.axes:
        setters += [(s.set_edgecolor, s.get_edgecolor()) for s in axes.spines.values()]
        lines = (*axes.xaxis.get_ticklines(), *axes.yaxis.get_ticklines())
        setters += [(line.set_markeredgecolor, line.get_markeredgecolor()) for line in lines]
    frames = [legend.get_frame() for legend in figure.findobj(Legend)]
    grounds = [(frame.set_facecolor, frame.get_facecolor()) for frame in frames]
    try:
        for setter, color in setters:
            if same_color(color, "black"):
                setter(_GREY)
        for setter, _ in grounds:
            setter("none")
        yield
    finally:
        for setter, color in (*setters, *grounds):
            setter(color)


def training_figure(model: DrawnModel, x: str = "epoch") -> TrainingFigure:
    """The objective and the metric of a model along its training, as two panels.

    x : 'epoch', 'bytes' (sent in both directions so far), 'comm_seconds' (what that takes by the
        option `network`) or 'seconds' (since the start).

    Values on validation rows are drawn where there are any; a panel without values is left out. A
    dotted line marks the epoch whose parameters were kept, where it is not the last one.
    Raise Error for another `x`, where the history has none, or where matplotlib is missing.
    """
    if x not in AXES:
        choices = ", ".join(repr(axis) for axis in AXES)
        raise Error(f"x must be one of {choices}, got {x!r}")
    history = {name: _floats(model.history.column(name)) for name in model.history.column_names}
    objective, metric = _names(model)
    panels = [("loss", objective), ("metric", metric)]
    panels = [p for p in panels if any(_drawn(history, kind, p[0]) for kind in ("train", "valid"))]
    if not panels:
        raise Error(f"model {model.name} has no history to plot")
    if x == "comm_seconds" and not np.isfinite(history[x]).all():
        raise Error(
            f"the history of model {model.name} has no comm_seconds",
            hint="they are reckoned where training is told of a network: WITH (network = 'us-uk')",
        )
    along, label, whole = _horizontal(history, model.algorithm, x)
    figure = TrainingFigure(figsize=(_WIDTH * len(panels), _HEIGHT))
    figure.set_layout_engine("constrained", wspace=0.05)
    for axes, (suffix, name) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        _panel(axes, along, history, suffix)
        if (kept := _kept(model, history)) is not None:
            axes.axvline(along[kept], color="0.5", linestyle=":", label="kept")
        if len(axes.get_lines()) > 1:
            axes.legend(fontsize="small")
        axes.set_xlabel(label)
        axes.set_ylabel(name)
        if whole:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle(f"{model.name}: {model.kind}", fontsize="medium")
    drawn = " and ".join(name for _, name in panels)
    figure.description = f"model {model.name}: {drawn} over {label}"
    return figure


def _panel(axes: Axes, along: Any, history: dict[str, Any], suffix: str) -> None:
    marker = "o" if len(along) <= MARKED else None
    penalised = "training, with the penalty" if suffix == "loss" else "training"
    for kind, text, style in (("train", penalised, "-"), ("valid", "validation", "--")):
        if _drawn(history, kind, suffix):
            values = history[f"{kind}_{suffix}"]
            axes.plot(along, values, style, marker=marker, markersize=3, label=text)
    axes.grid(alpha=0.3)
    axes.ticklabel_format(axis="y", useOffset=False)


def _drawn(history: dict[str, Any], kind: str, suffix: str) -> bool:
    values = history.get(f"{kind}_{suffix}")
    return values is not None and bool(np.isfinite(values).any())


def _kept(model: DrawnModel, history: dict[str, Any]) -> int | None:
    """The row of the epoch whose parameters were kept, where it is not the last."""
    places = np.flatnonzero(history["epoch"] == model.epoch)
    return None if not len(places) or places[0] == len(history["epoch"]) - 1 else int(places[0])


def _horizontal(
    history: dict[str, Any], algorithm: str, x: str
) -> tuple[npt.NDArray[np.float64], str, bool]:
    """Values, label, and whether they are whole numbers."""
    if x == "epoch":
        return history["epoch"], "iteration" if algorithm == "lbfgs" else "epoch", True
    if x == "comm_seconds":
        return history[x], "communication by the network model (s)", False
    if x == "seconds":
        return history["seconds"], "time since the start (s)", False
    total = history["bytes_up"] + history["bytes_down"]
    most = float(np.nanmax(total, initial=0.0))
    size, unit = next((s, u) for s, u in _UNITS if most >= s or s == 1.0)
    return total / size, f"sent so far, both directions ({unit})", False


def _names(model: DrawnModel) -> tuple[str, str]:
    """Labels of the two vertical axes, with their units."""
    kind, unit = kind_of(model.kind), f"units of {model.target}"
    objective, metric = (text.format(unit=unit) for text in (kind.objective, kind.headline))
    return f"objective ({objective})", metric


def _floats(column: Any) -> npt.NDArray[np.float64]:
    """(n,), NULL as NaN."""
    return np.array([np.nan if v is None else float(v) for v in column.to_pylist()])
