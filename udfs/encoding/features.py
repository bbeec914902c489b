"""From the columns of a snapshot to numbers: statistics, encoding, the encoded columns.

Columns of the encoded matrix, in this order: numeric and boolean features and the elements of
arrays, standardised; an indicator per feature that was NULL in training, standardised; the one-hot
columns of every category feature, which `Encoding.centre` centres and which are never stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from sqlglot import exp

from sqlfl.base.arrays import Array, Float
from sqlfl.base.codec import LEFT_OUT, from_json, to_json
from sqlfl.base.errors import ModelError
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.contract.transforms import NO_PARTNER
from sqlfl.messages import SetEncoding, Statistics
from sqlfl.udfs import sql
from sqlfl.udfs.encoding.fitting import OTHER, Fitted, fault_of
from sqlfl.udfs.encoding.pairs import Crossing, Pair
from sqlfl.udfs.numbering import keys
from sqlfl.udfs.numbering.rows import Snapshot

CHUNK = 128
"""Numeric columns that one statement aggregates."""
ROUNDING = 1e-9
"""Relative difference of two sums of the same weights, at most."""
CONSTANT = 1e-12
"""Relative deviation, to the mean or to 1, below which a column counts as constant."""


@dataclass(frozen=True, eq=False)
class Effect:
    """A feature's contribution to scores at m of its values, at the time when the block
    was saved.
    """

    feature: str
    kinds: Float
    """(m,): as in `sqlfl.messages.diagnostics`."""
    numbers: Float
    """(m,): 0 for values that are no numbers."""
    texts: tuple[str, ...]
    """The values as text; empty for NULL."""
    effects: Float
    """(m, outputs)"""
    errors: Float
    """(m, outputs)"""
    rows: Float
    """(m,): rows of the table at the value, or in its cell."""


@dataclass(frozen=True, eq=False)
class Encoding:
    """The encoding of a slot's features; fixed in training, applied again in scoring."""

    features: tuple[FeatureSpecification, ...]
    mean: Float
    """(numeric,): weighted mean of the present values; it also replaces missing ones."""
    scale: Float
    """(numeric,): standard deviation of the imputed column; 1 for a constant column."""
    missing: Float
    """(numeric features,): Σ cnt over rows where the feature is NULL."""
    vocabularies: tuple[tuple[str, ...], ...]
    """Per category feature: canonical texts, or hexadecimal tags with a vocabulary key."""
    counts: tuple[Float, ...]
    """Per category feature (v,): Σ cnt of each entry."""
    total: float
    """Σ cnt: the number of joined rows in the statistics, or the sum of their weights."""
    vocabulary_key: bytes | None
    """The secret with which the clients of a shared slot hash categories; None for one client, and
    for public categories.
    """
    limits: Float | None = field(default=None, metadata=LEFT_OUT)
    """(2, numeric): public bounds that values are clipped to; None without bounds."""
    fitted: tuple[Fitted | None, ...] | None = field(default=None, metadata=LEFT_OUT)
    """The fitted transform of each feature; None without any."""
    strengths: Float | None = field(default=None, metadata=LEFT_OUT)
    """(groups,): the ridge of each group of columns, as a multiple of l2; None if it is
    l2 for all.
    """

    effects: tuple[Effect, ...] | None = field(default=None, metadata=LEFT_OUT)
    """Effects of the features that `auto` made; None without chosen strengths."""
    pairs: tuple[Pair, ...] = field(default=(), metadata=LEFT_OUT)
    """Pairs of features whose cells are the last features."""
    repeated: tuple[int, ...] = field(default=(), metadata=LEFT_OUT)
    """Numeric features, by position among them, that are NULL in the rows without a partner alone:
    the table has a column of these."""

    @property
    def named(self) -> tuple[FeatureSpecification, ...]:
        """Return the features that are told of: all but the pairs."""
        return self.features[: len(self.features) - len(self.pairs)]

    def with_pairs(self, crossing: Crossing | None) -> Encoding:
        """Return the encoding with these pairs behind its features; of the clients of a shared slot
        their cells are hashed too."""
        if crossing is None:
            return self
        cells = [
            self.entries_of(len(self.vocabularies) + number, texts)
            for number, texts in enumerate(crossing.vocabularies)
        ]
        fitted = (None,) * len(self.features) if self.fitted is None else self.fitted
        return replace(
            self,
            features=self.features + crossing.features,
            vocabularies=(*self.vocabularies, *cells),
            counts=self.counts + crossing.counts,
            fitted=fitted + (None,) * len(crossing.pairs),
            pairs=crossing.pairs,
        )

    def entries_of(self, number: int, texts: Sequence[str]) -> tuple[str, ...]:
        """Return what the vocabulary of a category feature has for canonical texts."""
        if self.vocabulary_key is None:
            return tuple(texts)
        key = vocabulary_key_of(self.vocabulary_key, number)
        return tuple(bytes(tag).hex() for tag in keys.tags(key, [text.encode() for text in texts]))

    @cached_property
    def indicators(self) -> tuple[int, ...]:
        """The numeric features, by position among them, that have an indicator column."""
        gone = np.flatnonzero(self.missing > 0)
        return tuple(int(i) for i in gone if i not in self.repeated)

    @cached_property
    def centres(self) -> Float:
        """(p,): means that standardisation subtracts; for an indicator, the share of missing
        values.
        """
        return np.concatenate([self.mean, self._shares])

    @cached_property
    def scales(self) -> Float:
        """(p,): divisors of standardisation."""
        # sums of weights have rounding errors: the share of all rows may differ from 1
        constant = 1.0 - self._shares <= CONSTANT
        spread = np.sqrt(np.where(constant, 0.0, self._shares * (1.0 - self._shares)))
        return np.concatenate([self.scale, np.where(spread > CONSTANT, spread, 1.0)])

    @property
    def _shares(self) -> Float:
        return self.missing[list(self.indicators)] / self.total

    @property
    def numeric(self) -> int:
        """p, the number of columns that are not one-hot."""
        return len(self.mean) + len(self.indicators)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Per category feature its first column; and at the end the width."""
        sizes = [len(vocabulary) for vocabulary in self.vocabularies]
        return tuple(int(o) for o in np.cumsum([self.numeric, *sizes]))

    @property
    def width(self) -> int:
        """d, the encoded columns."""
        return self.offsets[-1]

    @cached_property
    def centre(self) -> Float:
        """(d,): centres; the frequency of a category, 0 for other columns."""
        frequencies = [counts / _divisor(self.total) for counts in self.counts]
        return np.concatenate([np.zeros(self.numeric), *frequencies])

    @cached_property
    def groups(self) -> Array:
        """int (d,): the group of columns with a common strength, from 0; −1 for columns with
        penalty l2. A group is a curve, a missing indicator, or the categories of a `shrunken`
        feature.
        """
        parts: list[Array] = []
        number = 0

        def group(size: int, shares_strength: bool) -> None:
            nonlocal number
            parts.append(np.full(size, number if shares_strength and size else -1))
            number += bool(shares_strength and size)

        numeric = [feature for feature in self.features if feature.kind != "category"]
        for feature in numeric:
            group(feature.width, feature.shrunken and feature.kind == "array" and feature.fitted)
        for place in self.indicators:
            group(1, numeric[place].shrunken)
        categories = [feature for feature in self.features if feature.kind == "category"]
        for feature, entries in zip(categories, self.vocabularies, strict=True):
            group(len(entries), feature.shrunken)
        return np.concatenate([np.zeros(0, np.int64), *parts])

    @property
    def shrinkage(self) -> Float:
        """(d,): factors of weights that make their penalty l2's."""
        if self.strengths is None:
            return np.ones(self.width)
        every = np.append(self.strengths, 1.0)  # the last one is that of group −1
        factors: Float = 1.0 / np.sqrt(every[self.groups])
        return factors

    @property
    def names(self) -> tuple[str, ...]:
        """(d,): readable names of the encoded columns."""
        numeric = [f for f in self.features if f.kind != "category"]
        names = []
        for feature in numeric:
            if feature.kind == "array":
                names += [f"{feature.name}[{k}]" for k in range(1, feature.width + 1)]
            else:
                names.append(feature.name)
        names += [f"{numeric[i].name} is missing" for i in self.indicators]
        categories = [f for f in self.features if f.kind == "category"]
        for feature, vocabulary in zip(categories, self.vocabularies, strict=True):
            names += [
                _category_name(feature.name, entry, self.vocabulary_key) for entry in vocabulary
            ]
        return tuple(names)

    def clipped(self, values: Float) -> Float:
        """Raw values (n, numeric) within the limits; NaN stays."""
        return values if self.limits is None else np.clip(values, *self.limits)

    def to_bytes(self) -> bytes:
        """JSON. Without limits an older sqlfl reads it."""
        return to_json(self).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Encoding:
        """Read the output of `to_bytes`. Raise ValueError for other data."""
        encoding = from_json(cls, data.decode(), finite=False, strict=False)
        fault = None if encoding.fitted is None else fault_of(encoding.features, encoding.fitted)
        if encoding.strengths is not None:
            size = (int(encoding.groups.max(initial=-1)) + 1,)
            known = encoding.strengths.shape == size and bool((encoding.strengths > 0).all())
            fault = fault if known else "strengths are of other groups of columns"
        if fault is None and not _are_pairs(encoding):
            fault = "pairs are of other features"
        if fault is not None:
            raise ValueError(fault)
        return encoding


