"""The results as PNG: test RMSE by epoch, and by seconds of communication."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tables import SETTINGS, runs_of, sends

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


def draw(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """tablepuppet-epochs.png and a tablepuppet-<network>.png each; the files made."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    made = [
        _figure(
            found,
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
                found,
                folder / f"tablepuppet-{network}.png",
                f"seconds of communication, {network.upper()}",
                lambda row, network=network: row["seconds"][network],
                central=False,
                log=True,
            )
        )
    return made


def _figure(
    found: Mapping[str, Any],
    path: Path,
    label: str,
    place: Callable[[Mapping[str, Any]], float],
    *,
    central: bool,
    log: bool,
) -> Path:
    from matplotlib import pyplot

    shown = [name for name in SETTINGS if runs_of(found, name)]
    columns = min(len(shown), 2)
    lines = -(-len(shown) // columns)
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(5.0 * columns, 3.4 * lines), squeeze=False, layout="constrained"
    )
    handles: dict[str, Any] = {}
    for name, axis in zip(shown, axes.flat, strict=False):
        runs = {n: r for n, r in runs_of(found, name).items() if central or sends(r)}
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
        axis.set_title(SETTINGS[name], fontsize=10)
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
