"""Joined rows that are not written down: a join along a tree, as groups of rows with equal keys.

The slots of inner joins form a tree where each can be taken into one that has all keys which it
shares with others (as in `sqlfl.coordinator.join_size`). The largest slot is the root. A slot of a
LEFT JOIN is below the one that it is compared with, whose rows without a partner have its virtual
row. A row of a slot stands for as many joined rows of the slots below it as the product, over
these, of what their rows with its key stand for. So the joined rows of a row of the root are
numbered by digits, one for each slot below; any of them are found from their numbers, in memory
that goes by the slots' rows. They come in the order of the root's rows, the same from run to run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from sqlfl.arrays import Array
from sqlfl.coordinator.join_size import SlotCodes, paired, variables
from sqlfl.coordinator.row_mapping import CHUNK, positions
from sqlfl.interrupts import checkpoint
from sqlfl.planner.query.ucq import Block, Join, Ucq

COUNTED = 2.0**62
"""Joined rows of a slot and those below it that int64 counts."""


@dataclass(frozen=True, eq=False)
class Branch:
    """A slot below another one."""

    slot: int
    parent: int
    """Number of the slot above: 0 is the root, n is branch n − 1."""
    group: Array
    """int32 (rows of the slot above,): their partners' group; of those without, any. Where `rows`
    is None, the one partner's row."""
    rows: Array | None = None
    """int32: rows of the slot, group by group, ascending in each; None where a group is a row."""
    start: Array | None = None
    """int64 (groups,): where they begin."""
    size: Array | None = None
    """int64 (at least groups,): the joined rows that a group stands for, with the slots below; None
    where each is one."""
    before: Array | None = None
    """int64 (len(rows),): the joined rows that rows before stand for; None where each is one."""
    last: bool = True
    """The slot above has no branch after it that multiplies its rows."""

    def taken(self, above: Array, rest: Array | None) -> tuple[Array, Array | None, Array | None]:
        """Rows of the slot, from rows of the slot above and their numbers among its joined rows;
        what is left of these numbers, and the numbers among joined rows of what was found. None
        stands for zeros."""
        group = self.group[above]
        if self.size is None or rest is None:
            return self._first(group), rest, None
        left, digit = (rest, rest) if self.last else np.divmod(rest, self.size[group])
        if self.rows is None or self.start is None:
            return group, left, digit
        place = self.start[group]
        if self.before is None:
            return self.rows[place + digit], left, None
        digit = digit + self.before[place]
        place = np.searchsorted(self.before, digit, side="right") - 1
        return self.rows[place], left, digit - self.before[place]

    def _first(self, group: Array) -> Array:
        return group if self.rows is None or self.start is None else self.rows[self.start[group]]


