"""What every statement begins with: snapshot, join keys, mapping, active rows, encoding, labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from sqlfl.aggregation.slot_aggregation import merge_noised, merge_ranges, merge_statistics
from sqlfl.base.arrays import Array, nonzero, taken
from sqlfl.base.errors import PartyError, PlanError
from sqlfl.contract.schema import Address, SlotSpecification, specifications_to_json
from sqlfl.coordinator import expected
from sqlfl.coordinator.executors.base import Executor
from sqlfl.coordinator.join.fan_out import limit_fan_out
from sqlfl.coordinator.join.join_limits import RowStorage, check_join, check_keys, database_memory
from sqlfl.coordinator.join.join_size import JoinSize, SlotCodes, join_size, once_each
from sqlfl.coordinator.join.key_trees import factorised
from sqlfl.coordinator.join.mapping_query import Room, SlotRows, key_codes, run_mapping_query
from sqlfl.coordinator.join.row_mapping import RowMapping, WrittenMapping
from sqlfl.coordinator.join.scratch import Scratch
from sqlfl.coordinator.proposing import propose
from sqlfl.messages import (
    CLIENT,
    Activate,
    JoinKeys,
    Message,
    Prepare,
    Ranges,
    SendKeys,
    SetEncoding,
    SetRanges,
    Statistics,
)
from sqlfl.messages.replies import ReplyChannel, ask
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.query import places
from sqlfl.privacy.statistics import deviation


@dataclass(frozen=True, eq=False)
class JoinedSlot:
    """A slot whose rows take part in messages: its active rows and where they go."""

    slot: int
    addresses: tuple[Address, ...]
    offsets: Array
    """int64 (clients + 1,): active rows of each client within the slot's."""
    mapping: RowMapping
    """Of the active rows of all slots."""
    virtual: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """int (few,): the active rows that a LEFT JOIN made up, ascending."""

    @property
    def rows(self) -> Array:
        """int32 (N,): p_i, the active row that each joined row comes from."""
        return self.mapping.written()[self.slot]

    @property
    def active(self) -> dict[Address, int]:
        """Active rows of each client."""
        counts = np.diff(self.offsets).tolist()
        return dict(zip(self.addresses, counts, strict=True))

    @property
    def made_up(self) -> Array:
        """bool (active rows,): the virtual ones."""
        found = np.zeros(int(self.offsets[-1]), bool)
        found[self.virtual] = True
        return found

    @property
    def units(self) -> tuple[Array, int]:
        """int64 (N,): which joined rows are of one row, those without a partner in the table each
        of its own; and how many there are."""
        found = self.rows.astype(np.int64)
        alone = np.flatnonzero(self.made_up[found])
        number = len(self.made_up)
        found[alone] = number + np.arange(len(alone))
        return found, number + len(alone)


@dataclass(frozen=True, eq=False)
class Weighting:
    """What every joined row counts; see sqlfl.coordinator.weighting."""

    weights: Array
    """float64 (N,): in training; 0 for validation rows."""
    samples: Array
    """float64 (N,): in metrics; the weight column alone, or 1."""
    validation: Array
    """bool (N,)"""
    held: Array
    """float64 (N,): in the validation loss, class weights included; 0 for training rows."""
    rows: Array | None = None
    """int64 (N,): joined rows of the query that each stands for; None for one each."""


@dataclass(frozen=True, eq=False)
class SlotOffsets:
    """What is added to the scores of joined rows; see sqlfl.coordinator.offsets."""

    slot: int
    values: Array
    """float64 (active rows of the slot,)"""


@dataclass(frozen=True, eq=False)
class Joined:
    """The join as the coordinator knows it."""

    total: int
    """N, joined rows."""
    slots: dict[int, JoinedSlot]
    mapping: RowMapping
    """Of the active rows of all slots."""
    null_targets: int
    """Rows of the target's table that were left out because their target is NULL."""
    unjoined: int
    """Rows of the target's table that have a target, and no partner in the join."""
    weighting: Weighting | None = None
    """None where all joined rows count alike."""
    dropped: int = 0
    """Joined rows beyond the `max_fan_out` of a table row; they are not among N."""
    unmatched: Mapping[int, int] = field(default_factory=dict)
    """By slot on the right of a LEFT JOIN: joined rows that found no partner in it."""
    tables: Mapping[int, int] = field(default_factory=dict)
    """By slot, the rows that its clients hand to the join."""
    offsets: SlotOffsets | None = None

    @property
    def offset(self) -> Array | None:
        """float64 (N,): the offset of every joined row; None where there is none."""
        if self.offsets is None:
            return None
        found: Array = self.offsets.values[self.slots[self.offsets.slot].rows]
        return found


