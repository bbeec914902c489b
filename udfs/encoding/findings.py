"""Unusual features in a snapshot's active rows, for warnings to the user."""

from __future__ import annotations

import hmac
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlglot import exp

from sqlfl.messages.preparation import is_identifying
from sqlfl.udfs import sql
from sqlfl.udfs.encoding.columns import known_codes
from sqlfl.udfs.encoding.features import Encoding, categories_of, vocabulary_key_of, vocabulary_pads
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
