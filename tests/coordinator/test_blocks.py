"""Joined rows in blocks are those of the mapping."""

from __future__ import annotations

import numpy as np
import pytest

from sqlfl.coordinator import blocks as module
from sqlfl.coordinator.blocks import RowBlocks
from sqlfl.coordinator.join.factorised import Factorised, factorised_join
from sqlfl.coordinator.join.join_size import SlotCodes
from tests.coordinator.test_factorised import TREES, query, written
from tests.coordinator.test_join_size import random_codes
from tests.depth import SEED, THOROUGH


def rows_of(mapping: Factorised, size: int) -> tuple[np.ndarray, int]:
    """(N, slots), sorted; how many were in blocks of several axes."""
    parts, together = [np.zeros((0, len(mapping.slots)), int)], 0
    for block in RowBlocks(mapping).blocks(size):
        assert 0 < block.count <= size
        together += block.count if len(block.shape) > 1 else 0
        spread = [np.broadcast_to(rows, block.shape).reshape(-1) for rows in block.rows]
        parts.append(np.stack(spread, axis=1))
    rows = np.concatenate(parts)
    return rows[np.lexsort(rows.T)], together


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("name", TREES)
def test_all_joined_rows_are_in_blocks(
    name: str, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MANY", 12)
    monkeypatch.setattr(module, "LONG", 2)
    ucq = query(TREES[name], 1, blocks)
    several = 0
    searched = name == "two" and blocks == 1
    for seed in range(60):
        if seed >= 8 and not THOROUGH and (several or not searched):
            break
        slots = random_codes(ucq, SEED + seed, *((12, 4), (30, 3))[seed % 2])
        for slot in range(1, len(ucq.slots) - 1):  # one slot alone multiplies
            if seed % 3:
                keys = {key: np.arange(len(c)) for key, c in slots[slot].keys.items()}
                slots[slot] = SlotCodes(slots[slot].fragment, keys)
        mapping = factorised_join(ucq, slots)
        assert mapping is not None
        size = (7, 40, 1000)[seed % 3]
        found, together = rows_of(mapping, size)
        np.testing.assert_array_equal(found, written(mapping, 1000))
        assert together == RowBlocks(mapping).together
        several += together
        active = {slot: np.flatnonzero(mapping.counts(slot)) for slot in mapping.slots}
        fewer = mapping.renumbered(active)
        np.testing.assert_array_equal(rows_of(fewer, size)[0], written(fewer, 1000))
    assert several or not searched


def test_keys_of_many_rows_are_cut_to_size() -> None:
    ucq = query(TREES["two"])
    rng = np.random.default_rng(SEED)
    slots = {n: SlotCodes(np.zeros(900, np.uint16), {0: rng.integers(0, 3, 900)}) for n in (0, 1)}
    mapping = factorised_join(ucq, slots)
    assert mapping is not None
    found, together = rows_of(mapping, 5000)
    assert together == mapping.total > 200_000
    np.testing.assert_array_equal(found, written(mapping, 1 << 16))
