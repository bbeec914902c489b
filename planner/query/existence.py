"""EXISTS over a join of several parties' tables, as one EXISTS for each party.

`EXISTS (SELECT 1 FROM b.u JOIN c.v ON u.k = v.k WHERE u.k = t.k AND v.x > 1)` holds if a row of u
has the key of t, and a row of v with `x > 1` has it too. So it is

    EXISTS (SELECT 1 FROM b.u WHERE u.k = t.k)
    AND EXISTS (SELECT 1 FROM c.v WHERE v.x > 1 AND v.k = t.k)

Both are true or false, never NULL, so the same holds under NOT.

The subquery parts if each of its conditions reads one party's tables, or is an equality of two
values that equal the same outer value. Equality has to be transitive for that: values of one type,
or whole numbers, and texts that compare byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from sqlfl.contract.schema import Client
from sqlfl.planner.grammar.parsing import is_from
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.query.cohorts import has_row_where_true, of_existence, of_tables, scope_within
from sqlfl.planner.query.ctes import Environment, with_ctes
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.equalities import conjuncts, equality, is_transitive
from sqlfl.planner.query.joins import State
from sqlfl.planner.query.push import Pusher
from sqlfl.planner.query.relations import DraftRelation, Term, clients_of, ids_of, operand
from sqlfl.planner.query.scalars import has_calls
from sqlfl.planner.query.scopes import Scope

OF_ROWS = frozenset(("with_", "expressions", "from_", "joins", "where"))
"""Clauses of a SELECT of rows as they are."""


@dataclass(frozen=True)
class _Party:
    """Tables of the subquery that one EXISTS reads: those of one database, or one table of several
    databases of a party.
    """

    clients: tuple[Client, ...]
    items: tuple[exp.Expr, ...]
    """Its part of FROM."""
    relations: tuple[DraftRelation, ...]

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(id_ for relation in self.relations for id_ in relation.ids)

    def exists(self, conditions: Sequence[exp.Expr], with_: exp.Expr | None) -> exp.Exists:
        first, *others = (item.copy() for item in self.items)
        rows = exp.select(exp.Literal.number(1)).from_(first, copy=False)
        for item in others:
            rows.append("joins", exp.Join(this=item, kind="CROSS"))
        if conditions:
            tests = (operand(condition.copy()) for condition in conditions)
            rows = rows.where(*tests, copy=False)
        if with_ is not None:
            rows.set("with_", with_.copy())
        return exp.Exists(this=rows)


@dataclass(frozen=True)
class _OuterSide:
    """A side of an equality: a value of one party's tables, or of one table outside."""

    node: exp.Expr
    """As it is written."""
    term: Term
    place: int | None
    """Number of the party; None for outside."""
    relation: DraftRelation

    @property
    def text(self) -> str:
        return to_sql(self.term.expression)


