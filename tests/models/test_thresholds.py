"""Curves and tables of predictions against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics
from sklearn.calibration import calibration_curve

from sqlfl.models import thresholds


def rows(n: int, seed: int = 0, ties: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    scores = random.random(n)
    scores = scores.round(1) if ties else scores
    positive = random.random(n) < 0.2 + 0.6 * scores
    return scores, positive, random.integers(0, 4, n).astype(float)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_curve_is_scikit_learns(ties: bool, weighted: bool) -> None:
    scores, positive, weights = rows(300, ties=ties)
    w = weights if weighted else None
    counted = slice(None) if w is None else w > 0  # scikit-learn leaves rows without weight out
    found = thresholds.curve(scores[counted], positive[counted], None if w is None else w[counted])
    whole = thresholds.corners(found)
    false, true, cuts = metrics.roc_curve(positive, scores, sample_weight=w)
    np.testing.assert_allclose(whole.false / whole.false[-1], false)
    np.testing.assert_allclose(whole.true / whole.true[-1], true)
    np.testing.assert_array_equal(whole.thresholds, cuts)
    area = metrics.average_precision_score(positive, scores, sample_weight=w)
    assert thresholds.average_precision(found) == pytest.approx(area)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_curves_of_few_rows(n: int) -> None:
    found = thresholds.corners(thresholds.curve(np.arange(n) / 10, np.arange(n) == 0))
    assert found.thresholds[0] == np.inf
    assert (found.true[-1], found.false[-1]) == (1, n - 1)


def test_no_positive_row_has_no_precision() -> None:
    assert thresholds.average_precision(thresholds.curve(np.ones(3), np.zeros(3, bool))) is None


@pytest.mark.parametrize(("points", "least"), [(2, 1), (10, 1), (1000, 25), (5, 60), (1000, 400)])
def test_a_thinned_curve_has_points_of_the_whole(points: int, least: int) -> None:
    scores, positive, _ = rows(333)
    whole = thresholds.curve(scores, positive)
    found = thresholds.thinned(whole, points, least)
    assert len(found.true) <= points
    places = np.searchsorted(-whole.thresholds, -found.thresholds)
    np.testing.assert_array_equal(whole.true[places], found.true)
    np.testing.assert_array_equal(whole.false[places], found.false)
    counted = found.true + found.false
    assert counted[0] == 0
    assert counted[-1] == 333
    assert len(counted) == 2 or np.diff(counted).min() >= least


@pytest.mark.parametrize("strategy", ["quantile", "uniform"])
@pytest.mark.parametrize("ties", [False, True])
def test_bins_are_scikit_learns(strategy: str, ties: bool) -> None:
    scores, positive, _ = rows(500, seed=3, ties=ties)
    edges = thresholds.edges(scores, 7, strategy, None, True)
    places = thresholds.binned(scores, edges)
    actual, predicted = calibration_curve(positive, scores, n_bins=7, strategy=strategy)
    _, groups = np.unique(places, return_inverse=True)
    counts = np.bincount(groups)
    np.testing.assert_allclose(np.bincount(groups, scores) / counts, predicted)
    np.testing.assert_allclose(np.bincount(groups, positive) / counts, actual)


@pytest.mark.parametrize("least", [1, 30, 200, 10_000])
def test_bins_are_joined_until_they_count_enough(least: int) -> None:
    places = np.sort(np.random.default_rng(1).integers(0, 20, 500))
    places = places[places != 7]
    counts = np.bincount(places, minlength=20)
    found = thresholds.joined_bins(places, counts, least)
    assert (np.diff(found) >= 0).all()
    sizes = np.bincount(found)[np.unique(found)]
    assert sizes.sum() == len(places)
    assert len(sizes) == 1 or sizes.min() >= min(least, len(places))


def test_the_matrix_is_scikit_learns() -> None:
    random = np.random.default_rng(5)
    true, taken, weights = random.integers(0, 3, 90), random.integers(0, 3, 90), random.random(90)
    np.testing.assert_allclose(
        thresholds.confusion(taken, true, 3, weights),
        metrics.confusion_matrix(true, taken, sample_weight=weights),
    )
