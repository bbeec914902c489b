"""The sections of EXPLAIN on the slots and how they are joined."""

from __future__ import annotations

from sqlfl.planner.explain.render import Notes, Section, TextTable, several
from sqlfl.planner.federated.plan import JOIN, FederatedPlan
from sqlfl.planner.query.ucq import ARRAY, Block, Feature, Join, LeftJoin, Slot

HEADERS = ("slot", "clients", "rows, estimated", "features", "engine")


def sent_keys(plan: FederatedPlan) -> tuple[str, ...]:
    """Return which tables send keys of fewer or more rows than the query says, or only keys."""
    narrowed = [
        f"{slot.name} sends keys of rows with {' and '.join(slot.derived)} only: equal keys say so"
        for slot in plan.ucq.slots
        if slot.derived
    ]
    once = [
        f"{slot.name} only says which keys there are: its rows with equal keys count as one"
        for slot in plan.ucq.slots
        if slot.once
    ]
    merged = [
        f"databases of {slot.merging[0].party} send each other aggregates of {slot.name} by key, "
        "sealed, and merge those of equal keys: the coordinator cannot read them"
        for slot in plan.ucq.slots
        if slot.merging
    ]
    return (*narrowed, *once, *merged, *plan.ucq.remarks)


def lasting(plan: FederatedPlan) -> tuple[str, ...]:
    """Return what was sent before for the join that lasts, and what will be; empty without one."""
    if plan.purpose == JOIN:
        return (
            "each party keeps its tables as they are now, until DROP JOIN, the end of the session, "
            "or its owner's time limit; of their rows nothing leaves yet: the first statement over "
            "the join that needs a table's keys sends them, once",
        )
    if plan.join is None:
        return ()
    keyed = [slot for slot in plan.ucq.slots if slot.keys]
    sent = [slot.name for slot in keyed if slot.index in plan.join.kept]
    left = [slot.name for slot in keyed if slot.index not in plan.join.kept]
    rows = f"the rows are those of join {plan.join.name}, made {plan.join.made}"
    return (
        rows,
        *([f"keys of {', '.join(sent)} were sent already, and do not leave again"] * bool(sent)),
        *([f"keys of {', '.join(left)} leave now, once for the join"] * bool(left)),
        *(["the targets were sent already, and do not leave again"] * plan.join.labels),
    )


def slots(plan: FederatedPlan) -> Section:
    """Return the slots with kinds of features, and the reason for each engine."""
    rows = []
    for slot in plan.ucq.slots:
        choice = plan.engines[slot.index]
        rows.append(
            (
                f"{slot.index} {slot.name}",
                ", ".join(_holders(slot)),
                " + ".join(_estimates(slot)),
                ", ".join(_feature(feature) for feature in slot.features) or "none",
                f"{choice.engine}: {choice.reason}" if slot.features else "none",
            )
        )
    return Section("Slots", (TextTable(HEADERS, tuple(rows)),))


def transforms(plan: FederatedPlan) -> tuple[Section, ...]:
    """Return the features that TRANSFORM computes, and their parties; empty without TRANSFORM."""
    if not plan.ucq.transforms:
        return ()
    rows = []
    for slot in plan.ucq.slots:
        for feature in slot.features:
            if feature.transform is not None:
                fitted = feature.transform.fitted
                how = FITTED if fitted and plan.algorithm else KEPT if fitted else COMPUTED
                held = several(_holders(slot))
                rows.append((feature.name, feature.transform.call, held, how))
    headers = ("feature", "made by", "at", "how")
    return (
        Section(
            "What TRANSFORM makes, at the column's own party", (TextTable(headers, tuple(rows)),)
        ),
    )


COMPUTED = "in its SELECT"
FITTED = "fitted to its joined rows, and kept with its block"
KEPT = "as its block of the model has it"


