"""Basis of a penalised curve: columns on which a plain ridge is the penalty on wiggles.

A curve is a cubic B-spline over quantiles of the values, or a number for each of few values. Its
penalty is the squared second differences of the coefficients, at the ranks of their places.
Beside the constant and the straight line, which are columns of their own, the Demmler-Reinsch
basis (Demmler and Reinsch 1975; Wood 2017, section 5.4.2) makes of it Σ s_j β_j² over orthogonal
columns; these times √(s_1 / s_j) have the penalty s_1 |β|².
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg

from sqlfl.base.arrays import Array, Float
from sqlfl.contract.transforms import CURVE_COLUMNS, MAX_VALUES, VALUE_SHARE
from sqlfl.models.thresholds import joined_bins

if TYPE_CHECKING:
    from scipy.interpolate import BSpline

KNOTS = 20
DEGREE = 3
FEW = 32
"""Distinct values, up to which a curve has a number for each."""
ROUNDING = 1e-9
"""Share of a number's range by which two values differ that have a bound between them."""
POINTS = 200
"""Groups of rows by which a client tells how a column's values are distributed."""
MIN_COUNT = 5
NEAR = 0.1
"""Ranks that are not further apart count as so far: one is what a place has on average."""
SINGULAR = 1e-10
"""Relative mean square below which a combination of B-splines is 0 in all rows."""


@dataclass(frozen=True, eq=False)
class CellLimits:
    """Limits of an owner's policies for cells made of values."""

    least: int = 1
    """Rows that a cell must have."""
    most: int = 1024
    """Cells of one feature, or of one pair of features."""
    columns: int | None = None
    """Cells of all pairs; None for any number."""
    rows: Array | None = None
    """(a,): rows of a table that each active row stands for: 0 of the row that a LEFT JOIN takes
    where it finds no partner, more of equal rows that were merged. None for one each."""

    @property
    def bound(self) -> bool:
        """Return whether a policy says something of rows in a cell, or of columns."""
        return self.least > 1 or self.columns is not None

    def at(self, chosen: Array) -> CellLimits:
        """Return the limits of these active rows alone."""
        return self if self.rows is None else replace(self, rows=self.rows[chosen])

    def rows_of(self, size: int) -> Array:
        """Return rows of a table (size,) that the active rows stand for."""
        return np.ones(size) if self.rows is None else self.rows


def pooled(values: Float, limits: CellLimits) -> Float:
    """Return the values with means of neighbours in place of those that fewer rows have than a cell
    must: a bound or a knot is then no single row's value.

    values : (n,), without NaN.
    """
    if limits.least <= 1 or not len(values):
        return values
    distinct, places = np.unique(values, return_inverse=True)
    rows = np.bincount(places, limits.rows_of(len(values)))
    enough = rows >= limits.least
    # groups of twice the rows, so that one whose first value goes to the group before has enough
    starts = np.flatnonzero(np.diff(enough, prepend=~enough[:1]))
    runs = np.cumsum(np.isin(np.arange(len(rows)), starts)) - 1
    before = np.cumsum(rows) - rows
    within = (before - before[starts][runs]) // (2 * limits.least)
    single = np.where(enough, np.arange(len(rows)), within)
    changes = (np.diff(runs, prepend=-1) > 0) | (np.diff(single, prepend=-1.0) != 0)
    groups = np.cumsum(changes) - 1
    sums = np.bincount(groups, rows)
    few = sums < limits.least
    if few.all():
        return np.full(len(values), values.mean())
    means = np.bincount(groups, distinct * rows) / np.where(few, 1.0, sums)
    # a group of too few takes the mean of the one before, and the first of all of the one behind
    taken = np.flatnonzero(~few)[np.maximum(np.cumsum(~few) - 1, 0)]
    return np.asarray(means[taken][groups][places])


@dataclass(frozen=True, eq=False)
class Smooth:
    """Functions of one number before they are combined into columns."""

    places: Float
    """Of B-splines the knots, ascending, the ends among them; of few values the bounds between
    them."""
    basis: Float
    """(n, K): the functions at distinct values."""
    line: Float
    """(K,): coefficients of the number itself."""
    ranks: Float
    """(K,), ascending: where second differences are taken."""


