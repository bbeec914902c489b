"""Learning over a union: the values of one slot's clients, merged by the coordinator, or by their
party if it combines them.

Sums run in client order, so that they do not depend on the order of replies.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from sqlfl.base.arrays import Array, byte_order, taken
from sqlfl.base.errors import InternalError, ModelError
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.contract.transforms import AUTO, MAX_VALUES, VALUE_SHARE
from sqlfl.messages import (
    HASHED,
    Cells,
    Errors,
    Gram,
    Labels,
    PairCells,
    Profile,
    Ranges,
    Separated,
    SetCells,
    SetEncoding,
    SetGram,
    SetPairCells,
    SetRanges,
    Statistics,
)
from sqlfl.messages.grams import gram_to_message, message_to_gram
from sqlfl.privacy.statistics import settle

CONSTANT = 1e-12
"""Relative standard deviation up to which a column counts as constant."""


def sum_gradients(parts: Sequence[Array]) -> Array:
    """Return Σ_q of partial gradients (d, d_c): eq. 15, exact in one round."""
    total = np.array(parts[0], np.float64)
    for part in parts[1:]:
        if part.shape != total.shape:
            raise InternalError(f"partial gradients of shapes {total.shape} and {part.shape}")
        total += part
    return total


def average(parts: Sequence[Array]) -> Array:
    """Return w = mean_q (θ^q + u^q): the consensus step (eq. 23), with R in the clients'
    objectives.
    """
    mean: Array = sum_gradients(parts) / len(parts)
    return mean


def merge_statistics(parts: Sequence[Statistics], total: float) -> SetEncoding:
    """Return the encoding of a slot from its clients' weighted statistics.

    `total` is N, the joined rows, or the sum of their weights. The scale is the standard deviation
    of the imputed column, sqrt(m2/total), or 1 if that is at most 1e-12·max(1, |mean|). Categories
    are sorted by tag; categories of weight 0 are left out.
    """
    sums = sum_statistics(parts)
    scale = np.sqrt(sums.m2 / (total if total > 0 else 1.0))
    scale[scale <= CONSTANT * np.maximum(1.0, np.abs(sums.mean))] = 1.0
    return SetEncoding(
        run=sums.run,
        slot=sums.slot,
        mean=sums.mean,
        scale=scale,
        missing=sums.missing,
        tags=sums.tags,
        counts=sums.counts,
        total=total,
    )


def merge_ranges(parts: Sequence[Ranges], features: Sequence[FeatureSpecification]) -> SetRanges:
    """Return the ranges and points of columns over all clients. Raise ModelError, naming the first
    column without values; of `auto` a column may have none.
    """
    weights = np.array([part.weight for part in parts])
    total = weights.sum(axis=0)
    curved = np.array([f.step is not None and f.step.function == AUTO for f in features])
    if not (total.astype(bool) | curved).all():
        raise ModelError(
            f"column {features[int(np.argmin(total + curved))].name} has no values to fit "
            "TRANSFORM to",
            hint="leave it out, or let fewer rows be NULL",
        )
    total = np.where(curved, 1.0, total)
    ends = np.array([part.ends for part in parts])
    there = (weights > 0)[:, :, None]
    least = np.where(there, ends, np.inf).min(axis=0)[:, 0]
    most = np.where(there, ends, -np.inf).max(axis=0)[:, 1]
    mean = (weights * ends[:, :, 0]).sum(axis=0) / total
    averaged = np.array([f.step is not None and f.step.value == "mean" for f in features])[:, None]
    merged = np.where(averaged, mean[:, None], np.stack([least, most], axis=1))
    merged[curved] = 0.0
    points = [_merge_points(parts, n, feature) for n, feature in enumerate(features)]
    return SetRanges(
        parts[0].run,
        parts[0].slot,
        merged,
        tuple(at for at, _ in points),
        tuple(counts for _, counts in points),
    )


def _merge_points(
    parts: Sequence[Ranges], number: int, feature: FeatureSpecification
) -> tuple[Array, Array]:
    """Return the points of a fitted feature over all clients, ascending, and what they count."""
    points, counts = [p.points[number] for p in parts], [p.counts[number] for p in parts]
    distinct, places = np.unique(np.concatenate(points), return_inverse=True)
    sums = np.bincount(places, np.concatenate(counts), len(distinct)).astype(np.float64)
    if not feature.frequent_values:
        return distinct, sums
    # a value that some client does not name may have few rows there
    weights = np.array([part.weight[number] for part in parts])
    by_all = np.bincount(places, minlength=len(distinct)) == np.count_nonzero(weights)
    often = np.flatnonzero(by_all & (sums >= VALUE_SHARE * weights.sum()))
    most = np.sort(often[np.argsort(-sums[often], kind="stable")][:MAX_VALUES])
    return distinct[most], sums[most]


def sum_statistics(parts: Sequence[Statistics]) -> Statistics:
    """Return exact statistics of all the parts' rows: means and squared deviations by Chan's
    formula. Categories of weight 0 are left out.
    """
    weights = np.array([part.weight for part in parts], np.float64)
    means = np.where(weights > 0, [part.mean for part in parts], 0.0)
    squares = np.where(weights > 0, [part.m2 for part in parts], 0.0)
    weight = weights.sum(axis=0)
    mean = (weights * means).sum(axis=0) / np.where(weight > 0, weight, 1.0)
    m2 = squares.sum(axis=0) + (weights * (means - mean) ** 2).sum(axis=0)
    missing = np.array([part.missing for part in parts], np.float64).sum(axis=0)
    return _with_categories(parts, weight, mean, m2, missing, 0.0)


def sum_bounded(parts: Sequence[Statistics]) -> Statistics:
    """Return statistics of all the parts' rows, for values within public bounds, with all
    categories. `weight`, `mean` and `m2` are the sums Σ 1, Σ u and Σ u².
    """
    names = ("weight", "mean", "m2", "missing")
    weight, mean, m2, missing = (
        sum_gradients([getattr(part, name) for part in parts]) for name in names
    )
    return _with_categories(parts, weight, mean, m2, missing, -math.inf)


def _with_categories(
    parts: Sequence[Statistics], weight: Array, mean: Array, m2: Array, missing: Array, above: float
) -> Statistics:
    """Return the statistics with the parts' merged categories whose counts are above `above`."""
    vocabularies = [
        _merge_tags([p.tags[k] for p in parts], [p.counts[k] for p in parts], above)
        for k in range(len(parts[0].tags))
    ]
    return Statistics(
        run=parts[0].run,
        slot=parts[0].slot,
        weight=weight,
        mean=mean,
        m2=m2,
        missing=missing,
        tags=tuple(tags for tags, _ in vocabularies),
        counts=tuple(counts for _, counts in vocabularies),
    )


