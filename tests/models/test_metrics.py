"""Metrics against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sk

from sqlfl.models.metrics import area_under_curve, classification_metrics, regression_metrics


@pytest.mark.parametrize("seed", range(3))
def test_regression_metrics(seed: int) -> None:
    rng = np.random.default_rng(seed)
    y, p = rng.normal(size=50), rng.normal(size=50)
    got = regression_metrics(p, y)
    assert got["rmse"] == pytest.approx(sk.root_mean_squared_error(y, p))
    assert got["mae"] == pytest.approx(sk.mean_absolute_error(y, p))
    assert got["r2"] == pytest.approx(sk.r2_score(y, p))


def test_r2_of_a_constant_target_is_undefined() -> None:
    assert regression_metrics(np.ones(3), np.ones(3))["r2"] is None


@pytest.mark.parametrize("classes", [2, 4])
def test_classification_metrics(classes: int) -> None:
    rng = np.random.default_rng(classes)
    p = np.round(rng.dirichlet(np.ones(classes), size=200), 2) + 1e-3
    p /= p.sum(axis=1, keepdims=True)
    y = rng.integers(0, classes, size=200)
    got = classification_metrics(p, y)
    assert got["log_loss"] == pytest.approx(sk.log_loss(y, p, labels=range(classes)))
    assert got["accuracy"] == pytest.approx(sk.accuracy_score(y, p.argmax(axis=1)))
    if classes == 2:
        assert got["auc"] == pytest.approx(sk.roc_auc_score(y, p[:, 1]))
    else:
        assert got["auc"] is None


WEIGHTS = ("any", "zeros", "integers", "scales")


def weights_of(name: str, rows: int) -> np.ndarray:
    rng = np.random.default_rng(11)
    if name == "any":
        return rng.exponential(size=rows)
    if name == "integers":
        return rng.integers(0, 4, rows).astype(float)
    if name == "zeros":
        return np.where(rng.random(rows) < 0.5, 0.0, rng.random(rows))
    return 10.0 ** rng.uniform(-6, 6, rows)


@pytest.mark.parametrize("name", WEIGHTS)
def test_weighted_regression_metrics(name: str) -> None:
    rng = np.random.default_rng(5)
    y, p, w = rng.normal(size=80), rng.normal(size=80), weights_of(name, 80)
    got = regression_metrics(p, y, w)
    assert got["rmse"] == pytest.approx(sk.root_mean_squared_error(y, p, sample_weight=w))
    assert got["mae"] == pytest.approx(sk.mean_absolute_error(y, p, sample_weight=w))
    assert got["r2"] == pytest.approx(sk.r2_score(y, p, sample_weight=w))


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("classes", [2, 4])
def test_weighted_classification_metrics(classes: int, name: str) -> None:
    rng = np.random.default_rng(classes)
    p = np.round(rng.dirichlet(np.ones(classes), size=200), 1) + 1e-3  # many ties
    p /= p.sum(axis=1, keepdims=True)
    y, w = rng.integers(0, classes, size=200), weights_of(name, 200)
    got = classification_metrics(p, y, w)
    expected = sk.log_loss(y, p, labels=range(classes), sample_weight=w)
    assert got["log_loss"] == pytest.approx(expected)
    expected = sk.accuracy_score(y, p.argmax(axis=1), sample_weight=w)
    assert got["accuracy"] == pytest.approx(expected)
    if classes == 2:
        expected = sk.roc_auc_score(y, p[:, 1], sample_weight=w)
        assert got["auc"] == pytest.approx(expected)
    else:
        assert got["auc"] is None


def test_a_target_that_is_constant_where_it_weighs_has_no_r2() -> None:
    y, w = np.array([0.1, 0.1, 0.1, 7.0]), np.array([0.3, 0.7, 1e-3, 0.0])
    assert regression_metrics(np.ones(4), y, w)["r2"] is None


def test_auc_needs_both_classes() -> None:
    assert area_under_curve(np.arange(3.0), np.ones(3, bool)) is None
    weights = np.array([1.0, 0.0, 2.0])
    assert area_under_curve(np.arange(3.0), np.array([True, False, True]), weights) is None
