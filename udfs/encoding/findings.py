"""Unusual features in a snapshot's active rows, for warnings to the user.

`separated` finds encoded columns whose rows are all, or none, of a class: they have no finite
estimate. A category, NULL included, is alone in its columns, so all its rows belong to one class.
Separation by several columns together is not detected here.
"""

from __future__ import annotations

import hmac
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlglot import exp

from sqlfl.base.arrays import Array, Float
from sqlfl.messages import NOT_OF_CLASS, OF_CLASS, SendSeparated, Separated
from sqlfl.messages.preparation import is_identifying
from sqlfl.udfs import sql
from sqlfl.udfs.encoding.columns import known_codes
from sqlfl.udfs.encoding.features import Encoding, categories_of, vocabulary_key_of, vocabulary_pads
from sqlfl.udfs.encoding.fitting import Categories
from sqlfl.udfs.encoding.naming import columns_of, own_texts
from sqlfl.udfs.encoding.transforming import absent, column_of
from sqlfl.udfs.numbering import keys
from sqlfl.udfs.numbering.arrow_snapshot import HeldRows
from sqlfl.udfs.numbering.rows import Snapshot

Flags = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.int64]

NULL = b"n"
"""The canonical text of a NULL category."""
SAME = 1e-9
"""Values that differ by less than this share of their mean (or of 1) are one."""


def of_training(snapshot: Snapshot, encoding: Encoding, joined: int) -> tuple[Flags, Flags, Flags]:
    """Return flags per feature: NULL in all rows that count; never NULL and one value in all of
    them; nearly one category for each of the `joined` rows.

    For a slot of several clients: this client's rows have only the value of the merged statistics;
    the other clients must report the same.
    """
    features = encoding.features
    empty, constant, identifying = (np.zeros(len(features), np.uint8) for _ in range(3))
    for number, position in categories_of(features):
        if features[position].frequent_values:
            continue
        known = encoding.vocabularies[number]
        alone = len(known) == 1
        null = alone and _is_null(known[0], encoding.vocabulary_key, number)
        empty[position], constant[position] = null, alone and not null
        identifying[position] = is_identifying(len(known), joined)
    numeric = [p for p, feature in enumerate(features) if feature.kind != "category"]
    empty[numeric] = (encoding.missing >= encoding.total) & (encoding.total > 0)
    candidates: dict[int, range] = {}
    start = 0
    for number, position in enumerate(numeric):
        columns = range(start, start + features[position].width)
        start = columns.stop
        if features[position].kind == "array" and features[position].shrunken:
            continue  # columns of a curve are 0 where a number has few values
        if encoding.missing[number] == 0 and np.all(encoding.scale[columns] == 1.0):
            candidates[position] = columns  # the scale of a constant is 1, and of others as well
    constant[list(candidates)] = _constant(snapshot, encoding, candidates)
    return empty, constant, identifying


def of_scoring(snapshot: Snapshot, encoding: Encoding) -> tuple[Flags, Counts]:
    """Return per feature: NULL in all rows; joined rows with a category unknown to the encoding."""
    features = encoding.named
    unseen = np.zeros(len(features), np.int64)
    for number, position in categories_of(features):
        if features[position].frequent_values:
            continue
        unseen[position] = _unseen(snapshot, encoding, number, position)
    if snapshot.held is not None:
        return _empty(snapshot.held)[: len(features)], unseen
    present: list[exp.Expr] = []
    numeric = 0
    for position, feature in enumerate(features):
        value: exp.Expr = sql.column(f"x{numeric}")
        if feature.kind == "category":
            value = sql.expression("nullif($c, encode('n'))", c=sql.column(f"c{position}"))
        elif feature.kind == "array":
            value = sql.call("nullif", sql.column(f"m{position}"), exp.true())
        numeric += feature.width if feature.kind != "category" else 0
        present.append(sql.call("count", value))
    present_rows = sql.fetch(snapshot.con, sql.select(snapshot.active_table, present))[0]
    return (np.array(present_rows) == 0).astype(np.uint8), unseen


