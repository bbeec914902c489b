"""First exchanges of every statement: snapshot, join keys, mapping, active rows, encoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

import numpy as np

from sqlfl.aggregation.slot_aggregation import merge_noised, merge_ranges, merge_statistics
from sqlfl.base.arrays import Array, nonzero, taken
from sqlfl.base.errors import ModelError, PartyError, PlanError
from sqlfl.contract.schema import Address, SlotSpecification, specifications_to_json
from sqlfl.coordinator import expected
from sqlfl.coordinator.executors.base import Executor
from sqlfl.coordinator.join.factorised import Factorised, factorised_join
from sqlfl.coordinator.join.join_limits import (
    RowStorage,
    check_join,
    check_keys,
    database_memory,
    limit_fan_out,
)
from sqlfl.coordinator.join.join_size import (
    JoinSize,
    SlotCodes,
    check_lookups,
    check_single,
    join_size,
    once_each,
)
from sqlfl.coordinator.join.mapping_query import Room, SlotRows, key_codes, run_mapping_query
from sqlfl.coordinator.join.row_mapping import RowMapping, Scratch, WrittenMapping
from sqlfl.coordinator.lasting import ActiveRows, KeptMapping, LastingJoin
from sqlfl.coordinator.proposing import propose
from sqlfl.messages import (
    CLIENT,
    REHEARSAL,
    Activate,
    JoinKeys,
    MergeGroups,
    Message,
    Offsets,
    Prepare,
    Ranges,
    SendGroups,
    SendKeys,
    SendOffsets,
    SetEncoding,
    SetRanges,
    Statistics,
)
from sqlfl.messages.checks import Expected, ReplyChannel, ask, refused
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.query import ucq
from sqlfl.privacy.statistics import deviation


@dataclass(frozen=True, eq=False)
class JoinedSlot:
    """Slot whose rows take part in messages: its active rows and their places in the join."""

    slot: int
    addresses: tuple[Address, ...]
    offsets: Array
    """int64 (clients + 1,): bounds of each client's active rows within the slot's."""
    mapping: RowMapping
    """Mapping of the active rows of all slots."""
    virtual: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """int (few,): active rows that a LEFT JOIN added, ascending."""

    @property
    def rows(self) -> Array:
        """Return p_i, the active row that each joined row comes from: int32 (N,)."""
        return self.mapping.written()[self.slot]

    @property
    def active(self) -> dict[Address, int]:
        """Return the number of active rows of each client."""
        counts = np.diff(self.offsets).tolist()
        return dict(zip(self.addresses, counts, strict=True))

    @property
    def made_up(self) -> Array:
        """Return which active rows are virtual: bool (active rows,)."""
        virtual = np.zeros(int(self.offsets[-1]), bool)
        virtual[self.virtual] = True
        return virtual

    @property
    def units(self) -> tuple[Array, int]:
        """Return the unit of each joined row, int64 (N,), and the number of units. Joined rows of
        one row form a unit. Each joined row without a partner in the table is a unit of its own.
        """
        units = self.rows.astype(np.int64)
        alone = np.flatnonzero(self.made_up[units])
        number = len(self.made_up)
        units[alone] = number + np.arange(len(alone))
        return units, number + len(alone)


@dataclass(frozen=True, eq=False)
class Weighting:
    """Weights of every joined row; see sqlfl.coordinator.weighting."""

    weights: Array
    """float64 (N,): weights in training; 0 for validation rows."""
    samples: Array
    """float64 (N,): weights in metrics: the weight column alone, or 1."""
    validation: Array
    """bool (N,): True for validation rows."""
    held: Array
    """float64 (N,): weights in the validation loss, including class weights; 0 for training
    rows.
    """
    rows: Array | None = None
    """int64 (N,): joined rows of the query that each one stands for; None if each is one."""
    weighty: Array | None = None
    """int64 (N,): those of `rows` that have a weight above 0."""

    @property
    def trained(self) -> int:
        """Return the number of joined rows of the query that have a weight in training."""
        known = self.weights > 0
        return int(known.sum() if self.weighty is None else self.weighty[known].sum())


@dataclass(frozen=True, eq=False)
class SlotUnits:
    """Units of the rows of a slot, where an expression makes them: rows with an equal value are
    one unit, and each row without a value is one."""

    slot: int
    groups: Array
    """int64 (active rows of the slot,): numbers from 0."""
    number: int


@dataclass(frozen=True, eq=False)
class SlotOffsets:
    """Offsets (N,) of the scores of joined rows; see sqlfl.coordinator.preparation."""

    slot: int
    values: Array
    """float64 (active rows of the slot,)"""


@dataclass(frozen=True, eq=False)
class Joined:
    """The join, as the coordinator knows it."""

    total: int
    """N, the number of joined rows."""
    slots: dict[int, JoinedSlot]
    mapping: RowMapping
    """Mapping of the active rows of all slots."""
    null_targets: int
    """Rows of the target's table that were left out because their target is NULL."""
    unjoined: int
    """Rows of the target's table with a target but no partner in the join."""
    weighting: Weighting | None = None
    """Weights of the joined rows; None if all have equal weight."""
    dropped: int = 0
    """Joined rows beyond the `max_fan_out` of a table row. N does not count them."""
    unmatched: Mapping[int, int] = field(default_factory=dict)
    """Slot right of a LEFT JOIN -> joined rows without a partner in it."""
    tables: Mapping[int, int] = field(default_factory=dict)
    """By slot, the rows that its clients hand to the join."""
    offsets: SlotOffsets | None = None
    units: SlotUnits | None = None
    """None where no expression makes units."""

    def units_of(self, slot: int) -> tuple[Array, int]:
        """Return the unit of each joined row, int64 (N,), and the number of units: those of the
        expression, or else the rows of the slot as `JoinedSlot.units` has them."""
        if self.units is None:
            return self.slots[slot].units
        return self.units.groups[self.slots[slot].rows], self.units.number

    @property
    def offset(self) -> Array | None:
        """float64 (N,): the offset of every joined row; None where there is none."""
        if self.offsets is None:
            return None
        values: Array = self.offsets.values[self.slots[self.offsets.slot].rows]
        return values

    @property
    def trained(self) -> int:
        """Return the number of joined rows that have a weight in training."""
        return self.total if self.weighting is None else self.weighting.trained


