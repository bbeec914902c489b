"""Joined rows in files are those that arrays hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from sqlfl.coordinator.join import row_mapping
from sqlfl.coordinator.join.row_mapping import Scratch, StoredMapping, WrittenMapping
from tests.depth import SEED

SIZES = {2: 50, 0: 9, 5: 3}
TOTAL = 1000


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[WrittenMapping, StoredMapping]]:
    monkeypatch.setattr(row_mapping, "CHUNK", 64)
    rng = np.random.default_rng(SEED)
    rows = {slot: rng.integers(0, size, TOTAL).astype(np.int32) for slot, size in SIZES.items()}
    rows[2] = np.sort(3 * (rows[2] // 3))  # some rows are not joined
    with Scratch() as scratch:
        files = {slot: scratch.numbers() for slot in rows}
        for slot, own in rows.items():
            files[slot].append(own)
        yield WrittenMapping(rows, SIZES), StoredMapping(files, SIZES)


def test_they_are_read_and_counted(both: tuple[WrittenMapping, StoredMapping]) -> None:
    written, stored = both
    assert (stored.slots, stored.sizes, stored.total) == ((2, 0, 5), (50, 9, 3), TOTAL)
    for slot, rows in written.written().items():
        np.testing.assert_array_equal(stored.counts(slot), written.counts(slot))
        np.testing.assert_array_equal(stored.written()[slot], rows)
        np.testing.assert_array_equal(stored.part(slot, 70, 300), rows[70:300])
    for size in (1, 77, TOTAL, 2 * TOTAL):
        pairs = zip(stored.chunks(size), written.chunks(size), strict=True)
        for found, expected in pairs:
            np.testing.assert_array_equal(found, expected)


def test_rows_that_are_not_joined_are_left_out(
    both: tuple[WrittenMapping, StoredMapping],
) -> None:
    written, stored = both
    active = {slot: np.flatnonzero(stored.counts(slot)) for slot in stored.slots}
    assert len(active[2]) < SIZES[2]
    found, expected = stored.renumbered(active), written.renumbered(active)
    assert found.sizes == expected.sizes == tuple(len(rows) for rows in active.values())
    for slot, rows in expected.written().items():
        np.testing.assert_array_equal(found.part(slot, 0, TOTAL), rows)
        np.testing.assert_array_equal(found.counts(slot), expected.counts(slot))
