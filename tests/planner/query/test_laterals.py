"""Lists and LATERAL subqueries beside tables of several databases: plans give the rows of one."""

from __future__ import annotations

import duckdb
import pytest

from sqlfl.base.errors import PlanError
from sqlfl.contract.schema import Client
from tests.planner.conftest import DatabaseCatalog
from tests.planner.query.rows import same_rows
from tests.planner.query.test_meaning import plan

PEOPLE = "JOIN register.people p ON p.id = o.customer"
QUERIES = {
    "a list after a comma": """SELECT u.tag, p.age FROM shop.orders o, unnest(o.tags) u(tag),
        register.people p WHERE p.id = o.customer""",
    "a list before a join": f"SELECT u.x, p.age FROM shop.orders o, unnest(o.vector) u(x) {PEOPLE}",
    "a list before a LEFT JOIN": """SELECT u.x, p.age FROM shop.orders o,
        unnest(o.vector::FLOAT[]) AS u(x) LEFT JOIN register.people p ON p.id = o.customer""",
    "a list after a LEFT JOIN": """SELECT u.x, p.age FROM shop.orders o
        LEFT JOIN register.people p ON p.id = o.customer
        CROSS JOIN unnest(o.vector::FLOAT[]) AS u(x)""",
    "a list with a condition": f"""SELECT u.x, p.age FROM shop.orders o {PEOPLE}
        JOIN unnest(o.vector::FLOAT[]) AS u(x) ON u.x > 2""",
    "a list of several databases": """SELECT u.x, p.age FROM clinic.visits v,
        unnest([v.cost, v.cost + 1]) AS u(x), register.people p WHERE p.id = v.person""",
    "a list without names": f"SELECT u, u.unnest AS v, p.age FROM shop.orders o {PEOPLE}, "
    "unnest([o.id, 2]) u",
    "a range": f"SELECT r.n, range.range AS m, p.age FROM shop.orders o {PEOPLE}, "
    "range(o.id) r(n), range(2 * o.id)",
    "a list as key": """SELECT p.age, u.k FROM shop.orders o,
        unnest([o.customer, o.customer + 1]) u(k) JOIN register.people p ON p.id = u.k""",
    "LATERAL of a list": f"SELECT u.x, p.age FROM shop.orders o {PEOPLE}, "
    "LATERAL (SELECT unnest(o.vector::FLOAT[]) AS x) u",
    "LATERAL of expressions": f"SELECT q.z, p.age FROM shop.orders o {PEOPLE}, "
    "LATERAL (SELECT o.amount * 2 AS z, o.id + 1 AS n) q WHERE q.n > 2",
    "LATERAL of aggregates": """SELECT p.age, q.* FROM register.people p, LATERAL (
        SELECT count(*) AS n, avg(o.amount) AS m, max(o.amount) - min(o.amount) AS r
        FROM shop.orders o WHERE o.customer = p.id) q WHERE q.n <> 1""",
    "LATERAL of aggregates over several databases": """SELECT p.age, q.n, q.s
        FROM register.people p LEFT JOIN LATERAL (SELECT count(*) AS n, sum(v.cost) AS s
        FROM clinic.visits v WHERE v.person = p.id) q ON true""",
    "LATERAL with HAVING": """SELECT p.age, q.m FROM register.people p LEFT JOIN LATERAL (
        SELECT avg(o.amount) AS m FROM shop.orders o WHERE o.customer = p.id
        HAVING count(*) > 1) q ON true""",
    "LATERAL of the first row": """SELECT p.age, q.amount, q.y FROM register.people p
        LEFT JOIN LATERAL (SELECT o.amount, o.id + 1 AS y FROM shop.orders o
        WHERE o.customer = p.id ORDER BY y DESC LIMIT 1) q ON true""",
    "LATERAL of rows": """SELECT p.age, q.amount FROM register.people p
        JOIN LATERAL (SELECT o.amount FROM shop.orders o WHERE o.customer = p.id) q ON true""",
    "LATERAL of rows after a comma": """SELECT age, q.n FROM register.people p,
        LATERAL (SELECT amount AS n FROM shop.orders WHERE customer = p.id AND n > 1) q""",
    "LATERAL of rows on the right": """SELECT p.age, q.* FROM register.people p LEFT JOIN LATERAL (
        SELECT cost, kind FROM clinic.visits v WHERE v.person = p.id AND v.sick) q(c, k) ON true""",
    "LATERAL of a join": """SELECT p.age, q.temp FROM register.people p CROSS JOIN LATERAL (
        SELECT w.temp, o.* FROM shop.orders o JOIN register.weather w ON w.day = o.day
        WHERE o.customer = p.id AND w.city = p.city) q WHERE q.amount > 0""",
    "LATERAL of a join on the right": """SELECT p.age, q.temp FROM register.people p
        LEFT JOIN LATERAL (SELECT w.temp FROM shop.orders o JOIN register.weather w ON w.day = o.day
        WHERE o.customer = p.id AND w.city = p.city) q ON true""",
    "LATERAL of LATERAL": """SELECT p.age, r.price FROM register.people p,
        LATERAL (SELECT o.id FROM shop.orders o WHERE o.customer = p.id) q
        JOIN LATERAL (SELECT i.price FROM shop.items i WHERE i.order_id = q.id) r ON r.price > 1""",
    "LATERAL of rows with a subquery": """SELECT p.age, q.amount, q.c FROM register.people p,
        LATERAL (SELECT o.amount, (SELECT max(v.cost) FROM clinic.visits v
          WHERE v.person = o.customer) AS c FROM shop.orders o WHERE o.customer = p.id
          AND EXISTS (SELECT 1 FROM register.weather w WHERE w.day = o.day)) q""",
    "LATERAL of a union": """SELECT p.age, q.cost FROM register.people p, LATERAL (
        SELECT u.cost FROM (SELECT person, cost FROM north.visits UNION ALL
          SELECT customer, amount FROM shop.orders) u WHERE u.person = p.id) q""",
    "LATERAL of its own database": """SELECT o.amount, q.n, p.age FROM shop.orders o,
        LATERAL (SELECT count(*) AS n FROM shop.items i WHERE i.order_id = o.id) q
        JOIN register.people p ON p.id = o.customer""",
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_rows_are_those_of_the_query(
    query: str, catalog: DatabaseCatalog, central: duckdb.DuckDBPyConnection
) -> None:
    assert same_rows(catalog, central, query)


@pytest.mark.parametrize(
    "item",
    [
        "LEFT JOIN unnest(o.tags) u(x) ON true",
        "CROSS JOIN unnest([o.id, p.age]) u(x)",
        ", LATERAL (SELECT DISTINCT c.size AS x FROM register.cities c WHERE c.code = o.id) u",
        ", LATERAL (SELECT c.size AS x FROM register.cities c WHERE c.code = o.id LIMIT 2) u",
        "LEFT JOIN LATERAL (SELECT c.size AS x FROM register.cities c WHERE c.code = o.id) u "
        "ON o.paid",
        "LEFT JOIN LATERAL (SELECT c.size AS x FROM register.cities c WHERE c.code = o.id AND "
        "EXISTS (SELECT 1 FROM shop.items i WHERE i.order_id = c.code)) u ON true",
        ", LATERAL (SELECT avg(c.size) AS x FROM register.cities c WHERE c.code = o.id "
        "HAVING count(*) > 1) u",
        ", LATERAL (SELECT c.size AS x FROM register.cities c WHERE c.code = o.id "
        "ORDER BY c.size LIMIT 1) u",
        ", LATERAL (SELECT avg(c.size) AS x FROM register.cities c WHERE c.code = o.id "
        "GROUP BY c.city) u",
        ", LATERAL (SELECT abs(o.id) AS x) u",
        "LEFT JOIN LATERAL (SELECT o.id AS x) u ON o.paid",
    ],
)
def test_others_are_refused(catalog: DatabaseCatalog, item: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan(catalog, f"SELECT p.age, u.x FROM shop.orders o {PEOPLE} {item}")
    assert "is not taken in this form" in str(caught.value)
    assert caught.value.line
    assert caught.value.hint


def test_a_list_on_the_right_of_a_left_join_is_refused(catalog: DatabaseCatalog) -> None:
    query = """SELECT p.age, u.x FROM register.people p LEFT JOIN shop.orders o
      ON o.customer = p.id, unnest(o.tags) u(x)"""
    with pytest.raises(PlanError, match="not taken in this form"):
        plan(catalog, query)


class _Governed(DatabaseCatalog):
    def governed(self, client: Client) -> bool:
        return client.party == "shop"


def test_a_list_of_a_governed_table_is_refused_at_its_place(catalog: DatabaseCatalog) -> None:
    own = _Governed({})
    own.databases = catalog.databases
    query = f"SELECT u.x, p.age FROM shop.orders o, unnest(o.tags) u(x) {PEOPLE}"
    with pytest.raises(PlanError, match="makes several rows of one of") as caught:
        plan(own, query)
    assert caught.value.line
    assert caught.value.hint
