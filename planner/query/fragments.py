"""Write the fragments that each client evaluates for a slot, for one block of the union."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from sqlglot import exp

from sqlfl.contract.fragment_columns import (
    BASE,
    KEPT,
    OFFSET,
    ROW,
    TARGET,
    WEIGHT,
    identifier,
    key_part,
)
from sqlfl.contract.schema import Client
from sqlfl.planner.grammar import build
from sqlfl.planner.grammar.trees import copied
from sqlfl.planner.grammar.writing import to_sql
from sqlfl.planner.query import emit, types
from sqlfl.planner.query.clock import tell_the_place
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.keys import Key, implied_filters
from sqlfl.planner.query.nulls import is_null_over_nulls
from sqlfl.planner.query.places import placed
from sqlfl.planner.query.relations import (
    PRESENT,
    ClientBranch,
    DraftBlock,
    DraftRelation,
    Term,
    operand,
    substituted,
)
from sqlfl.planner.query.unions import SharedKeys


@dataclass(frozen=True)
class WrittenFragment:
    """A fragment of a block, before equal ones are shared."""

    block: int
    client: Client
    select: exp.Select
    rows: int | None
    virtual: bool = False
    links: bool = False
    repeat: int = 0
    """Number of equal fragments before it in the block, if each must give its own rows."""
    keyed: bool = False

    @property
    def identity(self) -> tuple[object, ...]:
        return (*self._shared, self.links)

    @property
    def kept(self) -> tuple[object, ...]:
        """Return the identity of the fragment that is evaluated together with this one, which
        links.
        """
        return (*self._shared, False)

    @property
    def _shared(self) -> tuple[object, ...]:
        return self.client, self._text, self.virtual, self.repeat

    @cached_property
    def _text(self) -> str:
        return to_sql(self.select)


@dataclass(frozen=True)
class FragmentWriter:
    """Writer of the fragments of one relation of one block, with the columns of its slot."""

    draft: Draft
    shared: SharedKeys
    number: int
    """Number of the block."""
    at: int
    """Index of the relation."""
    keys: tuple[int, ...]
    base: bool
    """True if the whole row of the sources is a column."""

    def fragments(self, order: Mapping[Client, int]) -> Iterator[WrittenFragment]:
        """Yield the fragments of the branches; then, on the right of a LEFT JOIN, the
        virtual one.
        """
        optional = self.at in self._block.optional
        kept = self._kept()
        seen: list[tuple[object, ...]] = []
        for branch in self._relation.branches:
            select = self._at(branch, self._real(branch, kept))
            for links in (False, True) if kept else (False,):
                rows = 0 if links else _rows(branch)
                keyed = len(branch.sources) == 1 and branch.sources[0].keyed
                written = WrittenFragment(
                    self.number, branch.client, select, rows, False, links, keyed=keyed
                )
                if optional:
                    seen.append(written.identity)
                    written = replace(written, repeat=seen.count(written.identity) - 1)
                yield written
        if optional:
            first = min(self._relation.branches, key=lambda b: order[b.client])
            select = self._at(first, self._virtual(first, kept))
            yield WrittenFragment(self.number, first.client, select, 1, True)

    def _at(self, branch: ClientBranch, select: exp.Select) -> exp.Select:
        tell_the_place(select, self.draft.catalog.places(branch.client)[0])
        return select

    @property
    def _block(self) -> DraftBlock:
        return self.draft.blocks[self.number]

    @property
    def _relation(self) -> DraftRelation:
        return self._block.relations[self.at]

    def _kept(self) -> list[Term]:
        """Conditions on joined rows that this relation, on the right of a LEFT JOIN, decides."""
        kept = [term for at, term in self._block.kept if at == self.at]
        position = self.draft.target_position
        if position is None or self.at not in self._block.optional:
            return kept
        target = self._block.outputs[position]
        if target.relation == self.at:
            expression = target.term.expression
            test: exp.Expr = exp.Not(
                this=exp.Is(this=operand(expression.copy()), expression=exp.Null())
            )
            if types.normal(target.type) in ("FLOAT", "DOUBLE"):
                number = exp.Not(this=exp.IsNan(this=expression.copy()))
                test = exp.And(this=test, expression=number)
            kept.append(Term(test, target.term.span))
        return kept

    def _real(self, branch: ClientBranch, kept: Sequence[Term]) -> exp.Select:
        """Return rows that pass the conditions, and those that do not. A source is read only once,
        because it may give other rows each time.
        """
        filters = [placed(copied(f.expression), f.span) for f in branch.filters]
        filters += self._implied(branch)
        projections = self._columns(branch, branch)
        for index in self.keys:
            types_ = self.shared.keys[index].types
            key = self._own(index)
            for part, type_ in enumerate(types_):
                name = key_part(index, part)
                if key is None:
                    projections.append((_constant(type_), name))
                    continue
                term = key.terms(self.at)[part]
                projections.append((placed(self._as(branch, branch, term, type_), term.span), name))
                value = substituted(term, branch).expression
                if key.left != self._slot and not _never_null(value):
                    filters.append(_present(value))
        if kept:
            test = operand(_all(placed(substituted(t, branch).expression, t.span) for t in kept))
            projections.append((exp.Is(this=test, expression=exp.true()), KEPT))
        return emit.fragment_select(branch.sources, _or_row(projections), filters)

    def _virtual(self, branch: ClientBranch, kept: Sequence[Term]) -> exp.Select:
        """Return the expressions over one row of NULLs, if it passes the conditions of
        joined rows.
        """
        nulls = replace(branch, columns=_over_nulls(branch))
        projections = self._columns(branch, nulls)
        for index in self.keys:
            key = self._own(index)
            for part, type_ in enumerate(self.shared.keys[index].types):
                value: exp.Expr = _constant(type_)
                if key is not None and key.left == self._slot:
                    value = self._as(branch, nulls, key.terms(self.at)[part], type_)
                projections.append((value, key_part(index, part)))
        tests = [substituted(term, nulls).expression for term in kept]
        return emit.fragment_select(branch.sources, _or_row(projections), tests, virtual=True)

    @property
    def _slot(self) -> int:
        return self._block.slots[self.at]

    def _own(self, index: int) -> Key | None:
        """The key of this number in this block, where the relation takes part in it."""
        key = self.shared.of_block[self.number].get(index)
        return key if key is not None and any(self._slot in pair for pair in key.pairs) else None

    def _columns(self, branch: ClientBranch, over: ClientBranch) -> list[tuple[exp.Expr, str]]:
        names = [o.name for o in self.draft.blocks[0].outputs]
        special = {
            self.draft.target_position: TARGET,
            self.draft.weight_position: WEIGHT,
            self.draft.offset_position: OFFSET,
        }
        columns: list[tuple[exp.Expr, str]] = []
        last: dict[str, exp.Expr] = {}
        for place, output in enumerate(self._block.outputs):
            if output.relation == self.at:
                expression = placed(substituted(output.term, over).expression, output.term.span)
                if place == self.draft.unit_position:
                    continue
                if place in special:
                    last[special[place]] = expression
                else:
                    columns.append((expression, names[place]))
        if self.base:
            last[BASE] = emit.whole_row(branch.sources)
        for name in (TARGET, WEIGHT, OFFSET, BASE):
            if name in last:
                columns.append((last[name], name))
        for number, output in enumerate(self._block.identifiers):
            if output.relation == self.at:
                columns.append((substituted(output.term, over).expression, identifier(number)))
        return columns

    def _implied(self, branch: ClientBranch) -> list[exp.Expr]:
        return [
            exp.EQ(
                this=operand(self._as(branch, branch, left, type_)),
                expression=operand(self._as(branch, branch, right, type_)),
            )
            for left, right, type_ in implied_filters(self._block, self.at)
        ]

    def _as(self, branch: ClientBranch, over: ClientBranch, term: Term, type_: str) -> exp.Expr:
        """The term over one branch, cast where it has another type."""
        whole: DraftRelation = replace(self._relation, branches=(branch,))
        own = self.draft.types(whole, [term])[0][0]
        expression = substituted(term, over).expression
        same = types.normal(own) == types.normal(type_)
        return expression if same else build.cast(expression, type_)


def _over_nulls(branch: ClientBranch) -> dict[tuple[str, str], exp.Expr]:
    """The relation's columns where it has no row: NULL, of their type, also computed ones."""
    ids = frozenset(source.id for source in branch.sources)
    nulls: dict[tuple[str, str], exp.Expr] = {}
    for key, expression in branch.columns.items():
        if is_null_over_nulls(expression, ids):
            nulls[key] = expression
        elif key[1] == PRESENT:
            nulls[key] = exp.false()
        else:
            nulls[key] = exp.Case(ifs=[exp.If(this=exp.false(), true=expression.copy())])
    return nulls


def _constant(type_: str) -> exp.Expr:
    return build.cast(exp.Literal.string(types.neutral(type_)), type_)


def _or_row(projections: list[tuple[exp.Expr, str]]) -> list[tuple[exp.Expr, str]]:
    return projections or [(exp.Literal.number(1), ROW)]


def _all(tests: Iterator[exp.Expr]) -> exp.Expr:
    first, *rest = tests
    whole = operand(first) if rest else first
    for test in rest:
        whole = exp.And(this=whole, expression=operand(test))
    return whole


def _never_null(value: exp.Expr) -> bool:
    """A constant, IS NULL, or a value with a constant in place of NULL."""
    if isinstance(value, exp.Coalesce):
        value = value.expressions[-1]
        return isinstance(value, exp.Cast) and isinstance(value.this, exp.Literal)
    return isinstance(value, exp.Boolean | exp.Is)


def _present(value: exp.Expr) -> exp.Expr:
    while isinstance(value, exp.Cast) and not isinstance(value, exp.TryCast):
        value = value.this
    return exp.Not(this=exp.Is(this=operand(copied(value)), expression=exp.Null()))


def _rows(branch: ClientBranch) -> int | None:
    return branch.sources[0].rows if len(branch.sources) == 1 else None
