"""Metrics against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sk

from sqlfl.base.arrays import Array
from sqlfl.models.log_link import Poisson
from sqlfl.models.losses import Logistic, Loss, Softmax, Squared
from sqlfl.models.metrics import KEPT, ClassMeter, CountMeter, Meter, Metrics, NumberMeter
from tests.ways import WAYS, take_way


def measured(
    meter: type[Meter], p: Array, y: Array, weights: Array | None = None, pieces: int = 1
) -> Metrics:
    """By as many meters, which each take a part of the rows in two pieces."""
    parts = []
    for rows in np.array_split(np.arange(len(y)), pieces):
        part = meter()
        for piece in np.array_split(rows, 2):
            part.add(p[piece], y[piece], None if weights is None else weights[piece])
        parts.append(part)
    for other in parts[1:]:
        parts[0].merge(other)
    return parts[0].metrics()


@pytest.mark.parametrize("seed", range(3))
def test_regression_metrics(seed: int) -> None:
    rng = np.random.default_rng(seed)
    y, p = rng.normal(size=50), rng.normal(size=50)
    got = measured(NumberMeter, p[:, None], y, pieces=seed + 1)
    assert got["rmse"] == pytest.approx(sk.root_mean_squared_error(y, p))
    assert got["mae"] == pytest.approx(sk.mean_absolute_error(y, p))
    assert got["r2"] == pytest.approx(sk.r2_score(y, p))


def test_r2_of_a_constant_target_is_undefined() -> None:
    y = np.full(5, 0.1)
    assert measured(NumberMeter, np.ones((5, 1)), y, pieces=2)["r2"] is None


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize("classes", [2, 4])
def test_classification_metrics(classes: int, pieces: int) -> None:
    rng = np.random.default_rng(classes)
    p = np.round(rng.dirichlet(np.ones(classes), size=200), 2) + 1e-3
    p /= p.sum(axis=1, keepdims=True)
    y = rng.integers(0, classes, size=200)
    got = measured(ClassMeter, p, y, pieces=pieces)
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


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("name", WEIGHTS)
def test_weighted_regression_metrics(name: str, pieces: int) -> None:
    rng = np.random.default_rng(5)
    y, p, w = rng.normal(size=80), rng.normal(size=80), weights_of(name, 80)
    got = measured(NumberMeter, p[:, None], y, w, pieces)
    assert got["rmse"] == pytest.approx(sk.root_mean_squared_error(y, p, sample_weight=w))
    assert got["mae"] == pytest.approx(sk.mean_absolute_error(y, p, sample_weight=w))
    assert got["r2"] == pytest.approx(sk.r2_score(y, p, sample_weight=w))


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("pieces", [1, 5])
@pytest.mark.parametrize("classes", [2, 4])
def test_weighted_classification_metrics(classes: int, name: str, pieces: int) -> None:
    rng = np.random.default_rng(classes)
    p = np.round(rng.dirichlet(np.ones(classes), size=200), 1) + 1e-3  # many ties
    p /= p.sum(axis=1, keepdims=True)
    y, w = rng.integers(0, classes, size=200), weights_of(name, 200)
    got = measured(ClassMeter, p, y, w, pieces)
    expected = sk.log_loss(y, p, labels=range(classes), sample_weight=w)
    assert got["log_loss"] == pytest.approx(expected)
    expected = sk.accuracy_score(y, p.argmax(axis=1), sample_weight=w)
    assert got["accuracy"] == pytest.approx(expected)
    if classes == 2:
        expected = sk.roc_auc_score(y, p[:, 1], sample_weight=w)
        assert got["auc"] == pytest.approx(expected)
    else:
        assert got["auc"] is None


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_target_that_is_constant_where_it_weighs_has_no_r2(pieces: int) -> None:
    y, w = np.array([0.1, 0.1, 0.1, 7.0]), np.array([0.3, 0.7, 1e-3, 0.0])
    assert measured(NumberMeter, np.ones((4, 1)), y, w, pieces)["r2"] is None


def test_r2_far_from_zero_in_pieces() -> None:
    """Differences from a mean of 1e8 keep their digits."""
    rng = np.random.default_rng(2)
    y = 1e8 + np.sort(rng.normal(size=1000))
    p = y + 0.1 * rng.normal(size=1000)
    got = measured(NumberMeter, p[:, None], y, pieces=20)
    assert got["r2"] == pytest.approx(sk.r2_score(y, p), rel=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_of_counts(weighted: bool) -> None:
    rng = np.random.default_rng(4)
    y, p = rng.poisson(2.0, 90).astype(float), rng.gamma(2.0, size=90)
    w = weights_of("zeros", 90) if weighted else None
    got = measured(CountMeter, p[:, None], y, w, 3)
    expected = sk.mean_poisson_deviance(y, p, sample_weight=w)
    assert got["deviance"] == pytest.approx(expected)
    assert got["rmse"] == pytest.approx(sk.root_mean_squared_error(y, p, sample_weight=w))
    assert got["mae"] == pytest.approx(sk.mean_absolute_error(y, p, sample_weight=w))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", [Squared(), Poisson(), Logistic(), Softmax(3)], ids=str)
def test_the_headline_of_scores_is_the_metric_of_predictions(loss: Loss, weighted: bool) -> None:
    rng = np.random.default_rng(6)
    scores = np.round(rng.normal(size=(400, loss.outputs)), 1)  # ties and zeros
    y = rng.integers(0, max(loss.outputs, 2), 400)
    w = weights_of("zeros", 400) if weighted else None
    name = "accuracy" if loss.name in ("logistic", "softmax") else "rmse"
    expected = loss.metrics(loss.predict(scores), y, w)[name]
    assert loss.headline(scores, y, w).value == pytest.approx(expected, rel=1e-14)
    first, second = (
        loss.headline(scores[part], y[part], None if w is None else w[part])
        for part in (slice(150), slice(150, None))
    )
    first.merge(second)
    assert first.value == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rows", [0, KEPT + 1], ids=["kept", "counted"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("codes", [np.uint8, np.int64])
def test_scores_are_measured_as_what_they_predict(
    codes: type, weighted: bool, rows: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many rows are to come: of too many the area is counted in bins."""
    take_way(way, monkeypatch)
    rng = np.random.default_rng(7)
    h = np.concatenate([3.0 * rng.normal(size=3000), [0.0, -0.0, 800.0, -800.0, 1e-10, -50.0]])
    loss = Logistic()
    p = loss.predict(h[:, None])[:, 1]
    y = (rng.random(len(h)) < p).astype(codes)
    y[3002:3004] = 1, 0  # where the wrong class is certain, its logarithm is bounded
    w = weights_of("zeros", len(h)) if weighted else None
    parts = [loss.meter(rows), loss.meter()]
    for number, own in enumerate(np.array_split(np.arange(len(h)), 4)):
        weights = None if w is None else w[own]
        loss.measure(parts[number % 2], h[own, None], y[own], weights)
    parts[0].merge(parts[1])
    got, expected = parts[0].metrics(), loss.metrics(loss.predict(h[:, None]), y.astype(int), w)
    assert got["auc"] == pytest.approx(sk.roc_auc_score(y, p, sample_weight=w), abs=1e-6)
    assert got["log_loss"] == pytest.approx(expected["log_loss"], rel=1e-12)
    assert got["accuracy"] == pytest.approx(expected["accuracy"], rel=1e-14)
    if not rows:
        assert got["auc"] == pytest.approx(expected["auc"], rel=1e-14)
