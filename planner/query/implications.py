"""Joins and conditions that follow from conditions.

A LEFT JOIN is an inner join where a condition fails for the rows that it adds. A condition follows
from others over equal keys: `m.week = 10` from `t.week = 10` and `m.week = t.week`. So a table
sends the keys of fewer rows, and no joined row is another one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from sqlglot import exp

from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.query import types
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.equalities import is_bytewise
from sqlfl.planner.query.keys import text_of
from sqlfl.planner.query.nulls import COMPARISONS, is_null_over_nulls, rejects_nulls
from sqlfl.planner.query.relations import (
    ClientBranch,
    DraftBlock,
    DraftRelation,
    Equality,
    Group,
    OuterJoin,
    Term,
    clients_of,
    ids_of,
    operand,
    substituted,
)


def simplify_joins(draft: Draft) -> Draft:
    """Move conditions of ON that only the right side decides to it, and turn LEFT JOINs into inner
    joins where possible.

    Rows without a label are left out, so the target is such a condition too.
    """
    position = draft.target_position

    def simplify(block: DraftBlock) -> DraftBlock:
        strict: tuple[Term, ...] = ()
        if position is not None:
            target = block.outputs[position].term
            known = exp.Not(this=exp.Is(this=operand(target.expression), expression=exp.Null()))
            strict = (Term(known, target.span),)
        return replace(block, tree=_simplified(block, block.tree, strict))

    return draft.each_block(simplify)


def _simplified(block: DraftBlock, group: Group, after: tuple[Term, ...]) -> Group:
    """Simplify the group; `after` are outer conditions on its rows."""
    lefts = [_with_own_conditions(block, left) for left in group.lefts]
    conditions = list(group.conditions)
    core = list(group.core)
    while (place := _inner(lefts, (*conditions, *after))) is not None:
        left = lefts[place]
        core += left.group.core
        conditions += [*left.on, *left.group.conditions]
        lefts[place : place + 1] = [_with_own_conditions(block, n) for n in left.group.lefts]
    return Group(
        tuple(core),
        tuple(conditions),
        tuple(replace(n, group=_simplified(block, n.group, n.on)) for n in lefts),
    )


def _inner(lefts: list[OuterJoin], conditions: tuple[Term, ...]) -> int | None:
    """Return the first LEFT JOIN whose unmatched rows fail a condition. A lookup stays, since rows
    with several partners must be found.
    """
    for place, left in enumerate(lefts):
        if left.lookup:
            continue
        ids = frozenset(left.group.ids)
        if any(rejects_nulls(condition.expression, ids) for condition in conditions):
            return place
    return None


def _with_own_conditions(block: DraftBlock, left: OuterJoin) -> OuterJoin:
    ids = frozenset(left.group.ids)
    moved = tuple(term for term in left.on if _belongs(block, left.group, ids, term))
    group = replace(left.group, conditions=(*left.group.conditions, *moved))
    return replace(left, group=group, on=tuple(term for term in left.on if term not in moved))


def _belongs(block: DraftBlock, group: Group, ids: frozenset[str], term: Term) -> bool:
    read = ids_of(term)
    if read:
        return read <= ids
    clients = clients_of(term.expression)
    holders = (block.relations[block.of(i)].client for i in group.core)
    return not clients or any(holder == clients[0] for holder in holders)


_MAX_DIGITS = 18
"""Digits of numbers in conditions. Beyond, DuckDB may cast the column, and fail."""
_MOMENTS = {"DATE": ("DATE",), "TIMESTAMP": ("DATE", "TIMESTAMP")}
"""Types that a constant may be cast to without a cast of the column."""
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def derive_conditions(draft: Draft) -> Draft:
    """Apply conditions on one side of a join's equality to the other side.

    Only comparisons with constants are copied, and only if both sides have one type in which equal
    values compare alike. The right side of a LEFT JOIN takes them from its left side, never the
    reverse. A table with policies takes none: there a condition is a release that the statement has
    not asked for. A table that several blocks of a union share takes none if the blocks differ,
    because it would be sent once for each.
    """
    found = [_Deriving(draft, block).derived() for block in draft.blocks]
    said: dict[object, set[frozenset[str]]] = {}
    for block, derived in zip(draft.blocks, found, strict=True):
        for at, relation in enumerate(block.relations):
            texts = (text_of(relation, term) for place, term in derived if place == at)
            said.setdefault(_tables(relation), set()).add(frozenset(texts))
    return replace(
        draft,
        blocks=tuple(
            _with(block, [d for d in derived if len(said[_tables(block.relations[d[0]])]) == 1])
            for block, derived in zip(draft.blocks, found, strict=True)
        ),
    )


def _tables(relation: DraftRelation) -> object:
    """Return the relation's source without the numbers that binding gave it."""
    return tuple(
        (branch.client, tuple(to_sql(source.item) for source in branch.sources))
        for branch in relation.branches
    )


