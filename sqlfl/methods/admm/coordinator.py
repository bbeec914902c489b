"""The coordinator's part of sharing ADMM, of linear blocks and of towers."""

from __future__ import annotations

from sqlfl.coordinator.rounds.problem import Algorithm, Problem
from sqlfl.messages.replies import Channel
from sqlfl.methods.admm.linear_coordinator import Admm
from sqlfl.methods.admm.tower_coordinator import TowerAdmm


def _sharing(problem: Problem, channel: Channel) -> Algorithm:
    return TowerAdmm(problem, channel) if problem.hidden else Admm(problem, channel)


COORDINATOR = _sharing
