"""Warnings of the coordinator about a join, and of clients about their features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from sqlfl.contract.schema import Address
from sqlfl.coordinator import expected
from sqlfl.coordinator.preparation import Joined
from sqlfl.messages import Findings, Message, SendFindings
from sqlfl.messages.checks import ReplyChannel, ask
from sqlfl.planner.federated.plan import TRAIN, FederatedPlan
from sqlfl.planner.query.ucq import CATEGORY, Slot

COPIES = 100
"""Mean number of joined rows of a labelled row from which a key may be missing."""
GROWTH = 10
"""Ratio of the join's rows to its largest table from which a key may be missing."""
FEWEST = 1000
"""Joined rows of which that is said."""
MIN_KEYS, USED = 100_000, 0.1
"""Rows of a table whose keys are sent, and the share of them that is joined: where there are as
many rows, and no more of them are joined, that is said."""


def remark_on_join(plan: FederatedPlan, joined: Joined, remark: Callable[[str], None]) -> None:
    """Warn of tables of LEFT JOINs without any match, and of a fan-out that looks like a missing
    key. In training, also warn of tables that sent keys of far more rows than are joined."""
    for name in without_match(plan, joined):
        remark(
            f"LEFT JOIN {name}: no row has a match in it, and its columns are as where there is "
            "none. Are the keys written alike, lower(trim(a.key)) = lower(trim(b.key))?"
        )
    growth_text = growth(plan, joined)
    if growth_text is not None:
        remark(growth_text)
    for text in _idle_keys(plan, joined) if plan.purpose == TRAIN else ():
        remark(text)


def _idle_keys(plan: FederatedPlan, joined: Joined) -> Iterator[str]:
    """Return the tables most of whose rows sent a key for nothing, in words."""
    silent = without_match(plan, joined)
    for index, slot in joined.slots.items():
        planned = plan.ucq.slots[index]
        name, sent = (
            planned.name,
            joined.tables.get(index, 0) - sum(f.virtual for f in planned.fragments),
        )
        active = int(slot.offsets[-1]) - len(slot.virtual)
        if sent >= MIN_KEYS and active <= USED * sent and name not in silent and joined.total:
            yield (
                f"{name} sent keyed hashes of the keys of {sent:,} rows, and {active:,} of them "
                f"are joined. Can a condition on columns of {name} itself leave the others out?"
            )


def growth(plan: FederatedPlan, joined: Joined) -> str | None:
    """Return a warning if the join is so large that a key seems to be missing."""
    if joined.total < FEWEST:
        return None
    largest = max(joined.tables.values(), default=0)
    target = next((slot for slot in plan.ucq.slots if slot.target), None)
    if target is not None:
        active = int(joined.slots[target.index].offsets[-1])
        if joined.total >= COPIES * active:
            return (
                f"the join has {joined.total:,} rows of {active:,} rows of {target.name}, which "
                f"has the target: each occurs in {joined.total / active:,.0f} on average. Is a key "
                "missing in the join?"
            )
    if largest and joined.total >= GROWTH * largest:
        return (
            f"the join has {joined.total:,} rows, and its largest table {largest:,}. Is a key "
            "missing in the join?"
        )
    return None


def few_rows(joined: Joined) -> str | None:
    """Return a warning if the join has no rows."""
    if joined.total:
        return None
    return (
        "the join has no rows: check the conditions, and that the keys of the tables match; a "
        "target that is NULL leaves its row out"
    )


def matching(name: str, *sides: tuple[str, float | None]) -> str | None:
    """Return a warning if few rows of the key's tables have a partner."""
    if any(share is None for _, share in sides):
        return None  # a table without rows
    if all(share == 0.0 for _, share in sides):
        return (
            f"no row has a partner by {name}. Are the keys written alike, "
            "lower(trim(a.key)) = lower(trim(b.key)), and of one meaning?"
        )
    if all(share is not None and share < MATCHED for _, share in sides):
        said = " and ".join(f"{share:.1%} of {table}" for table, share in sides)
        return f"by {name} only {said} have a partner"
    return None


def multiplied(name: str, means: Sequence[float], tables: Sequence[str]) -> str | None:
    """Return a warning if the key is many to many."""
    left, right = means
    if left > MEETS and right > MEETS:
        return (
            f"{name} is many to many: a row of {tables[0]} meets {left:,.1f} of {tables[1]} on "
            f"average, and one of {tables[1]} {right:,.1f} of {tables[0]}"
        )
    return None


MATCHED = 0.5
"""Share of rows with a partner. If both tables have less, the key is reported."""
MEETS = 1.0


def remark_on_features(
    plan: FederatedPlan,
    joined: Joined,
    channel: ReplyChannel,
    run: str,
    remark: Callable[[str], None],
) -> None:
    """Warn about the findings of clients in their features, if the plan asks for them."""
    towers = [slot for slot in plan.ucq.slots if slot.features]
    if not plan.findings or joined.total == 0:
        return
    requests: dict[Address, Message] = {
        address: SendFindings(run, slot.index)
        for slot in towers
        for address in joined.slots[slot.index].addresses
    }
    features = {slot.index: len(slot.features) for slot in towers}
    replies = ask(channel, requests, lambda a: expected.findings(features[a[1]], joined.total))
    silent = without_match(plan, joined)
    for slot in towers:
        parts = [replies[address] for address in joined.slots[slot.index].addresses]
        if slot.name not in silent:
            _say(plan, slot, parts, joined.total, remark)


def _say(
    plan: FederatedPlan,
    slot: Slot,
    parts: list[Findings],
    total: int,
    remark: Callable[[str], None],
) -> None:
    empty, constant, identifying = (
        np.all([getattr(part, name) for part in parts], axis=0)
        for name in ("empty", "constant", "identifying")
    )
    unseen = np.sum([part.unseen for part in parts], axis=0)
    training = plan.purpose == TRAIN
    for place, feature in enumerate(slot.features):
        name = f"feature {feature.name} (of {slot.name})"
        if empty[place]:
            known = "as a category" if feature.kind == CATEGORY else "as its mean in training"
            what = "tells nothing" if training else f"to model {plan.name} it counts {known}"
            remark(is_null(name, total, what))
        elif constant[place]:
            remark(is_constant(name))
        elif identifying[place]:
            remark(
                f"{name} is a text with nearly as many values as there are joined rows: from an "
                "identifier a model learns rows by heart, and nothing about others. Leave it out "
                "of the SELECT list; PREDICT returns identifiers by ID (...)"
            )
        if unseen[place]:
            remark(
                f"{name} has values that model {plan.name} was not trained on, in "
                f"{int(unseen[place]):,} of {total:,} joined rows, which count as other"
            )


def is_null(name: str, total: int, what: str) -> str:
    return f"{name} is NULL in all {total:,} joined rows: {what}"


def is_constant(name: str) -> str:
    return f"{name} is the same in all joined rows, and tells nothing"


def leaking(name: str, target: str, share: float) -> str:
    return (
        f"{name} alone explains {share:.0%} of {target}: is it made of the target, or known only "
        "after it?"
    )


def without_match(plan: FederatedPlan, joined: Joined) -> list[str]:
    """Return the slots right of LEFT JOINs where only the virtual row is joined. A slot is left out
    if a condition drops rows with a match: then the query may ask for the rows without one.
    """
    dropping = {
        slot
        for block in plan.ucq.blocks
        for slot, kept in block.kept
        if set(kept) < set(dict(block.members)[slot])
    }
    return [
        slot.name
        for slot in plan.ucq.slots
        if joined.total
        and joined.unmatched.get(slot.index) == joined.total
        and slot.index not in dropping
    ]
