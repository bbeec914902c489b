"""Joined rows that are not written down: a join along a tree, as groups of rows with equal keys.

The slots of inner joins form a tree if each can be taken into another slot. That slot must have all
keys which the first one shares with others (as in `sqlfl.coordinator.join.join_size`). The largest
slot is the root. A slot of a LEFT JOIN is below the slot that it is compared with. Rows of that
slot without a partner get its virtual row.

A row of a slot stands for a number of joined rows of the slots below it. Each slot below
contributes the sum over its rows with the same key; these sums are multiplied.

So the joined rows of a row of the root are numbered by digits, one for each slot below. Any joined
row can be found from its number, in memory proportional to the slots' rows. Joined rows come in the
order of the root's rows, the same in each run. `factorised_join` makes the trees from join keys, if
the join has this form.

`Products` are joined rows of a tree as products of groups: for each key its rows on both sides of a
branch. They are like `sqlfl.coordinator.blocks`, but key by key, whatever the numbers of rows. They
serve the compiled kernel. numpy needs many keys with equal numbers of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_int64
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sqlfl.base.arrays import Array, kept, taken
from sqlfl.base.interrupts import checkpoint
from sqlfl.coordinator.join.join_size import SlotCodes, paired, variables
from sqlfl.coordinator.join.row_mapping import CHUNK, positions
from sqlfl.models.native import address, library
from sqlfl.planner.query.ucq import Block, Join, Ucq


@dataclass(frozen=True, eq=False)
class Branch:
    """Slot below another one in the tree."""

    slot: int
    parent: int
    """Number of the slot above: 0 is the root, n is branch n − 1."""
    group: Array
    """int32 (rows of the slot above,): the group of their partners; any group for rows without
    partners. If `rows` is None, the row of the one partner.
    """
    rows: Array | None = None
    """int32: rows of the slot, group by group, ascending in each; None if each group is one row."""
    start: Array | None = None
    """int64 (groups,): the start of each group in `rows`."""
    size: Array | None = None
    """int64 (at least groups,): joined rows that a group stands for, with the slots below; None if
    each is one.
    """
    before: Array | None = None
    """int64 (len(rows),): joined rows that the earlier rows stand for; None if each stands
    for one.
    """
    last: bool = True
    """True if no later branch of the slot above multiplies its rows."""

    def taken(self, above: Array, rest: Array | None) -> tuple[Array, Array | None, Array | None]:
        """Return rows of the slot, from rows of the slot above and their numbers among its joined
        rows.

        Return also the rest of these numbers, and the numbers among the joined rows of the returned
        rows. None stands for zeros.
        """
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
    """Joined rows of one block."""

    root: int
    bounds: Array | None
    """int64 (rows of the root + 1,): joined rows before each row of the root; None if each stands
    for one.
    """
    size: int
    """Number of rows of the root."""
    branches: tuple[Branch, ...]
    """Branches, each after the one above it."""

    @property
    def total(self) -> int:
        return self.size if self.bounds is None else int(self.bounds[-1])

    @property
    def multiplies(self) -> bool:
        """Return True if a row of the root may stand for several joined rows."""
        return any(branch.rows is not None for branch in self.branches)

    @property
    def slots(self) -> tuple[int, ...]:
        return (self.root, *(branch.slot for branch in self.branches))

    def part(self, first: int, end: int) -> dict[int, Array]:
        """Return slot -> integers (end − first,): the slot's row of each of these joined rows."""
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
        """Return rows as `part` does. The root's rows are a range if each of them stands for one
        joined row. Rows that follow from the range alone are not copied.
        """
        if self.bounds is not None:
            return {**self.part(first, end)}
        rows: list[Any] = [slice(first, end)]
        for branch in self.branches:
            rows.append(branch.taken(rows[branch.parent], None)[0])
        return dict(zip(self.slots, rows, strict=True))

    def at(self, numbers: Array) -> dict[int, Array]:
        """Return slot -> integers (n,): the slot's row of each joined row with these ascending
        numbers.
        """
        root, rest = numbers, None
        if self.bounds is not None:
            root = np.searchsorted(self.bounds, numbers, side="right") - 1
            rest = numbers - self.bounds[root]
        return dict(zip(self.slots, self._below(root, rest), strict=True))

    def counts(self, sizes: Mapping[int, int]) -> dict[int, Array]:
        """Return slot -> (rows,): the number of joined rows with each row, whole and exact up to
        2⁵³.
        """
        slot_counts = [self._of_root()]
        for branch in self.branches:
            slot_counts.append(
                _counts_below(branch, slot_counts[branch.parent], sizes[branch.slot])
            )
        return dict(zip(self.slots, slot_counts, strict=True))

    def _of_root(self) -> Array:
        if self.bounds is None:
            return np.ones(self.size, np.uint8)
        if not self.multiplies:
            return _lengths(self.bounds, np.uint8)
        return _lengths(self.bounds, np.uint32 if self.total < 2**32 else np.int64)

    def renumbered(self, active: Mapping[int, Array], sizes: Mapping[int, int]) -> Tree:
        """Return the same joined rows over slots that keep only their `active` rows.

        active must contain all joined rows; sizes has the old numbers of rows. The result reuses
        the arrays, so this tree is unusable afterwards.
        """
        branches = []
        for branch in self.branches:
            above, remaining = active.get(self.slots[branch.parent]), active.get(branch.slot)
            group = branch.group if above is None else kept(branch.group, above)
            rows, size = branch.rows, branch.size
            if remaining is not None and len(remaining):
                numbers = group if rows is None else rows
                _translate(numbers, positions(remaining, sizes[branch.slot]))
            if remaining is not None and rows is None and size is not None:
                size = kept(size, remaining)
            branches.append(replace(branch, group=group, size=size))
        left, bounds = active.get(self.root), self.bounds
        if left is None:
            return replace(self, branches=tuple(branches))
        if bounds is not None:
            total = bounds[-1]
            kept(bounds, left)
            bounds = bounds[: len(left) + 1]
            bounds[-1] = total
            bounds = None if _one_each(bounds) else bounds
        return Tree(self.root, bounds, len(left), tuple(branches))

    def _below(self, root: Array, rest: Array | None) -> list[Array]:
        """Return the rows of all slots, from rows of the root and their numbers among its joined
        rows.
        """
        rows, rests = [root], [rest]
        for branch in self.branches:
            parent = branch.parent
            slot_rows, rests[parent], below = branch.taken(rows[parent], rests[parent])
            rows.append(slot_rows)
            rests.append(below)
        return rows

    def _multiplied(self, root: Array, numbers: Array, counts: Array) -> list[Array]:
        """Return rows as `_below` does, for a tree where only one branch has several rows in a
        group. Up to that branch each slot has one row for each row of the root, which occurs in
        `counts` joined rows.
        """
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


