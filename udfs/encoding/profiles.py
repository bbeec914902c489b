"""Profiles of the features of active rows, and how well each alone predicts the target."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array, Float
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.messages import Profile, SendExplained, SendProfile
from sqlfl.udfs.encoding.fitting import NULL, Categories, Values
from sqlfl.udfs.encoding.transforming import absent, column_of, counts_of
from sqlfl.udfs.numbering.rows import Snapshot

GROUPS = 20
"""Maximum groups of a number's values."""
FEWEST = 10
"""Minimum joined rows of a category with a group of its own."""


@dataclass(frozen=True, eq=False)
class _Targets:
    """Targets of active rows with counts (a,): the amount by which their joined rows' targets
    exceed the client's mean.
    """

    counts: Float
    above: Float
    """(a, K)"""

    def explained(self, groups: Array) -> float:
        """Σ over groups of n · |mean|²; groups: int (a,)."""
        rows = np.bincount(groups, self.counts)
        sums = np.stack([np.bincount(groups, column) for column in self.above.T], axis=1)
        kept = rows > 0
        return float((sums[kept] ** 2 / rows[kept, None]).sum())


def profile(snapshot: Snapshot, request: SendProfile) -> Profile:
    """Return the profile of the snapshot's features, over its active rows.

    Each mean, and each end of a range, is based on at least `request.least` rows: that many rows
    lie at or beyond the end.
    """
    counts = counts_of(snapshot)
    total = float(counts.sum())
    targets, apart = None, 0.0
    if isinstance(request, SendExplained):
        given = request.targets.astype(np.float64)
        mean = given.sum(axis=0) / max(total, 1.0)
        targets = _Targets(counts, given - counts[:, None] * mean)
        apart = total * float(mean @ mean)
    features = snapshot.specification.features
    rows = [
        _of_feature(snapshot, feature, place, counts, request.least, targets)
        for place, feature in enumerate(features)
    ]
    missing, distinct, low, high, mean_, explained, groups = np.array(rows).reshape(-1, 7).T
    return Profile(
        request.run,
        request.slot,
        total,
        missing,
        distinct.astype(np.int64),
        low,
        high,
        mean_,
        explained,
        groups.astype(np.int64),
        apart,
    )


def _of_feature(
    snapshot: Snapshot,
    feature: FeatureSpecification,
    place: int,
    counts: Float,
    least: int,
    targets: _Targets | None,
) -> list[float]:
    """missing, distinct, low, high, mean, explained, groups"""
    if feature.kind == "array":
        return [float(counts @ absent(snapshot, place)), 0, np.nan, np.nan, np.nan, np.nan, 0]
    values = column_of(snapshot, feature, place)
    if isinstance(values, Categories):
        figures = [*_categories(values, counts), np.nan, np.nan, np.nan]
    else:
        figures = _numbers(values, counts, least)
    if targets is None:
        return [*figures, np.nan, 0]
    groups = groups_of(values, counts)
    return [*figures, targets.explained(groups), float(len(np.unique(groups)))]


def _categories(values: Categories, counts: Float) -> list[float]:
    """missing, distinct"""
    rows = np.bincount(values.codes, counts, len(values.entries))
    null = np.array([entry == NULL for entry in values.entries], bool)
    return [float(rows[null].sum()), float(((rows > 0) & ~null).sum())]


def _numbers(values: Float, counts: Float, least: int) -> list[float]:
    """missing, distinct, low, high, mean"""
    gone = np.isnan(values)
    present = values[~gone]
    figures = [float(counts @ gone), float(len(np.unique(present)))]
    if len(present) < least:
        return [*figures, np.nan, np.nan, np.nan]
    ends = np.partition(present, (least - 1, len(present) - least))
    low, high = ends[least - 1], ends[len(present) - least]
    if low > high:  # fewer than twice that many rows
        low = high = np.nan
    mean = np.inf
    if np.isfinite(present).all():
        with np.errstate(over="ignore", invalid="ignore"):
            mean = counts[~gone] @ present / counts[~gone].sum()
        mean = mean if np.isfinite(mean) else np.inf  # sums beyond both ends are NaN
    return [*figures, float(low), float(high), float(mean)]


def groups_of(values: Values, counts: Float) -> Array:
    """Return int (a,): each row's group; rows of a group are alike in the feature.

    For numbers: each value, or GROUPS quantiles if there are more; NULL is a group. For categories:
    those with at least FEWEST joined rows, and one group of all others.
    """
    if isinstance(values, Categories):
        often = np.bincount(values.codes, counts, len(values.entries)) >= FEWEST
        kept = np.where(often, np.arange(len(often)), len(often))
        groups: Array = kept[values.codes]
        return groups
    gone = np.isnan(values)
    distinct, codes = np.unique(values[~gone], return_inverse=True)
    if len(distinct) > GROUPS:
        ends = np.sort(values[~gone])[np.arange(1, GROUPS) * int((~gone).sum()) // GROUPS]
        codes = np.searchsorted(np.unique(ends), values[~gone], side="right")
    groups = np.full(len(values), codes.max(initial=-1) + 1)
    groups[~gone] = codes
    return groups