def _with(block: DraftBlock, derived: Sequence[tuple[int, Term]]) -> DraftBlock:
    """The block with the conditions, each in the group of its relation."""

    def added(group: Group) -> Group:
        core = [block.of(id_) for id_ in group.core]
        own = (term for at, term in derived if at in core)
        lefts = (replace(left, group=added(left.group)) for left in group.lefts)
        return replace(group, conditions=(*group.conditions, *own), lefts=tuple(lefts))

    return replace(block, tree=added(block.tree), derived=tuple(derived))


class _Deriving:
    """Conditions that follow within one block of the union."""

    def __init__(self, draft: Draft, block: DraftBlock) -> None:
        self._draft, self._old = draft, block
        self._known: dict[int, dict[str, Term]] = {}
        """Conditions of each relation's joined rows, by their text."""
        self._bytewise: dict[tuple[int, str], bool] = {}

    def derived(self) -> list[tuple[int, Term]]:
        return self._group(self._old.tree, ())

    def _group(self, group: Group, given: Sequence[tuple[int, Term]]) -> list[tuple[int, Term]]:
        """Derive conditions within the group. `given` follows from the groups before it."""
        waiting: list[tuple[int, Term]] = []
        for condition in group.conditions:
            reads = self._old.reads(condition)
            if len(reads) == 1 and _value(condition.expression) is not None:
                self._learn(reads[0], condition)
                waiting.append((reads[0], condition))
        added = [pair for pair in given if self._learn(*pair)]
        waiting += added
        inner = [e for e in self._old.equalities if not e.own and e.group == group.id]
        while waiting:
            at, condition = waiting.pop(0)
            for equality, flip in product(inner, (False, True)):
                found = self._across(equality, flip, at, condition)
                if found is not None and self._learn(*found):
                    added.append(found)
                    waiting.append(found)
        for left in group.lefts:
            added += self._group(left.group, self._given(left))
        return added

    def _given(self, left: OuterJoin) -> list[tuple[int, Term]]:
        """Derive conditions for the right side of a LEFT JOIN."""
        given = []
        for equality in self._old.equalities:
            if equality.on and equality.group == left.group.id:
                for condition in self._known.get(equality.left, {}).values():
                    found = self._across(equality, False, equality.left, condition)
                    if found is not None:
                        given.append(found)
        return given

    def _learn(self, at: int, condition: Term) -> bool:
        """Add a condition, and return whether it is new."""
        known = self._known.setdefault(at, {})
        text = to_sql(condition.expression)
        return known.setdefault(text, condition) is condition

    def _across(
        self, equality: Equality, flip: bool, at: int, condition: Term
    ) -> tuple[int, Term] | None:
        """Return the condition for the other side of the equality."""
        ends = [(equality.left, equality.terms[0]), (equality.right, equality.terms[1])]
        (own, side), (other, target) = ends[::-1] if flip else ends
        value = _value(condition.expression)
        if own != at or value is None or to_sql(value) != to_sql(side.expression.unnest()):
            return None
        relation = self._old.relations[own]
        if own in self._old.optional and not is_null_over_nulls(side.expression, relation.ids):
            return None  # the row that a LEFT JOIN adds has a key too, and fulfils no condition
        branches = self._old.relations[other].branches
        if any(self._draft.catalog.governed(branch.client) for branch in branches):
            return None
        if not all(self._is_sure(other, branch, target) for branch in branches):
            return None
        if not self._alike((own, side), (other, target), condition):
            return None
        return other, Term(_replaced(condition.expression, target.expression), condition.span)

    def _is_sure(self, at: int, branch: ClientBranch, target: Term) -> bool:
        """Return whether the key is a column, or a cast of it that cannot fail: conditions of the
        query may exclude rows from it.
        """
        expression = substituted(target, branch).expression.unnest()
        if not isinstance(expression, exp.Cast) or isinstance(expression, exp.TryCast):
            return isinstance(expression, exp.Column)
        whole = replace(self._old.relations[at], branches=(branch,))
        inner = Term(expression.this, target.span)
        if not isinstance(inner.expression, exp.Column):
            return False
        from_, to = (self._draft.types(whole, [term])[0][0] for term in (inner, target))
        return types.lossless(types.normal(from_), types.normal(to)) == types.normal(to)

    # -- types -------------------------------------------------------------------------------------

    def _alike(self, own: tuple[int, Term], other: tuple[int, Term], condition: Term) -> bool:
        """Return whether equal values of both sides compare alike with the constants."""
        found = {
            types.normal(type_)
            for at, term in (own, other)
            for type_ in self._draft.types(self._old.relations[at], [term])[0]
        }
        whole = all(types.is_integer(type_) and type_ != "UHUGEINT" for type_ in found)
        if not whole and len(found) > 1:
            return False
        type_ = "BIGINT" if whole else next(iter(found))
        constants = [c for _, compared in _atoms(condition.expression) or () for c in compared]
        if not all(_fits(constant, type_) for constant in constants):
            return False
        return type_ != "VARCHAR" or all(self._is_bytewise(*end) for end in (own, other))

    def _is_bytewise(self, at: int, term: Term) -> bool:
        key = at, to_sql(term.expression)
        if key not in self._bytewise:
            self._bytewise[key] = self._asked_bytewise(at, term)
        return self._bytewise[key]

    def _asked_bytewise(self, at: int, term: Term) -> bool:
        catalog, branches = self._draft.catalog, self._old.relations[at].branches
        return all(is_bytewise(catalog, b, substituted(term, b).expression) for b in branches)


