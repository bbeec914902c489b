"""Golden plans and refusals; and that each rule is needed for some of them."""

from __future__ import annotations

import datetime as dt

import pytest
from sqlglot import exp

from sqlfl.base.errors import Error, StatementError
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.statements import (
    ExplainStatement,
    PredictModel,
    Statement,
    TrainModel,
    TransformItem,
)
from sqlfl.planner.query.draft import Roles
from sqlfl.planner.query.emit import mapping_query
from sqlfl.planner.query.items import placed
from sqlfl.planner.query.rules import RULES, Rule, to_ucq
from sqlfl.planner.query.ucq import Slot, Ucq
from tests.planner import goldens
from tests.planner.conftest import DatabaseCatalog

PLANS = goldens.cases("plans.sql")
REFUSALS = goldens.cases("refusals.sql")
STATEMENTS = goldens.cases("statements.sql")


def plan(sql: str, catalog: DatabaseCatalog, rules: tuple[Rule, ...] = RULES) -> Ucq:
    statement = parse(sql)
    if isinstance(statement, ExplainStatement):
        statement = statement.statement
    assert hasattr(statement, "query")
    roles = Roles()
    if isinstance(statement, PredictModel):
        roles = Roles(identifiers=statement.identifiers)
    elif isinstance(statement, TrainModel):
        roles = Roles(statement.target, weight=statement.weight, offset=statement.offset)
    options = statement.options if isinstance(statement, TrainModel) else ()
    return to_ucq(
        statement.query,
        sql,
        catalog,
        roles,
        split=any(o.name == "validation_fraction" for o in options),
        allow_cross_join=any(o.name == "allow_cross_join" and o.value is True for o in options),
        rules=rules,
        now=dt.datetime(2024, 1, 2, 3, 4, 5, 678900, dt.UTC),
        transforms=placed(statement.transforms if isinstance(statement, TrainModel) else (), sql),
    )


def plan_text(ucq: Ucq) -> str:
    lines = [line for slot in ucq.slots for line in _slot(ucq, slot)]
    lines += [f"key {key.index}: {', '.join(key.types)}" for key in ucq.keys]
    lines += ["mapping:"]
    lines += [f"  {line}" for line in _pretty(mapping_query(ucq)).split("\n")]
    return "\n".join(lines)


def _slot(ucq: Ucq, slot: Slot) -> list[str]:
    parts = [f"{f.name} {f.kind}" + (f"[{f.width}]" if f.width > 1 else "") for f in slot.features]
    parts += [f"target {ucq.target} {ucq.target_type}"] if slot.target else []
    parts += [f"weight {ucq.weight}"] if slot.weight else []
    parts += [f"offset {ucq.offset}"] if slot.offset else []
    parts += ["validation rows"] if slot.split else []
    parts += [f"id {ucq.identifiers[k].name}" for k in slot.identifiers]
    lines = [f"slot {slot.index} {slot.name}: {', '.join(parts) or 'no columns'}"]
    if slot.once:
        lines.append("  rows with equal keys count as one")
    lines += [
        f"  and need a partner in slot {own.slot} by key {', '.join(map(str, own.keys))}"
        for own in dict.fromkeys(p for b in ucq.blocks for each in b.partners for p in each)
        if own.of == slot.index
    ]
    if slot.nullable:
        lines.append(f"  keys that may be NULL: {', '.join(str(key) for key in slot.nullable)}")
    for fragment in slot.fragments:
        kind = ", virtual" if fragment.virtual else ", links" if fragment.links else ""
        lines.append(f"  fragment {fragment.index} at {fragment.client}{kind}:")
        lines += [f"    {line}" for line in _pretty(fragment.select).split("\n")]
    return lines


def _pretty(query: exp.Expr) -> str:
    return to_sql(query, pretty=True)


def outcome(sql: str, catalog: DatabaseCatalog, rules: tuple[Rule, ...] = RULES) -> str:
    """The plan, or the whole text of the refusal."""
    try:
        return plan_text(plan(sql, catalog, rules))
    except StatementError as error:
        return f"{type(error).__name__}: {error}"


