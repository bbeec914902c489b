"""Comparison of the rows of plans with those of one database that has all tables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from random import Random

import duckdb

from sqlfl.base.errors import PlanError
from sqlfl.planner.query.ucq import Ucq
from tests.contradictions import contradicts_itself, note_contradiction
from tests.depth import SEED
from tests.planner.central import ordered, planned_rows
from tests.planner.conftest import DatabaseCatalog
from tests.planner.query.test_meaning import plan
from tests.planner.trees import catalog_of, central_of

EACH = 10
"""Random queries over the same parties."""


def same_rows(catalog: DatabaseCatalog, central: duckdb.DuckDBPyConnection, query: str) -> bool:
    """Assert that the query's plan gives the rows of `central`; return whether there are any."""
    expected = ordered(central.execute(query).fetchall())
    assert planned_rows(plan(catalog, query), catalog.databases) == expected, query
    return bool(expected)


def random_plans(draw: Callable[[Random], str], number: int) -> tuple[list[Ucq], list[PlanError]]:
    """Compare the rows of so many drawn queries; return their plans, and the refusals."""
    random = Random(SEED)
    plans: list[Ucq] = []
    refusals: list[PlanError] = []
    for place in range(number // EACH):
        catalog = catalog_of(SEED + place)
        with closing(central_of(catalog)) as central:
            for _ in range(EACH):
                query = draw(random)
                if contradicts_itself(central, query):
                    note_contradiction(query)
                    continue
                expected = ordered(central.execute(query).fetchall())
                try:
                    ucq = plan(catalog, query)
                except PlanError as error:
                    refusals.append(error)
                    continue
                assert planned_rows(ucq, catalog.databases) == expected, query
                plans.append(ucq)
        for con in catalog.databases.values():
            con.close()
    return plans, refusals
