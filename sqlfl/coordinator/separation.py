"""Columns of which all rows are of one class: warnings before training, and findings of CHECK.

Clients receive only facts that follow from the residuals of the first step. These are 1 − p in rows
of a class and −p in others, with p the share of the class. INFERENCE finds combinations of several
columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from sqlfl.aggregation.slot_aggregation import merge_separated
from sqlfl.base.arrays import Array
from sqlfl.base.sanitize import listed
from sqlfl.contract.schema import Address
from sqlfl.coordinator import expected
from sqlfl.coordinator.preparation import Joined, JoinedSlot, Targets
from sqlfl.coordinator.rounds.chunk import Scores
from sqlfl.coordinator.rounds.chunks import chunks_of
from sqlfl.coordinator.rounds.passes import Passes
from sqlfl.coordinator.weights import categories_of
from sqlfl.messages import (
    NOT_OF_CLASS,
    OF_CLASS,
    Message,
    SendSeparated,
    Separated,
)
from sqlfl.messages.checks import ReplyChannel, ask
from sqlfl.models.kinds import TWO_CLASSES, kind_of
from sqlfl.models.losses import Squared
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.query.ucq import Slot

NAMED = 10
"""Maximum number of a table's columns in a warning."""


def remark_on_separation(
    plan: FederatedPlan,
    joined: Joined,
    target: Targets,
    channel: ReplyChannel,
    run: str,
    remark: Callable[[str], None],
    *,
    written: bool,
) -> None:
    """Warn of columns without a finite estimate, where the plan asks for them; as
    `separation_of` has them."""
    slots = plan.run.separated
    texts = separation_of(plan, slots, joined, target, channel, run, written=written)
    for text in texts.values():
        remark(text)


def separation_of(
    plan: FederatedPlan,
    asked: Sequence[Slot],
    joined: Joined,
    target: Targets,
    channel: ReplyChannel,
    run: str,
    *,
    written: bool,
) -> dict[int, str]:
    """Name, by slot, the columns without a finite estimate; `asked`: of those that the plan asks.

    `target` belongs to joined rows. It belongs to its slot's rows if joined rows are not `written`,
    or may be counted.
    """
    towers = [slot for slot in plan.ucq.slots if slot.features]
    if not asked:
        return {}
    counts = int(target.classes is None)
    requests: dict[Address, Message] = {}
    for slot in asked:
        joined_slot = joined.slots[slot.index]
        classes = _classes(
            plan, joined, joined_slot, target, [s.index for s in towers], written=written
        )
        for number, address in enumerate(joined_slot.addresses):
            mine = classes[joined_slot.offsets[number] : joined_slot.offsets[number + 1]]
            requests[address] = SendSeparated(run, slot.index, mine, counts)
    names = {slot.index: {feature.name for feature in slot.features} for slot in towers}
    outputs = _outputs(plan, target)
    replies = ask(channel, requests, lambda a: expected.separated(outputs, names[a[1]]))
    texts = {}
    for slot in asked:
        merged = merge_separated([replies[a] for a in joined.slots[slot.index].addresses])
        text = _said(plan, slot, merged)
        if text is not None:
            texts[slot.index] = text
    return texts


def _outputs(plan: FederatedPlan, target: Targets) -> int:
    """Return the number of classes that rows are marked with: one for two classes."""
    several = target.classes is not None and kind_of(plan.kind).target != TWO_CLASSES
    return len(target.classes or ()) if several else 1


def _members(plan: FederatedPlan, target: Targets) -> Iterator[Array]:
    """Yield for each class which targets belong to it, as bool; for counts, which are above 0."""
    if target.classes is None:
        yield target.values > 0
    elif _outputs(plan, target) == 1:
        yield target.values == 1
    else:
        for code in range(len(target.classes)):
            yield target.values == code


def _classes(
    plan: FederatedPlan,
    joined: Joined,
    rows_of_slot: JoinedSlot,
    target: Targets,
    towers: list[int],
    *,
    written: bool,
) -> Array:
    """Return the marks of a slot's rows, as `SendSeparated` has them: uint8 (rows, outputs)."""
    size = int(rows_of_slot.offsets[-1])
    marks = np.zeros((size, _outputs(plan, target)), np.uint8)
    for output, members in enumerate(_members(plan, target)):
        if written:
            of = members if target.slot is None else members[joined.slots[target.slot].rows]
            counts = np.ones(joined.total, bool)
            if joined.weighting is not None:
                counts = joined.weighting.weights > 0
            inside, outside = (
                np.bincount(rows_of_slot.rows[counts & rows], minlength=size) > 0
                for rows in (of, ~of)
            )
        else:
            place = next(slot.index for slot in plan.ucq.slots if slot.target)
            inside = _often(joined, rows_of_slot, towers, place, members) > 0.5
            outside = _often(joined, rows_of_slot, towers, place, ~members) > 0.5
        marks[:, output] = np.where(inside, OF_CLASS, 0) + np.where(outside, NOT_OF_CLASS, 0)
    return marks


def _often(
    joined: Joined, slot: JoinedSlot, towers: list[int], place: int, members: Array
) -> Array:
    """Return the number of joined rows with these targets for each row: (rows,). The mapping is not
    written down.
    """
    pieces = chunks_of(joined.mapping, towers, place, members.astype(np.float64))
    none = Scores(tuple(np.zeros((1, size)) for size in pieces.sizes), np.zeros(1))
    look = Passes(pieces, Squared()).look(none)  # its slopes are 0 − target
    occurrences: Array = -look.slots[towers.index(slot.slot)][0]
    return occurrences


def _said(plan: FederatedPlan, slot: Slot, separated: Separated) -> str | None:
    counts = not kind_of(plan.kind).classifies
    alike = separated.states == NOT_OF_CLASS
    if not counts:
        alike |= separated.states == OF_CLASS
    names: dict[str, None] = {}
    words = categories_of(separated)
    for place in np.flatnonzero(alike.any(axis=1)).tolist():
        feature, category = separated.features[place], words[place]
        names[feature if not category else f"{feature} ({category})"] = None
    if not names:
        return None
    shown = listed(list(names)[:NAMED])
    if len(names) > NAMED:
        shown += f" and {len(names) - NAMED:,} more"
    what = "have a count of 0"
    if not counts:
        two = kind_of(plan.kind).target == TWO_CLASSES
        what = "are of one class" if two else "are of one class, or of all but one"
    return (
        f"separation: the weights of {shown} (of {slot.name}) have no finite estimate, since all "
        f"joined rows with one of its values {what}. With l2 above 0 they have one"
    )
