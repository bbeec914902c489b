"""Tests of several parties under AND, OR, NOT and CASE: plans give the rows of one database."""

from __future__ import annotations

from random import Random

import duckdb
import pytest

from sqlfl.base.errors import PlanError
from sqlfl.planner.query import parting
from tests.depth import THOROUGH
from tests.planner.conftest import DatabaseCatalog
from tests.planner.query.rows import random_plans, same_rows
from tests.planner.query.test_meaning import plan
from tests.planner.trees import Query

JOIN = "FROM shop.orders o JOIN register.people p ON o.customer = p.id"
LEFT = "FROM shop.orders o LEFT JOIN register.people p ON o.customer = p.id"
IN_P = "EXISTS (SELECT 1 FROM register.people p WHERE p.id = o.customer AND p.age > 30)"
IN_V = "EXISTS (SELECT 1 FROM north.visits v WHERE v.person = o.customer AND v.cost > 1)"
QUERIES = {
    "or": f"SELECT o.amount, p.age {JOIN} WHERE o.amount > 6 OR p.age > 35",
    "or, of tests that are null": f"SELECT o.id, p.age {JOIN} WHERE o.amount > 6 OR p.city = 'Ulm'",
    "not": f"SELECT o.id, p.age {JOIN} WHERE NOT (o.amount > 6 AND p.city = 'Bonn')",
    "not of null": f"SELECT o.id, p.age {JOIN} WHERE NOT (o.paid AND NOT (p.city = 'Bonn'))",
    "or, of and": f"""SELECT o.id, p.age {JOIN}
        WHERE (o.amount > 6 AND p.age > 20) OR (p.city = 'Ulm' AND o.mood IS NULL) OR p.income > 0
        AND o.paid""",
    "in ON": """SELECT o.id, p.age FROM shop.orders o JOIN register.people p
        ON o.customer = p.id AND (o.amount IS NULL OR p.age < 35)""",
    "or, after a LEFT JOIN": f"SELECT o.id, p.age {LEFT} WHERE o.amount > 6 OR p.age IS NULL",
    "or, that makes a LEFT JOIN inner in one part": f"""
        SELECT o.id, p.age {LEFT} WHERE o.amount > 6 OR p.age > 35""",
    "in ON of a LEFT JOIN": """
        SELECT o.id, p.age FROM shop.orders o LEFT JOIN register.people p
        ON o.customer = p.id AND (o.amount > 3 OR p.age < 35)""",
    "in ON and after a LEFT JOIN": """
        SELECT o.id, p.age FROM shop.orders o LEFT JOIN register.people p
        ON o.customer = p.id AND (o.paid OR p.age > 35) WHERE p.age > 35 OR o.amount > 3""",
    "in ON of a LEFT JOIN after another": """
        SELECT o.id, p.age, v.cost FROM shop.orders o LEFT JOIN register.people p
        ON o.customer = p.id LEFT JOIN north.visits v
        ON v.person = o.customer AND (NOT (p.age > 35) OR v.sick OR o.paid)""",
    "case": f"SELECT CASE WHEN p.age > 35 THEN o.amount ELSE 0 END AS x, p.income {JOIN}",
    "case of null": f"SELECT CASE WHEN p.city = 'Ulm' THEN o.amount END AS x, p.income {JOIN}",
    "cases": f"""SELECT CASE WHEN p.age < 35 THEN o.amount WHEN p.city = 'Ulm' THEN o.id END AS x,
        CASE p.city WHEN 'Ulm' THEN o.id WHEN 'Bonn' THEN 7.5 ELSE -1 END AS y, p.age {JOIN}""",
    "a case whose later test fails on rows of the first": f"""
        SELECT CASE WHEN p.city = 'Ulm' THEN 1 WHEN p.city = 'Bonn' THEN 2
        WHEN p.city::INTEGER > 3 THEN o.id END AS x, p.age {JOIN}""",
    "a text among numbers": f"""
        SELECT CASE WHEN p.age > 35 THEN o.id ELSE '3' END AS x, p.age {JOIN}""",
    "if": f"SELECT if(p.age > 35 AND o.paid, o.id, 0) AS x, p.age {JOIN}",
    "constants by tests of both": f"""
        SELECT CASE WHEN p.age > 35 AND o.amount > 1 THEN 'a' ELSE 'b' END AS x, p.age, o.id
        {JOIN}""",
    "constants by tests of three, nested": """
        SELECT CASE WHEN p.age > 35 AND o.amount > 1 THEN CASE WHEN v.sick THEN 1 ELSE 2 END
        WHEN v.cost > 3 OR o.paid THEN 4 END AS x, p.age, o.id, v.cost
        FROM shop.orders o JOIN register.people p ON o.customer = p.id
        JOIN north.visits v ON v.person = o.customer""",
    "constants by a row of each": f"""
        SELECT CASE WHEN {IN_P} AND {IN_V} THEN 1 ELSE 2 END AS x, o.id FROM shop.orders o""",
    "constants by a row of one, and none of the other": f"""
        SELECT CASE WHEN {IN_P} AND NOT {IN_V} THEN 'a' WHEN {IN_V} THEN 'b' END AS x, o.id
        FROM shop.orders o""",
    "constants by a row of either": f"""
        SELECT if(NOT ({IN_P} OR {IN_V}), 1, 0) AS x, o.id FROM shop.orders o""",
    "values by a row of each": f"""
        SELECT CASE WHEN {IN_P} OR {IN_V} THEN CASE WHEN {IN_P} THEN o.amount ELSE 1 END ELSE 0 END
        AS x, o.id FROM shop.orders o""",
    "rows of each, in another column and in WHERE": f"""
        SELECT CASE WHEN {IN_P} AND {IN_V} THEN 1 ELSE 2 END AS x, {IN_V} AS y, o.id
        FROM shop.orders o WHERE o.amount > 1 OR {IN_P}""",
    "a truth": f"SELECT (p.age > 35 AND o.amount > 1) AS x, p.age, o.id {JOIN}",
    "a truth by a test with NOT": f"""
        SELECT (NOT (p.city = 'Ulm') AND o.id > 1) AS x, p.age, o.id {JOIN}""",
    "a truth by LIKE with ESCAPE": f"""
        SELECT (p.city LIKE '%!n' ESCAPE '!') IS NOT DISTINCT FROM (o.id > 1) AS x, p.age, o.id
        {JOIN} WHERE p.city NOT LIKE 'U%' ESCAPE '!' OR o.paid""",
    "a truth as a number": f"SELECT (p.city = 'Ulm' OR o.paid)::INTEGER AS x, p.age, o.id {JOIN}",
    "an interaction": f"SELECT o.amount * (p.city = 'Ulm')::INTEGER AS x, p.age, o.id {JOIN}",
    "an interaction by case": f"""
        SELECT o.amount * CASE WHEN p.age > 35 THEN 2 ELSE 1 END AS x, p.age, o.id {JOIN}""",
    "tests that a CASE guards": f"""
        SELECT CASE WHEN p.city IN ('7', '8') THEN o.id * (p.city::INTEGER > 7)::INTEGER ELSE 0 END
        AS x, p.age {JOIN}""",
    "after a LEFT JOIN": f"SELECT CASE WHEN p.age > 35 THEN o.id ELSE 0 END AS x, p.income {LEFT}",
    "by the presence of a row": f"""
        SELECT CASE WHEN p.id IS NULL THEN 0 ELSE o.id END AS x, p.income {LEFT}""",
    "of several databases": """
        SELECT p.age, v.cost FROM register.people p JOIN clinic.visits v ON v.person = p.id
        WHERE p.age > 35 OR v.kind = 'a'""",
    "of three parties": """
        SELECT p.age, v.cost, CASE WHEN v.sick THEN o.id ELSE 0 END AS x FROM register.people p
        JOIN clinic.visits v ON v.person = p.id JOIN shop.orders o ON o.customer = p.id
        WHERE p.age > 35 OR v.kind = 'a' OR o.amount > 6""",
    "a test that stands twice": f"""
        SELECT CASE WHEN p.age > 35 THEN o.id END AS x, CASE WHEN p.age > 35 THEN o.amount END AS y,
        p.age > 35 AS z, (p.age > 35 OR o.paid) AS w {JOIN}""",
    "in a derived table": f"""
        SELECT d.x + d.id AS x, d.age FROM (
          SELECT CASE WHEN p.age > 35 THEN o.amount END AS x, o.id, p.age {JOIN}) d""",
    "in blocks of a union": f"""
        SELECT o.id, p.age {JOIN} WHERE o.paid OR p.age > 35 UNION ALL
        SELECT o.id, p.age {JOIN} WHERE p.age < 35""",
    "a constant": f"SELECT o.id, p.age {JOIN} WHERE 1 = 0 OR p.age > 35 OR o.paid",
    "no rows": f"SELECT o.id, p.age {JOIN} WHERE (o.paid OR p.age > 35) AND false",
    "beside a condition of one party": f"""
        SELECT o.id, p.age {JOIN} WHERE (o.paid OR p.age > 35) AND p.income > 500""",
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_rows_are_those_of_the_query(
    query: str, catalog: DatabaseCatalog, central: duckdb.DuckDBPyConnection
) -> None:
    same_rows(catalog, central, query)


def test_parts_are_disjoint_blocks(catalog: DatabaseCatalog) -> None:
    assert len(plan(catalog, QUERIES["or"]).blocks) == 2
    assert len(plan(catalog, QUERIES["case"]).blocks) == 2
    assert len(plan(catalog, QUERIES["cases"]).blocks) == 6


def test_tests_of_one_database_stay_in_it(catalog: DatabaseCatalog) -> None:
    query = """SELECT w.temp, CASE WHEN c.size > 200 THEN w.temp END AS x, o.id
        FROM register.weather w JOIN register.cities c USING (city)
        JOIN shop.orders o ON o.day = w.day WHERE c.code = 1 OR w.temp > 2"""
    assert len(plan(catalog, query).blocks) == 1


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT o.id, p.age {JOIN} WHERE o.amount > p.age OR o.paid",
        f"SELECT o.id * p.age AS x, p.age {JOIN}",
        f"SELECT CASE WHEN o.paid THEN o.id ELSE p.age END AS x, p.age {JOIN}",
        "SELECT o.id, p.age FROM shop.orders o JOIN register.people p "
        "ON o.customer = p.id OR o.id = p.boss",
        "SELECT o.id, p.age FROM (SELECT * FROM shop.orders LIMIT 3) o JOIN register.people p "
        "ON o.customer = p.id WHERE o.paid OR p.age > 35",
        f"SELECT o.id, p.age {JOIN} WHERE "
        + " AND ".join(f"(o.id > {n} OR p.age > {n})" for n in range(9)),
    ],
)
def test_others_are_refused(query: str, catalog: DatabaseCatalog) -> None:
    with pytest.raises(PlanError) as caught:
        plan(catalog, query)
    assert caught.value.line
    assert caught.value.hint


