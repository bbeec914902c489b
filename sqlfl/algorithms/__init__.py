"""The training methods, by the name that the option `algorithm` gives them."""

from __future__ import annotations

from sqlfl.algorithms.admm import Admm
from sqlfl.algorithms.base import Algorithm, Channel, Problem, Step
from sqlfl.algorithms.lbfgs import Lbfgs
from sqlfl.algorithms.sgd import Sgd

__all__ = ["ALGORITHMS", "Algorithm", "Channel", "Problem", "Step"]

ALGORITHMS: dict[str, type[Algorithm]] = {"lbfgs": Lbfgs, "admm": Admm, "sgd": Sgd}
