"""Types of the columns and keys, as the parties' own databases report them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.contract.fragment_columns import RESERVED
from sqlfl.contract.schema import folded
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.statements import Span
from sqlfl.planner.grammar.trees import nodes
from sqlfl.planner.query import types
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.equalities import BYTES, collation, common, compared_text
from sqlfl.planner.query.fusion import DisjointSets
from sqlfl.planner.query.relations import (
    UNLIKE,
    ClientBranch,
    DraftBlock,
    DraftRelation,
    Equality,
    Output,
    Term,
    column,
    ids_of,
    substitute,
)
from sqlfl.planner.query.scalars import SCALAR, UNBOUND, Asker
from sqlfl.planner.query.ucq import ARRAY, as_written


def unify_branches(draft: Draft) -> Draft:
    """A column of a union has one type: branches of another type are cast to it."""
    for block in draft.blocks:
        _check_unlike(draft, block)
    return draft.each_block(lambda block: _unified(draft, block))


def _unified(draft: Draft, block: DraftBlock) -> DraftBlock:
    terms = _terms(block)
    relations = []
    for relation in block.relations:
        if len(relation.branches) > 1:
            used: dict[tuple[str, str], Term] = {}
            for term in terms:
                for node in nodes(term.expression, exp.Column):
                    if node.table in relation.ids:
                        used.setdefault((node.table, folded(node.name)), Term(node, term.span))
            relation = _unified_relation(draft, relation, used)
        relations.append(relation)
    return replace(block, relations=tuple(relations))


def _terms(block: DraftBlock) -> list[Term]:
    terms = [*block.tree.terms(), *(o.term for o in (*block.outputs, *block.identifiers))]
    terms += [condition for _, condition in block.kept]
    return [*terms, *(side for e in block.equalities for side in e.terms)]


def _check_unlike(draft: Draft, block: DraftBlock) -> None:
    """Raise PlanError for expressions over a column whose types differ between a party's databases,
    except a cast to one type and IS NULL: `x > '5'` compares texts in one and numbers in the other.
    """
    marked = (
        node.meta_get(UNLIKE)
        for relation in block.relations
        for branch in relation.branches
        for expression in branch.columns.values()
        for node in nodes(expression, exp.Column)
    )
    if not any(marked):
        return
    for number in range(max(len(relation.branches) for relation in block.relations)):
        branches = [r.branches[min(number, len(r.branches) - 1)] for r in block.relations]
        columns = {key: e for branch in branches for key, e in branch.columns.items()}
        over = [(t, substitute(t.expression, columns)) for t in _terms(block)]
        over += [(f, f.expression) for branch in branches for f in branch.filters]
        for term, expression in over:
            for node in nodes(expression, exp.Column):
                if node.meta_get(UNLIKE) and not _is_typed(node):
                    raise _unlike(draft, block, node, term.span)


def _is_typed(column: exp.Column) -> bool:
    """Return whether the expression around the column has a type independent of the column's."""
    parent = column.parent
    while isinstance(parent, exp.Paren):
        parent = parent.parent
    null = isinstance(parent, exp.Is) and isinstance(parent.expression, exp.Null)
    return null or isinstance(parent, exp.Cast)


def _unlike(draft: Draft, block: DraftBlock, node: exp.Column, span: Span | None) -> PlanError:
    """The error for a column of a source that the databases of its party type unlike."""
    relation, own, place = next(
        (relation, branch, place)
        for relation in block.relations
        for branch in relation.branches
        for place, source in enumerate(branch.sources)
        if source.id == node.table
    )
    path = tuple(map(folded, own.sources[place].path))
    peers = [
        branch
        for branch in relation.branches
        if [tuple(map(folded, s.path)) for s in branch.sources[place:]][:1] == [path]
    ]
    per_branch: list[str] = []
    for branch in peers:
        term = Term(column(node.name, branch.sources[place].id), span)
        per_branch += draft.types(replace(relation, branches=(branch,)), [term])[0]
    whole = replace(relation, branches=tuple(peers))
    return _conflict(draft, whole, node.name, span, tuple(per_branch))


