"""Sums over joined rows in pieces, and what is made of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from sqlfl.models import inference
from sqlfl.models.inference import FAMILIES, estimated, fit_of, sums
from sqlfl.models.losses import loss_of
from tests.depth import examples

KINDS = tuple(FAMILIES)


def rows(
    kind: str, n: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Design, parameters, scores, targets, weights."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), rng.normal(size=(n, 2))])
    theta = rng.normal(size=3)
    h = x @ theta
    y: np.ndarray = h + rng.normal(size=n)
    if kind == "logistic_regression":
        y = (y > h).astype(float)
    elif kind == "poisson_regression":
        y = rng.poisson(np.exp(h)).astype(float)
    elif kind == "gamma_regression":
        y = rng.gamma(2.0, np.exp(h) / 2.0)
    return x, theta, h, y, rng.integers(0, 3, n).astype(float)


@given(st.sampled_from(KINDS), st.integers(4, 400), st.integers(1, 40), st.integers(0, 99),
       st.sampled_from(("", "robust", "units")), st.booleans())  # fmt: skip
@examples(15)
def test_pieces_add_up(kind: str, n: int, most: int, seed: int, how: str, weighed: bool) -> None:
    x, _, h, y, w = rows(kind, n, seed)
    units = np.random.default_rng(seed).integers(0, most, n) if how == "units" else None
    own = w if weighed else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference, "PIECE", 1)  # 64 rows are the least
        found = sums(FAMILIES[kind], lambda k: x[k], h, y, own, robust=how == "robust", units=units)
    w = w if weighed else np.ones(n)
    loss = loss_of(kind, 2)
    slopes = loss.gradient(h[:, None], y, w)[:, 0]
    ways = x[:, 1:].T[:, None]
    curved = loss.curvatures(h[None].copy(), y, w, ways)
    if kind == "gamma_regression" and not how:  # as it is expected, which is 1
        curved = loss_of("linear_regression", 1).curvatures(h[None].copy(), y, w, ways)
    order = [2, 0, 1]
    np.testing.assert_allclose(found.information, curved[np.ix_(order, order)], rtol=1e-9)
    np.testing.assert_allclose(found.slope, x.T @ slopes, rtol=1e-9, atol=1e-9)
    if how == "":
        assert found.meat is None
        return
    assert found.meat is not None
    if units is None:
        each = loss.gradient(h[:, None], y)[:, 0]
        expected = (x * (w * each**2)[:, None]).T @ x
    else:
        parts = np.array([(x[units == u] * slopes[units == u, None]).sum(0) for u in set(units)])
        expected = parts.T @ parts
    np.testing.assert_allclose(found.meat, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_likelihoods_are_those_of_the_distributions(kind: str) -> None:
    _, _, h, y, w = rows(kind, 50, 1)
    fit = fit_of(FAMILIES[kind], h, y, w)
    if kind == "linear_regression":
        scale = np.sqrt(np.average((y - h) ** 2, weights=w))
        expected = stats.norm(h, scale).logpdf(y)
    elif kind == "logistic_regression":
        expected = stats.bernoulli(1 / (1 + np.exp(-h))).logpmf(y)
    elif kind == "poisson_regression":
        expected = stats.poisson(np.exp(h)).logpmf(y)
    else:

        def logarithms(a: float) -> np.ndarray:
            return np.asarray(stats.gamma(a, scale=np.exp(h) / a).logpdf(y))

        shape = optimize.minimize_scalar(lambda a: -w @ logarithms(a), (1.0, 3.0), tol=1e-12).x
        expected = logarithms(shape)
    assert fit.log_likelihood == pytest.approx(w @ expected)
    assert fit.rows == w.sum()
    logarithmic = kind in ("poisson_regression", "gamma_regression")
    best = fit_of(FAMILIES[kind], np.log(np.maximum(y, 1e-12)) if logarithmic else y, y, w)
    if kind != "logistic_regression":
        assert best.deviance == pytest.approx(0.0, abs=1e-6)
    else:
        assert fit.deviance == pytest.approx(-2 * fit.log_likelihood)


def test_a_distance_bounds_how_far_each_coefficient_is() -> None:
    """In standard errors, of parameters that are not the best ones."""
    x, _, _, y, _ = rows("linear_regression", 200, 3)
    best = np.linalg.lstsq(x, y)[0]
    theta = best + np.array([0.0, 0.02, -0.01])
    h = x @ theta
    family = FAMILIES["linear_regression"]
    fit = fit_of(family, h, y, None)
    found = sums(family, lambda k: x[k], h, y, None, robust=False, units=None)
    done = estimated(family, found, theta * [0, 1, 1], 0.0, fit, None)
    assert done is not None
    errors = np.sqrt(np.diag(done.covariance))
    away = np.abs(theta - best) / errors
    assert 0 < away.max() <= done.distance * (1 + 1e-9)
    assert done.distance < 3 * away.max()


@pytest.mark.parametrize("away", [0.0, 1e-7])
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [0, 3, 2, 4, 1]])
def test_a_robust_variance_of_rounding_is_none(away: float, order: list[int]) -> None:
    """All rows but the first and the last have a column, or a difference of columns, of their own.
    The model fits them, or nearly (`away`), whatever their targets are."""
    x = np.array([[1, 0, 1, 0, 1], [1, 0, 0, 0, 0], [1, 1, 1, 0, 0],
                  [1, 1, 1, 1, 0], [1, 0, 1, 0, 0], [1, 0, 1, 0, 1]], float)[:, order]  # fmt: skip
    y = np.array([7.064, 0.998, 2.294, 1.443, 5.143, 4.699])
    theta = np.linalg.lstsq(x, y)[0] + away * np.array([0.3, -1.0, 0.5, 0.7, -0.2])
    h, family = x @ theta, FAMILIES["linear_regression"]
    found = sums(family, lambda k: x[k], h, y, None, robust=True, units=None)
    done = estimated(family, found, theta, 0.0, fit_of(family, h, y, None), None)
    assert done is not None
    # the two rows of the last column share what they are off by: HC1 is 6 (2 r² / 2²)
    alone, expected = order.index(4), 6 * (7.064 - 4.699) ** 2 / 8
    variances = inference.variances_of(np.eye(5), done.covariance)
    assert variances[alone] == pytest.approx(expected, rel=1e-6)
    assert np.flatnonzero(variances).tolist() == [alone]
    exact = np.delete(np.arange(5), alone)
    block = done.covariance[np.ix_(exact, exact)]
    assert not inference.variances_of(np.vstack([np.eye(4), np.ones((1, 4))]), block).any()


def test_nothing_follows_from_too_few_rows() -> None:
    x, theta, h, y, _ = rows("linear_regression", 3, 2)
    family = FAMILIES["linear_regression"]
    found = sums(family, lambda k: x[k], h, y, None, robust=False, units=None)
    assert estimated(family, found, theta, 0.0, fit_of(family, h, y, None), None) is None


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Over many draws of targets."""
    rng, held = np.random.default_rng(5), 0
    family = FAMILIES["linear_regression"]
    x = np.column_stack([np.ones(12), rng.normal(size=12)])
    for _ in range(400):
        y = 0.5 + 2.0 * x[:, 1] + rng.normal(size=12)
        theta = np.linalg.lstsq(x, y)[0]
        h = x @ theta
        found = sums(family, lambda k: x[k], h, y, None, robust=False, units=None)
        done = estimated(family, found, theta * [0, 1], 0.0, fit_of(family, h, y, None), None)
        assert done is not None
        errors = np.sqrt(np.diag(done.covariance))
        tests = inference.tests_of(theta, errors, done.degrees, 0.9)
        held += int(tests.lower[1] <= 2.0 <= tests.upper[1])
    assert 335 <= held <= 385  # four deviations around 360
