"""How often a row takes part: by the plan, in simulated epochs, in the messages of training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlfl.base.errors import InternalError
from sqlfl.contract.privacy_specification import PlannedReleases
from sqlfl.coordinator.protection import SlotExposure, planned_releases
from sqlfl.messages import ExactPredictions, Message, Predictions, Residuals, SendPredictions
from sqlfl.options.resolve import training_options
from sqlfl.privacy.block_moments import moments_sensitivity, row_bound
from tests.methods.harness import Join, random_join, train

Array = np.ndarray


FIELDS = ("joined", "clients", "copies", "numeric", "categories", "largest")


def planned(algorithm: str = "sgd", *, tower: bool = False, **given: Any) -> PlannedReleases:
    """Of slot 0 with 3 copies of a row among 10 joined rows; `given` are FIELDS and options."""
    facts: dict[str, Any] = {"joined": 10, "clients": 1, "copies": 3}
    facts |= {name: value for name, value in given.items() if name in FIELDS}
    options = {name: value for name, value in given.items() if name not in FIELDS}
    kind = "mlp_regressor" if tower else "linear_regression"
    resolved = training_options(kind, {"algorithm": algorithm, **options}, private=True)
    return planned_releases(resolved, SlotExposure(slot=0, clip=1.0, partners={1: 2}, **facts))


def counted(found: PlannedReleases) -> tuple[int, int, int, int]:
    return found.gradients, found.predictions, found.moments, found.steps


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"epochs": 7}, (7, 7, 0, 7)),
        ({"epochs": 7, "batch_size": None}, (7, 7, 0, 7)),
        ({"epochs": 7, "batch_size": 10}, (7, 7, 0, 7)),
        ({"epochs": 7, "batch_size": 99}, (7, 7, 0, 7)),
        ({"epochs": 7, "tower": True}, (7, 8, 0, 7)),
        ({"epochs": 7, "tower": True, "dropout": 0.2}, (7, 15, 0, 7)),
        ({"epochs": 7, "tower": True, "dropout": 0.0}, (7, 8, 0, 7)),
        ({"epochs": 5, "batch_size": 3}, (15, 20, 0, 20)),  # 4 batches, 3 copies
        ({"epochs": 5, "batch_size": 5}, (10, 10, 0, 10)),  # 2 batches
        ({"epochs": 5, "batch_size": 1, "copies": 1}, (5, 10, 0, 50)),
        ({"epochs": 5, "batch_size": 3, "tower": True, "dropout": 0.1}, (15, 21, 0, 20)),
        ({"epochs": 5, "copies": 0}, (5, 5, 0, 5)),
    ],
)
def test_sgd(given: Mapping[str, Any], expected: tuple[int, ...]) -> None:
    found = planned(**given)
    assert counted(found) == expected
    assert found.whole is (found.steps == found.epochs)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (6, 7, 0, 6)),
        ({"local_epochs": 5}, (30, 7, 0, 6)),
        ({"local_epochs": 5, "inner_rounds": 3}, (30, 7, 0, 6)),
        ({"local_epochs": 5, "inner_rounds": 3, "clients": 2}, (36, 7, 0, 6)),
        ({"clients": 2, "inner_rounds": 10}, (60, 7, 0, 6)),
        ({"clients": 2}, (6, 7, 0, 6)),
        ({"local_epochs": 2, "batch_size": 1}, (12, 7, 0, 6)),
    ],
)
def test_admm_of_towers(given: Mapping[str, Any], expected: tuple[int, ...]) -> None:
    found = planned("admm", tower=True, epochs=6, **given)
    assert counted(found) == expected
    assert (found.moments_sensitivity, found.row_bound) == (0.0, 0.0)


def test_linear_admm_releases_second_moments_once() -> None:
    found = planned("admm", epochs=6, inner_rounds=9, numeric=4, categories=3, largest=5.0)
    assert counted(found) == (6, 6, 1, 6)
    assert found.row_bound == 2.0
    assert found.moments_sensitivity == pytest.approx(5 * math.sqrt(2 * 16 + 6))


@pytest.mark.parametrize(
    ("algorithm", "given"),
    [
        ("lbfgs", {"epochs": 3}),
        ("sgd", {"epochs": 3, "joined": 0}),
        ("admm", {"epochs": 3}),  # of a slot without columns
    ],
)
def test_what_cannot_be_private_is_refused(algorithm: str, given: Mapping[str, Any]) -> None:
    with pytest.raises(InternalError):
        planned(algorithm, **given)


@given(
    copies=st.integers(1, 12),
    others=st.integers(0, 20),
    size=st.integers(1, 12),
    dropout=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_order_of_batches_goes_beyond_the_plan(
    copies: int, others: int, size: int, dropout: bool, seed: int
) -> None:
    """Epochs of sgd as they pass: a row that is in the first `copies` of the joined rows."""
    joined, epochs = copies + others, 4
    generator = np.random.default_rng(seed)
    gradients = steps = 0
    predictions = 1
    for _ in range(epochs):
        order = generator.permutation(joined)
        batches = [bool((part < copies).any())
                   for part in np.split(order, range(size, joined, size))]  # fmt: skip
        gradients += sum(batches)
        predictions += sum(batches[0 if dropout else 1 :]) + 1
        steps += len(batches)
    found = planned(
        epochs=epochs,
        batch_size=size,
        joined=joined,
        copies=copies,
        dropout=0.5 if dropout else 0.0,
        tower=True,
    )
    assert gradients <= found.gradients
    assert predictions <= found.predictions
    assert steps == found.steps
    if size >= joined or copies == 1:
        assert gradients == found.gradients


def join_of(clients: tuple[int, int] = (2, 1)) -> Join:
    return random_join(sizes=(12, 4), total=30, numeric=2, categories=0, clients=clients)


def taken_part(sent: list[Message], slot: int, rows: int) -> tuple[Array, Array]:
    """Of each row of a client: the gradient sums that it was in, and its predictions."""
    gradients, predictions = np.zeros(rows, int), np.zeros(rows, int)
    asked = predicted = np.arange(rows)
    for message in sent:
        if message.slot != slot or isinstance(message, ExactPredictions):
            continue  # these measure the gradient at the end, which private runs do not
        if isinstance(message, Residuals):
            values = np.asarray(message.values)
            if len(values):
                gradients[predicted[np.any(values != 0, axis=1)]] += 1
            asked = np.arange(rows) if message.following is None else message.following
        if isinstance(message, SendPredictions):
            asked = np.arange(rows) if message.whole else message.batch
        if isinstance(message, Predictions):
            assert len(message.values) == len(asked)
            predictions[asked] += 1
            predicted = asked
    return gradients, predictions


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("sgd", {"batch_size": 30}),
        ("sgd", {"batch_size": 7}),
        ("sgd", {"batch_size": 1}),
        ("sgd", {"batch_size": 7, "hidden": (3,)}),
        ("sgd", {"batch_size": 7, "hidden": (3,), "dropout": 0.3}),
        ("sgd", {"batch_size": 30, "hidden": (3,), "dropout": 0.3}),
    ],
)
def test_the_messages_of_training_have_each_row_as_often(
    algorithm: str, options: dict[str, Any]
) -> None:
    """One client holds slot 1, whose rows occur in many joined rows."""
    join = join_of((1, 1))
    options |= {"epochs": 3, "learning_rate": 0.01, "tolerance": 0.0}
    trained = train(join, algorithm, **options)
    for slot, rows in enumerate(join.rows):
        copies = int(np.bincount(rows).max())
        found = planned(algorithm, joined=30, copies=copies, tower="hidden" in options, **options)
        gradients, predictions = taken_part(trained.channel.sent, slot, len(join.tables[slot]))
        assert gradients.max() <= found.gradients
        assert predictions.max() <= found.predictions
        if options["batch_size"] in (1, 30):  # each copy in a batch of its own, or all in one
            assert gradients.max() == found.gradients
            assert predictions.max() >= found.predictions - 3


@given(
    p=st.integers(0, 4),
    k=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_change_of_one_row_moves_second_moments_by_their_sensitivity_at_most(
    p: int, k: int, seed: int
) -> None:
    if p + k == 0:
        return
    generator, bound, count = np.random.default_rng(seed), row_bound(p), 3.0
    most = moments_sensitivity(count, bound, k)
    one, other = generator.normal(size=(2, p))
    for row in (one, other):
        row *= bound / max(np.linalg.norm(row), 1e-9)
    codes = generator.integers(0, 5, (2, k))
    moved = np.linalg.norm(count * (np.outer(one, one) - np.outer(other, other))) ** 2
    moved += 2 * count**2 * (codes[0] != codes[1]).sum()
    assert moved <= most**2 * (1 + 1e-9)


def test_the_sensitivity_of_second_moments_is_attained() -> None:
    one, other = np.eye(2) * row_bound(2)
    moved = np.linalg.norm(7 * (np.outer(one, one) - np.outer(other, other))) ** 2 + 2 * 7**2
    assert moments_sensitivity(7, row_bound(2), 1) == pytest.approx(math.sqrt(moved))
