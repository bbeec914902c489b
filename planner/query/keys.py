"""Equality classes of a block, and the composite keys by which its slots join."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.trees import nodes
from sqlfl.planner.query.fusion import DisjointSets
from sqlfl.planner.query.nulls import is_null_over_nulls
from sqlfl.planner.query.relations import DraftBlock, DraftRelation, Equality, Term, substituted


@dataclass(frozen=True)
class Class:
    """Equal expressions of several slots, compared as one type."""

    type: str
    terms: Mapping[int, tuple[Term, ...]]
    """By index of the relation; the first expression represents the others."""


@dataclass(frozen=True)
class Key:
    """A tuple of classes, and the pairs of slots that join on it."""

    classes: tuple[Class, ...]
    pairs: frozenset[tuple[int, int]]
    group: str = ""
    """The group of its equalities."""
    on: bool = False
    left: int | None = None
    """For a key of one pair: the slot that keeps its rows with a NULL key."""
    virtual: bool = False
    """The left slot is on the right of a LEFT JOIN, and its key is not NULL over NULLs."""

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(c.type for c in self.classes)

    def terms(self, relation: int) -> tuple[Term, ...]:
        return tuple(c.terms[relation][0] for c in self.classes)


@dataclass
class _Elements:
    """Expressions that take part in equalities, numbered; equal text is one element."""

    numbers: dict[tuple[int, str, str], int] = field(default_factory=dict)
    terms: list[tuple[int, Term, str]] = field(default_factory=list)

    def number(self, relation: int, term: Term, type_: str) -> int:
        key = (relation, to_sql(term.expression), type_)
        if key not in self.numbers:
            self.numbers[key] = len(self.terms)
            self.terms.append((relation, term, type_))
        return self.numbers[key]


def classes_of(block: DraftBlock) -> tuple[Class, ...]:
    """Return the classes of inner equalities, in an order independent of their spelling.

    Classes merge only over equalities of one type: '01' = 1 and '1' = 1 do not make '01' = '1'.
    """
    elements = _Elements()
    edges = [
        (elements.number(e.left, e.terms[0], e.type), elements.number(e.right, e.terms[1], e.type))
        for e in block.equalities
        if not e.own
    ]
    groups = DisjointSets(len(elements.terms))
    for left, right in edges:
        groups.join(left, right)
    members: dict[int, dict[int, list[Term]]] = {}
    for number, (relation, term, _) in enumerate(elements.terms):
        members.setdefault(groups.find(number), {}).setdefault(relation, []).append(term)
    classes = [
        Class(elements.terms[root][2], {r: _sorted(block.relations[r], t) for r, t in by.items()})
        for root, by in members.items()
    ]
    if len(classes) > 1:
        classes.sort(key=lambda c: _order(block, c))
    return tuple(classes)


def _sorted(relation: DraftRelation, terms: list[Term]) -> tuple[Term, ...]:
    return (
        (terms[0],) if len(terms) == 1 else tuple(sorted(terms, key=lambda t: text_of(relation, t)))
    )


def text_of(relation: DraftRelation, term: Term) -> str:
    """The expression at the first branch, free of the numbers that binding gave."""
    expression = substituted(term, relation.branches[0]).expression
    for node in nodes(expression, exp.Column):
        node.set("table", None)
    return to_sql(expression)


def _order(block: DraftBlock, class_: Class) -> tuple[tuple[int, str], ...]:
    return tuple(
        sorted((block.slots[r], text_of(block.relations[r], t[0])) for r, t in class_.terms.items())
    )


def keys_of(block: DraftBlock) -> tuple[Key, ...]:
    """The composite keys of the block, without inner joins that follow from the others."""
    return (*_inner_keys(block), *_own_keys(block))


def _inner_keys(block: DraftBlock) -> tuple[Key, ...]:
    classes = classes_of(block)
    pairs: dict[tuple[int, int], set[int]] = {}
    members = [
        {(r, to_sql(t.expression)) for r, ts in c.terms.items() for t in ts} for c in classes
    ]
    for equality in block.equalities:
        if equality.own:
            continue
        left = (equality.left, to_sql(equality.terms[0].expression))
        number = next(
            n
            for n, (c, m) in enumerate(zip(classes, members, strict=True))
            if c.type == equality.type and left in m
        )
        slots = sorted((block.slots[equality.left], block.slots[equality.right]))
        pairs.setdefault((slots[0], slots[1]), set()).add(number)
    linked = [DisjointSets(len(block.relations)) for _ in classes]
    keys: dict[tuple[int, ...], set[tuple[int, int]]] = {}
    for pair in sorted(pairs, key=lambda p: (p[1], p[0])):
        numbers = tuple(sorted(pairs[pair]))
        apart = [linked[n].join(*pair) for n in numbers]
        if any(apart):
            keys.setdefault(numbers, set()).add(pair)
    groups = {block.slots[e.right]: e.group for e in block.equalities if not e.own}
    groups |= {block.slots[e.left]: e.group for e in block.equalities if not e.own}
    return tuple(
        Key(tuple(classes[n] for n in numbers), frozenset(terms), groups[min(terms)[0]])
        for numbers, terms in keys.items()
    )


def _own_keys(block: DraftBlock) -> tuple[Key, ...]:
    """A key for each pair of slots that an ON, or a condition after a LEFT JOIN, compares."""
    groups: dict[tuple[str, bool, int, int], list[Equality]] = {}
    for equality in block.equalities:
        if equality.own:
            place = (equality.group, equality.on, equality.left, equality.right)
            groups.setdefault(place, []).append(equality)
    keys = []
    for (group, on, left, right), equalities in groups.items():
        # by the whole text: columns of one name may belong to several tables of a fused relation
        once = {(*(to_sql(t.expression) for t in e.terms), e.type): e for e in equalities}
        ordered = sorted(once.values(), key=lambda e: _part_text(block, e))
        parts = [_part_text(block, e) for e in ordered]
        classes = tuple(Class(e.type, {left: e.terms[:1], right: e.terms[1:]}) for e in ordered)
        ids = block.relations[left].ids
        null = any(is_null_over_nulls(e.terms[0].expression, ids) for e in ordered)
        pair = (block.slots[left], block.slots[right])
        virtual = left in block.optional and not null
        pairs = frozenset(((min(pair), max(pair)),))
        key = Key(classes, pairs, group, on, pair[0], virtual)
        keys.append(((pair[1], pair[0], on, parts), key))
    return tuple(key for _, key in sorted(keys, key=lambda item: item[0]))


def _part_text(block: DraftBlock, equality: Equality) -> tuple[str, str, str]:
    sides = zip((equality.left, equality.right), equality.terms, strict=True)
    left, right = (text_of(block.relations[at], term) for at, term in sides)
    return left, right, equality.type


def implied_filters(block: DraftBlock, relation: int) -> tuple[tuple[Term, Term, str], ...]:
    """Return pairs of one relation's expressions that its classes make equal, with their type."""
    return tuple(
        (terms[0], other, c.type)
        for c in classes_of(block)
        for r, terms in c.terms.items()
        if r == relation
        for other in terms[1:]
    )
