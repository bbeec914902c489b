"""Rules that bring a query's syntax tree to its normal form, in order. The first of them give the
names and types of its columns.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlglot import exp

from sqlfl.base.errors import InternalError, PlanError
from sqlfl.contract.schema import Catalog, Column
from sqlfl.planner.query import types
from sqlfl.planner.query.assemble import build_ucq
from sqlfl.planner.query.batches import BatchedCatalog
from sqlfl.planner.query.checks import (
    bind_names,
    check_outputs,
    locate_identifiers,
    refuse_captured,
    refuse_parameters,
    refuse_volatile,
    tell_the_time,
)
from sqlfl.planner.query.classify import (
    place_conditions,
    push_filters,
    refuse_cross_products,
    split_conjunctions,
)
from sqlfl.planner.query.clock import Clock
from sqlfl.planner.query.draft import NO_ROLES, Draft, Roles
from sqlfl.planner.query.full_joins import merge_equal_columns, place_merged_columns
from sqlfl.planner.query.fusion import fuse_relations
from sqlfl.planner.query.implications import derive_conditions, simplify_joins
from sqlfl.planner.query.items import PlacedItem
from sqlfl.planner.query.parting import part_blocks
from sqlfl.planner.query.party_databases import combine_clients
from sqlfl.planner.query.scalars import has_calls
from sqlfl.planner.query.transforms import apply_transforms, name_transforms
from sqlfl.planner.query.typing import type_terms, unify_branches, unify_outputs
from sqlfl.planner.query.ucq import Ucq
from sqlfl.planner.query.unions import match_slots, merge_blocks
from sqlfl.planner.query.windows import join_windows

Rule = Callable[[Draft], Draft]

RULES: tuple[Rule, ...] = (
    refuse_parameters,
    refuse_volatile,
    tell_the_time,
    bind_names,
    refuse_captured,
    check_outputs,
    name_transforms,
    locate_identifiers,
    split_conjunctions,
    merge_equal_columns,
    part_blocks,
    simplify_joins,
    join_windows,
    fuse_relations,
    place_conditions,
    refuse_cross_products,
    unify_branches,
    derive_conditions,
    push_filters,
    place_merged_columns,
    type_terms,
    apply_transforms,
    unify_outputs,
    match_slots,
    build_ucq,
    merge_blocks,
    combine_clients,
)

_FIRST = RULES[: RULES.index(type_terms) + 1]
"""Rules up to the types of columns; the use of columns is not checked."""


def to_ucq(
    query: exp.Query,
    sql: str,
    catalog: Catalog,
    roles: Roles = NO_ROLES,
    *,
    allow_cross_join: bool = False,
    rules: Sequence[Rule] = RULES,
    split: bool = False,
    folds: bool = False,
    noised: bool = False,
    transforms: Sequence[PlacedItem] = (),
    now: dt.datetime | None = None,
) -> Ucq:
    """Return the normal form of `query`, read from the text `sql`, over the tables of `catalog`.

    With `split`, a slot has the whole row of its sources, from which validation rows are drawn.
    With `folds` too, folds are drawn from it if the target is the slot's; else its rows are
    identified (`units`). With `noised`, the target's slot has it, and the noise of labels is drawn
    from it. `transforms` are made of output columns. `now` is the query's time, None for the
    clock's.

    Raises PlanError, with the place and an alternative; the catalog is asked only for names and
    types.
    """
    draft = Draft(
        query,
        sql,
        BatchedCatalog(catalog),
        roles.target,
        roles.identifiers,
        allow_cross_join,
        roles.weight,
        roles.weight_may_lack,
        roles.offset,
        roles.exposure,
        roles.unit,
        split,
        folds,
        noised,
        transforms=tuple(transforms),
    )
    draft = draft if now is None else replace(draft, clock=Clock(now))
    try:
        return _ruled(draft, rules)
    except PlanError:
        if not has_calls(query):
            raise
    return _ruled(_careful(draft), rules)


def _careful(draft: Draft) -> Draft:
    """Return the draft for a second attempt, which asks databases for the kind of each function.

    The first assumed one value per row. Its sources may have the ids of others now, so that the
    types which it was told are forgotten.
    """
    return replace(draft, careful=True, described={})


def _ruled(draft: Draft, rules: Sequence[Rule]) -> Ucq:
    for rule in rules:
        draft = rule(draft)
    if draft.ucq is None:
        raise InternalError("the rules made no plan")
    return draft.ucq


def outputs_of(query: exp.Query, sql: str, catalog: Catalog) -> tuple[Column, ...]:
    """Return the columns of `query`, read from the text `sql`, in their order.

    Raises PlanError if no statement could have the query, whatever its options. The catalog is
    asked only for names and types.
    """
    draft = Draft(query, sql, BatchedCatalog(catalog), None, (), True)
    try:
        return _outputs(draft)
    except PlanError:
        if not has_calls(query):
            raise
    return _outputs(_careful(draft))


def _outputs(draft: Draft) -> tuple[Column, ...]:
    for rule in _FIRST:
        if rule is not refuse_cross_products:
            draft = rule(draft)
    columns = zip(*(block.outputs for block in draft.blocks), strict=True)
    return tuple(Column(column[0].name, _type(tuple(o.type for o in column))) for column in columns)


def _type(branch_types: tuple[str, ...]) -> str:
    """Return the type of a column of a union; all of its types if they have none in common."""
    return types.union_type(branch_types) or ", ".join(dict.fromkeys(branch_types))
