"""IN, EXISTS, NOT EXISTS over another party's table: plans give the rows of one database."""

from __future__ import annotations

from random import Random

import duckdb
import pytest

from sqlfl.base.errors import PlanError
from sqlfl.contract.schema import Client
from tests.depth import THOROUGH
from tests.planner.conftest import DatabaseCatalog
from tests.planner.query.rows import random_plans, same_rows
from tests.planner.query.test_meaning import plan
from tests.planner.trees import Query

QUERIES = {
    "in, of rows": """
        SELECT o.amount FROM shop.orders o
        WHERE (o.customer, o.paid) IN (SELECT person, sick FROM clinic.visits)""",
    "in": "SELECT o.amount FROM shop.orders o WHERE o.customer IN (SELECT id FROM register.people)",
    "in, of several databases": """
        SELECT p.age, p.income FROM register.people p
        WHERE p.id IN (SELECT person FROM clinic.visits WHERE cost > 1)""",
    "in, as any and as some": """
        SELECT p.age FROM register.people p WHERE p.id = ANY (SELECT person FROM clinic.visits)
        AND p.id = SOME (SELECT customer FROM shop.orders WHERE amount > 1)""",
    "exists, beside other conditions": """
        SELECT p.age, o.amount FROM register.people p JOIN shop.orders o ON o.customer = p.id
        WHERE EXISTS (SELECT 1 FROM clinic.visits v WHERE v.person = p.id AND v.kind = 'a'
          AND o.amount > 1) AND o.paid IS NOT NULL""",
    "not exists, of several databases": """
        SELECT p.age FROM register.people p
        WHERE NOT EXISTS (SELECT * FROM clinic.visits WHERE person = p.id AND cost > 3)""",
    "both": """
        SELECT o.amount, o.id IS NULL AS none FROM shop.orders o
        WHERE EXISTS (FROM register.people p WHERE p.id = o.customer)
        AND NOT EXISTS (FROM clinic.visits v WHERE v.person = o.customer AND v.sick)""",
    "of a union": """
        SELECT p.age FROM register.people p WHERE p.id IN (
          SELECT person FROM north.visits UNION ALL SELECT person FROM south.visits)""",
    "of groups": """
        SELECT p.age FROM register.people p WHERE p.id IN (
          SELECT customer FROM shop.orders GROUP BY customer HAVING count(*) > 1)""",
    "of a query": """
        WITH d AS (SELECT person, cost FROM north.visits WHERE cost > 1)
        SELECT p.age FROM register.people p WHERE p.id IN (SELECT DISTINCT person FROM d)""",
    "of the side that may be missing": """
        SELECT o.amount, p.age FROM shop.orders o LEFT JOIN register.people p ON o.customer = p.id
        WHERE NOT EXISTS (SELECT 1 FROM clinic.visits v WHERE v.person = p.id)""",
    "in a derived table": """
        SELECT o.amount, d.age FROM shop.orders o LEFT JOIN (
          SELECT id, age FROM register.people p
          WHERE EXISTS (SELECT 1 FROM clinic.visits v WHERE v.person = p.id)) d
        ON d.id = o.customer""",
    "two keys": """
        SELECT p.age, o.amount FROM register.people p, shop.orders o WHERE EXISTS (
          SELECT 1 FROM clinic.visits v WHERE v.person = p.id AND v.person = o.customer)""",
    "in blocks of a union": """
        SELECT p.age FROM register.people p WHERE p.id IN (SELECT person FROM north.visits)
        UNION ALL
        SELECT p.age FROM register.people p WHERE p.id IN (SELECT person FROM south.visits)""",
    "an output with a name of the subquery": """
        SELECT p.id AS person FROM register.people p
        WHERE EXISTS (SELECT 1 FROM clinic.visits WHERE person = p.id)""",
    "semi and anti joins": """
        SELECT p.age, o.amount FROM register.people p SEMI JOIN clinic.visits v ON v.person = p.id
        ANTI JOIN north.staff s ON s.number = p.id AND s.age > 40
        JOIN shop.orders o ON o.customer = p.id""",
    "a semi join by the name of a column": """
        SELECT * FROM (SELECT person, kind FROM north.visits) a
        SEMI JOIN (SELECT id AS person, age FROM register.people) b USING (person)""",
    "a union of parts": """
        SELECT v.cost FROM clinic.visits v WHERE v.person IN (SELECT number FROM north.staff)""",
    "a star": """
        WITH few AS (SELECT customer FROM shop.orders GROUP BY customer HAVING count(*) < 2)
        SELECT p.age FROM register.people p WHERE p.id IN (FROM few)""",
    "a union without ALL": """
        SELECT p.age FROM register.people p WHERE p.id IN (SELECT person FROM north.visits
          WHERE person > 10 UNION (SELECT customer FROM shop.orders
            UNION ALL SELECT 13 FROM shop.items))""",
    "not in": """
        SELECT p.age FROM register.people p WHERE p.id NOT IN (SELECT number FROM north.staff)""",
    "not in, with a NULL": """
        SELECT p.age FROM register.people p WHERE p.id NOT IN (SELECT customer FROM shop.orders)""",
    "not in, without NULLs": """
        SELECT p.age FROM register.people p
        WHERE p.id NOT IN (SELECT customer FROM shop.orders WHERE customer IS NOT NULL)""",
    "not in, a NULL of outside": """
        SELECT o.amount FROM shop.orders o WHERE o.customer NOT IN (SELECT number FROM north.staff)
        AND o.note NOT IN (SELECT town FROM north.staff WHERE age < 0)""",
    "not in, no NULL of outside": """
        SELECT o.amount FROM shop.orders o WHERE NOT o.customer IN (SELECT person FROM clinic.visits
          WHERE person IS NOT NULL) AND o.customer IS NOT NULL""",
    "not in, of rows of outside": """
        SELECT p.age FROM register.people p WHERE p.city <> ALL (SELECT v.kind FROM clinic.visits v
          WHERE v.person = p.id)""",
    "not in, on the side that may be missing": """
        SELECT o.amount FROM shop.orders o LEFT JOIN register.people p ON p.id = o.customer
        WHERE p.city NOT IN (SELECT town FROM north.staff UNION SELECT kind FROM south.visits)""",
    "not in, of groups": """
        SELECT p.age FROM register.people p WHERE p.id NOT IN (
          SELECT customer FROM shop.orders GROUP BY customer HAVING count(*) > 1)""",
    "in, of a join of its party": """
        SELECT p.age FROM register.people p WHERE p.id IN (SELECT o.customer FROM shop.orders o
          JOIN shop.items i ON i.order_id = o.id WHERE i.quantity < o.amount)""",
    "not in, of a join of its party": """
        SELECT p.age FROM register.people p WHERE p.id NOT IN (SELECT o.customer FROM shop.orders o,
          shop.items i WHERE i.order_id = o.id AND i.quantity > 1)""",
    "exists, of a LEFT JOIN of its party": """
        SELECT p.age FROM register.people p WHERE NOT EXISTS (SELECT 1 FROM shop.orders o
          LEFT JOIN shop.items i ON i.order_id = o.id
          WHERE o.customer = p.id AND i.price IS NULL)""",
    "exists, with a subquery of its party": """
        SELECT p.age FROM register.people p WHERE EXISTS (SELECT 1 FROM shop.orders o
          WHERE o.customer = p.id AND o.id IN (SELECT order_id FROM shop.items))""",
    "exists, with a limit": """
        SELECT p.age FROM register.people p WHERE EXISTS (SELECT 1 FROM clinic.visits v
          WHERE v.person = p.id LIMIT 1) AND NOT EXISTS (SELECT 1 FROM shop.orders o
          JOIN shop.items i ON i.order_id = o.id WHERE o.customer = p.id
          ORDER BY i.price LIMIT 1)""",
    "in a window": """
        SELECT o.id FROM shop.orders o WHERE EXISTS (SELECT 1 FROM register.weather w
          WHERE w.day BETWEEN o.day - 1 AND o.day AND w.temp < 2)""",
    "not in a window, of several databases": """
        SELECT p.age FROM register.people p WHERE NOT EXISTS (SELECT 1 FROM clinic.visits v
          WHERE v.person BETWEEN p.id + 1 AND p.id + 2 AND v.cost > 3)""",
    "semi and anti joins in windows": """
        SELECT o.id FROM shop.orders o SEMI JOIN register.weather w ON w.day - o.day BETWEEN 0 AND 1
        ANTI JOIN north.staff s ON s.number = o.customer AND abs(s.number - o.id) <= 9""",
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_rows_are_those_of_the_query(
    query: str, catalog: DatabaseCatalog, central: duckdb.DuckDBPyConnection
) -> None:
    same_rows(catalog, central, query)


def test_conditions_that_tell_of_no_nulls_need_no_more_joins(catalog: DatabaseCatalog) -> None:
    number = [
        len(plan(catalog, QUERIES[name]).slots)
        for name in ("not in", "not in, without NULLs", "not in, no NULL of outside")
    ]
    assert number == [4, 3, 2]


class _Governed(DatabaseCatalog):
    def governed(self, client: Client) -> bool:
        return client.party == "shop"


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("p.id NOT IN (SELECT customer FROM shop.orders)", "asks for no NULLs"),
        ("(p.id, p.age) NOT IN (SELECT number, age FROM north.staff)", "rows of several values"),
        (
            "EXISTS (SELECT 1 FROM shop.orders o WHERE o.id BETWEEN p.id - 3 AND p.id)",
            "a join compares columns as they are",
        ),
    ],
)
def test_others_are_refused(where: str, said: str, catalog: DatabaseCatalog) -> None:
    own = _Governed({})
    own.databases = catalog.databases
    with pytest.raises(PlanError) as caught:
        plan(own, f"SELECT p.age FROM register.people p WHERE {where}")
    assert said in caught.value.message
    assert caught.value.line
    assert caught.value.hint


