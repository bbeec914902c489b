"""Functions of TRANSFORM that are fitted to joined rows: the fit, and the columns made by it.

A column is numbers, NaN where missing, or categories: for each row which of the entries it has,
canonical texts as the snapshot keeps them. Each row counts as often as it is joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from sqlfl.base.arrays import Array, Float
from sqlfl.base.codec import LEFT_OUT
from sqlfl.base.errors import InternalError, ModelError, PolicyError
from sqlfl.contract.schema import FeatureSpecification, FittedStep
from sqlfl.contract.transforms import AUTO, CURVE, CURVE_ROWS, VALUE_SHARE, number
from sqlfl.udfs.encoding import curves

if TYPE_CHECKING:
    from scipy.interpolate import BSpline

NULL = b"n"
"""The canonical text of a category that is NULL."""
OTHER = b"o"
"""Of those that `one_hot` takes as one: no text that a column has."""
NARROW = 1e-8
"""Buckets that are not wider are one with the next, as in scikit-learn."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """The fit of one feature."""

    numbers: Float
    """minmax: least value and range; robust_scale: median and distance of the quartiles; impute:
    the value; quantile_bucketize: the bounds between buckets; spline: least and greatest value;
    auto: the knots of its curve or the bounds between its values, or the values that have a weight
    of their own."""
    texts: tuple[str, ...] = ()
    """For categories: canonical texts that stay (one_hot), or the replacement of a NULL
    (impute).
    """
    table: Float | None = field(default=None, metadata=LEFT_OUT)
    """(K, w): coefficients of the columns of auto's curve."""


@dataclass(frozen=True, eq=False)
class Categories:
    codes: Array
    """int64 (a,)"""
    entries: tuple[bytes, ...]


Values: TypeAlias = "Float | Categories"


def fit(
    feature: FeatureSpecification,
    values: Values,
    counts: Float,
    joined: int = CURVE_ROWS,
    limits: curves.CellLimits | None = None,
) -> Fitted:
    """Return the values that `apply` needs for the feature. `counts` (a,), from 0 up, are the
    weights of the rows; `joined` is the number of joined rows, by default enough for a curve.
    `limits` hold for values to which `auto` gives a weight of their own.

    Raises ModelError, naming the feature, where there are no values to fit to, or infinite ones.
    """
    step = _step(feature)
    if isinstance(values, Categories):
        rows: Float = np.bincount(values.codes, counts, len(values.entries)).astype(np.float64)
        fitted = _fit_categories(feature, step, values.entries, rows)
        if step.function == "impute":
            _check_many(
                feature,
                np.isin(values.entries, [t.encode() for t in fitted.texts])[values.codes],
                limits,
            )
        return fitted
    _check_finite(feature, values)
    known = ~np.isnan(values) & (counts > 0)
    cell_limits = (limits or curves.CellLimits()).at(known)
    if step.function == AUTO:
        return _fit_auto(step, values[known], counts[known], joined, cell_limits)
    if not known.any():
        raise ModelError(
            f"column {feature.name} has no values to fit {step.function} to",
            hint="leave it out, or let fewer rows be NULL",
        )
    if step.function == "impute":
        _check_many(feature, known, limits)
    told = curves.pooled(values[known], cell_limits)
    return Fitted(_fit_numbers(feature, step, told, counts[known]))


def _check_many(
    feature: FeatureSpecification, chosen: Array, limits: curves.CellLimits | None
) -> None:
    """Raise PolicyError where too few rows have the values that others get, and would show."""
    if limits is None or limits.least <= 1:
        return
    if limits.rows_of(len(chosen))[chosen].sum() < limits.least:
        raise PolicyError(
            f"its owner's policy has min_cell, and too few rows have the values of {feature.name} "
            "that impute gives to others",
            hint="give a value by hand, as impute(x, 0); or leave the feature out",
        )


def _fit_auto(
    step: FittedStep, values: Float, counts: Float, joined: int, limits: curves.CellLimits
) -> Fitted:
    """A curve, or the values that have a weight of their own: none of few rows."""
    enough = joined >= CURVE_ROWS
    if step.value == CURVE:
        return Fitted(*_curve(curves.pooled(values, limits), counts, enough=enough))
    return Fitted(curves.frequent(values, counts, limits) if enough else np.zeros(0))


