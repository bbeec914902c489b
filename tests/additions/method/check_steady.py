"""In a process that has `steady` installed: it is a method like any other. See `test_method`."""

from __future__ import annotations

import pytest

import sqlfl
from sqlfl.contract.methods import METHODS, methods
from tests.conftest import Open
from tests.methods.conformance import BOUNDS, QUERY, MethodConformance, shop
from tests.methods.harness import random_join, train


class TestSteady(MethodConformance):
    algorithm = "steady"
    options = {"learning_rate": 0.3}  # noqa: RUF012


def test_it_is_installed_and_not_built_in() -> None:
    assert methods().keys() - METHODS.keys() == {"steady"}


def test_it_is_gradient_descent() -> None:
    join = random_join(l2=0.1, clients=(1, 2, 1))
    one = train(join, "steady", epochs=5, learning_rate=0.2)
    other = train(join, "sgd", epochs=5, learning_rate=0.2)
    assert one.objective == pytest.approx(other.objective, rel=1e-6)


def told(
    database: Open,
    clause: str,
    options: str = "epochs = 2",
    kind: str = "logistic_regression",
    *,
    verbose: bool = False,
) -> str:
    """The EXPLAIN of a statement."""
    with sqlfl.connect() as fed:
        for party, (con,) in shop(database, 1).items():
            fed.attach(party, con)
        plan = fed.explain(
            f"TRAIN MODEL m USING {kind} TARGET late "
            f"WITH (algorithm = 'steady', {options}) {clause} FROM ({QUERY})"
        )
        return str(plan.details if verbose else plan)


def test_explain_has_its_words_and_options(database: Open) -> None:
    assert "θ ← θ − η (Xᵀ Y / N + l2 θ)" in told(database, "", verbose=True)
    assert "learning_rate" in told(database, "", verbose=True)


def test_statements_that_do_not_go_with_it_are_refused(database: Open) -> None:
    with pytest.raises(sqlfl.Error, match="its intercept is an exact function"):
        told(database, f"PRIVACY (epsilon = 4, predictions = 'exact', {BOUNDS})")
    with pytest.raises(sqlfl.Error, match="option rho does not apply"):
        told(database, "", "rho = 1")
    with pytest.raises(sqlfl.Error, match="does not train mlp_classifier"):
        told(database, "", kind="mlp_classifier")
