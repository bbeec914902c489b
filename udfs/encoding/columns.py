"""The encoded columns of a client's rows: as a query on its database, or read into arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import sparse
from sqlglot import exp

from sqlfl.base.arrays import Array, Float
from sqlfl.base.errors import InternalError, ModelError
from sqlfl.base.interrupts import checkpoint
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.udfs import sql
from sqlfl.udfs.encoding.features import Encoding, categories_of, vocabulary_key_of, vocabulary_pads
from sqlfl.udfs.numbering import keys
from sqlfl.udfs.numbering.arrow_snapshot import HeldRows
from sqlfl.udfs.numbering.rows import Snapshot


def encode(snapshot: Snapshot, encoding: Encoding, plain: Collection[int] = ()) -> exp.Select:
    """Return a query for the encoded active rows: r, cnt, x<p> DOUBLE, k<c> INTEGER (−1: other).

    k<c> is an entry of vocabulary c, counted over the category features. The numeric columns
    `plain` keep the snapshot's values and type, NULL if missing. The query reads tables of the
    snapshot that `end_encode` removes. Raises ModelError if the features do not fit.
    """
    features = snapshot.specification.features
    check_features(features, encoding.features)
    constants = _constants(encoding)
    with sql.registered(snapshot.con, snapshot.name("given"), constants) as given:
        snapshot.create("constants", sql.query("SELECT * FROM $given", given=given))
    query = sql.query(
        "SELECT t.r, t.cnt, $numbers FROM $active AS t CROSS JOIN $constants AS s",
        numbers=list(_encoded_numbers(encoding, plain)),
        active=snapshot.active_table,
        constants=snapshot.table("constants"),
    )
    for number, position in categories_of(features):
        _make_codes(snapshot, encoding, number, position)
        codes = f"v{number}"
        code = sql.expression(
            "coalesce($code, CAST(-1 AS INTEGER))", code=sql.column("code", codes)
        )
        match = sql.equal(sql.column(f"c{position}", "t"), sql.column("c", codes))
        query = query.select(sql.named(code, f"k{number}"), copy=False).join(
            snapshot.table(f"codes{number}", codes), on=match, join_type="left", copy=False
        )
    return query


def check_features(
    given: Sequence[FeatureSpecification], trained: Sequence[FeatureSpecification]
) -> None:
    """Raise ModelError unless the features have the kinds and widths of the training features."""
    if _layout(given) != _layout(trained):
        raise ModelError(
            "the features do not fit the model: "
            f"it was trained on {_written(trained)}; got {_written(given)}"
        )


def end_encode(snapshot: Snapshot) -> None:
    """Remove the tables that the query of `encode` reads."""
    snapshot.drop_part("constants")
    for number, _ in categories_of(snapshot.specification.features):
        snapshot.drop_part(f"codes{number}")


def _constants(encoding: Encoding) -> pa.Table:
    """Return one row: mean m<p> and scale s<p> of every column that is not one-hot; limits l<p>,
    h<p>.
    """
    fields: dict[str, list[float]] = {"one": [1.0]}
    for p in range(encoding.numeric):
        fields[f"m{p}"] = [float(encoding.centres[p])]
        fields[f"s{p}"] = [float(encoding.scales[p])]
    if encoding.limits is not None:
        for p, (low, high) in enumerate(encoding.limits.T.tolist()):
            fields[f"l{p}"], fields[f"h{p}"] = [low], [high]
    return pa.table(fields)


def _encoded_numbers(encoding: Encoding, plain: Collection[int]) -> Iterator[exp.Expr]:
    conditions: list[exp.Expr] = []
    numeric = 0
    for number, feature in enumerate(encoding.features):
        if feature.kind == "category":
            continue
        is_array = feature.kind == "array"
        conditions.append(
            sql.column(f"m{number}", "t")
            if is_array
            else sql.is_null(sql.column(f"x{numeric}", "t"))
        )
        for _ in range(feature.width):
            value: exp.Expr = sql.column(f"x{numeric}", "t")
            if numeric not in plain:
                if encoding.limits is not None:
                    low, high = (sql.column(f"{name}{numeric}", "s") for name in "lh")
                    value = sql.clipped(value, low, high)
                value = _standardised(value, numeric)
                value = sql.call("coalesce", value, sql.cast(sql.number(0), "DOUBLE"))
            yield sql.named(value, f"x{numeric}")
            numeric += 1
    for column, feature_number in enumerate(encoding.indicators, start=numeric):
        flag = sql.cast(conditions[feature_number], "DOUBLE")
        yield sql.named(_standardised(flag, column), f"x{column}")


def _standardised(value: exp.Expr, column: int) -> exp.Expr:
    distance = sql.minus(value, sql.column(f"m{column}", "s"))
    return sql.divide(distance, sql.column(f"s{column}", "s"))


def _make_codes(snapshot: Snapshot, encoding: Encoding, number: int, position: int) -> None:
    """The table codes<number>: entry of the vocabulary for every canonical text that occurs."""
    vocabulary = encoding.vocabularies[number]
    shared = encoding.vocabulary_key
    entries = [bytes.fromhex(e) if shared else e.encode() for e in vocabulary]
    table = pa.table({
        "entry": pa.array(entries, pa.binary()),
        "code": pa.array(np.arange(len(entries), dtype=np.int32)),
    })  # fmt: skip
    text = sql.column(f"c{position}")
    entry = text if shared is None else keys.tag(text)
    with sql.registered(snapshot.con, snapshot.name("given"), table) as given:
        query = sql.query(
            """SELECT h.c, g.code
            FROM (
              SELECT $text AS c, $entry AS entry FROM (SELECT DISTINCT $text FROM $active) AS d
            ) AS h
            JOIN $given AS g ON h.entry = g.entry""",
            text=text,
            entry=entry,
            active=snapshot.active_table,
            given=given,
        )
        parameters = None if shared is None else vocabulary_pads(shared, number)
        snapshot.create(f"codes{number}", query, parameters)


def _layout(features: Sequence[FeatureSpecification]) -> list[tuple[Any, ...]]:
    kinds = {"boolean": "numeric"}
    return [(kinds.get(f.kind, f.kind), f.width) for f in features]


def _written(features: Sequence[FeatureSpecification]) -> str:
    return ", ".join(
        f"{f.name} ({f.kind}[{f.width}])" if f.kind == "array" else f"{f.name} ({f.kind})"
        for f in features
    )


BATCH_BYTES = 1 << 22
"""Bytes of a batch's numeric columns, which are transposed in the cache."""


