"""Cells: rows of a table that are alike in a feature, and whether they are too few."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np

from sqlfl.base.arrays import Array, Float
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.udfs import sql
from sqlfl.udfs.encoding.fitting import Categories
from sqlfl.udfs.encoding.transforming import absent, column_of
from sqlfl.udfs.numbering.rows import Snapshot

ROUNDING = 1e-24
"""Relative square of a column below which other columns explain it."""
VALUE = "too few have one of its values, or NULL"
UNMATCHED = "too few find no partner in the join"
LEANING = "it is computed, and tells of too few"


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
    `computed`: the places of features that are made of columns; see `_leans`.
    """
    columns: list[tuple[bool, Float]] = []
    names: list[str] = []
    for place, feature in enumerate(snapshot.specification.features):
        parts, cells = _read(snapshot, feature, place, counted)
        for codes in cells:
            why = counted.rare(codes, least)
            if why is not None:
                return feature.name, why
        columns += [(place in computed, column) for column in parts]
        names += [feature.name] * len(parts)
    leaning = _leans(columns, counted.own, least)
    if leaning is None and counted.unmatched.any():
        # more copies would only hide more of the others
        most = max(int(counted.own.sum()), least)
        leaning = _leans(columns, counted.own + np.minimum(counted.unmatched, most), least)
    return None if leaning is None else (names[leaning], LEANING)


def _read(
    snapshot: Snapshot, feature: FeatureSpecification, place: int, counted: RowCounts
) -> tuple[list[Float], Iterator[Array]]:
    """The columns of numbers of a feature, and the cells of rows, several divisions of them."""
    if feature.kind == "array":
        return _parts(snapshot, feature, place), _gaps(absent(snapshot, place) > 0)
    values = column_of(snapshot, replace(feature, made=None), place)
    if isinstance(values, Categories):
        return [], iter([values.codes])
    return [values], _cells(values, counted)


def _cells(values: Float, counted: RowCounts) -> Iterator[Array]:
    gone = np.isnan(values)
    yield from _gaps(gone)
    for known in (~gone, ~gone & (counted.own > 0)):
        distinct = np.unique(values[known])
        if len(distinct) == 2:
            yield np.where(known, values == distinct[1], -1)


def _gaps(gone: Array) -> Iterator[Array]:
    """Rows without a value, and those with one: an indicator of missing values tells them apart."""
    yield _where(gone)
    if gone.any():
        yield _where(~gone)


def _where(chosen: Array) -> Array:
    """One cell, of these rows."""
    return np.where(chosen, 0, -1)


def _leans(columns: list[tuple[bool, Float]], copies: Array, least: int) -> int | None:
    """The place of a computed column with a number that stands for fewer than `least` rows; each
    row is there `copies` times.

    A number is rare where fewer than `least` rows have it. No row may have a rare number, or at
    least `least` rows must. Then what the column adds to all others must not lie on fewer rows:
    the squares of what is left of it by a regression on them, added up over the `least` - 1
    largest, are at most the share that a sum of `least` equal rows has.
    """
    if not any(by for by, _ in columns):
        return None
    rows = np.repeat(np.arange(len(copies)), copies)
    whole = [column[rows] for _, column in columns]
    continuous = []
    for number, (by, _) in enumerate(columns):
        if not by:
            continue
        values = whole[number][np.isfinite(whole[number])]
        counts = np.unique(values, return_counts=True)[1]
        rare = int(counts[counts < least].sum())
        if 0 < rare < least:
            return number
        if rare:
            continuous.append(number)
    if not continuous or not len(rows):
        return None
    design = np.column_stack([_centred(column) for column in whole])
    share = (least - 1) / least
    return next((n for n in continuous if _leverage(design, n, least) > share), None)


def _leverage(design: Float, number: int, least: int) -> float:
    """Return the share that the `least` - 1 rows with the largest parts have of a column's addition
    to others.
    """
    column = design[:, number]
    left = column
    others = np.delete(design, number, axis=1)
    if others.size:
        # of the triangle, which is as exact and small
        small = np.asarray(np.linalg.qr(np.column_stack((others, column)), mode="r"))
        left = column - others @ np.linalg.lstsq(small[:, :-1], small[:, -1], rcond=None)[0]
    squares = np.square(left)
    whole = float(squares.sum())
    if whole <= ROUNDING * float(np.square(column).sum()):
        return 0.0
    return float(np.sort(squares)[::-1][: least - 1].sum()) / whole


def _centred(values: Float) -> Float:
    """0 where there is none."""
    known = np.isfinite(values)
    centred = np.where(known, values, 0.0)
    mean = centred.sum() / max(int(known.sum()), 1)
    centred = np.where(known, centred - mean, 0.0)
    largest = float(np.abs(centred).max(initial=0.0))
    return centred / largest if largest else centred


def _parts(snapshot: Snapshot, feature: FeatureSpecification, place: int) -> list[Float]:
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
