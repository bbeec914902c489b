"""Splitting aggregates over clients and summing their predictions."""

from __future__ import annotations

import numpy as np
import pytest

from sqlfl.base.errors import InternalError
from sqlfl.contract.schema import Client
from sqlfl.coordinator.join.scatter_gather import SlotMembers, all_rows, batch_of
from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.messages import Predictions

A, B, C = ((Client("p", 0), 0), (Client("p", 1), 0), (Client("q", 0), 2))
ROWS = [np.array([0, 2, 2, 4, 1, 3], np.int32), np.array([1, 0, 1, 0, 1, 0], np.int32)]


def joined():
    members = [SlotMembers(0, (A, B), np.array([0, 3, 5])), SlotMembers(2, (C,), np.array([0, 2]))]
    return all_rows(TableMapping(ROWS, [5, 2]), members)


def replies(rows: dict) -> dict:
    return {a: Predictions("r", a[1], v.astype(np.float32), np.zeros(0)) for a, v in rows.items()}


def test_every_client_gets_the_sums_of_its_rows() -> None:
    values = np.arange(12.0).reshape(6, 2)
    found = joined().split(joined().scatter(values))
    expected = np.zeros((5, 2))
    np.add.at(expected, ROWS[0], values)
    np.testing.assert_array_equal(found[A], expected[:3])
    np.testing.assert_array_equal(found[B], expected[3:])
    np.testing.assert_array_equal(found[C], [values[1::2].sum(axis=0), values[::2].sum(axis=0)])
    assert found[A].dtype == np.float32
    assert joined().split(joined().scatter(values), exact=True)[A].dtype == np.float64


def test_scores_are_sums_over_slots() -> None:
    h = {A: np.array([[1.0], [2.0], [3.0]]), B: np.array([[4.0], [5.0]]), C: np.array([[10], [20]])}
    expected = np.concatenate([h[A], h[B]])[ROWS[0]] + h[C][ROWS[1]]
    np.testing.assert_array_equal(joined().gather(replies(h)), expected)


def test_a_batch_names_the_rows_of_each_client() -> None:
    whole = joined()
    batch = batch_of(whole, np.array([1, 2, 5]))
    assert batch.rows is not None
    np.testing.assert_array_equal(batch.rows[A], [2])
    np.testing.assert_array_equal(batch.rows[B], [0])
    np.testing.assert_array_equal(batch.rows[C], [0, 1])
    h = {A: np.array([[3.0]]), B: np.array([[4.0]]), C: np.array([[10], [20]])}
    np.testing.assert_array_equal(batch.gather(replies(h)), [[13], [23], [14]])
    sums = batch.scatter(np.array([[1.0], [2.0], [4.0]]))
    np.testing.assert_array_equal(batch.split(sums)[A], [[3.0]])


def test_rows_must_add_up() -> None:
    with pytest.raises(InternalError, match="offsets"):
        all_rows(TableMapping(ROWS[:1], [5]), [SlotMembers(0, (A, B), np.array([0, 3, 6]))])
    with pytest.raises(InternalError, match="1 mappings for 0 slots"):
        all_rows(TableMapping(ROWS[:1], [5]), [])
    short = replies({A: np.ones((3, 1)), B: np.ones((1, 1)), C: np.ones((2, 1))})
    with pytest.raises(InternalError, match="4 rows for 5"):
        joined().gather(short)
