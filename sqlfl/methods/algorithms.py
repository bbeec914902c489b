"""What the coordinator does in each method, by its name."""

from __future__ import annotations

from collections.abc import Callable

from sqlfl.methods.admm.coordinator import Admm
from sqlfl.methods.admm.tower_coordinator import TowerAdmm
from sqlfl.methods.base import Algorithm, Channel, Problem, Step
from sqlfl.methods.lbfgs.coordinator import Lbfgs
from sqlfl.methods.sgd.coordinator import Sgd

__all__ = ["ALGORITHMS", "Algorithm", "Channel", "Problem", "Step"]


def _sharing_admm(problem: Problem, channel: Channel) -> Algorithm:
    return Admm(problem, channel) if problem.tower is None else TowerAdmm(problem, channel)


ALGORITHMS: dict[str, Callable[[Problem, Channel], Algorithm]] = {
    "lbfgs": Lbfgs,
    "admm": _sharing_admm,
    "sgd": Sgd,
}
