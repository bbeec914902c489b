"""Estimators over a federation beside scikit-learn's own on the central join."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.utils import estimator_checks
from sklearn.utils.validation import check_is_fitted

import sqlfl
from sqlfl.base.errors import Error
from sqlfl.integrations.sklearn import FederatedClassifier, FederatedRegressor
from tests.open_databases import in_memory

JOIN = "FROM a.t t JOIN b.u u USING (id)"
QUERY = f"SELECT t.x, u.z, t.l {JOIN}"


@pytest.fixture(scope="module")
def fed() -> Iterator[sqlfl.Federation]:
    random = np.random.default_rng(3)
    x, z = random.normal(size=(2, 200))
    with in_memory() as a, in_memory() as b, sqlfl.connect(progress=False) as federation:
        columns = {"id": np.arange(200), "x": x, "y": 2 * x - z + random.normal(size=200)}
        columns["n"] = np.floor(np.exp(x / 2))
        columns["l"] = np.where(columns["y"] > 1, "top", np.where(columns["y"] > -1, "mid", "low"))
        a.execute("CREATE TABLE t AS FROM columns")
        other = {"id": random.permutation(200)}
        other["z"] = z[other["id"]]
        b.execute("CREATE TABLE u AS FROM other")
        federation.attach("a", a)
        federation.attach("b", b)
        federation.truth = np.column_stack([x, z]), columns  # type: ignore[attr-defined]
        yield federation


def test_a_classifier_is_that_of_scikit_learn(fed: sqlfl.Federation) -> None:
    x, columns = fed.truth  # type: ignore[attr-defined]
    model = FederatedClassifier(fed, QUERY, "l", id="t.id", options={"l2": 1e-2})
    assert model.fit() is model
    scaled = (x - x.mean(axis=0)) / x.std(axis=0)
    known = LogisticRegression(C=1 / (200 * 1e-2), tol=1e-10, max_iter=1000)
    known.fit(scaled, columns["l"])
    np.testing.assert_array_equal(model.classes_, known.classes_)
    np.testing.assert_allclose(model.predict_proba(), known.predict_proba(scaled), atol=1e-5)
    np.testing.assert_array_equal(model.predict(), known.predict(scaled))
    assert model.score() == pytest.approx(known.score(scaled, columns["l"]))
    few = f"{QUERY} WHERE t.id < 50"
    np.testing.assert_array_equal(model.predict(few), known.predict(scaled[:50]))
    assert model.score(few) == pytest.approx(known.score(scaled[:50], columns["l"][:50]))
    assert list(model.feature_names_in_) == ["x", "z"]
    assert model.n_features_in_ == 2
    assert model.weights_.num_rows >= 6


def test_a_regression_has_numbers_of_its_own(fed: sqlfl.Federation) -> None:
    x, columns = fed.truth  # type: ignore[attr-defined]
    relation = fed.query(f"SELECT t.x, u.z, t.y {JOIN}")
    model = FederatedRegressor(fed, relation, "y", id=["t.id"], options={"l2": 0.0}).fit()
    design = np.column_stack([np.ones(200), x])
    expected = design @ np.linalg.lstsq(design, columns["y"])[0]
    np.testing.assert_allclose(model.predict(), expected, atol=1e-5)
    residual = columns["y"] - expected
    assert model.score() == pytest.approx(1 - residual.var() / columns["y"].var(), rel=1e-6)
    counts = FederatedRegressor(fed, f"SELECT t.x, u.z, t.n {JOIN}", "n", kind="poisson_regression")
    with pytest.raises(Error, match="has no R²"):
        counts.fit().score()
    assert counts.evaluate()["deviance"] > 0
    with pytest.raises(Error, match="joined rows have no order"):
        counts.predict()
    assert counts.predict_table().arrow().num_rows == 200


def test_a_fit_that_fails_leaves_the_one_before(fed: sqlfl.Federation) -> None:
    before = fed.sql("SHOW MODELS").arrow().num_rows
    model = FederatedClassifier(fed, QUERY, "l", id="t.id").fit()
    name = model.model_.name
    with pytest.raises(Error):
        model.fit(f"SELECT t.x, t.l {JOIN} WHERE false")
    assert model.model_.name == name
    assert len(model.predict()) == 200
    model.fit()
    assert model.model_.name != name
    assert fed.sql("SHOW MODELS").arrow().num_rows == before + 1
    named = FederatedClassifier(fed, QUERY, "l", name="kept").fit().fit()
    assert named.model_.name == "kept"
    fed.sql("DROP MODEL kept")
    fed.sql(f'DROP MODEL "{model.model_.name}"')


def test_clones_share_the_federation(fed: sqlfl.Federation) -> None:
    model = FederatedClassifier(fed, QUERY, "l", options={"l2": 0.1}).fit()
    other = clone(model)
    assert other.fed is fed
    assert other.get_params() == model.get_params()
    check_is_fitted(model)
    with pytest.raises(NotFittedError):
        other.predict()
    with pytest.raises(NotFittedError):
        check_is_fitted(other)
    assert is_classifier(model)
    assert is_regressor(FederatedRegressor())


def test_beginners_are_told_what_to_do(fed: sqlfl.Federation) -> None:
    for estimator, said in (
        (FederatedClassifier(), "needs a federation"),
        (FederatedClassifier(fed), "needs a query"),
        (FederatedClassifier(fed, QUERY), "needs a target"),
        (FederatedClassifier(fed, QUERY, "l", kind="linear_regression"), "no kind of a classifier"),
        (FederatedRegressor(fed, QUERY, "l", kind="logistic"), "model kind must be one of"),
    ):
        with pytest.raises(Error, match=said):
            estimator.fit()
    with pytest.raises(Error, match="X must be a query"):
        FederatedClassifier(fed, QUERY, "l").fit(np.zeros((2, 2)))  # type: ignore[arg-type]
    with pytest.raises(Error, match="takes no y"):
        FederatedClassifier(fed, QUERY, "l").fit(None, np.zeros(2))  # type: ignore[arg-type]


CHECKS = (
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_estimator_repr",
    "check_estimator_cloneable",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_mixin_order",
    "check_valid_tag_types",
    "check_estimator_tags_renamed",
)
"""Those of scikit-learn that hand no arrays to `fit`: all others do."""


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("kind", [FederatedClassifier, FederatedRegressor])
def test_the_checks_of_scikit_learn_that_apply(kind: type, name: str) -> None:
    getattr(estimator_checks, name)(kind.__name__, kind())
