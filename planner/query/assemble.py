"""The normal form put together: slots with their fragments, keys, blocks.

A fragment is the SELECT that each client evaluates for a slot, for one block of the union.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.statements import Path
from sqlfl.planner.grammar.trees import copied, nodes
from sqlfl.planner.query import emit, types
from sqlfl.planner.query import ucq as normal
from sqlfl.planner.query.clock import tell_the_place
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.keys import Key, implied_filters, text_of
from sqlfl.planner.query.nulls import is_null_over_nulls
from sqlfl.planner.query.relations import (
    PRESENT,
    ClientBranch,
    DraftBlock,
    DraftRelation,
    OuterJoin,
    Output,
    Term,
    operand,
    substituted,
)
from sqlfl.planner.query.ucq import (
    ARRAY,
    CATEGORY,
    Feature,
    Fragment,
    Identifier,
    LeftJoin,
    Slot,
    Ucq,
    placed,
)
from sqlfl.planner.query.unions import SharedKeys, joins_of, share_keys, subqueries_of


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
        return expression if same else trees.cast(expression, type_)


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
    return trees.cast(exp.Literal.string(types.neutral(type_)), type_)


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
    return isinstance(value, exp.Boolean | exp.Is | exp.Literal)


def _present(value: exp.Expr) -> exp.Expr:
    while isinstance(value, exp.Cast) and not isinstance(value, exp.TryCast):
        value = value.this
    return exp.Not(this=exp.Is(this=operand(copied(value)), expression=exp.Null()))


def _rows(branch: ClientBranch) -> int | None:
    return branch.sources[0].rows if len(branch.sources) == 1 else None


def build_ucq(draft: Draft) -> Draft:
    """Fragments written, equal ones shared between the blocks."""
    return replace(draft, ucq=_Assembly(draft, share_keys(draft)).ucq())


@dataclass(frozen=True)
class _Assembly:
    draft: Draft
    shared: SharedKeys

    def ucq(self) -> Ucq:
        first = self.draft.blocks[0]
        target, weight = self.draft.target_position, self.draft.weight_position
        offset = self.draft.offset_position
        split, noised, units = self._split(), noised_slot(self.draft), None
        unit = self.draft.unit_position
        if unit is not None:
            units = self._unit(unit)
        elif self.draft.folds and target is not None and split != first.outputs[target].relation:
            # its clients do not know the classes that each fold is to have a share of
            split, units = None, split
        slots, fragments_ = [], []
        for index, name in enumerate(_unique(r.name for r in first.relations)):
            written, fragments = self._fragments(index, index in (split, noised))
            slot = self._slot(index, name, fragments)
            slot = replace(slot, noised=index == noised, units=index == units)
            slots.append(replace(slot, split=index == split))
            if index == noised:
                refuse_twice(self.draft, slots[index])
            fragments_.append(written)
        blocks = tuple(
            self._joined(
                n, [_Taken(w, s.fragments, n) for w, s in zip(fragments_, slots, strict=True)]
            )
            for n in range(len(self.draft.blocks))
        )
        return Ucq(
            tuple(slots),
            self.shared.keys,
            blocks,
            tuple(Identifier(name) for name in identifier_names(self.draft.identifiers)),
            tuple(o.name for place, o in enumerate(first.outputs) if place != unit),
            None if target is None else first.outputs[target].name,
            None if target is None else first.outputs[target].type,
            None if weight is None else first.outputs[weight].name,
            tuple(item.transform for item in self.draft.transforms),
            None if offset is None else first.outputs[offset].name,
            self.draft.remarks,
            self.draft.parted,
        )

    def _split(self) -> int | None:
        """The slot that validation rows are drawn from."""
        if not self.draft.split:
            return None
        first = self.draft.blocks[0]
        optional = {b.slots[at] for b in self.draft.blocks for at in b.optional}
        target = self.draft.target_position
        if target is not None and first.outputs[target].relation not in optional:
            return first.outputs[target].relation
        free = [index for index in range(len(first.relations)) if index not in optional]
        if not free:
            raise self.draft.error(
                "validation rows are drawn by the rows of one table, and each table of the query "
                "is on the right of a LEFT JOIN in some block of the union",
                first.span,
                "leave validation_fraction out, or start each block with the same table",
            )
        return free[0]

    def _unit(self, position: int) -> int:
        """The slot whose rows belong to units; PlanError where joined rows may have none of it."""
        output = self.draft.blocks[0].outputs[position]
        if any(output.relation in {b.slots[at] for at in b.optional} for b in self.draft.blocks):
            label = self.draft.blocks[0].relations[output.relation].label
            raise self.draft.error(
                f"unit = '{self.draft.unit}' is of {label}, which is on the right of a LEFT JOIN: "
                "rows without a partner belong to no unit",
                output.term.span,
                "join it with JOIN, or take the unit from a table on the left",
            )
        return output.relation

    def _keys(self, index: int) -> tuple[int, ...]:
        """The keys that some block joins the slot by."""
        return tuple(
            key.index
            for key in self.shared.keys
            if any(
                key.index in keys and any(index in pair for pair in keys[key.index].pairs)
                for keys in self.shared.of_block
            )
        )

    def _fragments(
        self, index: int, base: bool
    ) -> tuple[dict[tuple[object, ...], list[WrittenFragment]], tuple[Fragment, ...]]:
        """Return the slot's fragments, and the written fragments by identity, in the same order."""
        catalog = self.draft.catalog
        every = (client for party in catalog.parties() for client in catalog.clients(party))
        order = {client: place for place, client in enumerate(every)}
        found: dict[tuple[object, ...], list[WrittenFragment]] = {}
        for number, block in enumerate(self.draft.blocks):
            at = block.slots.index(index)
            writer = FragmentWriter(self.draft, self.shared, number, at, self._keys(index), base)
            for written in writer.fragments(order):
                found.setdefault(written.identity, []).append(written)
        ordered = sorted(
            found.items(), key=lambda item: (order[item[1][0].client], item[1][0].virtual)
        )
        places = {identity: place for place, (identity, _) in enumerate(ordered)}
        fragments = tuple(
            Fragment(
                place,
                w.client,
                w.select,
                w.rows,
                w.virtual,
                places[w.kept] if w.links else None,
                keyed=w.keyed,
            )
            for place, (_, (w, *_)) in enumerate(ordered)
        )
        return dict(ordered), fragments

    def _slot(self, index: int, name: str, fragments: tuple[Fragment, ...]) -> Slot:
        first = self.draft.blocks[0]
        draft = self.draft
        special = (draft.target_position, draft.weight_position, draft.offset_position)
        holds = [place is not None and first.outputs[place].relation == index for place in special]
        features = [
            _feature(o)
            for place, o in enumerate(first.outputs)
            if o.relation == index and place not in (*special, draft.unit_position)
        ]
        keys = self._keys(index)
        return Slot(
            index,
            name,
            tuple(features),
            holds[0],
            tuple(n for n, o in enumerate(first.identifiers) if o.relation == index),
            keys,
            fragments,
            tuple(
                key
                for key in keys
                if any(key in own and own[key].left == index for own in self.shared.of_block)
            ),
            holds[1],
            holds[2],
            once=bool(first.relations[index].once),
            single=any(b.relations[b.slots.index(index)].single for b in self.draft.blocks),
            derived=self._derived(index),
        )

    def _derived(self, index: int) -> tuple[str, ...]:
        """Conditions that follow for the slot, of all blocks."""
        conditions = (
            text_of(block.relations[at], term)
            for block in self.draft.blocks
            for at, term in block.derived
            if block.slots[at] == index
        )
        return tuple(dict.fromkeys(conditions))

    def _joined(self, number: int, taken: Sequence[_Taken]) -> normal.Block:
        block = self.draft.blocks[number]
        optional = sorted(block.slots[at] for at in block.optional)
        kept = [slot for slot in optional if taken[slot].some_link]
        return normal.Block(
            tuple((slot, taken_part.real) for slot, taken_part in enumerate(taken)),
            joins_of(self.shared, number, block.tree.id),
            tuple(self._left(number, block, left) for left in block.tree.lefts),
            tuple((slot, taken[slot].virtual) for slot in optional),
            tuple((slot, taken[slot].kept) for slot in kept),
            *subqueries_of(self.draft, self.shared, number),
        )

    def _left(self, number: int, block: DraftBlock, left: OuterJoin) -> LeftJoin:
        group = left.group
        return LeftJoin(
            tuple(block.slots[block.of(i)] for i in group.core),
            joins_of(self.shared, number, group.id),
            tuple(self._left(number, block, inner) for inner in group.lefts),
            joins_of(self.shared, number, group.id, on=True),
            left.lookup,
        )