def smooth_of(values: Float, counts: Float) -> Smooth:
    """Functions for these distinct values (n,), ascending, that count so much."""
    if len(values) <= FEW:
        middles = (values[1:] + values[:-1]) / 2
        ranks = np.arange(len(values), dtype=np.float64)
        return Smooth(middles, np.eye(len(values)), values, ranks)
    knots = _knots(values, counts)
    basis = _design(knots, values)
    every = every_knot(knots)
    size = basis.shape[1]
    centres = np.array([every[k + 1 : k + 1 + DEGREE].mean() for k in range(size)])
    reached = (np.cumsum(counts) - counts / 2) / counts.sum() * (size - 1)
    return Smooth(knots, basis, centres, np.interp(centres, values, reached))


def _knots(values: Float, counts: Float) -> Float:
    """Quantiles of the values, each once, from the least to the greatest."""
    sums = np.cumsum(counts)
    at = np.searchsorted(sums, np.linspace(0.0, 1.0, KNOTS)[1:-1] * sums[-1])
    inner = values[np.minimum(at, len(values) - 1)]
    return np.unique(np.concatenate([values[:1], inner, values[-1:]]))


def every_knot(knots: Float) -> Float:
    """Knots of the B-splines: the ends count several times."""
    first, last = np.repeat(knots[:1], DEGREE), np.repeat(knots[-1:], DEGREE)
    return np.concatenate([first, knots, last])


def _design(knots: Float, values: Float) -> Float:
    from scipy.interpolate import BSpline  # half a second, which most processes can do without

    design: Float = BSpline.design_matrix(values, every_knot(knots), DEGREE).toarray()
    return design


def second_differences(at: Float) -> Float:
    """(K - 2, K): second divided differences of coefficients at places (K,), ascending."""
    size = len(at)
    differences = np.zeros((max(size - 2, 0), size))
    gaps = np.maximum(np.diff(at), NEAR)
    before, after = gaps[:-1], gaps[1:]
    rows = np.arange(size - 2)
    differences[rows, rows] = 2.0 / (before * (before + after))
    differences[rows, rows + 1] = -2.0 / (before * after)
    differences[rows, rows + 2] = 2.0 / (after * (before + after))
    return differences


def columns_of(smooth: Smooth, counts: Float, most: int | None = CURVE_COLUMNS) -> Float:
    """(K, w): coefficients of the columns, of which there are `most` at most; those that vary
    least come first.

    Over rows that count so much each has the mean 0, no part of the straight line and no part of
    the others; the first has the mean square 1.
    """
    share = counts / counts.sum()
    weights = smooth.basis.T @ (smooth.basis * share[:, None])
    squares, vectors = linalg.eigh(weights)
    known = squares > SINGULAR * squares[-1]
    white = vectors[:, known] / np.sqrt(squares[known])
    # in the coordinates of `white` the mean square is the square of the length
    straight_lines = np.column_stack([np.ones(len(weights)), smooth.line])
    rest = linalg.null_space(straight_lines.T @ weights @ white, rcond=SINGULAR)
    if not rest.size:
        return np.zeros((len(weights), 0))
    turned = second_differences(smooth.ranks) @ white @ rest
    # roots of the penalties, the largest first
    roots, directions = linalg.svd(turned, full_matrices=False)[1:]
    roots, directions = roots[::-1], directions[::-1].T
    roots = np.maximum(roots, SINGULAR * roots[-1])
    columns = white @ rest @ (directions * (roots[0] / roots))
    columns = columns[:, :most]
    signs = np.sign(columns[np.argmax(np.abs(columns), axis=0), np.arange(columns.shape[1])])
    return np.asarray(columns * signs)


def curve(values: Float, counts: Float) -> tuple[Float, Float]:
    """Places and coefficients (K, CURVE_COLUMNS) of a curve of these numbers, columns of 0 where
    there are too few values for more.

    values : (n,), without NaN. counts : (n,), above 0.
    """
    distinct, sums = _counted(values, counts)
    if len(distinct):
        # numbers that rounding alone makes differ are one, so that bounds lie between them
        begins = np.diff(distinct, prepend=-np.inf) > ROUNDING * (distinct[-1] - distinct[0])
        sums = np.bincount(np.cumsum(begins) - 1, sums).astype(np.float64)
        distinct = distinct[begins]
    if len(distinct) < 3:
        return straight()
    smooth = smooth_of(distinct, sums)
    columns = columns_of(smooth, sums)
    spare = CURVE_COLUMNS - columns.shape[1]
    return smooth.places, np.pad(columns, ((0, 0), (0, spare)))