@dataclass(frozen=True, eq=False)
class Targets:
    """Targets of joined rows, or of the rows of their slot: numbers, or codes of `classes`."""

    values: Array
    """(N,): float64 numbers, or codes, integers of any type."""
    classes: tuple[str, ...] | None
    slot: int | None = None
    """Slot to whose active rows `values` belong; None if they belong to joined rows."""

    def of(self, rows: Array) -> Targets:
        return Targets(self.values[rows], self.classes)

    def spread(self, joined: Joined) -> Targets:
        """Return the targets of the joined rows."""
        return self if self.slot is None else self.of(joined.slots[self.slot].rows)


def prepare(
    plan: FederatedPlan,
    channel: ReplyChannel,
    run: str,
    tell: Callable[[str], None] = lambda _: None,
    scratch: Scratch | None = None,
    executor: Executor | None = None,
    seen: Callable[[Mapping[int, SlotCodes], Mapping[int, Array]], None] = lambda *_: None,
    lasting: LastingJoin | None = None,
) -> Joined:
    """Take snapshots at all clients, make the table mapping here, and send the clients their active
    rows.

    tell: reports progress. seen: receives the keys of all rows, and which rows of each
    slot are joined. scratch: files for joined rows that
    do not fit memory, if the next steps can read them there. executor: its workers make the join if
    they can. lasting: the join that lasts whose rows the plan uses; what earlier statements over it
    have done is not done again.

    If the statement limits how often a row may be joined, joined rows beyond the limit are dropped
    before a client learns of the join.

    Raise PartyError if a client's query fails, and ModelError if the join is too large.
    """
    tell("taking snapshots")
    slots, null_targets, nonces = _snapshots(plan, channel, run, lasting)
    slots, more = _merged(plan, slots, nonces, channel, run)
    null_targets += more
    tell("joining keys")
    kept_mapping = _found(plan, lasting, tell, stored=scratch is not None)
    codes: Mapping[int, SlotCodes]
    if kept_mapping is None:
        codes = _codes(plan, slots, nonces, channel, run, lasting)
        rows = None
    else:
        codes, rows = kept_mapping.codes, kept_mapping.rows
    virtual, labelled = _virtual(plan, codes), _labelled(plan, codes)
    if rows is None:
        kept_codes = None if lasting is None else deepcopy(codes)
        rows = _join(plan, codes, tell, scratch, executor)
        if lasting is not None and kept_codes is not None:
            lasting.keep(plan, kept_codes, rows)
    for single in (slot for slot in plan.ucq.slots if slot.single):
        check_single(plan.ucq, single, codes, rows.counts)
    if not run.startswith(REHEARSAL):  # the keys of synthetic rows are any
        check_lookups(plan.ucq, codes, rows.counts)
    total = rows.total
    active = None if kept_mapping is None else kept_mapping.active
    if active is None:
        active = _active(plan, rows, labelled, virtual)
        if lasting is not None:
            lasting.keep_active(plan, active)
    seen(codes, active.ids)
    units = _units(plan, codes, active.ids)
    rows = active.rows
    del codes, kept_mapping
    joined = _activate(plan, slots, nonces, active, virtual, channel, run)
    return Joined(
        rows.total,
        joined,
        next(iter(joined.values())).mapping,
        null_targets,
        active.unjoined,
        dropped=total - rows.total,
        unmatched=_unmatched(plan, joined),
        tables={slot.slot: sum(slot.rows) for slot in slots},
        units=units,
    )


