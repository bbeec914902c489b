"""Joins of FROM: the names and conditions of both sides, with LEFT JOINs kept in a tree. `emit`
writes the query that maps their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from sqlfl.contract.schema import folded
from sqlfl.planner.grammar.parsing import COMMA
from sqlfl.planner.grammar.statements import Span
from sqlfl.planner.grammar.trees import plan_error, span_of
from sqlfl.planner.query.columns import with_column_aliases
from sqlfl.planner.query.ctes import Environment
from sqlfl.planner.query.names import nearest
from sqlfl.planner.query.nulls import is_null_over_nulls
from sqlfl.planner.query.push import Pusher
from sqlfl.planner.query.relations import (
    DraftRelation,
    Group,
    Item,
    Merged,
    OuterJoin,
    Output,
    Term,
    guard,
    ids_of,
    operand,
    with_presence,
)
from sqlfl.planner.query.scopes import Scope

INSTEAD_OF_SUBQUERY = (
    "the one row with an equal key may be a column, or a mean, sum or count of several: (SELECT "
    "u.x FROM party.table AS u WHERE u.key = t.key), (SELECT avg(u.x) ...); IN and EXISTS stand in "
    "WHERE or in a column, and join by equalities or windows of days: u.key = t.key AND u.day "
    "BETWEEN t.day - 7 AND t.day; write one value as a number"
)
"""The hint for a subquery over another party's table."""
CONDITION = "JOIN ... ON a.x = b.y, or USING (column); each row with every row: CROSS JOIN"


@dataclass(frozen=True)
class State:
    """A FROM while it is read: the joins so far."""

    relations: tuple[DraftRelation, ...]
    tree: Group
    items: tuple[Item, ...] = ()
    """Items in the order of the text, independent of LEFT JOINs."""
    merged: tuple[Merged, ...] = ()

    def scope(self, sql: str, outer: Scope | None = None) -> Scope:
        return Scope(self.items, sql, self.merged, outer=outer)


