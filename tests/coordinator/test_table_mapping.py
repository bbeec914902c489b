"""The table mapping against dense incidence matrices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlfl.base.errors import InternalError
from sqlfl.coordinator.join.table_mapping import CHUNK, TableMapping


def incidence(rows: np.ndarray, size: int) -> np.ndarray:
    matrix = np.zeros((len(rows), size))
    matrix[np.arange(len(rows)), rows] = 1.0
    return matrix


@st.composite
def mappings(draw: st.DrawFn) -> tuple[list[np.ndarray], list[int], int, int]:
    total = draw(st.integers(1, 40))
    seed, outputs = draw(st.integers(0, 2**16)), draw(st.integers(1, 3))
    rng = np.random.default_rng(seed)
    rows, sizes = [], []
    for form in draw(st.lists(st.sampled_from(["any", "sorted", "identity"]), min_size=1)):
        size = total if form == "identity" else draw(st.integers(1, 60))
        p = np.arange(total) if form == "identity" else rng.integers(0, size, total)
        rows.append((np.sort(p) if form == "sorted" else p).astype(np.int32))
        sizes.append(size)
    return rows, sizes, outputs, seed


@given(mappings())
def test_gather_and_scatter_are_products_with_the_incidence(case) -> None:
    rows, sizes, outputs, seed = case
    rng = np.random.default_rng(seed)
    mapping = TableMapping(rows, sizes)
    values = rng.normal(size=(mapping.total, outputs))
    parts = [rng.normal(size=(size, outputs)) for size in sizes]
    expected = np.zeros_like(values)
    for slot, (p, size) in enumerate(zip(rows, sizes, strict=True)):
        matrix = incidence(p, size)
        gathered = mapping.slots[slot].part(parts[slot], slice(None))
        np.testing.assert_allclose(gathered, matrix @ parts[slot])
        np.testing.assert_allclose(mapping.scatter(slot, values), matrix.T @ values, atol=1e-12)
        np.testing.assert_array_equal(mapping.counts(slot), matrix.sum(axis=0))
        expected += matrix @ parts[slot]
    np.testing.assert_allclose(mapping.gather_sum(parts), expected, atol=1e-12)


@given(mappings(), st.data())
def test_some_joined_rows_over_all_rows_of_the_slots(case, data: st.DataObject) -> None:
    rows, sizes, _, _ = case
    mapping = TableMapping(rows, sizes)
    chosen = data.draw(st.lists(st.integers(0, mapping.total - 1), unique=True))
    some = mapping.restricted(np.array(chosen, np.int64))
    assert (some.total, some.sizes) == (len(chosen), mapping.sizes)
    for slot, p in enumerate(rows):
        np.testing.assert_array_equal(some.slots[slot].rows, p[chosen])
    assert mapping.restricted(np.arange(mapping.total)) is mapping


@given(mappings(), st.data())
def test_a_subset_has_the_unique_rows_of_its_joined_rows(case, data: st.DataObject) -> None:
    rows, sizes, _, _ = case
    mapping = TableMapping(rows, sizes)
    chosen = data.draw(st.lists(st.integers(0, mapping.total - 1), min_size=1, unique=True))
    subset = mapping.restricted(np.array(chosen)).compacted()
    for slot, p in enumerate(rows):
        np.testing.assert_array_equal(subset.rows[slot], np.unique(p[chosen]))
        inner = subset.mapping.slots[slot].rows
        np.testing.assert_array_equal(subset.rows[slot][inner], p[chosen])


def test_many_joined_rows_are_added_up_in_pieces() -> None:
    rng = np.random.default_rng(0)
    total = 2 * CHUNK + 5
    rows = [np.arange(total), rng.integers(0, 50, total), np.sort(rng.integers(0, 9, total))]
    sizes = [total, 50, 9]
    mapping = TableMapping([p.astype(np.int32) for p in rows], sizes)
    values = [rng.normal(size=(size, 2)).astype(np.float32) for size in sizes]
    expected = sum(value.astype(float)[p] for p, value in zip(rows, values, strict=True))
    np.testing.assert_allclose(mapping.gather_sum(values), expected, rtol=1e-13, atol=1e-13)


def test_a_scattered_array_is_a_copy() -> None:
    values = np.ones((3, 1))
    TableMapping([np.arange(3, dtype=np.int32)], [3]).scatter(0, values)[0] = 5.0
    assert values[0, 0] == 1.0


@pytest.mark.parametrize(
    ("rows", "sizes", "match"),
    [
        ([np.array([0, 3])], [3], "outside"),
        ([np.array([0, -1])], [3], "outside"),
        ([np.array([0.0, 1.0])], [3], "integers"),
        ([np.array([0, 1]), np.array([0])], [2, 2], "integers"),
        ([np.array([0])], [1, 1], "mappings for"),
    ],
)
def test_wrong_mappings_are_refused(rows, sizes, match) -> None:
    with pytest.raises(InternalError, match=match):
        TableMapping(rows, sizes)


def test_values_of_the_wrong_length_are_refused() -> None:
    mapping = TableMapping([np.array([0, 1, 1])], [2])
    with pytest.raises(InternalError, match="2 rows"):
        mapping.gather_sum([np.ones((3, 1))])
    with pytest.raises(InternalError, match="3 rows"):
        mapping.scatter(0, np.ones((2, 1)))
    with pytest.raises(InternalError, match="vectors"):
        mapping.gather_sum([])
