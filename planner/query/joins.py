"""Joins of FROM: the names and conditions of both sides, with LEFT JOINs kept in a tree. `emit`
writes the query that maps their rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from sqlfl.contract.schema import folded
from sqlfl.planner.grammar.parsing import COMMA
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.statements import Span
from sqlfl.planner.grammar.trees import plan_error, span_of
from sqlfl.planner.query import types
from sqlfl.planner.query.batches import BatchedCatalog
from sqlfl.planner.query.columns import with_column_aliases
from sqlfl.planner.query.ctes import Environment
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.equalities import conjuncts, equality
from sqlfl.planner.query.names import nearest
from sqlfl.planner.query.nulls import TYPES, is_null_over_nulls
from sqlfl.planner.query.push import Pusher
from sqlfl.planner.query.relations import (
    DraftRelation,
    Group,
    Item,
    Merged,
    OuterJoin,
    Output,
    Term,
    absent,
    guard,
    ids_of,
    operand,
    widened,
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
    full: FullJoin | None = None
    """The FULL JOINs by equal columns that it is one part of."""

    def scope(self, sql: str, outer: Scope | None = None) -> Scope:
        """Return the names that these joins make known, then those of `outer`."""
        return Scope(self.items, sql, self.merged, outer=outer)


@dataclass(frozen=True)
class FullJoin:
    """FULL JOINs of several sides by equalities of the same columns, each side by one of its own.

    `a FULL JOIN b USING (k) FULL JOIN c USING (k)` has three sides and one column. Its parts are
    the rows whose first side is a, b, and c.
    """

    sides: tuple[State, ...]
    keys: tuple[tuple[Term, ...], ...]
    """The columns of each side, in one order."""
    names: tuple[str, ...]
    """Names of the columns, in lower case, where USING or NATURAL gives them; empty after ON."""
    exact: bool = True
    """False if a join has a further condition, or compares fewer columns than another one."""

    def column(self, value: exp.Expr) -> int | None:
        """Return the position of a column of all sides: `coalesce(a.k, b.k)`, in any order."""
        value = value.unnest()
        if not isinstance(value, exp.Coalesce):
            return None
        parts = {to_sql(part.unnest()) for part in (value.this, *value.expressions)}
        for place, terms in enumerate(zip(*self.keys, strict=True)):
            if parts == {to_sql(term.expression) for term in terms}:
                return place
        return None


@dataclass(frozen=True)
class _Compared:
    """The condition of a join between a FULL JOIN and one more table."""

    terms: Mapping[int, Term]
    """Terms of the table, by the position of the column that they equal."""
    others: tuple[Term, ...] = ()
    """Conditions on the table alone."""
    pairs: tuple[_Pair, ...] = ()
    """Columns that USING joins, the FULL JOIN's on the left."""


def _grown(full: FullJoin, state: State, compared: _Compared, exact: bool, first: bool) -> FullJoin:
    """Return a FULL JOIN with one more side, which is the first if `first`."""
    places = sorted(compared.terms)
    added = tuple(compared.terms[place] for place in places)
    keys = tuple(tuple(key[place] for place in places) for key in full.keys)
    names = tuple(name for n, name in enumerate(full.names) if n in compared.terms)
    sides = (state, *full.sides) if first else (*full.sides, state)
    keys = (added, *keys) if first else (*keys, added)
    return FullJoin(sides, keys, names, exact and not compared.others)


