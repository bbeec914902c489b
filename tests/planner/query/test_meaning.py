"""A planned query joins the rows that the query itself gives in one database."""

from __future__ import annotations

import duckdb
import pytest

from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.statements import EvaluateModel
from sqlfl.planner.query.draft import NO_ROLES, Roles
from sqlfl.planner.query.rules import to_ucq
from tests.planner.central import ordered, planned_rows
from tests.planner.conftest import DatabaseCatalog

QUERIES = {
    "columns of one name": """
        SELECT *, o.id FROM (SELECT id, customer, amount FROM shop.orders) o
        JOIN (SELECT id, age, age AS amount FROM register.people) p ON o.customer = p.id""",
    "one table": "SELECT amount, code FROM shop.orders",
    "two parties": """
        SELECT o.amount, p.age FROM shop.orders o JOIN register.people p ON o.customer = p.id""",
    "schema": """
        SELECT a.amount, p.age FROM shop.archive.orders a JOIN register.people p
        ON a.customer = p.id""",
    "view": """
        SELECT amount, age FROM shop.big_orders JOIN register.people ON customer = people.id""",
    "without aliases": """
        SELECT orders.amount, register.people.age FROM shop.orders JOIN register.people
        ON shop.orders.customer = people.id""",
    "where": """
        SELECT o.amount, p.age FROM shop.orders o, register.people p
        WHERE o.customer = p.id AND o.amount > 5 AND (p.age > 10 OR p.city IS NULL)""",
    "using": """
        SELECT city, temp, size FROM register.weather JOIN register.cities USING (city)""",
    "using and natural": """
        SELECT * EXCLUDE (moment, day) FROM (SELECT day, amount FROM shop.orders) o
        NATURAL JOIN register.weather JOIN register.cities c USING (city)""",
    "composite key": """
        SELECT o.amount, w.temp FROM shop.orders o
        JOIN register.weather w ON o.day = w.day AND o.moment = w.moment""",
    "date with timestamp": """
        SELECT o.amount, w.temp FROM shop.orders o JOIN register.weather w ON o.day = w.moment""",
    "text with number": """
        SELECT o.amount, c.size FROM shop.orders o JOIN register.cities c ON o.code = c.code""",
    "classes of different types": """
        SELECT a.amount AS x, b.amount AS y, c.size
        FROM shop.orders a JOIN register.cities c ON a.code = c.code
        JOIN shop.orders b ON b.code = c.code""",
    "transitive": """
        SELECT o.amount, p.age, v.cost FROM shop.orders o JOIN register.people p
        ON o.customer = p.id JOIN clinic.visits v ON v.person = p.id AND v.person = o.customer""",
    "one side twice": """
        SELECT p.age, v.cost, b.age AS boss FROM clinic.visits v
        JOIN register.people p ON v.person = p.id JOIN register.people b ON p.boss = b.id""",
    "two expressions of one class": """
        SELECT o.amount, p.age FROM shop.orders o JOIN register.people p
        ON o.customer = p.id AND o.id + 9 = p.id""",
    "many to many": """
        SELECT v.cost, i.price, i.quantity FROM clinic.visits v
        JOIN shop.orders o ON v.person = o.customer JOIN shop.items i ON i.order_id = o.id""",
    "fused by an expression": """
        SELECT o.amount * i.quantity AS worth, p.age FROM shop.orders o
        JOIN shop.items i ON i.order_id = o.id JOIN register.people p ON o.customer = p.id""",
    "fused by a non-equality": """
        SELECT o.amount, i.quantity, p.age FROM shop.orders o
        JOIN shop.items i ON i.quantity < o.id JOIN register.people p ON o.customer = p.id""",
    "fused key": """
        SELECT o.amount, i.quantity, p.age FROM shop.orders o, shop.items i, register.people p
        WHERE o.customer + i.quantity = p.id""",
    "expressions as keys": """
        SELECT o.amount, p.age FROM shop.orders o JOIN register.people p
        ON o.customer * 2 = p.id + p.id""",
    "derived table with grouping": """
        SELECT s.total, p.age FROM
        (SELECT customer, sum(amount) AS total FROM shop.orders GROUP BY customer) s
        JOIN register.people p ON s.customer = p.id WHERE s.total > 6""",
    "derived table with a left join": """
        SELECT s.amount, s.price, p.age FROM
        (SELECT o.*, i.price FROM shop.orders o LEFT JOIN shop.items i ON i.order_id = o.id) s
        JOIN register.people p ON s.customer = p.id""",
    "derived table over two parties": """
        SELECT j.amount + 1 AS more, j.age, c.size FROM
        (SELECT o.amount, p.age, p.city FROM shop.orders o JOIN register.people p
         ON o.customer = p.id WHERE p.age > 20) AS j JOIN register.cities c ON j.city = c.city""",
    "cte": """
        WITH s AS (SELECT customer, max(amount) AS top FROM shop.orders GROUP BY ALL),
             t(who, how) AS (SELECT customer, top * 2 FROM s)
        SELECT t.how, p.age FROM t JOIN register.people p ON t.who = p.id""",
    "whole query of one client": """
        SELECT customer, count(*) AS n, avg(amount) AS mean FROM shop.orders
        GROUP BY customer HAVING n > 0""",
    "window": """
        SELECT s.n, p.age FROM
        (SELECT customer, row_number() OVER (PARTITION BY customer ORDER BY id) AS n
         FROM shop.orders) s JOIN register.people p ON s.customer = p.id""",
    "subqueries": """
        SELECT o.amount, (SELECT sum(i.quantity) FROM shop.items i WHERE i.order_id = o.id) AS q,
               p.age FROM shop.orders o JOIN register.people p ON o.customer = p.id
        WHERE EXISTS (SELECT 1 FROM shop.items WHERE order_id = o.id)
          AND o.id IN (SELECT order_id FROM shop.items)
          AND p.age > (SELECT min(age) FROM register.people) - 1""",
    "subquery in a self-join": """
        SELECT a.amount, b.amount AS other FROM shop.orders a JOIN shop.orders b
        ON a.customer = b.customer
        WHERE a.amount >= (SELECT max(orders.amount) FROM shop.orders
                           WHERE orders.customer = a.customer)""",
    "aliases": """
        SELECT amount * 2 AS twice, twice + 1 AS more, age FROM shop.orders o
        JOIN register.people p ON customer = p.id WHERE twice > 3""",
    "star": """
        SELECT o.* EXCLUDE (tags, token, moment, day, vector) REPLACE (amount + 1 AS amount),
               p.* RENAME (id AS person) FROM shop.orders o JOIN register.people p
        ON o.customer = p.id""",
    "odd names": """
        SELECT "select", "two words", MIXED, p.age FROM shop."odd names" n
        JOIN shop.orders o USING (id) JOIN register.people p ON o.CUSTOMER = P.ID""",
    "several clients": "SELECT cost, kind, sick FROM clinic.visits WHERE person > 10",
    "several clients joined": """
        SELECT v.cost, p.age FROM clinic.visits v JOIN register.people p ON v.person = p.id""",
    "self-join of several clients": """
        SELECT a.cost, b.cost AS other FROM clinic.visits a JOIN clinic.visits b
        ON a.person = b.person""",
    "union in from": """
        SELECT v.cost, v.kind, p.age FROM
        (SELECT person, cost, kind FROM north.visits WHERE cost > 1
         UNION ALL SELECT person, cost * 2, kind FROM south.visits) AS v
        JOIN register.people p ON v.person = p.id WHERE v.cost < 100""",
    "union by name": """
        SELECT v.cost, v.kind FROM (SELECT cost, kind FROM north.visits
        UNION ALL BY NAME SELECT kind, cost FROM south.visits) AS v""",
    "union by name, of other columns": """
        SELECT v.cost, v.kind, v.sick FROM (SELECT cost, kind FROM north.visits
        UNION ALL BY NAME SELECT sick, COST FROM south.visits) AS v""",
    "union of joins by name": """
        SELECT v.cost, v.kind, p.age FROM north.visits v JOIN register.people p ON v.person = p.id
        UNION ALL BY NAME
        SELECT p.age, v.cost, v.sick FROM south.visits v JOIN register.people p ON v.person = p.id
        UNION ALL BY NAME
        SELECT v.kind, p.city FROM south.visits v JOIN register.people p ON v.person = p.boss""",
    "union nested": """
        SELECT cost / 2 AS half, age FROM (SELECT * FROM
        (SELECT person, cost FROM north.visits UNION ALL
         (SELECT person, cost FROM south.visits UNION ALL SELECT person, cost FROM clinic.visits))
        WHERE cost > 2) u(who, cost) JOIN register.people p ON u.who = p.id""",
    "union of grouped branches": """
        SELECT v.total, p.age FROM
        (SELECT person, sum(cost) AS total FROM north.visits GROUP BY person
         UNION ALL SELECT person, sum(cost) FROM south.visits GROUP BY person) AS v
        JOIN register.people p ON v.person = p.id""",
    "union of blocks": """
        SELECT v.cost, p.age FROM north.visits v JOIN register.people p ON v.person = p.id
        UNION ALL
        SELECT w.cost, q.age FROM register.people q JOIN south.visits w ON w.person = q.id""",
    "union of blocks with other joins": """
        SELECT v.cost, p.age FROM north.visits v JOIN register.people p ON v.person = p.id
        UNION ALL
        SELECT w.cost, q.age FROM south.visits w JOIN register.people q ON w.person = q.boss
        UNION ALL
        SELECT w.cost, q.age FROM south.visits w JOIN register.people q ON w.kind = q.city""",
    "union with other keys and a constant": """
        SELECT v.cost, p.age, 0 AS origin FROM north.visits v
        JOIN register.people p ON v.person = p.id
        UNION ALL
        SELECT w.cost, c.size, 1 FROM south.visits w JOIN register.cities c
        ON w.kind = c.city AND w.extra = c.code""",
    "the same block twice": """
        SELECT v.cost, p.age FROM north.visits v JOIN register.people p ON v.person = p.id
        UNION ALL
        SELECT v.cost, p.age FROM north.visits v JOIN register.people p ON v.person = p.id""",
    "the same branch twice": """
        SELECT v.cost, p.age FROM (SELECT * FROM north.visits UNION ALL SELECT * FROM north.visits)
        AS v JOIN register.people p ON v.person = p.id""",
    "union of joins in from": """
        SELECT u.cost, u.age, c.size FROM
        (SELECT v.cost, p.age, p.city FROM north.visits v JOIN register.people p ON v.person = p.id
         UNION ALL
         SELECT v.cost, p.age, p.city FROM south.visits v JOIN register.people p ON v.person = p.id
        ) AS u JOIN register.cities c ON u.city = c.city""",
    "integer division over a union": """
        SELECT v.person // 3 AS third, p.age FROM
        (SELECT person, cost FROM north.visits UNION ALL SELECT cost, cost FROM south.visits) AS v
        JOIN register.people p ON v.person = p.id WHERE true""",
    "nested joins": """
        SELECT o.amount, p.age, c.size FROM shop.orders o JOIN
        (register.people p JOIN register.cities c USING (city)) ON o.customer = p.id""",
    "lists and structs": """
        SELECT list_sum(list_transform(o.vector, lambda x : x + 1)) AS s, p.age FROM shop.orders o
        JOIN register.people p ON o.customer = p.id""",
    "repeated names in a derived table": """
        SELECT t.customer_1 AS c, t.amount, p.age FROM (SELECT o.customer, a.customer,
        o.amount FROM shop.orders o JOIN shop.archive.orders a ON o.id=a.id) t JOIN
        register.people p ON t.customer = p.id""",
    "recursive cte inside": """
        WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM r WHERE n<5) SELECT
        o.amount, p.age FROM (SELECT o.* FROM shop.orders o JOIN r ON r.n = o.id GROUP
        BY ALL) o JOIN register.people p ON o.customer=p.id""",
    "cte with the name of a table": """
        WITH orders AS (SELECT id, amount, customer FROM shop.orders WHERE id > 1)
        SELECT orders.amount, p.age FROM orders JOIN register.people p ON
        orders.customer = p.id""",
    "filters of many kinds": """
        SELECT o.amount, p.age FROM shop.orders o JOIN register.people p ON o.customer =
        p.id WHERE o.amount BETWEEN 2 AND 8 AND p.city IN ('Bonn','Ulm') AND NOT (o.paid
        IS NULL) AND o.code LIKE '0%'""",
    "expressions": """
        SELECT CASE WHEN o.paid THEN 1 ELSE 0 END AS c, coalesce(o.amount, 0) AS a,
        extract(hour FROM o.moment) AS h, epoch(o.moment) AS e, o.amount::INT % 2 AS m,
        p.age ** 2 AS sq FROM shop.orders o JOIN register.people p ON o.customer = p.id""",
    "arrays, enums, dates": """
        SELECT o.vector[1] AS v1, o.mood::VARCHAR || 'x' AS t, date_diff('day', o.day,
        DATE '2025-01-01') AS d, p.age FROM shop.orders o JOIN register.people p ON
        o.customer = p.id""",
    "union of an enum and a text": """
        SELECT m.mood, v.cost FROM (SELECT mood, customer FROM shop.orders UNION ALL
        SELECT kind, person FROM north.visits) m JOIN clinic.visits v ON v.person =
        m.customer""",
    "union of joins of other tables": """
        SELECT u.x, u.w, p.age FROM (SELECT o.amount AS x, i.quantity AS w, o.customer
        FROM shop.orders o JOIN shop.items i ON i.order_id=o.id UNION ALL SELECT v.cost,
        s.age, v.person FROM north.visits v JOIN north.staff s ON s.number = v.person) u
        JOIN register.people p ON u.customer=p.id""",
    "correlated subqueries": """
        SELECT p.age, (SELECT count(*) FROM register.people b WHERE b.boss = p.id) AS n,
        (SELECT max(size) FROM register.cities WHERE cities.city = p.city) AS s, v.cost
        FROM register.people p JOIN north.visits v ON v.person = p.id""",
    "subquery under OR": """
        SELECT p.age, v.cost FROM register.people p JOIN north.visits v ON v.person =
        p.id WHERE p.id IN (SELECT boss FROM register.people WHERE city = 'Bonn') OR
        p.age > 60""",
    "non-equality in a self-join": """
        SELECT a.age, b.age AS age2, v.cost FROM register.people a JOIN register.people
        b ON a.age < b.age JOIN clinic.visits v ON v.person = a.id AND v.person + 0 =
        a.id""",
    "from first": """
        FROM shop.orders o JOIN register.people p ON o.customer = p.id SELECT o.amount,
        p.age""",
    "using over a derived table": """
        SELECT amount a, age FROM shop.orders JOIN (SELECT id AS customer, age FROM
        register.people) USING (customer)""",
    "column aliases of a table": """
        SELECT o.amount, p.age FROM shop.orders AS o(a, b) JOIN register.people p ON b =
        p.id""",
    "alias of a join": """
        SELECT q.amount, p.age FROM (shop.orders o JOIN shop.items i ON i.order_id =
        o.id) q JOIN register.people p ON q.customer = p.id""",
    "two slots of several clients": """
        SELECT v.cost, w.cost AS c2, p.age FROM clinic.visits v, clinic.visits w,
        register.people p WHERE v.person = w.person AND w.person = p.id AND p.id =
        v.person AND v.cost > 0""",
    "two comparisons of one column": """
        SELECT o.code, c.size FROM shop.orders o JOIN register.cities c ON o.code::INT =
        c.code AND o.code = c.code""",
    "struct fields": """
        SELECT x.s.a AS a, p.age FROM (SELECT {a: amount} AS s, customer FROM
        shop.orders) x JOIN register.people p ON x.customer = p.id""",
    "integer division over a union of joins": """
        SELECT u.cost // 2 AS h, u.age FROM (SELECT v.person AS cost, p.age FROM
        north.visits v JOIN register.people p ON v.person=p.id UNION ALL SELECT v.cost,
        p.age FROM south.visits v JOIN register.people p ON v.person=p.id) u""",
    "conditions that are always true": """
        SELECT o.amount, p.age FROM shop.orders o JOIN register.people p ON o.customer =
        p.id AND true AND 1 = 1 WHERE EXISTS (FROM register.cities c WHERE c.city =
        p.city)""",
    "precedence of what stands for a name": """
        SELECT NOT d.flag AS a, d.flag IS NULL AS b, (d.flag = true)::INT + 1 AS c, p.age
        FROM (SELECT id, amount > 2 OR code = '1' AS flag, customer FROM shop.orders) d
        JOIN register.people p ON d.customer = p.id WHERE d.flag IS NOT NULL""",
    "OR as a join key": """
        SELECT d.amount, p.age
        FROM (SELECT amount, amount > 2 OR code = '1' AS flag FROM shop.orders) d
        JOIN (SELECT age, boss = 11 AND city = 'Ulm' OR age > 60 AS flag FROM register.people) p
        USING (flag)""",
    "OR under USING at one client": """
        SELECT d.amount + e.price AS total, p.age
        FROM (SELECT amount, customer, amount > 2 OR id = 1 AS flag FROM shop.orders) d
        JOIN (SELECT price, quantity > 2 AND price > 0 OR price < 3 AS flag FROM shop.items) e
        USING (flag) JOIN register.people p ON d.customer = p.id""",
    "indices of what stands for a name": """
        SELECT d.t[1] AS a, d.l[d.k] AS b, d.m[1] AS c, p.age
        FROM (SELECT city || 'x' AS t, [age, id, 3] AS l, (id % 2 + 1)::INT AS k,
              MAP {1: age} AS m, boss FROM register.people) d
        JOIN register.people p ON d.boss = p.id""",
    "nested grouping": """
        SELECT o.amount, l.n FROM shop.orders o JOIN (SELECT city, n FROM (SELECT city,
        count(*) n FROM register.people GROUP BY 1)) l ON l.n = o.id""",
    "recursive cte": """
        WITH RECURSIVE up(id, top, n) AS (
          SELECT id, id, 0 FROM register.people WHERE boss IS NULL
          UNION ALL SELECT p.id, u.top, n + 1 FROM register.people p JOIN up u ON p.boss = u.id)
        SELECT up.n, o.amount FROM up JOIN shop.orders o ON o.customer = up.id""",
}


def plan(catalog: DatabaseCatalog, query: str, roles: Roles = NO_ROLES, **options: object):
    statement = parse(f"EVALUATE MODEL m FROM ({query})")
    assert isinstance(statement, EvaluateModel)
    return to_ucq(statement.query, statement.sql, catalog, roles, **options)


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_rows_are_those_of_the_query(
    query: str, catalog: DatabaseCatalog, central: duckdb.DuckDBPyConnection
) -> None:
    found = planned_rows(plan(catalog, query), catalog.databases)
    assert found
    assert found == ordered(central.execute(query).fetchall())