@dataclass(frozen=True)
class Joiner:
    pusher: Pusher
    sql: str

    def check(self, lefts: Sequence[State], rights: Sequence[State], join: exp.Join) -> None:
        """LEFT JOIN distributes over a union on its left, not over one on its right."""
        side = join.side.upper()
        optional = {
            "right": rights if side in ("LEFT", "FULL") else (),
            "left": lefts if side in ("RIGHT", "FULL") else (),
        }
        for place, parts in optional.items():
            if len(parts) < 2:
                continue
            raise plan_error(
                f"the {place} side of a {side} JOIN is a union of {len(parts)} joins: its parts "
                "cannot be joined one by one",
                self.sql,
                join.this,
                "make it a union of single tables, or LEFT JOIN each of its tables by itself",
            )

    def join(
        self,
        left: State,
        right: State,
        join: exp.Join,
        known: Environment,
        outer: Scope | None,
    ) -> list[State]:
        """Return the parts whose union is the join. A FULL JOIN has two: a LEFT JOIN, and the rows
        on its right without a partner. `outer` holds earlier tables that ON may name if neither
        side has the name.
        """
        if join.side.upper() != "FULL":
            return [self._joined(left, right, join, known, outer)]
        sides = [join.copy(), join.copy()]
        for part, side in zip(sides, ("LEFT", "RIGHT"), strict=True):
            part.set("side", side)
        parts = [self._joined(left, right, part, known, outer) for part in sides]
        return [parts[0], _without_partner(parts[1], left.tree.id, span_of(join.this, self.sql))]

    def _joined(
        self,
        left: State,
        right: State,
        join: exp.Join,
        known: Environment,
        outer: Scope | None,
    ) -> State:
        pairs = self._pairs(left, right, join)
        conditions = (*(p.condition for p in pairs), *self._on(left, right, join, known, outer))
        side = join.side.upper()
        if side == "LEFT":
            right, moved = self._contained(right, join)
            tree = _left_join(left, right, (*moved, *conditions), join, self.sql)
            right = _guarded(right)
        elif side == "RIGHT":
            left, moved = self._contained(left, join)
            tree = _left_join(right, left, (*moved, *conditions), join, self.sql)
            left = _guarded(left)
        else:
            tree = Group(
                (*left.tree.core, *right.tree.core),
                (*left.tree.conditions, *right.tree.conditions, *conditions),
                (*left.tree.lefts, *right.tree.lefts),
            )
        merged = _merged(left, right, pairs, side)
        relations = (*left.relations, *right.relations)
        return State(relations, tree, (*left.items, *right.items), merged)

    # -- names -------------------------------------------------------------------------------------

    def _pairs(self, left: State, right: State, join: exp.Join) -> list[_Pair]:
        """Return the columns that are joined by name, once each."""
        pairs: dict[str, _Pair] = {}
        for name, spot in self._using(left, right, join):
            if folded(name) not in pairs:
                sides = [self._side(s, name, spot) for s in (left, right)]
                pairs[folded(name)] = _Pair(name, sides[0], sides[1], span_of(spot, self.sql))
        return list(pairs.values())

    def _using(
        self, left: State, right: State, join: exp.Join
    ) -> list[tuple[str, exp.Identifier | exp.Expr]]:
        if join.method.upper() != "NATURAL":
            return [(u.name, u) for u in join.args.get("using") or []]
        right_names = {folded(shown.name) for shown in right.scope(self.sql).shown()}
        names = [shown.name for shown in left.scope(self.sql).shown()]
        self._refuse_lacking(left, right, join)
        common = [n for n in dict.fromkeys(names) if folded(n) in right_names]
        if not common:
            raise plan_error(
                "NATURAL JOIN finds no column that both sides have", self.sql, join.this,
                "write the equality: JOIN ... ON a.x = b.y",
            )  # fmt: skip
        return [(name, join.this) for name in common]

    def _refuse_lacking(self, left: State, right: State, join: exp.Join) -> None:
        """Raise PlanError if one client lacks a column, because it is then unclear whether NATURAL
        joins on it.
        """
        for one, other in ((left, right), (right, left)):
            known = {folded(n) for i in other.items for n, _ in (*i.columns, *i.lacking)}
            for item in one.items:
                for name, client in item.lacking:
                    if folded(name) in known:
                        raise plan_error(
                            f"NATURAL JOIN on {name}: {item.name} does not have it at {client}",
                            self.sql,
                            join.this,
                            "write the columns to join by: JOIN ... USING (column)",
                        )

    def _side(self, state: State, name: str, spot: exp.Expr) -> Term:
        column = state.scope(self.sql).bare(name, spot)
        if column is None:
            sides = " and ".join(item.name for item in state.items)
            known = (n for item in state.items for n, _ in item.columns)
            message = f"USING ({name}): {sides} has no column {name}"
            raise plan_error(message, self.sql, spot, nearest(name, known))
        return column

    # -- conditions --------------------------------------------------------------------------------

    def _on(
        self,
        left: State,
        right: State,
        join: exp.Join,
        known: Environment,
        outer: Scope | None,
    ) -> list[Term]:
        on = join.args.get("on")
        if on is None:
            self._refuse_bare(join)
            return []
        merged = (*left.merged, *_moved(right.merged, len(left.items)))
        scope = Scope((*left.items, *right.items), self.sql, merged, outer=outer)
        return [self.pusher.term(on, scope, known)]

    def _refuse_bare(self, join: exp.Join) -> None:
        by_name = join.args.get("using") or join.method.upper() == "NATURAL"
        if not (by_name or join.kind.upper() == "CROSS" or join.meta_get(COMMA)):
            raise plan_error(
                f"{f'{join.side} {join.kind}'.strip()} JOIN needs a condition".lstrip(),
                self.sql,
                join.this,
                CONDITION,
            )

    def _contained(self, state: State, join: exp.Join) -> tuple[State, tuple[Term, ...]]:
        """Return the optional side of a LEFT JOIN, and its conditions for ON: those that name
        tables before the parentheses.
        """
        inside = set(state.tree.ids)
        moved = tuple(t for t in state.tree.conditions if not ids_of(t) <= inside)
        kept = tuple(t for t in state.tree.conditions if ids_of(t) <= inside)
        tree = replace(state.tree, conditions=kept)
        for term in tree.terms():
            if not ids_of(term) <= inside:
                raise plan_error(
                    "a condition of the joins in parentheses names a table before them",
                    self.sql,
                    term.span or join.this,
                    "join that table inside of the parentheses, or leave them out",
                )
        return replace(state, tree=tree), moved


