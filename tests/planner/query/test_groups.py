"""Groups and UNPIVOT over one party of several databases: plans give the rows of one database."""

from __future__ import annotations

import duckdb
import pytest

from sqlfl.base.errors import PlanError
from tests.planner.central import ordered, planned_rows
from tests.planner.conftest import DatabaseCatalog, database
from tests.planner.query.rows import same_rows
from tests.planner.query.test_meaning import plan

JOIN = "JOIN register.people p ON p.id = g.person"
QUERIES = {
    "GROUP BY ALL": f"""SELECT p.age, g.n, g.c FROM (SELECT person, count(*) AS n, sum(cost) AS c
        FROM clinic.visits GROUP BY ALL) g {JOIN}""",
    "GROUP BY an alias": f"""SELECT p.age, g.k, g.c FROM (SELECT person, upper(kind) AS k,
        max(cost) AS c FROM clinic.visits GROUP BY person, k) g {JOIN}""",
    "DISTINCT": f"SELECT p.age FROM (SELECT DISTINCT person FROM clinic.visits) g {JOIN}",
    "DISTINCT of expressions": f"""SELECT p.age, g.x, g.y FROM (SELECT DISTINCT person,
        cost > 3 AS x, kind AS y FROM clinic.visits WHERE cost > 1) g {JOIN}""",
    "DISTINCT with names exchanged": f"""SELECT p.age, g.sick FROM (SELECT DISTINCT person,
        sick AS kind, kind AS sick FROM clinic.visits) g {JOIN}""",
    "DISTINCT in a CTE of a cohort": """WITH c AS (SELECT DISTINCT person FROM clinic.visits)
        SELECT p.age, p.city FROM register.people p WHERE p.id IN (SELECT person FROM c)""",
    "UNPIVOT": f"""SELECT p.age, g.name, g.v FROM (
        UNPIVOT clinic.visits ON cost INTO NAME name VALUE v) g {JOIN}""",
    "UNPIVOT in FROM": f"""SELECT p.age, g.name, g.v FROM (SELECT person, name, v + 1 AS v FROM
        clinic.visits UNPIVOT (v FOR name IN (cost)) WHERE v > 2) g {JOIN}""",
    "UNPIVOT beside a JOIN": """SELECT p.age, g.name, g.v FROM register.people p
        JOIN clinic.visits UNPIVOT INCLUDE NULLS (v FOR name IN (cost)) g ON p.id = g.person""",
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_rows_are_those_of_the_query(
    query: str, catalog: DatabaseCatalog, central: duckdb.DuckDBPyConnection
) -> None:
    assert same_rows(catalog, central, query)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT DISTINCT 1 AS person FROM clinic.visits",
        "SELECT DISTINCT ON (person) person, cost FROM clinic.visits ORDER BY cost",
        "SELECT DISTINCT * FROM clinic.visits",
        "SELECT person, upper(kind) AS kind, max(cost) AS c FROM clinic.visits GROUP BY 1, kind",
        "PIVOT clinic.visits ON kind IN ('a', 'b') USING sum(cost) GROUP BY person",
    ],
)
def test_others_are_refused(query: str, catalog: DatabaseCatalog) -> None:
    with pytest.raises(PlanError) as caught:
        plan(catalog, f"SELECT g.*, p.age FROM ({query}) g {JOIN}")
    assert caught.value.line
    assert caught.value.hint


def test_unpivot_of_all_columns_needs_the_same_ones_everywhere() -> None:
    catalog = DatabaseCatalog({"a": (database(), database()), "b": (database(),)})
    one, two, other = catalog.databases.values()
    one.execute("CREATE TABLE t AS SELECT 1 AS k, 2 AS x, 3 AS y")
    two.execute("CREATE TABLE t AS SELECT 1 AS k, 2 AS x, 3 AS y, 4 AS z")
    other.execute("CREATE TABLE u AS SELECT 1 AS k")
    text = "SELECT g.n, g.v FROM (UNPIVOT a.t ON {} INTO NAME n VALUE v) g JOIN b.u ON u.k = g.k"
    with pytest.raises(PlanError, match="PIVOT is not the same"):
        plan(catalog, text.format("COLUMNS(* EXCLUDE k)"))
    two.execute("ALTER TABLE t DROP z")
    rows = planned_rows(plan(catalog, text.format("COLUMNS(* EXCLUDE k)")), catalog.databases)
    assert len(rows) == 4


def test_aggregates_with_filter_are_the_columns_of_a_pivot(
    catalog: DatabaseCatalog, central: duckdb.DuckDBPyConnection
) -> None:
    pivot = "PIVOT clinic.visits ON kind IN ('a', 'b') USING sum(cost) AS cost GROUP BY person"
    grouped = """SELECT person, sum(cost) FILTER (kind = 'a') AS a_cost,
        sum(cost) FILTER (kind = 'b') AS b_cost FROM clinic.visits GROUP BY person"""
    query = "SELECT p.age, v.a_cost, v.b_cost FROM register.people p JOIN ({}) v ON v.person = p.id"
    expected = ordered(central.execute(query.format(pivot)).fetchall())
    assert len(expected) > 1
    assert planned_rows(plan(catalog, query.format(grouped)), catalog.databases) == expected
