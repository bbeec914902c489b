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


def test_auc_needs_both_classes() -> None:
    assert area_under_curve(np.arange(3.0), np.ones(3, bool)) is None