def _conflict(
    draft: Draft,
    relation: DraftRelation,
    name: str,
    span: Span | None,
    branch_types: tuple[str, ...],
) -> PlanError:
    name = _written(relation, name)
    left, right = types.first_conflict(branch_types)
    places = [relation.branches[i].client for i in (left, right)]
    wanted = next((t for t in branch_types if not types.is_text(t)), "VARCHAR")
    hint = "cast it to one type in each part of the union"
    if len(relation.parties) == 1:
        hint = f"cast it wherever the query reads it: {name}::{wanted}"
    return draft.error(
        f"column {name} of {relation.name} is {branch_types[left]} at {places[0]} and "
        f"{branch_types[right]} at "
        f"{places[1]}",
        span,
        hint,
    )


def _written(relation: DraftRelation, name: str) -> str:
    """Return a column's name; of one that the planner named, the query's own text."""
    for source in relation.branches[0].sources if name.startswith(RESERVED) else ():
        select = source.item.this
        made = [p for p in getattr(select, "expressions", ()) if p.alias == name]
        if isinstance(select, exp.Select) and made:
            value = as_written(made[0].unalias(), select)
            return value.name if isinstance(value, exp.Column) else to_sql(value)
    return name


def _unified_relation(
    draft: Draft, relation: DraftRelation, used: dict[tuple[str, str], Term]
) -> DraftRelation:
    types_ = draft.types(relation, list(used.values()))
    casts: list[dict[tuple[str, str], exp.Expr]] = [dict(b.columns) for b in relation.branches]
    for (key, term), branch_types in zip(used.items(), types_, strict=True):
        wanted = types.union_type(branch_types)
        if wanted is None:
            if all(columns[key].meta_get(UNLIKE) for columns in casts):
                continue  # only casts read it
            name = term.expression.name
            if name.startswith(RESERVED):
                name = relation.branches[0].columns[key].name
            raise _conflict(draft, relation, name, term.span, branch_types)
        for columns, types_of_branch in zip(casts, branch_types, strict=True):
            if types.normal(types_of_branch) != types.normal(
                wanted
            ):  # a NULL too has the union's type
                columns[key] = trees.cast(columns[key], wanted)
    branches: list[ClientBranch] = [
        replace(b, columns=c) for b, c in zip(relation.branches, casts, strict=True)
    ]
    return replace(relation, branches=tuple(branches))


def type_terms(draft: Draft) -> Draft:
    """Outputs get their types, equalities the type that both sides are compared as."""
    for block in draft.blocks:
        _check_claims(draft, block)
    return draft.each_block(lambda block: _typed(draft, block))


def _check_claims(draft: Draft, block: DraftBlock) -> None:
    """Check columns of derived tables over several relations, which may be unused otherwise."""
    asker = Asker(draft.catalog)
    for term in draft.claims:
        read = [r for r in block.relations if ids_of(term) & {*r.ids}]
        if len(read) == 1:
            draft.types(read[0], [term])
        elif read and (kind := asker.kind_over(read, term)) != SCALAR:
            labels = " and ".join(relation.label for relation in read)
            what = "it cannot be told what this gives" if kind == UNBOUND else f"this is {kind}"
            raise draft.error(
                f"{what} over {labels}", term.span, "leave the column out of the derived table"
            )


def _typed(draft: Draft, block: DraftBlock) -> DraftBlock:
    places = range(len(block.relations))
    each = draft.catalog.each([partial(_types_at, draft, block, index) for index in places])
    outputs = list(block.outputs)
    sides: dict[tuple[int, int], str] = {}
    for index, joined in enumerate(each):
        numbers, keys = _outputs_at(block, index), _keys_at(block, index)
        for i, type_ in zip(numbers, joined, strict=False):
            outputs[i] = replace(outputs[i], type=type_)
        sides |= dict(zip(keys, joined[len(numbers) :], strict=False))
    equalities = tuple(
        _compared(draft, e, sides[n, 0], sides[n, 1]) for n, e in enumerate(block.equalities)
    )
    equalities = _widened(_collated(draft, block, equalities))
    return replace(block, outputs=tuple(outputs), equalities=equalities)


def _outputs_at(block: DraftBlock, index: int) -> list[int]:
    return [i for i, o in enumerate(block.outputs) if o.relation == index]


