"""Joined rows as products of groups: a pass reads each group once, not each joined row.

If one slot of a tree has several rows of a key, the key's joined rows are all pairs of a row of
that slot and a row of the root. Each side carries the rows that depend on it. Keys with equal
numbers of rows on both sides form a block.

Values of a slot's rows are gathered for one side of a block and spread over the other by
broadcasting. Sums go the other way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import isqrt, prod
from typing import TypeAlias

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.coordinator.join.factorised import Branch, Factorised, Tree
from sqlfl.coordinator.join.row_mapping import CHUNK

LONG = 4
"""Minimum number of rows on one side of a key for its joined rows to form a block."""
MANY = 1 << 12
"""Minimum number of joined rows of all keys with equal numbers of rows. Joined rows of rarer keys
are found one by one.
"""


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Some joined rows, in an order of their own."""

    shape: tuple[int, ...]
    """Shape whose product is the number of joined rows."""
    rows: tuple[Array, ...]
    """Integers for every slot, of the shape or 1 along some axes: the slot's row of each joined
    row.
    """

    @property
    def count(self) -> int:
        """Return b, the number of joined rows."""
        return prod(self.shape)


class RowBlocks:
    """All joined rows of a mapping, grouped by equal keys. The order is the same each time for
    blocks of one size.
    """

    def __init__(self, mapping: Factorised) -> None:
        self._slots = mapping.slots
        self.sizes = mapping.sizes
        self.total = mapping.total
        self._grids: list[_Grid] = []
        self._others: list[tuple[Tree, int, int]] = []
        """Trees, each with its first joined row and the end of its joined rows."""
        for tree in mapping.trees:
            grid = _grid(tree)
            if grid is not None:
                self._grids.append(grid)
            other = tree if grid is None else grid.other
            self._others.append((other, 0, other.total))

    @property
    def together(self) -> int:
        """Return the number of joined rows in blocks of more than one axis."""
        return self.total - sum(end - first for _, first, end in self._others)

    def cut(self, parts: int) -> list[RowBlocks]:
        """Return up to `parts` parts of about equally many joined rows."""
        cutting = Cutting(self.total, parts)
        shares = [_Share() for _ in range(parts)]
        before = 0
        for grid in self._grids:
            for kind in grid.classes:
                for piece in _cut(kind, cutting.most):
                    before += shares[cutting.part(before)].take(grid, piece)
        for tree, first, end in self._others:
            for number, *bounds in cutting.ranges(before, first, end):
                shares[number].others.append((tree, bounds[0], bounds[1]))
            before += end - first
        return [self._part(share) for share in shares if share.total]

    def _part(self, share: _Share) -> RowBlocks:
        part = copy(self)
        part._grids = [
            replace(grid, classes=tuple(kinds))
            for grid, kinds in zip(share.grids, share.kinds, strict=True)
        ]
        part._others = share.others
        part.total = share.total
        return part

    def blocks(self, size: int = CHUNK) -> Iterator[RowBlock]:
        """Yield blocks of up to `size` joined rows."""
        for grid in self._grids:
            yield from grid.blocks(self._slots, size)
        for tree, begin, close in self._others:
            for first in range(begin, close, size):
                end = min(first + size, close)
                rows = tree.part(first, end)
                yield RowBlock((end - first,), tuple(rows[slot] for slot in self._slots))


@dataclass(eq=False)
class _Share:
    """One part's share of the joined rows."""

    grids: list[_Grid] = field(default_factory=list)
    kinds: list[list[_Kind]] = field(default_factory=list)
    """Kinds of each of the grids."""
    others: list[tuple[Tree, int, int]] = field(default_factory=list)

    def take(self, grid: _Grid, kind: _Kind) -> int:
        """Add a kind and return its number of joined rows."""
        if not self.grids or self.grids[-1] is not grid:
            self.grids.append(grid)
            self.kinds.append([])
        self.kinds[-1].append(kind)
        return _joined(kind)

    @property
    def total(self) -> int:
        others = sum(end - first for _, first, end in self.others)
        return others + sum(_joined(kind) for kinds in self.kinds for kind in kinds)


_Kind: TypeAlias = tuple[int, int, Array, Array]
"""Rows of the root and of the branch for each key; then their starts in the roots and in the
branch: (keys,) each.
"""


def _joined(kind: _Kind) -> int:
    return kind[0] * kind[1] * len(kind[2])


