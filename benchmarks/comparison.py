"""Both sides of one workload in turn, each run in a process of its own."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import federated
import materialised
from materialised import TORCH, Way
from measuring import Failed, bandwidth, fresh, medians
from reference import Optimum, optimum
from workloads import Stored, Workload, toy

GAP = 1e-4
"""Of the objective above the optimum, relatively."""
SURE = 0.5
"""Share of the gap to which tolerances are chosen, as that is on fewer rows."""
SIDES = ("ours", "central")
Run = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Comparison:
    workload: Workload
    stored: Stored
    trial: Stored
    """On which tolerances are chosen."""
    toy: Stored
    memory: float
    """Bytes that the central side may take."""

    @classmethod
    def of(cls, workload: Workload, folder: Path, memory: float) -> Comparison:
        """Writes the databases into the folder."""
        stored = Stored.of(workload.task, folder / "all")
        same = workload.trial == workload.task
        trial = stored if same else Stored.of(workload.trial, folder / "trial")
        return cls(
            workload, stored, trial, Stored.of(toy(workload.task.kind), folder / "toy"), memory
        )

    def run(self, sides: Sequence[str], repeats: int) -> dict[str, Any]:
        """`rows`, `optimum`, `bandwidth`, `bound` (seconds), and of each side the medians that
        `Watch` measures, its `gap` and `how` it was run, or why it has `failed`."""
        best = fresh(_optimum, self.stored)
        trial = best if self.trial is self.stored else fresh(_optimum, self.trial)
        runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        failed: dict[str, str] = {}
        how: dict[str, str] = {}
        ways: dict[str, Run] = {}
        for side in sides:
            try:
                ways[side], how[side] = self._prepared(side, best, trial)
            except Failed as reason:
                failed[side] = str(reason)
        speeds = [bandwidth()]
        for _ in range(repeats):
            for side in sides:
                if side in failed:
                    continue
                try:
                    runs[side].append(ways[side]())
                except Failed as reason:
                    failed[side] = str(reason)
            speeds.append(bandwidth())
        speed = sorted(speeds)[len(speeds) // 2]
        read = 4 * (self.workload.sides + 1) * best.rows
        found = {
            "at": f"{dt.datetime.now():%Y-%m-%d %H:%M}",
            "repeats": repeats,
            "rows": best.rows,
            "width": best.width,
            "optimum": best.objective,
            "bandwidth": speed,
            "bound": read / speed,
        }
        for side in sides:
            if side in failed:
                found[side] = {"failed": failed[side]}
            else:
                found[side] = medians(runs[side]) | {"how": how[side]}
                found[side]["gap"] = _gap(found[side]["objective"], best)
        return found

    def _prepared(self, side: str, best: Optimum, trial: Optimum) -> tuple[Run, str]:
        """How to run this side, and that in words. Raises Failed."""
        return self._ours(trial) if side == "ours" else self._central(best, trial)

    def _ours(self, trial: Optimum) -> tuple[Run, str]:
        options: Mapping[str, object] = self.workload.options
        if trial.objective is None:
            return lambda: fresh(federated.run, self.stored, options, self.toy), "as given"
        goal = trial.objective * (1 + SURE * GAP)
        tolerance = fresh(federated.tolerance, self.trial, options, goal)
        given = {**options, "tolerance": tolerance}
        return lambda: fresh(federated.run, self.stored, given, self.toy), f"{tolerance:.0e}"

    def _central(self, best: Optimum, trial: Optimum) -> tuple[Run, str]:
        needed = materialised.needs(best.rows, best.columns, best.width)
        if trial.objective is None:
            way = Way(TORCH)
        else:
            way = fresh(materialised.choose, self.trial, trial.objective * (1 + SURE * GAP))
        if needed > self.memory and way.solver != materialised.SUMS:
            raise Failed(
                f"the matrix and what it is made of need {needed / 2**30:.1f} GiB, and there are "
                f"{self.memory / 2**30:.1f}"
            )
        return lambda: fresh(materialised.run, self.stored, way, self.workload, self.toy), str(way)


def _optimum(stored: Stored) -> Optimum:
    with stored.centre() as con:
        return optimum(con, stored.task)


def _gap(objective: float, best: Optimum) -> float | None:
    return None if best.objective is None else objective / best.objective - 1