@dataclass(frozen=True, eq=False)
class Tree:
    """The joined rows of one block."""

    root: int
    bounds: Array | None
    """int64 (rows of the root + 1,): joined rows of the rows before each; None where each row of
    the root stands for one."""
    size: int
    """Rows of the root."""
    branches: tuple[Branch, ...]
    """Each after the one above it."""

    @property
    def total(self) -> int:
        return self.size if self.bounds is None else int(self.bounds[-1])

    @property
    def slots(self) -> tuple[int, ...]:
        return (self.root, *(branch.slot for branch in self.branches))

    def part(self, first: int, end: int) -> dict[int, Array]:
        """Slot -> integers (end − first,): its row of each of these joined rows."""
        if self.bounds is None:
            rows = self._below(np.arange(first, end), None)
            return dict(zip(self.slots, rows, strict=True))
        low = int(np.searchsorted(self.bounds, first, side="right")) - 1
        high = int(np.searchsorted(self.bounds, end, side="left"))
        counts = np.diff(np.clip(self.bounds[low : high + 1], first, end))
        rows = [np.arange(low, high)]
        if sum(branch.rows is not None for branch in self.branches) == 1:
            rows = self._multiplied(rows[0], np.arange(first, end), counts)
        else:
            root = np.repeat(rows[0], counts)
            rows = self._below(root, np.arange(first, end) - self.bounds[root])
        return dict(zip(self.slots, rows, strict=True))

    def between(self, first: int, end: int) -> dict[int, Array | slice]:
        """As `part`; of the root a range where each of its rows stands for one joined row, and what
        is told by these alone is no copy."""
        if self.bounds is not None:
            return {**self.part(first, end)}
        rows: list[Any] = [slice(first, end)]
        for branch in self.branches:
            rows.append(branch.taken(rows[branch.parent], None)[0])
        return dict(zip(self.slots, rows, strict=True))

    def at(self, numbers: Array) -> dict[int, Array]:
        """Slot -> integers (n,): its row of the joined rows of these numbers, ascending."""
        root, rest = numbers, None
        if self.bounds is not None:
            root = np.searchsorted(self.bounds, numbers, side="right") - 1
            rest = numbers - self.bounds[root]
        return dict(zip(self.slots, self._below(root, rest), strict=True))

    def counts(self, sizes: Mapping[int, int]) -> dict[int, Array]:
        """Slot -> float64 (rows,): the joined rows that each row occurs in, exact up to 2⁵³."""
        root = np.ones(self.size) if self.bounds is None else np.diff(self.bounds).astype(float)
        own = [root]
        for branch in self.branches:
            own.append(_counts_below(branch, own[branch.parent], sizes[branch.slot]))
        return dict(zip(self.slots, own, strict=True))

    def renumbered(self, active: Mapping[int, Array], place: Mapping[int, Array]) -> Tree:
        """The same joined rows, of slots that have only the `active` rows left, among them all that
        are joined; `place`: their new numbers, by the old ones."""
        branches = []
        for branch in self.branches:
            above, own = active.get(self.slots[branch.parent]), place.get(branch.slot)
            group = branch.group if above is None else branch.group[above]
            rows, size = branch.rows, branch.size
            if own is not None and rows is None:
                group = own[group] if len(own) else group
                size = None if size is None else size[active[branch.slot]]
            elif own is not None and rows is not None:
                rows = own[rows]
            branches.append(replace(branch, group=group, rows=rows, size=size))
        kept, bounds = active.get(self.root), self.bounds
        if kept is None:
            return replace(self, branches=tuple(branches))
        if bounds is not None:
            bounds = np.append(bounds[kept], bounds[-1])
            bounds = None if bool((np.diff(bounds) == 1).all()) else bounds
        return Tree(self.root, bounds, len(kept), tuple(branches))

    def _below(self, root: Array, rest: Array | None) -> list[Array]:
        """Rows of all slots from those of the root, and their numbers among its joined rows."""
        rows, rests = [root], [rest]
        for branch in self.branches:
            parent = branch.parent
            own, rests[parent], below = branch.taken(rows[parent], rests[parent])
            rows.append(own)
            rests.append(below)
        return rows

    def _multiplied(self, root: Array, numbers: Array, counts: Array) -> list[Array]:
        """As `_below`, where one branch alone has several rows in a group: up to it each slot has a
        row for each row of the root, which `counts` joined rows come from."""
        assert self.bounds is not None
        spread = np.repeat(np.arange(len(root)), counts)
        near: list[Array | None] = [root]
        rows = [root[spread]]
        for branch in self.branches:
            above = near[branch.parent]
            if above is None:
                near.append(None)
                rows.append(branch.group[rows[branch.parent]])
            elif branch.rows is None or branch.start is None:
                near.append(branch.group[above])
                rows.append(branch.group[above][spread])
            else:
                near.append(None)
                begin = branch.start[branch.group[above]] - self.bounds[root]
                rows.append(branch.rows[begin[spread] + numbers])
        return rows


def _counts_below(branch: Branch, above: Array, size: int) -> Array:
    """Joined rows of each row of a branch, from those of the rows above."""
    group = branch.group
    if not above.all():
        group, above = group[above > 0], above[above > 0]
    if branch.rows is None or branch.start is None or branch.size is None:
        return np.bincount(group, above, size)
    each = np.bincount(group, above / branch.size[group], len(branch.size))
    counts = np.repeat(each, np.diff(branch.start, append=len(branch.rows)))
    if branch.before is not None:
        counts *= np.diff(branch.before, append=branch.size.sum())
    # rows that nothing above joins have any number when others are numbered anew
    return np.bincount(branch.rows, counts, size)[:size]


