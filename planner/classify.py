"""Conditions and expressions, each brought to the relation that can evaluate it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sqlglot import exp

from sqlfl.errors import PlanError
from sqlfl.planner.draft import Draft
from sqlfl.planner.relations import (
    Block,
    Branch,
    Equality,
    Relation,
    Source,
    Term,
    clients_of,
    with_filters,
)
from sqlfl.planner.spans import span_of


class Groups:
    """Disjoint sets of the numbers 0..n-1; the least member stands for its set."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def find(self, item: int) -> int:
        while self._parent[item] != item:
            item = self._parent[item]
        return item

    def join(self, left: int, right: int) -> bool:
        """Whether they were apart before."""
        low, high = sorted((self.find(left), self.find(right)))
        self._parent[high] = low
        return low != high


def split_conjunctions(draft: Draft) -> Draft:
    """Conditions in pieces: `a AND b` is two; what is always true is none."""

    def split(block: Block) -> Block:
        pieces = [p for c in block.conditions for p in _conjuncts(draft, c)]
        return replace(block, conditions=tuple(pieces))

    return draft.each_block(split)


def _conjuncts(draft: Draft, term: Term) -> list[Term]:
    expression = term.expression
    while isinstance(expression, exp.Paren):
        expression = expression.this
    if isinstance(expression, exp.And):
        found = []
        for side in (expression.left, expression.right):
            found += _conjuncts(draft, Term(side, span_of(side, draft.sql) or term.span))
        return found
    if isinstance(expression, exp.Boolean) and expression.this:
        return []
    return [Term(expression, term.span)]


def fuse_relations(draft: Draft) -> Draft:
    """One relation for tables of one client that an expression or a non-equality needs together.

    Equalities between two relations become join conditions. What needs two parties is refused.
    """
    return draft.each_block(lambda block: _Fusion(draft, block).block())


class _Fusion:
    def __init__(self, draft: Draft, block: Block) -> None:
        self.draft = draft
        self.old = block
        self.groups = Groups(len(block.relations))

    def block(self) -> Block:
        position = self.draft.target_position
        for place, output in enumerate(self.old.outputs):
            what = "the target" if place == position else f"column {output.name}"
            self._bring(output.term, what)
        for output in self.old.identifiers:
            self._bring(output.term, f"identifier {output.name}")
        equalities = [e for c in self.old.conditions if (e := self._condition(c)) is not None]
        first = dict.fromkeys(self.groups.find(i) for i in range(len(self.old.relations)))
        places = {root: place for place, root in enumerate(first)}
        relations = tuple(
            _fused([r for i, r in enumerate(self.old.relations) if self.groups.find(i) == root])
            for root in first
        )
        joined = [
            replace(
                e, left=places[self.groups.find(e.left)], right=places[self.groups.find(e.right)]
            )
            for e in equalities
        ]
        across = tuple(e for e in joined if e.left != e.right)
        edges = {id(e.terms[0].expression.parent) for e in across}
        block = replace(
            self.old,
            relations=relations,
            equalities=across,
            conditions=tuple(c for c in self.old.conditions if id(c.expression) not in edges),
        )
        return _with_homes(block)

    def _condition(self, term: Term) -> Equality | None:
        expression = term.expression
        if isinstance(expression, exp.EQ):
            sides = tuple(
                Term(side, span_of(side, self.draft.sql) or term.span)
                for side in (expression.left, expression.right)
            )
            reads = [self.old.reads(side) for side in sides]
            if all(reads) and not set(reads[0]) & set(reads[1]):
                for side in sides:
                    self._bring(side, "one side of an equality")
                return Equality(reads[0][0], reads[1][0], (sides[0], sides[1]), span=term.span)
        self._bring(term, "a condition")
        return None

    def _bring(self, term: Term, what: str) -> None:
        """Fuse the relations that the term reads; refuse where they are not one client's."""
        reads = self.old.reads(term)
        marks = clients_of(term.expression)
        relations = [self.old.relations[i] for i in reads]
        holders = {r.client for r in relations}
        if len(marks) > 1 or (marks and (holders - {marks[0]})):
            raise self._foreign(term, relations, [m.party for m in marks])
        if marks and not relations and _home(self.old, term) is None:
            raise self._foreign(term, relations, [m.party for m in marks])
        if len(reads) > 1:
            if len(holders) > 1 or None in holders:
                raise self._apart(term, relations, what)
            for index in reads[1:]:
                self.groups.join(reads[0], index)

    def _foreign(self, term: Term, relations: list[Relation], parties: list[str]) -> PlanError:
        several = [r for r in relations if r.client is None and r.parties == tuple(parties)]
        if several:
            return self.draft.error(
                f"a subquery over {parties[0]} cannot be used with {several[0].label}, "
                "which is a union",
                term.span,
                "join the tables in FROM, or write the subquery in each part of the union",
            )
        readers = " and ".join(r.label for r in relations) or "no table of FROM"
        return self.draft.error(
            f"a subquery reads {' and '.join(dict.fromkeys(parties))}, and stands with {readers}",
            term.span,
            "join the subquery's table in FROM on an equality instead",
        )

    def _apart(self, term: Term, relations: Sequence[Relation], what: str) -> PlanError:
        parties = tuple(dict.fromkeys(p for r in relations for p in r.parties))
        labels = " and ".join(r.label for r in relations)
        if len(parties) == 1:
            message = f"{what} needs columns of {labels}, which lie at several clients"
            hint = "join the tables of each client in a part of a UNION ALL of its own"
            return self.draft.error(message, term.span, hint)
        message = f"{what} needs columns of {len(parties)} parties: {labels}"
        hint = {
            "the target": "the target is computed by one party; TARGET one party's column",
            "a condition": "parties join only on equalities, a.x = b.y, and filter their own rows",
            "one side of an equality": "each side of a join's equality belongs to one party",
        }.get(what, "give each party's part a column of its own; the model adds them up")
        return self.draft.error(message, term.span, hint)


