"""The coordinator's part of sharing ADMM, of linear blocks and of towers."""

from __future__ import annotations

from sqlfl.coordinator.rounds.problem import Algorithm, Problem
from sqlfl.messages.replies import ReplyChannel
from sqlfl.methods.admm.linear_coordinator import Admm
from sqlfl.methods.admm.tower_coordinator import TowerAdmm


def _sharing(problem: Problem, channel: ReplyChannel) -> Algorithm:
    return Admm(problem, channel) if problem.tower is None else TowerAdmm(problem, channel)


COORDINATOR = _sharing
