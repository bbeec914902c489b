"""Losses against finite differences and a general-purpose minimiser."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize
from scipy.special import log_softmax

from sqlfl.base.errors import InternalError, ModelError
from sqlfl.models.log_link import Gamma, Poisson
from sqlfl.models.losses import CHUNK, Logistic, Loss, Softmax, Squared, loss_of

LOSSES = [Squared(), Poisson(), Gamma(), Logistic(), Softmax(4)]
BOUNDED = [loss for loss in LOSSES if loss.bounded]


def sample(loss: Loss, rows: int = 30, size: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    scores = size * rng.normal(size=(rows, loss.outputs))
    if loss.name == "squared":
        return scores, rng.normal(size=rows)
    if loss.name == "poisson":
        return scores, rng.poisson(3.0, rows).astype(float)
    if loss.name == "gamma":
        return scores, rng.gamma(2.0, size=rows)
    return scores, rng.integers(0, max(2, loss.outputs), rows)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_gradient_is_the_slope_of_the_value(loss: Loss) -> None:
    scores, y = sample(loss)
    expected = np.zeros_like(scores)
    for place in np.ndindex(scores.shape):
        step = np.zeros_like(scores)
        step[place] = 1e-5
        expected[place] = (loss.value(scores + step, y) - loss.value(scores - step, y)) / 2e-5
    np.testing.assert_allclose(loss.gradient(scores, y) / len(y), expected, atol=1e-9)


@pytest.mark.parametrize("size", [1e-9, 2.0, 800.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_value_and_slopes_are_sums_of_rows(loss: Loss, weighted: bool, size: float) -> None:
    scores, y = sample(loss, size=size)
    w = np.random.default_rng(4).integers(0, 3, len(y)).astype(float) if weighted else None
    total = len(y) if w is None else w.sum()
    expected = loss.gradient(scores, y, w), total * loss.value(scores, y, w)
    value, slopes = loss.value_and_slopes(np.array(scores.T, order="C"), y, w)
    assert value == pytest.approx(expected[1], rel=1e-12)
    np.testing.assert_allclose(slopes.T, expected[0], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_curvatures_are_those_of_the_value(loss: Loss, weighted: bool, count: int) -> None:
    rng = np.random.default_rng(1)
    scores, y = sample(loss)
    w = rng.random(len(y)) if weighted else None
    ways = rng.normal(size=(count, *scores.T.shape))
    constants = np.eye(loss.outputs)[:, :, None] * np.ones(len(y))
    every = np.concatenate([ways, constants])
    found = loss.curvatures(np.array(scores.T), y, w, ways)
    for k in range(len(every)):
        ahead = loss.gradient(scores + 1e-5 * every[k].T, y, w)
        back = loss.gradient(scores - 1e-5 * every[k].T, y, w)
        expected = np.tensordot(every, (ahead - back).T / 2e-5, 2)
        np.testing.assert_allclose(found[k], expected, rtol=1e-5, atol=1e-6)
        if loss in BOUNDED:
            counts = np.ones(len(y)) if w is None else w
            most = loss.curvature * counts @ np.sum(every[k] ** 2, axis=0)
            assert found[k, k] <= most + 1e-9


@pytest.mark.parametrize("rho", [1e-3, 0.25, 3.0])
@pytest.mark.parametrize("size", [1.0, 30.0])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_the_proximal_step_is_stationary(loss: Loss, rho: float, size: float) -> None:
    points, y = sample(loss, 200, size)
    z = loss.prox(points, y, rho)
    slope = loss.gradient(z, y) + rho * (z - points)
    np.testing.assert_allclose(slope, 0.0, atol=1e-8)


@pytest.mark.parametrize("rho", [1e-4, 1.0, 1e4])
def test_the_proximal_step_of_any_count_and_score(rho: float) -> None:
    """To the rounding of ρ (z − v), and of exp(z), which the rounding of z makes."""
    points = np.array([[-700.0], [-30.0], [0.0], [50.0], [1e4], [1e6]])
    for count in (0.0, 1.0, 1e30):
        y = np.full(len(points), count)
        z = Poisson().prox(points, y, rho)
        slope = Poisson().gradient(z, y) + rho * (z - points)
        size = np.exp(z) * (1.0 + np.abs(z)) + count + rho * (np.abs(z) + np.abs(points))
        assert (np.abs(slope) <= 1e-14 * size).all()


@pytest.mark.parametrize("rho", [1e-4, 1.0, 1e4])
def test_the_proximal_step_of_any_size_and_score(rho: float) -> None:
    points = np.array([[-700.0], [-30.0], [0.0], [50.0], [1e4], [1e6]])
    for size in (1e-30, 1.0, 1e30):
        y = np.full(len(points), size)
        z = Gamma().prox(points, y, rho)
        slope = Gamma().gradient(z, y) + rho * (z - points)
        u = np.log(size) - z
        most = np.exp(u) * (1.0 + np.abs(u)) + 1.0 + rho * (np.abs(z) + np.abs(points) + 70.0)
        assert (np.abs(slope) <= 1e-14 * most).all()


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_many_rows_are_handled_as_few(loss: Loss) -> None:
    """Rows are taken in pieces, and those that are found leave early."""
    rows = CHUNK + 300
    points, y = sample(loss, rows, 5.0)
    found, predicted = loss.prox(points, y, 0.2), loss.predict(points)
    some = np.array([0, 1, CHUNK // 2, CHUNK - 1, CHUNK, rows - 1])
    for row in some:
        one = slice(row, row + 1)
        np.testing.assert_allclose(found[one], loss.prox(points[one], y[one], 0.2), atol=1e-11)
        np.testing.assert_allclose(predicted[one], loss.predict(points[one]), rtol=1e-14)
    slope = loss.gradient(found, y) + 0.2 * (found - points)
    np.testing.assert_allclose(slope, 0.0, atol=1e-8)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_the_initial_intercept_is_the_best_constant(loss: Loss) -> None:
    _, y = sample(loss, 200)
    found = optimize.minimize(
        lambda b: loss.value(np.tile(b, (len(y), 1)), y), np.zeros(loss.outputs)
    )
    constant = np.tile(loss.initial_intercept(y), (len(y), 1))
    assert loss.value(constant, y) == pytest.approx(found.fun, abs=1e-9)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_a_weight_is_a_repetition(loss: Loss) -> None:
    rng = np.random.default_rng(3)
    scores, y = sample(loss, 60)
    weights = rng.integers(0, 4, 60)
    ways = rng.normal(size=(3, *scores.T.shape))
    many = np.repeat(np.arange(60), weights)
    for scale in (1.0, 1e-7, 1e9):
        w = scale * weights
        assert loss.value(scores, y, w) == pytest.approx(loss.value(scores[many], y[many]))
        found = loss.curvatures(np.array(scores.T), y, w, ways) / scale
        expected = loss.curvatures(np.array(scores[many].T), y[many], None, ways[:, :, many])
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(
            loss.gradient(scores, y, w).sum(axis=0) / scale,
            loss.gradient(scores[many], y[many]).sum(axis=0),
        )
        np.testing.assert_allclose(loss.initial_intercept(y, w), loss.initial_intercept(y[many]))
        assert loss.mean_curvature(scores, w) == pytest.approx(loss.mean_curvature(scores[many]))


@pytest.mark.parametrize("loss", [Logistic(), Softmax(3)], ids=lambda loss: loss.name)
def test_a_class_without_weight_has_a_finite_intercept(loss: Loss) -> None:
    y, w = np.array([0, 0, 1, 1, 1]), np.array([0.0, 0.0, 1e-6, 2e6, 1.0])
    intercept = loss.initial_intercept(y, w)
    assert np.isfinite(intercept).all()
    probability = loss.predict(intercept[None, :])[0]
    assert probability.argmax() == 1
    assert probability[1] > 0.7


@pytest.mark.parametrize("loss", [Logistic(), Softmax(2), Softmax(3)], ids=repr)
def test_extreme_scores_and_one_class(loss: Loss) -> None:
    y = np.zeros(4, np.int64)
    scores = np.full((4, loss.outputs), 1e4)
    scores[:, 0] *= -1
    assert np.isfinite(loss.value(scores, y))
    assert np.isfinite(loss.gradient(scores, y)).all()
    assert np.isfinite(loss.predict(scores)).all()
    assert np.isfinite(loss.initial_intercept(y)).all()
    assert np.isfinite(loss.prox(scores, y, 0.25)).all()


def test_the_loss_of_scores_that_are_right_by_far_vanishes() -> None:
    """Without the rounding of what large scores would leave of a difference."""
    scores, y = np.array([[1e4], [-1e4], [40.0]]), np.array([1, 0, 1])
    assert Logistic().value(scores, y) == pytest.approx(np.exp(-40.0) / 3, rel=1e-12)
    wrong = Logistic().value(-scores, y)
    assert wrong == pytest.approx((2e4 + 40.0) / 3, rel=1e-15)


def test_links() -> None:
    scores = np.array([[0.3], [-20.0]])
    np.testing.assert_array_equal(Squared().predict(scores), scores)
    np.testing.assert_array_equal(Poisson().predict(scores), np.exp(scores))
    probability = Logistic().predict(scores)
    np.testing.assert_allclose(probability[:, 1], 1 / (1 + np.exp(-scores[:, 0])))
    np.testing.assert_allclose(probability.sum(axis=1), 1.0)
    three = np.array([[0.1, 2.0, -1.0]])
    np.testing.assert_allclose(Softmax(3).predict(three), np.exp(log_softmax(three, axis=1)))


def test_the_poisson_loss_is_exact_where_counts_are_large() -> None:
    """What is minimised is what lies above the least loss of each row."""
    y = np.array([1e12, 0.0, 7.0])
    scores = np.log(np.array([[1e12], [1e-9], [7.0]])) + np.array([[1e-5], [0.0], [0.0]])
    loss = Poisson().fitted(y, None)
    assert loss.curvature == y.mean()
    assert loss.value(scores, y) == pytest.approx((1e12 * 0.5e-10 + 1e-9) / 3, rel=1e-4)
    whole = np.mean(np.exp(scores[:, 0]) - y * scores[:, 0])
    assert loss.value(scores, y) + loss.floor(y, None) == pytest.approx(whole, rel=1e-12)
    of_prediction = loss.of_prediction(loss.predict(scores), y, None)
    assert of_prediction == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("loss", [Logistic(), Softmax(3), Squared(), Poisson()])
def test_the_loss_of_scores_is_that_of_their_predictions(loss: Loss, weighed: bool) -> None:
    rng = np.random.default_rng(3)
    scores = 4.0 * rng.normal(size=(1000, loss.outputs))
    y = rng.integers(0, max(loss.outputs, 2), 1000)
    weights = rng.integers(0, 3, 1000).astype(float) if weighed else None
    expected = loss.of_prediction(loss.predict(scores), y, weights)
    assert loss.of_scores(scores, y, weights) == pytest.approx(expected, rel=1e-12)
    if loss.name in ("logistic", "squared"):
        scores[0] = np.nan
        assert np.isnan(loss.of_scores(scores, y, None))


def test_means_beyond_all_numbers_are_an_error() -> None:
    scores = np.array([[709.0], [710.0], [np.nan]])
    assert Poisson().value(scores[:2], np.ones(2)) == np.inf
    with pytest.raises(ModelError, match="the means of 2 joined rows"):
        Poisson().predict(scores)


def test_counts_of_zero_alone_have_no_best_constant() -> None:
    with pytest.raises(ModelError, match="0 in all rows that train"):
        Poisson().fitted(np.array([0.0, 5.0]), np.array([2.0, 0.0]))


def test_steps_are_shorter_where_means_are_large() -> None:
    y = np.array([1.0, 2.0, 3.0, 0.0])
    loss = Poisson().fitted(y, None)
    constant = np.full((4, 1), np.log(1.5))
    assert loss.flatness(constant, y, None) == pytest.approx(1.5 / np.mean([1.5, 2.0, 3.0, 1.5]))
    far = constant + np.array([[5.0], [0.0], [0.0], [0.0]])
    bent = 1.5 * np.exp(5.0)
    # the scores' own direction is nearly that row alone: (3/4)² of the square of their spread
    assert loss.flatness(far, y, None) == pytest.approx(
        1.5 / ((9 * bent + 2.0 + 3.0 + 1.5) / 12), rel=1e-12
    )
    assert Squared().flatness(far, y, None) == 1.0


@pytest.mark.parametrize("loss", BOUNDED, ids=lambda loss: loss.name)
def test_mean_curvature_is_below_the_bound(loss: Loss) -> None:
    scores, _ = sample(loss)
    assert 0.0 < loss.mean_curvature(scores) <= loss.curvature
    flat = loss.mean_curvature(np.zeros_like(scores))
    assert flat == pytest.approx({"squared": 1.0, "logistic": 0.25, "softmax": 0.25}[loss.name])


def test_loss_of_a_kind() -> None:
    assert loss_of("linear_regression", 1) == Squared()
    assert loss_of("poisson_regression", 1) == Poisson()
    assert loss_of("logistic_regression", 2) == Logistic()
    assert loss_of("softmax_regression", 5) == Softmax(5)
    assert loss_of("lasso", 1) == Squared()
    with pytest.raises(InternalError, match="ridge"):
        loss_of("ridge", 1)
