"""Conditions, each brought to the relation or the join that can evaluate it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.trees import span_of
from sqlfl.planner.query import types
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.equalities import Equal, conjuncts
from sqlfl.planner.query.equalities import equality as equality_of
from sqlfl.planner.query.fusion import DisjointSets, equality_sides
from sqlfl.planner.query.joins import INSTEAD_OF_SUBQUERY
from sqlfl.planner.query.relations import (
    DraftBlock,
    Equality,
    Group,
    OuterJoin,
    Term,
    clients_of,
    operand,
    with_filters,
)


def split_conjunctions(draft: Draft) -> Draft:
    """Split conditions: `a AND b` becomes two; conditions that are always true are removed."""

    def pieces(terms: Iterable[Term]) -> tuple[Term, ...]:
        return tuple(p for term in terms for p in _conjuncts(draft, term))

    def split(group: Group) -> Group:
        lefts = (replace(n, group=split(n.group), on=pieces(n.on)) for n in group.lefts)
        return replace(group, conditions=pieces(group.conditions), lefts=tuple(lefts))

    return draft.each_block(lambda block: replace(block, tree=split(block.tree)))


def _conjuncts(draft: Draft, term: Term) -> list[Term]:
    parts = [
        Term(part, span_of(part, draft.sql) or term.span) for part in conjuncts(term.expression)
    ]
    if len(parts) == 1:
        parts = [Term(parts[0].expression, term.span)]
    return [p for p in parts if not (isinstance(p.expression, exp.Boolean) and p.expression.this)]


def place_conditions(draft: Draft) -> Draft:
    """Turn equalities between two relations into join conditions, and assign outputs to relations.

    The remaining conditions of groups concern one of their own relations. A condition over a table
    on the right of a LEFT JOIN, after that join, is kept for its fragments. In parentheses it
    becomes an equality with a constant, and so does a condition of ON about earlier tables.
    """
    return draft.each_block(lambda block: _Placing(draft, block).block())


class _Placing:
    def __init__(self, draft: Draft, block: DraftBlock) -> None:
        self.draft = draft
        self.old = block
        self.equalities: list[Equality] = []
        self.kept: list[tuple[int, Term]] = []

    def block(self) -> DraftBlock:
        tree = self._group(self.old.tree)
        core = [self.old.of(i) for i in tree.core]
        everywhere = [*core, *(i for i in range(len(self.old.relations)) if i not in core)]

        def located(term: Term) -> int:
            home = _home(self.old, term, everywhere)
            return 0 if home is None else home

        return replace(
            self.old,
            tree=tree,
            equalities=tuple(self.equalities),
            kept=tuple(self.kept),
            outputs=tuple(replace(o, relation=located(o.term)) for o in self.old.outputs),
            identifiers=tuple(replace(o, relation=located(o.term)) for o in self.old.identifiers),
        )

    def _group(self, group: Group) -> Group:
        core = [self.old.of(i) for i in group.core]
        conditions = [c for c in group.conditions if not self._joins(group, core, c)]
        before = core
        lefts = []
        for left in group.lefts:
            lefts.append(self._left(left, before))
            before = [*before, *(self.old.of(i) for i in left.group.ids)]
        return replace(group, conditions=tuple(conditions), lefts=tuple(lefts))

    def _joins(self, group: Group, core: Sequence[int], term: Term) -> bool:
        """Return whether the condition is more than a filter of one relation of the core."""
        equal = self._sides(term)
        if equal:
            for sides in equal:
                at = [self.old.reads(side)[0] for side in sides]
                if all(i in core for i in at):
                    self._equal(at, sides, term, group)
                elif at[0] in core:
                    self._equal(at[::-1], sides[::-1], term, group, own=True)
                else:
                    self._equal(at, sides, term, group, own=True)
            return True
        inside = [self.old.of(i) for i in group.ids]
        home = _home(self.old, term, inside)
        if home is None:
            raise self._nowhere(term)
        if home in core:
            return False
        if group is self.old.tree:
            self.kept.append((home, term))
        else:
            self._equal([home, core[0]], _flag(term), term, group, own=True)
        return True

    def _left(self, left: OuterJoin, before: Sequence[int]) -> OuterJoin:
        group = self._group(left.group)
        core = [self.old.of(i) for i in group.core]
        equalities, tests = [], []
        for term in left.on:
            equal = self._sides(term)
            if not equal:
                tests.append(term)
            for sides in equal:
                at = [self.old.reads(side)[0] for side in sides]
                flip = at[0] not in before
                equalities.append((at[::-1] if flip else at, sides[::-1] if flip else sides, term))
        for test in tests:
            home = _home(self.old, test, before)
            if home is None:
                raise self._nowhere(test)
            place = next((n for n, (at, _, _) in enumerate(equalities) if at[0] == home), None)
            if place is None:
                equalities.append(([home, core[0]], _flag(test), test))
            else:
                at, (key, other), term = equalities[place]
                equalities[place] = (at, (_where(test, key), other), term)
        for at, pair, term in equalities:
            self._equal(at, pair, term, group, on=True, own=True)
        return replace(left, group=group, on=())

    def _sides(self, term: Term) -> list[tuple[Term, Term]]:
        """Return the sides of the condition's equalities; empty for other conditions."""
        sides = equality_sides(self.draft, self.old, term)
        if sides is None:
            return []
        equal = equality_of(term.expression)
        if equal is None or not equal.nulls:
            return [sides]
        return self._null_safe(sides, term, equal)

    def _null_safe(
        self, sides: tuple[Term, Term], term: Term, equal: Equal
    ) -> list[tuple[Term, Term]]:
        """Return two equalities that treat NULL as equal to NULL: presence of a value, and the
        value or a constant.
        """
        kinds = []
        for side in sides:
            branch_types = self.draft.types(self.old.relations[self.old.reads(side)[0]], [side])[0]
            kind = types.union_type(branch_types)
            if kind is None:
                return [sides]  # refused where the types of equalities are looked at
            kinds.append(kind)
        left, right = kinds
        type_ = types.comparison_type(left, right)
        if type_ is None or not types.can_be_key(type_):
            return [sides]
        if equal.parts and types.is_text(left) != types.is_text(right):
            raise self.draft.error(
                f"rows cannot be compared here, of which one has {left} where the other has "
                f"{right}",
                term.span,
                "compare column by column: ON a.x = b.x AND a.y = b.y",
            )
        missing = [
            Term(exp.Is(this=operand(s.expression.copy()), expression=exp.Null()), s.span)
            for s in sides
        ]
        constant = trees.cast(exp.Literal.string(types.neutral(type_)), type_)
        filled = [
            Term(
                exp.Coalesce(this=trees.cast(s.expression, type_), expressions=[constant.copy()]),
                s.span,
            )
            for s in sides
        ]
        return [(missing[0], missing[1]), (filled[0], filled[1])]

    def _equal(
        self,
        at: Sequence[int],
        sides: tuple[Term, Term],
        term: Term,
        group: Group,
        on: bool = False,
        own: bool = False,
    ) -> None:
        equality = Equality(at[0], at[1], sides, "", term.span, group.id, on, own)
        self.equalities.append(equality)

    def _nowhere(self, term: Term) -> PlanError:
        parties = dict.fromkeys(m.party for m in clients_of(term.expression))
        return self.draft.error(
            f"a subquery reads {' and '.join(parties)}, and stands where no table of that party is",
            term.span,
            INSTEAD_OF_SUBQUERY,
        )


