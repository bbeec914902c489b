"""Columns that a FULL JOIN makes of one column of each side.

`k` after USING (k), and `coalesce(a.k, b.k)` after ON a.k = b.k, are of table a in one part of the
FULL JOIN and of table b in the other. A feature is of one table position in all parts. So such a
column gets a position of its own: in each part, the distinct keys of the table that has them there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, count

from sqlglot import exp

from sqlfl.contract.fragment_columns import RESERVED
from sqlfl.contract.schema import folded
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.refusals import function_name
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.trees import copied, nodes
from sqlfl.planner.query import emit, types
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.equalities import BYTES, collation, equality
from sqlfl.planner.query.fusion import DisjointSets
from sqlfl.planner.query.nulls import TYPES, is_null_over_nulls, rejects_nulls
from sqlfl.planner.query.relations import (
    ClientBranch,
    DraftBlock,
    DraftRelation,
    Equality,
    Group,
    OuterJoin,
    Source,
    Term,
    absent,
    clients_of,
    column,
    ids_of,
    substitute,
    unwidened,
    widened,
)
from sqlfl.planner.query.ucq import groups_of

PART = f"{RESERVED}part"
"""Column of a relation of several databases: the number of the database, which keeps apart equal
values of different ones."""


# -- values that are equal by the join ------------------------------------------------------------


def merge_equal_columns(draft: Draft) -> Draft:
    """Replace `coalesce(a.k, b.k)` by the one column that has its value in the block.

    In `a LEFT JOIN b ON a.k = b.k`, b.k is a.k or NULL. Where the block has only rows without a
    partner in a, a.k is NULL, and so are expressions of it.
    """

    def merge(block: DraftBlock) -> DraftBlock:
        tree = _merged_tree(draft, block, block.tree)
        facts = _Facts(draft, block, tree)
        outputs = tuple(replace(o, term=facts.nulled(facts.merged(o.term))) for o in block.outputs)
        return replace(block, outputs=outputs, tree=tree)

    return draft.each_block(merge)


def _merged_tree(draft: Draft, block: DraftBlock, group: Group) -> Group:
    """Return the group with shorter conditions; those of a LEFT JOIN tell of the later ones."""
    for place, left in enumerate(group.lefts):
        facts = _Facts(draft, block, group)
        inner = _merged_tree(draft, block, left.group)
        changed = replace(left, group=inner, on=tuple(map(facts.merged, left.on)))
        group = replace(group, lefts=(*group.lefts[:place], changed, *group.lefts[place + 1 :]))
    facts = _Facts(draft, block, group)
    conditions = tuple(facts.decided(facts.merged(term)) for term in group.conditions)
    return replace(group, conditions=conditions)


@dataclass(frozen=True)
class _Facts:
    """Equalities and missing relations in the rows of a group."""

    draft: Draft
    block: DraftBlock
    group: Group

    @property
    def missing(self) -> frozenset[str]:
        """Return ids of the relations of which the group's rows have none."""
        tests = {to_sql(term.expression) for term in self.group.conditions}
        return frozenset(
            id_
            for left in self.group.lefts
            if to_sql(absent(left.group.id)) in tests
            for id_ in left.group.ids
        )

    def implied(self) -> Iterator[tuple[exp.Expr, exp.Expr]]:
        """Yield pairs of values, of which the second is the first or NULL."""
        for left in self.group.lefts:
            inside = {*left.group.ids}
            for term in left.on:
                for one, other in _sides(term):
                    read = ids_of(Term(other, None))
                    if read and read <= inside and not ids_of(Term(one, None)) & inside:
                        yield one, other
        for term in self.group.conditions:
            yield from _sides(term)

    def merged(self, term: Term) -> Term:
        """Return the term without needless parts of coalesce."""
        if len(self._relations(term.expression)) < 2:
            return term
        holder = exp.Paren(this=copied(term.expression))
        for case in [*nodes(holder, exp.Case)][::-1]:
            if (parts := _first_of(case)) is not None:
                case.replace(exp.Coalesce(this=parts[0], expressions=[parts[1]]))
        for node in [*nodes(holder, exp.Coalesce, exp.Anonymous)][::-1]:
            if isinstance(node, exp.Anonymous) and function_name(node) != "ifnull":
                continue
            if (value := self._one_of(node)) is not None:
                node.replace(value)
        return replace(term, expression=holder.this)

    def nulled(self, term: Term) -> Term:
        """Return NULL for a term that is NULL in all of the group's rows."""
        missing = self.missing
        several = missing & ids_of(term) and len(self._relations(term.expression)) > 1
        if several and is_null_over_nulls(term.expression, missing):
            return replace(term, expression=exp.Null())
        return term

    def decided(self, term: Term) -> Term:
        """Return FALSE for a condition that none of the group's rows fulfils, unless it joins."""
        if equality(term.expression) is not None:
            return term
        missing = self.missing
        several = missing & ids_of(term) and len(self._relations(term.expression)) > 1
        if several and rejects_nulls(term.expression, missing):
            return replace(term, expression=exp.false())
        return term

    def _relations(self, expression: exp.Expr) -> set[int]:
        return {self.block.of(id_) for id_ in ids_of(Term(expression, None))}

    def _one_of(self, node: exp.Expr) -> exp.Expr | None:
        """Return the parts of a coalesce that have its value; None if these read several
        relations.
        """
        if isinstance(node, exp.Coalesce):
            parts = [node.this, *node.expressions]
        else:
            parts = [*node.expressions]
        if len(self._relations(node)) < 2:
            return None
        missing = self.missing
        left = [
            part
            for part in parts
            if not (ids_of(Term(part, None)) & missing and is_null_over_nulls(part, missing))
        ]
        for one, other in self.implied():
            texts = [to_sql(unwidened(part)) for part in left]
            ends = [to_sql(unwidened(end)) for end in (one, other)]
            if ends[0] in texts and ends[1] in texts:
                place = texts.index(ends[1])
                if place > texts.index(ends[0]) or self._is_same(one, other):
                    del left[place]
        if len({at for part in left for at in self._relations(part)}) > 1:
            return None
        held = [self._type(part) for part in parts]
        wanted = None if None in held else types.union_type(tuple(h for h in held if h))
        if wanted is None:
            return None
        if not left:
            return trees.cast(exp.Null(), wanted)
        value = copied(left[0])
        if len(left) > 1:
            value = exp.Coalesce(this=value, expressions=[copied(part) for part in left[1:]])
        kept = [held[place] for place, part in enumerate(parts) if part in left]
        same = types.union_type(tuple(h for h in kept if h)) == types.normal(wanted)
        return value if same else widened(value, wanted)

    def _is_same(self, one: exp.Expr, other: exp.Expr) -> bool:
        """Return whether equal values look alike too: not texts under a collation."""
        for value in (one, other):
            term = Term(value, None)
            if self._type(value) == "VARCHAR":
                relation = self.block.relations[self.block.of(next(iter(ids_of(term))))]
                if collation(self.draft, relation, [term]) != BYTES:
                    return False
        return True

    def _type(self, part: exp.Expr) -> str | None:
        """Return the type of a part that reads one relation, or none."""
        held = part.unnest().meta_get(TYPES)
        if isinstance(part.unnest(), exp.Column) and held:
            return types.union_type(tuple(held))
        read = self._relations(part)
        if len(read) > 1 or clients_of(part):
            return None
        relation = self.block.relations[min(read, default=0)]
        return types.union_type(self.draft.types(relation, [Term(part, None)])[0])


