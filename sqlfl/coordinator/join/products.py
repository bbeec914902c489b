"""Joined rows of a tree as products of groups: for each key its rows on both sides of a branch.

This is like `sqlfl.coordinator.blocks`, but key by key, whatever the numbers of rows. It serves the
compiled kernel. numpy needs many keys with equal numbers of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.coordinator.join.factorised import Tree


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
