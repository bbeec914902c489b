"""Possible values of an expression if relations have no row, and all their columns are NULL.

A small abstract interpreter: it knows how DuckDB's operators treat NULL, and assumes any value for
unknown ones. It knows no function by name. A test compares its operators with DuckDB, over all
types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import product
from typing import TypeAlias

from sqlglot import exp

from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.trees import Infix, Prefix

Outcomes: TypeAlias = frozenset[bool | str | None]
"""Possible results: True, False, None (NULL), VALUE (neither boolean nor NULL)."""

VALUE = "value"
NULL: Outcomes = frozenset((None,))
ANY: Outcomes = frozenset((True, False, None, VALUE))

ARITHMETIC = (
    exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.BitwiseAnd, exp.BitwiseOr,
    exp.BitwiseXor, exp.BitwiseNot, exp.BitwiseLeftShift, exp.BitwiseRightShift, exp.Extract,
)  # fmt: skip
COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
STRICT = (*ARITHMETIC, exp.Like, exp.ILike, exp.Escape)
"""NULL where a part is. Not so: `[1] + NULL`, and NULL made a UNION, or compared with one."""
STRICT_OPERATORS = frozenset(("^", "**", "-", "*", "/", "//", "%", "->>", "^@", "~", "!~"))
STRICT_PREFIXES = frozenset(("-", "~", "@"))
_TRUTHS = (
    *COMPARISONS, exp.Like, exp.ILike, exp.And, exp.Or, exp.Not, exp.Is, exp.Between, exp.In,
    exp.NullSafeEQ, exp.NullSafeNEQ,
)  # fmt: skip
_SCALAR = re.compile(
    r"(BOOLEAN|U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|FLOAT|DOUBLE|DECIMAL(\(\d+, ?\d+\))?|BIGNUM"
    r"|VARCHAR|TEXT|INT|REAL|BLOB|DATE|TIME(STAMP)?(_S|_MS|_NS|TZ| WITH TIME ZONE)?|INTERVAL|UUID)"
)


def outcomes(expression: exp.Expr, ids: Collection[str]) -> Outcomes:
    """Return the possible values of `expression` if every column of the relations `ids` is NULL."""
    if isinstance(expression, exp.Column):
        return NULL if expression.table in ids else ANY
    if isinstance(expression, exp.Null):
        return NULL
    if isinstance(expression, exp.Boolean):
        return frozenset((bool(expression.this),))
    if isinstance(expression, exp.Literal):
        return frozenset((VALUE,))
    if isinstance(expression, STRICT):
        return _strict(expression, ids)
    if isinstance(expression, Infix | Prefix):
        known = STRICT_OPERATORS if isinstance(expression, Infix) else STRICT_PREFIXES
        strict = expression.args["operator"] in known or _is_scalar_sum(expression)
        return _strict(expression, ids) if strict else ANY
    if isinstance(expression, exp.Anonymous):
        name = expression.name.lower()
        return _NAMED[name](expression, ids) if name in _NAMED else ANY
    for type_, rule in _RULES:
        if isinstance(expression, type_):
            return rule(expression, ids)
    return ANY


def is_null_over_nulls(expression: exp.Expr, ids: Collection[str]) -> bool:
    """Return whether it must be NULL if every column of the relations `ids` is."""
    return outcomes(expression, ids) == NULL


def rejects_nulls(condition: exp.Expr, ids: Collection[str]) -> bool:
    """Return whether it cannot be true if every column of the relations `ids` is NULL."""
    return not outcomes(condition, ids) & {True, VALUE}


def _strict(node: exp.Expr, ids: Collection[str]) -> Outcomes:
    children = list(node.iter_expressions())
    if any(isinstance(child, exp.Any | exp.All) for child in children):
        return ANY  # NULL = ALL (no values) is TRUE
    return NULL if any(is_null_over_nulls(child, ids) for child in children) else ANY


def _sum(node: exp.Expr, ids: Collection[str]) -> Outcomes:
    return _strict(node, ids) if _is_scalar_sum(node) else ANY


def _cast(node: exp.Expr, ids: Collection[str]) -> Outcomes:
    return ANY if _is_named_type(node) else _strict(node, ids)


def _comparison(node: exp.Expr, ids: Collection[str]) -> Outcomes:
    sides = (node.this, node.expression)
    if any(isinstance(side, exp.Any | exp.All) for side in sides):
        return ANY
    pairs = (sides, sides[::-1])
    sure = any(is_null_over_nulls(a, ids) and not may_be_union(b) for a, b in pairs)
    return NULL if sure else ANY


def _between(node: exp.Expr, ids: Collection[str]) -> Outcomes:
    bounds = (node.args["low"], node.args["high"])
    if any(may_be_union(part) for part in (node.this, *bounds)):
        return ANY
    if is_null_over_nulls(node.this, ids):
        return NULL
    one = any(is_null_over_nulls(bound, ids) for bound in bounds)
    return frozenset((False, None)) if one else frozenset((True, False, None))


def _truth(values: Outcomes) -> Outcomes:
    """Return the values as a condition; a number may be either."""
    return (values - {VALUE}) | {True, False} if VALUE in values else values


def _logic(node: exp.Expr, ids: Collection[str], decides: bool) -> Outcomes:
    """AND (one FALSE decides) and OR (one TRUE decides)."""
    left, right = (_truth(outcomes(side, ids)) for side in (node.this, node.expression))
    results: set[bool | str | None] = set()
    for pair in product(left, right):
        results.add(decides if decides in pair else None if None in pair else not decides)
    return frozenset(results)


def _not(node: exp.Expr, ids: Collection[str]) -> Outcomes:
    values = _truth(outcomes(node.this, ids))
    return frozenset(None if value is None else not value for value in values)


def _is(node: exp.Expr, ids: Collection[str]) -> Outcomes:
    """x IS NULL, x IS TRUE, x IS FALSE; sqlglot has IS NOT as NOT (x IS ...)."""
    values = outcomes(node.this, ids)
    if isinstance(node.expression, exp.Null):
        return frozenset(value is None for value in values)
    if isinstance(node.expression, exp.Boolean):
        wanted = bool(node.expression.this)
        return frozenset(value is wanted for value in _truth(values))
    return ANY


def _distinct(same: bool) -> Callable[[exp.Expr, Collection[str]], Outcomes]:
    def rule(node: exp.Expr, ids: Collection[str]) -> Outcomes:
        left, right = outcomes(node.this, ids), outcomes(node.expression, ids)
        if left == right == NULL:
            return frozenset((same,))
        if (left == NULL and None not in right) or (right == NULL and None not in left):
            return frozenset((not same,))
        return frozenset((True, False))

    return rule


def _coalesce(node: exp.Expr, ids: Collection[str]) -> Outcomes:
    values: Outcomes = frozenset()
    parts = node.expressions if isinstance(node, exp.Anonymous) else (node.this, *node.expressions)
    for part in parts:
        one = outcomes(part, ids)
        values |= one - NULL
        if None not in one:
            return values
    return values | NULL


def _nullif(node: exp.Expr, ids: Collection[str]) -> Outcomes:
    values = outcomes(node.this, ids)
    return values | NULL


def _case(node: exp.Expr, ids: Collection[str]) -> Outcomes:
    values: Outcomes = frozenset()
    subject = node.this
    for branch in node.args["ifs"]:
        test = branch.this
        if subject is not None:
            test = exp.EQ(this=subject.copy(), expression=test.copy())
        possible = _truth(outcomes(test, ids))
        if True in possible:
            values |= outcomes(branch.args["true"], ids)
        if possible == {True}:
            return values
    default = node.args.get("default")
    return values | (NULL if default is None else outcomes(default, ids))


def _if(node: exp.Expr, ids: Collection[str]) -> Outcomes:
    """Return the results of the function if(test, then, else)."""
    if len(node.expressions) != 3:
        return ANY
    test, then, otherwise = node.expressions
    possible = _truth(outcomes(test, ids))
    values: Outcomes = frozenset()
    if True in possible:
        values |= outcomes(then, ids)
    if possible != {True}:
        values |= outcomes(otherwise, ids)
    return values


def _in(node: exp.Expr, ids: Collection[str]) -> Outcomes:
    if any(may_be_union(part) for part in node.expressions):
        return ANY
    if not is_null_over_nulls(node.this, ids):
        return frozenset((True, False, None))
    query = node.args.get("query")
    if query is not None:
        return ANY if may_be_union(query) else frozenset((False, None))  # FALSE of no rows
    return NULL if node.expressions and not node.args.get("unnest") else ANY


def _inner(node: exp.Expr, ids: Collection[str]) -> Outcomes:
    return outcomes(node.this, ids)


def _part(node: exp.Expr, ids: Collection[str]) -> Outcomes:
    """Return the values of a field or a list element; a node after a dot may be a call."""
    if isinstance(node, exp.Dot) and not isinstance(node.expression, exp.Identifier):
        return ANY
    return NULL if is_null_over_nulls(node.this, ids) else ANY


# -- types -----------------------------------------------------------------------------------------


def typed(node: exp.Column, types: Iterable[str]) -> exp.Column:
    """Return the column, with its types in the databases that it is read from."""
    node.meta[TYPES] = tuple(types)
    return node


TYPES = "sqlfl_types"
"""Key in the meta of a column; DuckDB's types, as text."""


