"""Both sides of one workload in turn, each run in a process of its own."""

from __future__ import annotations

import datetime as dt
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import federated
import materialised
from materialised import SUMS, TORCH, Solver
from measuring import Failed, bandwidth, fresh, medians
from reference import Optimum, optimum
from workloads import Stored, Workload, toy

GAP = 1e-4
"""Of the objective above the optimum, relatively."""
SURE = 0.5
"""Share of the gap to which tolerances are chosen, as that is on fewer rows."""
SIDES = ("ours", "central", SUMS)
"""The last of linear models only."""


@dataclass(frozen=True)
class Way:
    """One side, ready to run."""

    how: str
    run: Callable[[], dict[str, Any]]


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
        """`rows`, `width`, `optimum`, `bandwidth`, `bound` (seconds), and of each side the medians
        that `Watch` measures, its `gap` and `how` it was run, or why it has `failed`."""
        best = fresh(_optimum, self.stored)
        trial = best if self.trial is self.stored else fresh(_optimum, self.trial)
        given = [side for side in sides if side != SUMS or self._linear]
        found: dict[str, Any] = {}
        ways: dict[str, Way] = {}
        for side in given:
            try:
                ways[side] = self._way(side, best, trial)
            except Failed as reason:
                found[side] = {"failed": str(reason)}
        runs, speeds = _in_turn(ways, found, repeats)
        for side, measured in runs.items():
            found[side] = medians(measured) | {"how": ways[side].how}
            found[side]["gap"] = _gap(found[side]["objective"], best)
        speed = statistics.median(speeds)
        return found | {
            "at": f"{dt.datetime.now():%Y-%m-%d %H:%M}",
            "repeats": repeats,
            "rows": best.rows,
            "width": best.width,
            "optimum": best.objective,
            "bandwidth": speed,
            "bound": 4 * (self.workload.sides + 1) * best.rows / speed,
        }

    @property
    def _linear(self) -> bool:
        return self.workload.task.kind == "linear_regression"

    def _way(self, side: str, best: Optimum, trial: Optimum) -> Way:
        """Raises Failed where there is none."""
        if side == "ours":
            return self._ours(trial)
        return self._central(Solver(SUMS)) if side == SUMS else self._matrix(best, trial)

    def _ours(self, trial: Optimum) -> Way:
        options = dict(self.workload.options)
        if trial.objective is not None:
            goal = trial.objective * (1 + SURE * GAP)
            options["tolerance"] = fresh(federated.tolerance, self.trial, options, goal)
        how = f"{options['tolerance']:.0e}" if "tolerance" in options else "as given"
        return Way(how, lambda: fresh(federated.run, self.stored, options, self.toy))

    def _matrix(self, best: Optimum, trial: Optimum) -> Way:
        needed = materialised.needs(best.rows, best.columns, best.width)
        if needed > self.memory:
            raise Failed(
                f"the matrix and what it is made of need {needed / 2**30:.1f} GiB, and there are "
                f"{self.memory / 2**30:.1f}"
            )
        if trial.objective is None:
            return self._central(Solver(TORCH))
        goal = trial.objective * (1 + SURE * GAP)
        return self._central(fresh(materialised.choose, self.trial, goal))

    def _central(self, solver: Solver) -> Way:
        run, work = materialised.run, self.workload
        return Way(str(solver), lambda: fresh(run, self.stored, solver, work, self.toy))


def _in_turn(
    ways: Mapping[str, Way], found: dict[str, Any], repeats: int
) -> tuple[dict[str, list[dict[str, Any]]], list[float]]:
    """What each of the `ways` measured, and bandwidths; a side that fails is told in `found`."""
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in ways}
    speeds = [bandwidth()]
    for _ in range(repeats):
        for side in list(runs):
            try:
                runs[side].append(ways[side].run())
            except Failed as reason:
                found[side] = {"failed": str(reason)}
                del runs[side]
        speeds.append(bandwidth())
    return runs, speeds


def _optimum(stored: Stored) -> Optimum:
    with stored.centre() as con:
        return optimum(con, stored.task)


def _gap(objective: float, best: Optimum) -> float | None:
    return None if best.objective is None else objective / best.objective - 1
