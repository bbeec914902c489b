"""Columns of derived tables: their names, and their types where they are unions of joins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from sqlglot import exp

from sqlfl.contract.schema import folded
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.trees import plan_error
from sqlfl.planner.query import types
from sqlfl.planner.query.batches import BatchedCatalog
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.relations import DraftBlock, Output, Term


def with_column_aliases(
    outputs: Sequence[Output], aliases: Sequence[str], where: exp.Expr, sql: str
) -> tuple[tuple[str, Term], ...]:
    """Return the columns of a derived table: renamed by its alias, with numbers after repeated
    names.
    """
    if len(aliases) > len(outputs):
        raise plan_error(
            f"{len(aliases)} names are given to {len(outputs)} columns",
            sql,
            where,
            "give as many as there are columns, or fewer",
        )
    names = distinct([*aliases, *(o.name for o in outputs[len(aliases) :])])
    return tuple((name, output.term) for name, output in zip(names, outputs, strict=True))


def distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Return distinct names as DuckDB makes them for a derived table: k, k_1, k_2."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        free, number = name, seen.get(folded(name), 0)
        while folded(free) in seen:
            number += 1
            free = f"{name}_{number}"
        seen[folded(name)] = number
        seen.setdefault(folded(free), 0)
        found.append(free)
    return tuple(found)


def named_alike(
    blocks: tuple[DraftBlock, ...], more: tuple[DraftBlock, ...], place: exp.Expr, sql: str
) -> tuple[DraftBlock, ...]:
    """The parts of a UNION ALL BY NAME, each with the columns of all: NULL where it has none."""
    names: dict[str, str] = {}
    for part in (blocks, more):
        given = [output.name for output in part[0].outputs]
        compared = [folded(name) for name in given]
        twice = next((name for name in compared if compared.count(name) > 1), None)
        if twice is not None:
            raise plan_error(
                f"a part of a UNION ALL BY NAME has two columns {twice}",
                sql,
                place,
                "give one of them another name",
            )
        for own, name in zip(compared, given, strict=True):
            names.setdefault(own, name)
    return tuple(_filled(block, names) for block in (*blocks, *more))


def _filled(block: DraftBlock, names: Mapping[str, str]) -> DraftBlock:
    """The block with columns of these names in this order; `names` by them in lower case."""
    own = {folded(output.name): output for output in block.outputs}
    outputs = (
        replace(own[key], name=name) if key in own else Output(name, Term(exp.null(), block.span))
        for key, name in names.items()
    )
    return replace(block, outputs=tuple(outputs))


def unify_blocks(
    blocks: tuple[DraftBlock, ...], sql: str, catalog: BatchedCatalog
) -> tuple[DraftBlock, ...]:
    """Blocks of a union in FROM, with columns of different types cast to their common one.

    Without that `x // 2` over the union would mean another division in each block.
    """
    if len(blocks) == 1:
        return blocks
    draft = Draft(exp.select(), sql, catalog, None, (), False)
    types_of_blocks = catalog.each([partial(types_of, draft, block) for block in blocks])
    wanted = [types.union_type(column) for column in zip(*types_of_blocks, strict=True)]
    return tuple(
        replace(
            block,
            outputs=tuple(
                o if common in (None, type_) else _cast(o, common)
                for o, type_, common in zip(block.outputs, given, wanted, strict=True)
            ),
        )
        for block, given in zip(blocks, types_of_blocks, strict=True)
    )


def settled(block: DraftBlock) -> DraftBlock:
    """Return a block in FROM with typed columns, also for literals. Otherwise a literal would take
    the type of its neighbour, as in `'1' = 1`.
    """
    return replace(block, outputs=tuple(_settled(output) for output in block.outputs))


def _settled(output: Output) -> Output:
    literal = output.term.expression.unnest()
    negative = isinstance(literal, exp.Neg)
    literal = literal.this if negative else literal
    if not isinstance(literal, exp.Literal):
        return output
    if literal.is_string:
        return output if negative else _cast(output, "VARCHAR")
    if not literal.is_int:
        return output
    bits = (int(literal.this) - negative).bit_length()
    return _cast(output, "INTEGER" if bits < 32 else "BIGINT") if bits < 64 else output


def _cast(output: Output, type_: str) -> Output:
    term = Term(trees.cast(output.term.expression, type_), output.term.span)
    return replace(output, term=term)


def types_of(draft: Draft, block: DraftBlock) -> list[str]:
    """Return types of the outputs; the null type for outputs that need two relations."""
    found = [types.NULL_TYPE] * len(block.outputs)
    for index, relation in enumerate(block.relations):
        own = [n for n, o in enumerate(block.outputs) if block.reads(o.term) == (index,)]
        told = draft.types(relation, [block.outputs[n].term for n in own])
        for n, branches in zip(own, told, strict=True):
            found[n] = types.union_type(branches) or types.NULL_TYPE
    return found
