"""What speed.py found, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from federated import PHASES
from materialised import SUMS
from results import table

Found = Mapping[str, Any]
SUMMARY = (
    "workload", "joined rows",
    "ours, s", "central, s", "ours / central",
    "processor: ours, s", "central, s", "ours / central",
    "peak: ours, GiB", "central, GiB", "ours / central",
    "bound, s",
)  # fmt: skip
OURS = ("ours, seconds", *PHASES, "all", "epochs", "gap", "tolerance")
CENTRAL = ("central, seconds", "join", "encode", "fit", "all", "gap", "how")


def render(found: Mapping[str, Found]) -> str:
    """All tables."""
    runs = {name: run for name, run in found.items() if name != "about"}
    parts = []
    if "about" in found:
        about = found["about"]
        parts.append(f"{about['machine']}; {about['versions']}.")
    parts.append(
        "\n".join(table(SUMMARY, [row for item in runs.items() for row in _summary(*item)]))
    )
    ours = [[name, *_ours(run["ours"])] for name, run in _with(runs, "ours")]
    central = [
        [name, *_central(run[side])]
        for side in ("central", SUMS)
        for name, run in _with(runs, side)
    ]
    parts += ["\n".join(table(*t)) for t in ((OURS, ours), (CENTRAL, central)) if t[1]]
    reasons = list(_reasons(runs))
    return "\n\n".join([*parts, *(["\n".join(reasons)] if reasons else [])])


def lines(name: str, run: Found) -> str:
    """Rows of the first table."""
    return "\n".join(table(SUMMARY, _summary(name, run))[2:])


def _summary(name: str, run: Found) -> list[list[str]]:
    """A row, and one for sums in SQL, where there are any."""
    rows = [_beside(name, run, "central")]
    return [*rows, _beside(f"{name}, sums in SQL", run, SUMS)] if SUMS in run else rows


def _beside(name: str, run: Found, other: str) -> list[str]:
    sides = [run.get(side, {}) for side in ("ours", other)]
    cells = [name, f"{run['rows']:,}"]
    for key, unit in (("seconds", 1), ("cpu", 1), ("peak", 2**30)):
        values = [side.get(key) for side in sides]
        cells += ["-" if value is None else f"{value / unit:.2f}" for value in values]
        cells.append("-" if None in values else f"{values[0] / values[1]:.2f}")
    return [*cells, f"{run['bound']:.3f}"]


def _with(runs: Mapping[str, Found], side: str) -> Iterator[tuple[str, Found]]:
    return ((name, run) for name, run in runs.items() if "seconds" in run.get(side, {}))


def _ours(side: Found) -> list[str]:
    cells = [f"{side['phases'][phase]:.2f}" for phase in PHASES]
    return [*cells, f"{side['seconds']:.2f}", f"{side['epochs']:.0f}", _gap(side), side["how"]]


def _central(side: Found) -> list[str]:
    phases = side["phases"]
    cells = [f"{phases[p]:.2f}" if p in phases else "-" for p in ("join", "encode", "fit")]
    return [*cells, f"{side['seconds']:.2f}", _gap(side), side["how"]]


def _gap(side: Found) -> str:
    """That of a network is its objective: nobody knows its optimum."""
    gap = side["gap"]
    return f"objective {side['objective']:.4f}" if gap is None else f"{gap:.0e}"


def _reasons(runs: Mapping[str, Found]) -> Iterator[str]:
    for name, run in runs.items():
        for side in ("ours", "central", SUMS):
            if "failed" in run.get(side, {}):
                yield f"- {name}, {side}: {run[side]['failed']}"