def _first_of(case: exp.Case) -> tuple[exp.Expr, exp.Expr] | None:
    """Return x and y of `CASE WHEN x IS NULL THEN y ELSE x END`, which is coalesce(x, y), and of
    the same with IS NOT NULL; None for others.
    """
    ifs, otherwise = case.args["ifs"], case.args.get("default")
    if case.this is not None or len(ifs) != 1 or otherwise is None:
        return None
    test, then = ifs[0].this.unnest(), ifs[0].args["true"]
    negated = isinstance(test, exp.Not)
    test = test.this.unnest() if negated else test
    if not isinstance(test, exp.Is) or not isinstance(test.expression, exp.Null):
        return None
    first, second = (then, otherwise) if negated else (otherwise, then)
    same = isinstance(first.unnest(), exp.Column) and first.unnest() == test.this.unnest()
    return (first.copy(), second.copy()) if same else None


def _sides(term: Term) -> Iterator[tuple[exp.Expr, exp.Expr]]:
    equal = equality(term.expression)
    if equal is not None and not equal.nulls:
        yield equal.left.unnest(), equal.right.unnest()
        yield equal.right.unnest(), equal.left.unnest()


# -- a position of its own ------------------------------------------------------------------------


def place_merged_columns(draft: Draft) -> Draft:
    """Give a table position of its own to columns that are of another table in each part of a FULL
    JOIN.

    Its rows are the distinct keys of the part's table, with which the table is joined by them. Only
    columns of join keys are taken, whose hashes leave in any case.
    """
    related = DisjointSets(len(draft.blocks))
    held = [{id_ for r in block.relations for id_ in r.ids} for block in draft.blocks]
    for one, other in combinations(range(len(draft.blocks)), 2):
        if held[one] & held[other]:
            related.join(one, other)
    groups: dict[int, list[int]] = {}
    for number in range(len(draft.blocks)):
        groups.setdefault(related.find(number), []).append(number)
    blocks, remarks = [*draft.blocks], [*draft.remarks]
    # parties describe a source's columns once, so that no two sources may have one id
    fresh = count(1 + max(int(id_[1:]) for block in blocks for id_ in _ids(block)))
    for numbers in groups.values():
        parts = [blocks[number] for number in numbers]
        for outputs in _moving(draft, parts):
            id_ = f"#{next(fresh)}"
            remarks.append(_remark(parts, outputs))
            parts = [
                _with_position(draft, part, outputs, id_, fresh)
                if _reads(part, outputs[0])
                else part
                for part in parts
            ]
        for number, part in zip(numbers, parts, strict=True):
            blocks[number] = part
    return replace(draft, blocks=tuple(blocks), remarks=tuple(dict.fromkeys(remarks)))


