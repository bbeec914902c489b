"""Joins of FROM: names and conditions of both sides brought together, LEFT JOINs kept in a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from sqlfl.planner import emit
from sqlfl.planner.columns import with_column_aliases
from sqlfl.planner.names import Scope, nearest
from sqlfl.planner.nulls import is_null_over_nulls
from sqlfl.planner.push import Pusher
from sqlfl.planner.relations import (
    Group,
    Item,
    Left,
    Output,
    Relation,
    Term,
    guard,
    ids_of,
    operand,
    with_presence,
)
from sqlfl.planner.spans import plan_error, span_of

if TYPE_CHECKING:
    from sqlfl.planner.bind import Environment


@dataclass(frozen=True)
class State:
    """A FROM while it is read: what has been joined so far."""

    relations: tuple[Relation, ...]
    tree: Group
    items: tuple[Item, ...] = ()
    """In the order in which they are written, whatever is LEFT JOINed to what."""


@dataclass(frozen=True)
class Joiner:
    pusher: Pusher
    sql: str

    def check(self, lefts: Sequence[State], rights: Sequence[State], join: exp.Join) -> None:
        """LEFT JOIN distributes over a union on its left, not over one on its right."""
        side = join.side.upper()
        if side not in ("LEFT", "RIGHT"):
            return
        parts = rights if side == "LEFT" else lefts
        if len(parts) > 1:
            place = "right" if side == "LEFT" else "left"
            raise plan_error(
                f"the {place} side of a {side} JOIN is a union of {len(parts)} joins: its parts "
                "cannot be joined one by one",
                self.sql,
                join.this,
                "make it a union of single tables, or LEFT JOIN each of its tables by itself",
            )

    def join(self, left: State, right: State, join: exp.Join, known: Environment) -> State:
        conditions = self._conditions(left, right, join, known)
        merged = {n.lower() for n in self._using(left, right, join)}
        side = join.side.upper()
        if side == "LEFT":
            tree = _left_join(left, right, conditions, join, self.sql)
            right = _guarded(right)
        elif side == "RIGHT":
            tree = _left_join(right, left, conditions, join, self.sql)
            left = _guarded(left)
            left = replace(left, items=tuple(_taking(i, right, merged) for i in left.items))
        else:
            tree = Group(
                (*left.tree.core, *right.tree.core),
                (*left.tree.conditions, *right.tree.conditions, *conditions),
                (*left.tree.lefts, *right.tree.lefts),
            )
        hidden = tuple(replace(item, hidden=item.hidden | merged) for item in right.items)
        return State((*left.relations, *right.relations), tree, (*left.items, *hidden))

    def _conditions(
        self, left: State, right: State, join: exp.Join, known: Environment
    ) -> tuple[Term, ...]:
        found = []
        for name in self._using(left, right, join):
            sides = [self._side(s, name, join) for s in (left, right)]
            condition = exp.EQ(this=operand(sides[0]), expression=operand(sides[1]))
            place = join.args.get("using") or [join.this]
            spot = next((u for u in place if u.name == name), join.this)
            found.append(Term(condition, span_of(spot, self.sql)))
        on = join.args.get("on")
        if on is not None:
            scope = Scope((*left.items, *right.items), self.sql)
            found.append(self.pusher.term(on, scope, known, ()))
        return tuple(found)

    def _using(self, left: State, right: State, join: exp.Join) -> list[str]:
        """Columns that are joined by their name."""
        if join.method.upper() != "NATURAL":
            return [u.name for u in join.args.get("using") or []]
        own = {n.lower() for i in right.items for n, _ in i.shown()}
        names = [n for i in left.items for n, _ in i.shown()]
        common = [n for n in dict.fromkeys(names) if n.lower() in own]
        if not common:
            raise plan_error(
                "NATURAL JOIN finds no column that both sides have", self.sql, join.this,
                "write the equality: JOIN ... ON a.x = b.y",
            )  # fmt: skip
        return common

    def _side(self, state: State, name: str, join: exp.Join) -> exp.Expr:
        scope = Scope(state.items, self.sql)
        spot = next((u for u in join.args.get("using") or [] if u.name == name), join.this)
        node = exp.Column(this=spot.copy() if isinstance(spot, exp.Identifier) else None)
        if not isinstance(spot, exp.Identifier):
            node.set("this", emit.identifier(name))
        found = scope.lookup(node)
        if found is None:
            sides = " and ".join(item.name for item in state.items)
            known = (n for item in state.items for n, _ in item.columns)
            message = f"USING ({name}): {sides} has no column {name}"
            raise plan_error(message, self.sql, spot, nearest(name, known))
        return found


def _taking(item: Item, right: State, names: set[str]) -> Item:
    """The item with its merged columns those of the right, whose rows are all there."""
    own = [n.lower() for n in names if item.bare(n) is not None]
    found = {n: next(t for i in right.items if (t := i.bare(n)) is not None) for n in own}
    return replace(item, merged={**item.merged, **found}) if found else item


def _left_join(
    kept: State, optional: State, conditions: tuple[Term, ...], join: exp.Join, sql: str
) -> Group:
    edge = Left(optional.tree, conditions, span_of(join.this, sql))
    return replace(kept.tree, lefts=(*kept.tree.lefts, edge))


def _guarded(state: State) -> State:
    """The right side of a LEFT JOIN, with columns that are NULL where it has no row."""
    ids = frozenset(state.tree.ids)
    needed: set[str] = set()

    def term(old: Term) -> Term:
        if is_null_over_nulls(old.expression, ids):
            return old
        id_ = next((i for i in state.tree.core if i in ids_of(old)), state.tree.id)
        needed.add(id_)
        return replace(old, expression=guard(old.expression, id_))

    items = tuple(
        replace(
            item,
            columns=tuple((n, term(t)) for n, t in item.columns),
            merged={n: term(t) for n, t in item.merged.items()},
        )
        for item in state.items
    )
    relations = tuple(with_presence(r) if needed & set(r.ids) else r for r in state.relations)
    return replace(state, items=items, relations=relations)


def renamed(state: State, node: exp.Subquery) -> State:
    """The joins in parentheses, with an alias."""
    columns = tuple(c for item in state.items for c in item.shown())
    outputs = tuple(Output(n, t) for n, t in columns)
    shown = with_column_aliases(outputs, tuple(node.alias_column_names))
    return replace(state, items=(Item(node.alias, shown),))
