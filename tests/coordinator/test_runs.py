"""Runs of equal rows of a slot."""

from __future__ import annotations

import numpy as np
import pytest

from sqlfl.coordinator.rounds import chunks
from sqlfl.coordinator.rounds.chunks import LONG, ends_of_runs


@pytest.mark.parametrize("chunk", [1, 7, 1 << 16])
def test_runs_end_where_rows_change(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", chunk)
    monkeypatch.setattr(chunks, "LONG", 1)
    rng = np.random.default_rng(chunk)
    for lengths in ([1], [5, 1, 8], rng.integers(1, 20, 50)):
        # a row may come again later
        rows = np.repeat(np.arange(len(lengths), dtype=np.int32) % 3, lengths)
        found = ends_of_runs(rows)
        assert found is not None
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, np.cumsum(lengths))


def test_there_are_none_where_they_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 256)
    long = np.repeat(np.arange(100, dtype=np.int32), LONG)
    assert ends_of_runs(long) is not None
    assert ends_of_runs(long[1:]) is None
    assert ends_of_runs(np.append(long, np.arange(3, dtype=np.int32))) is None
    assert ends_of_runs(np.arange(5, dtype=np.int32)) is None
    assert ends_of_runs(np.zeros(0, np.int32)) is None
