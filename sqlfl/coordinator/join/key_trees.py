"""Trees of `sqlfl.coordinator.join.factorised` from join keys, if the join has this form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sqlfl.base.arrays import Array, taken
from sqlfl.coordinator.join.factorised import Branch, Factorised, Tree
from sqlfl.coordinator.join.join_size import SlotCodes, paired, variables
from sqlfl.coordinator.join.row_mapping import CHUNK
from sqlfl.planner.query.ucq import Block, Join, Ucq

COUNTED = 2.0**62
"""Maximum number of joined rows of a slot and the slots below it that int64 counts."""


def factorised_join(ucq: Ucq, codes: Mapping[int, SlotCodes]) -> Factorised | None:
    """Return the joined rows of `ucq`, or None.

    None stands for a block with a cycle, for an outer join of several slots or by keys of several
    slots, and for more rows than can be counted.
    """
    try:
        trees = [_Growth(ucq, block, codes).tree() for block in ucq.blocks]
    except _NoTreeError:
        return None
    return Factorised(
        trees, ucq.mapped, {slot: len(slot_codes.fragment) for slot, slot_codes in codes.items()}
    )


class _NoTreeError(Exception):
    pass


@dataclass(eq=False)
class _Grown:
    """Slot with the slots that were taken into it."""

    slot: int
    keys: dict[int, Array]
    """Variable -> int (rows,): codes; negative if a row joins nothing."""
    weight: Array
    """int64 (rows,): joined rows of the slot and the slots below; bool if each is at most one."""
    below: list[tuple[_Grown, Branch]] = field(default_factory=list)

    def take(self, ear: _Grown, below: Array, above: Array) -> None:
        """Take in a slot, by codes of its rows and of the rows here."""
        branch, times = _branch(ear, below, above)
        if float(self.weight.max(initial=0)) * times.max(initial=0) * len(times) >= COUNTED:
            raise _NoTreeError
        into = times if self.weight.dtype == bool else self.weight
        self.weight = np.multiply(self.weight, times, out=into)
        self.below.append((ear, branch))


class _Growth:
    """Builder of one block's tree."""

    def __init__(self, ucq: Ucq, block: Block, codes: Mapping[int, SlotCodes]) -> None:
        self._ucq = ucq
        self._block = block
        self._codes = codes
        self._taken = dict(block.members)
        self._virtual = dict(block.virtual)
        self._kept = dict(block.kept)
        self._variables = variables(block.joins, None)

    def tree(self) -> Tree:
        simple = all(len(left.within) == 1 and _of_one(left.on) for left in self._block.lefts)
        across = any({j.left, j.right} & self._virtual.keys() for j in self._block.joins)
        if not simple or across:
            raise _NoTreeError
        core = [slot for slot in self._taken if slot not in self._virtual]
        remaining = [self._grown(slot) for slot in core]
        root = max(remaining, key=lambda grown: len(grown.weight))
        while len(remaining) > 1:
            ear, into, shared = _ear(remaining, root)
            into.take(ear, *_codes(ear, into, shared))
            remaining.remove(ear)
        bounds: Array | None = None
        if not (root.weight.dtype == bool and root.weight.all()):
            bounds = _bounds(root.weight)
        return Tree(root.slot, bounds, len(root.weight), tuple(_numbered(root)))

    def _grown(self, slot: int) -> _Grown:
        """Return the slot with the slots of its LEFT JOINs."""
        codes = self._codes[slot].keys
        keys = {v: codes[key] for (s, key), v in self._variables.items() if s == slot}
        weight = self._among(slot, self._taken[slot])
        if slot in self._kept:
            weight &= self._among(slot, self._kept[slot])
        if slot in self._virtual:
            weight |= self._among(slot, (self._virtual[slot],))
        grown = _Grown(slot, keys, weight)
        for left in self._block.lefts:
            if left.on[0].left == slot:
                self._hang(grown, self._grown(left.slots[0]), left.on)
        return grown

    def _hang(self, grown: _Grown, ear: _Grown, on: Sequence[Join]) -> None:
        """Take in the slot of a LEFT JOIN. Rows without a partner get the virtual row."""
        keys = [self._codes[slot].keys for slot in (ear.slot, grown.slot)]
        below, above = _together(keys, [join.key for join in on])
        if grown.slot in self._virtual:  # a missing partner has no keys
            above = np.where(self._among(grown.slot, (self._virtual[grown.slot],)), -1, above)
        below = np.where(self._among(ear.slot, self._taken[ear.slot]), below, -1)
        size = max(int(below.max(initial=-1)), int(above.max(initial=-1))) + 1
        matched = np.append(np.bincount(below[below >= 0], minlength=size) > 0, False)
        virtual = np.flatnonzero(self._among(ear.slot, (self._virtual[ear.slot],)))
        if len(virtual):
            below[virtual] = size
        elif ear.slot not in self._kept:
            raise _NoTreeError
        grown.take(ear, below, np.where(taken(matched, above), above, size if len(virtual) else -1))

    def _among(self, slot: int, fragments: Sequence[int]) -> Array:
        """Return which rows belong to these fragments: bool (rows,)."""
        codes = self._codes[slot]
        if len(fragments) == len(self._ucq.slots[slot].fragments):
            return np.ones(len(codes.fragment), bool)
        return codes.among(fragments)


