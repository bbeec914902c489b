"""Joined rows that are found or read in each pass give what arrays of them give."""

from __future__ import annotations

import numpy as np
import pytest

from sqlfl.coordinator import blocks
from sqlfl.coordinator.join.factorised import Products, factorised_join
from sqlfl.coordinator.join.join_size import SlotCodes
from sqlfl.coordinator.join.row_mapping import Scratch, StoredMapping
from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.coordinator.rounds import chunks as chunks_module
from sqlfl.coordinator.rounds import passes as passes_module
from sqlfl.coordinator.rounds.chunk import Scores, by_output
from sqlfl.coordinator.rounds.chunks import Chunk, StoredChunks, WrittenChunks, chunks_of
from sqlfl.coordinator.rounds.passes import Passes
from sqlfl.models.losses import Softmax, Squared
from tests.coordinator.test_factorised import TREES, query
from tests.depth import SEED
from tests.ways import WAYS, take_way


def test_a_product_gathers_and_adds_as_an_incidence() -> None:
    rng = np.random.default_rng(SEED)
    rows = (rng.integers(0, 9, (4, 1, 5)), rng.integers(0, 6, (1, 3, 5)))
    rows = (*rows, rng.integers(0, 3, (4, 3, 5)))
    piece = Chunk(0, 60, rows, np.zeros(60), None, (4, 3, 5))
    for slot, size in enumerate((9, 6, 3)):
        own = np.broadcast_to(rows[slot], piece.shape).reshape(-1)
        for lead in ((2,), (3, 2)):
            values = rng.normal(size=(*lead, size))
            into = np.empty((*lead, 120))[..., ::2]
            piece.take(slot, values, into)
            np.testing.assert_array_equal(into, values[..., own])
        values = rng.normal(size=(size, 2))
        np.testing.assert_array_equal(piece.of(slot, values), values[own])
        sums, values = rng.normal(size=(2, size)), rng.normal(size=(2, 60))
        expected, terms = sums.copy(), np.abs(sums)
        for line, summed, size_of in zip(values, expected, terms, strict=True):
            np.add.at(summed, own, line)
            np.add.at(size_of, own, np.abs(line))
        piece.add(slot, sums, values)
        # what is rounded are the terms, which may cancel in the sum
        assert (np.abs(sums - expected) <= 1e-14 * terms).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("chunk", [1 << 14, 900])