@dataclass(frozen=True, eq=False)
class Targets:
    """Targets per joined row, or per row of their slot: numbers, or codes of `classes`."""

    values: Array
    """(N,) float64 numbers, or codes, integers of any type."""
    classes: tuple[str, ...] | None
    slot: int | None = None
    """Whose active rows `values` are of; None where they are of joined rows."""

    def of(self, rows: Array) -> Targets:
        return Targets(self.values[rows], self.classes)

    def spread(self, joined: Joined) -> Targets:
        """Of the joined rows."""
        return self if self.slot is None else self.of(joined.slots[self.slot].rows)


def prepare(
    plan: FederatedPlan,
    channel: ReplyChannel,
    run: str,
    tell: Callable[[str], None] = lambda _: None,
    scratch: Scratch | None = None,
    executor: Executor | None = None,
    seen: Callable[[Mapping[int, SlotCodes]], None] = lambda _: None,
) -> Joined:
    """Snapshots at all clients, the table mapping here, active rows back to the clients.

    `tell` is told what is being done, for a bar of progress. Where the statement limits how often a
    row may be joined, joined rows beyond it are gone before a client hears of the join. Joined rows
    that do not fit memory go to `scratch`, where there is one and what follows can read them there.
    Workers of the `executor` make the join, where they can. `seen` is told the keys of all rows.
    Raises PartyError where a client's query fails, ModelError where the join is too large.
    """
    tell("taking snapshots")
    slots, null_targets, nonces = _snapshots(plan, channel, run)
    tell("joining keys")
    codes = _codes(plan, slots, nonces, channel, run)
    seen(codes)
    virtual, labelled = _virtual(plan, codes), _labelled(plan, codes)
    rows = _join(plan, codes, tell, scratch, executor)
    del codes
    total = rows.total
    unjoined = _unjoined(plan, rows, labelled)
    if plan.privacy is not None and plan.privacy.max_fan_out is not None:
        rows = _limited(plan, rows, virtual, plan.privacy.max_fan_out)
    kept, often = _active(rows)
    rows = rows.renumbered(kept)
    joined = _activate(plan, slots, nonces, rows, kept, often, virtual, channel, run)
    return Joined(
        rows.total,
        joined,
        next(iter(joined.values())).mapping,
        null_targets,
        unjoined,
        dropped=total - rows.total,
        unmatched=_unmatched(plan, joined),
        tables={slot.slot: sum(slot.rows) for slot in slots},
    )


def _codes(
    plan: FederatedPlan, slots: tuple[SlotRows, ...], nonces: Array, channel: ReplyChannel, run: str
) -> dict[int, SlotCodes]:
    keys = _keys(plan, slots, nonces, channel, run)
    check_keys(plan, keys.values())
    codes = key_codes(slots, keys)
    once = (slot for slot in plan.ucq.slots if slot.once)
    return codes | {s.index: once_each(plan.ucq, s, codes[s.index]) for s in once}


def _join(
    plan: FederatedPlan,
    codes: Mapping[int, SlotCodes],
    tell: Callable[[str], None],
    scratch: Scratch | None,
    executor: Executor | None,
) -> RowMapping:
    """Joins along a tree from the codes alone, others by the mapping query."""
    found = factorised(plan.ucq, codes)
    if found is not None:
        size = JoinSize(found.total, exact=True)
        check_join(plan, codes, size, lambda most: min(most, found.total), tell, found=found)
        return found

    def check(count: Callable[[int], int]) -> Room:
        size = join_size(plan.ucq, codes)
        place = check_join(plan, codes, size, count, tell, stored=scratch is not None)
        memory = database_memory(plan, codes, place)
        return Room(memory, None if place.written else scratch, place.rows)

    counting = database_memory(plan, codes, RowStorage(0, written=False))
    inner = not any(block.lefts for block in plan.ucq.blocks)
    return run_mapping_query(plan.mapping_sql, codes, check, counting, executor, inner)


def _unmatched(plan: FederatedPlan, joined: Mapping[int, JoinedSlot]) -> dict[int, int]:
    optional = {slot for block in plan.ucq.blocks for slot in block.optional}
    return {
        number: int(slot.mapping.counts(number)[slot.virtual].sum()) if len(slot.virtual) else 0
        for number, slot in joined.items()
        if number in optional
    }


def _keys(
    plan: FederatedPlan, slots: tuple[SlotRows, ...], nonces: Array, channel: ReplyChannel, run: str
) -> dict[Address, JoinKeys]:
    """Of all clients that join by keys."""
    rows = {
        address: counts
        for slot in slots
        if slot.keys
        for address, counts in zip(slot.addresses, slot.fragment_rows, strict=True)
    }
    requests = {address: SendKeys(run, address[1], nonces) for address in rows}
    return ask(channel, requests, lambda a: expected.join_keys(told(plan, a), rows[a]))


