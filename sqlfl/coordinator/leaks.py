"""Warning of a table that alone explains the target. It probably has a feature made of the
target.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sqlfl.base.sanitize import listed
from sqlfl.coordinator.findings import leaking
from sqlfl.coordinator.rounds.problem import Problem
from sqlfl.coordinator.rounds.scores import Scores
from sqlfl.coordinator.rounds.warm import best_constant
from sqlfl.models.kinds import kind_of
from sqlfl.planner.federated.plan import FederatedPlan

NUMBERS = 0.99
"""Share of a constant's loss that one table removes, from which it is reported."""
CLASSES = 0.9
"""The same share for classes: a feature that is right in 99 of 100 rows removes as much."""
NAMED = 5
"""Maximum number of features in the warning."""


def remark_on_leaks(
    plan: FederatedPlan,
    problem: Problem,
    scores: Scores | None,
    loss: float,
    remark: Callable[[str], None],
) -> None:
    """Warn of tables whose block alone predicts the target. It sends no message.

    loss: the loss of the model with these scores.
    """
    if scores is None or plan.tower is not None or plan.privacy is not None:
        return
    least = CLASSES if kind_of(plan.kind).classifies else NUMBERS
    none = tuple(np.zeros_like(own) for own in scores.slots)
    start = best_constant(problem)
    constant = problem.passes.look(Scores(none, start), sums=False).value
    if not constant > 0.0 or 1.0 - loss / constant < least:
        return
    towers = [slot for slot in plan.ucq.slots if slot.features]
    for place, slot in enumerate(towers):
        alone = (*none[:place], scores.slots[place], *none[place + 1 :])
        value = problem.passes.look(Scores(alone, scores.constant), sums=False).value
        share = 1.0 - value / constant
        if share >= least:
            names = [feature.name for feature in slot.features]
            name = f"feature {names[0]} (of {slot.name})"
            if len(names) > 1:
                more = ", ..." if len(names) > NAMED else ""
                name = f"{slot.name}, with features {listed(names[:NAMED])}{more},"
            remark(leaking(name, plan.ucq.target or "", share))
