"""How many joined rows there are of each kind, without writing them down.

A row of a slot has a number, and the sum of those of its slots is the kind of a joined row. Where
one branch of a tree alone has several rows in a group, the numbers of all other slots are added up
along the tree first: once for each row of the root, and once for each row of the branch.
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
"""Rows of a tree's root between two looks for Ctrl-C."""


def counted(mapping: RowMapping, parts: Mapping[int, Array], size: int) -> Array:
    """int64 (size,): the joined rows of each kind below `size`, which int32 holds.

    `parts`: slot -> int32 (rows,), what its rows add to the kind; of other slots it is nothing.
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
        for slot, own in zip(mapping.slots, rows, strict=True):
            if slot in parts:
                kinds += parts[slot][own]
        np.add.at(counts, kinds, 1)
        checkpoint()


def _count_product(tree: Tree, parts: Mapping[int, Array], counts: Array) -> None:
    """Of a tree in which one branch multiplies the rows."""
    assert tree.bounds is not None
    sums: list[Array | None] = [parts.get(slot) for slot in tree.slots]
    group = far = np.zeros(0, np.int32)
    start = np.zeros(0, np.int64)
    for number, branch in reversed([*enumerate(tree.branches, 1)]):
        own = sums[number]
        if branch.rows is not None and branch.start is not None:
            start = branch.start
            far = np.zeros(len(branch.rows), np.int32) if own is None else own[branch.rows]
            group, above = branch.group, branch.parent
            while above:
                group = group[tree.branches[above - 1].group]
                above = tree.branches[above - 1].parent
        elif own is not None:
            before, own = sums[branch.parent], own[branch.group]
            sums[branch.parent] = own if before is None else before + own
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
