"""What is taken in parts is what numpy takes as a whole."""

from __future__ import annotations

import numpy as np
import pytest

from sqlfl.base import arrays
from sqlfl.base.arrays import byte_order, kept, nonzero, taken


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "PART", 4)


@pytest.mark.parametrize("size", [0, 1, 4, 5, 23])
def test_places_are_taken(size: int) -> None:
    rng = np.random.default_rng(size)
    values = rng.integers(0, 100, 30).astype(np.int32)
    places = rng.integers(-1, 30, size).astype(np.int32)
    found = taken(values, places)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, values[places])


@pytest.mark.parametrize("size", [0, 1, 4, 5, 23])
def test_values_are_kept_in_their_memory(size: int) -> None:
    rng = np.random.default_rng(size)
    values = rng.random(23)
    places = np.sort(rng.choice(23, size, replace=False)).astype(np.uint32)
    expected = values[places]
    found = kept(values, places)
    np.testing.assert_array_equal(found, expected)
    assert size == 0 or np.shares_memory(found, values)


@pytest.mark.parametrize("size", [0, 1, 4, 5, 23])
@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64, np.float64])
def test_places_that_are_not_0_are_found(size: int, kind: type) -> None:
    values = np.random.default_rng(size).integers(0, 2, size).astype(kind)
    found = nonzero(values)
    assert found.dtype == np.uint32
    np.testing.assert_array_equal(found, np.flatnonzero(values))


@pytest.mark.parametrize("runs", [False, True])
def test_the_order_of_rows_is_by_all_their_bytes(*, runs: bool) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (300, 16), dtype=np.uint8)
    for alike in (0, 5, 8, 15):
        rows[:, :alike] = 7
        rows[::3, :alike] = 200
        rows[100:110] = rows[0]
        if runs:
            rows = np.concatenate([rows[byte_order(part) + start] for start, part in parts(rows)])
        order = byte_order(rows, runs=runs)
        found = [(rows[place].tobytes(), place) for place in order.tolist()]
        assert found == sorted(found)
        assert sorted(order.tolist()) == list(range(300))


def parts(rows: np.ndarray) -> list[tuple[int, np.ndarray]]:
    return [(start, rows[start : start + 100]) for start in (0, 100, 200)]


def test_the_order_of_no_rows_and_of_one() -> None:
    assert byte_order(np.zeros((0, 16), np.uint8)).tolist() == []
    assert byte_order(np.zeros((1, 16), np.uint8)).tolist() == [0]


def test_a_place_that_is_not_there_is_refused() -> None:
    values = np.arange(4)
    assert taken(values, np.array([3, -1, 0])).tolist() == [3, 3, 0]
    for place in (4, -5):
        with pytest.raises(IndexError, match="of 4 values"):
            taken(values, np.array([0, place]))