@dataclass(frozen=True, eq=False)
class EncodedColumns:
    """X, before the one-hot columns are centred, and the weights of its rows."""

    counts: Float
    """(a,)"""
    numeric: Numeric
    """(a, p)"""
    onehot: sparse.csr_array
    """(a, q) with a 1 for each known category; a row with an unknown value has none."""


def read_columns(
    con: sql.Connection,
    query: exp.Select,
    rows: int,
    encoding: Encoding,
    plain: Collection[int] = (),
) -> EncodedColumns:
    """Read the columns from the query of `encode` for rows 0..rows-1, in any order."""
    categories = len(encoding.vocabularies)
    counts = np.empty(rows)
    numeric = Numeric.empty(rows, encoding, plain)
    codes = np.empty((rows, categories), np.int32)
    size = BATCH_BYTES // (8 * max(encoding.numeric, 1))
    missing = False
    with sql.batches(con, query, min(max(size, 2048), 65536)) as batches:
        for batch in batches:
            row = batch.column("r").to_numpy()
            counts[row] = batch.column("cnt").to_numpy()
            for matrix, places in ((numeric.wide, numeric.beside), (numeric.single, numeric.at)):
                block = np.empty((len(places), len(row)), matrix.dtype)
                for k, p in enumerate(places):
                    column = batch.column(f"x{p}")
                    missing |= column.null_count > 0
                    block[k] = column.to_numpy(zero_copy_only=False)
                matrix[row] = block.T
            for c in range(categories):
                codes[row, c] = batch.column(f"k{c}").to_numpy()
    return EncodedColumns(counts, replace(numeric, missing=missing), _onehot(codes, encoding))


