"""Groups, PIVOT and UNPIVOT over a party of several databases give the rows of one database."""

from __future__ import annotations

from contextlib import closing
from random import Random

import duckdb
import pytest

from sqlfl.base.errors import PlanError
from tests.depth import SEED, THOROUGH
from tests.planner.central import ordered, planned_rows
from tests.planner.conftest import DatabaseCatalog, database
from tests.planner.query.rows import same_rows
from tests.planner.query.test_meaning import plan
from tests.planner.trees import catalog_of, central_of

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
    "GROUP BY of a CTE": f"""WITH v AS (SELECT person, cost + 1 AS c FROM clinic.visits), w AS (
        FROM v WHERE c > 2) SELECT p.age, g.c FROM (SELECT person, max(c) AS c FROM w GROUP BY 1) g
        {JOIN}""",
    "PIVOT": f"""SELECT p.age, g.* FROM (PIVOT clinic.visits ON kind IN ('a', 'b') USING sum(cost)
        GROUP BY person) g {JOIN}""",
    "PIVOT in FROM": """SELECT v.a_s, v.b_s + 1 AS b, p.age FROM register.people p LEFT JOIN
        clinic.visits PIVOT (sum(cost) AS s, count(*) AS n FOR kind IN ('a', 'b') sick IN (true)
        GROUP BY person) AS v(person, a_s, a_n, b_s) ON p.id = v.person WHERE v.a_n > 0
        OR p.age > 40""",
    "PIVOT of a CTE": f"""WITH v AS (SELECT person, upper(kind) AS k FROM clinic.visits),
        g AS (PIVOT v ON k IN (A, 'B')) SELECT p.age, g.A, g.b FROM g {JOIN}""",
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
        "PIVOT clinic.visits ON kind USING sum(cost) GROUP BY person",
        "PIVOT clinic.visits ON kind IN (SELECT 'a') USING sum(cost) GROUP BY person",
        "PIVOT clinic.visits ON kind IN ('a') USING first(cost) GROUP BY person",
        "PIVOT clinic.visits ON kind IN ('a', 'a') USING sum(cost) GROUP BY person",
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


# -- random PIVOTs ---------------------------------------------------------------------------------

STATEMENTS = 600 if THOROUGH else 24


def test_pivots_are_those_of_one_database() -> None:
    """Names, NULLs, counts of no rows, texts of numbers, and columns that have a value's name."""
    random = Random(SEED)
    some = 0
    for seed in range(STATEMENTS // 6):
        catalog = catalog_of(SEED + seed)
        with closing(central_of(catalog)) as central:
            for _ in range(6):
                query = f"SELECT * FROM {pivoted(random)}"
                found = central.execute(query)
                names = [column[0] for column in found.description]
                expected = ordered(found.fetchall())
                ucq = plan(catalog, query)
                assert list(ucq.columns) == names, query
                assert planned_rows(ucq, catalog.databases) == expected, query
                some += len(expected)
        for con in catalog.databases.values():
            con.close()
    assert some > STATEMENTS


def pivoted(random: Random) -> str:
    """A PIVOT of rows of a party with two databases, in either of its forms."""
    chosen = random.sample(
        (
            ("s", ("'a'", "'b'", "NULL", "'k'", "'it''s'")),
            ("m", ("0", "'1'", "2", "NULL")),
            ("x > 2", ("true", "'false'", "NULL")),
            ("k / 2", ("0.5", "1", "'0.0'")),
        ),
        random.choice((1, 1, 2)),
    )
    fields = [
        f"{'(' * (' ' in on)}{on}{')' * (' ' in on)} IN "
        f"({', '.join(random.sample(values, random.randint(1, len(values))))})"
        for on, values in chosen
    ]
    calls = random.sample(
        ("sum(x)", "count(*)", "count(x)", "min(x + m)", "max(s)", "avg(x)",
         "sum(x) FILTER (m > 0)", "bool_or(x > 4)"),
        random.choice((1, 1, 2)),
    )  # fmt: skip
    using = [f"{call}{random.choice(('', '', f' AS c{n}'))}" for n, call in enumerate(calls)]
    table = random.choice(("duo.t", "duo.u", "(SELECT * FROM duo.t WHERE x > 1)"))
    by = random.choice((" GROUP BY k", " GROUP BY k, m", " GROUP BY m, s", " GROUP BY k", ""))
    if not by:  # all columns that it does not name: one has to be left
        table = "(SELECT s, m, x, k, m AS n FROM duo.t)"
    if random.random() < 0.5:
        return f"(PIVOT {table} ON {', '.join(fields)} USING {', '.join(using)}{by}) AS p"
    return f"{table} PIVOT ({', '.join(using)} FOR {' '.join(fields)}{by}) AS p"