def _lengths(bounds: Array, kind: npt.DTypeLike) -> Array:
    """Return the differences of bounds (n + 1,): (n,)."""
    lengths = np.empty(len(bounds) - 1, kind)
    for start in range(0, len(lengths), CHUNK):
        end = min(start + CHUNK, len(lengths))
        lengths[start:end] = np.diff(bounds[start : end + 1])
    return lengths


def _one_each(bounds: Array) -> bool:
    """Return True if all bounds (n + 1,) differ by one."""
    size = len(bounds) - 1
    parts = (bounds[start : start + CHUNK + 1] for start in range(0, size, CHUNK))
    return bool(bounds[-1] == size) and all(bool((np.diff(part) == 1).all()) for part in parts)


def _translate(numbers: Array, place: Array) -> None:
    """Replace each number by the entry at its place."""
    for start in range(0, len(numbers), CHUNK):
        part = numbers[start : start + CHUNK]
        part[:] = place[part]


def _counts_below(branch: Branch, above: Array, size: int) -> Array:
    """Return the number of joined rows of each row of a branch, from those of the rows above."""
    if branch.rows is None or branch.start is None or branch.size is None:
        return _summed(branch.group, above, size)
    each = _summed(branch.group, above, len(branch.size), branch.size)
    counts = np.repeat(each, np.diff(branch.start, append=len(branch.rows)))
    if branch.before is not None:
        counts *= np.diff(branch.before, append=branch.size.sum())
    # Rows that nothing above joins have arbitrary numbers after a renumbering.
    return np.bincount(branch.rows, counts, size)[:size]


def _summed(group: Array, above: Array, size: int, among: Array | None = None) -> Array:
    """Return each group's sum of `above`, in its order: float64 (size,). Each value is divided by
    its group's entry in `among`. Zeros need no group.
    """
    sums = np.zeros(size)
    lib = library()
    for start in range(0, len(group), CHUNK):
        part = slice(start, start + CHUNK)
        numbers, values = group[part], above[part].astype(np.float64)
        if lib is not None:
            numbers = np.ascontiguousarray(numbers, np.int32)
            places = (address(array) for array in (numbers, values, among, sums))
            lib.sqlfl_sum_groups(c_int64(len(numbers)), *places)
            continue
        if not values.all():
            numbers, values = numbers[values > 0], values[values > 0]
        np.add.at(sums, numbers, values if among is None else values / among[numbers])
    return sums


