"""Rows that are equal in all features are trained as one: the clients' rows, and joined rows too.

A client says which of its active rows are equal (a class of them is a row of training from then
on), and joined rows of the same classes and label are one that weighs as much as they do together:
"a weight of 2 is the row twice". Scores, residuals and sums over rows are what they were, up to
rounding, of fewer rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from sqlfl.base.arrays import Array
from sqlfl.contract.schema import Address
from sqlfl.coordinator import expected
from sqlfl.coordinator.join.counting import counted
from sqlfl.coordinator.join.row_mapping import WrittenMapping
from sqlfl.coordinator.preparation import Joined, JoinedSlot, Targets, Weighting
from sqlfl.messages import SendEqualRows
from sqlfl.messages.replies import ReplyChannel, ask
from sqlfl.planner.federated.method_spec import spec_of
from sqlfl.planner.federated.plan import FederatedPlan

LEAST = 1 << 14
"""Joined rows from which clients are asked: of fewer, the question costs more than it spares."""
WORTH = 2 / 3
"""Of the joined rows: as many distinct ones make it worth to merge them."""
LARGEST = 2**63 - 1
SAMPLED = 1 << 18
"""Joined rows that are grouped first, to see whether it is worth it."""
DENSE = 4
"""Times the joined rows: as many keys are counted in a table of all that there can be."""


def merge_equal_rows(
    plan: FederatedPlan, joined: Joined, target: Targets, channel: ReplyChannel, run: str
) -> tuple[Joined, Targets]:
    """What is trained on: the clients' rows by class, and where the method takes all joined rows in
    each step, equal ones once.

    `Joined.total`, `null_targets` and the like stay those of the query; what is left of `slots` is
    those with features. `target` may be of its slot's rows where joined rows have no weights, and
    is of joined rows then. One exchange, or none where the plan does not allow it or rows are few.
    Raises PartyError where a client's classes are none.
    """
    if not plan.merges or joined.total < LEAST:
        return joined, target.spread(joined)
    towers = [joined.slots[slot.index] for slot in plan.ucq.slots if slot.features]
    requests = {a: SendEqualRows(run, slot.slot) for slot in towers for a in slot.addresses}
    active = {a: n for slot in towers for a, n in slot.active.items()}
    replies = ask(channel, requests, lambda a: expected.equal_rows(active[a]))
    classes = {address: reply.classes for address, reply in replies.items()}
    found = {slot.slot: _by_class(slot, classes) for slot in towers}
    whole = spec_of(plan.algorithm).whole(plan.training, joined.total)
    if whole and joined.weighting is None and target.slot is not None:
        counted = _counted(joined, found, target)
        if counted is not None:
            return counted
    target = target.spread(joined)
    rows = {n: (own[joined.slots[n].rows], bounds) for n, (own, bounds) in found.items()}
    merged = with_rows(joined, rows)
    return _merged(merged, target) if whole else (merged, target)


def with_rows(joined: Joined, found: Mapping[int, tuple[Array, Array]]) -> Joined:
    """The join of these slots alone, by the rows (N,) and the bounds of clients that are given."""
    sizes = {slot: int(bounds[-1]) for slot, (_, bounds) in found.items()}
    mapping = WrittenMapping({slot: rows for slot, (rows, _) in found.items()}, sizes)
    slots = {
        slot: JoinedSlot(slot, joined.slots[slot].addresses, bounds, mapping)
        for slot, (_, bounds) in found.items()
    }
    return replace(joined, slots=slots, mapping=mapping)


def _by_class(slot: JoinedSlot, classes: Mapping[Address, Array]) -> tuple[Array, Array]:
    """Of each active row its client's class, int32, or itself where a client has told none; and
    their bounds by client."""
    numbers, bounds = [], [0]
    for address, active in slot.active.items():
        told = classes[address]
        own = told.astype(np.int32) if told.size else np.arange(active, dtype=np.int32)
        numbers.append(own + np.int32(bounds[-1]))
        bounds.append(bounds[-1] + int(own.max(initial=-1)) + 1)
    return np.concatenate(numbers), np.array(bounds, np.int64)


def _counted(
    joined: Joined, found: Mapping[int, tuple[Array, Array]], target: Targets
) -> tuple[Joined, Targets] | None:
    """As `_merged`, of joined rows that are counted before they are written down; None where there
    can be too many distinct ones to count them in a table, or those that there are are too many.
    `target` is of the rows of its slot, `found` has the class of each slot's rows."""
    assert target.slot is not None
    labels, distinct = _labels(target)
    number = len(distinct)
    # the last digit of a number counts ones
    digits = [(slot, own, int(bounds[-1])) for slot, (own, bounds) in found.items()]
    digits.append((target.slot, labels, number))
    if math.prod(size for *_, size in digits) > min(DENSE * joined.total, 1 << 31):
        return None
    parts: dict[int, Array] = {}
    size = 1
    for slot, own, values in reversed(digits):
        worth = own.astype(np.int32) * np.int32(size)
        parts[slot] = parts[slot] + worth if slot in parts else worth
        size *= values
    counts = counted(joined.mapping, parts, size)
    numbers = np.flatnonzero(counts)
    if len(numbers) > WORTH * joined.total:
        return None
    rows, weights = counts[numbers], counts[numbers].astype(np.float64)
    held: dict[int, tuple[Array, Array]] = {}
    numbers, label = _last_digit(numbers.astype(np.uint32), number)
    for slot in reversed(list(found)):
        bounds = found[slot][1]
        numbers, own = _last_digit(numbers, int(bounds[-1]))
        held[slot] = own.astype(np.int32), bounds
    none = np.zeros(len(rows))
    weighting = Weighting(weights, weights, none.astype(bool), none, rows)
    merged = with_rows(joined, {slot: held[slot] for slot in found})
    return replace(merged, weighting=weighting), Targets(distinct[label], target.classes)


