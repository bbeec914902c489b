"""Recognise equalities in all their forms, with their treatment of NULL and of collations.

Between parties texts are equal where their bytes are. So a key whose text has a collation is sent
as the text that the collation compares, such as `lower(name)` for NOCASE.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp, parse_one

from sqlfl.base.errors import LostError, PartyError, ReplyError
from sqlfl.contract.schema import Catalog
from sqlfl.planner.grammar.refusals import function_name
from sqlfl.planner.grammar.sql import Dialect, to_sql
from sqlfl.planner.query import types
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.relations import ClientBranch, DraftRelation, Term, operand, substituted
from sqlfl.planner.query.scalars import Asker


@dataclass(frozen=True)
class Equal:
    """`left = right`"""

    left: exp.Expr
    right: exp.Expr
    nulls: bool = False
    """NULL equals NULL."""
    parts: bool = False
    """True if the sides are parts of rows, which DuckDB does not cast to one type as it does
    values.
    """


def equality(condition: exp.Expr) -> Equal | None:
    """The equality that the condition is."""
    if isinstance(condition, exp.NullSafeEQ):
        return Equal(condition.left, condition.right, nulls=True)
    if isinstance(condition, exp.In) and len(condition.expressions) == 1:
        return Equal(condition.this, condition.expressions[0])
    if not isinstance(condition, exp.EQ) or _has_quantifier(condition):
        return None
    left, right = _row(condition.left), _row(condition.right)
    if left is not None and right is not None and len(left) == len(right) == 1:
        return Equal(left[0], right[0], nulls=True, parts=True)
    return Equal(condition.left, condition.right)


def _has_quantifier(condition: exp.Expr) -> bool:
    """Return True for `x = ANY (values)` and `x = ALL (values)`."""
    return any(isinstance(side, exp.Any | exp.All) for side in condition.iter_expressions())


def conjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    """Conditions that hold together exactly where this one does.

    NULL and FALSE are alike here: of a row of a query, neither lets it pass.
    """
    while isinstance(condition, exp.Paren):
        condition = condition.this
    if isinstance(condition, exp.And):
        yield from conjuncts(condition.left)
        yield from conjuncts(condition.right)
        return
    if isinstance(condition, exp.Is) and to_sql(condition.expression).upper() == "TRUE":
        yield from conjuncts(condition.this)
        return
    if isinstance(condition, exp.Not):
        negated = condition.this
        while isinstance(negated, exp.Paren):
            negated = negated.this
        opposite = _opposite(negated)
        if opposite is not None:
            for part in opposite:
                yield from conjuncts(part)
            return
    if isinstance(condition, exp.Or):
        alike = _null_safe(condition)
        yield from _factored(condition) if alike is None else (alike,)
        return
    pairs = list(_parts(condition))
    yield from (pairs if len(pairs) > 1 else [condition])


def _opposite(condition: exp.Expr) -> list[exp.Expr] | None:
    """Return the negated condition as conditions that hold together, without NOT."""
    if isinstance(condition, exp.Not):
        return [condition.this]
    if isinstance(condition, exp.Or):
        return [_negated(condition.left), _negated(condition.right)]
    if isinstance(condition, exp.NEQ | exp.NullSafeNEQ):
        kind = exp.EQ if isinstance(condition, exp.NEQ) else exp.NullSafeEQ
        return [kind(this=condition.left.copy(), expression=condition.right.copy())]
    return None


def _null_safe(condition: exp.Or) -> exp.NullSafeEQ | None:
    """Return `x IS NOT DISTINCT FROM y` for `x = y OR (x IS NULL AND y IS NULL)` of two columns."""
    sides = condition.left.unnest(), condition.right.unnest()
    for equal, both in (sides, sides[::-1]):
        if not isinstance(equal, exp.EQ) or not isinstance(both, exp.And):
            continue
        nulls = [part.unnest() for part in (both.left, both.right)]
        if all(isinstance(n, exp.Is) and isinstance(n.expression, exp.Null) for n in nulls):
            ends, tested = [equal.left, equal.right], [n.this.unnest() for n in nulls]
            columns = all(isinstance(end, exp.Column) for end in ends)
            if columns and (tested == ends or tested[::-1] == ends):
                return exp.NullSafeEQ(this=equal.left.copy(), expression=equal.right.copy())
    return None


def _factored(condition: exp.Or) -> list[exp.Expr]:
    """Return `a` and `b OR c` for `(a AND b) OR (a AND c)`; other conditions as they are."""
    parts = [{_text(p): p for p in conjuncts(option)} for option in _options(condition)]
    common = [text for text in parts[0] if all(text in option for option in parts)]
    if not common:
        return [condition]
    left = [[p.copy() for text, p in option.items() if text not in common] for option in parts]
    factors = [parts[0][text] for text in common]
    if not all(left):
        return factors
    return [*factors, exp.or_(*(exp.and_(*option, copy=False) for option in left), copy=False)]


def _options(condition: exp.Expr) -> Iterator[exp.Expr]:
    while isinstance(condition, exp.Paren):
        condition = condition.this
    if isinstance(condition, exp.Or):
        yield from _options(condition.left)
        yield from _options(condition.right)
    else:
        yield condition


def _text(condition: exp.Expr) -> object:
    """Return a text that equal conditions have in common, whichever side of `=` comes first."""
    if isinstance(condition, exp.EQ):
        return frozenset((to_sql(condition.left), to_sql(condition.right)))
    return to_sql(condition)


def _negated(condition: exp.Expr) -> exp.Not:
    return exp.Not(this=operand(condition.copy()))


def _parts(condition: exp.Expr) -> Iterator[exp.Expr]:
    """Yield row comparisons part by part, each as a row of one: NULL equals NULL in rows."""
    if isinstance(condition, exp.In) and len(condition.expressions) == 1:
        condition = exp.EQ(this=condition.this, expression=condition.expressions[0])
    if isinstance(condition, exp.EQ):
        left, right = _row(condition.left), _row(condition.right)
        if left is not None and right is not None and len(left) == len(right):
            for one, other in zip(left, right, strict=True):
                sides = (exp.Tuple(expressions=[side.copy()]) for side in (one, other))
                yield exp.EQ(this=next(sides), expression=next(sides))


def _row(node: exp.Expr) -> list[exp.Expr] | None:
    """The values of `(a, b)` or `row(a, b)`."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Tuple):
        return list(node.expressions)
    if isinstance(node, exp.Anonymous) and function_name(node) == "row":
        return list(node.expressions)
    return None