def _empty(held: HeldRows) -> Flags:
    """Per feature: NULL in all rows."""
    missing = iter(held.missing)
    empty = [
        set(held.categories[position][1]) <= {NULL}
        if feature.kind == "category"
        else next(missing).all()
        for position, feature in enumerate(held.features)
    ]
    return np.array(empty, np.uint8)


def _is_null(entry: str, key: bytes | None, number: int) -> bool:
    """Return whether an entry of a vocabulary stands for NULL."""
    if key is None:
        return entry == NULL.decode()
    feature_key = vocabulary_key_of(key, number)
    return bytes.fromhex(entry) == hmac.digest(feature_key, NULL, "sha256")[: keys.TAG_BYTES]


def _constant(
    snapshot: Snapshot, encoding: Encoding, candidates: dict[int, range]
) -> npt.NDArray[Any]:
    if not candidates:
        return np.zeros(0, np.uint8)
    if snapshot.held is not None:
        constants = [_alike(snapshot.held, encoding, columns) for columns in candidates.values()]
        return np.array(constants, np.uint8)
    terms: list[exp.Expr] = []
    given: dict[str, object] = {}
    for columns in candidates.values():
        same = [_same(p) for p in columns]
        for p in columns:
            mean = float(encoding.mean[p])
            given |= {f"mean{p}": mean, f"most{p}": SAME * max(1.0, abs(mean))}
        alike = sql.call("bool_and", exp.and_(*same) if len(same) > 1 else same[0])
        terms.append(sql.call("coalesce", alike, exp.true()))
    query = sql.query(
        "SELECT $terms FROM $active WHERE cnt > 0", terms=terms, active=snapshot.active_table
    )
    return np.array(sql.fetch(snapshot.con, query, given)[0], np.uint8)


def _alike(held: HeldRows, encoding: Encoding, columns: range) -> bool:
    """Up to rounding all numbers of these columns, that count, are their means."""
    counted = held.counts > 0
    for p in columns:
        mean = float(encoding.mean[p])
        distance = np.abs(held.numbers[p][counted].astype(np.float64) - mean)
        if (distance > SAME * max(1.0, abs(mean))).any():
            return False
    return True


def _same(column: int) -> exp.Expr:
    """Return the test whether it is the mean, up to rounding. The mean is a value, and so a
    parameter.
    """
    return sql.expression(
        "abs(CAST($value AS DOUBLE) - $mean) <= $most",
        value=sql.column(f"x{column}"),
        mean=sql.parameter(f"mean{column}"),
        most=sql.parameter(f"most{column}"),
    )


def _unseen(snapshot: Snapshot, encoding: Encoding, number: int, position: int) -> int:
    """Return Σ cnt over the rows whose category is not in the vocabulary."""
    if snapshot.held is not None:
        frequencies = snapshot.held.frequencies(position)
        codes = known_codes(encoding, number, [text for text, _ in frequencies])
        return round(sum(n for (_, n), code in zip(frequencies, codes, strict=True) if code < 0))
    key, vocabulary = encoding.vocabulary_key, encoding.vocabularies[number]
    entries = [e.encode() if key is None else bytes.fromhex(e) for e in vocabulary]
    entry = sql.column("c", "g") if key is None else keys.tag(sql.column("c", "g"))
    table = pa.table({"entry": pa.array(entries, pa.binary())})
    with sql.registered(snapshot.con, snapshot.name("known"), table) as known:
        query = sql.query(
            """SELECT $total
            FROM (SELECT $text AS c, $weight AS n FROM $active GROUP BY $text) AS g
            LEFT JOIN $known AS k ON $entry = k.entry
            WHERE k.entry IS NULL""",
            total=sql.total(sql.column("n", "g")),
            text=sql.column(f"c{position}"),
            weight=sql.total(sql.column("cnt")),
            active=snapshot.active_table,
            known=known,
            entry=entry,
        )
        given = None if key is None else vocabulary_pads(key, number)
        return round(float(sql.fetch(snapshot.con, query, given)[0][0]))


