"""Joined rows that are counted by kind: as those that are written down."""

from __future__ import annotations

import os
from unittest import mock

import numpy as np
import pytest

from sqlfl.coordinator.join.equal_rows import counted
from sqlfl.coordinator.join.factorised import Branch, Factorised, Tree
from sqlfl.coordinator.join.row_mapping import RowMapping, WrittenMapping
from sqlfl.models.native import VARIABLE, library

Array = np.ndarray
SIZES = {0: 50, 1: 8, 2: 30, 3: 4, 4: 12}


def branch(
    rng: np.random.Generator,
    slot: int,
    parent: int,
    above: int,
    *,
    several: bool,
    last: bool = True,
) -> tuple[Branch, Array]:
    """A branch of which some rows above have no partner, and the partners of each."""
    size = SIZES[slot]
    if not several:
        group = rng.integers(-1, size, above).astype(np.int32)
        return Branch(slot, parent, group), (group >= 0).astype(np.int64)
    own = np.sort(rng.integers(0, 6, size))
    counts = np.bincount(own, minlength=8)
    group = rng.integers(-1, 7, above).astype(np.int32)
    rows = rng.permutation(size).astype(np.int32)
    start = np.cumsum(counts) - counts
    return Branch(slot, parent, group, rows, start, counts, last=last), counts[group]


def tree(rng: np.random.Generator, form: str) -> Tree:
    """Root 0, slot 1 below it, and of these and slot 2 one more below, or several that multiply."""
    below, times = branch(rng, 1, 0, SIZES[0], several=False)
    if form == "star":
        below = Branch(1, 0, rng.integers(0, SIZES[1], SIZES[0]).astype(np.int32))
        return Tree(0, None, SIZES[0], (below,))
    if form == "chain":
        spread, own = branch(rng, 2, 1, SIZES[1], several=True)
        times = times * own[below.group]
        # below what multiplies, where each row has a partner
        further = Branch(3, 2, rng.integers(0, SIZES[3], SIZES[2]).astype(np.int32))
        branches = (below, spread, further)
    else:
        spread, own = branch(rng, 2, 0, SIZES[0], several=True, last=form != "two")
        times = times * own
        further = Branch(3, 1, rng.integers(0, SIZES[3], SIZES[1]).astype(np.int32))
        branches = (below, spread, further)
    if form == "two":
        second, own = branch(rng, 4, 0, SIZES[0], several=True)
        times = times * own
        branches = (*branches, second)
    bounds = np.concatenate([[0], np.cumsum(times)])
    return Tree(0, bounds, SIZES[0], branches)


def reference(mapping: RowMapping, parts: dict[int, Array], size: int) -> Array:
    rows = mapping.written()
    kinds = np.zeros(mapping.total, np.int64)
    for slot, own in parts.items():
        kinds += own[rows[slot]]
    return np.bincount(kinds, minlength=size)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("asked", [(0, 1, 2), (0, 3), (2,), (1,), (0,)])
@pytest.mark.parametrize("form", ["star", "chain", "product", "two"])
def test_counts_are_those_of_written_rows(
    form: str, asked: tuple[int, ...], compiled: bool
) -> None:
    rng = np.random.default_rng(len(form))
    trees = [tree(rng, form), tree(rng, form)]
    mapping = Factorised(trees, trees[0].slots, SIZES)
    parts, size = {}, 1
    for slot in {*asked} & {*mapping.slots}:
        parts[slot] = (size * rng.integers(0, 3, SIZES[slot])).astype(np.int32)
        size *= 3
    if compiled and library() is None:
        pytest.skip("nothing is compiled")
    with mock.patch.dict(os.environ, {} if compiled else {VARIABLE: "0"}):
        found = counted(mapping, parts, size)
    assert found.sum() == mapping.total > 0
    np.testing.assert_array_equal(found, reference(mapping, parts, size))
    written = WrittenMapping(mapping.written(), SIZES)
    np.testing.assert_array_equal(counted(written, parts, size), found)