BYTES = ""
"""Name of the collation that compares bytes."""
_FUNCTIONS = {
    "nocase": ("lower",),
    "noaccent": ("strip_accents",),
    "nocase.noaccent": ("lower", "strip_accents"),
    "noaccent.nocase": ("strip_accents", "lower"),
}
"""Collations of DuckDB, and the functions that it applies to a text, in order."""
_OTHER = "other"
"""Name of any other collation."""


def _literal(name: str) -> exp.Expr:
    return parse_one(f"('' COLLATE {name})", dialect=Dialect)


_COLLATED = tuple(map(_literal, ("nocase", "noaccent")))
"""Two collations. A text with either fails to bind beside a text with another collation, so only a
text without collation binds with both.
"""
_DEFAULT = parse_one(
    "struct_extract({'bytewise': true, 'other': 0}, CASE WHEN 'B' < 'a' AND 'a' <> 'A' "
    "AND 'a' <> '\u00e1' AND '\u00e1' <> 'a\u0301' THEN 'bytewise' ELSE 'other' END)",
    dialect=Dialect,
)
"""A BOOLEAN where texts compare byte by byte; a number where `default_collation` is otherwise."""


def is_bytewise(catalog: Catalog, branch: ClientBranch, *texts: exp.Expr) -> bool:
    """Return whether no collation changes how the texts compare, as far as their party says. An
    owner with policies is not asked.
    """
    if catalog.governed(branch.client):
        return False
    tests = [_equal(text, collated) for text in texts for collated in _COLLATED]
    return _binds(catalog, branch, [*tests, _DEFAULT])


def collation(draft: Draft, relation: DraftRelation, terms: Sequence[Term]) -> str:
    """Return the name of the collation that the terms' texts have at any of the relation's
    databases; BYTES without one. An owner with policies is not asked, and has none.
    """
    names = {
        name
        for branch in relation.branches
        if not draft.catalog.governed(branch.client)
        for name in _names(
            draft.catalog, branch, [substituted(t, branch).expression for t in terms]
        )
    }
    return common(names)


def is_transitive(draft: Draft, values: Sequence[tuple[DraftRelation, Term]]) -> bool:
    """Return whether values that equal one of these values of relations equal each other."""
    kinds = {
        types.normal(type_)
        for relation, term in values
        for type_ in draft.types(relation, [term])[0]
    }
    if all(types.is_integer(kind) and kind != "UHUGEINT" for kind in kinds):
        return True
    if len(kinds) != 1 or not all(map(types.can_be_key, kinds)):
        return False
    return kinds != {"VARCHAR"} or all(collation(draft, r, [term]) == BYTES for r, term in values)


def common(names: Iterable[str]) -> str:
    """Return the collation by which texts with these collations compare."""
    collated = {*names} - {BYTES}
    return _OTHER if len(collated) > 1 else next(iter(collated), BYTES)


def compared_text(text: exp.Expr, name: str) -> exp.Expr | None:
    """Return what the collation compares of a text; None for a collation that is not known."""
    if name not in (BYTES, *_FUNCTIONS):
        return None
    for function in _FUNCTIONS.get(name, ()):
        text = exp.Anonymous(this=function, expressions=[text.copy()])
    return text


def _names(catalog: Catalog, branch: ClientBranch, texts: Sequence[exp.Expr]) -> set[str]:
    if is_bytewise(catalog, branch, *texts):
        return {BYTES}
    return {_name(catalog, branch, text) for text in texts}


def _name(catalog: Catalog, branch: ClientBranch, text: exp.Expr) -> str:
    """Return a text's own collation: the only one that it binds with."""
    if _binds(catalog, branch, [_equal(text, collated) for collated in _COLLATED]):
        return BYTES
    spelled = ((name, (name, name.upper())) for name in _FUNCTIONS)  # DuckDB keeps the letters
    known = (
        name
        for name, spellings in spelled
        if any(_binds(catalog, branch, [_equal(text, _literal(s))]) for s in spellings)
    )
    return next(known, _OTHER)


def _equal(text: exp.Expr, other: exp.Expr) -> exp.Expr:
    return exp.EQ(this=operand(text.copy()), expression=other.copy())


def _binds(catalog: Catalog, branch: ClientBranch, tests: Sequence[exp.Expr]) -> bool:
    """Return whether the party binds the tests, and each is a BOOLEAN."""
    try:
        columns = Asker(catalog).columns(branch.client, branch.sources, tests, ())
    except (LostError, ReplyError):
        raise
    except PartyError:
        return False
    return all(column.type == "BOOLEAN" for column in columns)