@pytest.mark.parametrize("name", ["two", "chain", "star", "same key"])
def test_passes_over_found_rows_are_those_over_written_ones(
    name: str, chunk: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables, of which one has several rows of a key; targets belong to the second."""
    take_way(way, monkeypatch)
    monkeypatch.setattr(passes_module, "CHUNK", chunk)
    monkeypatch.setattr(passes_module, "LARGE", chunk)
    monkeypatch.setattr(passes_module, "DIRECTIONS", chunk)
    monkeypatch.setattr(blocks, "MANY", 100)
    rng = np.random.default_rng(SEED)
    ucq = query(TREES[name])
    codes = {}
    for slot in ucq.slots:
        size = (300, 200, 20, 20)[slot.index]
        several = slot.index < 2
        keys = {
            key: rng.integers(-1, 20, size) if several else rng.permutation(size)
            for key in slot.keys
        }
        codes[slot.index] = SlotCodes(np.zeros(size, np.uint16), keys)
    mapping = factorised_join(ucq, codes)
    assert mapping is not None
    assert blocks.RowBlocks(mapping).together > 0.5 * mapping.total > 500
    loss = Softmax(3)
    y = rng.integers(0, 3, mapping.sizes[1])
    slots = [slot for slot in mapping.slots if slot != 1] or [0]
    rows = mapping.written()
    table = TableMapping([rows[s] for s in slots], [mapping.sizes[s] for s in slots])
    one = Passes(chunks_of(mapping, slots, 1, y), loss)
    other = Passes(WrittenChunks(table, y[rows[1]], None), loss)
    held = [rng.normal(size=(mapping.sizes[s], 3)) for s in slots]
    scores = Scores(by_output(held), rng.normal(size=3))
    look, expected = one.look(scores), other.look(scores)
    assert look.value == pytest.approx(expected.value, rel=1e-12)
    assert (look.largest, look.highest) == pytest.approx((expected.largest, expected.highest))
    for found, wanted in zip(look.slots, expected.slots, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-9)
    ways = [rng.normal(size=(2, 3, mapping.sizes[s])) for s in slots]
    np.testing.assert_allclose(one.curvatures(scores, ways), other.curvatures(scores, ways))
    assert one.square(scores) == pytest.approx(other.square(scores))
    vector = [own[:, 0][None] for own in held]
    for found, wanted in zip(one.sums(vector), other.sums(vector), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-7)
    drawn = one.sample(held, mapping.total)
    for found, wanted in zip(drawn, other.sample(held, mapping.total), strict=True):
        assert found.sum() == pytest.approx(wanted.sum())
    pairs: list[np.ndarray] = []
    for passes in (one, other):
        walked = [np.column_stack([piece.targets, h]) for piece, h in passes.walk(scores)]
        every = np.concatenate(walked)
        pairs.append(every[np.lexsort(every.T.round(9))])  # equal ones differ in rounding
    np.testing.assert_allclose(*pairs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("read", [1 << 18, 50])
@pytest.mark.parametrize("slots", [(0, 1), (2, 0)])
def test_passes_over_stored_rows_are_those_over_written_ones(
    slots: tuple[int, int], read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last digit: pieces, and so the order of sums, are the same."""
    monkeypatch.setattr(chunks_module, "READ", read)
    monkeypatch.setattr(passes_module, "SAMPLED", 1000)
    monkeypatch.setattr(passes_module, "CHUNK", 900)
    rng = np.random.default_rng(SEED)
    sizes, total = (300, 40, 7), 5000
    rows = [np.sort(rng.integers(0, 300, total)), *(rng.integers(0, n, total) for n in sizes[1:])]
    y = rng.integers(0, 3, sizes[1])
    table = TableMapping([rows[s] for s in slots], [sizes[s] for s in slots])
    loss = Softmax(3)
    held = [rng.normal(size=(sizes[s], 3)) for s in slots]
    scores = Scores(by_output(held), rng.normal(size=3))
    ways = [rng.normal(size=(2, 3, sizes[s])) for s in slots]
    with Scratch() as scratch:
        files = [scratch.numbers() for _ in rows]
        for file, own in zip(files, rows, strict=True):
            file.append(own)
        mapping = StoredMapping(dict(enumerate(files)), dict(enumerate(sizes)))
        one = Passes(StoredChunks(mapping, slots, 1, y), loss)
        other = Passes(WrittenChunks(table, y[rows[1]], None), loss)
        look, expected = one.look(scores), other.look(scores)
        assert look.value == expected.value
        for found, wanted in zip(look.slots, expected.slots, strict=True):
            np.testing.assert_array_equal(found, wanted)
        for sampled in (False, True):
            found, wanted = (p.curvatures(scores, ways, sampled=sampled) for p in (one, other))
            np.testing.assert_array_equal(found, wanted)
        for number in (100, total):
            drawn, expected_rows = (p.sample(held, number) for p in (one, other))
            for found, wanted in zip(drawn, expected_rows, strict=True):
                np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["facts", "several"])
def test_rows_that_are_no_products_are_found_one_by_one(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Facts that are each joined once, and a join in which two tables multiply."""
    take_way(way, monkeypatch)
    monkeypatch.setattr(passes_module, "LARGE", 300)
    rng = np.random.default_rng(SEED)
    ucq = query(TREES["star"])
    codes = {}
    for slot in ucq.slots:
        size = (700, 20, 20, 20)[slot.index]
        some = rng.integers(0, 20, size) if slot.index == 0 or name == "several" else np.arange(20)
        codes[slot.index] = SlotCodes(
            np.zeros(size, np.uint16), {key: rng.permutation(some) for key in slot.keys}
        )
    mapping = factorised_join(ucq, codes)
    assert mapping is not None
    assert mapping.total == 700 or name == "several"
    y = rng.normal(size=700)
    pieces = chunks_of(mapping, mapping.slots, 0, y)
    rows = mapping.written()
    table = TableMapping([rows[s] for s in mapping.slots], mapping.sizes)
    scores = Scores(tuple(rng.normal(size=(1, n)) for n in mapping.sizes), np.ones(1))
    look = Passes(pieces, Squared()).look(scores)
    expected = Passes(WrittenChunks(table, y[rows[0]], None), Squared()).look(scores)
    assert look.value == pytest.approx(expected.value, rel=1e-12)
    for found, wanted in zip(look.slots, expected.slots, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-9)


@pytest.mark.parametrize("size", [1, 7, 30, 10**6])
def test_products_are_cut_where_they_are_large(size: int) -> None:
    keys = np.array([[0, 3, 0, 2], [3, 1, 2, 100], [4, 40, 102, 1], [44, 9, 103, 9]])
    found = Products(keys, {}, {})

    def pairs(keys: np.ndarray) -> list[tuple[int, int]]:
        return [
            (a, b)
            for first, many, other, others in keys.tolist()
            for a in range(first, first + many)
            for b in range(other, other + others)
        ]

    parts = [pairs(part) for part in found.parts(size)]
    assert max(map(len, parts)) <= size
    assert sorted(pair for part in parts for pair in part) == sorted(pairs(keys))
