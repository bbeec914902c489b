"""The encoded columns of a snapshot, as a query on the party's database."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from sqlglot import exp

from sqlfl.base.errors import ModelError
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.udfs import sql
from sqlfl.udfs.encoding.features import Encoding, categories_of, vocabulary_pads
from sqlfl.udfs.numbering import keys
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