def _merged(joined: Joined, target: Targets) -> tuple[Joined, Targets]:
    """Joined rows of the same classes, label and side of a split as one; as they are where too few
    are equal."""
    most = WORTH * joined.total
    if max(int(slot.offsets[-1]) for slot in joined.slots.values()) > most:
        return joined, target
    digits = list(_digits(joined, target))
    if not _repeat(digits):
        return joined, target
    groups = EqualRowGroups.of(digits)
    heads = groups.heads
    if len(heads) > most:
        return joined, target
    found = {n: (slot.rows[heads], slot.offsets) for n, slot in joined.slots.items()}
    merged = replace(with_rows(joined, found), weighting=_summed(joined.weighting, groups))
    return merged, target.of(heads)


def _repeat(digits: Sequence[tuple[Array, int]]) -> bool:
    """Whether rows of a sample are as often equal as they would be where a third can be spared:
    rows that lie together, or rows in even distances, of which m among N then have m²/3N equal
    pairs at least."""
    total = len(digits[0][0])
    if total < 4 * SAMPLED:
        return True
    together = _spared(digits, slice(total // 2, total // 2 + SAMPLED))
    apart = _spared(digits, slice(0, None, total // SAMPLED))
    return together > 0.25 * SAMPLED or apart > 0.2 * SAMPLED**2 / total


def _spared(digits: Sequence[tuple[Array, int]], rows: slice) -> int:
    some = EqualRowGroups.of([(values[rows], number) for values, number in digits])
    return len(some.key) - len(some.heads)


@dataclass(frozen=True, eq=False)
class EqualRowGroups:
    """Joined rows that are equal in some digits."""

    key: Array
    """int (N,): equal for rows of one group, from 0."""
    size: int
    """Beyond the largest key."""
    heads: Array
    """int (groups,): a row of each."""

    @classmethod
    def of(cls, digits: Sequence[tuple[Array, int]]) -> EqualRowGroups:
        """Of numbers (N,) from 0, and how many there can be of each."""
        key, size = np.zeros(len(digits[0][0]), np.int64), 1
        for values, number in digits:
            if size * number > LARGEST:
                key, distinct = numbered(key)
                key, size = key.astype(np.int64), len(distinct)
            key *= number
            key += values
            size *= number
        if size > DENSE * len(key):
            key, distinct = numbered(key)
            size = len(distinct)
        row = np.full(size, -1, np.int32)
        row[key] = np.arange(len(key), dtype=np.int32)
        return cls(key, size, row[row >= 0])

    def total(self, values: Array | None = None) -> Array:
        """Of each group the sum of `values` (N,) in float64, or how many rows it has."""
        found: Array = np.bincount(self.key, values, self.size)[self.key[self.heads]]
        return found


def _digits(joined: Joined, target: Targets) -> Iterator[tuple[Array, int]]:
    """What joined rows must have in common: numbers (N,) from 0, and how many there can be."""
    for slot in joined.slots.values():
        yield slot.rows, int(slot.offsets[-1])
    labels, distinct = _labels(target)
    yield labels, len(distinct)
    if joined.weighting is not None:
        yield joined.weighting.validation, 2


def _last_digit(numbers: Array, base: int) -> tuple[Array, Array]:
    """What is left of the numbers, and their last digit: in a third of the time of np.divmod."""
    rest: Array = numbers // base
    return rest, numbers - rest * base


def _labels(target: Targets) -> tuple[Array, Array]:
    """Of each value its number among the distinct ones, and these."""
    if target.classes is not None:
        return target.values, np.arange(len(target.classes), dtype=target.values.dtype)
    return numbered(target.values)


def numbered(values: Array) -> tuple[Array, Array]:
    """Equal values by one number, int32 (N,), counted as they first come; and the distinct ones.

    Arrow's hash table takes a fifth of the time of a sort.
    """
    found = pa.array(values).dictionary_encode()
    return found.indices.to_numpy(), found.dictionary.to_numpy()


def _summed(weighting: Weighting | None, groups: EqualRowGroups) -> Weighting:
    rows = groups.total()
    if weighting is None:
        weights, none = rows.astype(np.float64), np.zeros(len(rows))
        return Weighting(weights, weights, np.zeros(len(rows), bool), none, rows)
    return Weighting(
        groups.total(weighting.weights),
        groups.total(weighting.samples),
        weighting.validation[groups.heads],
        groups.total(weighting.held),
        rows,
    )