def joins(plan: FederatedPlan) -> Section:
    """Return the joins block by block, with keys and rows without a partner."""
    ucq = plan.ucq
    names = [slot.name for slot in ucq.slots]
    blocks = []
    for number, block in enumerate(ucq.blocks):
        members = [_member(ucq.slots[slot], fragments) for slot, fragments in block.members]
        blocks.append((str(number), ", ".join(members), _of_block(plan, block) or "none"))
    parts: list[TextTable | Notes] = [TextTable(("block", "slots", "joins"), tuple(blocks))]
    keys = [
        (
            str(key.index),
            ", ".join(key.types),
            ", ".join(slot.name for slot in ucq.slots if key.index in slot.keys),
            "16-byte keyed hash of the value"
            + (f", its {len(key.types)} parts together" if len(key.types) > 1 else "")
            + (f"; rows with the same {key.unit} are one unit" if key.unit else ""),
        )
        for key in ucq.keys
    ]
    if keys:
        parts.append(TextTable(("key", "types", "slots", "sent as"), tuple(keys)))
    added = [(names[slot], *_without_partner(plan, slot)) for slot in _optional(plan)]
    if added:
        headers = ("slot", "joined rows without partner get", "WHERE then drops")
        parts.append(TextTable(headers, tuple(added)))
    if narrowed := (*sent_keys(plan), *lasting(plan)):
        parts.append(Notes(narrowed))
    return Section("Joins", tuple(parts))


def _of_block(plan: FederatedPlan, block: Block) -> str:
    names = [slot.name for slot in plan.ucq.slots]
    inner = [_equality(names, item) for item in block.joins]
    return ", ".join([*inner, *(_left_join(names, left) for left in block.lefts)])


def _equality(names: list[str], join: Join) -> str:
    virtual = ", also where it has no partner" if join.virtual else ""
    return f"{names[join.left]} = {names[join.right]} on key {join.key}{virtual}"


def _left_join(names: list[str], left: LeftJoin) -> str:
    inside = [names[slot] for slot in left.slots]
    inside += [_equality(names, join) for join in left.joins]
    inside += [_left_join(names, inner) for inner in left.lefts]
    right = inside[0] if len(inside) == 1 else f"({', '.join(inside)})"
    return f"LEFT JOIN {right}: {', '.join(_equality(names, join) for join in left.on) or 'all'}"


def _optional(plan: FederatedPlan) -> list[int]:
    return sorted({slot for block in plan.ucq.blocks for slot in block.optional})


def _without_partner(plan: FederatedPlan, index: int) -> tuple[str, str]:
    """Return the row that joined rows without a partner get from a slot, and which rows are
    dropped.
    """
    slot = plan.ucq.slots[index]
    virtual = [f for f in slot.fragments if f.virtual]
    places = " and ".join(f"fragment {f.index} at {f.client}" for f in virtual)
    links = [str(f.index) for f in slot.fragments if f.links]
    dropped = "none"
    if links:
        dropped = f"rows of fragment{'s' * (len(links) > 1)} {', '.join(links)}"
        dropped += "; those without partner, if that row is not there"
    return f"the row of {places}", dropped


def _holders(slot: Slot) -> list[str]:
    """Return the clients; a party's combined clients stand in brackets."""
    holders = []
    for client in slot.clients:
        combined = [str(c) for c in slot.databases if c.combined and c.whole == client]
        holders.append(f"{client} ({', '.join(combined)})" if combined else str(client))
    return holders


def _estimates(slot: Slot) -> list[str]:
    estimates = []
    for client in slot.clients:
        rows = [f.rows for f in slot.of(client) if not f.virtual]
        known = [r for r in rows if r is not None]
        estimates.append(f"{sum(known):,}" if len(known) == len(rows) else "unknown")
    return estimates


def _member(slot: Slot, fragments: tuple[int, ...]) -> str:
    if fragments == tuple(f.index for f in slot.fragments if not f.virtual):
        several = len(fragments) > 1
        return f"{slot.name} (fragments {', '.join(map(str, fragments))})" if several else slot.name
    return f"{slot.name} (fragments {', '.join(str(index) for index in fragments)})"


def _feature(feature: Feature) -> str:
    kind = f"{feature.kind}[{feature.width}]" if feature.kind == ARRAY else feature.kind
    return f"{feature.name} {kind}"