def _curve(values: Float, counts: Float, *, enough: bool) -> tuple[Float, tuple[str, ...], Float]:
    places, table = curves.curve(values, counts) if enough else curves.straight()
    return places, (), table


def _fit_numbers(
    feature: FeatureSpecification, step: FittedStep, values: Float, counts: Float
) -> Float:
    match step.function:
        case "minmax":
            least, most = values.min(), values.max()
            return np.array([least, (most - least) or 1.0])
        case "robust_scale":
            low, middle, high = quantiles(values, counts, np.array([0.25, 0.5, 0.75]))
            return np.array([middle, (high - low) or 1.0])
        case "impute":
            return np.array([_stand_in(step, values, counts)])
        case "quantile_bucketize":
            edges = quantiles(values, counts, np.linspace(0.0, 1.0, step.count + 1))
            wide = np.diff(edges, prepend=-np.inf) > NARROW
            return np.asarray(edges[wide][1:-1])
        case "spline":
            least, most = values.min(), values.max()
            if least == most:
                raise ModelError(
                    f"column {feature.name} has one value, and a spline needs two",
                    hint="leave it out of the SELECT list",
                )
            return np.array([least, most])
    raise InternalError(f"no numbers are fitted by {step.function!r:.40}")


def _stand_in(step: FittedStep, values: Float, counts: Float) -> float:
    """Return the replacement of a missing number."""
    if step.value == "mean":
        return float(values @ counts / counts.sum())
    if step.value == "median":
        return float(quantiles(values, counts, np.array([0.5]))[0])
    distinct, places = np.unique(values, return_inverse=True)
    return float(distinct[np.argmax(np.bincount(places, counts))])


def _fit_categories(
    feature: FeatureSpecification, step: FittedStep, entries: Sequence[bytes], counts: Float
) -> Fitted:
    # as scikit-learn has them: texts in order, a NULL last
    order = sorted(range(len(entries)), key=lambda place: (entries[place] == NULL, entries[place]))
    known = [place for place in order if counts[place] > 0]
    if step.function == "impute":
        present = [place for place in known if entries[place] != NULL]
        if not present:
            raise ModelError(
                f"column {feature.name} has no values to fit impute to",
                hint="leave it out of the SELECT list",
            )
        best = max(present, key=lambda place: counts[place])
        return Fitted(np.zeros(0), (entries[best].decode(),))
    if len(known) <= step.count:
        return Fitted(np.zeros(0))
    rising = sorted(known, key=lambda place: counts[place])
    kept = sorted(rising[len(rising) - step.count + 1 :])
    return Fitted(np.zeros(0), tuple(entries[place].decode() for place in kept))


def quantiles(values: Float, counts: Float, shares: Float) -> Float:
    """(q,) of rows that count so much, more than 0.

    Where counts are whole, between the two values that are nearest, as of rows that are repeated;
    else the value at which the sum of the counts reaches the share (or the mean of it and the next
    one, where it is met exactly), as scikit-learn has it of weighted rows.
    """
    order = np.argsort(values, kind="stable")
    values, sums = values[order], np.cumsum(counts[order])
    last = len(values) - 1
    if (counts == np.rint(counts)).all():
        places = shares * (sums[-1] - 1.0)
        low, high = np.floor(places), np.ceil(places)
        below, above = (
            values[np.minimum(np.searchsorted(sums, place, side="right"), last)]
            for place in (low, high)
        )
        return np.asarray(below + (above - below) * (places - low))
    wanted = shares * sums[-1]
    slack = 1e-12 * sums[-1]
    at = np.minimum(np.searchsorted(sums, wanted - slack, side="left"), last)
    met = np.abs(sums[at] - wanted) <= slack
    after = np.where(met & (shares > 0), np.minimum(at + 1, last), at)
    return np.asarray((values[at] + values[after]) / 2.0)


