"""Targets of joined rows, from the clients that have them."""

from __future__ import annotations

import numpy as np

from sqlfl.aggregation.slot_aggregation import merge_classes
from sqlfl.base.errors import ModelError
from sqlfl.coordinator import expected
from sqlfl.coordinator.lasting import LastingJoin
from sqlfl.coordinator.preparation import Joined, Targets, sent_specification
from sqlfl.messages import SendLabels
from sqlfl.messages.replies import ReplyChannel, ask
from sqlfl.models.kinds import kind_of
from sqlfl.planner.federated.plan import FederatedPlan

MAX_TARGET = 1e30


def targets(
    plan: FederatedPlan,
    joined: Joined,
    channel: ReplyChannel,
    run: str,
    lasting: LastingJoin | None = None,
) -> Targets:
    """Return the target of every joined row, in clear, from the clients of the target's slot."""
    return labels(plan, joined, channel, run, lasting).spread(joined)


def labels(
    plan: FederatedPlan,
    joined: Joined,
    channel: ReplyChannel,
    run: str,
    lasting: LastingJoin | None = None,
) -> Targets:
    """Return the targets of the active rows of their slot. Raise ModelError for a value that the
    model or the messages do not take.

    lasting: the join that lasts whose rows the plan uses.
    """
    index = next(slot.index for slot in plan.ucq.slots if slot.target)
    slot = joined.slots[index]
    requests = {a: SendLabels(run, index) for a in slot.addresses}
    type_ = plan.ucq.target_type or "VARCHAR"
    if lasting is not None and plan.join is not None and plan.join.labels:
        replies = lasting.labels(plan)
    else:
        replies = ask(
            channel,
            requests,
            lambda a: expected.labels(sent_specification(plan, a), slot.active[a], type_),
        )
        if lasting is not None:
            lasting.keep_labels(plan, replies)
    parts = [replies[address] for address in slot.addresses]
    if plan.regression:
        every = [part.values for part in parts]
        numbers = np.concatenate(every) if len(every) > 1 else every[0]
        if max(numbers.max(initial=0.0), -numbers.min(initial=0.0)) > MAX_TARGET:
            raise ModelError(
                f"target {plan.ucq.target} has values beyond ±{MAX_TARGET:g}, which do not fit "
                "the 4-byte numbers of messages",
                hint="divide the target by a power of ten",
            )
        kind = kind_of(plan.kind)
        least, lowest = kind.least, numbers.min(initial=np.inf)
        if least is not None and (lowest < least or (kind.above and lowest == least)):
            where = f"below {least:g}" if lowest < least else f"that are {least:g}"
            raise ModelError(
                f"target {plan.ucq.target} has values {where}, which a {plan.kind} does not take",
                hint="correct them, or leave their rows out with WHERE",
            )
        return Targets(numbers, None, index)
    classes, codes = merge_classes(parts, type_)
    # The codes may be as many as the joined rows.
    return Targets(codes.astype(np.min_scalar_type(len(classes))), classes, index)
