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
        """Return the names that these joins make known, then those of `outer`."""
        return Scope(self.items, sql, self.merged, outer=outer)


@dataclass(frozen=True)
class Joiner:
    """Reader of the joins in one FROM."""

    pusher: Pusher
    sql: str

    def check(self, lefts: Sequence[State], rights: Sequence[State], join: exp.Join) -> None:
        """Raise PlanError if a side of an outer join that may lack a partner is a union.

        A LEFT JOIN distributes over a union on its left, but not over one on its right: a row that
        one part lacks may have a partner in another part.
        """
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
        # the id of the left side's group: its presence is NULL in a row that found no partner there
        unmatched = _without_partner(parts[1], left.tree.id, span_of(join.this, self.sql))
        return [parts[0], unmatched]

    def _joined(
        self,
        left: State,
        right: State,
        join: exp.Join,
        known: Environment,
        outer: Scope | None,
    ) -> State:
        """Return the joins of both sides by any join but FULL. Raise PlanError for a missing
        condition, an unknown or ambiguous name, and a condition that names tables before
        parentheses.
        """
        pairs = self._pairs(left, right, join)
        conditions = (*(p.condition for p in pairs), *self._on(left, right, join, known, outer))
        side = join.side.upper()
        if side == "LEFT":
            right, moved = self._split_conditions(right, join)
            tree = _left_join(left, right, (*moved, *conditions), join, self.sql)
            right = _guarded(right)
        elif side == "RIGHT":
            left, moved = self._split_conditions(left, join)
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
        """Return the names in USING, or those that NATURAL finds, with their places in the text.
        Raise PlanError if NATURAL finds none, or if a client lacks one.
        """
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
        """Return the column of one side that USING names. Raise PlanError for none or several."""
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
        """Return the condition of ON, if there is one. Raise PlanError if the join needs one."""
        on = join.args.get("on")
        if on is None:
            self._refuse_bare(join)
            return []
        merged = (*left.merged, *_moved(right.merged, len(left.items)))
        scope = Scope((*left.items, *right.items), self.sql, merged, outer=outer)
        return [self.pusher.term(on, scope, known)]

    def _refuse_bare(self, join: exp.Join) -> None:
        """Raise PlanError for a join without ON that is neither by name nor a CROSS JOIN."""
        by_name = join.args.get("using") or join.method.upper() == "NATURAL"
        if not (by_name or join.kind.upper() == "CROSS" or join.meta_get(COMMA)):
            raise plan_error(
                f"{f'{join.side} {join.kind}'.strip()} JOIN needs a condition".lstrip(),
                self.sql,
                join.this,
                CONDITION,
            )

    def _split_conditions(self, state: State, join: exp.Join) -> tuple[State, tuple[Term, ...]]:
        """Return the optional side of an outer join without the conditions that name tables before
        its parentheses, and these conditions, which move into ON.

        Raise PlanError if the ON of an outer join within the side names such a table.
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
    """Return the columns that USING made within either side, and those that this join makes.

    A column of this join takes in those of the same name that were made before. A side without such
    a column contributes each of its items that has the name.
    """
    made_before = (*left.merged, *_moved(right.merged, len(left.items)))
    names = {folded(pair.name) for pair in pairs}
    kept = tuple(m for m in made_before if folded(m.name) not in names)
    items = (*left.items, *right.items)
    left_places, right_places = range(len(left.items)), range(len(left.items), len(items))
    joined = []
    for pair in pairs:
        same_name = [m for m in made_before if folded(m.name) == folded(pair.name)]
        made_places = {place for m in same_name for place in m.items}
        places = set(made_places)
        for side_places in (left_places, right_places):
            if made_places.isdisjoint(side_places):
                places |= {p for p in side_places if items[p].find(pair.name) is not None}
        term = pair.right if side == "RIGHT" else pair.left
        joined.append(Merged(pair.name, tuple(sorted(places)), term))
    return (*kept, *joined)


def _moved(merged: Sequence[Merged], by: int) -> tuple[Merged, ...]:
    """Return the columns for a list of items that has `by` further items before theirs."""
    return tuple(replace(m, items=tuple(place + by for place in m.items)) for m in merged)


def _left_join(
    kept: State, optional: State, conditions: tuple[Term, ...], join: exp.Join, sql: str
) -> Group:
    """Return the group of `kept`, with a LEFT JOIN of the other side."""
    edge = OuterJoin(optional.tree, conditions, span_of(join.this, sql))
    return replace(kept.tree, lefts=(*kept.tree.lefts, edge))


def _without_partner(state: State, id_: str, span: Span | None) -> State:
    """Return the joins with only the rows that found no row of the group `id_`, which is on the
    right of a LEFT JOIN.
    """
    missing = exp.Is(this=operand(guard(exp.true(), id_)), expression=exp.Null())
    tree = replace(state.tree, conditions=(*state.tree.conditions, Term(missing, span)))
    relations = tuple(with_presence(r) if id_ in r.ids else r for r in state.relations)
    return replace(state, relations=relations, tree=tree)


def _guarded(state: State) -> State:
    """Return the right side of a LEFT JOIN, with columns that are NULL if a row has no partner."""
    ids = frozenset(state.tree.ids)
    needed: set[str] = set()  # ids of relations that need a presence column

    def guarded(term: Term) -> Term:
        if is_null_over_nulls(term.expression, ids):
            return term
        id_ = next((i for i in state.tree.core if i in ids_of(term)), state.tree.id)
        needed.add(id_)
        return replace(term, expression=guard(term.expression, id_))

    items = tuple(
        replace(item, columns=tuple((n, guarded(t)) for n, t in item.columns))
        for item in state.items
    )
    merged = tuple(replace(m, term=guarded(m.term)) for m in state.merged)
    relations = tuple(with_presence(r) if needed & set(r.ids) else r for r in state.relations)
    return replace(state, items=items, merged=merged, relations=relations)


def renamed(state: State, node: exp.Subquery, sql: str) -> State:
    """Return the joins in parentheses under their alias: one item with all columns."""
    outputs = tuple(Output(s.name, s.term) for s in state.scope(sql).shown())
    shown = with_column_aliases(outputs, tuple(node.alias_column_names), node, sql)
    lacking = tuple(pair for item in state.items for pair in item.lacking)
    return replace(state, items=(Item(node.alias, shown, lacking=lacking),), merged=())
