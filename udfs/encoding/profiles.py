"""Profiles of the features of active rows: how well each alone predicts the target, and how they
differ from the training rows of a saved block (SKEW).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array, Float
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.messages import Profile, SendExplained, SendProfile, SendSkew, Skew
from sqlfl.udfs.blocks.blocks import SavedBlock
from sqlfl.udfs.encoding.features import Encoding
from sqlfl.udfs.encoding.fitting import NULL, Categories, Values
from sqlfl.udfs.encoding.reference import (
    Entries,
    Reference,
    binned,
    column_sums,
    effective_rows,
    entries,
    missing,
    present,
)
from sqlfl.udfs.encoding.transforming import absent, column_of, counts_of
from sqlfl.udfs.numbering.rows import Snapshot
from sqlfl.udfs.updates.update import LinearEngine

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


NUMBERS = 8
"""Fields of each feature in the message."""
EMPTY = 1e-4
"""Share that a bin without rows has in the logarithm of a population stability index."""
_NAN = float("nan")


def skew(snapshot: Snapshot, block: SavedBlock, engine: LinearEngine, request: SendSkew) -> Skew:
    """Return the differences. `engine` has the active rows in the block's encoding."""
    encoding, reference, least = block.encoding, block.reference, request.least
    counts = counts_of(snapshot)
    if reference is not None and reference.effective < least:
        reference = None
    if not _many(counts, least):
        none = np.full((NUMBERS, len(encoding.named)), _NAN)
        return Skew(request.run, request.slot, *none)
    shifts = column_sums(engine, counts, len(encoding.mean))
    counted = None if reference is None else reference.counted
    total = encoding.total if counted is None else counted.total
    gone_before = encoding.missing if counted is None else counted.missing
    rows, number, category, start = [], 0, 0, 0
    for place, feature in enumerate(encoding.named):
        if feature.kind == "category":
            own_entries = entries(snapshot, encoding, place, category, counts)
            rows.append(_category(encoding, reference, category, own_entries, least))
            category += 1
            continue
        gone = missing(snapshot, encoding, place)
        columns = slice(start, start + feature.width)
        there = counts * (1.0 - gone)
        row = [_NAN] * NUMBERS
        row[2:4] = float(gone_before[number]) / total, float(counts @ gone / counts.sum())
        row[5] = 0.0
        if _many(there, least) and total - gone_before[number] >= least * (1.0 - 1e-9):
            before = np.zeros(feature.width) if counted is None else counted.shifts[columns]
            shift = shifts[columns] / there.sum()
            row[4] = float(np.abs(shift - before).max())
            if feature.kind != "array":
                centre, scale = float(encoding.mean[start]), float(encoding.scale[start])
                row[0], row[1] = centre + scale * float(before[0]), centre + scale * float(shift[0])
                if reference is not None:
                    values, weights = present(snapshot, feature, place, counts)
                    row[6:] = _binned(reference, number, values, weights, least)
        rows.append(row)
        number += 1
        start += feature.width
    return Skew(request.run, request.slot, *np.array(rows).reshape(-1, NUMBERS).T.copy())


def _many(counts: Float, least: int) -> bool:
    """Return whether at least `least` rows count, also by their effective number."""
    rows = int(np.count_nonzero(counts))
    return rows >= least and effective_rows(counts) >= least * (1.0 - 1e-9)


def _binned(
    reference: Reference, number: int, values: Float, weights: Float, least: int
) -> list[float]:
    ends, before = reference.ends[number], reference.shares[number]
    codes = binned(values, ends)
    now = np.bincount(codes, weights, len(before))
    rows = np.bincount(codes, minlength=len(before))
    groups = _groups(rows, least)
    return divergences(_added(before, groups), _added(now / now.sum(), groups))


def _groups(rows: Array, least: int) -> Array:
    """Return int (k,): the group of each bin, so that each group has enough rows or none. Bins with
    too few join the next that has any; the last of them join those before.
    """
    groups = np.zeros(len(rows), np.int64)
    group, held = 0, 0
    for place, count in enumerate(rows.tolist()):
        groups[place] = group
        held += count
        if held >= least or held == 0:
            group, held = group + 1, 0
    if held:
        some = np.flatnonzero(np.bincount(groups, rows) >= least)
        groups[groups == group] = some[-1] if len(some) else group
    return groups


def _added(values: Float, groups: Array) -> Float:
    sums: Float = np.bincount(groups, values).astype(np.float64)
    return sums


def divergences(before: Float, now: Float) -> list[float]:
    """The population stability index, and Jensen and Shannon's divergence in bits, of shares."""
    floored = np.maximum(before, EMPTY), np.maximum(now, EMPTY)
    index = float((now - before) @ np.log(floored[1] / floored[0]))
    middle = 0.5 * (before + now)
    bits = 0.0
    for shares in (before, now):
        some = shares > 0.0
        bits += 0.5 * float(shares[some] @ np.log2(shares[some] / middle[some]))
    return [max(index, 0.0), min(max(bits, 0.0), 1.0)]


def _category(
    encoding: Encoding, reference: Reference | None, number: int, entries: Entries, least: int
) -> list[float]:
    """The numbers of a feature, in the order of the message."""
    counted = None if reference is None else reference.counted
    total = encoding.total if counted is None else counted.total
    counts = encoding.counts[number] if counted is None else counted.counts[number]
    names = encoding.vocabularies[number]
    trained = dict(zip(names, (counts / total).tolist(), strict=True))
    places = {name: place for place, name in enumerate(names)}
    # behind the vocabulary's: all others, which training had only of rows that it did not count
    codes = np.array([places.get(name, len(names)) for name in entries.names], np.int64)
    shares: Float = entries.counts / entries.counts.sum()
    now: Float = np.bincount(codes, shares, len(names) + 1).astype(np.float64)
    rows = np.bincount(codes, entries.rows, len(names) + 1).astype(np.int64)
    before = np.append(counts / total, max(1.0 - float(counts.sum()) / total, 0.0))
    before[-1] = before[-1] if before[-1] > 1e-12 else 0.0
    distance = 0.5 * float(np.abs(now - before).sum())
    present_null = dict(zip(entries.names, now_of(entries), strict=True)).get(entries.null, 0.0)
    rare = (rows > 0) & (rows < least)
    groups = np.arange(len(rows))
    if rare.any():
        pool = rare.copy()
        if rows[pool].sum() < least and (rows[~rare] > 0).any():
            # too few even together: with the smallest of the others
            others = np.where(rare | (rows == 0), np.inf, rows)
            pool[int(others.argmin())] = True
        groups = np.where(pool, int(np.flatnonzero(pool)[0]), groups)
    told = divergences(_added(before, groups), _added(now, groups))
    return [
        _NAN, _NAN, trained.get(entries.null, 0.0), present_null, distance, float(now[-1]), *told,
    ]  # fmt: skip


def now_of(entries: Entries) -> list[float]:
    """Return shares of the compared rows."""
    shares: list[float] = (entries.counts / entries.counts.sum()).tolist()
    return shares