class Factorised:
    """The joined rows of a query whose blocks are all inner joins along trees; see
    `sqlfl.coordinator.row_mapping.RowMapping`."""

    def __init__(
        self, trees: Sequence[Tree], slots: Sequence[int], sizes: Mapping[int, int]
    ) -> None:
        self.trees = tuple(trees)
        self._sizes = dict(sizes)
        self.slots = tuple(slots)
        self.total = sum(tree.total for tree in trees)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self._sizes[slot] for slot in self.slots)

    def counts(self, slot: int) -> Array:
        return self._counts[slot].astype(np.int64)

    @cached_property
    def _counts(self) -> dict[int, Array]:
        found = {slot: np.zeros(self._sizes[slot]) for slot in self.slots}
        for tree in self.trees:
            counts = tree.counts(self._sizes)
            for slot in self.slots:
                found[slot] += counts[slot]
        return found

    def chunks(self, size: int = CHUNK) -> Iterator[tuple[Array, ...]]:
        for tree in self.trees:
            for first in range(0, tree.total, size):
                found = tree.part(first, min(first + size, tree.total))
                yield tuple(found[slot] for slot in self.slots)

    def at(self, numbers: Array) -> tuple[Array, ...]:
        """As `chunks`, of the joined rows of these numbers (n,), ascending."""
        parts, before = [], 0
        for tree in self.trees:
            low, high = np.searchsorted(numbers, [before, before + tree.total])
            found = tree.at(numbers[low:high] - before)
            parts.append([found[slot] for slot in self.slots])
            before += tree.total
        return tuple(np.concatenate(own) for own in zip(*parts, strict=True))

    def renumbered(self, active: Mapping[int, Array]) -> Factorised:
        place = {slot: positions(rows, self._sizes[slot]) for slot, rows in active.items()}
        trees = [tree.renumbered(active, place) for tree in self.trees]
        sizes = self._sizes | {slot: len(rows) for slot, rows in active.items()}
        return Factorised(trees, self.slots, sizes)

    def written(self) -> Mapping[int, Array]:
        return self._written

    @cached_property
    def _written(self) -> dict[int, Array]:
        found = {slot: np.empty(self.total, np.int32) for slot in self.slots}
        start = 0
        for rows in self.chunks():
            end = start + len(rows[0])
            for array, values in zip(found.values(), rows, strict=True):
                array[start:end] = values
            checkpoint()
            start = end
        return found


# -- from keys to trees ----------------------------------------------------------------------------


def factorised(ucq: Ucq, codes: Mapping[int, SlotCodes]) -> Factorised | None:
    """The joined rows of `ucq`; None where a block has a cycle, or an outer join of other than one
    slot by keys of another, or stands for more rows than can be counted."""
    try:
        trees = [_Growth(ucq, block, codes).tree() for block in ucq.blocks]
    except _NoTreeError:
        return None
    return Factorised(trees, ucq.mapped, {slot: len(own.fragment) for slot, own in codes.items()})


class _NoTreeError(Exception):
    pass


@dataclass(eq=False)
class _Grown:
    """A slot, with the slots that were taken into it."""

    slot: int
    keys: dict[int, Array]
    """Variable -> int (rows,): codes, negative where a row joins nothing."""
    weight: Array
    """int64 (rows,): joined rows of the slot and those below; bool where each is one at most."""
    below: list[tuple[_Grown, Branch]] = field(default_factory=list)

    def take(self, ear: _Grown, own: Array, above: Array) -> None:
        """Take in a slot by codes of its rows and of those here."""
        branch, times = _branch(ear, own, above)
        if float(self.weight.max(initial=0)) * times.max(initial=0) * len(times) >= COUNTED:
            raise _NoTreeError
        self.weight = self.weight * times
        self.below.append((ear, branch))