def _found(
    plan: FederatedPlan,
    lasting: LastingJoin | None,
    tell: Callable[[str], None],
    *,
    stored: bool,
) -> KeptMapping | None:
    """Return the joined rows of an earlier statement over the join. They are checked as if they
    were made now.
    """
    if lasting is None or plan.join is None:
        return None
    if any(slot.index not in plan.join.kept for slot in plan.ucq.slots):
        return None
    kept = lasting.mapping(plan)
    if kept is None:
        return None
    tree = kept.rows if isinstance(kept.rows, Factorised) else None
    size, total = JoinSize(kept.rows.total, exact=True), kept.rows.total
    place = check_join(
        plan, kept.codes, size, lambda most: min(most, total), tell, found=tree, stored=stored
    )
    # it may be that these rows are to be in files, by this statement's options
    return kept if tree is not None or place.written else None


def _codes(
    plan: FederatedPlan,
    slots: tuple[SlotRows, ...],
    nonces: Array,
    channel: ReplyChannel,
    run: str,
    lasting: LastingJoin | None,
) -> dict[int, SlotCodes]:
    kept = frozenset[int]() if plan.join is None else plan.join.kept
    asked = [slot for slot in slots if slot.slot not in kept]
    nonces = nonces if lasting is None else lasting.nonces
    keys = _keys(plan, asked, nonces, channel, run)
    if lasting is not None:
        keys |= lasting.keys(plan, kept)
        rows = {
            address: counts
            for slot in slots
            for address, counts in zip(slot.addresses, slot.fragment_rows, strict=True)
        }
        lasting.remember(plan, rows, keys)
    check_keys(plan, keys.values())
    codes = key_codes(slots, keys)
    return once_each(plan.ucq, codes)


def _join(
    plan: FederatedPlan,
    codes: Mapping[int, SlotCodes],
    tell: Callable[[str], None],
    scratch: Scratch | None,
    executor: Executor | None,
) -> RowMapping:
    """Return the joined rows: from the codes alone for a join along a tree, otherwise by the
    mapping query.
    """
    mapping = factorised_join(plan.ucq, codes)
    if mapping is not None:
        size = JoinSize(mapping.total, exact=True)
        check_join(plan, codes, size, lambda most: min(most, mapping.total), tell, found=mapping)
        return mapping

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
    plan: FederatedPlan, slots: Sequence[SlotRows], nonces: Array, channel: ReplyChannel, run: str
) -> dict[Address, JoinKeys]:
    """Return the keys of all clients that join by keys."""
    rows = {
        address: counts
        for slot in slots
        if slot.keys
        for address, counts in zip(slot.addresses, slot.fragment_rows, strict=True)
    }
    requests = {address: SendKeys(run, address[1], nonces) for address in rows}
    return ask(
        channel, requests, lambda a: expected.join_keys(sent_specification(plan, a), rows[a])
    )