def _are_pairs(encoding: Encoding) -> bool:
    """Pairs are of features before them, of which each is a category or a number."""
    if not encoding.pairs:
        return True
    known = len(encoding.features) - len(encoding.pairs)
    sides = [side for pair in encoding.pairs for side in (pair.first, pair.second)]
    return (
        known > 0
        and encoding.fitted is not None
        and all(0 <= side.place < known for side in sides)
        and all(encoding.features[side.place].kind != "array" for side in sides)
        and all(bool((np.diff(side.bounds) > 0).all()) for side in sides)
        and all(feature.kind == "category" for feature in encoding.features[known:])
    )


def statistics(snapshot: Snapshot, vocabulary_key: bytes) -> Statistics:
    """Return the statistics that a client of a shared slot sends of its active rows, with hashed
    categories. Raise ModelError, naming the column, for infinite values of a numeric feature.
    """
    weight, mean, m2, missing = _moments(snapshot)
    tags, counts = [], []
    for number, position in categories_of(snapshot.specification.features):
        own_key = vocabulary_key_of(vocabulary_key, number)
        entries = sorted(_tagged(snapshot, position, own_key))
        if snapshot.specification.features[position].frequent_values:
            others = keys.tags(own_key, [OTHER])[0].tobytes()
            entries = [(tag, n) for tag, n in entries if tag != others]
        tags.append(np.frombuffer(b"".join(t for t, _ in entries), np.uint8).reshape(-1, 16))
        counts.append(np.array([n for _, n in entries], np.float64))
    return Statistics(
        run=snapshot.run,
        slot=snapshot.specification.slot,
        weight=weight,
        mean=mean,
        m2=m2,
        missing=missing,
        tags=tuple(tags),
        counts=tuple(counts),
    )


