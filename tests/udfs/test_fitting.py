"""What TRANSFORM fits: of rows that count, and in parts."""

from __future__ import annotations

import numpy as np
import pytest

from sqlfl.aggregation.slot_aggregation import merge_ranges
from sqlfl.base.errors import ModelError, PolicyError
from sqlfl.contract.schema import FeatureSpecification, FittedStep, Made, SlotSpecification
from sqlfl.coordinator import expected
from sqlfl.messages import Ranges
from sqlfl.udfs.encoding.curves import CellLimits, points_of
from sqlfl.udfs.encoding.features import Encoding
from sqlfl.udfs.encoding.fitting import (
    Categories,
    Fitted,
    apply,
    fault_of,
    fit,
    of_range,
    own_range,
    quantiles,
)

SHARES = np.linspace(0.0, 1.0, 9)


def feature(function: str, of: str = "numeric", **given: object) -> FeatureSpecification:
    step = FittedStep(function, of, **given)  # type: ignore[arg-type]
    kind, width = step.gives
    return FeatureSpecification("f", kind, width, Made((("x", "DOUBLE"),), "x", step))


@pytest.mark.parametrize("seed", range(20))
def test_quantiles_are_of_rows_as_often_as_they_come(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 6, rng.integers(1, 9)).astype(float)
    counts = rng.integers(1, 4, len(values)).astype(float)
    wanted = np.quantile(np.repeat(values, counts.astype(int)), SHARES)
    np.testing.assert_allclose(quantiles(values, counts, SHARES), wanted, atol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_quantiles_of_weights_are_values_at_which_they_are_reached(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, weights = rng.normal(size=7), rng.integers(1, 5, 7) + 0.5
    found = quantiles(values, weights, SHARES)
    order = np.argsort(values)
    inner = slice(1, -1)
    wanted = np.quantile(
        np.repeat(values[order], (2 * weights[order]).astype(int)),
        SHARES,
        method="averaged_inverted_cdf",
    )
    np.testing.assert_allclose(found[inner], wanted[inner], atol=1e-12)
    assert (found[0], found[-1]) == (values.min(), values.max())


NONE = (np.zeros(0),)
"""Points of one feature that has none."""


@pytest.mark.parametrize("function", ["minmax", "spline", "mean"])
def test_parts_say_what_the_whole_says(function: str) -> None:
    rng = np.random.default_rng(3)
    own = feature("impute", value="mean") if function == "mean" else feature(function, count=4)
    parts = [rng.normal(size=5), np.full(3, np.nan), rng.normal(size=9)]
    counts = [rng.integers(0, 4, len(part)).astype(float) for part in parts]
    told = [own_range(own, part, count) for part, count in zip(parts, counts, strict=True)]
    merged = merge_ranges([Ranges("r", 0, t[None, :2], t[2:], NONE, NONE) for t in told], [own])
    whole = fit(own, np.concatenate(parts), np.concatenate(counts))
    np.testing.assert_allclose(
        of_range(own, merged.ends[0], *NONE, *NONE).numbers, whole.numbers, atol=1e-12
    )


def test_parts_without_values_are_told_by_name() -> None:
    nothing = [Ranges("r", 0, np.zeros((1, 2)), np.zeros(1), NONE, NONE)] * 2
    with pytest.raises(ModelError, match="column f has no values"):
        merge_ranges(nothing, [feature("minmax")])


def test_ranges_of_another_order_are_refused() -> None:
    item = SlotSpecification(
        0, (feature("minmax"),), False, False, (), (), (0,), True, "organisation", "sql"
    )
    wanted = expected.encoded(item, 3.0, now=True)
    assert wanted.kind is Ranges
    turned = Ranges("r", 0, np.array([[2.0, 1.0]]), np.ones(1), NONE, NONE)
    assert wanted.fault is not None
    assert wanted.fault(turned) == "has ends in no order"


@pytest.mark.parametrize(
    "fitted", [(), (None,), (Fitted(np.zeros(1)),), (Fitted(np.array([0.0, np.nan])),)]
)
def test_what_is_damaged_is_not_read(fitted: tuple[Fitted | None, ...]) -> None:
    one = np.zeros(1)
    encoding = Encoding((feature("minmax"),), one, one + 1, one, (), (), 1.0, None, fitted=fitted)
    with pytest.raises(ValueError, match="what TRANSFORM has fitted"):
        Encoding.from_bytes(encoding.to_bytes())


def test_a_category_called_other_is_not_the_others() -> None:
    entries = (b"vother", b"va", b"vb", b"vc")
    values = Categories(np.arange(4), entries)
    own = feature("one_hot", "category", count=3)
    fitted = fit(own, values, np.array([9.0, 5.0, 2.0, 1.0]))
    assert fitted.texts == ("va", "vother") or fitted.texts == ("vother", "va")
    assert apply(own, fitted, values).to_pylist() == [b"vother", b"va", b"o", b"o"]


# -- points of a distribution --------------------------------------------------------------------


@pytest.mark.parametrize("least", [1, 12])
@pytest.mark.parametrize("shape", ["smooth", "few", "masses"])
def test_points_are_means_of_enough_rows(shape: str, least: int) -> None:
    rng = np.random.default_rng(1)
    values = {
        "smooth": rng.normal(size=3000),
        "few": rng.integers(0, 20, 3000).astype(float),
        "masses": np.where(rng.random(3000) < 0.4, 0.5, rng.normal(size=3000)),
    }[shape]
    counts = rng.integers(1, 4, 3000).astype(float)
    points, sums = points_of(values, counts, CellLimits(least))
    assert (np.diff(points) > 0).all()
    assert sums.sum() == counts.sum()
    assert points @ sums == pytest.approx(values @ counts)
    assert len(points) <= 201 + 2
    if shape == "few":
        np.testing.assert_array_equal(points, np.unique(values))
    else:
        # rows nearest to a point, at least roughly
        near = np.bincount(np.abs(values[:, None] - points[None, :]).argmin(axis=1))
        assert np.median(near) >= least
    if shape == "masses":
        assert np.abs(points - 0.5).min() < 0.02


@pytest.mark.parametrize("rows", [0, 1, 4, 5, 11])
def test_points_of_few_rows_are_none_or_one(rows: int) -> None:
    points, sums = points_of(np.arange(rows) * 1.0, np.ones(rows), CellLimits())
    assert len(points) == (rows >= 5) + (rows >= 10)
    assert sums.sum() == (rows if rows >= 5 else 0)
    assert points_of(np.arange(rows) * 1.0, np.ones(rows), CellLimits(12))[0].size == 0


def test_rows_that_stand_for_others_count_for_them() -> None:
    """Neither the row for no partner nor a row that is joined often is many rows."""
    values, counts = np.arange(6.0), np.array([900.0, 1, 1, 1, 1, 1])
    nobody = CellLimits(1, rows=np.array([0.0, 1, 1, 1, 1, 1]))
    assert len(points_of(values, counts, nobody)[0]) == 1
    assert len(points_of(values, counts, CellLimits(1, rows=np.full(6, 5.0)))[0]) == 6


def test_numbers_that_rounding_makes_differ_are_one() -> None:
    """0.1 + 0.2 is beside 0.3, and no bound is between them."""
    near = 0.3 + np.arange(-2, 3) * np.spacing(0.3)
    values = np.array([*near, 0.1, 0.2, 0.5, 0.7])
    own = feature("auto", value="curve")
    fitted = fit(own, values, np.ones(9))
    assert fault_of((own,), (fitted,)) is None
    made = np.array(apply(own, fitted, values).to_pylist())
    np.testing.assert_array_equal(made[:5], np.repeat(made[:1], 5, axis=0))
    points, _ = points_of(np.repeat(values, 7), np.arange(63) % 5 + 1.0, CellLimits())
    np.testing.assert_array_equal(points, np.unique(values))


@pytest.mark.parametrize("value", ["mean", "median", "most_frequent"])
def test_others_get_no_value_of_few_rows(value: str) -> None:
    """All rows would show it."""
    values, counts = np.full(50, np.nan), np.ones(50)
    values[:4] = 7.0
    limits = CellLimits(5)
    with pytest.raises(PolicyError, match="too few rows have the values of f that impute gives"):
        fit(feature("impute", value=value), values, counts, limits=limits)
    if value == "mean":
        with pytest.raises(PolicyError, match="too few rows have the values of f"):
            own_range(feature("impute", value=value), values, counts, limits)
    assert fit(feature("impute", value=value), values, counts).numbers.tolist() == [7.0]
    values[4] = 7.0
    assert fit(feature("impute", value=value), values, counts, limits=limits).numbers == [7.0]
    rows = CellLimits(5, rows=np.where(np.arange(50) == 4, 0.0, 1.0))  # it is nobody's
    with pytest.raises(PolicyError):
        fit(feature("impute", value=value), values, counts, limits=rows)


def test_others_get_no_category_of_few_rows() -> None:
    own, entries = feature("impute", "category", value="most_frequent"), (b"n", b"vrare", b"vx")
    codes, limits = np.zeros(50, np.int64), CellLimits(5)
    codes[:4], codes[4:7] = 1, 2
    with pytest.raises(PolicyError, match="too few rows have the values of f that impute gives"):
        fit(own, Categories(codes, entries), np.ones(50), limits=limits)
    assert fit(own, Categories(codes, entries), np.ones(50)).texts == ("vrare",)
    codes[4] = 1
    assert fit(own, Categories(codes, entries), np.ones(50), limits=limits).texts == ("vrare",)