def sent_specification(plan: FederatedPlan, address: Address) -> SlotSpecification:
    """Return the specification of the slot that the client has received."""
    client, slot = address
    return next(item for item in plan.specifications[client] if item.slot == slot)


def _units(
    plan: FederatedPlan, codes: Mapping[int, SlotCodes], kept: Mapping[int, Array]
) -> SlotUnits | None:
    """Return the units of the rows that are joined, numbered in the order of these, so that they
    are the same in each run over the same rows."""
    key = plan.ucq.unit
    if key is None:
        return None
    slot = next(slot.index for slot in plan.ucq.slots if slot.units)
    values = codes[slot].keys[key.index][kept[slot]].astype(np.int64)
    alone = np.flatnonzero(values < 0)  # NULL equals nothing
    values[alone] = values.max(initial=0) + 1 + np.arange(len(alone))
    _, first, places = np.unique(values, return_index=True, return_inverse=True)
    numbers = np.empty(len(first), np.int64)
    numbers[np.argsort(first)] = np.arange(len(first))
    return SlotUnits(slot, numbers[places], len(first))


def _virtual(plan: FederatedPlan, codes: Mapping[int, SlotCodes]) -> dict[int, Array]:
    """Return slot -> its virtual rows, ascending. They belong to no table, but stand for a missing
    partner.
    """
    virtual_rows = {}
    for slot in plan.ucq.slots:
        made_up = [f.index for f in slot.fragments if f.virtual]
        none = np.zeros(0, np.uint32)
        virtual_rows[slot.index] = nonzero(codes[slot.index].among(made_up)) if made_up else none
    return virtual_rows


def _limited(
    plan: FederatedPlan, rows: RowMapping, virtual: Mapping[int, Array], limit: int
) -> WrittenMapping:
    """Return the joined rows that remain if each row with features may occur `limit` times."""
    sizes = dict(zip(rows.slots, rows.sizes, strict=True))
    free = {s.index: np.zeros(sizes[s.index], bool) for s in plan.ucq.slots if s.features}
    for slot, may_repeat in free.items():
        may_repeat[virtual[slot]] = True
    return WrittenMapping(limit_fan_out(rows.written(), free, limit), sizes)


def _labelled(plan: FederatedPlan, codes: Mapping[int, SlotCodes]) -> Array | None:
    """Return which rows of the target's table have a target: bool (rows,). None stands for all rows
    of its slot.

    Virtual rows do not count. Neither do rows that only take part in matching, because their label
    is NULL or fails a condition.
    """
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
    plan: FederatedPlan, channel: ReplyChannel, run: str, lasting: LastingJoin | None
) -> tuple[tuple[SlotRows, ...], int, Array]:
    """Return the slots' rows, the number of rows without a label, and the clients' random nonces,
    uint8 (clients, 16).
    """
    fragments = {client: plan.fragments_sql(client) for client in plan.specifications}
    requests = {
        (client, CLIENT): Prepare(
            run,
            CLIENT,
            specifications_to_json(specification),
            fragments[client],
            "" if plan.join is None else plan.join.id,
            _kept(plan, specification),
        )
        for client, specification in plan.specifications.items()
    }
    propose(plan, channel, run)
    numbers = {c: sum(len(item.fragments) for item in plan.specifications[c]) for c in fragments}
    try:
        joins = 0 if plan.join is None else 1
        replies = ask(channel, requests, lambda a: expected.prepared(numbers[a[0]], joins))
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
            address = client, item.slot
            kept = plan.join is not None and item.slot in plan.join.kept
            if lasting and kept and not lasting.is_known(plan, address, rows[address]):
                what = "has other rows of the join than before"
                raise refused(client, requests[client, CLIENT], what)
        if lasting is not None:
            lasting.changed[str(client)] = int(reply.changed[0])
    slots = []
    for slot in plan.ucq.slots:
        addresses = tuple((client, slot.index) for client in slot.clients)
        fragment_numbers = tuple(tuple(f.index for f in slot.of(client)) for client in slot.clients)
        counted = tuple(rows[address] for address in addresses)
        slots.append(SlotRows(slot.index, addresses, fragment_numbers, counted, slot.keys))
    nonces = np.unique([reply.nonce for reply in replies.values()], axis=0)
    return tuple(slots), null_targets, nonces


