"""Rows of constants in FROM: they go to a party whose table they are joined with."""

from __future__ import annotations

from random import Random

import duckdb
import pytest

from sqlfl.base.errors import PlanError
from tests.depth import THOROUGH
from tests.planner.conftest import DatabaseCatalog
from tests.planner.query.rows import random_plans, same_rows
from tests.planner.query.test_meaning import plan
from tests.planner.trees import Query

QUERIES = {
    "values": """
        SELECT o.amount, p.age, v.weight FROM shop.orders o
        JOIN register.people p ON o.customer = p.id
        JOIN (VALUES ('Bonn', 1.5), ('Ulm', 2.5)) v(city, weight) ON v.city = p.city""",
    "a CTE": """
        WITH v(city, weight) AS (VALUES ('Bonn', 1.5), ('Ulm', 2.5), ('Ulm', 3))
        SELECT o.amount, p.age, v.weight FROM shop.orders o
        JOIN register.people p ON o.customer = p.id LEFT JOIN v ON p.city = v.city""",
    "first in FROM": """
        SELECT o.amount, p.age, v.w FROM (SELECT 'Bonn' AS city, 1 AS w UNION ALL SELECT 'Ulm', 2) v
        JOIN register.people p USING (city) JOIN shop.orders o ON o.customer = p.id""",
    "buckets": """
        SELECT o.amount, b.name, p.age FROM shop.orders o JOIN (VALUES (0, 4, 'low'), (4, 99, 'up'))
        b(lo, hi, name) ON o.amount >= b.lo AND o.amount < b.hi
        JOIN register.people p ON o.customer = p.id""",
    "buckets of a later party": """
        SELECT o.amount, b.name, p.age FROM shop.orders o
        JOIN register.people p ON o.customer = p.id
        JOIN (VALUES (0, 40, 'young'), (40, 99, 'old')) b(lo, hi, name) ON p.age >= b.lo
        AND p.age < b.hi""",
    "buckets of a later party beside a key of the first": """
        SELECT o.amount, b.name, p.age FROM shop.orders o, register.people p,
        (VALUES (1, 40, 'young'), (2, 99, 'old')) b(id, hi, name)
        WHERE o.customer = p.id AND b.id = o.id AND p.age BETWEEN b.hi - 40 AND b.hi""",
    "columns that are all NULL": """
        SELECT o.amount, p.age, v.x IS NULL AS w, (o.amount > 2 OR v.x > 1) AS y,
        (o.id > 1 AND len(v.l) > 0) AS z
        FROM shop.orders o JOIN register.people p ON o.customer = p.id
        JOIN (VALUES ('Ulm', NULL, []), ('Bonn', NULL, [])) v(city, x, l) ON v.city = p.city""",
    "keys that are all NULL": """
        SELECT o.amount, p.age, v.x FROM shop.orders o JOIN register.people p ON o.customer = p.id
        LEFT JOIN (VALUES ('Ulm', NULL), ('Bonn', NULL)) v(x, id) ON v.id = p.id""",
    "of a party with several databases": """
        SELECT v.cost, r.i FROM clinic.visits v RIGHT JOIN range(20) r(i) ON v.person = r.i""",
    "by a comma": """
        SELECT o.amount, p.age, u.kind FROM shop.orders o, register.people p, unnest(['a', 'b'])
        u(kind), north.visits n WHERE o.customer = p.id AND n.person = p.id AND n.kind = u.kind""",
    "within a derived table": """
        SELECT d.amount, d.w, p.age FROM (SELECT o.*, v.w FROM shop.orders o
          JOIN (VALUES (1, 2)) v(id, w) USING (id)) d
        JOIN register.people p ON d.customer = p.id""",
    "in EXISTS": """
        SELECT o.amount, p.age FROM shop.orders o JOIN register.people p ON o.customer = p.id
        WHERE p.city IN (SELECT c FROM (VALUES ('Bonn'), ('Ulm')) v(c))""",
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_rows_are_those_of_the_query(
    query: str, catalog: DatabaseCatalog, central: duckdb.DuckDBPyConnection
) -> None:
    same_rows(catalog, central, query)


def test_constants_go_to_a_party_that_they_are_joined_with(catalog: DatabaseCatalog) -> None:
    for name in ("values", "a CTE"):
        ucq = plan(catalog, QUERIES[name])
        (slot,) = (slot for slot in ucq.slots if slot.name == "v")
        assert slot.parties == ("register",)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT v.x FROM (VALUES (1)) v(x)",
        "SELECT o.amount, u.x FROM shop.orders o JOIN north.visits n ON n.person = o.id, "
        "unnest([o.id, n.cost]) u(x)",
        "SELECT o.amount, v.x FROM shop.orders o JOIN north.visits n ON n.person = o.id "
        "POSITIONAL JOIN (VALUES (1)) v(x)",
    ],
)
def test_others_are_refused(query: str, catalog: DatabaseCatalog) -> None:
    with pytest.raises(PlanError) as caught:
        plan(catalog, query)
    assert caught.value.line
    assert caught.value.hint