def straight() -> tuple[Float, Float]:
    """A curve that is 0."""
    return np.zeros(0), np.zeros((1, CURVE_COLUMNS))


def frequent(values: Float, counts: Float, limits: CellLimits, share: float = VALUE_SHARE) -> Float:
    """The numbers that hold this share of the rows or more, ascending, by their counts and by the
    rows themselves: one row that counts much tells nothing of others. None where there are fewer
    than three distinct ones.

    Each is within the limits, and so are the others together, if there are some.
    """
    distinct, sums = _counted(values, counts)
    if len(distinct) < 3:
        return np.zeros(0)
    rows = _counted(values, limits.rows_of(len(values)))[1]
    fewest = max(share * rows.sum(), MIN_COUNT, limits.least)
    often = np.flatnonzero((sums >= share * sums.sum()) & (rows >= fewest))
    most = often[np.argsort(-sums[often], kind="stable")]
    most = most[: min(MAX_VALUES, limits.most - 1)]
    if 0 < rows.sum() - rows[most].sum() < limits.least:
        most = most[:-1]
    return np.sort(distinct[most])


def points_of(values: Float, counts: Float, limits: CellLimits) -> tuple[Float, Float]:
    """Return means of groups of rows with neighbouring values, ascending, and what the groups
    count: POINTS groups of about as many rows, or one for each of FEW values. A group has
    MIN_COUNT rows or more, and no fewer than the limits say; none of fewer rows than that.

    values : (n,), without NaN. counts : (n,), above 0.
    """
    rows = limits.rows_of(len(values)).astype(np.float64)
    least = float(max(MIN_COUNT, limits.least))
    if rows.sum() < least:
        return np.zeros(0), np.zeros(0)
    distinct, places = np.unique(values, return_inverse=True)
    rows_at = np.bincount(places, rows)
    groups = np.arange(len(distinct))
    if len(distinct) > FEW:
        size = max(rows_at.sum() / POINTS, least)
        alone = rows_at >= size
        begins = np.diff(np.floor((np.cumsum(rows_at) - rows_at) / size), prepend=-1.0) > 0
        begins |= alone | np.append(False, alone[:-1])
        groups = np.cumsum(begins) - 1
    sizes = np.bincount(groups, rows_at)
    groups = joined_bins(groups, sizes, least)[places]
    sums = np.bincount(groups, counts).astype(np.float64)
    means = np.bincount(groups, values * counts) / sums
    # the mean of equal values is that value, without rounding
    return np.clip(means, *_ends(values, groups)), sums


def _ends(values: Float, groups: Array) -> tuple[Float, Float]:
    """Return the least and the greatest value of each group."""
    order = np.lexsort((values, groups))
    first = np.flatnonzero(np.diff(groups[order], prepend=-1))
    last = np.append(first[1:], len(values)) - 1
    return values[order][first], values[order][last]


def _counted(values: Float, counts: Float) -> tuple[Float, Float]:
    distinct, places = np.unique(values, return_inverse=True)
    return distinct, np.bincount(places, counts).astype(np.float64)


def is_smooth(places: Float, coefficients: Float) -> bool:
    """They are of B-splines, and not of few values."""
    return len(coefficients) == len(places) + DEGREE - 1


def fault_of(places: Float, coefficients: Float | None) -> bool:
    """They are none of a curve."""
    if coefficients is None or coefficients.ndim != 2 or coefficients.shape[1] != CURVE_COLUMNS:
        return True
    sizes = (len(places) + 1, len(places) + DEGREE - 1)
    return len(coefficients) not in sizes or not np.isfinite(coefficients).all()


def spline_of(places: Float, coefficients: Float) -> BSpline:
    """The columns of a smooth curve as functions of a number between the first and last knot."""
    from scipy.interpolate import BSpline

    return BSpline(every_knot(places), coefficients, DEGREE, extrapolate=False)


def evaluate(places: Float, coefficients: Float, values: Float) -> Float:
    """(n, w) columns of numbers (n,), beyond the ends as at the ends; 0 of NaN."""
    missing = np.isnan(values)
    columns = np.zeros((len(values), coefficients.shape[1]))
    present = values[~missing]
    if is_smooth(places, coefficients):
        columns[~missing] = spline_of(places, coefficients)(np.clip(present, places[0], places[-1]))
    else:
        columns[~missing] = coefficients[np.searchsorted(places, present, side="right")]
    return columns