def shared_encoding(
    features: tuple[FeatureSpecification, ...], message: SetEncoding, vocabulary_key: bytes
) -> Encoding:
    """The encoding of a slot of several clients, from the merged statistics."""
    return Encoding(
        features=features,
        mean=np.array(message.mean, np.float64),
        scale=np.array(message.scale, np.float64),
        missing=np.array(message.missing, np.float64),
        vocabularies=tuple(tuple(bytes(tag).hex() for tag in tags) for tags in message.tags),
        counts=tuple(np.array(counts, np.float64) for counts in message.counts),
        total=float(message.total),
        vocabulary_key=vocabulary_key,
    )


def local_encoding(snapshot: Snapshot) -> Encoding:
    """Return the encoding of a slot with one client, from its active rows. Raise ModelError, naming
    the column, for infinite values of a numeric feature.
    """
    _, mean, m2, missing = _moments(snapshot)
    total = snapshot.weight
    deviation = np.sqrt(m2 / _divisor(total))
    constant = deviation <= CONSTANT * np.maximum(1.0, np.abs(mean))
    vocabularies, counts = [], []
    for _, position in categories_of(snapshot.specification.features):
        entries = sorted(frequencies(snapshot, position))
        if snapshot.specification.features[position].frequent_values:
            entries = [(entry, n) for entry, n in entries if entry != OTHER]
        vocabularies.append(tuple(entry.decode() for entry, _ in entries))
        counts.append(np.array([n for _, n in entries], np.float64))
    encoding = Encoding(
        features=snapshot.specification.features,
        mean=mean,
        scale=np.where(constant, 1.0, deviation),
        missing=missing,
        vocabularies=tuple(vocabularies),
        counts=tuple(counts),
        total=total,
        vocabulary_key=None,
    )
    return replace(encoding, repeated=_repeated(encoding))


