"""Expressions of TRANSFORM's functions, and the steps that the party must fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement, pairwise

from sqlglot import exp, parse_one

from sqlfl.contract.schema import FittedStep, Made
from sqlfl.contract.transforms import AUTO, COLUMN, Transform, number
from sqlfl.planner.grammar.writing import Dialect, to_sql
from sqlfl.planner.query import types
from sqlfl.planner.query.relations import substitute
from sqlfl.planner.query.ucq import ARRAY, CATEGORY, NUMERIC


@dataclass(frozen=True)
class Transformed:
    expression: exp.Expr
    type: str
    """The DuckDB type of the expression."""
    made: Made | None
    """None if a feature is the column itself."""


def made_of(transform: Transform, given: Sequence[tuple[exp.Expr, str]]) -> Transformed:
    """Return the transform of these expressions, one for each column, with these types."""
    kinds = [types.kind(type_) for _, type_ in given]
    text = _text_of(transform, kinds[0] or "")
    type_ = _type_of(transform, given[0][1], kinds[0] or "")
    expression = _filled(text, [e for e, _ in given])
    columns = [exp.column(exp.to_identifier(name, quoted=True)) for name in transform.columns]
    step = _step_of(transform, kinds[0] or "")
    if _is_plain(transform) and transform.columns[0].lower() == transform.name.lower():
        return Transformed(expression, type_, None)
    of_texts = transform.function in ("one_hot", "hash_bucket", "cross")
    inputs = tuple(
        (name, _argument_type(type_ if of_texts else "", kind_, type_))
        for name, (_, type_), kind_ in zip(transform.columns, given, kinds, strict=True)
    )
    return Transformed(expression, type_, Made(inputs, to_sql(_filled(text, columns)), step))


def _is_plain(transform: Transform) -> bool:
    """Return whether the feature is the column as it is."""
    return transform.function in (COLUMN, "standardize") or (
        transform.function == AUTO and transform.value is None
    )


def _argument_type(trained: str, kind: str | None, type_: str) -> str:
    """Return the type for a value given by hand: the training type if its text counts."""
    if kind == CATEGORY:
        return "VARCHAR"
    if kind == ARRAY:
        return f"DOUBLE[{types.array_width(type_)}]"
    return trained or "DOUBLE"


def _step_of(transform: Transform, kind: str) -> FittedStep | None:
    if not transform.fitted:
        return None
    of = CATEGORY if transform.function == "one_hot" or kind == CATEGORY else NUMERIC
    value = transform.value if isinstance(transform.value, str) else ""
    return FittedStep(transform.function, of, transform.count, transform.degree, value)


def _type_of(transform: Transform, given: str, kind: str) -> str:
    if transform.function in ("one_hot", "hash_bucket", "cross", "bucketize"):
        return "VARCHAR"
    if transform.function == "polynomial":
        return f"DOUBLE[{len(_powers(transform))}]"
    if _is_plain(transform) or kind == CATEGORY:
        return given
    return "DOUBLE"


# -- texts ----------------------------------------------------------------------------------------


def _text_of(transform: Transform, kind: str) -> str:
    """SQL over columns x0, x1, ...; numbers are DOUBLE, and NaN is NULL."""
    match transform.function:
        case "log1p":
            return _LOG1P
        case "bucketize":
            return _buckets(transform.bounds)
        case "hash_bucket":
            text = f"md5_number_lower(CAST(x0 AS VARCHAR)) % {transform.count}"
            return f"CAST({text} AS VARCHAR)"
        case "polynomial":
            return _polynomial(transform)
        case "cross":
            places = range(len(transform.columns))
            parts = (f"replace(CAST(x{k} AS VARCHAR), '×', '××')" for k in places)
            return " || ' × ' || ".join(parts)
        case "one_hot":
            return "CAST(x0 AS VARCHAR)"
        case "impute" if not isinstance(transform.value, str):
            return f"coalesce({_NUMBER}, {_double(float(transform.value or 0))})"
    return "x0" if _is_plain(transform) or kind == CATEGORY else _NUMBER


_NUMBER = "nullif(CAST(x0 AS DOUBLE), CAST('nan' AS DOUBLE))"
_LOG1P = """CASE
  WHEN CAST(x0 AS DOUBLE) <= -1 THEN CAST('-inf' AS DOUBLE)
  WHEN 1 + CAST(x0 AS DOUBLE) = 1 THEN CAST(x0 AS DOUBLE)
  WHEN abs(CAST(x0 AS DOUBLE)) < 1
  THEN ln(1 + CAST(x0 AS DOUBLE)) * (CAST(x0 AS DOUBLE) / (1 + CAST(x0 AS DOUBLE) - 1))
  ELSE ln(1 + CAST(x0 AS DOUBLE))
END"""
"""log1p with the digits that ln(1 + x) loses for small numbers (Kahan). Below -1 there is no
logarithm: infinite values of joined rows are refused.
"""


def _double(value: float) -> str:
    return f"CAST({number(value)} AS DOUBLE)"


def _buckets(bounds: Sequence[float]) -> str:
    """[b1, b2) and so on, as numpy.digitize has them."""
    labels = [f"[{number(low)}, {number(high)})" for low, high in pairwise(bounds)]
    names = [f"< {number(bounds[0])}", *labels, f">= {number(bounds[-1])}"]
    below = zip(bounds, names, strict=False)
    tests = (f"WHEN x0 < {_double(bound)} THEN '{name}'" for bound, name in below)
    return f"CASE WHEN {_NUMBER} IS NULL THEN NULL {' '.join(tests)} ELSE '{names[-1]}' END"


def _powers(transform: Transform) -> list[tuple[int, ...]]:
    """Return the columns multiplied for each column, in scikit-learn's order."""
    places = range(len(transform.columns))
    degrees = range(1, transform.degree + 1)
    return [c for d in degrees for c in combinations_with_replacement(places, d)]


def _polynomial(transform: Transform) -> str:
    numbers = [_NUMBER.replace("x0", f"x{k}") for k in range(len(transform.columns))]
    missing = " OR ".join(f"{value} IS NULL" for value in numbers)
    terms = (" * ".join(f"CAST(x{k} AS DOUBLE)" for k in powers) for powers in _powers(transform))
    return f"CASE WHEN {missing} THEN NULL ELSE array_value({', '.join(terms)}) END"


def _filled(text: str, expressions: Sequence[exp.Expr]) -> exp.Expr:
    """The text with these for its columns."""
    places = {("", f"x{k}"): expression for k, expression in enumerate(expressions)}
    return substitute(_parsed(text), places)


@lru_cache(maxsize=256)
def _parsed(text: str) -> exp.Expr:
    return parse_one(text, dialect=Dialect)