def _moving(draft: Draft, parts: Sequence[DraftBlock]) -> list[list[int]]:
    """Return the outputs that are of another table in some part, by the columns that they read."""
    roles = (
        draft.target_position,
        draft.weight_position,
        draft.offset_position,
        draft.unit_position,
    )
    found: dict[tuple[object, ...], list[int]] = {}
    for place in range(len(parts[0].outputs)):
        own = [part for part in parts if _reads(part, place)]
        if place in roles or not _moves(own, place):
            continue
        read = [_columns(part, place) if part in own else None for part in parts]
        if () not in read:
            found.setdefault(tuple(read), []).append(place)
    return [*found.values()]


def _moves(parts: Sequence[DraftBlock], place: int) -> bool:
    """Return whether an output is of another table in some part, and a part has both tables."""
    held = [{*part.relations[part.outputs[place].relation].ids} for part in parts]
    every = [{id_ for relation in part.relations for id_ in relation.ids} for part in parts]
    return any(
        not held[one] & held[other] and (held[one] <= every[other] or held[other] <= every[one])
        for one, other in combinations(range(len(parts)), 2)
    )


def _reads(block: DraftBlock, place: int) -> bool:
    """Return whether an output is more than a constant."""
    term = block.outputs[place].term
    return bool(block.reads(term) or clients_of(term.expression))


def _ids(block: DraftBlock) -> Iterator[str]:
    """Yield the ids of the block's relations and sources."""
    for relation in block.relations:
        yield from relation.ids
        yield from (s.id for branch in relation.branches for s in branch.sources)


def _columns(block: DraftBlock, place: int) -> tuple[tuple[str, str], ...]:
    """Return the columns that an output reads, as (relation, name); none unless all of them are
    values of join keys, of a relation whose distinct values its databases can make.
    """
    output = block.outputs[place]
    relation = block.relations[output.relation]
    if clients_of(output.term.expression):
        return ()
    if any(groups_of(s.item) is not None for b in relation.branches for s in b.sources):
        return ()
    keys = {
        (node.table, folded(node.name))
        for e in block.equalities
        for at, term in zip((e.left, e.right), e.terms, strict=True)
        if at == output.relation
        for node in nodes(term.expression, exp.Column)
    }
    read = {(node.table, folded(node.name)) for node in nodes(output.term.expression, exp.Column)}
    return tuple(sorted(read)) if read <= keys else ()