def own_range(
    feature: FeatureSpecification,
    values: Values,
    counts: Float,
    limits: curves.CellLimits | None = None,
) -> Float:
    """(3,): least and greatest value, or the mean twice, of rows that count; and Σ counts of those
    that have one. All 0 where there is none. Raises ModelError for infinite values."""
    step = _step(feature)
    if isinstance(values, Categories) or not step.needs_summaries:
        raise InternalError(f"{step.function} does not follow from what parts of the rows tell")
    _check_finite(feature, values)
    known = ~np.isnan(values) & (counts > 0)
    if not known.any():
        return np.zeros(3)
    present, weights = values[known], counts[known]
    if step.function == AUTO:
        return np.array([0.0, 0.0, weights.sum()])
    if step.value == "mean":
        _check_many(feature, known, limits)
        mean = _stand_in(step, present, weights)
        return np.array([mean, mean, weights.sum()])
    present = curves.pooled(present, (limits or curves.CellLimits()).at(known))
    return np.array([present.min(), present.max(), weights.sum()])


def own_points(
    feature: FeatureSpecification,
    values: Values,
    counts: Float,
    joined: int,
    limits: curves.CellLimits,
) -> tuple[Float, Float]:
    """Return points of the distribution of a column of `auto`, and what they count: for a curve,
    means of groups of rows; for values of their own, those that may hold enough of all rows. None
    for other functions, and in small joins."""
    if _step(feature).function != AUTO or isinstance(values, Categories) or joined < CURVE_ROWS:
        return np.zeros(0), np.zeros(0)
    known = ~np.isnan(values) & (counts > 0)
    values, counts, limits = values[known], counts[known], limits.at(known)
    if _step(feature).value == CURVE:
        return curves.points_of(values, counts, limits)
    often = curves.frequent(values, counts, limits, VALUE_SHARE / 2)
    at = np.searchsorted(often, values).clip(max=max(len(often) - 1, 0))
    if not len(often):
        return often, np.zeros(0)
    rows = np.bincount(at, counts * (often[at] == values), len(often))
    return often, rows.astype(np.float64)


def of_range(feature: FeatureSpecification, ends: Float, points: Float, counts: Float) -> Fitted:
    """Return the result of `fit` for all rows, whose values lie between these ends, or have this
    mean, or are distributed as these points, which count so much.

    Raises ModelError where a spline has one value.
    """
    step = _step(feature)
    if step.function == AUTO:
        if step.value != CURVE:
            return Fitted(points)
        return Fitted(*_curve(points, counts, enough=True))
    if step.value == "mean":
        return Fitted(np.array([ends[0]]))
    return Fitted(_fit_numbers(feature, step, np.array(ends), np.ones(2)))


# -- columns --------------------------------------------------------------------------------------


def apply(feature: FeatureSpecification, fitted: Fitted, values: Values) -> pa.Array:
    """The feature of such a column: doubles, lists of them, or canonical texts.

    Raises ModelError for infinite numbers.
    """
    step = _step(feature)
    if isinstance(values, Categories):
        return _apply_categories(step, fitted, values)
    _check_finite(feature, values)
    missing = np.isnan(values)
    match step.function:
        case "minmax" | "robust_scale":
            return _doubles((values - fitted.numbers[0]) / fitted.numbers[1])
        case "impute":
            return _doubles(np.where(missing, fitted.numbers[0], values))
        case "quantile_bucketize":
            return _buckets(fitted.numbers, values, missing)
        case "spline":
            basis = _basis(step, fitted.numbers, np.where(missing, fitted.numbers[0], values))
            flat = pa.array(basis.reshape(-1))
            return pa.FixedSizeListArray.from_arrays(flat, basis.shape[1], mask=pa.array(missing))
        case "auto" if fitted.table is not None:
            columns = curves.evaluate(fitted.numbers, fitted.table, values)
            return pa.FixedSizeListArray.from_arrays(
                pa.array(columns.reshape(-1)), columns.shape[1]
            )
        case "auto":
            return _frequent(fitted.numbers, values)
    raise InternalError(f"no numbers are made by {step.function!r:.40}")


def _apply_categories(step: FittedStep, fitted: Fitted, values: Categories) -> pa.Array:
    entries = values.entries
    if step.function == "impute":
        entries = tuple(fitted.texts[0].encode() if e == NULL else e for e in entries)
    elif fitted.texts:
        kept = {text.encode() for text in fitted.texts}
        entries = tuple(entry if entry in kept else OTHER for entry in entries)
    return pa.array(entries, pa.binary()).take(pa.array(values.codes))


