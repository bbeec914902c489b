"""Offsets: what a column of the query adds to the score of every joined row, with no weight."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import ModelError
from sqlfl.coordinator.preparation import Joined, SlotOffsets
from sqlfl.messages import Offsets, SendOffsets
from sqlfl.messages.replies import Expected, ReplyChannel, ask
from sqlfl.planner.federated.plan import FederatedPlan

LARGEST_OFFSET = 1e4
"""Beyond it no mean of a link would be a number."""


def with_offsets(plan: FederatedPlan, joined: Joined, channel: ReplyChannel, run: str) -> Joined:
    """Return the join with the offsets of its rows; as it is where the statement has none.

    Raises ModelError for offsets that are NULL or infinite, and exposures that are not above 0.
    """
    slot = next((slot for slot in plan.ucq.slots if slot.offset), None)
    if slot is None:
        return joined
    own = joined.slots[slot.index]
    requests = {a: SendOffsets(run, slot.index) for a in own.addresses}
    replies = ask(channel, requests, lambda a: Expected(Offsets, {"active": own.active[a]}))
    values = np.concatenate([replies[address].values for address in own.addresses])
    _check(plan, values)
    if plan.exposure:
        values = np.log(values)
    return replace(joined, offsets=SlotOffsets(slot.index, values))


def _check(plan: FederatedPlan, values: Array) -> None:
    name, what = plan.ucq.offset, "exposure" if plan.exposure else "offset"
    finite = f"isfinite({name})"
    largest = LARGEST_OFFSET if not plan.exposure else np.finfo(np.float64).max
    faults = [
        (np.isnan(values), "NULL or NaN", finite),
        (np.isinf(values), "infinite", finite),
        (np.abs(values) > largest, f"beyond ±{largest:g}", f"abs({name}) <= {largest:g}"),
    ]
    if plan.exposure:
        faults.append((values <= 0, "not above 0", f"{name} > 0"))
    for rows, fault, condition in faults:
        if rows.any():
            raise ModelError(
                f"{what} {name} is {fault} in {int(rows.sum()):,} of the {len(values):,} rows that "
                "occur in the join",
                hint=f"filter them out: WHERE {condition}",
            )