@pytest.mark.parametrize("word", ["", "NOT "])
def test_in_as_a_column_of_a_governed_table_is_refused_at_its_place(
    word: str, catalog: DatabaseCatalog
) -> None:
    own = _Governed({})
    own.databases = catalog.databases
    test = f"p.id {word}IN (SELECT customer FROM shop.orders)"
    assert plan(catalog, f"SELECT p.age, {test} AS f FROM register.people p")
    with pytest.raises(PlanError, match="asks for no NULLs") as caught:
        plan(own, f"SELECT p.age, {test} AS f FROM register.people p")
    assert caught.value.line
    assert caught.value.hint is not None
    assert "write EXISTS (SELECT 1" in caught.value.hint
    exists = f"{word}EXISTS (SELECT 1 FROM shop.orders u WHERE u.customer = p.id)"
    assert plan(own, f"SELECT p.age, {exists} AS f FROM register.people p")


def test_a_governed_table_is_asked_nothing_of_nulls_that_conditions_leave_out(
    catalog: DatabaseCatalog,
) -> None:
    own = _Governed({})
    own.databases = catalog.databases
    query = """SELECT p.age FROM register.people p WHERE p.id IS NOT NULL AND p.id NOT IN
      (SELECT customer FROM shop.orders WHERE customer IS NOT NULL)"""
    assert len(plan(own, query).slots) == 2