def _doubles(values: Float) -> pa.Array:
    return pa.array(values, pa.float64(), from_pandas=True)


def _buckets(bounds: Float, values: Float, missing: Array) -> pa.Array:
    names = bucket_names(bounds)
    entries = pa.array([*(f"v{name}".encode() for name in names), NULL], pa.binary())
    codes = np.searchsorted(bounds, values, side="right")
    return entries.take(pa.array(np.where(missing, len(names), codes)))


def _frequent(kept: Float, values: Float) -> pa.Array:
    """Categories of numbers that have a weight of their own; all others are one."""
    entries = pa.array([*(f"v{number(float(value))}".encode() for value in kept), OTHER])
    codes = np.full(len(values), len(kept))
    if len(kept):
        places = np.minimum(np.searchsorted(kept, values), len(kept) - 1)
        codes = np.where(kept[places] == values, places, len(kept))
    return entries.cast(pa.binary()).take(pa.array(codes))


def bucket_names(bounds: Float) -> list[str]:
    """Return the names of the buckets between the bounds, as `bucketize` calls them."""
    written = [number(float(bound)) for bound in bounds]
    inner = [f"[{low}, {high})" for low, high in pairwise(written)]
    return [f"< {written[0]}", *inner, f">= {written[-1]}"] if written else ["all"]


def _basis(step: FittedStep, ends: Float, values: Float) -> Float:
    """(a, w): B-splines over knots at equal distances; beyond the ends as at the ends."""
    spline = spline_of(step, ends)
    within = np.clip(values, ends[0], ends[1])
    basis: Float = np.asarray(spline(within), np.float64)
    return np.nan_to_num(basis, copy=False, nan=0.0)


def spline_of(step: FittedStep, ends: Float) -> BSpline:
    """Knots at equal distances between the ends; of each number its (w,) features."""
    from scipy.interpolate import BSpline  # half a second, which most processes can do without

    knots = np.linspace(ends[0], ends[1], step.count)
    first, last = knots[1] - knots[0], knots[-1] - knots[-2]
    before = np.linspace(knots[0] - step.degree * first, knots[0] - first, step.degree)
    after = np.linspace(knots[-1] + last, knots[-1] + step.degree * last, step.degree)
    every = np.concatenate([before, knots, after])
    width = step.count + step.degree - 1
    return BSpline(every, np.eye(width), step.degree, extrapolate=False)


def _check_finite(feature: FeatureSpecification, values: Float) -> None:
    if np.isinf(values).any():
        name = feature.name
        if feature.made is not None and feature.step is not None and feature.step.function == AUTO:
            name = feature.made.inputs[0][0]
        raise ModelError(
            f"column {name} has infinite values",
            hint="filter them out in WHERE, or turn them into NULL",
        )


def _step(feature: FeatureSpecification) -> FittedStep:
    if feature.step is None:
        raise InternalError(f"feature {feature.name} is not fitted")
    return feature.step


def fault_of(
    features: Sequence[FeatureSpecification], fitted: Sequence[Fitted | None]
) -> str | None:
    """Return the error in fits to these features; None if `apply` can use them."""
    if len(features) != len(fitted):
        return f"what TRANSFORM has fitted is of {len(fitted)} features, of {len(features)}"
    for feature, fit in zip(features, fitted, strict=True):
        if (feature.step is None) != (fit is None) or not _fits(feature.step, fit):
            return f"what TRANSFORM has fitted is not of feature {feature.name}"
    return None


def _fits(step: FittedStep | None, fit: Fitted | None) -> bool:
    if step is None or fit is None:
        return True
    if fit.numbers.ndim != 1 or not np.isfinite(fit.numbers).all():
        return False
    if step.of == "category":
        return len(fit.texts) == 1 if step.function == "impute" else True
    if step.function == AUTO:
        curved = step.value == CURVE
        if curved and curves.fault_of(fit.numbers, fit.table):
            return False
        return bool((np.diff(fit.numbers) > 0).all()) and curved == (fit.table is not None)
    if step.function == "quantile_bucketize":
        return bool((np.diff(fit.numbers) > 0).all())
    return len(fit.numbers) == (1 if step.function == "impute" else 2)