def _with_position(
    draft: Draft, block: DraftBlock, places: Sequence[int], id_: str, fresh: Iterator[int]
) -> DraftBlock:
    """Return the block with a relation of the distinct values that the outputs read. Its sources
    take `fresh` numbers.
    """
    at = block.outputs[places[0]].relation
    relation = block.relations[at]
    columns = _columns(block, places[0])
    empty = any(
        rejects_nulls(condition.expression, ())
        for id_ in block.tree.core
        for branch in block.relations[block.of(id_)].branches
        for condition in branch.filters
    )
    made = _DistinctKeys(draft, relation, columns, empty)
    own = made.relation(block.outputs[places[0]].name, id_, fresh)
    new = {key: column(made.names[key], own.ids[0]) for key in columns}
    pairs = made.equalities(own.ids[0])
    if len(relation.branches) > 1:
        branches = tuple(
            replace(b, columns={**b.columns, (relation.ids[0], PART): exp.Literal.number(number)})
            for number, b in enumerate(relation.branches)
        )
        relation = replace(relation, branches=branches)
        pairs.append((column(PART, relation.ids[0]), column(PART, own.ids[0])))
    relations = [*block.relations, own]
    relations[at] = relation
    index = len(block.relations)
    span = block.outputs[places[0]].term.span
    equalities = tuple(
        Equality(at, index, (Term(a, span), Term(b, span)), "", span, own.ids[0], True, True)
        for a, b in pairs
    )
    outputs = tuple(
        replace(
            o, relation=index, term=replace(o.term, expression=substitute(o.term.expression, new))
        )
        if n in places
        else o
        for n, o in enumerate(block.outputs)
    )
    tree = replace(
        block.tree, lefts=(*block.tree.lefts, OuterJoin(Group(own.ids), (), relation.span))
    )
    return replace(
        block,
        relations=tuple(relations),
        outputs=outputs,
        tree=tree,
        equalities=(*block.equalities, *equalities),
    )


@dataclass(frozen=True)
class _DistinctKeys:
    """The distinct values of columns of a relation, as a relation."""

    draft: Draft
    origin: DraftRelation
    columns: tuple[tuple[str, str], ...]
    empty: bool
    """True if the block has no rows, so that no value has to leave."""

    @property
    def names(self) -> Mapping[tuple[str, str], str]:
        """Return a name for each column."""
        taken: dict[str, tuple[str, str]] = {}
        for key in self.columns:
            name, number = key[1], 1
            while name in taken:
                number += 1
                name = f"{key[1]}_{number}"
            taken[name] = key
        return {key: name for name, key in taken.items()}

    def relation(self, name: str, id_: str, fresh: Iterator[int]) -> DraftRelation:
        branches = tuple(self._branch(b, id_, n, fresh) for n, b in enumerate(self.origin.branches))
        return DraftRelation((id_,), name, self.origin.span, branches)

    def _branch(
        self, branch: ClientBranch, id_: str, number: int, fresh: Iterator[int]
    ) -> ClientBranch:
        source = f"@{next(fresh)}"
        names = self.names
        shown = [
            (substitute(column(key[1], key[0]), branch.columns), name)
            for key, name in names.items()
        ]
        filters = [condition.expression for condition in branch.filters]
        filters += [exp.false()] if self.empty else []
        select = emit.fragment_select(branch.sources, shown, filters)
        select.set("distinct", exp.Distinct())
        reserved = frozenset(names.values()).union(*(s.names for s in branch.sources))
        item = exp.Subquery(this=select)
        values = {(id_, name): column(name, source) for name in names.values()}
        rows = branch.sources[0].rows if len(branch.sources) == 1 else None
        own = Source(source, item, "q", (branch.client.party,), rows, reserved)
        marked = {**values, (id_, PART): exp.Literal.number(number)}
        return ClientBranch(branch.client, (own,), marked)

    def equalities(self, id_: str) -> list[tuple[exp.Expr, exp.Expr]]:
        """Return the pairs of values that join the relation with its origin. Of several columns,
        NULL equals NULL."""
        pairs = [(column(key[1], key[0]), column(name, id_)) for key, name in self.names.items()]
        if len(pairs) == 1:
            return [(pairs[0][0], pairs[0][1])]
        found: list[tuple[exp.Expr, exp.Expr]] = []
        for own, other in pairs:
            held = self.draft.types(self.origin, [Term(own, None)])[0]
            type_ = types.union_type(held) or held[0]
            neutral = trees.cast(exp.Literal.string(types.neutral(type_)), type_)
            sides = [
                (
                    exp.Is(this=side.copy(), expression=exp.Null()),
                    exp.Coalesce(this=trees.cast(side, type_), expressions=[neutral.copy()]),
                )
                for side in (own, other)
            ]
            found += [*zip(*sides, strict=True)]
        return found


def _remark(parts: Sequence[DraftBlock], places: Sequence[int]) -> str:
    """Return the sentence about a column of its own position."""
    first = parts[0]
    names = " and ".join(first.outputs[place].name for place in places)
    parties = dict.fromkeys(
        p for part in parts for p in part.relations[part.outputs[places[0]].relation].parties
    )
    come = "is" if len(places) == 1 else "are"
    return (
        f"{names} {come} of one table in some rows of the FULL JOIN and of another in others: its "
        f"distinct values are a table of their own at {' and '.join(parties)}, which send a keyed "
        "hash of each once more, and share its coefficients"
    )
