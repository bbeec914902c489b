"""Names and types of a query's columns, as its parties report them: the start of a plan."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.contract.schema import Catalog, Column
from sqlfl.planner.query import types
from sqlfl.planner.query.classify import refuse_cross_products
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.rules import RULES
from sqlfl.planner.query.scalars import has_calls
from sqlfl.planner.query.typing import type_terms

_FIRST = RULES[: RULES.index(type_terms) + 1]
"""The rules up to the types of columns; the use of columns is not checked."""


def outputs_of(query: exp.Query, sql: str, catalog: Catalog) -> tuple[Column, ...]:
    """Return the columns of `query`, read from the text `sql`, in their order.

    Raises PlanError if no statement could have the query, whatever its options. The catalog is
    asked only for names and types.
    """
    draft = Draft(query, sql, catalog, None, (), True)
    try:
        return _outputs(draft)
    except PlanError:
        if not has_calls(query):
            raise
    return _outputs(replace(draft, careful=True))


def _outputs(draft: Draft) -> tuple[Column, ...]:
    for rule in _FIRST:
        if rule is not refuse_cross_products:
            draft = rule(draft)
    columns = zip(*(block.outputs for block in draft.blocks), strict=True)
    return tuple(Column(column[0].name, _type(tuple(o.type for o in column))) for column in columns)


def _type(branch_types: tuple[str, ...]) -> str:
    """Return the type of a column of a union; all of its types if they have none in common."""
    return types.union_type(branch_types) or ", ".join(dict.fromkeys(branch_types))
