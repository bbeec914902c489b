"""The normal form put together: slots with their fragments, keys, blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from sqlfl.planner import emit, types, ucq
from sqlfl.planner.draft import Draft
from sqlfl.planner.keys import implied_filters
from sqlfl.planner.relations import (
    Block,
    Branch,
    Output,
    Relation,
    Term,
    operand,
    substituted,
)
from sqlfl.planner.statements import Path
from sqlfl.planner.ucq import Feature, Fragment, Identifier, Slot, Ucq
from sqlfl.planner.unions import Shared, joins_of, share_keys
from sqlfl.schema import Client


def build_ucq(draft: Draft) -> Draft:
    """Fragments written, equal ones shared between the blocks."""
    return replace(draft, ucq=_Assembly(draft, share_keys(draft.blocks)).ucq())


@dataclass(frozen=True)
class _Assembly:
    draft: Draft
    shared: Shared

    def ucq(self) -> Ucq:
        first = self.draft.blocks[0]
        target = self.draft.target_position
        slots, numbers = [], []
        names = _unique(r.name for r in first.relations)
        for index, name in enumerate(names):
            slot, taken = self._slot(index, name)
            slots.append(slot)
            numbers.append(taken)
        blocks = tuple(
            ucq.Block(
                tuple((slot, numbers[slot][n]) for slot in range(len(slots))),
                joins_of(self.shared, n),
            )
            for n in range(len(self.draft.blocks))
        )
        return Ucq(
            tuple(slots),
            self.shared.keys,
            blocks,
            tuple(Identifier(name) for name in identifier_names(self.draft.identifiers)),
            tuple(o.name for o in first.outputs),
            None if target is None else first.outputs[target].name,
            None if target is None else first.outputs[target].type,
        )

    def _slot(self, index: int, name: str) -> tuple[Slot, list[tuple[int, ...]]]:
        """The slot, and for each block the fragments of it that take part."""
        first = self.draft.blocks[0]
        target = self.draft.target_position
        keys = tuple(
            key.index
            for key in self.shared.keys
            if any(
                key.index in own and any(index in pair for pair in own[key.index].pairs)
                for own in self.shared.of_block
            )
        )
        written: list[tuple[int, Client, exp.Select, int | None]] = []
        for number, block in enumerate(self.draft.blocks):
            relation = block.slots.index(index)
            for branch in block.relations[relation].branches:
                select = self._fragment(number, relation, branch, keys)
                written.append((number, branch.client, select, _rows(branch)))
        order = {
            client: place
            for place, client in enumerate(
                c for p in self.draft.catalog.parties() for c in self.draft.catalog.clients(p)
            )
        }
        distinct = {(c, s.sql(dialect="duckdb")): (s, rows) for _, c, s, rows in reversed(written)}
        found = sorted(
            dict.fromkeys((c, s.sql(dialect="duckdb")) for _, c, s, _ in written),
            key=lambda key: order[key[0]],
        )
        fragments = tuple(
            Fragment(place, key[0], *distinct[key]) for place, key in enumerate(found)
        )
        numbers = [
            tuple(
                found.index((c, s.sql(dialect="duckdb"))) for n, c, s, _ in written if n == number
            )
            for number in range(len(self.draft.blocks))
        ]
        slot = Slot(
            index,
            name,
            tuple(
                _feature(o)
                for place, o in enumerate(first.outputs)
                if o.relation == index and place != target
            ),
            target is not None and first.outputs[target].relation == index,
            tuple(n for n, o in enumerate(first.identifiers) if o.relation == index),
            keys,
            fragments,
        )
        return slot, numbers

    def _fragment(
        self, number: int, relation: int, branch: Branch, keys: tuple[int, ...]
    ) -> exp.Select:
        block = self.draft.blocks[number]
        projections = self._columns(block, relation, branch)
        filters = [f.expression for f in branch.filters]
        filters += self._implied(block, relation, branch)
        own = self.shared.of_block[number]
        slot = block.slots[relation]
        for index in keys:
            key = self.shared.keys[index]
            local = own.get(index)
            takes_part = local is not None and any(slot in pair for pair in local.pairs)
            terms = local.terms(relation) if local is not None and takes_part else None
            for part, type_ in enumerate(key.types):
                name = f"sqlfl_key_{index}_{part}"
                if terms is None:
                    value: exp.Expr = exp.Literal.string(types.neutral(type_))
                    projections.append((emit.cast(value, type_), name))
                    continue
                value = substituted(terms[part], branch).expression
                projections.append((self._as(block, relation, branch, terms[part], type_), name))
                filters.append(_present(value))
        if not projections:
            projections.append((exp.Literal.number(1), "sqlfl_row"))
        return emit.fragment_select(branch.sources, projections, filters)

    def _columns(self, block: Block, relation: int, branch: Branch) -> list[tuple[exp.Expr, str]]:
        target = self.draft.target_position
        names = [o.name for o in self.draft.blocks[0].outputs]
        columns: list[tuple[exp.Expr, str]] = []
        last: list[tuple[exp.Expr, str]] = []
        for place, output in enumerate(block.outputs):
            if output.relation == relation:
                expression = substituted(output.term, branch).expression
                if place == target:
                    last.append((expression, "sqlfl_target"))
                else:
                    columns.append((expression, names[place]))
        for number, output in enumerate(block.identifiers):
            if output.relation == relation:
                last.append((substituted(output.term, branch).expression, f"sqlfl_id_{number}"))
        return [*columns, *last]

    def _implied(self, block: Block, relation: int, branch: Branch) -> list[exp.Expr]:
        return [
            exp.EQ(
                this=operand(self._as(block, relation, branch, left, type_)),
                expression=operand(self._as(block, relation, branch, right, type_)),
            )
            for left, right, type_ in implied_filters(block, relation)
        ]

    def _as(self, block: Block, relation: int, branch: Branch, term: Term, type_: str) -> exp.Expr:
        """The term over one branch, cast where it has another type."""
        whole: Relation = replace(block.relations[relation], branches=(branch,))
        own = self.draft.types(whole, [term])[0][0]
        expression = substituted(term, branch).expression
        return (
            expression if types.normal(own) == types.normal(type_) else emit.cast(expression, type_)
        )


def _present(value: exp.Expr) -> exp.Expr:
    while isinstance(value, exp.Cast) and not isinstance(value, exp.TryCast):
        value = value.this
    return exp.Not(this=exp.Is(this=operand(value.copy()), expression=exp.Null()))


def _feature(output: Output) -> Feature:
    kind = types.kind(output.type)
    assert kind is not None
    return Feature(output.name, kind, output.type, types.array_width(output.type) or 1)


def _rows(branch: Branch) -> int | None:
    return branch.sources[0].rows if len(branch.sources) == 1 else None


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
    """Result columns of the ID clause: the column's name, the whole path where that is taken."""
    last = [path.parts[-1].lower() for path in paths]
    taken = {name for name in last if last.count(name) > 1 or name.startswith("probability_")}
    taken.add("prediction")
    return [
        str(path) if name in taken else path.parts[-1]
        for path, name in zip(paths, last, strict=True)
    ]
