"""How few of the active rows are alike in a feature."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from sqlfl.arrays import Array, Float
from sqlfl.schema import FeatureSpecification
from sqlfl.udfs import sql
from sqlfl.udfs.fitting import Categories
from sqlfl.udfs.rows import Snapshot
from sqlfl.udfs.transforming import absent, column_of

ROUNDING = 1e-24
"""Relative: what is left of the squares of a column that others make."""


def smallest(snapshot: Snapshot) -> int | None:
    """Active rows of the rarest category, of the rarer of two values, or that are NULL, over all
    features; None where there is nothing of the kind. Each row counts once."""
    found: list[int] = []
    for place, feature in enumerate(snapshot.specification.features):
        if feature.kind == "array":
            found += _of(absent(snapshot, place) > 0)
            continue
        values = column_of(snapshot, replace(feature, made=None), place)
        if isinstance(values, Categories):
            counts = np.bincount(values.codes, minlength=len(values.entries))
            found += counts[counts > 0].tolist()
            continue
        gone = np.isnan(values)
        found += _of(gone)
        distinct, counts = np.unique(values[~gone], return_counts=True)
        if len(distinct) == 2:
            found += counts.tolist()
    return min(found, default=None)


def leans(snapshot: Snapshot, computed: Collection[int], least: int) -> bool:
    """Whether a number of a computed feature stands for fewer than `least` active rows.

    A number is rare where fewer than `least` rows have it. No row may have a rare number, or at
    least `least` rows must. Then what the feature adds to all others must not lie on fewer rows:
    the squares of what is left of it by a regression on them, added up over the `least` - 1
    largest, are at most the share that a sum of `least` equal rows has.
    """
    columns: list[tuple[bool, Float]] = []
    for place, feature in enumerate(snapshot.specification.features):
        if feature.kind == "array":
            own = _parts(snapshot, feature, place)
        else:
            found = column_of(snapshot, replace(feature, made=None), place)
            own = [] if isinstance(found, Categories) else [found]
        columns += [(place in computed, column) for column in own]
    made = [number for number, (by, _) in enumerate(columns) if by]
    continuous = []
    for number in made:
        values = columns[number][1]
        values = values[np.isfinite(values)]
        counts = np.unique(values, return_counts=True)[1]
        rare = int(counts[counts < least].sum())
        if 0 < rare < least:
            return True
        if rare:
            continuous.append(number)
    if not continuous or not snapshot.active:
        return False
    design = np.column_stack([_centred(column) for _, column in columns])
    return any(_leverage(design, number, least) > (least - 1) / least for number in continuous)


def _leverage(design: Float, number: int, least: int) -> float:
    """The share that the `least` - 1 rows with most of it have of what a column adds to others."""
    own = design[:, number]
    left = own
    others = np.delete(design, number, axis=1)
    if others.size:
        # of the triangle, which is as exact and small
        small = np.asarray(np.linalg.qr(np.column_stack((others, own)), mode="r"))
        left = own - others @ np.linalg.lstsq(small[:, :-1], small[:, -1], rcond=None)[0]
    squares = np.square(left)
    whole = float(squares.sum())
    if whole <= ROUNDING * float(np.square(own).sum()):
        return 0.0
    return float(np.sort(squares)[::-1][: least - 1].sum()) / whole


def _centred(values: Float) -> Float:
    """0 where there is none."""
    known = np.isfinite(values)
    found = np.where(known, values, 0.0)
    mean = found.sum() / max(int(known.sum()), 1)
    found = np.where(known, found - mean, 0.0)
    largest = float(np.abs(found).max(initial=0.0))
    return found / largest if largest else found


def _parts(snapshot: Snapshot, feature: FeatureSpecification, place: int) -> list[Float]:
    """The columns of an array."""
    if snapshot.held is not None:
        held = snapshot.held.columns[f"f{place}"]
        found = np.full((len(held), feature.width), np.nan)
        known = held.is_valid().to_numpy(zero_copy_only=False)
        flat = held.drop_null().flatten().to_numpy(zero_copy_only=False)
        found[known] = np.asarray(flat, np.float64).reshape(-1, feature.width)
        return list(found.T)
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


def _of(rows: Array) -> list[int]:
    """How many, where there are any."""
    number = int(np.count_nonzero(rows))
    return [number] if number else []