def _fused(relations: list[Relation]) -> Relation:
    if len(relations) == 1:
        return relations[0]
    branches = [r.branches[0] for r in relations]
    columns = {key: e for b in branches for key, e in b.columns.items()}
    sources: tuple[Source, ...] = tuple(s for b in branches for s in b.sources)
    filters: tuple[Term, ...] = tuple(f for b in branches for f in b.filters)
    branch = Branch(branches[0].client, sources, columns, filters)
    ids = tuple(i for r in relations for i in r.ids)
    return Relation(ids, "_".join(r.name for r in relations), relations[0].span, (branch,))


def _home(block: Block, term: Term) -> int | None:
    """The relation that evaluates the term: the one that it reads, or any that can."""
    reads = block.reads(term)
    if reads:
        return reads[0]
    marks = clients_of(term.expression)
    able = (i for i, r in enumerate(block.relations) if not marks or r.client == marks[0])
    return next(able, None)


def _with_homes(block: Block) -> Block:
    def located(term: Term) -> int:
        home = _home(block, term)
        return 0 if home is None else home

    return replace(
        block,
        outputs=tuple(replace(o, relation=located(o.term)) for o in block.outputs),
        identifiers=tuple(replace(o, relation=located(o.term)) for o in block.identifiers),
    )


def push_filters(draft: Draft) -> Draft:
    """Conditions over one relation go into the fragments of that relation."""

    def push(block: Block) -> Block:
        by_home: dict[int, list[Term]] = {}
        for condition in block.conditions:
            home = _home(block, condition)
            by_home.setdefault(0 if home is None else home, []).append(condition)
        relations = _pushed(block.relations, by_home)
        return replace(block, relations=relations, conditions=())

    return draft.each_block(push)


def _pushed(relations: Iterable[Relation], terms: dict[int, list[Term]]) -> tuple[Relation, ...]:
    return tuple(with_filters(r, terms.get(i, ())) for i, r in enumerate(relations))


def refuse_cross_products(draft: Draft) -> Draft:
    """Every relation must be joined to the others by equalities, unless the user allows it."""
    if draft.allow_cross_join:
        return draft
    for block in draft.blocks:
        groups = Groups(len(block.relations))
        for equality in block.equalities:
            groups.join(equality.left, equality.right)
        for index, relation in enumerate(block.relations):
            if groups.find(index) != 0:
                raise draft.error(
                    f"no equality joins {relation.label} with {block.relations[0].label}: "
                    "each row would meet every row",
                    relation.span,
                    "join on an equality, or allow it: WITH (allow_cross_join = true)",
                )
    return draft