def held_columns(held: HeldRows, encoding: Encoding, plain: Collection[int] = ()) -> EncodedColumns:
    """Return the columns that `read_columns` gives for the same rows in temporary tables."""
    rows, given = len(held.counts), held.numbers
    numeric = Numeric.empty(rows, encoding, plain)
    missing = False
    for k, p in enumerate(numeric.at):
        numeric.single[:, k] = given[p]
        missing |= bool(np.isnan(given[p]).any())
    for k, p in enumerate(numeric.beside):
        if p < len(given):
            values = given[p].astype(np.float64)
            if encoding.limits is not None:
                np.clip(values, *encoding.limits[:, p], out=values)
        else:
            flags = held.missing[encoding.indicators[p - len(given)]]
            values = flags.astype(np.float64)
        values -= encoding.centres[p]
        values /= encoding.scales[p]
        values[np.isnan(values)] = 0.0
        numeric.wide[:, k] = values
    codes = np.empty((rows, len(encoding.vocabularies)), np.int32)
    for number, position in categories_of(encoding.features):
        codes_of_rows, entries = held.categories[position]
        codes[:, number] = known_codes(encoding, number, entries)[codes_of_rows]
    counts = held.counts.astype(np.float64)
    return EncodedColumns(counts, replace(numeric, missing=missing), _onehot(codes, encoding))


def known_codes(encoding: Encoding, number: int, texts: Sequence[bytes]) -> npt.NDArray[np.int32]:
    """Return the vocabulary entry of each canonical text, −1 without one."""
    shared = encoding.vocabulary_key
    entries = [text.decode() for text in texts] if shared is None else []
    if shared is not None:
        tags = keys.tags(vocabulary_key_of(shared, number), texts)
        entries = [tag.tobytes().hex() for tag in tags]
    places = {entry: code for code, entry in enumerate(encoding.vocabularies[number])}
    return np.array([places.get(entry, -1) for entry in entries], np.int32)


def _onehot(codes: npt.NDArray[Any], encoding: Encoding) -> sparse.csr_array:
    offsets = np.array(encoding.offsets[:-1], np.int64) - encoding.numeric
    known = codes >= 0
    ends = np.concatenate([[0], np.cumsum(known.sum(axis=1))])
    columns = (codes + offsets)[known]
    side = encoding.width - encoding.numeric
    small = max(side, int(ends[-1])) < np.iinfo(np.int32).max
    kind = np.int32 if small else np.int64
    entries = (np.ones(len(columns)), columns.astype(kind), ends.astype(kind))
    return sparse.csr_array(entries, shape=(len(codes), side))


_VALUES = 1 << 16
"""Numbers to widen to 8 bytes at once, so that they stay in the processor's cache."""
_BLOCK = 1 << 21
"""Numbers of a block that is multiplied by itself."""
_FAR = 100.0
"""Standard deviations from 0 to the mean."""


