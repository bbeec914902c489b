"""Merge of rows that are equal in all features, both the clients' rows and joined rows.

A client reports which of its active rows are equal. A class of equal rows is then one row of
training. Joined rows of the same classes and label become one row with their total weight: "a
weight of 2 is the row twice". Scores, residuals and sums over rows stay the same up to rounding,
but cover fewer rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_int64
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from sqlfl.base.arrays import Array
from sqlfl.base.interrupts import checkpoint
from sqlfl.contract.schema import Address
from sqlfl.coordinator import expected
from sqlfl.coordinator.join.factorised import Factorised, Tree, is_product
from sqlfl.coordinator.join.row_mapping import RowMapping, WrittenMapping
from sqlfl.coordinator.preparation import Joined, JoinedSlot, Targets, Weighting
from sqlfl.messages import SendEqualRows
from sqlfl.messages.checks import ReplyChannel, ask
from sqlfl.models.native import address, functions, library
from sqlfl.planner.federated.method_spec import spec_of
from sqlfl.planner.federated.plan import FederatedPlan

PIECE = 1 << 20
"""Rows of a tree's root between two checks for Ctrl-C."""


def counted(mapping: RowMapping, parts: Mapping[int, Array], size: int) -> Array:
    """Return the number of joined rows of each kind below `size`: int64 (size,). int32 must hold
    `size`.

    parts: slot -> int32 (rows,), the number that each of its rows adds to the kind. Other slots add
    nothing.
    """
    counts = np.zeros(size, np.int64)
    if isinstance(mapping, Factorised) and library() is not None:
        sizes = dict(zip(mapping.slots, mapping.sizes, strict=True))
        for tree in mapping.trees:
            if is_product(tree):
                _count_product(tree, parts, counts)
            else:
                _count(Factorised([tree], mapping.slots, sizes), parts, counts)
        return counts
    _count(mapping, parts, counts)
    return counts


def _count(mapping: RowMapping, parts: Mapping[int, Array], counts: Array) -> None:
    for rows in mapping.chunks():
        kinds = np.zeros(len(rows[0]), np.int32)
        for slot, slot_rows in zip(mapping.slots, rows, strict=True):
            if slot in parts:
                kinds += parts[slot][slot_rows]
        np.add.at(counts, kinds, 1)
        checkpoint()


def _count_product(tree: Tree, parts: Mapping[int, Array], counts: Array) -> None:
    """Count a tree in which one branch multiplies the rows."""
    assert tree.bounds is not None
    sums: list[Array | None] = [parts.get(slot) for slot in tree.slots]
    group = far = np.zeros(0, np.int32)
    start = np.zeros(0, np.int64)
    for number, branch in reversed([*enumerate(tree.branches, 1)]):
        added = sums[number]
        if branch.rows is not None and branch.start is not None:
            start = branch.start
            far = np.zeros(len(branch.rows), np.int32) if added is None else added[branch.rows]
            group, above = branch.group, branch.parent
            while above:
                group = group[tree.branches[above - 1].group]
                above = tree.branches[above - 1].parent
        elif added is not None:
            before, added = sums[branch.parent], added[branch.group]
            sums[branch.parent] = added if before is None else before + added
    near = np.zeros(tree.size, np.int32) if sums[0] is None else sums[0]
    near, group, far = (np.ascontiguousarray(values, np.int32) for values in (near, group, far))
    for first in range(0, tree.size, PIECE):
        end = min(first + PIECE, tree.size)
        functions().sqlfl_count_kinds(
            c_int64(first),
            c_int64(end),
            address(tree.bounds),
            address(near),
            address(group),
            address(start),
            address(far),
            address(counts),
        )
        checkpoint()


MIN_JOINED_ROWS = 1 << 14
"""Joined rows from which clients are asked. For fewer, the exchange costs more than it saves."""
WORTH = 2 / 3
"""Maximum share of distinct joined rows for which a merge is worth it."""
MAX_INT64 = 2**63 - 1
SAMPLED = 1 << 18
"""Joined rows that are grouped first, to see whether a merge is worth it."""
DENSE = 4
"""Maximum ratio of possible keys to joined rows for which keys are counted in a table."""