def told(plan: FederatedPlan, address: Address) -> SlotSpecification:
    """What the client knows of the slot."""
    client, slot = address
    return next(item for item in plan.specifications[client] if item.slot == slot)


def _virtual(plan: FederatedPlan, codes: Mapping[int, SlotCodes]) -> dict[int, Array]:
    """Slot -> integers, ascending: the rows that are no table's, but stand for a partner not
    found."""
    found = {}
    for slot in plan.ucq.slots:
        made_up = [f.index for f in slot.fragments if f.virtual]
        none = np.zeros(0, np.uint32)
        found[slot.index] = nonzero(codes[slot.index].among(made_up)) if made_up else none
    return found


def _limited(
    plan: FederatedPlan, rows: RowMapping, virtual: Mapping[int, Array], limit: int
) -> WrittenMapping:
    """The joined rows that are left where a row with features may occur so often."""
    sizes = dict(zip(rows.slots, rows.sizes, strict=True))
    free = {s.index: np.zeros(sizes[s.index], bool) for s in plan.ucq.slots if s.features}
    for slot, own in free.items():
        own[virtual[slot]] = True
    return WrittenMapping(limit_fan_out(rows.written(), free, limit), sizes)


def _labelled(plan: FederatedPlan, codes: Mapping[int, SlotCodes]) -> Array | None:
    """bool (rows,): the rows of the target's table that have a target; None for all of its slot.

    Virtual rows and those that only take part in matching, as their label is NULL or fails a
    condition, are no rows of the table."""
    slot = next((slot for slot in plan.ucq.slots if slot.target), None)
    if slot is None:
        return None
    counted = [f.index for f in slot.fragments if not f.virtual and not f.links]
    return None if len(counted) == len(slot.fragments) else codes[slot.index].among(counted)


def _unjoined(plan: FederatedPlan, rows: RowMapping, labelled: Array | None) -> int:
    slot = next((slot for slot in plan.ucq.slots if slot.target), None)
    if slot is None:
        return 0
    apart = rows.counts(slot.index) == 0
    if labelled is not None:
        apart &= labelled
    return int(np.count_nonzero(apart))


def _snapshots(
    plan: FederatedPlan, channel: ReplyChannel, run: str
) -> tuple[tuple[SlotRows, ...], int, Array]:
    """With the rows without a label, and what clients have drawn, uint8 (clients, 16)."""
    fragments = {client: plan.fragments_sql(client) for client in plan.specifications}
    requests = {
        (client, CLIENT): Prepare(
            run, CLIENT, specifications_to_json(specification), fragments[client]
        )
        for client, specification in plan.specifications.items()
    }
    propose(plan, channel, run)
    numbers = {c: sum(len(item.fragments) for item in plan.specifications[c]) for c in fragments}
    try:
        replies = ask(channel, requests, lambda a: expected.prepared(numbers[a[0]]))
    except PartyError as error:
        raise _in_words(plan, error) from error
    rows: dict[Address, tuple[int, ...]] = {}
    null_targets = 0
    for client, specification in plan.specifications.items():
        reply = replies[client, CLIENT]
        null_targets += int(reply.null_targets.sum())
        start = 0
        for item in specification:
            end = start + len(item.fragments)
            rows[client, item.slot] = tuple(reply.rows[start:end].tolist())
            start = end
    slots = []
    for slot in plan.ucq.slots:
        addresses = tuple((client, slot.index) for client in slot.clients)
        own = tuple(tuple(f.index for f in slot.of(client)) for client in slot.clients)
        counted = tuple(rows[address] for address in addresses)
        slots.append(SlotRows(slot.index, addresses, own, counted, slot.keys))
    nonces = np.unique([reply.nonce for reply in replies.values()], axis=0)
    return tuple(slots), null_targets, nonces


def _in_words(plan: FederatedPlan, error: PartyError) -> PartyError:
    """The error, with the place in the statement of what the party failed on."""
    found = places.found(plan.ucq, error.party, error.at)
    if found is None:
        return error
    words, span = found
    said = error.message.removeprefix(f"party {error.party}: ")
    message = f"{words} cannot be evaluated: {said}"
    shown = str(PlanError(message, sql=plan.sql, span=span)) if span else message
    return PartyError(
        error.party,
        shown,
        hint="write it so that it is NULL where it fails, with try_cast or CASE, or leave such "
        "rows out; in the party's own process the log sqlfl.party, at level INFO, says the rest",
        at=error.at,
    )