@dataclass(frozen=True)
class _Taken:
    """The parts of one slot that take part in one block."""

    written: Mapping[tuple[object, ...], Sequence[WrittenFragment]]
    fragments: Sequence[Fragment]
    number: int

    def _numbers(self) -> list[int]:
        """Return the numbers, repeated as often as in the block."""
        return [
            place
            for place, group in enumerate(self.written.values())
            for w in group
            if w.block == self.number
        ]

    @property
    def real(self) -> tuple[int, ...]:
        return tuple(n for n in self._numbers() if not self.fragments[n].virtual)

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(n for n in self.real if not self.fragments[n].links)

    @property
    def some_link(self) -> bool:
        return any(self.fragments[n].links for n in self.real)

    @property
    def virtual(self) -> int:
        return next(n for n in self._numbers() if self.fragments[n].virtual)


def _feature(output: Output) -> Feature:
    kind = types.kind(output.type)
    assert kind is not None
    width, step = types.array_width(output.type) or 1, None
    if output.made is not None and (step := output.made.step) is not None:
        kind, width = step.gives
    type_ = output.type if step is None else _types_of(kind, width)
    return Feature(output.name, kind, type_, width, output.transform, output.made)


def _types_of(kind: str, width: int) -> str:
    """Return the types of a fitted feature."""
    return {CATEGORY: "VARCHAR", ARRAY: f"DOUBLE[{width}]"}.get(kind, "DOUBLE")


