"""The planner repeats names and lengths that other rooms define: they must be the same."""

from __future__ import annotations

import pytest

from sqlfl.messages import KINDS
from sqlfl.methods import ALGORITHMS, admm
from sqlfl.models.basis import MEMORY, coefficients_length, products_length
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.federated.plan import plan as planned
from sqlfl.planner.protocol import rounds
from sqlfl.privacy.specification import Privacy
from tests.planner import plans

PLANS = {
    "lbfgs": plans.train(plans.cards(), "linear_regression"),
    "admm": plans.train(plans.cards(), "linear_regression", {"algorithm": "admm"}),
    "consensus": plans.train(
        plans.cards(), "linear_regression", {"algorithm": "admm", "union": "consensus"}
    ),
    "sgd": plans.train(plans.cards(), "linear_regression", {"algorithm": "sgd", "batch_size": 9}),
    "weighted": plans.train(
        plans.weighted(plans.cards()), "linear_regression", {"validation_fraction": 0.2}
    ),
    "warm": planned(
        "train", "m", "linear_regression", plans.cards(), plans.OPTIONS, "", {0: 0, 2: 1}, "old"
    ),
    "private": plans.train(
        plans.cards(),
        "linear_regression",
        {"algorithm": "sgd"},
        privacy=Privacy(noise_multiplier=1.0),
    ),
    "predict": plans.score("predict"),
    "into": plans.into(),
    "evaluate": plans.score("evaluate"),
}
OUTSIDE = {"keep", "drop", "failure", "collect", "collected"}
"""Kinds of no plan: of other statements, and of failures."""


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_every_kind_of_the_protocol_is_a_message(plan: FederatedPlan) -> None:
    assert {send.kind for e in plan.exchanges for send in e.sends} <= KINDS.keys()


def test_every_message_has_its_place_in_a_protocol() -> None:
    sent = {s.kind for plan in PLANS.values() for e in plan.exchanges for s in e.sends}
    assert KINDS.keys() - sent == OUTSIDE


def test_lengths_are_those_of_the_algorithms() -> None:
    assert rounds.ROUNDS.keys() == ALGORITHMS.keys()
    assert rounds.HISTORY == MEMORY
    assert products_length() == rounds.LBFGS_PRODUCTS
    assert coefficients_length() == rounds.LBFGS_COEFFICIENTS
    assert rounds.INNER_ROUNDS == admm.INNER_ROUNDS