def _repeated(encoding: Encoding) -> tuple[int, ...]:
    """Return `Encoding.repeated`: a feature is NULL in all rows without a partner, so in no others
    where these count as much.
    """
    numeric = [feature for feature in encoding.features if feature.kind != "category"]
    found = []
    for number, place in categories_of(encoding.features):
        made = encoding.features[place].made
        if not encoding.features[place].partner or made is None:
            continue
        entries = dict(zip(encoding.vocabularies[number], encoding.counts[number], strict=True))
        without = entries.get(f"v{NO_PARTNER}", 0.0)
        names = {name for name, _ in made.inputs}
        for at, feature in enumerate(numeric):
            inputs = (feature.name,) if feature.made is None else feature.made.inputs[0][:1]
            same = np.isclose(encoding.missing[at], without, rtol=ROUNDING, atol=0.0)
            if without > 0.0 and feature.shrunken and not feature.fitted:
                found += [at] * bool(same and inputs[0] in names)
    return tuple(found)


def check_finite(snapshot: Snapshot) -> None:
    """ModelError, naming the column, if a numeric feature of the active rows is infinite."""
    for start in range(0, len(_numeric_names(snapshot.specification.features)), CHUNK):
        _first_pass(snapshot, start)


# -- statistics ---------------------------------------------------------------------------------


def _moments(snapshot: Snapshot) -> tuple[Float, Float, Float, Float]:
    """Weight, mean, centred second moment of the numeric columns; Σ cnt of NULL features.

    Two passes: the second is centred at the first's mean, and corrects it.
    """
    size = len(_numeric_names(snapshot.specification.features))
    weight, mean, m2 = np.zeros(size), np.zeros(size), np.zeros(size)
    for start in range(0, size, CHUNK):
        part = slice(start, min(start + CHUNK, size))
        weight[part], mean[part] = _first_pass(snapshot, start)
        squares = _distances(snapshot, range(part.start, part.stop), mean[part])
        present = _divisor(weight[part])
        mean[part] += squares[:, 0] / present
        with np.errstate(over="ignore", invalid="ignore"):
            m2[part] = np.maximum(squares[:, 1] - squares[:, 0] ** 2 / present, 0.0)
    if not np.isfinite(m2).all():
        name = _numeric_names(snapshot.specification.features)[int(np.argmin(np.isfinite(m2)))]
        raise ModelError(
            f"column {name} has values too large to standardise",
            hint="divide it by a power of ten, or turn such values into NULL",
        )
    return weight, mean, m2, _missing(snapshot)


def _distances(snapshot: Snapshot, columns: range, mean: Float) -> Float:
    """(k, 2): Σ cnt·(x − mean) and Σ cnt·(x − mean)²."""
    if snapshot.held is not None:
        return snapshot.held.distances(columns, mean)
    terms: list[exp.Expr] = []
    for p in columns:
        distance = exp.paren(
            sql.minus(sql.column(f"x{p}"), sql.cast(sql.parameter(f"m{p}"), "DOUBLE"))
        )
        terms.append(sql.total(sql.times(sql.column("cnt"), distance)))
        square = sql.times(distance.copy(), distance.copy())
        terms.append(sql.total(sql.times(sql.column("cnt"), square)))
    given = {f"m{p}": float(value) for p, value in zip(columns, mean, strict=True)}
    query = sql.select(snapshot.active_table, terms)
    return np.array(sql.fetch(snapshot.con, query, given)[0], np.float64).reshape(-1, 2)


def _first_pass(snapshot: Snapshot, start: int) -> tuple[Float, Float]:
    names = _numeric_names(snapshot.specification.features)
    columns = range(start, min(start + CHUNK, len(names)))
    weight, sums = _sums(snapshot, columns)
    odd = [columns[number] for number in np.flatnonzero(~np.isfinite(sums))]
    infinite = [p for p in odd if _is_infinite(snapshot, p)]
    if infinite:
        raise _infinite(snapshot.specification.features, names[infinite[0]])
    return weight, sums / _divisor(weight)


def _infinite(features: Sequence[FeatureSpecification], name: str) -> ModelError:
    made = next(f.made for f in features if f.name == name)
    if made is None or made.step is not None:
        return ModelError(
            f"column {name} has infinite values",
            hint="filter them out in WHERE, or turn them into NULL",
        )
    return ModelError(
        f"column {name} has infinite values after TRANSFORM",
        hint="log1p has no value of -1 and less: filter such rows out in WHERE, or turn the values "
        "into NULL",
    )


def _sums(snapshot: Snapshot, columns: range) -> tuple[Float, Float]:
    """(k,): Σ cnt of the rows where the column is not NULL, and Σ cnt·x."""
    if snapshot.held is not None:
        return snapshot.held.sums(columns)
    terms: list[exp.Expr] = []
    for p in columns:
        value = sql.column(f"x{p}")
        present = sql.when(sql.is_null(value), sql.number(0), sql.column("cnt"))
        terms.append(sql.total(present))
        terms.append(sql.total(sql.times(sql.column("cnt"), sql.cast(value.copy(), "DOUBLE"))))
    sums = sql.fetch(snapshot.con, sql.select(snapshot.active_table, terms))[0]
    return np.array(sums[::2], np.float64), np.array(sums[1::2], np.float64)