def _keys_at(block: DraftBlock, index: int) -> list[tuple[int, int]]:
    """Return the equalities' sides at a relation: number, and 0 for the left side or 1."""
    return [
        (n, s)
        for n, e in enumerate(block.equalities)
        for s, at in enumerate((e.left, e.right))
        if at == index
    ]


def _types_at(draft: Draft, block: DraftBlock, index: int) -> list[str]:
    """Return the types of a relation's outputs, then of its keys."""
    relation = block.relations[index]
    terms = [block.outputs[i].term for i in _outputs_at(block, index)]
    terms += [block.equalities[n].terms[s] for n, s in _keys_at(block, index)]
    # identifiers and conditions are bound here too, so that their errors are found
    terms += [o.term for o in block.identifiers if o.relation == index]
    terms += [condition for at, condition in block.kept if at == index]
    types_ = draft.types(relation, terms or [Term(exp.Literal.number(1), relation.span)])
    return [_one_type(draft, relation, t, f) for t, f in zip(terms, types_, strict=False)]


def _widened(equalities: tuple[Equality, ...]) -> tuple[Equality, ...]:
    """Integer equalities that share an expression compare as one type: one hash serves them all."""
    numbers: dict[tuple[int, str], int] = {}
    ends = []
    for equality in equalities:
        sides = zip((equality.left, equality.right), equality.terms, strict=True)
        keys = [(at, to_sql(term.expression)) for at, term in sides]
        ends.append([numbers.setdefault(key, len(numbers)) for key in keys])
    groups = DisjointSets(len(numbers))
    whole = [types.is_integer(e.type) for e in equalities]
    for (left, right), integer in zip(ends, whole, strict=True):
        if integer:
            groups.join(left, right)
    wide: dict[int, str | None] = {}
    for equality, (left, _), integer in zip(equalities, ends, whole, strict=True):
        if integer:
            known = wide.setdefault(groups.find(left), equality.type)
            joined = None if known is None else types.lossless(known, equality.type)
            wide[groups.find(left)] = joined
    return tuple(
        replace(e, type=(wide[groups.find(left)] or e.type) if integer else e.type)
        for e, (left, _), integer in zip(equalities, ends, whole, strict=True)
    )


def _one_type(
    draft: Draft, relation: DraftRelation, term: Term, branch_types: tuple[str, ...]
) -> str:
    joined = types.union_type(branch_types)
    if joined is None:
        left, right = types.first_conflict(branch_types)
        raise draft.error(
            f"an expression over {relation.name} is {branch_types[left]} at "
            f"{relation.branches[left].client} and {branch_types[right]} at "
            f"{relation.branches[right].client}",
            term.span,
            "cast it to one type",
        )
    return joined


def _collated(
    draft: Draft, block: DraftBlock, equalities: tuple[Equality, ...]
) -> tuple[Equality, ...]:
    """Return equalities of what collations of their texts compare."""
    texts: dict[int, list[Term]] = {}
    for equality in equalities:
        if equality.type == "VARCHAR":
            for at, term in zip((equality.left, equality.right), equality.terms, strict=True):
                texts.setdefault(at, []).append(term)
    relations = block.relations
    if all(collation(draft, relations[at], terms) == BYTES for at, terms in texts.items()):
        return equalities
    return tuple(_with_collation(draft, block, e) if e.type == "VARCHAR" else e for e in equalities)


def _with_collation(draft: Draft, block: DraftBlock, equality: Equality) -> Equality:
    """Return the equality of two texts. Raise PlanError if no function gives what is compared."""
    ends = zip((equality.left, equality.right), equality.terms, strict=True)
    name = common(collation(draft, block.relations[at], [term]) for at, term in ends)
    texts = [compared_text(term.expression, name) for term in equality.terms]
    left, right = (
        None if text is None else Term(text, term.span)
        for text, term in zip(texts, equality.terms, strict=True)
    )
    if left is None or right is None:
        raise draft.error(
            "a join key between parties has a collation other than NOCASE and NOACCENT",
            equality.span,
            "compare bytes: encode(a.x) = encode(b.x); or what the collation makes equal: "
            "encode(lower(a.x)) = encode(lower(b.x))",
        )
    return replace(equality, terms=(left, right))


