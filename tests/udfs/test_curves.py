"""The basis of a curve: a plain ridge on its columns is the penalty on its wiggles."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import linalg
from scipy.interpolate import BSpline

from sqlfl.contract.schema import FeatureSpecification, FittedStep, Made
from sqlfl.contract.transforms import CURVE, CURVE_COLUMNS, CURVE_ROWS, VALUES
from sqlfl.udfs.encoding import curves
from sqlfl.udfs.encoding.fitting import apply, fit, own_range

DRAWS = {
    "even": lambda rng: rng.uniform(-3.0, 9.0, 700),
    "skewed": lambda rng: rng.lognormal(0.0, 1.5, 700),
    "tied": lambda rng: np.where(rng.random(700) < 0.4, 0.0, rng.exponential(4.0, 700)),
    "few": lambda rng: rng.choice([1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0], 700),
}


def feature(part: str) -> FeatureSpecification:
    step = FittedStep("auto", "numeric", value=part)
    kind, width = step.gives
    made = Made((("x", "DOUBLE"),), "x", step)
    return FeatureSpecification(f"x ({part})", kind, width, made, shrunken=True)


def functions(smooth: curves.Smooth, values: np.ndarray) -> np.ndarray:
    """The basis functions at any values, by the definition of B-splines."""
    if len(smooth.line) == len(smooth.places) + 1:
        return np.eye(len(smooth.line))[np.searchsorted(smooth.places, values, side="right")]
    knots = np.r_[[smooth.places[0]] * 3, smooth.places, [smooth.places[-1]] * 3]
    each = [BSpline(knots, row, 3) for row in np.eye(len(smooth.line))]
    return np.column_stack([one(values) for one in each])


def differences(at: np.ndarray) -> np.ndarray:
    """Second divided differences, one after the other."""
    rows = []
    for i in range(len(at) - 2):
        a, b = (max(gap, curves.NEAR) for gap in np.diff(at[i : i + 3]))
        row = np.zeros(len(at))
        row[i : i + 3] = 2 / (a * (a + b)), -2 / (a * b), 2 / (b * (a + b))
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("strength", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("draw", DRAWS)
def test_a_ridge_on_the_columns_is_the_penalised_problem(draw: str, strength: float) -> None:
    rng = np.random.default_rng(5)
    values, weights = DRAWS[draw](rng), rng.integers(1, 4, 700).astype(float)
    y = np.sin(values) + rng.normal(size=700)
    distinct, places = np.unique(values, return_inverse=True)
    counts = np.bincount(places, weights)
    smooth = curves.smooth_of(distinct, counts)
    table = curves.columns_of(smooth, counts, most=None)
    root = np.sqrt(weights / weights.sum())
    lines = np.column_stack([np.ones(700), (values - values.mean()) / values.std()])

    # directly: coefficients whose curve has no part of the constant and of the line
    basis = functions(smooth, values)
    penalty = differences(smooth.ranks)
    inner = (lines * root[:, None]).T @ (basis * root[:, None])
    free = np.linalg.svd(inner)[2][2:].T
    scaled = penalty @ free
    curve = basis @ free
    gram = (curve * root[:, None]).T @ (curve * root[:, None])
    factor = linalg.solve_triangular(linalg.cholesky(gram), scaled.T, trans="T").T
    least = linalg.svdvals(factor)[-1] ** 2
    assert least > 0
    top = np.column_stack([lines, curve]) * root[:, None]
    below = np.column_stack([np.zeros((len(scaled), 2)), np.sqrt(strength / least) * scaled])
    right = np.r_[y * root, np.zeros(len(scaled))]
    wanted = top @ np.linalg.lstsq(np.vstack([top, below]), right, rcond=None)[0]

    columns = np.column_stack([lines, basis @ table]) * root[:, None]
    ridge = np.sqrt(strength) * np.eye(columns.shape[1])[2:]
    right = np.r_[y * root, np.zeros(len(ridge))]
    found = columns @ np.linalg.lstsq(np.vstack([columns, ridge]), right, rcond=None)[0]
    np.testing.assert_allclose(found, wanted, atol=1e-10)


@pytest.mark.parametrize("draw", DRAWS)
def test_columns_are_orthogonal_to_the_line_and_to_each_other(draw: str) -> None:
    rng = np.random.default_rng(2)
    values, counts = DRAWS[draw](rng), rng.integers(1, 4, 700).astype(float)
    own = feature(CURVE)
    made = apply(own, fit(own, values, counts), values)
    columns = made.values.to_numpy().reshape(-1, CURVE_COLUMNS)
    every = np.column_stack([np.ones(700), values - np.average(values, weights=counts), columns])
    inner = every.T @ (every * counts[:, None]) / counts.sum()
    rest = inner[2:, 2:]
    width = min(CURVE_COLUMNS, len(np.unique(values)) - 2)
    assert rest[0, 0] == pytest.approx(1.0)
    np.testing.assert_allclose(inner[:2, 2:], 0.0, atol=1e-9 * np.abs(values).max())
    np.testing.assert_allclose(rest, np.diag(np.diag(rest)), atol=1e-10)
    assert (np.diff(np.diag(rest)) <= 1e-12).all()
    assert (np.diag(rest) > 1e-9).sum() == width


def test_beyond_the_ends_it_stays_and_null_is_zero() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=900)
    own = feature(CURVE)
    found = fit(own, values, np.ones(900))
    asked = np.array([values.min(), values.min() - 5.0, values.max(), values.max() + 5.0, np.nan])
    columns = apply(own, found, asked).values.to_numpy().reshape(-1, CURVE_COLUMNS)
    np.testing.assert_array_equal(columns[0], columns[1])
    np.testing.assert_array_equal(columns[2], columns[3])
    np.testing.assert_array_equal(columns[4], np.zeros(CURVE_COLUMNS))


def test_values_that_many_rows_hold_are_categories() -> None:
    rng = np.random.default_rng(3)
    values = np.where(rng.random(1000) < 0.2, 7.5, rng.normal(size=1000))
    values[:30], values[30:39], values[39:52] = -2.0, 4.0, 5.0
    own = feature(VALUES)
    made = apply(own, fit(own, values, np.ones(1000)), np.array([7.5, -2.0, 4.0, np.nan, 0.1]))
    assert made.to_pylist() == [b"v7.5", b"v-2", b"o", b"o", b"o"]
    assert fit(own, values, np.ones(1000)).numbers.tolist() == [-2.0, 5.0, 7.5]
    weighed = fit(own, values, np.where((values == 4.0) | (values == -2.0), 3.0, 0.1))
    np.testing.assert_array_equal(weighed.numbers, [-2.0, 7.5])


@pytest.mark.parametrize(
    ("values", "joined"),
    [
        (np.tile([1.0, 2.0], 300), 600),
        (np.full(600, 3.0), 600),
        (np.full(600, np.nan), 600),
        (np.arange(CURVE_ROWS - 1.0), CURVE_ROWS - 1),
    ],
)
def test_of_two_values_and_of_few_rows_there_is_no_curve(values: np.ndarray, joined: int) -> None:
    own, counts = feature(CURVE), np.ones(len(values))
    made = apply(own, fit(own, values, counts, joined), values)
    assert not made.values.to_numpy().any()
    kept = fit(feature(VALUES), values, counts, joined)
    assert kept.numbers.size == 0


def test_parts_of_the_rows_tell_no_ends() -> None:
    """The least value is that of some row."""
    assert own_range(feature(CURVE), np.arange(1.0, 10.0), np.ones(9)).tolist() == [0.0, 0.0, 9.0]


def test_values_with_a_weight_keep_to_an_owners_limits() -> None:
    """Those of fewer rows than `least` have none; nor are the others fewer together."""
    values = np.repeat(np.arange(6.0), [500, 300, 100, 60, 30, 10])
    counts = np.ones(len(values))
    kept = lambda *limits: curves.frequent(values, counts, curves.CellLimits(*limits)).tolist()  # noqa: E731
    assert kept() == [0, 1, 2, 3, 4, 5]
    assert kept(20) == [0, 1, 2, 3]  # 10 others are too few, and 40 are not
    assert kept(50) == [0, 1, 2]
    assert kept(100) == [0, 1, 2]
    assert kept(1, 3) == [0, 1]


@pytest.mark.parametrize("rows", [None, 3])
def test_pooled_values_are_means_of_enough_rows(rows: int | None) -> None:
    draw = np.random.default_rng(3)
    for least in (2, 5, 9):
        for values in (
            draw.normal(size=200),
            draw.integers(0, 30, 200).astype(np.float64),
            np.r_[np.zeros(150), draw.normal(size=50)],
            np.r_[np.repeat([1.0, 2.0], 60), 99.0],
        ):
            counts = None if rows is None else draw.integers(1, rows, len(values)).astype(float)
            limits = curves.CellLimits(least, rows=counts)
            pool, of_rows = curves.pooled(values, limits), limits.rows_of(len(values))
            order = np.argsort(values, kind="stable")
            assert (np.diff(pool[order]) >= -1e-12).all()
            assert all(of_rows[pool == value].sum() >= least for value in np.unique(pool))
            for value in np.unique(values):
                if of_rows[values == value].sum() >= least:
                    assert (pool[values == value] == value).all()
                elif value % 1.0:
                    assert value not in pool


def test_without_a_policy_values_are_as_they_are() -> None:
    values = np.arange(9.0)
    assert curves.pooled(values, curves.CellLimits()) is values
    assert curves.pooled(np.zeros(0), curves.CellLimits(5)).tolist() == []
    assert curves.pooled(np.arange(3.0), curves.CellLimits(5)).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("function", ["minmax", "spline", "quantile_bucketize", CURVE])
def test_no_bound_is_a_value_of_one_row(function: str) -> None:
    values = np.r_[np.random.default_rng(3).normal(size=2000), 1000.0, -1000.0]
    own = feature(CURVE)
    if function != CURVE:
        step = FittedStep(function, "numeric", count=8, degree=3)
        made = Made((("x", "DOUBLE"),), "x", step)
        own = FeatureSpecification("x", *step.gives, made)
    told = fit(own, values, np.ones(len(values)), limits=curves.CellLimits(5)).numbers
    assert len(told)
    assert not np.isin(told, values).any()
    assert np.abs(told).max() < 450.0  # a mean of at least five