def merge_noised(parts: Sequence[Statistics], rows: int, sigma: float) -> SetEncoding:
    """Return the encoding of a slot from its clients' noised statistics, over `rows` active rows.

    The parts are as `sum_bounded` has them, with u from 0 to 1. Each number has normal noise of
    standard deviation `sigma`. Mean and scale of the result are those of u, as
    sqlfl.privacy.statistics has them. All categories that a client sent remain; a count below 0
    becomes 0.
    """
    sums = sum_bounded(parts)
    noise = sigma * math.sqrt(len(parts))
    mean, scale, missing = settle(sums.weight, sums.mean, sums.m2, sums.missing, rows, noise)
    return SetEncoding(
        run=sums.run,
        slot=sums.slot,
        mean=mean,
        scale=scale,
        missing=missing,
        tags=sums.tags,
        counts=tuple(np.maximum(counts, 0.0) for counts in sums.counts),
        total=float(rows),
    )


def merge_keys(
    parts: Sequence[tuple[Array, Array]],
) -> tuple[Array, list[Array]]:
    """Return the tags of all parts, ascending, and each part's codes among them, uint32.

    parts: (tags (u, 16), codes (n,)) as `JoinKeys` has them; u stands for NULL.
    """
    stacked = np.concatenate([tags for tags, _ in parts])
    order, new, group = _grouped(stacked)
    place = np.empty(len(stacked), np.uint32)
    place[order] = group
    tags = stacked[order][new]
    part_codes, start = [], 0
    for part_tags, codes in parts:
        among = np.append(place[start : start + len(part_tags)], np.uint32(len(tags)))
        part_codes.append(among[codes])
        start += len(part_tags)
    return tags, part_codes


