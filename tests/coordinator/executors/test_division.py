"""Joined rows are divided by what the join is like, and each is in one partition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sqlfl.coordinator import blocks
from sqlfl.coordinator.executors import division
from sqlfl.coordinator.executors.division import divided
from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.coordinator.rounds import passes
from sqlfl.coordinator.rounds.chunks import FoundChunks, WrittenChunks
from sqlfl.coordinator.rounds.passes import EVERY
from sqlfl.models.losses import Softmax, Squared
from tests.coordinator.executors.conformance import found


def pieces(*slots: np.ndarray) -> WrittenChunks:
    sizes = [int(own.max(initial=0)) + 1 for own in slots]
    mapping = TableMapping([own.astype(np.int32) for own in slots], sizes)
    return WrittenChunks(mapping, np.zeros(len(slots[0])), None)


def test_few_rows_are_one_partition() -> None:
    for total in (0, 1, 2 * division.MIN_PARTITION_ROWS - 1):
        made = divided(pieces(np.arange(total)), Squared(), EVERY)
        assert made.count == 1
        assert made.pieces == (made.whole,)
    for total, count in ((2 * division.MIN_PARTITION_ROWS, 2), (6 * division.ROWS, 6)):
        assert divided(pieces(np.arange(total)), Squared(), EVERY).count == count


def test_rows_that_many_partitions_share_make_them_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(division, "ROWS", 100)
    rng = np.random.default_rng(0)
    near, any_of = np.repeat(np.arange(1000), 4), rng.permutation(4000) % 50
    assert divided(pieces(near, any_of), Squared(), EVERY).count == 20
    assert divided(pieces(near, any_of), Softmax(4), EVERY).count == 5
    assert divided(pieces(near), Softmax(4), EVERY).count == 40
    assert divided(pieces(rng.permutation(near)), Squared(), EVERY).count == 1
    assert divided(pieces(np.arange(100_000)), Squared(), EVERY).count == division.MAX_PARTITIONS


def test_each_partition_has_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(division, "ROWS", 100)
    monkeypatch.setattr(passes, "SAMPLED", 300)
    rng = np.random.default_rng(1)
    slots = [np.arange(1000), np.sort(rng.integers(5, 300, 1000)), rng.permutation(1000) % 3]
    source = pieces(*slots)
    made = divided(source, Squared(), EVERY)
    assert made.count == 10
    seen: list[list[np.ndarray]] = [[] for _ in slots]
    sampled = []
    before = 0
    for own, reaches, drawn in zip(made.pieces, made.reaches, made.drawn, strict=True):
        assert isinstance(own, WrittenChunks)
        assert own.mapping.slots[0].identity
        for rows, slot, reach in zip(seen, own.mapping.slots, reaches, strict=True):
            rows.append(slot.rows + reach[0])
            assert slot.size == reach[1] - reach[0]
        assert drawn is not None
        sampled.append(drawn + before)
        before += own.total
    for rows, slot in zip(seen, slots, strict=True):
        np.testing.assert_array_equal(np.concatenate(rows), slot)
    assert [reach[2] for reach in made.reaches] == [(0, 3)] * 10
    assert made.reach(2, 4)[0] == (200, 400)
    np.testing.assert_array_equal(np.concatenate(sampled), passes.sampled(1000))


def test_a_key_of_very_many_rows_is_in_several_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MANY", 100)
    source = found(Squared()).source
    assert isinstance(source, FoundChunks)
    for parts in (1, 3, 50, source.total):
        made = source.cut(parts)
        assert len(made) <= parts
        assert sum(own.total for own in made) == source.total
        # a part is one piece too many at most, of a quarter of a part
        assert max(own.total for own in made) <= max(2, 1.5 * source.total / parts)
        assert all(own.total for own in made)
    assert rows_of(source.cut(7), source.sizes) == rows_of([source], source.sizes)


def rows_of(parts: Sequence[FoundChunks], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Of every joined row the row of each slot, sorted."""
    numbers = [np.arange(size)[:, None] for size in sizes]
    rows = [
        np.hstack([piece.of(slot, own) for slot, own in enumerate(numbers)])
        for part in parts
        for piece in part.pieces(1000)
    ]
    return sorted(map(tuple, np.concatenate(rows).tolist()))