@dataclass(frozen=True)
class ExistenceParter:
    """Converter of EXISTS over several parties' tables, in one SELECT."""

    pusher: Pusher
    known: Environment
    read: Callable[[exp.Expr, list[exp.Join], Environment, Scope | None], list[State]]
    """Reads a FROM."""
    draft: Draft
    """Describes types."""

    def parts(self, exists: exp.Exists, state: State, scope: Scope) -> list[exp.Exists]:
        """Return an EXISTS for each party. Together they hold exactly if `exists` holds.

        Return none if the subquery does not part, or reads one database. `state` is the outer FROM,
        and `scope` the meaning of names there.
        """
        select = of_existence(exists.this)
        if not isinstance(select, exp.Select) or not select.args.get("joins"):
            return []
        if not has_row_where_true(select) or any(map(has_calls, select.expressions)):
            return []
        if len(self.pusher.clients(select, self.known)) < 2:
            return []
        known = with_ctes(select, self.known)
        rows = self._rows(select, known, scope)
        if rows is None:
            return []
        parties, inner, conditions = rows
        if any(self._reads_several(node, known) for node in (*select.expressions, *conditions)):
            return []
        for shown in select.expressions:
            if not isinstance(shown, exp.Star) and not shown.is_star:
                self.pusher.term(shown.unalias(), inner, known)  # a name has to be there
        parting = _Parting(self, parties, inner, known, state.relations)
        parts = parting.parted(conditions) if len(parties) > 1 else None
        if parts is None:
            return []
        with_ = select.args.get("with_")
        return [party.exists(part, with_) for party, part in zip(parties, parts, strict=True)]

    def _reads_several(self, node: exp.Expr, known: Environment) -> bool:
        """Return whether a subquery in the expression reads several databases."""
        return any(len(self.pusher.clients(q, known)) > 1 for q in node.find_all(exp.Query))

    def _rows(
        self, select: exp.Select, known: Environment, scope: Scope
    ) -> tuple[list[_Party], Scope, list[exp.Expr]] | None:
        """Return the parties of an inner join, the meaning of names in it, and its conditions; None
        for other forms of FROM.
        """
        flat = list(_flat(select.args["from_"].this, select.args["joins"]))
        items = [item for item, _ in flat]
        if not all(map(_is_table, items)) or not all(
            _is_inner(j) for _, j in flat if j is not None
        ):
            return None
        states = self.read(select.args["from_"].this, select.args["joins"], known, None)
        if len(states) != 1 or len(states[0].items) != len(items):
            return None
        parties: list[_Party] = []
        relations = iter(states[0].relations)
        for item in items:
            clients = self.pusher.clients(item, known)
            if len({client.party for client in clients}) != 1:
                return None
            alone = self.read(item, [], known, None)
            if len(alone) != 1:
                return None
            read = tuple(next(relations) for _ in alone[0].relations)
            same = [n for n, p in enumerate(parties) if p.clients == clients and len(clients) == 1]
            if not same:
                parties.append(_Party(clients, (item,), read))
                continue
            party = parties[same[0]]
            parties[same[0]] = replace(
                party, items=(*party.items, item), relations=(*party.relations, *read)
            )
        conditions = []
        for place, (item, join) in enumerate(flat):
            if join is None:
                continue
            on = join.args.get("on")
            conditions += [] if on is None else [of_tables(part) for part in conjuncts(on)]
            for name in join.args.get("using") or []:
                holders = [
                    i for i in range(place) if states[0].items[i].find(name.name) is not None
                ]
                if len(holders) != 1:
                    return None
                sides = (
                    exp.column(name.copy(), table=exp.to_identifier(i.alias_or_name))
                    for i in (items[holders[0]], item)
                )
                equal = exp.EQ(this=next(sides), expression=next(sides))
                conditions.append(of_tables(equal))
        where = select.args.get("where")
        conditions += [] if where is None else conjuncts(where.this)
        return parties, scope_within(states[0], self.pusher, scope), conditions