def _merge_tags(
    tags: Sequence[Array], counts: Sequence[Array], above: float = 0.0
) -> tuple[Array, Array]:
    """Return the distinct tags in order, and the sums of their counts, if these are above
    `above`.
    """
    stacked = np.concatenate([tag.reshape(-1, 16) for tag in tags])
    order, new, group = _grouped(stacked)
    # Without tags, numpy counts in integers, whatever the weights are.
    merged = np.bincount(group, np.concatenate(counts)[order], int(new.sum())).astype(np.float64)
    occurs = merged > above
    return stacked[order][new][occurs], merged[occurs]


def _grouped(tags: Array) -> tuple[Array, Array, Array]:
    """Return the order of tags (n, 16) by their bytes. In that order, return which tags are new,
    and each one's number among the distinct tags.
    """
    order = byte_order(np.asarray(tags, np.uint8), runs=True)
    ordered = tags[order]
    new = np.ones(len(ordered), bool)
    new[1:] = np.any(ordered[1:] != ordered[:-1], axis=1)
    return order, new, np.cumsum(new) - 1


NUMBERS = ("INT", "DECIMAL", "NUMERIC", "DOUBLE", "FLOAT", "REAL")


def merge_classes(parts: Sequence[Labels], type_: str) -> tuple[tuple[str, ...], Array]:
    """Return the classes of all clients, and the code of every row of the slot: uint32 (rows,).

    `type_` is the target's DuckDB type. Classes keep the order of their type, which is that of each
    client's list: numbers by value, text by code points. For an ENUM the lists alone decide;
    classes that no list compares are in order of their text.
    """
    if len(parts) == 1:
        return parts[0].classes, parts[0].codes
    numeric = any(word in type_.upper() for word in NUMBERS) and "ENUM" not in type_.upper()
    classes = _merge_orders([part.classes for part in parts], numeric)
    position = {name: code for code, name in enumerate(classes)}
    codes = [
        taken(np.array([position[name] for name in part.classes], np.uint32), part.codes)
        for part in parts
    ]
    return classes, np.concatenate(codes)