def test_constants_as_a_part_of_a_union_are_refused_by_what_they_are(
    catalog: DatabaseCatalog,
) -> None:
    with pytest.raises(PlanError, match="rows of constants alone, and no party") as caught:
        plan(catalog, "SELECT amount FROM shop.orders UNION ALL SELECT i FROM range(3) r(i)")
    assert caught.value.line
    assert caught.value.hint


# -- random queries --------------------------------------------------------------------------------

STATEMENTS = 1500 if THOROUGH else 30


def test_rows_of_random_queries() -> None:
    plans, _ = random_plans(with_constants, STATEMENTS)
    assert len(plans) > STATEMENTS / 3


def with_constants(random: Random) -> str:
    """A query with rows of constants among its tables."""
    query = Query.of(random)
    text, places = query.source()
    names = [place[0] for place in places]
    before = ""
    for number in range(random.randint(1, 3)):
        alias = f"c{number}"
        if random.random() < 0.4:
            item, more = query.source()
            text += f" {query.join(places, item, more)}"
            places = [*places, *more]
            names = [place[0] for place in places]
            continue
        item, common = _rows(random, alias)
        before = f"WITH {common} " if common and not before else before
        if common and not before.startswith(f"WITH {common}"):
            item = f"(VALUES (1, 1, 2, 'a')) AS {alias}(k, m, x, s)"
        kind = random.choice(("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN"))
        other = random.choice(names)
        on = f"{alias}.k = {query.key((other, ''))}"
        if random.random() < 0.2:
            on += f" AND {alias}.x < {other}.x"
        if random.random() < 0.2:
            on += f" AND {query.test(random.choice(places))}"
        text += f" {kind} {item} ON {on}"
        names.append(alias)
        places = [*places, (alias, "constants")]
    where = f" WHERE {random.choice(names)}.k IS NOT NULL" if random.random() < 0.3 else ""
    columns = ", ".join(f"{name}.{random.choice('xs')} AS v{n}" for n, name in enumerate(names))
    return f"{before}SELECT {columns} FROM {text}{where}"


def _rows(random: Random, alias: str) -> tuple[str, str]:
    """An item of FROM with the columns k, m, x and s; and the CTE that it needs."""
    count = random.randint(1, 4)
    rows = [
        (random.choice(("0", "1", "2", "NULL")), str(random.randrange(9)), random.choice("abc"))
        for _ in range(count)
    ]
    values = ", ".join(f"({k}, {k}, {x}, '{s}')" for k, x, s in rows)
    way = random.randrange(4)
    if way == 0:
        return f"(VALUES {values}) AS {alias}(k, m, x, s)", ""
    if way == 1:
        parts = (f"SELECT {k}::INT AS k, {k}::INT AS m, {x} AS x, '{s}' AS s" for k, x, s in rows)
        return f"({' UNION ALL '.join(parts)}) AS {alias}", ""
    if way == 2:
        return (
            f"(SELECT i AS k, i AS m, i + 1 AS x, 'a' AS s FROM range({count}) r(i)) AS {alias}",
            "",
        )
    return alias, f"{alias}(k, m, x, s) AS (VALUES {values})"