def merge_equal_rows(
    plan: FederatedPlan, joined: Joined, target: Targets, channel: ReplyChannel, run: str
) -> tuple[Joined, Targets]:
    """Return the rows to train on: the clients' rows by class. If the method takes all joined rows
    in each step, equal joined rows occur once.

    `Joined.total`, `null_targets` and the like stay those of the query. `slots` keeps only the
    slots with features. `target` may belong to its slot's rows if joined rows have no weights; the
    result belongs to joined rows.

    This takes one exchange, or none if the plan forbids it or rows are few. Raise PartyError where
    a client's classes are invalid.
    """
    if not plan.merges or joined.total < MIN_JOINED_ROWS:
        return joined, target.spread(joined)
    towers = [joined.slots[slot.index] for slot in plan.ucq.slots if slot.features]
    requests = {a: SendEqualRows(run, slot.slot) for slot in towers for a in slot.addresses}
    active = {a: n for slot in towers for a, n in slot.active.items()}
    replies = ask(channel, requests, lambda a: expected.equal_rows(active[a]))
    classes = {address: reply.classes for address, reply in replies.items()}
    by_class = {slot.slot: _by_class(slot, classes) for slot in towers}
    whole = spec_of(plan.algorithm).whole(plan.training, joined.total)
    if whole and joined.weighting is None and target.slot is not None:
        counted = _counted(joined, by_class, target)
        if counted is not None:
            return counted
    target = target.spread(joined)
    rows = {
        n: (slot_classes[joined.slots[n].rows], bounds)
        for n, (slot_classes, bounds) in by_class.items()
    }
    merged = with_rows(joined, rows)
    return _merged(merged, target) if whole else (merged, target)


def with_rows(joined: Joined, rows_and_bounds: Mapping[int, tuple[Array, Array]]) -> Joined:
    """Return the join of these slots alone, with the given rows (N,) and bounds of clients."""
    sizes = {slot: int(bounds[-1]) for slot, (_, bounds) in rows_and_bounds.items()}
    mapping = WrittenMapping({slot: rows for slot, (rows, _) in rows_and_bounds.items()}, sizes)
    slots = {
        slot: JoinedSlot(slot, joined.slots[slot].addresses, bounds, mapping)
        for slot, (_, bounds) in rows_and_bounds.items()
    }
    return replace(joined, slots=slots, mapping=mapping)


def _by_class(slot: JoinedSlot, classes: Mapping[Address, Array]) -> tuple[Array, Array]:
    """Return for each active row its client's class, int32, or the row itself if the client has
    sent none. Return also the classes' bounds by client.
    """
    numbers, bounds = [], [0]
    for client, active in slot.active.items():
        sent = classes[client]
        row_classes = sent.astype(np.int32) if sent.size else np.arange(active, dtype=np.int32)
        numbers.append(row_classes + np.int32(bounds[-1]))
        bounds.append(bounds[-1] + int(row_classes.max(initial=-1)) + 1)
    return np.concatenate(numbers), np.array(bounds, np.int64)


def _counted(
    joined: Joined, rows_and_bounds: Mapping[int, tuple[Array, Array]], target: Targets
) -> tuple[Joined, Targets] | None:
    """Merge joined rows as `_merged` does, but count them before they are written down.

    `target` belongs to the rows of its slot; `rows_and_bounds` has the class of each slot's rows.
    Return None if there may be too many distinct rows to count in a table, or if there turn out to
    be too many.
    """
    assert target.slot is not None
    labels, distinct = _labels(target)
    number = len(distinct)
    # the last digit of a number counts ones
    digits = [(slot, digit, int(bounds[-1])) for slot, (digit, bounds) in rows_and_bounds.items()]
    digits.append((target.slot, labels, number))
    if math.prod(size for *_, size in digits) > min(DENSE * joined.total, 1 << 31):
        return None
    parts: dict[int, Array] = {}
    size = 1
    for slot, digit, values in reversed(digits):
        worth = digit.astype(np.int32) * np.int32(size)
        parts[slot] = parts[slot] + worth if slot in parts else worth
        size *= values
    counts = counted(joined.mapping, parts, size)
    numbers = np.flatnonzero(counts)
    if len(numbers) > WORTH * joined.total:
        return None
    rows, weights = counts[numbers], counts[numbers].astype(np.float64)
    held: dict[int, tuple[Array, Array]] = {}
    numbers, label = _last_digit(numbers.astype(np.uint32), number)
    for slot in reversed(list(rows_and_bounds)):
        bounds = rows_and_bounds[slot][1]
        numbers, digit = _last_digit(numbers, int(bounds[-1]))
        held[slot] = digit.astype(np.int32), bounds
    none = np.zeros(len(rows))
    weighting = Weighting(weights, weights, none.astype(bool), none, rows, rows)
    merged = with_rows(joined, {slot: held[slot] for slot in rows_and_bounds})
    return replace(merged, weighting=weighting), Targets(distinct[label], target.classes)


