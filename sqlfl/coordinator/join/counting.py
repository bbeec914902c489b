"""Counts of joined rows of each kind, without writing the rows down.

Each row of a slot has a number. The kind of a joined row is the sum of its slots' numbers. Where
only one branch of a tree has several rows in a group, the numbers of all other slots are first
added up along the tree: once for each row of the root, and once for each row of the branch.
"""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import c_int64

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.interrupts import checkpoint
from sqlfl.coordinator.join.factorised import Factorised, Tree
from sqlfl.coordinator.join.products import is_product
from sqlfl.coordinator.join.row_mapping import RowMapping
from sqlfl.models.native import address, functions, library

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
