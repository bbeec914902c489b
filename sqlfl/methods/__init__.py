"""The training methods, by the name that the option `algorithm` gives them."""

from __future__ import annotations

from collections.abc import Callable

from sqlfl.methods.admm import Admm
from sqlfl.methods.base import Algorithm, Channel, Problem, Step
from sqlfl.methods.lbfgs import Lbfgs
from sqlfl.methods.sgd import Sgd
from sqlfl.methods.tower_admm import TowerAdmm

__all__ = ["ALGORITHMS", "Algorithm", "Channel", "Problem", "Step"]


def _sharing_admm(problem: Problem, channel: Channel) -> Algorithm:
    return TowerAdmm(problem, channel) if problem.hidden else Admm(problem, channel)


ALGORITHMS: dict[str, Callable[[Problem, Channel], Algorithm]] = {
    "lbfgs": Lbfgs,
    "admm": _sharing_admm,
    "sgd": Sgd,
}