def _is_infinite(snapshot: Snapshot, column: int) -> bool:
    if snapshot.held is not None:
        return bool(np.isinf(snapshot.held.numbers[column]).any())
    some = sql.call("bool_or", sql.call("isinf", sql.column(f"x{column}")))
    return bool(sql.fetch(snapshot.con, sql.select(snapshot.active_table, [some]))[0][0])


def _divisor(weight: Float | float) -> Float:
    """Return the weight, or 1 if it is 0: sums over it are 0 then."""
    return np.where(np.asarray(weight) > 0, weight, 1.0)


def _missing(snapshot: Snapshot) -> Float:
    if snapshot.held is not None:
        return snapshot.held.absent()
    conditions: list[exp.Expr] = []
    numeric = 0
    for number, feature in enumerate(snapshot.specification.features):
        if feature.kind == "category":
            continue
        is_array = feature.kind == "array"
        conditions.append(
            sql.column(f"m{number}") if is_array else sql.is_null(sql.column(f"x{numeric}"))
        )
        numeric += feature.width
    missing = np.zeros(len(conditions))
    for start in range(0, len(conditions), CHUNK):
        terms = [
            sql.total(sql.when(condition, sql.column("cnt"), sql.number(0)))
            for condition in conditions[start : start + CHUNK]
        ]
        query = sql.select(snapshot.active_table, terms)
        missing[start : start + CHUNK] = sql.fetch(snapshot.con, query)[0]
    return missing


def frequencies(snapshot: Snapshot, position: int) -> list[tuple[bytes, float]]:
    """Return entry and Σ cnt of the entries with weight."""
    if snapshot.held is not None:
        return snapshot.held.frequencies(position)
    return [(entry, n) for entry, n in sql.fetch(snapshot.con, _counting(snapshot, position))]


def _tagged(snapshot: Snapshot, position: int, key: bytes) -> list[tuple[bytes, float]]:
    """Return `frequencies` with the entries' tags."""
    if snapshot.held is not None:
        entries = snapshot.held.frequencies(position)
        tags = keys.tags(key, (entry for entry, _ in entries))
        return [(tag.tobytes(), n) for tag, (_, n) in zip(tags, entries, strict=True)]
    tag = sql.named(keys.tag(sql.column(f"c{position}")), "tag")
    counting = _counting(snapshot, position).subquery("g")
    query = exp.select(tag, sql.column("n")).from_(counting)
    return [(tag_bytes, n) for tag_bytes, n in sql.fetch(snapshot.con, query, keys.pads(key))]


def _counting(snapshot: Snapshot, position: int) -> exp.Select:
    entry, weight = sql.column(f"c{position}"), sql.total(sql.column("cnt"))
    return (
        exp.select(entry, sql.named(weight, "n"))
        .from_(snapshot.active_table)
        .group_by(entry.copy())
        .having(exp.GT(this=weight.copy(), expression=sql.number(0)))
    )


# -- layout -------------------------------------------------------------------------------------


def vocabulary_key_of(vocabulary_key: bytes, number: int) -> bytes:
    """Return the key of a category feature. Each has its own, so that equal values of two features
    have different hashes.
    """
    return keys.derive(vocabulary_key, "vocabulary", str(number))


def vocabulary_pads(vocabulary_key: bytes, number: int) -> dict[str, bytes]:
    return keys.pads(vocabulary_key_of(vocabulary_key, number))


def categories_of(features: Sequence[FeatureSpecification]) -> list[tuple[int, int]]:
    """(number among the category features, position among all features)"""
    positions = [p for p, feature in enumerate(features) if feature.kind == "category"]
    return list(enumerate(positions))


def _numeric_names(features: Sequence[FeatureSpecification]) -> list[str]:
    """The feature's name for every numeric column."""
    return [f.name for f in features if f.kind != "category" for _ in range(f.width)]


def _category_name(feature: str, entry: str, key: bytes | None) -> str:
    if key is not None:
        return f"{feature} = #{entry[:8]}"
    special = {"n": "NULL", "o": "another"}
    return f"{feature} is {special[entry]}" if entry in special else f"{feature} = {entry[1:]}"
