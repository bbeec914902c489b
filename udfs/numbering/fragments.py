"""A fragment's columns in the forms that the snapshot keeps them in."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlglot import exp

from sqlfl.base.errors import ModelError
from sqlfl.contract.fragment_columns import fragment_columns
from sqlfl.contract.schema import Column, FeatureSpecification, SlotSpecification
from sqlfl.udfs import sql
from sqlfl.udfs.describe import columns_of
from sqlfl.udfs.numbering import keys

DRAW_BYTES = 8
_SINGLE = ("FLOAT", "BOOLEAN", "TINYINT", "UTINYINT", "SMALLINT", "USMALLINT")
"""Types whose values are all exact in 4 bytes."""
_NUMBER = re.compile(
    r"BOOLEAN|U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)|BIGNUM|FLOAT|DOUBLE|DECIMAL\(\d+,\d+\)|"
    r'"NULL"'
)
"""Types of which any value is a number."""
ZONED = "TIMESTAMP WITH TIME ZONE"


def converted(
    con: sql.Connection, spec: SlotSpecification, index: int, text: str, link: int | None = None
) -> exp.Select:
    """One fragment with the columns of `raw`, each in the form that encoding needs.

    With `link` it is two fragments, whose rows the column KEPT tells apart.

    The fragment's columns are taken by position: DuckDB would not tell "a" from "A", and describes
    `A AS a` as "A". Where rows are drawn for validation, the query takes the parameters
    `keys.pads(key)` of the draws' key; of rows that are drawn into folds, the draw is made of a
    plain hash later.
    """
    query = sql.verbatim(con, text)
    described = columns_of(con, query)
    expected = fragment_columns(spec, linked=link is not None)
    if [c.name.lower() for c in described] != [name.lower() for name in expected]:
        raise ModelError(
            f"fragment {index} of slot {spec.slot} has columns "
            f"{', '.join(c.name for c in described)}; expected {', '.join(expected)}"
        )
    values = [sql.column(f"c{p}", "f") for p in range(len(expected))]
    left = iter(zip(values, described, strict=True))
    fragment: exp.Expr = sql.number(index)
    if link is not None:
        fragment = sql.when(values[-1 - spec.marked].copy(), fragment, sql.number(link))
    chosen: list[exp.Expr] = [sql.named(sql.cast(fragment, "USMALLINT"), "fragment")]
    for number, feature in enumerate(spec.features):
        chosen.append(sql.named(_feature(*next(left), feature), f"f{number}"))
    if spec.target:
        chosen.append(sql.named(_target(*next(left), spec.classes), "y"))
    if spec.weight:
        chosen.append(sql.named(_number("the weight", *next(left)), "w"))
    if spec.offset:
        chosen.append(sql.named(_number("the offset", *next(left)), "o"))
    if spec.base:
        base: exp.Expr
        base, column = next(left)
        row_key = (
            () if spec.draw_columns is None else spec.draw_columns[spec.fragments.index(index)]
        )
        if row_key:
            base, column = _by_key(base, column, row_key)
        draw = sql.call("hash", base) if spec.folds else _draw(base, column)
        chosen.append(sql.named(draw, "draw"))
    chosen += [sql.named(next(left)[0], f"id{k}") for k in spec.identifiers]
    for position, key in enumerate(spec.keys):
        for p, kind in enumerate(key.types):
            value, column = next(left)
            if not _hashed_alike(column.type, kind):
                raise ModelError(
                    f"a join key of slot {spec.slot} is {column.type} now, and was {kind} when the "
                    "statement was planned",
                    hint="its owner has changed the table meanwhile: run the statement again",
                )
            stored = sql.call("encode", value) if kind in keys.AS_BLOB else value
            chosen.append(sql.named(stored, f"p{position}_{p}"))
    if spec.marked:
        chosen.append(sql.named(values[-1].copy(), "mark"))
    alias = exp.TableAlias(
        this=exp.to_identifier("f"),
        columns=[exp.to_identifier(f"c{p}", quoted=True) for p in range(len(expected))],
    )
    return sql.select(exp.Subquery(this=query, alias=alias), chosen)


def active_features(features: Sequence[FeatureSpecification]) -> list[exp.Expr]:
    chosen: list[exp.Expr] = []
    numeric = 0
    for number, feature in enumerate(features):
        value = sql.column(f"f{number}", "t")
        if feature.kind == "category":
            chosen.append(sql.named(value, f"c{number}"))
        elif feature.kind == "array":
            for element in range(1, feature.width + 1):
                item = sql.call("array_extract", value.copy(), sql.number(element))
                chosen.append(sql.named(item, f"x{numeric}"))
                numeric += 1
            chosen.append(sql.named(sql.is_null(value), f"m{number}"))
        else:
            chosen.append(sql.named(value, f"x{numeric}"))
            numeric += 1
    return chosen


def _no_nan(value: exp.Expr) -> exp.Expr:
    """NaN counts as NULL; in DuckDB NaN equals itself. The type stays: a text takes that of the
    other side."""
    return sql.call("nullif", value, sql.string("nan"))


def _hashed_alike(now: str, planned: str) -> bool:
    """Return whether equal values of both types have equal hashes, by the planned type."""
    whole = keys.WHOLE.fullmatch(now) and keys.WHOLE.fullmatch(planned)
    enums = now == "ENUM" and planned.startswith("ENUM(")  # described without its values
    return bool(now == planned or whole or enums)


def _feature(value: exp.Expr, column: Column, feature: FeatureSpecification) -> exp.Expr:
    if feature.kind == "category":
        known = sql.call("encode", sql.join_text(sql.string("v"), sql.text(value)))
        return sql.call("coalesce", known, sql.call("encode", sql.string("n")))
    if feature.kind == "array":
        element_type, _, width = column.type.partition("[")
        if width != f"{feature.width}]" or not _NUMBER.fullmatch(element_type):
            raise _other_type(
                f"feature {feature.name}", column, f"an array of {feature.width} numbers"
            )
        kind = "FLOAT" if element_type == "FLOAT" else "DOUBLE"
        # one list function for all elements: DuckDB's planning time is quadratic in the number of
        # expressions that read theirs twice
        element = exp.to_identifier("element")
        each = exp.Lambda(this=_no_nan(sql.column("element")), expressions=[element])
        return sql.cast(sql.call("list_transform", value, each), f"{kind}[{feature.width}]")
    _check_number(f"feature {feature.name}", column)
    return _no_nan(sql.cast(value, "FLOAT" if column.type in _SINGLE else "DOUBLE"))


def _target(value: exp.Expr, column: Column, classes: bool) -> exp.Expr:
    if not classes:
        _check_number("the target", column)
        return _no_nan(sql.cast(value, "DOUBLE"))
    if column.type in ("FLOAT", "DOUBLE"):
        value = keys.positive_zero(value, column.type)
        return sql.call("nullif", value, sql.cast(sql.string("nan"), column.type))
    return value


def _number(name: str, value: exp.Expr, column: Column) -> exp.Expr:
    _check_number(name, column)
    return sql.call("coalesce", sql.cast(value, "DOUBLE"), sql.cast(sql.string("nan"), "DOUBLE"))


def _check_number(name: str, column: Column) -> None:
    """Raise ModelError for values of a type whose conversion to a number may fail. A failure would
    tell that some row has such a value.
    """
    if not _NUMBER.fullmatch(column.type):
        raise _other_type(name, column, "a number")


def _other_type(name: str, column: Column, planned: str) -> ModelError:
    now = "a text" if column.type == "VARCHAR" or column.type.startswith("ENUM") else column.type
    return ModelError(
        f"{name} is {now} now, and was {planned} when the statement was planned",
        hint="its owner has changed the table meanwhile: run the statement again",
    )


def _draw(base: exp.Expr, column: Column) -> exp.Expr:
    """Return a keyed hash of the whole row: a uniform number, as DRAW_BYTES in the same order."""
    if ZONED in column.type:
        base = _without_zone(base, exp.DataType.build(column.type, dialect="duckdb"))
    row = sql.call("encode", sql.call("coalesce", sql.text(base), sql.string("")))
    return sql.call("array_slice", keys.tag(row), sql.number(1), sql.number(DRAW_BYTES))


def _by_key(base: exp.Expr, column: Column, key: Sequence[str]) -> tuple[exp.Expr, Column]:
    """Return the values of these columns of a row, `base`, as a row of their own."""
    parts: list[exp.Expr] = [
        sql.call("struct_extract", base.copy(), sql.string(name)) for name in key
    ]
    if ZONED in column.type:
        row = exp.DataType.build(column.type, dialect="duckdb")
        kinds = {part.name.lower(): part.args["kind"] for part in row.expressions}
        parts = [
            _without_zone(part, kinds[name.lower()]) for part, name in zip(parts, key, strict=True)
        ]
    return sql.call("row", *parts), Column(column.name, "STRUCT")


def _without_zone(value: exp.Expr, kind: exp.DataType) -> exp.Expr:
    """Return the value with zoned times as numbers: their text depends on the session's zone, and a
    row's draw must not. Those in lists stay.
    """
    if kind.is_type(exp.DType.TIMESTAMPTZ):
        return keys.canonical_text(value, ZONED)
    if not kind.is_type(exp.DType.STRUCT):
        return value
    return exp.Struct(
        expressions=[
            exp.PropertyEQ(
                this=exp.to_identifier(part.name, quoted=True),
                expression=_without_zone(
                    sql.call("struct_extract", value.copy(), sql.string(part.name)),
                    part.args["kind"],
                ),
            )
            for part in kind.expressions
        ]
    )