def _cut(kind: _Kind, most: int) -> Iterator[_Kind]:
    """Yield parts of up to `most` joined rows: some keys, or some of the rows of a key."""
    left, right, first, start = kind
    wide = min(right, most)
    high = min(left, max(1, most // right))
    keys = max(1, most // (high * wide)) if (high, wide) == (left, right) else 1
    for k in range(0, len(first), keys):
        some = slice(k, k + keys)
        for one in range(0, left, high):
            for other in range(0, right, wide):
                a, b = min(high, left - one), min(wide, right - other)
                yield a, b, first[some] + one, start[some] + other


@dataclass(frozen=True, eq=False)
class _Grid:
    """Joined rows of a tree's keys that have many of them."""

    tree: Tree
    other: Tree
    """Tree of the other joined rows."""
    near: tuple[Array | None, ...]
    """For the root and each branch, int (rows of the root,): its row. None beyond the branch that
    multiplies.
    """
    spread: Branch
    roots: Array
    """int: rows of the root, key by key."""
    classes: tuple[_Kind, ...]

    def blocks(self, slots: Sequence[int], size: int) -> Iterator[RowBlock]:
        places = [self.tree.slots.index(slot) for slot in slots]
        side = isqrt(size)
        for left, right, first, start in self.classes:
            high = _even(left, max(side, size // right))
            wide = _even(right, size // high)
            keys = max(1, size // (high * wide))
            for k in range(0, len(first), keys):
                for one in range(0, left, high):
                    rows = np.arange(one, min(one + high, left))
                    root = self.roots[first[k : k + keys, None] + rows]
                    for other in range(0, right, wide):
                        rows = np.arange(other, min(other + wide, right))
                        yield self._block(places, root, start[k : k + keys, None] + rows)

    def _block(self, places: Sequence[int], root: Array, place: Array) -> RowBlock:
        """Return a block. root: (keys, a); place: (keys, b), in the rows of the branch."""
        keys, left, right = len(root), root.shape[1], place.shape[1]
        if keys >= right:  # the longest axis last: numpy is slow if the last axis is short
            root, place = root.T[:, None], place.T[None]
            shape = (left, right, keys)
        else:
            root, place = root[:, :, None], place[:, None]
            shape = (keys, left, right)
        rows: list[Array] = []
        for number, near in enumerate(self.near):
            if near is not None:
                rows.append(near[root])
                continue
            branch = self.tree.branches[number - 1]
            if branch is self.spread and branch.rows is not None:
                rows.append(branch.rows[place])
            else:
                rows.append(branch.group[rows[branch.parent]])
        return RowBlock(shape, tuple(rows[number] for number in places))


def _even(length: int, most: int) -> int:
    """Return the part length if `length` is cut evenly into the fewest parts of up to `most`."""
    parts = -(-length // min(length, most))
    return -(-length // parts)


def _grid(tree: Tree) -> _Grid | None:
    """Return the grid; None unless exactly one branch multiplies and some keys have many rows."""
    several = [branch for branch in tree.branches if branch.rows is not None]
    if tree.bounds is None or len(several) != 1 or not tree.total:
        return None
    spread = several[0]
    assert spread.start is not None
    assert spread.size is not None
    counts = np.diff(tree.bounds)
    near: list[Array | None] = [np.arange(tree.size)]
    group: Array | None = None
    for branch in tree.branches:
        above = near[branch.parent]
        if branch is spread and above is not None:
            group = branch.group[above]
        near.append(None if branch is spread or above is None else branch.group[above])
    assert group is not None
    living = np.flatnonzero(counts)
    order = np.sort(group[living].astype(np.int64) << 32 | living)
    keys, first, left = np.unique(order >> 32, return_index=True, return_counts=True)
    roots = order & 0xFFFFFFFF
    right = spread.size[keys]
    classes = []
    taken = np.zeros(tree.size, bool)
    kinds, kind = np.unique(left << 32 | right, return_inverse=True)
    joined = np.bincount(kind, left * right)
    by_kind = np.split(np.argsort(kind, kind="stable"), np.cumsum(np.bincount(kind))[:-1])
    for pair, total, chosen in zip(kinds.tolist(), joined, by_kind, strict=True):
        a, b = pair >> 32, pair & 0xFFFFFFFF
        if max(a, b) < LONG or total < MANY:
            continue
        classes.append((a, b, first[chosen], spread.start[keys[chosen]]))
        taken[roots[first[chosen, None] + np.arange(a)]] = True
    if not classes:
        return None
    bounds = np.concatenate([[0], np.cumsum(np.where(taken, 0, counts))])
    other = replace(tree, bounds=bounds)
    return _Grid(tree, other, tuple(near), spread, roots, tuple(classes))


# Cut of joined rows into parts of about equal size.


@dataclass(frozen=True)
class Cutting:
    total: int
    """Number of joined rows."""
    parts: int

    def part(self, before: int) -> int:
        """Return the part of a row that has `before` rows before it."""
        return min(self.parts - 1, before * self.parts // self.total)

    @property
    def most(self) -> int:
        """Return the maximum size of groups of rows that should stay together: a quarter of a
        part.
        """
        return max(1, -(-self.total // (4 * self.parts)))

    def ranges(self, before: int, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (part, first, end) for the rows from `first` to `end`, which have `before` rows
        before them.
        """
        while first < end:
            number = self.part(before)
            # up to the start of the next part
            count = max(1, -(-(number + 1) * self.total // self.parts) - before)
            close = min(end, first + count)
            yield number, first, close
            first, before = close, before + close - first