@dataclass(frozen=True)
class _Parting:
    """Distribution of a subquery's conditions over its parties."""

    parter: ExistenceParter
    parties: Sequence[_Party]
    scope: Scope
    known: Environment
    outside: Sequence[DraftRelation]
    """Relations of the FROM outside."""

    def parted(self, conditions: Sequence[exp.Expr]) -> list[list[exp.Expr]] | None:
        """Return the conditions of each party, which together are equivalent to `conditions`.
        Return None if there are no such conditions."""
        parts: list[list[exp.Expr]] = [[] for _ in self.parties]
        across: list[tuple[_OuterSide, _OuterSide]] = []
        links: list[tuple[_OuterSide, _OuterSide]] = []
        for condition in conditions:
            reads = ids_of(self._term(condition))
            places = [n for n, party in enumerate(self.parties) if reads & party.ids]
            sides = self._sides(condition)
            if len(places) > 1:
                if sides is None or None in {side.place for side in sides}:
                    return None
                across.append(sides)
                continue
            parts[places[0] if places else 0].append(condition)
            if sides is not None and {side.place is None for side in sides} == {False, True}:
                links.append(sides)
        linked_pairs = {frozenset((one.text, other.text)) for one, other in links}
        for pair in across:
            anchor = self._anchor(pair[0], [*across, *links])
            if anchor is None:
                return None
            for side in pair:
                key = frozenset((side.text, anchor.text))
                if side.place is not None and key not in linked_pairs:
                    linked_pairs.add(key)
                    sides_ = (operand(node.copy()) for node in (side.node, anchor.node))
                    equal = exp.EQ(this=next(sides_), expression=next(sides_))
                    parts[side.place].append(equal)
        return parts

    def _anchor(
        self, side: _OuterSide, edges: Sequence[tuple[_OuterSide, _OuterSide]]
    ) -> _OuterSide | None:
        """Return an outer value that equals the side by these equalities, directly or through other
        values.

        Return None if there is none, or if the equalities do not imply it.
        """
        alike = {side.text: side}
        pending = [side]
        while pending:
            text = pending.pop().text
            for edge in edges:
                for one, other in (edge, edge[::-1]):
                    if one.text == text and other.text not in alike:
                        alike[other.text] = other
                        pending.append(other)
        anchor = next((other for other in alike.values() if other.place is None), None)
        return anchor if self._is_transitive([*alike.values()]) else None

    def _is_transitive(self, sides: Sequence[_OuterSide]) -> bool:
        """Return whether values that equal one of these values equal each other."""
        return is_transitive(self.parter.draft, [(side.relation, side.term) for side in sides])

    def _term(self, node: exp.Expr) -> Term:
        return self.parter.pusher.term(node, self.scope, self.known)

    def _sides(self, condition: exp.Expr) -> tuple[_OuterSide, _OuterSide] | None:
        """Return the sides of a plain equality. Return None for other conditions, or if a side
        reads several tables or none."""
        equal = equality(condition.unnest())
        if equal is None or equal.nulls or equal.parts:
            return None
        left, right = self._side(equal.left), self._side(equal.right)
        return None if left is None or right is None else (left, right)

    def _side(self, node: exp.Expr) -> _OuterSide | None:
        term = self._term(node)
        reads = ids_of(term)
        if clients_of(term.expression):
            return None
        inside = (
            (n, relation) for n, party in enumerate(self.parties) for relation in party.relations
        )
        outside = ((None, relation) for relation in self.outside)
        holders = [
            (place, relation)
            for place, relation in (*inside, *outside)
            if reads & frozenset(relation.ids)
        ]
        if len(holders) != 1 or not reads <= frozenset(holders[0][1].ids):
            return None
        return _OuterSide(node, term, *holders[0])


def _flat(item: exp.Expr, joins: Sequence[exp.Join]) -> Iterator[tuple[exp.Expr, exp.Join | None]]:
    """Yield the items of FROM without the joins inside them. Each comes with its join; the first
    one comes with None."""
    yield from _hung(item, None)
    for join in joins:
        yield from _hung(join.this, join)


def _hung(item: exp.Expr, by: exp.Join | None) -> Iterator[tuple[exp.Expr, exp.Join | None]]:
    nested = item.args.get("joins") or []
    bare = item.copy()
    bare.set("joins", None)
    yield bare, by
    for join in nested:
        yield from _hung(join.this, join)


def _is_table(item: exp.Expr) -> bool:
    """Return whether the item is a table or a derived table, without a sample and the like."""
    if any(item.args.get(clause) for clause in ("pivots", "sample", "laterals")):
        return False
    return isinstance(item, exp.Table) or (
        isinstance(item, exp.Subquery) and not is_from(item.this)
    )


def _is_inner(join: exp.Join) -> bool:
    return not (join.method or join.side) and join.kind.upper() in ("", "INNER", "CROSS")


def conditions_of(exists: exp.Exists) -> Iterator[exp.Expr]:
    where = exists.this.unnest().args.get("where")
    return iter(()) if where is None else conjuncts(where.this)


def is_bounded(condition: exp.Expr) -> bool:
    """Return whether the condition is an inequality, as those of windows are."""
    return isinstance(condition.unnest(), exp.Between | exp.LT | exp.LTE | exp.GT | exp.GTE)


def counted_rows(exists: exp.Exists) -> exp.Subquery | None:
    """Return the number of rows of the subquery. None if it has clauses that change whether there
    are rows: an aggregate has one of none.
    """
    select = of_existence(exists.this).unnest()
    if not isinstance(select, exp.Select) or any(map(has_calls, select.expressions)):
        return None
    counted = select.copy()
    counted.set("order", None)
    given = {key for key, value in counted.args.items() if value}
    counted.set("expressions", [exp.Anonymous(this="count", expressions=[exp.Star()])])
    return exp.Subquery(this=counted) if given <= OF_ROWS else None
