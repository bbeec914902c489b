"""Tables and figure of the LASSO's experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from results import table

AT = (1, 10, 100, 1000, 2000)
BYTES = 4
Found = Mapping[str, Any]


def render(found: Found) -> str:
    parts = [_convergence(found), _private(found), _slopes(found), _join(found)]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _convergence(found: Found) -> list[str]:
    rows = []
    for name, own in found.items():
        if name.startswith("convergence/"):
            _, step, sample = name.split("/")
            gaps = np.array(own["gaps"])
            shown = [f"{gaps[n - 1]:.1e}" if gaps[n - 1] > 1e-14 else "0" for n in AT]
            rows.append([f"{step}, {sample} columns", *shown, _decay(gaps)])
    heads = ["step; columns looked at", *(f"after {n}" for n in AT), "slope"]
    return table(heads, rows) if rows else []


def _decay(gaps: np.ndarray) -> str:
    """Log-log slope from iteration 100 on; empty where the minimum was reached."""
    t = np.arange(100, len(gaps))
    if gaps[-1] < 1e-12:
        return "reached"
    return f"{np.polyfit(np.log(t + 1.0), np.log(gaps[t]), 1)[0]:.2f}"


def _private(found: Found) -> list[str]:
    rows = []
    for name, own in found.items():
        if name.startswith("private/"):
            _, n, d, k, epsilon = name.split("/")
            every, sketched = BYTES * int(n) * int(d), BYTES * 256 * int(d)
            rows.append([
                f"{int(n):,}", f"{int(d):,}", k, epsilon,
                *(f"{own[m]:.3f}" for m in ("nothing", "ours", "fixed", "central")),
                _size(own["ours up"]), _size(sketched), _size(every),
            ])  # fmt: skip
    heads = ["rows", "columns", "parties", "ε", "no model", "corrective", "fixed step", "central",
             "bytes up", "all sketched", "all columns"]  # fmt: skip
    return table(heads, rows) if rows else []


def _size(count: float) -> str:
    if count < 1e6:
        return f"{count / 1e3:.0f} kB"
    return f"{count / 1e6:,.1f} MB"


def _slopes(found: Found) -> list[str]:
    for kind in ("sparse", "spread"):
        if f"slopes/{kind}/1" not in found:
            return []
    rows, ends = [], []
    for kind in ("sparse", "spread"):
        own = [(float(name.split("/")[2]), run) for name, run in found.items()
               if name.startswith(f"slopes/{kind}/")]  # fmt: skip
        epsilons = np.log([epsilon for epsilon, _ in own])
        for epsilon, run in own:
            rows.append([
                kind, f"{epsilon:g}", str(run["iterations"]),
                *(f"{run[m]:.4f}" for m in ("central", "fixed", "corrective")),
                *(_size(run[f"{m} up"]) for m in ("fixed", "corrective")),
            ])  # fmt: skip
        fitted = [
            np.polyfit(epsilons, np.log([run[m] for _, run in own]), 1)[0]
            for m in ("central", "fixed", "corrective", "fixed up", "corrective up")
        ]
        ends.append([f"{kind}: slope", "", "", *(f"{value:.2f}" for value in fitted)])
    ends.append(["theory: slope", "", "0.67", "-0.67", "-0.67", "", "0.67", "0.67"])
    heads = ["weights", "ε", "iterations", "central", "fixed step", "corrective",
             "fixed: up", "corrective: up"]  # fmt: skip
    return table(heads, [*rows, *ends])


def _join(found: Found) -> list[str]:
    runs = found.get("join", {"runs": []})["runs"]
    rows = [
        [
            run["name"], f"{run['rows']:,}", f"{run['rmse']:.1f}", f"{run['r2']:.3f}",
            str(run["iterations"]), "–" if run["told"] is None else str(run["told"]),
            _size(run["up"]),
        ]
        for run in runs
    ]  # fmt: skip
    heads = ["model", "rows", "RMSE, minutes", "R²", "iterations", "columns told", "up in rounds"]
    return table(heads, rows) if rows else []


def draw(found: Found, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name, own in found.items():
        if name.startswith("convergence/"):
            _, step, sample = name.split("/")
            gaps = np.maximum(own["gaps"], 1e-9)
            left.loglog(np.arange(1, len(gaps) + 1), gaps, label=f"{step}, {sample}")
    left.loglog([10, 2000], [0.5, 0.5 / 200], "k--", label="1/t")
    left.set_xlabel("iteration")
    left.set_ylabel("objective − minimum")
    left.legend(fontsize=7)
    for kind, marker in (("sparse", "o"), ("spread", "s")):
        own = [(float(n.split("/")[2]), run) for n, run in found.items()
               if n.startswith(f"slopes/{kind}/")]  # fmt: skip
        for method in ("central", "fixed", "corrective"):
            right.loglog(
                [1e5 * epsilon for epsilon, _ in own],
                [run[method] for _, run in own],
                f"{marker}-",
                label=f"{kind}, {method}",
            )
    scale = 1e5 * np.array([1.0, 64.0])
    right.loglog(scale, 2.0 * (scale / 1e5) ** (-2 / 3), "k--", label="(nε)^(-2/3)")
    right.set_xlabel("n ε")
    right.set_ylabel("excess risk")
    right.legend(fontsize=7)
    figure.savefig(path, dpi=110)
    plt.close(figure)