def _compared(draft: Draft, equality: Equality, left: str, right: str) -> Equality:
    if any(isinstance(term.expression, exp.Tuple) for term in equality.terms):
        raise draft.error(
            "a join cannot compare rows as a whole",
            equality.span,
            "compare column by column: ON a.x = b.x AND a.y = b.y",
        )
    type_ = types.comparison_type(left, right)
    if type_ is None:
        raise draft.error(
            f"a join cannot compare {left} with {right}",
            equality.span,
            "cast one side: ON a.x = b.y::TYPE",
        )
    if not types.can_be_key(type_):
        raise draft.error(
            f"a join key cannot be {type_}",
            equality.span,
            "cast both sides to a number, a text or a time",
        )
    return replace(equality, type=type_)


def unify_outputs(draft: Draft) -> Draft:
    """A column of a UNION ALL has one type; features and target have types to learn from."""
    columns = list(zip(*(block.outputs for block in draft.blocks), strict=True))
    unified = [one_type_of(draft, outputs) for outputs in columns]
    blocks = tuple(
        replace(block, outputs=tuple(column[n] for column in unified))
        for n, block in enumerate(draft.blocks)
    )
    for place, output in enumerate(blocks[0].outputs):
        if place == draft.weight_position:
            _check_number(draft, "WEIGHT", output)
        elif place == draft.offset_position:
            _check_number(draft, draft.offset_clause, output)
        elif place == draft.unit_position:
            _check_unit(draft, blocks, place)
        else:
            _check_kind(draft, output, place == draft.target_position)
    return replace(draft, blocks=blocks)


def one_type_of(draft: Draft, outputs: Sequence[Output]) -> list[Output]:
    """Return a column of all blocks, cast to one type. Raise PlanError without one."""
    types_ = tuple(o.type for o in outputs)
    wanted = types.union_type(types_)
    if wanted is None:
        left, right = types.first_conflict(types_)
        raise draft.error(
            f"column {outputs[0].name} is {types_[left]} in block {left + 1} of the union and "
            f"{types_[right]} in block {right + 1}",
            outputs[right].term.span,
            "cast it to one type in each block",
        )
    return [
        o
        if types.normal(o.type) == types.normal(wanted) or o.type == types.NULL_TYPE
        else replace(o, type=wanted, term=Term(trees.cast(o.term.expression, wanted), o.term.span))
        for o in (replace(o, type=wanted) if o.type == types.NULL_TYPE else o for o in outputs)
    ]


def _check_kind(draft: Draft, output: Output, target: bool) -> None:
    kind = types.kind(output.type)
    what = "the target" if target else "feature"
    if output.type == types.NULL_TYPE:
        hint = "TARGET names a column that has values" if target else "leave it out"
        raise draft.error(f"{what} {output.name} is always NULL", output.term.span, hint)
    if kind is None or (target and kind == ARRAY):
        hint = types.feature_hint(output.type)
        if target and kind == ARRAY:
            hint = "predict one of its elements: column[1]"
        raise draft.error(f"{what} {output.name} cannot be {output.type}", output.term.span, hint)


def _check_unit(draft: Draft, blocks: Sequence[DraftBlock], place: int) -> None:
    """Refuse a unit whose values have no hash by which they are equal."""
    output = blocks[0].outputs[place]
    if not types.can_be_key(output.type):
        kind = "always NULL" if output.type == types.NULL_TYPE else output.type
        raise draft.error(
            f"unit = '{draft.unit}' is {kind}, and rows of one unit have an equal value",
            output.term.span,
            "give a number, a text or a time, or cast it to one",
        )
    if output.type != "VARCHAR":
        return
    for block in blocks:
        unit = block.outputs[place]
        if collation(draft, block.relations[unit.relation], [unit.term]) != BYTES:
            raise draft.error(
                f"unit = '{draft.unit}' has a collation, and units are equal byte by byte",
                unit.term.span,
                "write what the collation makes equal, as in lower(t.name)",
            )


def _check_number(draft: Draft, clause: str, output: Output) -> None:
    if not types.is_number(output.type):
        raise draft.error(
            f"{clause} {output.name} must be a number, and it is {output.type}",
            output.term.span,
            "cast it to a number: column::DOUBLE",
        )
