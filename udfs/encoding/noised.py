"""Encodings that rest on public bounds: by these alone, or by statistics with noise.

Numbers are clipped to the bounds, in training and in scoring. By bounds alone, the centre is their
middle and the scale half their distance, categories are those listed and have centre 0, and nothing
tells of missing values, which count as the centre. With noise, see sqlfl.privacy.statistics; a list
of categories that is given is used all the same. What a list leaves out, NULL among it, is `other`.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import numpy as np
from sqlglot import exp

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract.privacy_specification import SnapshotPrivacy
from sqlfl.contract.schema import SlotSpecification
from sqlfl.messages import SetEncoding, Statistics
from sqlfl.privacy.samplers import Entropy, add_gaussian, system
from sqlfl.privacy.statistics import deviation, settle, threshold
from sqlfl.udfs import sql
from sqlfl.udfs.encoding.features import CHUNK, Encoding, categories_of, vocabulary_key_of
from sqlfl.udfs.numbering import keys
from sqlfl.udfs.numbering.rows import Snapshot


def bounds_encoding(snapshot: Snapshot) -> Encoding:
    """Return the encoding by public bounds alone: the same at all clients of a slot, whatever their
    rows.
    """
    wanted = snapshot.specification
    limits = limits_of(wanted)
    lists = [_listed(wanted, position) for _, position in categories_of(wanted.features)]
    if any(texts is None for texts in lists):
        raise InternalError(f"slot {wanted.slot} has categories that nobody has listed")
    vocabularies = tuple(texts for texts in lists if texts is not None)
    return Encoding(
        features=wanted.features,
        mean=limits.mean(axis=0),
        scale=(limits[1] - limits[0]) / 2.0,
        missing=np.zeros(sum(f.kind != "category" for f in wanted.features)),
        vocabularies=vocabularies,
        counts=tuple(np.zeros(len(vocabulary)) for vocabulary in vocabularies),
        total=float(snapshot.active),
        vocabulary_key=None,
        limits=limits,
    )


def noised_encoding(snapshot: Snapshot, entropy: Entropy = system) -> Encoding:
    """Return the encoding of a slot with one client, from noised statistics of its active rows."""
    wanted = snapshot.specification
    measured = _noised(_measured(snapshot), wanted, entropy)
    mean, scale, missing = settle(
        measured.present,
        measured.first,
        measured.second,
        _missing(measured, wanted, snapshot.active),
        snapshot.active,
        deviation(wanted),
    )
    categories = [sorted(zip(*category, strict=True)) for category in measured.categories]
    return _encoding(
        wanted,
        mean,
        scale,
        missing,
        tuple(tuple(entry for entry, _ in category) for category in categories),
        tuple(np.array([count for _, count in category]) for category in categories),
        float(snapshot.active),
        None,
    )


def noised_statistics(
    snapshot: Snapshot, vocabulary_key: bytes, entropy: Entropy = system
) -> Statistics:
    """Return the statistics that a client of a shared slot sends, with noise of its own.

    The fields are those of `Statistics`, but `weight`, `mean` and `m2` are the noised sums Σ 1, Σ u
    and Σ u². The coordinator adds them: sqlfl.aggregation.slot_aggregation.merge_noised.
    """
    exact = bounded_statistics(snapshot, vocabulary_key)
    return add_noise(exact, snapshot.specification, snapshot.active, entropy)


def add_noise(
    exact: Statistics, wanted: SlotSpecification, rows: int, entropy: Entropy = system
) -> Statistics:
    """Return the noised form of the `exact` sums over `rows` active rows. Each number has noise;
    rare categories, up to noise, are left out unless they are listed.
    """
    tags = [tuple(bytes(tag) for tag in feature_tags) for feature_tags in exact.tags]
    measured = _noised(
        MeasuredNumbers(
            exact.weight, exact.mean, exact.m2, tuple(zip(tags, exact.counts, strict=True))
        ),
        wanted,
        entropy,
    )
    return replace(
        exact,
        weight=measured.present,
        mean=measured.first,
        m2=measured.second,
        missing=_missing(measured, wanted, rows),
        tags=tuple(_as_array(tags) for tags, _ in measured.categories),
        counts=tuple(counts for _, counts in measured.categories),
    )


def bounded_statistics(snapshot: Snapshot, vocabulary_key: bytes) -> Statistics:
    """The same without any noise, and of all categories: for the party that adds it."""
    measured = _measured(snapshot)
    tags, counts = [], []
    for number, (entries, count) in enumerate(measured.categories):
        key = vocabulary_key_of(vocabulary_key, number)
        digests = [
            hmac.digest(key, entry.encode(), "sha256")[: keys.TAG_BYTES] for entry in entries
        ]
        # the order in which the database finds categories follows from the rows
        order = sorted(range(len(digests)), key=digests.__getitem__)
        tags.append(_as_array(digests[place] for place in order))
        counts.append(count[order])
    return Statistics(
        run=snapshot.run,
        slot=snapshot.specification.slot,
        weight=measured.present,
        mean=measured.first,
        m2=measured.second,
        missing=_missing(measured, snapshot.specification, snapshot.active),
        tags=tuple(tags),
        counts=tuple(counts),
    )


def _as_array(tags: Iterable[bytes]) -> Array:
    """uint8 (n, 16)"""
    return np.frombuffer(b"".join(tags), np.uint8).reshape(-1, keys.TAG_BYTES)


def shared_noised_encoding(
    wanted: SlotSpecification, message: SetEncoding, vocabulary_key: bytes
) -> Encoding:
    """Return the encoding of a slot with several clients, from the coordinator's merged
    statistics.
    """
    return _encoding(
        wanted,
        np.array(message.mean, np.float64),
        np.array(message.scale, np.float64),
        np.array(message.missing, np.float64),
        tuple(tuple(bytes(tag).hex() for tag in tags) for tags in message.tags),
        tuple(np.array(counts, np.float64) for counts in message.counts),
        float(message.total),
        vocabulary_key,
    )


def limits_of(wanted: SlotSpecification) -> Array:
    """(2, numeric): the bounds of every numeric column; of a BOOLEAN they are 0 and 1."""
    privacy = _privacy(wanted)
    limits = []
    for feature, given in zip(wanted.features, privacy.bounds, strict=True):
        if feature.kind == "category":
            continue
        bounds = (0.0, 1.0) if given is None and feature.kind == "boolean" else given
        if bounds is None or not float(bounds[0]) < float(bounds[1]):
            raise InternalError(f"the bounds of feature {feature.name} are {bounds}")
        limits += [(float(bounds[0]), float(bounds[1]))] * feature.width
    return np.array(limits, np.float64).reshape(-1, 2).T


def _encoding(
    wanted: SlotSpecification,
    mean: Array,
    scale: Array,
    missing: Array,
    vocabularies: tuple[tuple[str, ...], ...],
    counts: tuple[Array, ...],
    total: float,
    vocabulary_key: bytes | None,
) -> Encoding:
    """mean and scale (numeric,): of u, within the bounds."""
    limits = limits_of(wanted)
    width = limits[1] - limits[0]
    return Encoding(
        features=wanted.features,
        mean=limits[0] + width * mean,
        scale=width * scale,
        missing=missing,
        vocabularies=vocabularies,
        counts=tuple(np.clip(part, 0.0, total) for part in counts),
        total=total,
        vocabulary_key=vocabulary_key,
        limits=limits,
    )


# -- measuring ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MeasuredNumbers:
    """Numbers of active rows, exact or noised."""

    present: Array
    """(numeric,): Σ 1 over the rows that have a value."""
    first: Array
    """(numeric,): Σ u"""
    second: Array
    """(numeric,): Σ u²"""
    categories: tuple[tuple[tuple[Any, ...], Array], ...]
    """Per category feature, canonical texts or tags, and their rows: all listed ones, or those
    found.
    """


def _measured(snapshot: Snapshot) -> MeasuredNumbers:
    present, first, second = _sums(snapshot)
    return MeasuredNumbers(present, first, second, tuple(_categories(snapshot)))


def _noised(exact: MeasuredNumbers, wanted: SlotSpecification, entropy: Entropy) -> MeasuredNumbers:
    """Return the numbers with noise, and of categories that are not listed only those above τ."""
    sigma = deviation(wanted)
    sums = np.array([exact.present, exact.first, exact.second])
    present, first, second = add_gaussian(sums, sigma, entropy)
    positions = [position for _, position in categories_of(wanted.features)]
    hidden = sum(_listed(wanted, position) is None for position in positions)
    categories = []
    for position, (names, rows) in zip(positions, exact.categories, strict=True):
        counts = add_gaussian(rows, sigma, entropy)
        if _listed(wanted, position) is None:
            kept = counts > threshold(sigma, _privacy(wanted).statistics_delta, hidden)
            names, counts = tuple(compress(names, kept)), counts[kept]
        categories.append((names, counts))
    return MeasuredNumbers(present, first, second, tuple(categories))


def _missing(measured: MeasuredNumbers, wanted: SlotSpecification, rows: int) -> Array:
    """(numeric features,): the rows that have no value; of an array the mean over its elements."""
    widths = [f.width for f in wanted.features if f.kind != "category"]
    columns = np.repeat(np.arange(len(widths)), widths)
    mean: Array = np.bincount(columns, measured.present, len(widths)) / np.array(widths, np.float64)
    return rows - mean


def _sums(snapshot: Snapshot) -> Array:
    """(3, numeric): Σ 1, Σ u, Σ u², exactly."""
    limits = limits_of(snapshot.specification)
    size = limits.shape[1]
    sums = np.zeros((size, 3))
    for start in range(0, size, CHUNK):
        part = range(start, min(start + CHUNK, size))
        terms: list[exp.Expr] = []
        given: dict[str, object] = {}
        for p in part:
            given |= {f"l{p}": float(limits[0, p]), f"h{p}": float(limits[1, p])}
            low, high = (sql.cast(sql.parameter(f"{name}{p}"), "DOUBLE") for name in "lh")
            value = sql.clipped(sql.column(f"x{p}"), low, high)
            share = sql.divide(
                exp.paren(sql.minus(value, low.copy())),
                exp.paren(sql.minus(high.copy(), low.copy())),
            )
            terms.append(sql.cast(sql.call("count", sql.column(f"x{p}")), "DOUBLE"))
            terms.append(sql.total(share))
            terms.append(sql.total(sql.times(exp.paren(share.copy()), exp.paren(share.copy()))))
        query = sql.select(snapshot.active_table, terms)
        moments = np.array(sql.fetch(snapshot.con, query, given)[0], np.float64)
        sums[part.start : part.stop] = moments.reshape(-1, 3)
    return sums.T


def _categories(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], Array]]:
    """Yield for each category feature its listed or present categories, with their rows."""
    wanted = snapshot.specification
    for _, position in categories_of(wanted.features):
        entry = sql.column(f"c{position}")
        query = exp.select(entry, sql.call("count", exp.Star())).from_(snapshot.active_table)
        entries = sorted(sql.fetch(snapshot.con, query.group_by(entry.copy())))
        rows = {name.decode(): float(count) for name, count in entries}
        listed = _listed(wanted, position)
        names = tuple(rows) if listed is None else listed
        yield names, np.array([rows.get(name, 0.0) for name in names])


def _listed(wanted: SlotSpecification, position: int) -> tuple[str, ...] | None:
    """Return canonical texts of a feature's listed categories; None if they must be found."""
    given = _privacy(wanted).bounds[position]
    return None if given is None else tuple(dict.fromkeys(f"v{name}" for name in given))


def _privacy(wanted: SlotSpecification) -> SnapshotPrivacy:
    if wanted.privacy is None or wanted.privacy.statistics == "none":
        raise InternalError(f"slot {wanted.slot} has no public bounds")
    return wanted.privacy