States = npt.NDArray[np.uint8]
BOTH = NOT_OF_CLASS | OF_CLASS


def separated(snapshot: Snapshot, encoding: Encoding, request: SendSeparated) -> Separated:
    """Return the columns with active rows of one class only; the request has the classes."""
    states = _states(snapshot, encoding, request)
    alike = ((states == NOT_OF_CLASS) | (states == OF_CLASS)).any(axis=1)
    names = columns_of(encoding, own_texts(snapshot, encoding))
    return Separated(
        request.run,
        request.slot,
        np.where(alike, names.kinds, 0).astype(np.uint8),
        tuple(
            name if is_alike else "" for name, is_alike in zip(names.features, alike, strict=True)
        ),
        tuple(
            text if is_alike else "" for text, is_alike in zip(names.categories, alike, strict=True)
        ),
        states,
    )


def _states(snapshot: Snapshot, encoding: Encoding, request: SendSeparated) -> States:
    """(d, outputs)"""
    classes = request.classes
    states = np.full((encoding.width, classes.shape[1]), BOTH, np.uint8)
    start = number = 0
    alone = not snapshot.specification.shared
    for place, feature in enumerate(encoding.features):
        if feature.kind == "category":
            continue
        if feature.kind == "array":
            gone = absent(snapshot, place) > 0
        else:
            values = column_of(snapshot, feature, place)
            assert not isinstance(values, Categories)
            gone = np.isnan(values)
            if alone:
                states[start] = _of_number(
                    values[~gone], classes[~gone], counts=bool(request.counts)
                )
        if number in encoding.indicators:
            column = len(encoding.mean) + encoding.indicators.index(number)
            states[column] = _either(classes[gone])
        start += feature.width
        number += 1
    for index, place in categories_of(encoding.features):
        categories = column_of(snapshot, encoding.features[place], place)
        assert isinstance(categories, Categories)
        codes = known_codes(encoding, index, categories.entries)[categories.codes]
        size, first = len(encoding.vocabularies[index]), encoding.offsets[index]
        states[first : first + size] = _of_categories(codes, size, classes)
    return states


def _of_categories(codes: Array, size: int, classes: States) -> States:
    """Return (size, outputs); codes of −1 belong to no category."""
    states = np.zeros((size, classes.shape[1]), np.uint8)
    for output, class_states in enumerate(classes.T):
        for flag in (NOT_OF_CLASS, OF_CLASS):
            rows = (codes >= 0) & ((class_states & flag) > 0)
            states[np.bincount(codes[rows], minlength=size) > 0, output] |= flag
    return states


def _of_number(values: Float, classes: States, *, counts: bool) -> States:
    """Return (outputs,): for one of two values; for more values, whether a threshold separates the
    classes.
    """
    states = np.full(classes.shape[1], BOTH, np.uint8)
    counted = (classes > 0).any(axis=1)
    values, classes = values[counted], classes[counted]
    if not len(values) or values.min() == values.max():
        return states
    low, high = values.min(), values.max()
    if ((values == low) | (values == high)).all():
        ends = np.stack([_either(classes[values == end]) for end in (low, high)])
        none, every = (ends == NOT_OF_CLASS).any(axis=0), (ends == OF_CLASS).any(axis=0)
        return np.where(none, NOT_OF_CLASS, np.where(every, OF_CLASS, BOTH)).astype(np.uint8)
    for output, class_states in enumerate(() if counts else classes.T):
        without, within = (
            values[(class_states & NOT_OF_CLASS) > 0],
            values[(class_states & OF_CLASS) > 0],
        )
        if (
            len(without)
            and len(within)
            and (without.max() <= within.min() or within.max() <= without.min())
        ):
            states[output] = NOT_OF_CLASS
    return states


def _either(classes: States) -> States:
    """(outputs,)"""
    states: States = np.bitwise_or.reduce(classes, axis=0, initial=0).astype(np.uint8)
    return states
