"""Where the coordinator runs, and what a statement's options make of its plan."""

from __future__ import annotations

import pytest

from sqlfl.base.errors import PlanError
from sqlfl.federation.planning import explain, place_of_coordinator, plan_training
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.statements import TrainModel
from sqlfl.store.registry import Model
from tests.planner.conftest import DatabaseCatalog

QUERY = """SELECT o.amount, p.age, v.kind, v.sick AS y FROM shop.orders o
  JOIN register.people p ON o.customer = p.id JOIN clinic.visits v ON v.person = p.id"""


def no_models(name: str) -> Model:
    raise AssertionError(name)


def plan(
    catalog: DatabaseCatalog, kind: str, options: str = "", at: str | None = None
) -> FederatedPlan:
    clause = f"WITH ({options})" if options else ""
    statement = parse(f"TRAIN MODEL m USING {kind} TARGET y {clause} FROM ({QUERY})")
    assert isinstance(statement, TrainModel)
    return plan_training(statement, catalog, no_models, at=at)


@pytest.mark.parametrize("at", ["clinic", "CLINIC", "north"])
def test_the_coordinator_may_run_at_any_party(catalog: DatabaseCatalog, at: str) -> None:
    made = plan(catalog, "logistic_regression", at=at)
    assert made.at == at.lower()
    leaves = {d.kind for d in made.disclosures}
    assert ("labels" in leaves) == (at == "north")
    assert plan(catalog, "logistic_regression").at is None


@pytest.mark.parametrize(
    ("at", "hint"),
    [
        ("clinics", "did you mean clinic?"),
        (
            "x",
            "attach it first; the parties are shop, register, clinic, north, south, ward",
        ),
        ("", "attach it first; the parties are shop, register, clinic, north, south, ward"),
    ],
)
def test_a_party_that_is_not_there(catalog: DatabaseCatalog, at: str, hint: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan(catalog, "logistic_regression", at=at)
    assert caught.value.message == (
        f"the coordinator is to run at {at}, and there is no such party"
    )
    assert caught.value.hint == hint
    with pytest.raises(PlanError, match="no party is attached yet"):
        place_of_coordinator("shop", DatabaseCatalog({}))


@pytest.mark.parametrize("kind", ["mlp_regressor", "mlp_classifier"])
@pytest.mark.parametrize(
    "options",
    [
        "",
        "algorithm = 'admm', inner_rounds = 2",
        "dropout = 0.5, seed = 3, head = 'linear'",
        "hidden = [3, 2], network = 'us-us', validation_fraction = 0.2",
    ],
)
def test_neural_models_are_planned(catalog: DatabaseCatalog, kind: str, options: str) -> None:
    made = plan(catalog, kind, options, at="clinic")
    assert made.tower is not None
    assert "tower" in str(made)
    assert made.regression == (kind == "mlp_regressor")


def test_noised_labels_that_stay_are_noised(catalog: DatabaseCatalog) -> None:
    statement = parse(
        f"TRAIN MODEL m USING mlp_classifier TARGET y PRIVACY (label_epsilon = 1) FROM ({QUERY})"
    )
    assert isinstance(statement, TrainModel)
    made = plan_training(statement, catalog, no_models, at="clinic")
    assert "labels" not in {d.kind for d in made.disclosures}
    text = " ".join(str(explain(made).details).split())
    assert "The labels of clinic do not leave it." in text
    assert "Labels: (1, 0)-DP" in text