def statement_text(sql: str) -> str:
    try:
        return _statement(parse(sql))
    except StatementError as error:
        return f"{type(error).__name__}: {error}"


def _statement(statement: Statement) -> str:
    if isinstance(statement, ExplainStatement):
        return f"EXPLAIN{' (VERBOSE)' * statement.verbose}\n{_statement(statement.statement)}"
    lines = [type(statement).__name__]
    for name, value in vars(statement).items():
        if name == "query":
            lines.append(f"  query: {to_sql(value)}")
        elif name in ("options", "privacy"):
            shown = None if value is None else {str(o.name): o.value for o in value}
            lines.append(f"  {name}: {shown}")
        elif name == "identifiers":
            lines.append(f"  identifiers: {[str(path) for path in value]}")
        elif name == "transforms":
            lines += [f"  transform: {_item(item)}" for item in value]
        elif name not in ("sql", "place"):
            lines.append(f"  {name}: {value}")
    return "\n".join(lines)


def _item(item: TransformItem) -> str:
    given = {a.name and str(a.name): a.value for a in item.arguments}
    columns = [str(column) for column in item.columns]
    return f"{item.function} of {columns} with {given} as {item.name}"


@pytest.mark.parametrize("case", PLANS, ids=lambda case: case.name)
def test_plans(case: goldens.Case, catalog: DatabaseCatalog) -> None:
    goldens.check("plans.sql", case, lambda sql: outcome(sql, catalog))


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.name)
def test_refusals(case: goldens.Case, catalog: DatabaseCatalog) -> None:
    goldens.check("refusals.sql", case, lambda sql: outcome(sql, catalog))
    assert case.expected.startswith(("PlanError", "ParseError"))


@pytest.mark.parametrize("case", STATEMENTS, ids=lambda case: case.name)
def test_statements(case: goldens.Case) -> None:
    goldens.check("statements.sql", case, statement_text)


CHANGED_WITHOUT = {
    "merge_equal_columns": "the column of a FULL JOIN by coalesce",
    "place_merged_columns": "the column of a FULL JOIN by USING",
    "part_blocks": "tests of two parties",
    "join_windows": "a window of days",
    "refuse_parameters": "parameter",
    "refuse_volatile": "volatile function",
    "tell_the_time": "one time for all parties",
    "bind_names": "one table",
    "refuse_captured": "a name that a macro captures",
    "check_outputs": "no features",
    "name_transforms": "transformations in the fragments of both parties",
    "locate_identifiers": "identifiers",
    "split_conjunctions": "composite key",
    "simplify_joins": "a condition that makes a left join an inner join",
    "fuse_relations": "fused by an expression",
    "place_conditions": "equalities in WHERE",
    "refuse_cross_products": "cross product",
    "unify_branches": "union in FROM",
    "derive_conditions": "conditions that follow over equal keys",
    "push_filters": "star and aliases",
    "type_terms": "one table",
    "apply_transforms": "transformation of another type",
    "unify_outputs": "union of blocks that join differently",
    "match_slots": "one table",
    "build_ucq": "one table",
    "merge_blocks": "the same branch twice",
    "combine_clients": "clients that their party combines are one",
}
"""A plan or refusal for each rule, which is another one, or none, without the rule."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_rule_is_needed(rule: Rule, catalog: DatabaseCatalog) -> None:
    rest = tuple(r for r in RULES if r is not rule)
    (case,) = (c for c in (*PLANS, *REFUSALS) if c.name == CHANGED_WITHOUT[rule.__name__])
    try:
        without = outcome(case.sql, catalog, rest)
    except (Error, ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
        return
    assert without != case.expected


def test_golden_names_are_distinct() -> None:
    for cases in (PLANS, REFUSALS, STATEMENTS):
        names = [case.name for case in cases]
        assert len(set(names)) == len(names)