def may_be_union(node: exp.Expr) -> bool:
    """Return True where the value may be of a UNION, or of a type that its owner has named."""
    for part in node.walk():
        if isinstance(part, exp.Column):
            types = part.meta_get(TYPES)
            if types is None or any("UNION" in type_ for type_ in types):
                return True
        if isinstance(part, exp.Cast) and _is_named_type(part):
            return True
        if isinstance(part, exp.Anonymous) and part.name.lower() == "union_value":
            return True
    return False


def is_scalar(node: exp.Expr) -> bool:
    """Return True where the value is surely no list, array, struct, map or UNION."""
    if isinstance(node, exp.Column):
        types = node.meta_get(TYPES) or ("",)
        return all(_SCALAR.fullmatch(type_) for type_ in types)
    if isinstance(node, exp.Paren):
        return is_scalar(node.this)
    if isinstance(node, exp.Cast):
        return _SCALAR.fullmatch(to_sql(node.args["to"]).upper()) is not None
    if isinstance(node, Infix | Prefix | exp.Add):
        return _is_scalar_sum(node)
    return isinstance(node, (exp.Literal, exp.Boolean, *ARITHMETIC, *_TRUTHS))


def _is_scalar_sum(node: exp.Expr) -> bool:
    """`a + b` of numbers or times; lists are added to lists alone."""
    if isinstance(node, Infix | Prefix) and node.args["operator"] != "+":
        return False
    return any(is_scalar(side) for side in node.iter_expressions())


