"""Distributions of a slot's features in training, with which SKEW compares other rows.

They count joined rows by the column of WEIGHT, or once each. Class weights and validation rows do
not describe the rows, so they are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from sqlfl.base.arrays import Array, Float
from sqlfl.base.codec import LEFT_OUT
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.udfs.encoding.features import Encoding, vocabulary_key_of
from sqlfl.udfs.encoding.fitting import NULL, Categories
from sqlfl.udfs.encoding.transforming import absent, column_of
from sqlfl.udfs.numbering import keys
from sqlfl.udfs.numbering.rows import Snapshot
from sqlfl.udfs.updates.update import LinearEngine

BINS = 10
SAMPLED = 1 << 16
"""Approximate number of rows for the ends of bins; the shares of bins use all rows."""
AT_ONCE = 16
"""Encoded columns in memory at once."""


@dataclass(frozen=True, eq=False)
class TrainingCounts:
    """Statistics of training rows, where training has counted them otherwise."""

    total: float
    shifts: Float
    """(numeric,): means of the present encoded values."""
    missing: Float
    """(numeric features,): Σ of the weights of rows with a NULL feature."""
    counts: tuple[Float, ...]
    """Per category feature (v,): Σ of the weights of rows of each vocabulary entry."""


@dataclass(frozen=True, eq=False)
class Reference:
    effective: float
    """(Σ c)²/Σ c² of the weights of active rows: the effective number of rows."""
    ends: tuple[Float, ...]
    """Per numeric feature: ascending upper ends of all bins except the last; empty for arrays."""
    shares: tuple[Float, ...]
    """Per numeric feature: of the rows that have a value."""
    counted: TrainingCounts | None = field(default=None, metadata=LEFT_OUT)


def reference(
    snapshot: Snapshot,
    encoding: Encoding,
    seen: Float,
    counts: Float,
    make_engine: Callable[[], LinearEngine],
) -> Reference:
    """Return the reference. `seen` (a,) are the weights of active rows here, and `counts` those of
    the encoding. The engine is made if they differ.
    """
    ends, shares = [], []
    for place, feature in enumerate(encoding.features):
        if feature.kind == "category":
            continue
        ends_of_bins = np.zeros(0)
        if feature.kind != "array":
            values, weights = present(snapshot, feature, place, seen)
            ends_of_bins = quantiles(values, weights)
            ends.append(ends_of_bins)
            shares.append(_shares(binned(values, ends_of_bins), weights, len(ends_of_bins) + 1))
        else:
            ends.append(ends_of_bins)
            shares.append(ends_of_bins)
    counted = None
    if not np.array_equal(seen, counts):
        engine = make_engine()
        counted = _counted(snapshot, encoding, seen, engine)
        engine.close()
    return Reference(effective_rows(seen), tuple(ends), tuple(shares), counted)


def effective_rows(counts: Float) -> float:
    """Return (Σ c)²/Σ c²; 0 for rows without weight."""
    most = counts.max(initial=0.0)
    if not most > 0.0:
        return 0.0
    relative = counts / most
    return float(relative.sum() ** 2 / (relative @ relative))


def present(
    snapshot: Snapshot, feature: FeatureSpecification, place: int, counts: Float
) -> tuple[Float, Float]:
    """Return the present values of a numeric feature, as in the query, with the weights of their
    rows, for rows that count.
    """
    values = column_of(snapshot, replace(feature, made=None), place)
    assert not isinstance(values, Categories)
    some = ~np.isnan(values) & (counts > 0.0)
    return values[some], counts[some]


def quantiles(values: Float, weights: Float) -> Float:
    """Ends of bins of about as many rows each; equal ones are one."""
    step = max(len(values) // SAMPLED, 1)
    some, weights_ = values[::step], weights[::step]
    if not len(some):
        return np.zeros(0)
    order = np.argsort(some, kind="stable")
    below = np.cumsum(weights_[order])
    places = np.searchsorted(below, below[-1] * np.arange(1, BINS) / BINS)
    ends: Float = np.unique(some[order[np.minimum(places, len(order) - 1)]])
    return ends


def binned(values: Float, ends: Float) -> Array:
    """The bin of each value: up to its upper end."""
    return np.searchsorted(ends, values, side="left")


def _shares(codes: Array, weights: Float, size: int) -> Float:
    sums: Float = np.bincount(codes, weights, size).astype(np.float64)
    total = sums.sum()
    shares: Float = sums / total if total > 0.0 else sums
    return shares


def missing(snapshot: Snapshot, encoding: Encoding, place: int) -> Float:
    """(a,): 1 where the feature is NULL."""
    feature = encoding.features[place]
    if feature.kind == "array":
        return absent(snapshot, place)
    values = column_of(snapshot, replace(feature, made=None), place)
    assert not isinstance(values, Categories)
    return np.isnan(values).astype(np.float64)


def column_sums(engine: LinearEngine, counts: Float, columns: int) -> Float:
    """Return the sums over joined rows of the first encoded columns, those of numbers; NULL counts
    as 0.
    """
    sums = np.zeros(columns)
    for start in range(0, columns, AT_ONCE):
        part = np.eye(engine.width, min(AT_ONCE, columns - start), -start)
        sums[start : start + part.shape[1]] = counts @ engine.predict(part)
    return sums


@dataclass(frozen=True, eq=False)
class Entries:
    """Categories of a feature in the active rows."""

    names: tuple[str, ...]
    """Categories, as the encoding's vocabulary has them."""
    null: str
    counts: Float
    """Σ of the weights of each one's rows."""
    rows: Array
    """Active rows of each that count."""


def entries(
    snapshot: Snapshot, encoding: Encoding, place: int, number: int, counts: Float
) -> Entries:
    """Return the entries of category feature `number`, at `place`."""
    column = column_of(snapshot, replace(encoding.features[place], made=None), place)
    assert isinstance(column, Categories)
    texts, key = list(column.entries), encoding.vocabulary_key
    names, null = [entry.decode() for entry in texts], NULL.decode()
    if key is not None:
        tags = keys.tags(vocabulary_key_of(key, number), [*texts, NULL])
        *names, null = (tag.tobytes().hex() for tag in tags)
    sums: Float = np.bincount(column.codes, counts, len(texts)).astype(np.float64)
    rows = np.bincount(column.codes[counts > 0.0], minlength=len(texts))
    return Entries(tuple(names), null, sums, rows)


def _counted(
    snapshot: Snapshot, encoding: Encoding, seen: Float, engine: LinearEngine
) -> TrainingCounts:
    sums = column_sums(engine, seen, len(encoding.mean))
    gone, counts, start, number = [], [], 0, 0
    for place, feature in enumerate(encoding.features):
        if feature.kind == "category":
            listed = entries(snapshot, encoding, place, number, seen)
            weights = dict(zip(listed.names, listed.counts.tolist(), strict=True))
            counts.append(np.array([weights.get(n, 0.0) for n in encoding.vocabularies[number]]))
            number += 1
            continue
        rows = missing(snapshot, encoding, place)
        gone.append(float(seen @ rows))
        there = float(seen @ (1.0 - rows))
        sums[start : start + feature.width] /= there if there > 0.0 else 1.0
        start += feature.width
    return TrainingCounts(float(seen.sum()), sums, np.array(gone, np.float64), tuple(counts))