def _active(rows: RowMapping) -> tuple[dict[int, Array], dict[int, Array]]:
    """By slot uint32 (active,): the rows that occur in the join, ascending, and how often."""
    kept, often = {}, {}
    for number in rows.slots:
        counts = rows.counts(number)
        kept[number] = nonzero(counts)
        own = counts if len(kept[number]) == len(counts) else taken(counts, kept[number])
        often[number] = own.astype(np.uint32, copy=False)
    return kept, often


def _activate(
    plan: FederatedPlan,
    slots: tuple[SlotRows, ...],
    nonces: Array,
    mapping: RowMapping,
    kept: dict[int, Array],
    often: dict[int, Array],
    virtual: Mapping[int, Array],
    channel: ReplyChannel,
    run: str,
) -> dict[int, JoinedSlot]:
    """Tells clients their rows of `_active`, which are gone then; `mapping` is of these."""
    joined: dict[int, JoinedSlot] = {}
    requests: dict[Address, Activate] = {}
    for slot in slots:
        if slot.slot not in mapping.slots:
            continue
        active, counts = kept.pop(slot.slot), often.pop(slot.slot)
        bounds = np.searchsorted(active, slot.offsets.astype(active.dtype))
        made_up = _places(active, virtual[slot.slot])
        joined[slot.slot] = JoinedSlot(slot.slot, slot.addresses, bounds, mapping, made_up)
        for number, address in enumerate(slot.addresses):
            mine = slice(bounds[number], bounds[number + 1])
            own = active[mine]
            own -= np.uint32(slot.offsets[number])
            counted_here = own, counts[mine], mapping.total
            requests[address] = Activate(run, slot.slot, *counted_here, nonces)
    counted = {a: float(request.counts.sum()) for a, request in requests.items()}
    now = {a: not told(plan, a).weighted for a in requests}
    replies = ask(
        channel,
        requests,
        lambda a: expected.encoded(told(plan, a), counted[a], now=now[a]),
    )
    replies |= fit(plan, joined, replies, counted, channel, run)
    merge_encodings(joined, replies, mapping.total, deviations(plan), channel, run)
    return joined


def _places(active: Array, rows: Array) -> Array:
    """Where those of the rows stand that are active; both ascending."""
    # of one type: else numpy makes wider ones of all active rows
    rows = rows.astype(active.dtype)
    places = np.searchsorted(active, rows)
    inside = places < len(active)
    places, rows = places[inside], rows[inside]
    found: Array = places[active[places] == rows]
    return found


def fit(
    plan: FederatedPlan,
    joined: Mapping[int, JoinedSlot],
    replies: Mapping[Address, Message],
    counted: Mapping[Address, float],
    channel: ReplyChannel,
    run: str,
) -> dict[Address, Message]:
    """What clients answer once they know what TRANSFORM makes columns by: their statistics.

    `counted` is what the rows of each count. Of slots whose clients told of ranges.
    """
    requests: dict[Address, SetRanges] = {}
    for slot in joined.values():
        parts = [r for r in map(replies.get, slot.addresses) if isinstance(r, Ranges)]
        if parts:
            features = [f for f in told(plan, slot.addresses[0]).features if f.fitted]
            requests |= dict.fromkeys(slot.addresses, merge_ranges(parts, features))
    found = ask(channel, requests, lambda a: expected.statistics(told(plan, a), counted[a]))
    return dict(found)


def deviations(plan: FederatedPlan) -> dict[int, float]:
    """Slot -> standard deviation of each client's noise in statistics of features; 0 without."""
    return {item.slot: deviation(item) for items in plan.specifications.values() for item in items}


def merge_encodings(
    joined: dict[int, JoinedSlot],
    replies: Mapping[Address, Message],
    total: float,
    noised: Mapping[int, float],
    channel: ReplyChannel,
    run: str,
) -> None:
    """The encoding of each slot whose clients all answered with statistics, sent to them.

    `total` is what the joined rows count; `noised` is of `deviations`: noised statistics are of
    the active rows, each once.
    """
    requests: dict[Address, SetEncoding] = {}
    for slot in joined.values():
        parts = [r for r in map(replies.get, slot.addresses) if isinstance(r, Statistics)]
        if not parts:
            continue
        if noised[slot.slot]:
            merged = merge_noised(parts, int(slot.offsets[-1]), noised[slot.slot])
        else:
            merged = merge_statistics(parts, total)
        requests |= dict.fromkeys(slot.addresses, merged)
    ask(channel, requests, lambda a: expected.encoding_set(requests[a]))
