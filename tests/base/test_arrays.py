"""What is taken in parts is what numpy takes as a whole."""

from __future__ import annotations

import numpy as np
import pytest

from sqlfl.base import arrays
from sqlfl.base.arrays import kept, nonzero, taken


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
