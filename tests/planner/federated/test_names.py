"""The planner repeats names and lengths that other rooms define: they must be the same."""

from __future__ import annotations

import pytest

from sqlfl.messages import KINDS
from sqlfl.options.diagnostics import (
    Check,
    ContributionsOptions,
    Importance,
    Inference,
    SkewOptions,
)
from sqlfl.options.privacy import Privacy
from sqlfl.options.resolve import training_options
from sqlfl.planner.federated.plan import FederatedPlan, WarmStart, training_plan
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
    "merged": plans.train(plans.merged(plans.cards()), "linear_regression"),
    "transformed": plans.train(plans.transformed(plans.cards()), "linear_regression"),
    "curved": plans.train(plans.curved(plans.flights()), "linear_regression"),
    "tuned": plans.tuned(),
    "warm": training_plan(
        "m",
        "linear_regression",
        plans.cards(),
        training_options("linear_regression", plans.OPTIONS),
        "",
        warm=WarmStart("old", {0: 0, 2: 1}),
    ),
    "secure": plans.train(plans.cards(), "linear_regression", {"union": "secure"}),
    "private": plans.train(
        plans.cards(),
        "linear_regression",
        {"algorithm": "sgd"},
        privacy=Privacy(noise_multiplier=1.0),
    ),
    "private columns": plans.train(
        plans.flights(),
        "lasso",
        {"algorithm": "frank_wolfe", "radius": 2.0, "sketch": 8},
        privacy=Privacy(epsilon=1.0, predictions="sketch", feature_bound=1.0),
    ),
    "columns": plans.train(
        plans.flights(), "lasso", {"algorithm": "frank_wolfe", "radius": 2.0, "sketch": 8}
    ),
    "sums": plans.train(plans.flights(), "mlp_classifier", {"algorithm": "pbm"}),
    "offset": plans.train(plans.with_offset(plans.flights()), "logistic_regression", {}),
    "unpenalised": plans.train(plans.flights(), "logistic_regression", {"l2": 0.0}),
    "moments": plans.train(
        plans.flights(),
        "logistic_regression",
        {"algorithm": "moments"},
        privacy=Privacy(epsilon=1.0, predictions="moments", feature_bound=1.0),
    ),
    "predict": plans.score("predict"),
    "into": plans.into(),
    "evaluate": plans.score("evaluate"),
    "inference": plans.score("evaluate", look=Inference()),
    "importance": plans.score("evaluate", look=Importance()),
    "contributions": plans.score("predict", look=ContributionsOptions(features=True)),
    "skew": plans.score("predict", look=SkewOptions()),
    "exact importance": plans.score("evaluate", look=Importance(), exact=True),
    "exact contributions": plans.score(
        "predict", look=ContributionsOptions(features=True), exact=True
    ),
    "check": plans.checked(Check()),
    "check alone": plans.checked(Check(explains=False)),
}
NAMES = {kind.kind for kind in KINDS.values()}
OUTSIDE = {"keep", "drop", "failure", "collect", "collected", "repeat", "send_block", "block"}
OUTSIDE |= {"send_curves", "curves"}
"""And, as these plans have no pairs of a table in several databases:"""
OUTSIDE |= {"send_cells", "cells", "set_cells", "pair_cells", "set_pair_cells"}
OUTSIDE |= {"open_join", "join_opened", "send_join_state", "join_state", "close_join"}
"""And, as no owner of these plans has a policy:"""
OUTSIDE |= {"propose", "proposed", "propose_study", "rehearse", "seal", "sealed"}
"""Kinds of no plan: of other statements, and of failures."""


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_every_kind_of_the_protocol_is_a_message(plan: FederatedPlan) -> None:
    assert {send.kind for e in plan.exchanges for send in e.sends} <= {
        kind.kind for kind in KINDS.values()
    }


def test_every_message_has_its_place_in_a_protocol() -> None:
    sent = {s.kind for plan in PLANS.values() for e in plan.exchanges for s in e.sends}
    assert NAMES - sent == OUTSIDE