@dataclass(frozen=True, eq=False)
class Numeric:
    """(a, p) standardised columns. What the table has as FLOAT is held as it is there, and
    standardised in 8 bytes whenever it is used: nothing is rounded."""

    wide: Float
    """(a, p − s): the other columns, standardised."""
    single: npt.NDArray[np.float32]
    """(a, s): NaN where missing."""
    at: Array
    """(s,): which columns are single."""
    beside: Array
    """(p − s,): the others."""
    centre: Float
    """(s,)"""
    scale: Float
    """(s,)"""
    missing: bool = False
    """Some number of `single` is NaN."""

    @classmethod
    def empty(cls, rows: int, encoding: Encoding, single: Collection[int]) -> Numeric:
        """Return empty columns; `single` are those to store unchanged."""
        at = np.array(sorted(single), np.int64)
        beside = np.setdiff1d(np.arange(encoding.numeric), at)
        return cls(
            np.empty((rows, len(beside))),
            np.empty((rows, len(at)), np.float32),
            at,
            beside,
            encoding.centres[at],
            encoding.scales[at],
        )

    def nothing(self) -> Numeric:
        """The columns without rows."""
        return replace(self, wide=self.wide[:0].copy(), single=self.single[:0].copy())

    def __len__(self) -> int:
        return len(self.wide)

    @property
    def width(self) -> int:
        """p"""
        return len(self.at) + len(self.beside)

    def dot(self, theta: Float, rows: Array | None = None) -> Float:
        """(p, c) -> (a, c), or (b, c) of these rows."""
        wide = self.wide if rows is None else self.wide[rows]
        product: Float = wide @ theta[self.beside]
        if len(self.at):
            weights = theta[self.at] / self.scale[:, None]
            for part, numbers in self._pieces(rows):
                product[part] += numbers @ weights
            product -= (self.centre - self._origin) @ weights
        return product

    def transposed_dot(self, values: Float, rows: Array | None = None) -> Float:
        """(a, c), or (b, c) of these rows -> (p, c)."""
        product = np.empty((self.width, values.shape[1]))
        wide = self.wide if rows is None else self.wide[rows]
        product[self.beside] = wide.T @ values
        if len(self.at):
            sums = -np.outer(self.centre - self._origin, values.sum(axis=0))
            for part, numbers in self._pieces(rows):
                sums += numbers.T @ values[part]
            product[self.at] = sums / self.scale[:, None]
        return product

    def blocks(self) -> Iterator[tuple[slice, Float]]:
        """Yield all rows in blocks of some thousands: the slice, and (rows, p)."""
        size = min(max(_BLOCK // max(self.width, 1), 16), 16384)
        for start in range(0, len(self), size):
            checkpoint()
            part = slice(start, min(start + size, len(self)))
            yield part, self.block(part)

    def block(self, rows: slice | Array) -> Float:
        """(b, p)"""
        if not len(self.at):
            return self.wide[rows]
        standard = self._minus(self.centre, self.single[rows])
        standard /= self.scale
        if not len(self.beside):
            return standard
        values_ = np.empty((len(standard), self.width))
        values_[:, self.beside], values_[:, self.at] = self.wide[rows], standard
        return values_

    def whole(self, kind: npt.DTypeLike = np.float64) -> Array:
        """(a, p) of numbers of this kind."""
        if not len(self.at):
            return self.wide.astype(kind, copy=False)
        columns: Array = np.empty((len(self), self.width), kind)
        for part, block in self.blocks():
            columns[part] = block
        return columns

    @cached_property
    def _origin(self) -> Float:
        """(s,): the part of the centre that is subtracted from `single` before a product.
        Subtraction afterwards takes half the time, so this is 0 where it loses no digits.
        """
        near = not self.missing and (np.abs(self.centre) <= _FAR * self.scale).all()
        return np.zeros_like(self.centre) if near else self.centre

    def _pieces(self, rows: Array | None) -> Iterator[tuple[slice, Float]]:
        """(b, s), less the origin and not scaled, some rows at a time."""
        size = max(_VALUES // len(self.at), 16)
        for start in range(0, len(self) if rows is None else len(rows), size):
            part = slice(start, start + size)
            piece = self.single[part if rows is None else rows[part]]
            yield part, self._minus(self._origin, piece)

    def _minus(self, origin: Float, single: npt.NDArray[np.float32]) -> Float:
        """Subtract the origin; missing values count as the centre."""
        shifted = single.astype(np.float64)
        if origin.any():
            shifted -= origin
        if self.missing:
            np.copyto(shifted, self.centre - origin, where=np.isnan(shifted))
        return shifted


# Active rows with equal features, found by the client's database; few rows held as columns are
# compared in Python.
#
# Encoding is a function of the snapshot's values. Rows with equal values have equal encoded rows,
# and equal predictions for any parameters.

WORTH = 2 / 3
"""Maximum share of distinct rows among active rows for which merging is worth it."""
FEW = 1 << 18
"""Maximum values to compare in Python. With more, the database is faster to see that few rows are
equal.
"""


def merge_equal_rows(snapshot: Snapshot) -> Array:
    """Merge equal active rows. Return the class of every active row, uint32 (a,), numbered in order
    of appearance; the snapshot's active rows then are the classes.

    Returns an empty array, and changes nothing, if too few rows are equal. NULL equals NULL, and 0
    equals -0. Raises InternalError for a slot without features.
    """
    names = snapshot.feature_columns
    if not names:
        raise InternalError(f"slot {snapshot.specification.slot} has no features")
    if not snapshot.active:
        return np.zeros(0, np.uint32)
    if snapshot.held is not None and snapshot.active * len(names) <= FEW:
        classes, counts = _of_columns(snapshot.held), snapshot.held.weights
    elif _estimated(snapshot, names) > WORTH * snapshot.active:
        return np.zeros(0, np.uint32)
    else:
        classes, counts = _of_database(snapshot, names)
    # the first row of a class has a larger number than all rows before
    heads = np.flatnonzero(np.diff(np.maximum.accumulate(classes), prepend=-1))
    if len(heads) > WORTH * snapshot.active:
        return np.zeros(0, np.uint32)
    snapshot.merge(heads, np.bincount(classes, counts))
    row_classes: Array = classes.astype(np.uint32)
    return row_classes


def _of_columns(held: HeldRows) -> Array:
    """The class of every row, int64."""
    classes = np.zeros(held.size, np.int64)
    for column in _comparable(held):
        encoded = column.dictionary_encode(null_encoding="encode")
        classes *= len(encoded.dictionary)
        classes += encoded.indices.to_numpy()
        classes = pa.array(classes).dictionary_encode().indices.to_numpy().astype(np.int64)
    return classes


def _comparable(held: HeldRows) -> Iterator[pa.Array]:
    """Yield the columns of features, with equal values where encoding does not distinguish them."""
    arrays = iter(held.missing)
    for position, feature in enumerate(held.features):
        if feature.kind == "category":
            yield held.columns[f"f{position}"]
            continue
        missing = next(arrays)
        if feature.kind == "array":
            yield pa.array(missing)
    for values in held.numbers:
        plain = values + values.dtype.type(0)  # without -0
        plain[np.isnan(plain)] = np.nan
        yield pa.array(plain.view(f"i{plain.itemsize}"))


def _estimated(snapshot: Snapshot, names: list[str]) -> int:
    """Distinct rows, within some per cent."""
    query = sql.query(
        "SELECT approx_count_distinct(hash($columns)) FROM $active",
        columns=sql.columns_of(names),
        active=snapshot.active_table,
    )
    return int(sql.fetch(snapshot.con, query)[0][0])


def _of_database(snapshot: Snapshot, names: list[str]) -> tuple[Array, Array]:
    """Return the class of every active row, int64, and its weight, float64."""
    query = sql.query(
        "SELECT list(r) AS r FROM $active GROUP BY $columns",
        columns=sql.columns_of(names),
        active=snapshot.active_table,
    )
    first = np.empty(snapshot.active, np.int64)
    with sql.batches(snapshot.con, query) as reader:
        for batch in reader:
            equal = batch.column("r")
            rows, starts = equal.flatten().to_numpy(), equal.offsets.to_numpy()
            rows, starts = rows.astype(np.int64), starts - starts[0]
            if len(rows):
                heads = np.minimum.reduceat(rows, starts[:-1])
                first[rows] = np.repeat(heads, np.diff(starts))
    classes: Array = (np.cumsum(first == np.arange(len(first))) - 1)[first]
    return classes, snapshot.of_active_rows(sql.column("cnt"), None, np.float64)
