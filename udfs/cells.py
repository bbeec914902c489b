"""How few of the active rows are alike in a feature."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sqlfl.arrays import Array
from sqlfl.udfs.fitting import Categories
from sqlfl.udfs.rows import Snapshot
from sqlfl.udfs.transforming import absent, column_of


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


def _of(rows: Array) -> list[int]:
    """How many, where there are any."""
    number = int(np.count_nonzero(rows))
    return [number] if number else []