def _merged(joined: Joined, target: Targets) -> tuple[Joined, Targets]:
    """Merge joined rows of the same classes, label and side of a split. Return them unchanged if
    too few are equal.
    """
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
    head_rows = {n: (slot.rows[heads], slot.offsets) for n, slot in joined.slots.items()}
    merged = replace(with_rows(joined, head_rows), weighting=_summed(joined.weighting, groups))
    return merged, target.of(heads)


def _repeat(digits: Sequence[tuple[Array, int]]) -> bool:
    """Return True if rows of a sample are equal as often as they would be if a third can be saved.

    The samples are neighbouring rows, and rows at even distances. With m equal rows among N, the
    second sample has at least m²/3N equal pairs.
    """
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
    """Groups of joined rows that are equal in some digits."""

    key: Array
    """int (N,): from 0, equal for rows of one group."""
    size: int
    """Number above the largest key."""
    heads: Array
    """int (groups,): one row of each group."""

    @classmethod
    def of(cls, digits: Sequence[tuple[Array, int]]) -> EqualRowGroups:
        """Return the groups of digits (N,) from 0, each with its number of possible values."""
        key, size = np.zeros(len(digits[0][0]), np.int64), 1
        for values, number in digits:
            if size * number > MAX_INT64:
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
        """Return each group's sum of `values` (N,) in float64, or its number of rows."""
        sums: Array = np.bincount(self.key, values, self.size)[self.key[self.heads]]
        return sums


def _digits(joined: Joined, target: Targets) -> Iterator[tuple[Array, int]]:
    """Yield the digits that joined rows must share: numbers (N,) from 0, and the number of possible
    values.
    """
    for slot in joined.slots.values():
        yield slot.rows, int(slot.offsets[-1])
    labels, distinct = _labels(target)
    yield labels, len(distinct)
    if joined.weighting is not None:
        yield joined.weighting.validation, 2


def _last_digit(numbers: Array, base: int) -> tuple[Array, Array]:
    """Return the numbers without their last digit, and that digit. This takes a third of the time
    of np.divmod.
    """
    rest: Array = numbers // base
    return rest, numbers - rest * base


def _labels(target: Targets) -> tuple[Array, Array]:
    """Return for each value its number among the distinct values, and the distinct values."""
    if target.classes is not None:
        return target.values, np.arange(len(target.classes), dtype=target.values.dtype)
    return numbered(target.values)


def numbered(values: Array) -> tuple[Array, Array]:
    """Return one number for equal values, int32 (N,), counted by first occurrence, and the distinct
    values.

    Arrow's hash table takes a fifth of the time of a sort.
    """
    encoded = pa.array(values).dictionary_encode()
    return encoded.indices.to_numpy(), encoded.dictionary.to_numpy()


def _summed(weighting: Weighting | None, groups: EqualRowGroups) -> Weighting:
    rows = groups.total()
    if weighting is None:
        weights, none = rows.astype(np.float64), np.zeros(len(rows))
        return Weighting(weights, weights, np.zeros(len(rows), bool), none, rows, rows)
    return Weighting(
        groups.total(weighting.weights),
        groups.total(weighting.samples),
        weighting.validation[groups.heads],
        groups.total(weighting.held),
        rows,
        groups.total(weighting.samples > 0),
    )
