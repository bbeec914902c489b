"""LEFT JOINs that a condition makes inner joins, because rows that they add would fail it."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.nulls import rejects_nulls
from sqlfl.planner.query.relations import (
    DraftBlock,
    Group,
    OuterJoin,
    Term,
    clients_of,
    ids_of,
    operand,
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
    """Return the first LEFT JOIN whose unmatched rows fail a condition."""
    for place, left in enumerate(lefts):
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