@dataclass(frozen=True)
class _Pair:
    """A column of each side, in a join by name."""

    name: str
    left: Term
    right: Term
    span: Span | None

    @property
    def condition(self) -> Term:
        sides = (operand(side.expression.copy()) for side in (self.left, self.right))
        return Term(exp.EQ(this=next(sides), expression=next(sides)), self.span)


def _merged(left: State, right: State, pairs: Sequence[_Pair], side: str) -> tuple[Merged, ...]:
    """The columns that USING makes from both sides, and those of this join."""
    before = (*left.merged, *_moved(right.merged, len(left.items)))
    names = {folded(pair.name) for pair in pairs}
    not_joined = tuple(m for m in before if folded(m.name) not in names)
    joined = []
    items = (*left.items, *right.items)
    for pair in pairs:
        old = [m for m in before if folded(m.name) == folded(pair.name)]
        within = {place for m in old for place in m.items}
        for part, start in ((left, 0), (right, len(left.items))):
            if not any(start <= place < start + len(part.items) for m in old for place in m.items):
                places = range(start, start + len(part.items))
                within |= {p for p in places if items[p].find(pair.name) is not None}
        term = pair.right if side == "RIGHT" else pair.left
        joined.append(Merged(pair.name, tuple(sorted(within)), term))
    return (*not_joined, *joined)


def _moved(merged: Sequence[Merged], by: int) -> tuple[Merged, ...]:
    return tuple(replace(m, items=tuple(place + by for place in m.items)) for m in merged)


def _left_join(
    kept: State, optional: State, conditions: tuple[Term, ...], join: exp.Join, sql: str
) -> Group:
    edge = OuterJoin(optional.tree, conditions, span_of(join.this, sql))
    return replace(kept.tree, lefts=(*kept.tree.lefts, edge))


def _without_partner(state: State, id_: str, span: Span | None) -> State:
    """Keep the rows without a row of a relation on the right of a LEFT JOIN."""
    missing = exp.Is(this=operand(guard(exp.true(), id_)), expression=exp.Null())
    tree = replace(state.tree, conditions=(*state.tree.conditions, Term(missing, span)))
    relations = tuple(with_presence(r) if id_ in r.ids else r for r in state.relations)
    return replace(state, relations=relations, tree=tree)


def _guarded(state: State) -> State:
    """Return the right side of a LEFT JOIN, with columns that are NULL if a row has no partner."""
    ids = frozenset(state.tree.ids)
    needed: set[str] = set()

    def term(old: Term) -> Term:
        if is_null_over_nulls(old.expression, ids):
            return old
        id_ = next((i for i in state.tree.core if i in ids_of(old)), state.tree.id)
        needed.add(id_)
        return replace(old, expression=guard(old.expression, id_))

    items = tuple(
        replace(item, columns=tuple((n, term(t)) for n, t in item.columns)) for item in state.items
    )
    merged = tuple(replace(m, term=term(m.term)) for m in state.merged)
    relations = tuple(with_presence(r) if needed & set(r.ids) else r for r in state.relations)
    return replace(state, items=items, merged=merged, relations=relations)


def renamed(state: State, node: exp.Subquery, sql: str) -> State:
    """The joins in parentheses, with an alias."""
    outputs = tuple(Output(s.name, s.term) for s in state.scope(sql).shown())
    shown = with_column_aliases(outputs, tuple(node.alias_column_names), node, sql)
    lacking = tuple(pair for item in state.items for pair in item.lacking)
    return replace(state, items=(Item(node.alias, shown, lacking=lacking),), merged=())