def _of_one(on: Sequence[Join]) -> bool:
    """Return True if the keys belong to one slot on the left, and to its real rows."""
    return len({join.left for join in on}) == 1 and not any(join.virtual for join in on)


def _ear(remaining: Sequence[_Grown], root: _Grown) -> tuple[_Grown, _Grown, list[int]]:
    """Return a slot, another one that has all keys which it shares with others, and these keys. The
    smallest slot comes first.
    """
    for ear in sorted(remaining, key=lambda grown: len(grown.weight)):
        others = [grown for grown in remaining if grown is not ear]
        shared = {v for v in ear.keys if any(v in grown.keys for grown in others)}
        if ear is root:
            continue
        for into in others:
            if shared <= into.keys.keys():
                return ear, into, sorted(shared)
    raise _NoTreeError


def _branch(ear: _Grown, below: Array, above: Array) -> tuple[Branch, Array]:
    """Return the branch without a place in the tree, and the number of its joined rows for each row
    above: int64, or bool if each is at most one.
    """
    rows = np.flatnonzero((below >= 0) & (ear.weight > 0))
    below, weight = below[rows], ear.weight[rows]
    groups = max(int(below.max(initial=-1)), int(above.max(initial=-1))) + 1
    counts = np.bincount(below, minlength=groups + 1)
    if counts.max() <= 1:
        row = np.full(groups + 1, -1, np.int32)
        row[below] = rows
        group = taken(row, above)
        if weight.dtype == bool:
            return Branch(ear.slot, 0, group), group >= 0
        size = np.append(ear.weight, 0)
        return Branch(ear.slot, 0, group, size=size), taken(size, group)
    order = np.sort(below.astype(np.int64) << 32 | rows) & 0xFFFFFFFF
    start = np.cumsum(counts) - counts
    size, before = counts, None
    if weight.dtype != bool:
        ends = np.concatenate([[0], np.cumsum(ear.weight[order])])
        size, before = np.diff(ends[np.append(start, len(order))]), ends[:-1]
    # The last group is empty; NULL keys belong to it.
    group = above.astype(np.int32)
    branch = Branch(ear.slot, 0, group, order.astype(np.int32), start, size, before)
    return branch, taken(size, group)


def _codes(ear: _Grown, into: _Grown, shared: Sequence[int]) -> tuple[Array, Array]:
    """Return codes of both slots, int (rows,): equal if the rows join, negative if a key is
    NULL.
    """
    if not shared:
        return np.zeros(len(ear.weight), np.int32), np.zeros(len(into.weight), np.int32)
    return _together([ear.keys, into.keys], shared)


def _together(keys: Sequence[Mapping[int, Array]], shared: Sequence[int]) -> tuple[Array, Array]:
    below, above = (codes[shared[0]] for codes in keys)
    for key in shared[1:]:
        below, above = paired(below, above, keys[0][key], keys[1][key])
    return below, above


def _bounds(counts: Array) -> Array:
    """Return the sums of the counts (n,), integers or bool, before each entry and in total: int64
    (n + 1,).
    """
    bounds = np.zeros(len(counts) + 1, np.int64)
    for start in range(0, len(counts), CHUNK):
        part = bounds[start + 1 : start + 1 + CHUNK]
        np.cumsum(counts[start : start + CHUNK], out=part)
        part += bounds[start]
    return bounds


def _numbered(root: _Grown) -> Iterator[Branch]:
    """Yield all branches, those above first."""
    waiting = [(0, root)]
    number = 0
    while waiting:
        parent, grown = waiting.pop(0)
        several = [k for k, (_, b) in enumerate(grown.below) if b.size is not None]
        for place, (ear, branch) in enumerate(grown.below):
            number += 1
            waiting.append((number, ear))
            yield replace(branch, parent=parent, last=place in several[-1:])