class _Growth:
    """Makes the tree of one block."""

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
        left = [self._grown(slot) for slot in core]
        root = max(left, key=lambda grown: len(grown.weight))
        while len(left) > 1:
            ear, into, shared = _ear(left, root)
            into.take(ear, *_codes(ear, into, shared))
            left.remove(ear)
        bounds: Array | None = None
        if not (root.weight.dtype == bool and root.weight.all()):
            bounds = np.zeros(len(root.weight) + 1, np.int64)
            np.cumsum(root.weight, out=bounds[1:])
        return Tree(root.slot, bounds, len(root.weight), tuple(_numbered(root)))

    def _grown(self, slot: int) -> _Grown:
        """With the slots of the LEFT JOINs that hang on it."""
        own = self._codes[slot].keys
        keys = {v: own[key] for (s, key), v in self._variables.items() if s == slot}
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
        """Rows without a partner have the virtual row."""
        keys = [self._codes[slot].keys for slot in (ear.slot, grown.slot)]
        own, above = _together(keys, [join.key for join in on])
        if grown.slot in self._virtual:  # whose keys a partner that is missing has not
            above = np.where(self._among(grown.slot, (self._virtual[grown.slot],)), -1, above)
        own = np.where(self._among(ear.slot, self._taken[ear.slot]), own, -1)
        size = max(int(own.max(initial=-1)), int(above.max(initial=-1))) + 1
        found = np.append(np.bincount(own[own >= 0], minlength=size) > 0, False)
        virtual = np.flatnonzero(self._among(ear.slot, (self._virtual[ear.slot],)))
        if len(virtual):
            own[virtual] = size
        elif ear.slot not in self._kept:
            raise _NoTreeError
        grown.take(ear, own, np.where(found[above], above, size if len(virtual) else -1))

    def _among(self, slot: int, fragments: Sequence[int]) -> Array:
        """bool (rows,): those of these fragments."""
        own = self._codes[slot].fragment
        if len(fragments) == len(self._ucq.slots[slot].fragments):
            return np.ones(len(own), bool)
        found: Array = np.isin(own, fragments)
        return found


def _of_one(on: Sequence[Join]) -> bool:
    """Keys of one slot before, and of its own rows."""
    return len({join.left for join in on}) == 1 and not any(join.virtual for join in on)


def _ear(left: Sequence[_Grown], root: _Grown) -> tuple[_Grown, _Grown, list[int]]:
    """A slot, one that has all keys which it shares with others, and those: the smallest first."""
    for ear in sorted(left, key=lambda grown: len(grown.weight)):
        others = [grown for grown in left if grown is not ear]
        shared = {v for v in ear.keys if any(v in grown.keys for grown in others)}
        if ear is root:
            continue
        for into in others:
            if shared <= into.keys.keys():
                return ear, into, sorted(shared)
    raise _NoTreeError


def _branch(ear: _Grown, own: Array, above: Array) -> tuple[Branch, Array]:
    """The branch without a place in the tree, and the joined rows of it that each row above is
    joined with: int64, or bool where it is one at most."""
    rows = np.flatnonzero((own >= 0) & (ear.weight > 0))
    own, weight = own[rows], ear.weight[rows]
    groups = max(int(own.max(initial=-1)), int(above.max(initial=-1))) + 1
    counts = np.bincount(own, minlength=groups + 1)
    if counts.max() <= 1:
        row = np.full(groups + 1, -1, np.int32)
        row[own] = rows
        group = row[above]
        if weight.dtype == bool:
            return Branch(ear.slot, 0, group), group >= 0
        size = np.append(ear.weight, 0)
        return Branch(ear.slot, 0, group, size=size), size[group]
    order = np.sort(own.astype(np.int64) << 32 | rows) & 0xFFFFFFFF
    start = np.cumsum(counts) - counts
    size, before = counts, None
    if weight.dtype != bool:
        ends = np.concatenate([[0], np.cumsum(ear.weight[order])])
        size, before = np.diff(ends[np.append(start, len(order))]), ends[:-1]
    # the last group is empty: that of a NULL
    group = above.astype(np.int32, copy=False)
    return Branch(ear.slot, 0, group, order.astype(np.int32), start, size, before), size[group]


def _codes(ear: _Grown, into: _Grown, shared: Sequence[int]) -> tuple[Array, Array]:
    """int (rows,) of both: equal where they join, negative where a key is NULL."""
    if not shared:
        return np.zeros(len(ear.weight), np.int32), np.zeros(len(into.weight), np.int32)
    return _together([ear.keys, into.keys], shared)


def _together(keys: Sequence[Mapping[int, Array]], shared: Sequence[int]) -> tuple[Array, Array]:
    own, above = (codes[shared[0]] for codes in keys)
    for key in shared[1:]:
        own, above = paired(own, above, keys[0][key], keys[1][key])
    return own, above


def _numbered(root: _Grown) -> Iterator[Branch]:
    """All branches, those above first."""
    waiting = [(0, root)]
    number = 0
    while waiting:
        parent, grown = waiting.pop(0)
        several = [k for k, (_, b) in enumerate(grown.below) if b.size is not None]
        for place, (ear, branch) in enumerate(grown.below):
            number += 1
            waiting.append((number, ear))
            yield replace(branch, parent=parent, last=place in several[-1:])