# -- random queries --------------------------------------------------------------------------------

STATEMENTS = 1500 if THOROUGH else 30


def test_rows_of_random_queries() -> None:
    plans, refusals = random_plans(with_cohorts, STATEMENTS)
    assert all(refusal.line and refusal.hint for refusal in refusals)
    assert sum(any(slot.once for slot in ucq.slots) for ucq in plans) > STATEMENTS / 4


def with_cohorts(random: Random) -> str:
    """A query over several parties, or a union of two, with subqueries in WHERE."""
    parts = []
    for _ in range(1 if random.random() < 0.85 else 2):
        query = Query.of(random)
        text, places = query.source()
        if random.random() < 0.5:
            item, more = query.source()
            text += f" {query.join(places, item, more)}"
            places = [*places, *more]
        tests = [_cohort(random, query, places) for _ in range(random.randint(1, 2))]
        if random.random() < 0.4:
            tests.append(query.test(random.choice(places)))
        random.shuffle(tests)
        value = random.choice(places)[0]
        parts.append(
            f"SELECT {value}.x AS x, {value}.s AS s FROM {text} WHERE {' AND '.join(tests)}"
        )
    return " UNION ALL ".join(parts)


def _cohort(random: Random, query: Query, places: list[tuple[str, str]]) -> str:
    """IN, EXISTS or NOT EXISTS over some party's table, names with and without their table."""
    inner = Query.of(random)
    source, own = inner.source()
    source, alias = source.replace("a0", "u0").replace("a1", "u1"), own[0][0].replace("a", "u")
    outside = query.key(random.choice(places))
    where = [inner.test((alias, own[0][1]))] if random.random() < 0.5 else []
    if random.random() < 0.4:
        key = random.choice((f"{alias}.k", f"{alias}.m", f"coalesce({alias}.k, 1)"))
        distinct = random.choice(("", "", "DISTINCT "))
        clause = f" WHERE {where[0]}" if where else ""
        rows = f"(SELECT {distinct}{key} FROM {source}{clause})"
        word = random.choice(("IN", "IN", "NOT IN", "<> ALL"))
        return f"{outside} {word} {rows}"
    where.append(f"{outside} = {alias}.{random.choice('km')}")
    if random.random() < 0.2:
        where.append(f"{query.key(random.choice(places))} = {alias}.{random.choice('km')}")
    if random.random() < 0.2:
        where.append(query.test(random.choice(places)))
    if random.random() < 0.15:
        where.append(f"{outside} BETWEEN {alias}.{random.choice('km')} - 1 AND {alias}.k + 1")
    if random.random() < 0.15:
        where[0] = f"{outside} - {alias}.k BETWEEN {random.choice((-1, 0))} AND 1"
    random.shuffle(where)
    word = random.choice(("EXISTS", "NOT EXISTS"))
    shown = random.choice(("1", "*", f"{alias}.x"))
    return f"{word} (SELECT {shown} FROM {source} WHERE {' AND '.join(where)})"