def _unique(names: Iterable[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        number, free = 1, name
        while free.lower() in {n.lower() for n in found}:
            number += 1
            free = f"{name}_{number}"
        found.append(free)
    return found


def identifier_names(paths: Sequence[Path]) -> list[str]:
    """Return result columns of the ID clause: the column's name, or the whole path if that is
    taken.
    """
    last = [path.parts[-1].lower() for path in paths]
    taken = {name for name in last if last.count(name) > 1 or name.startswith("probability_")}
    taken.add("prediction")
    return [
        str(path) if name in taken else path.parts[-1]
        for path, name in zip(paths, last, strict=True)
    ]


ONCE = "labels are noised once per row"


def noised_slot(draft: Draft) -> int | None:
    """Return the target's slot if labels are noised.

    Its rows must be distinguishable from their copies: noise per copy could be averaged out. Raises
    PlanError if they are not.
    """
    position = draft.target_position
    if not draft.noised or position is None:
        return None
    for block in draft.blocks:
        output = block.outputs[position]
        relation = block.relations[output.relation]
        if output.relation in block.optional:
            raise draft.error(
                f"{ONCE}, and the rows of {relation.label} are not all its own: it is on the right "
                "of a LEFT JOIN",
                output.term.span,
                "join it with JOIN, put it first, or leave label_epsilon out",
            )
        for branch in relation.branches:
            if _several(branch):
                raise draft.error(
                    f"{ONCE}, and {relation.label} is made of several tables, or lists, at "
                    f"{branch.client.party}: copies of one row could not be told from equal rows",
                    relation.span or output.term.span,
                    "take the label from one table; its others may stand in a table that the party "
                    "makes, with one row for each label",
                )
    return draft.blocks[0].outputs[position].relation


def _several(branch: ClientBranch) -> bool:
    """A row of a table may be several of the branch's."""
    shapes = (exp.Join, exp.Lateral, exp.Unnest, exp.Explode)
    return len(branch.sources) > 1 or any(
        source.copies
        or (
            isinstance(source.item, exp.Subquery)
            and (len(_tables(source.item)) > 1 or source.item.find(*shapes) is not None)
        )
        for source in branch.sources
    )


def refuse_twice(draft: Draft, slot: Slot) -> None:
    """Raises PlanError where a row may stand in two of a client's fragments: it would be noised in
    each."""
    seen: dict[tuple[Client, str], int] = {}
    for fragment in slot.fragments:
        source = fragment.select.args["from_"].this
        for table in dict.fromkeys(_tables(source)):
            if seen.setdefault((fragment.client, table), fragment.index) == fragment.index:
                continue
            position = draft.target_position
            assert position is not None
            span = draft.blocks[-1].outputs[position].term.span
            raise draft.error(
                f"{ONCE}, and {fragment.client.party}.{table} stands in several parts of the "
                "union, each with joins or conditions of its own: a row in two of them would have "
                "two labels",
                span,
                "write the parts as one SELECT, their conditions joined by OR",
            )


def _tables(item: exp.Expr) -> list[str]:
    tables = nodes(item, exp.Table)
    return [".".join(part.name.lower() for part in table.parts) for table in tables]