def _flag(test: Term) -> tuple[Term, Term]:
    """Return the test as an equality: TRUE if it holds, else NULL."""
    return _where(test, Term(exp.true(), test.span)), Term(exp.true(), test.span)


def _where(test: Term, key: Term) -> Term:
    branch = exp.If(this=test.expression.copy(), true=key.expression.copy())
    return Term(exp.Case(ifs=[branch]), key.span)


def _home(block: DraftBlock, term: Term, candidates: Sequence[int]) -> int | None:
    """The relation that evaluates the term: the one that it reads, or any that can."""
    reads = block.reads(term)
    if reads:
        return reads[0]
    marks = clients_of(term.expression)
    able = (i for i in candidates if not marks or block.relations[i].client == marks[0])
    return next(able, None)


def push_filters(draft: Draft) -> Draft:
    """Conditions over one relation go into the fragments of that relation."""

    def push(block: DraftBlock) -> DraftBlock:
        by_home: dict[int, list[Term]] = {}
        for group in block.tree.groups():
            core = [block.of(i) for i in group.core]
            for condition in group.conditions:
                home = _home(block, condition, core)
                by_home.setdefault(core[0] if home is None else home, []).append(condition)
        relations = tuple(
            with_filters(r, by_home.get(i, ())) for i, r in enumerate(block.relations)
        )
        return replace(block, relations=relations, tree=_bare(block.tree))

    return draft.each_block(push)


def _bare(group: Group) -> Group:
    lefts = tuple(replace(n, group=_bare(n.group), on=()) for n in group.lefts)
    return replace(group, conditions=(), lefts=lefts)


def refuse_cross_products(draft: Draft) -> Draft:
    """Refuse relations without an equality to others, unless the user allows a cross join."""
    if draft.allow_cross_join:
        return draft
    for block in draft.blocks:
        for group in block.tree.groups():
            _refuse_cross_product(draft, block, [block.of(i) for i in group.ids])
    return draft


def _refuse_cross_product(draft: Draft, block: DraftBlock, inside: Sequence[int]) -> None:
    """Refuse tables in parentheses that are not joined among themselves."""
    groups = DisjointSets(len(block.relations))
    for equality in block.equalities:
        linked = equality.terms[1].expression.find(exp.Column) is not None
        if linked and equality.left in inside and equality.right in inside:
            groups.join(equality.left, equality.right)
    for index in sorted(inside):
        if groups.find(index) != groups.find(inside[0]):
            relation = block.relations[index]
            raise draft.error(
                f"no equality joins {relation.label} with {block.relations[inside[0]].label}: "
                "each row would meet every row",
                relation.span,
                "join on an equality, or allow it: WITH (allow_cross_join = true)",
            )
