"""Batches of joined rows in random order, against the rows at the drawn numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sqlfl.coordinator.rounds import batches
from sqlfl.coordinator.rounds.batches import Batches, Packing, batch_at
from sqlfl.coordinator.rounds.problem import Problem
from tests.methods.harness import random_join

KINDS = ("linear_regression", "logistic_regression", "softmax_regression")
WEIGHTS = {
    "none": None,
    "split": np.repeat([1.0, 0.0, 2.0], 500),
    "many": np.random.default_rng(2).uniform(0.0, 1.0, 1500),
}


def problem_of(kind: str, weights: str, sizes: tuple[int, ...] = (1500, 60, 12)) -> Problem:
    join = random_join(kind, sizes=sizes)
    return replace(join, weights=WEIGHTS[weights]).problem("sgd")


@pytest.mark.parametrize("few", [batches.FEW, 100])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_the_rows_at_drawn_numbers(
    kind: str, weights: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether rows are packed, or are too different for it."""
    monkeypatch.setattr(batches, "FEW", few)
    monkeypatch.setattr(batches, "CHUNK", 256)
    problem = problem_of(kind, weights)
    different = few == 100 and (kind == "linear_regression" or weights == "many")
    assert (Packing.of(problem) is None) == different
    shuffled, drawing = Batches(problem, 400), np.random.default_rng(7)
    rows = np.arange(1500) if problem.training is None else problem.training
    expecting = np.random.default_rng(7)
    for _ in range(2):
        order = expecting.permutation(rows)
        found = list(shuffled.of_epoch(drawing))
        assert [b.total for b in found] == [
            min(400, len(rows) - n) for n in range(0, len(rows), 400)
        ]
        for batch, joined in zip(found, np.split(order, range(400, len(rows), 400)), strict=True):
            assert batch.mapping.sizes == problem.mapping.sizes
            for slot, own in zip(problem.mapping.slots, batch.mapping.slots, strict=True):
                np.testing.assert_array_equal(own.rows, slot.rows[joined])
                assert own.rows.dtype == np.int32
            np.testing.assert_array_equal(batch.targets, problem.targets[joined])
            assert batch.targets.dtype == problem.targets.dtype
            if problem.shares is None:
                assert batch.shares is batch.weights is None
            else:
                np.testing.assert_array_equal(batch.shares, problem.shares[joined])
                np.testing.assert_allclose(batch.weights, problem.batch_shares(joined))


def test_integers_of_more_than_32_bits() -> None:
    problem = problem_of("linear_regression", "many")
    packing = Packing.of(problem)
    assert packing is not None
    packed = packing.packed(problem)
    assert packed.max() > np.iinfo(np.int32).max
    assert len(np.unique(packed)) == 1500
    batch = packing.batch(packed[::-1])
    np.testing.assert_array_equal(batch.targets, problem.targets[::-1])
    np.testing.assert_array_equal(batch.shares, problem.shares[::-1])


def test_integer_targets_need_not_be_codes() -> None:
    """Counts from below 0, and large ones."""
    problem = problem_of("logistic_regression", "none")
    for targets in (problem.targets * 7 - 3, problem.targets * 7 + 2):
        packing = Packing.of(moved := replace(problem, targets=targets))
        assert packing is not None
        np.testing.assert_array_equal(packing.batch(packing.packed(moved)).targets, targets)
    assert Packing.of(replace(problem, targets=problem.targets * batches.FEW)) is None


def test_integers_that_would_not_fit() -> None:
    problem = problem_of("linear_regression", "many", sizes=(1500,) * 4)
    assert Packing.of(problem) is None


def test_targets_without_a_number_are_not_packed() -> None:
    problem = problem_of("linear_regression", "none")
    targets = np.where(np.arange(1500) == 3, np.nan, problem.targets)
    assert Packing.of(replace(problem, targets=targets)) is None


def test_all_joined_rows() -> None:
    problem = problem_of("softmax_regression", "split")
    batch = batch_at(problem, slice(None))
    assert batch.mapping is problem.mapping
    np.testing.assert_array_equal(batch.targets, problem.targets)
    np.testing.assert_array_equal(batch.shares, problem.shares)
