"""A query's columns before there is a plan."""

from __future__ import annotations

import duckdb
import pytest
from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.query.rules import outputs_of, to_ucq
from tests.planner import goldens
from tests.planner.conftest import DatabaseCatalog

PLANS = goldens.cases("plans.sql")


def query_of(sql: str) -> exp.Query:
    statement = parse(sql)
    query = getattr(getattr(statement, "statement", statement), "query", None)
    assert isinstance(query, exp.Query)
    return query


@pytest.mark.parametrize("case", PLANS, ids=lambda case: case.name)
def test_columns_are_those_that_a_plan_has(case: goldens.Case, catalog: DatabaseCatalog) -> None:
    found = outputs_of(query_of(case.sql), case.sql, catalog)
    ucq = to_ucq(query_of(case.sql), case.sql, catalog, allow_cross_join=True)
    types = {feature.name: feature.type for slot in ucq.slots for feature in slot.features}
    assert [column.name for column in found] == list(ucq.columns)
    assert {column.name: column.type for column in found} == types


def test_types_that_no_feature_can_have_are_told(catalog: DatabaseCatalog) -> None:
    sql = (
        "SELECT DATE '2024-01-01' AS d, NULL AS n, {'a': o.amount} AS s FROM shop.orders o "
        "UNION ALL SELECT 'x', 1, NULL FROM shop.orders o"
    )
    found = outputs_of(query_of(f"EVALUATE MODEL m FROM ({sql})"), sql, catalog)
    assert [column.name for column in found] == ["d", "n", "s"]
    assert "DATE" in found[0].type
    with pytest.raises(PlanError, match="nowhere"):
        outputs_of(query_of("EVALUATE MODEL m FROM (FROM nowhere.t)"), sql, catalog)


def test_repeated_names_are_numbered_as_duckdb_does(
    catalog: DatabaseCatalog, central: duckdb.DuckDBPyConnection
) -> None:
    query = """SELECT *, o.id, p.city AS id_1 FROM shop.archive.orders o
        JOIN register.people p ON o.customer = p.id"""
    names = [column[0] for column in central.execute(f"FROM ({query})").description]
    sql = f"EVALUATE MODEL m FROM ({query})"
    assert list(to_ucq(query_of(sql), sql, catalog).columns) == names
    assert [column.name for column in outputs_of(query_of(sql), sql, catalog)] == names