def _merged(
    plan: FederatedPlan,
    slots: tuple[SlotRows, ...],
    nonces: Array,
    channel: ReplyChannel,
    run: str,
) -> tuple[tuple[SlotRows, ...], int]:
    """Carry groups between the databases that merge them. Return the slots' rows after that, and
    the number of these rows without a label.
    """
    places = {(c, slot.index): n for slot in plan.ucq.slots for n, c in enumerate(slot.merging)}
    if not places:
        return slots, 0
    asked = {address: SendGroups(run, address[1], nonces) for address in places}
    sealed = ask(channel, asked, lambda a: expected.sealed_groups(sent_specification(plan, a)))
    requests = {
        address: MergeGroups(
            run,
            address[1],
            tuple(own.sealed[place] for other, own in sealed.items() if other[1] == address[1]),
        )
        for address, place in places.items()
    }
    replies = ask(channel, requests, lambda a: expected.merged_groups(sent_specification(plan, a)))
    counted = tuple(
        replace(
            slot,
            fragment_rows=tuple(
                tuple(replies[address].rows.tolist()) if address in replies else rows
                for address, rows in zip(slot.addresses, slot.fragment_rows, strict=True)
            ),
        )
        for slot in slots
    )
    return counted, sum(int(reply.null_targets.sum()) for reply in replies.values())


def _kept(plan: FederatedPlan, specifications: tuple[SlotSpecification, ...]) -> Array:
    """Return which slots have rows of earlier statements, as `Prepare` has it."""
    join = plan.join
    if join is None:
        return np.zeros(0, np.uint8)
    return np.array([item.slot in join.kept for item in specifications], np.uint8)


def _in_words(plan: FederatedPlan, error: PartyError) -> PartyError:
    """Return the error with the place in the statement where the party failed."""
    place = ucq.found(plan.ucq, error.party, error.at)
    if place is None:
        return error
    words, span = place
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


def _active(
    plan: FederatedPlan, rows: RowMapping, labelled: Array | None, virtual: Mapping[int, Array]
) -> ActiveRows:
    """Return the rows of each slot that occur in the join, and how often. `rows` is unusable
    afterwards.
    """
    unjoined = _unjoined(plan, rows, labelled)
    if plan.privacy is not None and plan.privacy.max_fan_out is not None:
        rows = _limited(plan, rows, virtual, plan.privacy.max_fan_out)
    ids, often = {}, {}
    for number in rows.slots:
        counts = rows.counts(number)
        ids[number] = nonzero(counts)
        active_counts = counts if len(ids[number]) == len(counts) else taken(counts, ids[number])
        often[number] = active_counts.astype(np.uint32, copy=False)
    return ActiveRows(ids, often, rows.renumbered(ids), unjoined)