@dataclass(frozen=True)
class Joiner:
    """Reader of the joins in one FROM."""

    pusher: Pusher
    sql: str
    catalog: BatchedCatalog

    def joined(
        self,
        lefts: Sequence[State],
        rights: Sequence[State],
        join: exp.Join,
        known: Environment,
        outer: Scope | None,
    ) -> list[State]:
        """Return the parts whose union is the join of two unions."""
        chained = self._chained(lefts, rights, join, known, outer)
        if chained is not None:
            return chained
        self.check(lefts, rights, join)
        return [
            state
            for left in lefts
            for right in rights
            for state in self.join(left, right, join, known, outer)
        ]

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
            hint = "make it a union of single tables, or LEFT JOIN each of its tables by itself"
            if any(part.full is not None for part in parts):
                hint = (
                    "join further tables by the column that the FULL JOIN has, all in one FROM: "
                    "a FULL JOIN b USING (k) FULL JOIN c USING (k), or c LEFT JOIN (a FULL JOIN b "
                    "USING (k)) USING (k)"
                )
            raise plan_error(
                f"the {place} side of a {side} JOIN is a union of {len(parts)} joins: its parts "
                "cannot be joined one by one",
                self.sql,
                join.this,
                hint,
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
        parts = [self._joined(left, right, part, known, outer, True) for part in sides]
        # the id of the left side's group: its presence is NULL in a row that found no partner there
        unmatched = _without_partner(parts[1], left.tree.id, span_of(join.this, self.sql))
        full = self._full(left, right, join, known, outer)
        return [replace(part, full=full) for part in (parts[0], unmatched)]

    # -- FULL JOINs one after the other ------------------------------------------------------------

    def _full(
        self, left: State, right: State, join: exp.Join, known: Environment, outer: Scope | None
    ) -> FullJoin | None:
        """Return a FULL JOIN of two sides by its columns; None without an equality of both."""
        single = FullJoin((left,), (), ())
        pairs = self._pairs(left, right, join)
        if pairs:
            names = tuple(folded(pair.name) for pair in pairs)
            keys = (tuple(p.left for p in pairs), tuple(p.right for p in pairs))
            return FullJoin((left, right), keys, names)
        ends = []
        exact = True
        for condition in self._conditions(single, right, join, known, outer):
            sides = self._ends(condition, left, right)
            ends += [] if sides is None else [sides]
            exact = exact and sides is not None
        if not ends:
            return None
        return FullJoin(
            (left, right), (tuple(e[0] for e in ends), tuple(e[1] for e in ends)), (), exact
        )

    def _ends(self, condition: Term, left: State, right: State) -> tuple[Term, Term] | None:
        """Return the columns of both states that a condition compares, the left one first."""
        equal = equality(condition.expression)
        if equal is None or equal.nulls:
            return None
        ends = [Term(side, condition.span) for side in (equal.left, equal.right)]
        for one, other in (ends, ends[::-1]):
            if _reads_only(one, left) and _reads_only(other, right):
                return one, other
        return None

    def _conditions(
        self,
        full: FullJoin,
        state: State,
        join: exp.Join,
        known: Environment,
        outer: Scope | None,
        flipped: bool = False,
    ) -> list[Term]:
        """Return the conditions of ON over all sides of a FULL JOIN and one more table. `flipped`:
        the table comes first.
        """
        on = join.args.get("on")
        if on is None:
            return []
        states = (state, *full.sides) if flipped else (*full.sides, state)
        merged: tuple[Merged, ...] = ()
        items: tuple[Item, ...] = ()
        for part in states:
            merged += _moved(part.merged, len(items))
            items += part.items
        term = self.pusher.term(on, Scope(items, self.sql, merged, outer=outer), known)
        return [Term(part, term.span) for part in conjuncts(term.expression)]

    def _compared(
        self,
        parts: Sequence[State],
        full: FullJoin,
        state: State,
        join: exp.Join,
        known: Environment,
        outer: Scope | None,
        flipped: bool,
    ) -> _Compared | None:
        """Return the condition of a join with a FULL JOIN, if it compares columns of all sides."""
        by_name = join.args.get("using") or join.method.upper() == "NATURAL"
        if by_name:
            pairs = (
                self._pairs(state, parts[0], join)
                if flipped
                else self._pairs(parts[0], state, join)
            )
            named = [(p.name, p.left if flipped else p.right, p.span) for p in pairs]
            if any(folded(name) not in full.names for name, _, _ in named):
                return None
            terms = {full.names.index(folded(name)): term for name, term, _ in named}
            joined = []
            for (name, term, span), place in zip(named, terms, strict=True):
                value = _any_of([key[place] for key in full.keys])
                joined.append(_Pair(name, value, term, span))
            return _Compared(terms, (), tuple(joined))
        terms, others = {}, []
        for condition in self._conditions(full, state, join, known, outer, flipped):
            if _reads_only(condition, state):
                others.append(condition)
                continue
            equal = equality(condition.expression)
            sides = [] if equal is None or equal.nulls else [equal.left, equal.right]
            for one, end in (sides, sides[::-1]) if sides else ():
                column = full.column(one)
                if column is not None and _reads_only(Term(end, None), state):
                    terms[column] = Term(end, condition.span)
                    break
            else:
                return None
        return _Compared(terms, tuple(others)) if terms else None

    def _chained(
        self,
        lefts: Sequence[State],
        rights: Sequence[State],
        join: exp.Join,
        known: Environment,
        outer: Scope | None,
    ) -> list[State] | None:
        """Return an outer join whose optional side is a FULL JOIN of tables by equal columns.

        Without the others, a row has a partner in a FULL JOIN exactly if it has one in a side. So a
        LEFT JOIN with it is one with each side, by the same column. None for other joins.
        """
        side = join.side.upper()
        flipped = side == "LEFT" or (side == "FULL" and len(lefts) == 1)
        parts, others = (rights, lefts) if flipped else (lefts, rights)
        full = parts[0].full if side in ("LEFT", "RIGHT", "FULL") and len(parts) > 1 else None
        if full is None or any(part.full is not full for part in parts):
            return None
        if side == "FULL" and len(others) > 1:
            return None
        joined = []
        for state in others:
            compared = self._compared(parts, full, state, join, known, outer, flipped)
            if compared is None:
                return None
            exact = full.exact and {*compared.terms} == {*range(len(full.keys[0]))}
            if not exact and not (side == "FULL" and not flipped):
                return None
            optional = self._with_sides(parts[0], full, state, compared, join, flipped)
            if side != "FULL":
                joined.append(optional)
                continue
            joined += self._full_parts(parts, full, state, optional, join, known, outer, flipped)
            grown = _grown(full, state, compared, exact, flipped)
            joined = [replace(part, full=grown) for part in joined]
        return joined

    def _full_parts(
        self,
        parts: Sequence[State],
        full: FullJoin,
        state: State,
        optional: State,
        join: exp.Join,
        known: Environment,
        outer: Scope | None,
        flipped: bool,
    ) -> list[State]:
        """Return the parts of a FULL JOIN with one more table, which `optional` has before all
        sides."""
        span = span_of(join.this, self.sql)
        one = join.copy()
        one.set("side", "RIGHT" if flipped else "LEFT")
        if flipped:
            rest = [self._joined(state, part, one, known, outer, True) for part in parts]
            return [optional, *(_without_partner(part, state.tree.id, span) for part in rest)]
        for side in full.sides:
            optional = _without_partner(optional, side.tree.id, span)
        return [*(self._joined(part, state, one, known, outer, True) for part in parts), optional]

    def _with_sides(
        self,
        part: State,
        full: FullJoin,
        state: State,
        compared: _Compared,
        join: exp.Join,
        flipped: bool,
    ) -> State:
        """Return the state with a LEFT JOIN of each side, in the order of the text."""
        tree, span = state.tree, span_of(join.this, self.sql)
        sides = []
        for side, keys in zip(full.sides, full.keys, strict=True):
            inner, moved = self._split_conditions(side, join)
            on = [_equal(term, keys[place]) for place, term in compared.terms.items()]
            edge = OuterJoin(inner.tree, (*moved, *on, *compared.others), span)
            tree = replace(tree, lefts=(*tree.lefts, edge))
            sides.append(_guarded(inner))
        merged: tuple[Merged, ...] = ()
        items: tuple[Item, ...] = ()
        for side in sides:
            own = (m for m in side.merged if folded(m.name) not in full.names)
            merged += _moved(tuple(own), len(items))
            items += side.items
        for place, name in enumerate(full.names):
            (before,) = (m for m in part.merged if folded(m.name) == name)
            value = _any_of([key[place] for key in full.keys])
            merged += (replace(before, term=value),)
        relations = tuple(relation for side in sides for relation in side.relations)
        whole = State(relations, full.sides[0].tree, items, merged)
        if flipped:
            pairs = [replace(p, left=p.right, right=p.left) for p in compared.pairs]
            ends, kept = (state, whole), "LEFT"
        else:
            pairs, ends, kept = [*compared.pairs], (whole, state), "RIGHT"
        found = State(
            (*ends[0].relations, *ends[1].relations),
            tree,
            (*ends[0].items, *ends[1].items),
            _merged(*ends, pairs, kept),
        )
        names = {folded(m.name) for m in state.merged if m.coalesced}
        if join.side.upper() == "FULL":
            names |= {folded(pair.name) for pair in pairs}
        return self._coalesced(found, names)

    # -- one join ----------------------------------------------------------------------------------

    def _joined(
        self,
        left: State,
        right: State,
        join: exp.Join,
        known: Environment,
        outer: Scope | None,
        full: bool = False,
    ) -> State:
        """Return the joins of both sides by any join but FULL; `full` says that it is a part of
        one. Raise PlanError for a missing condition, an unknown or ambiguous name, and a condition
        that names tables before parentheses.
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
        state = State(relations, tree, (*left.items, *right.items), merged)
        kept = right if side == "RIGHT" else left
        names = {folded(m.name) for m in kept.merged if m.coalesced}
        return self._coalesced(state, {folded(p.name) for p in pairs if full} | names)

    # -- names -------------------------------------------------------------------------------------

    def _pairs(self, left: State, right: State, join: exp.Join) -> list[_Pair]:
        """Return the columns that are joined by name, once each."""
        pairs: dict[str, _Pair] = {}
        for name, spot in self._using(left, right, join):
            if folded(name) not in pairs:
                sides = [self._side(s, name, spot) for s in (left, right)]
                pairs[folded(name)] = _Pair(name, sides[0], sides[1], span_of(spot, self.sql))
        return list(pairs.values())

    def _coalesced(self, state: State, names: Collection[str]) -> State:
        """Return the state with these columns of FULL JOINs in the type of coalesce, which has all
        columns of the name that were joined.
        """
        return replace(
            state,
            merged=tuple(
                self._of_one_type(state, m) if folded(m.name) in names else m for m in state.merged
            ),
        )

    def _of_one_type(self, state: State, merged: Merged) -> Merged:
        parts = [state.items[place].find(merged.name) for place in merged.items]
        held = [self._types(state, part) for part in parts if part is not None]
        every = tuple(type_ for each in held for type_ in each)
        wanted = types.union_type(every)
        term = merged.term
        if wanted is not None and len({types.normal(type_) for type_ in every}) > 1:
            term = replace(term, expression=widened(term.expression, wanted))
        return replace(merged, term=term, coalesced=True)

    def _types(self, state: State, term: Term) -> tuple[str, ...]:
        """Return the types of a column at the databases of its relation."""
        held = term.expression.meta_get(TYPES)
        if isinstance(term.expression, exp.Column) and held:
            return tuple(held)
        read = [r for r in state.relations if ids_of(term) & {*r.ids}]
        if len(read) != 1:
            return ()
        draft = Draft(exp.select(), self.sql, self.catalog, None, (), False)
        return draft.types(read[0], [term])[0]

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
        return replace(_equal(self.left, self.right), span=self.span)


def _equal(left: Term, right: Term) -> Term:
    sides = (operand(side.expression.copy()) for side in (left, right))
    return Term(exp.EQ(this=next(sides), expression=next(sides)), left.span)


def _any_of(terms: Sequence[Term]) -> Term:
    """Return the first of the terms that is not NULL."""
    first, *rest = (term.expression.copy() for term in terms)
    return Term(exp.Coalesce(this=first, expressions=rest), terms[0].span)


def _reads_only(term: Term, state: State) -> bool:
    """Return whether the term reads columns, and all are of the state."""
    read = ids_of(term)
    return bool(read) and read <= {id_ for relation in state.relations for id_ in relation.ids}


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
    tree = replace(state.tree, conditions=(*state.tree.conditions, Term(absent(id_), span)))
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
