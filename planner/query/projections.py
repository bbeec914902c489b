"""Columns of a SELECT list, as terms over the relations of its FROM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlglot import exp

from sqlfl.contract.schema import folded
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.trees import span_of
from sqlfl.planner.query.ctes import Environment
from sqlfl.planner.query.names import chain_of
from sqlfl.planner.query.push import Pusher
from sqlfl.planner.query.relations import Output, Term
from sqlfl.planner.query.scopes import Scope
from sqlfl.planner.query.stars import (
    Types,
    expand_fields,
    expand_star,
    expand_within,
    is_star,
    star_within,
)


def outputs_of(
    projections: Sequence[exp.Expr],
    scope: Scope,
    pusher: Pusher,
    known: Environment,
    replaced: Callable[[exp.Expr, Scope], exp.Expr],
    types: Types,
) -> tuple[list[Output], list[tuple[str, Term]]]:
    """Return the columns of a SELECT list, and those with an alias, which later columns and WHERE
    may name. `replaced` takes the subqueries out of an expression that has these names.
    """
    outputs: list[Output] = []
    written: list[tuple[str, Term]] = []
    closed: set[str] = set()
    for place, projection in enumerate(projections):
        later = frozenset(folded(p.alias) for p in projections[place:] if p.alias)
        named = scope.with_aliases(written, later, frozenset(closed))
        if is_star(projection):
            outputs.extend(expand_star(projection, named, pusher, known))
            continue
        fields = expand_fields(projection, named, pusher, known, types)
        if fields is not None:
            outputs += fields
            continue
        if (star := star_within(projection.unalias())) is not None:
            outputs += expand_within(projection, star, named, pusher, known)
            continue
        term = pusher.term(replaced(projection.unalias(), named), named, known)
        if term.span is None:
            term = replace(term, span=span_of(projection, pusher.sql))
        name = projection.alias or _derived_name(projection, named)
        outputs.append(Output(name, term))
        if projection.alias:
            written.append((name, term))
            closed |= {folded(name)} if projection.find(exp.Query) else set()
    return outputs, written


def _derived_name(projection: exp.Expr, scope: Scope) -> str:
    if isinstance(projection, exp.PositionalColumn):
        return scope.name_at(int(projection.this.name))
    chain = chain_of(projection.unnest())
    if chain is not None and not chain.is_method:
        return chain.parts[-1]
    return to_sql(projection)