def _value(condition: exp.Expr) -> exp.Expr | None:
    """The one expression that the condition compares with constants."""
    values = [value.unnest() for value, _ in _atoms(condition) or ()]
    return values[0] if len({to_sql(value) for value in values}) == 1 else None


def _atoms(condition: exp.Expr) -> list[tuple[exp.Expr, list[exp.Expr]]] | None:
    """Return each compared value with its constants; None for any other condition."""
    if isinstance(condition, exp.Paren | exp.Not):
        return _atoms(condition.this)
    if isinstance(condition, exp.And | exp.Or):
        left, right = _atoms(condition.left), _atoms(condition.right)
        return None if left is None or right is None else left + right
    if isinstance(condition, COMPARISONS):
        sides = [condition.left, condition.right]
        value, constant = sides if _is_constant(sides[1]) else sides[::-1]
        compared = [constant]
    elif isinstance(condition, exp.Between) and not condition.args.get("symmetric"):
        value, compared = condition.this, [condition.args["low"], condition.args["high"]]
    elif isinstance(condition, exp.In) and set(_given(condition)) == {"this", "expressions"}:
        value, compared = condition.this, [*condition.expressions]
    elif isinstance(condition, exp.Is) and isinstance(condition.expression, exp.Null):
        value, compared = condition.this, []
    else:
        return None
    known = all(_is_constant(constant) for constant in compared)
    return [(value, compared)] if known and value.find(exp.Column) is not None else None


def _given(node: exp.Expr) -> list[str]:
    return [name for name, value in node.args.items() if value not in (None, [], False)]


def _is_constant(node: exp.Expr) -> bool:
    """Return whether it is a constant of a kind that `_fits` checks."""
    node = node.unnest()
    if isinstance(node, exp.Neg):
        return isinstance(node.this, exp.Literal) and not node.this.is_string
    if isinstance(node, exp.Cast) and not isinstance(node, exp.TryCast):
        return isinstance(node.this, exp.Literal) and node.this.is_string
    return isinstance(node, exp.Literal | exp.Boolean)


def _fits(constant: exp.Expr, type_: str) -> bool:
    """Return whether every database compares a column of the type with the constant uncast."""
    constant = constant.unnest()
    if isinstance(constant, exp.Cast):
        kind = to_sql(constant.args["to"]).upper()
        return kind in _MOMENTS.get(type_, ()) and _fits(constant.this, "TIMESTAMP")
    if isinstance(constant, exp.Boolean):
        return type_ == "BOOLEAN"
    text = constant.this.name if isinstance(constant, exp.Neg) else constant.name
    if isinstance(constant, exp.Literal) and constant.is_string:
        if type_ in _MOMENTS:
            return _MOMENT.fullmatch(text) is not None
        return type_ == "VARCHAR" or (type_ == "UUID" and _UUID.fullmatch(text) is not None)
    if sum(c.isdigit() for c in text) > _MAX_DIGITS or not re.fullmatch(r"\d+(\.\d+)?", text):
        return False
    if types.is_integer(type_):
        return "." not in text and type_ != "UHUGEINT"
    decimal = re.fullmatch(r"DECIMAL\((\d+), ?\d+\)", type_)
    return type_ in ("FLOAT", "DOUBLE") or (decimal is not None and int(decimal[1]) <= _MAX_DIGITS)


def _replaced(condition: exp.Expr, value: exp.Expr) -> exp.Expr:
    """The condition of another value."""
    found = exp.Paren(this=condition.copy())
    for old, _ in _atoms(found) or ():
        old.replace(operand(value.copy()))
    result: exp.Expr = found.this
    return result