def test_parts_are_counted_by_all_outcomes(
    catalog: DatabaseCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test whose NULL matters makes three parts."""
    query = f"SELECT ((o.amount > 6) = (p.age > 35)) AS x, p.age, o.id {JOIN}"
    monkeypatch.setattr(parting, "MAX_PARTS", 3)
    assert len(plan(catalog, query).blocks) == 3
    monkeypatch.setattr(parting, "MAX_PARTS", 2)
    with pytest.raises(PlanError, match="more than 2 parts"):
        plan(catalog, query)


# -- random queries --------------------------------------------------------------------------------

STATEMENTS = 1500 if THOROUGH else 20


def test_rows_of_random_queries() -> None:
    plans, _ = random_plans(with_tests, STATEMENTS)
    assert len(plans) > STATEMENTS / 3


def with_tests(random: Random) -> str:
    """A query with conditions and columns that several parties would have to evaluate."""
    query = Query.of(random)
    text, places = query.source()
    for _ in range(random.randint(1, 2)):
        item, more = query.source()
        text += f" {query.join(places, item, more)}"
        places = [*places, *more]

    def formula(depth: int = 0) -> str:
        roll = random.random()
        if depth > 2 or (depth and roll < 0.4):
            return query.test(random.choice(places))
        if roll < 0.5:
            return f"NOT ({formula(depth + 1)})"
        if roll < 0.6:
            tests = (formula(depth + 1) for _ in range(3))
            return "CASE WHEN {} THEN {} ELSE {} END".format(*tests)
        sides = formula(depth + 1), formula(depth + 1)
        return f"({random.choice((' AND ', ' OR ')).join(sides)})"

    def value(alias: str) -> str:
        roll = random.random()
        if roll < 0.3:
            return f"{alias}.x"
        if roll < 0.6:
            end = random.choice(("", " ELSE 0", f" ELSE {alias}.m"))
            return f"CASE WHEN {formula(1)} THEN {alias}.x{end} END"
        if roll < 0.7:
            return f"CASE {random.choice(places)[0]}.s WHEN 'a' THEN {alias}.x WHEN 'b' THEN 1 END"
        if roll < 0.8:
            return f"{alias}.x + ({formula(1)})::INTEGER"
        if roll < 0.9:
            return f"({formula()})"
        return f"if({formula(1)}, 1, {alias}.m)"

    columns = ", ".join(f"{value(alias)} AS v{n}" for n, (alias, _) in enumerate(places))
    where = f" WHERE {formula()}" if random.random() < 0.7 else ""
    return f"SELECT {columns} FROM {text}{where}"