def _activate(
    plan: FederatedPlan,
    slots: tuple[SlotRows, ...],
    nonces: Array,
    active: ActiveRows,
    virtual: Mapping[int, Array],
    channel: ReplyChannel,
    run: str,
) -> dict[int, JoinedSlot]:
    """Send clients their active rows."""
    joined: dict[int, JoinedSlot] = {}
    requests: dict[Address, Activate] = {}
    mapping = active.rows
    for slot in slots:
        if slot.slot not in mapping.slots:
            continue
        ids, counts = active.ids[slot.slot], active.often[slot.slot]
        bounds = np.searchsorted(ids, slot.offsets.astype(ids.dtype))
        made_up = _places(ids, virtual[slot.slot])
        joined[slot.slot] = JoinedSlot(slot.slot, slot.addresses, bounds, mapping, made_up)
        for number, address in enumerate(slot.addresses):
            mine, offset = slice(bounds[number], bounds[number + 1]), slot.offsets[number]
            row_ids = ids[mine] - np.uint32(offset) if offset else ids[mine]
            counted_here = row_ids, counts[mine], mapping.total
            requests[address] = Activate(run, slot.slot, *counted_here, nonces)
    counted = {a: float(request.counts.sum()) for a, request in requests.items()}
    now = {a: not sent_specification(plan, a).weighted for a in requests}
    replies = ask(
        channel,
        requests,
        lambda a: expected.encoded(sent_specification(plan, a), counted[a], now=now[a]),
    )
    replies |= fit(plan, joined, replies, counted, channel)
    merge_encodings(joined, replies, mapping.total, deviations(plan), channel)
    return joined


def _places(active: Array, rows: Array) -> Array:
    """Return the positions in `active` of the rows that are active. Both are ascending."""
    # Of one type: otherwise numpy widens all active rows.
    rows = rows.astype(active.dtype)
    places = np.searchsorted(active, rows)
    inside = places < len(active)
    places, rows = places[inside], rows[inside]
    positions: Array = places[active[places] == rows]
    return positions


def fit(
    plan: FederatedPlan,
    joined: Mapping[int, JoinedSlot],
    replies: Mapping[Address, Message],
    counted: Mapping[Address, float],
    channel: ReplyChannel,
) -> dict[Address, Message]:
    """Send merged ranges to the slots whose clients sent ranges, and return the clients'
    statistics. `counted` has the total weight of each client's rows.
    """
    requests: dict[Address, SetRanges] = {}
    for slot in joined.values():
        parts = [r for r in map(replies.get, slot.addresses) if isinstance(r, Ranges)]
        if parts:
            features = [f for f in sent_specification(plan, slot.addresses[0]).features if f.fitted]
            requests |= dict.fromkeys(slot.addresses, merge_ranges(parts, features))
    fitted = ask(
        channel, requests, lambda a: expected.statistics(sent_specification(plan, a), counted[a])
    )
    return dict(fitted)


def deviations(plan: FederatedPlan) -> dict[int, float]:
    """Return slot -> the standard deviation of each client's noise in statistics of features; 0
    without noise.
    """
    return {item.slot: deviation(item) for items in plan.specifications.values() for item in items}


def merge_encodings(
    joined: dict[int, JoinedSlot],
    replies: Mapping[Address, Message],
    total: float,
    noised: Mapping[int, float],
    channel: ReplyChannel,
) -> None:
    """Merge the statistics of each slot whose clients have all sent them, and send the encoding
    back.

    total: total weight of the joined rows. noised: the result of `deviations`. Noised statistics
    count each active row once.
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


# Offsets: what a column of the query adds to the score of every joined row, with no weight.

MAX_OFFSET = 1e4
"""Beyond it no mean of a link would be a number."""


def with_offsets(plan: FederatedPlan, joined: Joined, channel: ReplyChannel, run: str) -> Joined:
    """Return the join with the offsets of its rows; as it is where the statement has none.

    Raises ModelError for offsets that are NULL or infinite, and exposures that are not above 0.
    """
    slot = next((slot for slot in plan.ucq.slots if slot.offset), None)
    if slot is None:
        return joined
    members = joined.slots[slot.index]
    requests = {a: SendOffsets(run, slot.index) for a in members.addresses}
    replies = ask(channel, requests, lambda a: Expected(Offsets, {"active": members.active[a]}))
    values = np.concatenate([replies[address].values for address in members.addresses])
    _check(plan, values)
    if plan.exposure:
        values = np.log(values)
    return replace(joined, offsets=SlotOffsets(slot.index, values))


def _check(plan: FederatedPlan, values: Array) -> None:
    name, what = plan.ucq.offset, "exposure" if plan.exposure else "offset"
    finite = f"isfinite({name})"
    largest = MAX_OFFSET if not plan.exposure else np.finfo(np.float64).max
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