class Factorised:
    """Joined rows of a query whose blocks are all inner joins along trees; see
    `sqlfl.coordinator.join.row_mapping.RowMapping`.
    """

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

    @property
    def alone(self) -> int | None:
        """Return the slot each of whose rows stands for at most one joined row; None if there is
        none.
        """
        (tree, *others) = self.trees
        return None if others or tree.multiplies else tree.root

    def counts(self, slot: int) -> Array:
        occurrences = self._counts[slot]
        return occurrences.astype(np.int64) if occurrences.dtype == np.float64 else occurrences

    @cached_property
    def _counts(self) -> dict[int, Array]:
        first, *others = self.trees
        counts = first.counts(self._sizes)
        for tree in others:
            for slot, more in tree.counts(self._sizes).items():
                counts[slot] = counts[slot].astype(np.float64, copy=False)
                counts[slot] += more
        return counts

    def chunks(self, size: int = CHUNK) -> Iterator[tuple[Array, ...]]:
        for tree in self.trees:
            for first in range(0, tree.total, size):
                rows = tree.part(first, min(first + size, tree.total))
                yield tuple(rows[slot] for slot in self.slots)

    def at(self, numbers: Array) -> tuple[Array, ...]:
        """Return rows as `chunks` does, for the joined rows with these ascending numbers (n,)."""
        parts, before = [], 0
        for tree in self.trees:
            low, high = np.searchsorted(numbers, [before, before + tree.total])
            rows = tree.at(numbers[low:high] - before)
            parts.append([rows[slot] for slot in self.slots])
            before += tree.total
        return tuple(np.concatenate(slot_parts) for slot_parts in zip(*parts, strict=True))

    def renumbered(self, active: Mapping[int, Array]) -> Factorised:
        active = {slot: rows for slot, rows in active.items() if len(rows) < self._sizes[slot]}
        trees = [tree.renumbered(active, self._sizes) for tree in self.trees]
        sizes = self._sizes | {slot: len(rows) for slot, rows in active.items()}
        return Factorised(trees, self.slots, sizes)

    def written(self) -> Mapping[int, Array]:
        return self._written

    @cached_property
    def _written(self) -> dict[int, Array]:
        arrays = {slot: np.empty(self.total, np.int32) for slot in self.slots}
        start = 0
        for rows in self.chunks():
            end = start + len(rows[0])
            for array, values in zip(arrays.values(), rows, strict=True):
                array[start:end] = values
            checkpoint()
            start = end
        return arrays


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
        if not simple or across or self._block.existences:
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


@dataclass(frozen=True, eq=False)
class Products:
    """Joined rows of a tree in which only one branch has several rows in a group.

    One side follows from the rows of the root, the other from the rows of the branch. The places of
    a side are these rows, key by key.
    """

    keys: Array
    """int64 (keys, 4): the first place and the number of places, for one side and then the other;
    ascending.
    """
    near: dict[int, Array]
    """Slot -> int32 (places,): its row at each place of the root's side."""
    far: dict[int, Array]
    """Slot -> int32 (places,): its row at each place of the branch's side."""

    def parts(self, size: int) -> Iterator[Array]:
        """Yield parts of `keys` with up to `size` joined rows together. A key with more rows is
        cut.
        """
        keys = _cut(self.keys, size)
        ends = np.cumsum(keys[:, 1] * keys[:, 3])
        start = 0
        while start < len(keys):
            before = ends[start - 1] if start else 0
            end = max(start + 1, int(np.searchsorted(ends, before + size, side="right")))
            yield keys[start:end]
            start = end


def joined_by(keys: Array) -> int:
    """Return the number of joined rows of keys (keys, 4)."""
    return int((keys[:, 1] * keys[:, 3]).sum())


def is_product(tree: Tree) -> bool:
    """Return True if exactly one branch multiplies rows."""
    several = sum(branch.rows is not None for branch in tree.branches)
    return tree.bounds is not None and several == 1 and tree.total > 0


def products(tree: Tree) -> Products | None:
    """Return the tree's joined rows as products; None if `is_product` is False."""
    if not is_product(tree):
        return None
    spread = next(branch for branch in tree.branches if branch.rows is not None)
    assert tree.bounds is not None
    assert spread.rows is not None
    assert spread.start is not None
    assert spread.size is not None
    near: list[Array | None] = [np.arange(tree.size, dtype=np.int32)]
    far: list[Array | None] = [None]
    group: Array | None = None
    for branch in tree.branches:
        above, beyond = near[branch.parent], far[branch.parent]
        if branch is spread:
            assert above is not None
            group = branch.group[above]
            near.append(None)
            far.append(spread.rows)
        elif above is not None:
            near.append(branch.group[above])
            far.append(None)
        else:
            near.append(None)
            far.append(branch.group[beyond])
    assert group is not None
    living = np.flatnonzero(np.diff(tree.bounds))
    order = np.sort(group[living].astype(np.int64) << 32 | living)
    codes, first, counts = np.unique(order >> 32, return_index=True, return_counts=True)
    roots = order & 0xFFFFFFFF
    keys = np.stack([first, counts, spread.start[codes], spread.size[codes]], axis=1)
    sides = [
        {slot: rows for slot, rows in zip(tree.slots, side_rows, strict=True) if rows is not None}
        for side_rows in ([None if rows is None else rows[roots] for rows in near], far)
    ]
    return Products(keys.astype(np.int64), *(_small(side) for side in sides))


def _small(side: dict[int, Array]) -> dict[int, Array]:
    return {slot: np.ascontiguousarray(rows, np.int32) for slot, rows in side.items()}


def _cut(keys: Array, size: int) -> Array:
    """Cut the keys so that each has up to `size` joined rows."""
    for side, other in ((1, 3), (3, 1)):
        most = np.maximum(1, size // keys[:, other])
        if (keys[:, side] <= most).all():
            return keys
        parts = -(-keys[:, side] // most)
        number = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        keys, most = np.repeat(keys, parts, axis=0), np.repeat(most, parts)
        keys[:, side - 1] += number * most
        keys[:, side] = np.minimum(keys[:, side] - number * most, most)
    return keys