def _merge_orders(orders: Sequence[Sequence[str]], numeric: bool) -> tuple[str, ...]:
    """Return the topological order of all names that is smallest by (value and) text."""
    after: dict[str, set[str]] = {name: set() for order in orders for name in order}
    for order in orders:
        for first, second in pairwise(order):
            after[first].add(second)
    waiting = dict.fromkeys(after, 0)
    for successors in after.values():
        for name in successors:
            waiting[name] += 1

    def key(name: str) -> tuple[float, str]:
        return (float(name) if numeric else 0.0, name)

    ready = [key(name) for name, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    ordered: list[str] = []
    while ready:
        _, name = heapq.heappop(ready)
        ordered.append(name)
        for successor in after[name]:
            waiting[successor] -= 1
            if waiting[successor] == 0:
                heapq.heappush(ready, key(successor))
    if len(ordered) < len(after):
        raise ModelError(
            "the clients of the target's table order its classes differently",
            hint="cast the target to VARCHAR",
        )
    return tuple(ordered)


def sum_grams(parts: Sequence[Gram]) -> SetGram:
    """Return Σ_q of second moments, as the message that goes back to every client of the slot."""
    total = message_to_gram(parts[0])
    for part in parts[1:]:
        total = total + message_to_gram(part)
    merged = gram_to_message(total, parts[0].run, parts[0].slot)
    return SetGram(
        run=merged.run,
        slot=merged.slot,
        numeric=merged.numeric,
        cross=merged.cross,
        rows=merged.rows,
        columns=merged.columns,
        values=merged.values,
        moments=merged.moments,
        weight=merged.weight,
    )


def merge_cells(
    parts: Sequence[Cells], dispersion: float, curvature: float, pairs: int
) -> SetCells:
    """Sum what the clients of a slot tell of coarse cells; the least of what their owners allow."""
    return SetCells(
        parts[0].run,
        parts[0].slot,
        sum_gradients([part.slopes for part in parts]),
        sum_gradients([part.counts for part in parts]),
        min(part.most for part in parts),
        min(part.room for part in parts),
        dispersion,
        curvature,
        pairs,
    )


def merge_pair_cells(parts: Sequence[PairCells]) -> SetPairCells:
    """Sum counts of cells. A cell of which a client may not tell is none of any."""
    named = np.all([(part.counts > 0.0) | bool(part.whole) for part in parts], axis=0)
    total = sum_gradients([part.counts for part in parts])
    return SetPairCells(parts[0].run, parts[0].slot, np.where(named, total, 0.0))


def merge_names(parts: Sequence[Errors]) -> Errors:
    """Return the first part, with texts of categories that another of the slot's clients knows.

    Raise InternalError if the parts have different columns.
    """
    kinds, categories = parts[0].kinds.copy(), list(parts[0].categories)
    for part in parts[1:]:
        if part.features != parts[0].features:
            raise InternalError("clients of one slot name other columns")
        for place in np.flatnonzero((kinds == HASHED) & (part.kinds != HASHED)).tolist():
            kinds[place], categories[place] = part.kinds[place], part.categories[place]
    return replace(parts[0], kinds=kinds, categories=tuple(categories))


def merge_separated(parts: Sequence[Separated]) -> Separated:
    """Merge states over the rows of all clients; columns no longer alike lose their names."""
    if len({part.states.shape for part in parts}) > 1:
        raise InternalError("clients of one slot have other columns")
    states = np.bitwise_or.reduce([part.states for part in parts])
    kinds, features, categories = parts[0].kinds.copy(), [], []
    for place in range(len(states)):
        told = [part for part in parts if part.features[place]]
        clear = [part for part in told if part.kinds[place] != HASHED] or told
        if clear:
            kinds[place] = clear[0].kinds[place]
        features.append(clear[0].features[place] if clear else "")
        categories.append(clear[0].categories[place] if clear else "")
    return replace(
        parts[0],
        states=states,
        kinds=kinds,
        features=tuple(features),
        categories=tuple(categories),
    )


def merge_profiles(parts: Sequence[Profile]) -> Profile:
    """Merge profiles over the rows of all clients.

    The number of different values is that of the client with most of them, because nothing tells
    which values two clients share. A range spans all ranges sent.
    """

    def stacked(name: str) -> Array:
        return np.stack([getattr(part, name) for part in parts])

    present = np.array([[part.rows] for part in parts]) - stacked("missing")
    means, told = stacked("mean"), ~np.isnan(stacked("mean"))
    weights = np.where(told, present, 0.0)
    with np.errstate(invalid="ignore"):
        mean = np.where(told, weights * means, 0.0).sum(axis=0) / weights.sum(axis=0)
    return replace(
        parts[0],
        rows=sum(part.rows for part in parts),
        missing=stacked("missing").sum(axis=0),
        distinct=stacked("distinct").max(axis=0),
        low=np.fmin.reduce(stacked("low")),
        high=np.fmax.reduce(stacked("high")),
        mean=mean,
        explained=stacked("explained").sum(axis=0),
        groups=stacked("groups").sum(axis=0),
        apart=sum(part.apart for part in parts),
    )
