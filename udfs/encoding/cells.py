"""Cells: rows of a table that are alike in a feature, and whether they are too few."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sqlfl.base.arrays import Array, Float
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.udfs import sql
from sqlfl.udfs.encoding.fitting import Categories
from sqlfl.udfs.encoding.leaning import Part, TooManyColumns, leaning
from sqlfl.udfs.encoding.transforming import absent, column_of
from sqlfl.udfs.numbering.rows import Snapshot

VALUE = "too few have one of its values, or NULL"
UNMATCHED = "too few find no partner in the join"
LEANING = "it is computed, and by itself or with other features tells of too few"
TOO_MANY = "it is computed, and has too many values for their rows to be compared"
OTHERWISE = {
    VALUE: "join rare values, by CASE, coalesce(x, 0), least(x, 9), or by one_hot(x, max => 10) "
    "in TRANSFORM; or leave the feature out",
    UNMATCHED: "JOIN in place of LEFT JOIN leaves out rows without a partner; or leave the feature "
    "out",
    LEANING: "bound what few rows have, as least(x, 100), greatest(x, 5) and ln(x + 1) do, before "
    "auto and spline too; take bounds and classes with more rows between them; or leave the "
    "feature out",
    TOO_MANY: "join values into fewer, or leave the feature out",
}
"""Advice to whoever wrote the query, by the reason."""
MANY_VALUES = 40
"""Distinct numbers of a computed feature beyond which rare ones are no cell: single amounts and
ages are rare where there are many, and a little noise makes as many of any few.
"""


@dataclass(frozen=True, eq=False)
class RowCounts:
    """Rows that each active row of a snapshot stands for.

    own : (a,) rows of a table: 1, 0 for the row that a LEFT JOIN takes where it finds no partner,
        and more for equal rows that were merged.
    unmatched : (a,) joined rows that found no partner.
    """

    own: Array
    unmatched: Array

    @classmethod
    def of(cls, somebodys: Array, counts: Array) -> RowCounts:
        """somebodys: (a,) whether it is a row of a table; counts: (a,) how often it is joined."""
        return cls(somebodys.astype(np.int64), np.where(somebodys, 0, counts).astype(np.int64))

    def merged(self, classes: Array) -> RowCounts:
        """Of equal rows that became one; classes: (a,), the number of the row that each became."""
        totals = (np.bincount(classes, of).astype(np.int64) for of in (self.own, self.unmatched))
        return RowCounts(*totals)

    def rare(self, codes: Array, least: int) -> str | None:
        """Why a cell is too small; None where none is. codes: (a,), the cell of each active row;
        rows with a negative one are in none.

        Rows of a table must be as many by themselves: the coordinator knows which joined rows
        found no partner, and can tell them apart from the others of the cell.
        """
        within = codes >= 0
        rows, unmatched = (
            np.bincount(codes[within], of[within]) for of in (self.own, self.unmatched)
        )
        if ((rows > 0) & (rows < least)).any():
            return VALUE
        alone = unmatched[rows == 0]
        return UNMATCHED if ((alone > 0) & (alone < least)).any() else None


def rare_feature(
    snapshot: Snapshot, counted: RowCounts, computed: Collection[int], least: int
) -> tuple[str, str] | None:
    """The name of the first feature with a cell of fewer than `least` rows, and the reason.

    Cells are the rows of a category, of either of two values, and those where a feature is NULL.
    `computed`: the places of features that are made of columns. If they have few numbers, none of
    these may be rare, or at least `least` rows have rare ones; and together with the other
    features they tell of no fewer rows (`leaning`).
    """
    parts: list[Part] = []
    features = snapshot.specification.features
    for place, feature in enumerate(features):
        own, cells = _read(snapshot, feature, place, counted)
        for codes in cells:
            why = counted.rare(codes, least)
            if why is not None:
                return feature.name, why
        parts += [Part(place, place in computed, values) for values in own]
    if not any(part.computed for part in parts):
        return None
    copies = [counted.own]
    if counted.unmatched.any():
        # more copies would only hide more of the others
        most = max(int(counted.own.sum()), least)
        copies.append(counted.own + np.minimum(counted.unmatched, most))
    for times in copies:
        try:
            place_of_rare = _of_few(parts, times, least)
            if place_of_rare is None:
                place_of_rare = leaning(parts, times, least)
        except TooManyColumns as error:
            return features[error.place].name, TOO_MANY
        if place_of_rare is not None:
            return features[place_of_rare].name, LEANING
    return None


def _read(
    snapshot: Snapshot, feature: FeatureSpecification, place: int, counted: RowCounts
) -> tuple[list[Float | Categories], Iterator[Array]]:
    """The columns of a feature with the indicator of its gaps, and the cells of rows, several
    divisions of them."""
    if feature.kind == "array":
        gone = absent(snapshot, place) > 0
        return [*_parts(snapshot, feature, place), *_indicator(gone)], _gaps(gone)
    values = column_of(snapshot, replace(feature, made=None), place)
    if isinstance(values, Categories):
        return [values], iter([values.codes])
    return [values, *_indicator(np.isnan(values))], _cells(values, counted)


def _indicator(gone: Array) -> list[Float | Categories]:
    """The column by which a model tells rows without a value apart."""
    return [gone.astype(np.float64)] if gone.any() else []


def _of_few(parts: Sequence[Part], copies: Array, least: int) -> int | None:
    """The place of a computed feature with rare numbers, which fewer than `least` rows have, where
    the rows with any of these are fewer, too."""
    for part in parts:
        if not part.computed or isinstance(part.values, Categories):
            continue
        known = np.isfinite(part.values) & (copies > 0)
        rows = _rows_of_values(part.values[known], copies[known])
        if len(rows) <= MANY_VALUES and 0 < rows[rows < least].sum() < least:
            return part.place
    return None


def _rows_of_values(values: Float, copies: Array) -> Array:
    """Return how many rows have each of the values."""
    order = None if (copies == 1).all() else np.argsort(values, kind="stable")
    ordered = np.sort(values) if order is None else values[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]][: len(ordered)])
    if order is None:
        return np.diff(starts, append=len(ordered))
    return np.add.reduceat(copies[order], starts) if len(starts) else copies[:0]


def _cells(values: Float, counted: RowCounts) -> Iterator[Array]:
    gone = np.isnan(values)
    yield from _gaps(gone)
    for known in (~gone, ~gone & (counted.own > 0)):
        larger = _larger_of_two(values[known])
        if larger is not None:
            yield np.where(known, values == larger, -1)


def _larger_of_two(values: Float) -> float | None:
    """Return the larger one of the two values that there are; None where there are not two."""
    if not len(values):
        return None
    least, most = values.min(), values.max()
    two = least < most and ((values == least) | (values == most)).all()
    return float(most) if two else None


def _gaps(gone: Array) -> Iterator[Array]:
    """Rows without a value, and those with one: an indicator of missing values tells them apart."""
    yield _where(gone)
    if gone.any():
        yield _where(~gone)


def _where(chosen: Array) -> Array:
    """One cell, of these rows."""
    return np.where(chosen, 0, -1)


def _parts(
    snapshot: Snapshot, feature: FeatureSpecification, place: int
) -> list[Float | Categories]:
    """The columns of an array."""
    if snapshot.held is not None:
        held = snapshot.held.columns[f"f{place}"]
        parts = np.full((len(held), feature.width), np.nan)
        known = held.is_valid().to_numpy(zero_copy_only=False)
        flat = held.drop_null().flatten().to_numpy(zero_copy_only=False)
        parts[known] = np.asarray(flat, np.float64).reshape(-1, feature.width)
        return list(parts.T)
    before = snapshot.specification.features[:place]
    first = sum(f.width for f in before if f.kind != "category")
    values = (
        sql.expression(
            "coalesce(CAST($value AS DOUBLE), CAST('nan' AS DOUBLE))",
            value=sql.column(f"x{first + part}"),
        )
        for part in range(feature.width)
    )
    return [snapshot.of_active_rows(value, None, np.float64) for value in values]