def _is_named_type(cast: exp.Expr) -> bool:
    """Return whether it casts to a UNION, or to a user-defined type, which may be one. DuckDB lets
    nobody define a type with the name of its own.
    """
    return _SCALAR.fullmatch(to_sql(cast.args["to"]).upper()) is None


_RULES: Iterable[
    tuple[
        type[exp.Expr] | tuple[type[exp.Expr], ...], Callable[[exp.Expr, Collection[str]], Outcomes]
    ]
] = (
    (exp.Paren, _inner),
    (exp.Add, _sum),
    (exp.Cast, _cast),
    (COMPARISONS, _comparison),
    (exp.And, lambda node, ids: _logic(node, ids, False)),
    (exp.Or, lambda node, ids: _logic(node, ids, True)),
    (exp.Not, _not),
    (exp.NullSafeEQ, _distinct(True)),
    (exp.NullSafeNEQ, _distinct(False)),
    (exp.Is, _is),
    (exp.Between, _between),
    (exp.Coalesce, _coalesce),
    (exp.Nullif, _nullif),
    (exp.Case, _case),
    (exp.In, _in),
    (exp.Dot, _part),
    (exp.Bracket, _part),
)
_NAMED: Mapping[str, Callable[[exp.Expr, Collection[str]], Outcomes]] = {
    "if": _if,
    "ifnull": _coalesce,
}
