"""Aggregates over another party's rows with an equal key: plans give the rows of one database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random

import duckdb
import pytest

from sqlfl.base.errors import PlanError
from sqlfl.planner.query.correlated import OVER_NONE
from sqlfl.planner.query.ucq import Ucq
from tests.depth import THOROUGH
from tests.planner.central import ordered, planned_rows
from tests.planner.conftest import DatabaseCatalog, database
from tests.planner.query.rows import random_plans, same_rows
from tests.planner.query.test_meaning import plan
from tests.planner.trees import Query

QUERIES = {
    "a mean": """
        SELECT p.age, (SELECT avg(o.amount) FROM shop.orders o WHERE o.customer = p.id) AS mean
        FROM register.people p""",
    "several of the same rows": """
        SELECT v.cost, (SELECT avg(p.age) FROM register.people p WHERE p.id = v.person) AS a,
          (SELECT count(*) FROM register.people p WHERE p.id = v.person) AS n
        FROM clinic.visits v""",
    "with conditions of its own, and of outside": """
        SELECT p.age, (SELECT count(*) FROM shop.orders WHERE customer = p.id AND amount > 2
          AND p.age > 20) AS n FROM register.people p""",
    "in an expression": """
        SELECT p.age, 1 + coalesce((SELECT sum(amount) + count(DISTINCT code) FROM shop.orders
          WHERE customer = p.id), -1) AS n FROM register.people p""",
    "in a condition": """
        SELECT p.age FROM register.people p
        WHERE (SELECT count(*) FROM shop.orders o WHERE o.customer = p.id) > 1""",
    "whether there are rows": """
        SELECT p.age, EXISTS (SELECT 1 FROM shop.orders o WHERE o.customer = p.id) AS orders,
          CASE WHEN NOT EXISTS (FROM north.visits v WHERE v.person = p.id AND v.sick) THEN 'well'
          ELSE 'ill' END AS v
        FROM register.people p""",
    "whether there are rows, under OR": """
        SELECT p.age, v.cost FROM register.people p JOIN clinic.visits v ON v.person = p.id
        WHERE (EXISTS (SELECT * FROM shop.orders o WHERE o.customer = p.id AND o.paid)
          OR v.cost > 3) AND EXISTS (SELECT 1 FROM north.visits n WHERE n.person = p.id)""",
    "whether a missing row has rows": """
        SELECT o.amount, EXISTS (FROM north.staff s WHERE s.number = p.id) AS e
        FROM shop.orders o LEFT JOIN register.people p ON o.customer = p.id""",
    "whether there are rows in one of several databases": """
        SELECT p.age, EXISTS (SELECT 1 FROM clinic.visits v WHERE v.person = p.id) AS e,
          EXISTS (SELECT 1 FROM clinic.visits v WHERE v.person = p.id AND v.sick) AS s,
          NOT EXISTS (FROM clinic.visits v WHERE v.person = p.age) AS n
        FROM register.people p""",
    "whether there are rows in one of several databases, under OR": """
        SELECT o.amount, CASE WHEN EXISTS (SELECT 1 FROM clinic.visits v
          WHERE v.person = o.customer AND v.cost > 1) THEN o.id ELSE 0 END AS c
        FROM shop.orders o LEFT JOIN register.people p ON p.id = o.customer
        WHERE EXISTS (SELECT 1 FROM clinic.visits v WHERE v.person = p.id) OR o.amount > 2""",
    "having": """
        SELECT p.age, (SELECT count(*) FROM shop.orders o WHERE o.customer = p.id
          HAVING count(*) <> 1) AS n FROM register.people p""",
    "over a join of its party": """
        SELECT p.age, (SELECT sum(i.price * i.quantity) FROM shop.orders o
          JOIN shop.items i ON i.order_id = o.id WHERE o.customer = p.id) AS worth
        FROM register.people p""",
    "of a CTE and a subquery": """
        WITH big AS (SELECT * FROM shop.orders WHERE amount > 1)
        SELECT p.age, (WITH own AS (SELECT * FROM big) SELECT max(amount) FROM own
          WHERE customer = p.id AND id IN (SELECT order_id FROM shop.items)) AS most
        FROM register.people p""",
    "two keys": """
        SELECT v.cost, (SELECT min(w.temp) FROM register.weather w
          WHERE (w.city, w.day) = (v.kind, DATE '2024-01-01')) AS t FROM north.visits v""",
    "on the right of a left join": """
        SELECT o.amount, (SELECT count(*) FROM north.staff s WHERE s.number = p.id) AS n
        FROM shop.orders o LEFT JOIN register.people p ON o.customer = p.id""",
    "in a derived table, joined on": """
        SELECT o.amount, d.n, d.m FROM shop.orders o JOIN (
          SELECT p.id, (SELECT count(*) FROM north.visits v WHERE v.person = p.id) AS n,
            (SELECT max(cost) FROM north.visits v WHERE v.person = p.id AND sick) AS m
          FROM register.people p) d ON d.id = o.customer""",
    "beside a cohort": """
        SELECT p.age, (SELECT list(o.amount ORDER BY o.amount)[1] FROM shop.orders o
          WHERE o.customer = p.id) AS least FROM register.people p
        WHERE EXISTS (SELECT 1 FROM clinic.visits v WHERE v.person = p.id)""",
    "with a filter, and in a group": """
        SELECT p.age, (SELECT count(*) FILTER (WHERE o.paid) FROM shop.orders o
          WHERE o.customer = p.id) AS n, (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY amount)
          FROM shop.orders o WHERE o.customer = p.id) AS m FROM register.people p""",
    "over several databases": """
        SELECT p.age, (SELECT avg(v.cost) FROM clinic.visits v WHERE v.person = p.id) AS mean,
          (SELECT count(*) FROM clinic.visits v WHERE v.person = p.id) AS n,
          (SELECT max(cost) - min(cost) FROM clinic.visits WHERE person = p.id AND sick) AS range
        FROM register.people p""",
    "over several databases, in a derived table": """
        SELECT p.age, d.n, d.total FROM register.people p LEFT JOIN (
          SELECT person, kind, count(cost) AS n, 2 * sum(cost) AS total
          FROM (SELECT person, kind, coalesce(cost, 1) AS cost FROM clinic.visits) v
          GROUP BY v.person, 2 HAVING count(*) < 9) d ON d.person = p.id AND d.kind <> 'x'""",
    "over several databases, of its own party": """
        SELECT v.cost, (SELECT count(*) FILTER (WHERE w.sick) FROM clinic.visits w
          WHERE w.person = v.person) AS n, p.age
        FROM clinic.visits v JOIN register.people p ON p.id = v.person""",
    "in blocks of a union": """
        SELECT p.age, (SELECT sum(cost) FROM north.visits WHERE person = p.id) AS c
        FROM register.people p UNION ALL
        SELECT p.age, (SELECT sum(cost) FROM south.visits WHERE person = p.id)
        FROM register.people p""",
    "in a window of days": """
        SELECT o.id, (SELECT count(*) FROM register.weather w
            WHERE w.day BETWEEN o.day - 1 AND o.day AND w.city = o.code) AS n,
          (SELECT max(temp) FROM register.weather WHERE weather.day > o.day - INTERVAL 2 DAY
            AND weather.day <= o.day) AS m,
          EXISTS (SELECT 1 FROM register.weather w WHERE w.day - o.day BETWEEN 1 AND 2) AS later
        FROM shop.orders o""",
    "in a window of numbers, of a join": """
        SELECT p.age, (SELECT sum(i.price) FROM shop.orders o JOIN shop.items i ON i.order_id = o.id
          WHERE abs(o.customer - p.id) <= 1 AND i.quantity BETWEEN p.id - 9 AND p.id - 7) AS worth
        FROM register.people p""",
    "in a window, of several databases": """
        SELECT p.age, (SELECT avg(v.cost) FROM clinic.visits v
          WHERE v.person BETWEEN p.id - 1 AND p.id) AS mean FROM register.people p""",
    "in a window, of outside in several databases": """
        SELECT v.cost, (SELECT count(*) FROM register.people p
          WHERE p.id BETWEEN v.person AND v.person + 1) AS n FROM clinic.visits v""",
    "in, as a value": """
        SELECT p.age, p.id IN (SELECT customer FROM shop.orders) AS a,
          p.id NOT IN (SELECT number FROM north.staff) AS b,
          p.city IN (SELECT town FROM north.staff WHERE age < 0) AS c
        FROM register.people p""",
    "in, as a value of no NULLs": """
        SELECT p.age, p.id = ANY (SELECT customer FROM shop.orders WHERE customer IS NOT NULL) AS a,
          (p.id <> ALL (SELECT person FROM clinic.visits)) IS NULL AS b
        FROM register.people p""",
    "in, under OR and CASE": """
        SELECT p.age, CASE WHEN p.id IN (SELECT customer FROM shop.orders) THEN 'one'
          WHEN p.id NOT IN (SELECT number FROM north.staff) THEN 'two' ELSE 'three' END AS c
        FROM register.people p
        WHERE p.id IN (SELECT number FROM north.staff) OR p.age > 40
          OR (p.id, p.city) IN (SELECT number, town FROM north.staff)""",
    "in, of groups and unions": """
        SELECT p.age, p.id IN (SELECT customer FROM shop.orders GROUP BY 1 HAVING max(id) > 2) AS a,
          p.id IN (SELECT person FROM north.visits UNION SELECT person FROM south.visits) AS b
        FROM register.people p""",
    "in, of rows of outside": """
        SELECT v.cost, v.kind IN (SELECT s.town FROM north.staff s WHERE s.number = v.person) AS a
        FROM clinic.visits v""",
    "two of one party under OR": """
        SELECT p.age FROM register.people p
        WHERE EXISTS (SELECT 1 FROM shop.orders o WHERE o.customer = p.id AND o.paid)
          OR EXISTS (SELECT 1 FROM shop.orders o WHERE o.id = p.id - 9)""",
    "the first of rows": """
        SELECT p.age, (SELECT o.amount FROM shop.orders o WHERE o.customer = p.id
            ORDER BY o.moment DESC, o.id LIMIT 1) AS a,
          (SELECT amount AS x FROM shop.orders WHERE customer = p.id ORDER BY x LIMIT 1) AS b,
          (SELECT -amount FROM shop.orders WHERE customer = p.id ORDER BY 1 DESC LIMIT 1) AS c,
          (SELECT id FROM shop.orders WHERE customer = p.id ORDER BY ALL DESC LIMIT 1) AS d
        FROM register.people p""",
    "the first of rows in a window": """
        SELECT o.id, (SELECT w.temp FROM register.weather w WHERE w.day BETWEEN o.day - 2 AND o.day
          ORDER BY w.moment DESC LIMIT 1) AS temp FROM shop.orders o""",
    "within one party": """
        SELECT o.amount, (SELECT sum(i.price) FROM shop.items i WHERE i.order_id = o.id) AS c, p.age
        FROM shop.orders o JOIN register.people p ON o.customer = p.id""",
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_rows_are_those_of_the_query(
    query: str, catalog: DatabaseCatalog, central: duckdb.DuckDBPyConnection
) -> None:
    same_rows(catalog, central, query)


def test_subqueries_over_the_same_rows_are_one_table(catalog: DatabaseCatalog) -> None:
    ucq = plan(catalog, QUERIES["several of the same rows"])
    assert [slot.name for slot in ucq.slots] == ["v", "p"]


REFUSED = {
    "a value of both": "(SELECT u.age * o.id FROM register.people u WHERE u.id = o.customer)",
    "no equality": "(SELECT avg(u.age) FROM register.people u WHERE u.id < o.customer)",
    "an open window": "(SELECT sum(u.age) FROM register.people u WHERE u.id >= o.customer)",
    "a wide window": "(SELECT sum(age) FROM register.people WHERE o.id - id BETWEEN 0 AND 400)",
    "a window of values": """(SELECT sum(age) FROM register.people u
        WHERE u.income BETWEEN o.amount - 1 AND o.amount)""",
    "rows of several values": "(o.id, o.code) IN (SELECT u.id, u.city FROM register.people u)",
    "the second of rows": """(SELECT u.age FROM register.people u WHERE u.id = o.customer
        ORDER BY u.age LIMIT 1 OFFSET 1)""",
    "first by a column that it lacks": """(SELECT u.age FROM register.people u
        WHERE u.id = o.customer ORDER BY 2 LIMIT 1)""",
    "any of rows": "(SELECT u.age FROM register.people u WHERE u.id = o.customer LIMIT 1)",
    "the first of rows over several databases": """(SELECT u.cost FROM clinic.visits u
        WHERE u.person = o.customer ORDER BY u.cost LIMIT 1)""",
    "an aggregate of outside": "(SELECT sum(o.id) FROM register.people u WHERE u.id = o.customer)",
    "values of both": "(SELECT sum(u.age) - o.id FROM register.people u WHERE u.id = o.customer)",
    "a grouped query": "(SELECT sum(age) FROM register.people u WHERE id = o.customer GROUP BY id)",
    "a median over several databases": """(SELECT median(u.cost) FROM clinic.visits u
        WHERE u.person = o.customer)""",
    "a join of several databases": """(SELECT sum(u.cost) FROM clinic.visits u
        JOIN clinic.visits w ON w.id = u.id WHERE u.person = o.customer)""",
    "two parties": """(SELECT sum(u.cost) FROM north.visits u, register.people p
        WHERE u.person = o.customer AND p.id = u.person)""",
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_others_are_refused(value: str, catalog: DatabaseCatalog) -> None:
    with pytest.raises(PlanError) as caught:
        plan(catalog, f"SELECT o.amount, {value} AS f FROM shop.orders o")
    assert caught.value.line
    assert caught.value.hint


# -- keys ------------------------------------------------------------------------------------------

OUTER = """
CREATE TABLE t (y INTEGER, k INTEGER, b BIGINT, d DOUBLE, s VARCHAR, day DATE);
INSERT INTO t VALUES (1, 7, 9007199254740993, 9007199254740992, 'A', DATE '2024-01-01'),
  (2, 8, 8, 0.0, 'a', DATE '2024-01-02'), (3, NULL, NULL, NULL, NULL, NULL),
  (4, 0, 0, 5.5, '', DATE '1970-01-01');
"""
INNER = """
CREATE TYPE size AS ENUM ('A', 'a', 'b');
CREATE TABLE u (k INTEGER, text VARCHAR, b BIGINT, d DOUBLE, s VARCHAR, e size, moment TIMESTAMP,
  z INTEGER);
INSERT INTO u VALUES (7, '7', 9007199254740993, 0.0, 'A', 'A', '2024-01-01', 1),
  (7, '07', 9007199254740992, -0.0, 'a', 'a', '2024-01-01 12:00:00', 2),
  (NULL, NULL, NULL, NULL, NULL, NULL, NULL, 4), (8, '+8', 8, 5.5, '', 'b', '2024-01-02', 8);
"""
KEYS = (
    "u.k = t.k", "u.text = t.k", "u.k = t.d", "u.b = t.d", "u.d = t.d", "u.d = t.b", "u.b = t.b",
    "u.s = t.s", "u.e = t.s", "u.moment = t.day", "u.k IS NOT DISTINCT FROM t.k", "t.k IN (u.k)",
    "(u.k, u.s) = (t.k, t.s)", "u.k + 1 = t.k", "u.k::VARCHAR = t.k", "u.k = t.k AND u.d = 0",
    "CAST(u.k AS DECIMAL(9,2)) = t.k", "NOT (u.k <> t.k)", "u.k = t.k AND u.k = t.b",
    "u.z % 4 = t.k", "u.k = t.k::TINYINT", "lower(u.s) = t.s",
)  # fmt: skip


@pytest.mark.parametrize("on", KEYS)
def test_keys_are_grouped_as_they_are_compared(on: str) -> None:
    catalog = DatabaseCatalog({"a": (database(OUTER),), "b": (database(INNER),)})
    query = (
        f"SELECT t.y, (SELECT sum(z) FROM b.u WHERE {on}) AS total, "
        f"(SELECT count(z) FROM b.u WHERE {on}) AS n FROM a.t"
    )
    with duckdb.connect() as central:
        for party, script in (("a", OUTER), ("b", INNER)):
            central.execute(f"ATTACH ':memory:' AS {party}; USE {party}; {script}")
        expected = ordered(central.execute(query).fetchall())
    assert planned_rows(plan(catalog, query), catalog.databases) == expected


def test_keys_of_databases_of_unlike_types() -> None:
    parts = (
        "CREATE TABLE t AS SELECT i AS y, i::TINYINT AS k FROM range(9) r(i)",
        "CREATE TABLE t AS SELECT 10 + i AS y, i / 2 AS k FROM range(9) r(i)",
        "CREATE TABLE t (y INTEGER, k DECIMAL(5, 1))",
    )
    inner = (
        "CREATE TABLE u AS SELECT '0' || (i / 2) AS text, i AS z FROM range(9) r(i) UNION ALL "
        "SELECT text, 10 FROM (VALUES ('1'), ('1.0'), (NULL), ('7e0')) v(text)"
    )
    catalog = DatabaseCatalog({"a": tuple(map(database, parts)), "b": (database(inner),)})
    query = "SELECT t.y, (SELECT sum(z) FROM b.u WHERE u.text = t.k) AS total FROM a.t"
    with duckdb.connect() as central:
        central.execute(f"ATTACH ':memory:' AS b; USE b; {inner}; ATTACH ':memory:' AS a; USE a")
        central.execute("CREATE TABLE t (y INTEGER, k DOUBLE)")
        for con in list(catalog.databases.values())[:3]:
            for row in con.execute("FROM t").fetchall():
                central.execute("INSERT INTO t VALUES (?, ?)", row)
        expected = ordered(central.execute(query).fetchall())
    assert planned_rows(plan(catalog, query), catalog.databases) == expected
    assert sum(total != "NULL" for _, total in expected) > 9


def test_groups_of_several_databases_are_of_rows_alone() -> None:
    """Of each database a macro that is an aggregate would make one row."""
    inner = "CREATE MACRO most(x) AS max(x); CREATE TABLE u AS SELECT i AS z FROM range(3) r(i)"
    databases = {"a": (database(OUTER),), "b": (database(inner), database(inner))}
    query = """SELECT t.y, d.n FROM a.t JOIN (SELECT v.c, count(*) AS n
        FROM (SELECT {}(z) AS c FROM b.u) v GROUP BY v.c) d ON d.c = t.k"""
    catalog = DatabaseCatalog(databases)
    assert planned_rows(plan(catalog, query.format("abs")), catalog.databases)
    with pytest.raises(PlanError, match="cannot bind"):
        plan(catalog, query.format("most"))


def test_a_field_is_not_the_column_of_its_name() -> None:
    inner = "CREATE TABLE u AS SELECT 7 AS k, {{'k': {}}} AS s, {} AS x"
    parts = [inner.format(*values) for values in ((7, 1), (8, 2), (8, 4))]
    databases = {"a": (database(OUTER),), "b": tuple(database(text) for text in parts)}
    catalog = DatabaseCatalog(databases)
    query = """SELECT t.y, d.j, d.v FROM a.t JOIN (SELECT u.k, {} AS j, sum(x) AS v FROM b.u
        GROUP BY b.u.k{}) d ON d.k = t.k"""
    rows = planned_rows(plan(catalog, query.format("s.k", ", s.k")), catalog.databases)
    assert rows == ordered([(1, 7, 1), (1, 8, 6)])
    with pytest.raises(PlanError, match="neither grouped by"):
        plan(catalog, query.format("s.k", ""))


VISITS = """CREATE TABLE visits AS SELECT i AS id, 10 * i AS age, i % 2 AS y, 2 AS l, 3 AS patient,
    {'id': 4} AS s FROM range(1, 6) r(i)"""
LABS = """CREATE TABLE labs AS FROM (VALUES {}) t(patient, v, age, l, h, visits, labs, w, x);
    CREATE VIEW parts AS SELECT patient, {{'id': x + 1, 'y': 5}} AS v, x, l FROM labs"""
LAB_ROWS = (
    "(1, 5, 1, 7, 1, 2, 3, 'a', 1), (2, 7, 2, 9, 2, 3, 3, NULL, 4), (4, 8, 1, 9, 2, 3, 4, 'c', 8)",
    "(1, 6, 2, 8, 1, 2, 3, 'b', 2), (5, 6, 2, 1, 1, 2, 3, 'b', 16)",
)


@pytest.fixture(scope="module")
def named_alike() -> Iterator[tuple[DatabaseCatalog, duckdb.DuckDBPyConnection]]:
    """Columns with the names of aliases, tables and parties; `two` has two databases."""
    parts = {"h": (VISITS,), "lab": (LABS.format(", ".join(LAB_ROWS)),)}
    parts["two"] = tuple(LABS.format(rows) for rows in LAB_ROWS)
    opened = {party: tuple(database(text) for text in texts) for party, texts in parts.items()}
    with duckdb.connect() as central:
        for party, script in (("h", VISITS), ("lab", parts["lab"][0]), ("two", parts["lab"][0])):
            central.execute(f"CREATE SCHEMA {party}; USE {party}; {script}")
        central.execute("USE main")
        yield DatabaseCatalog(opened), central


NAMED_ALIKE = {
    "an inner column and the outer alias": """SELECT v.age, v.y, (SELECT avg(l.v) FROM lab.labs l
        WHERE l.patient = v.id) AS a FROM h.visits v""",
    "a text": """SELECT w.age, (SELECT count(*) FROM lab.labs l WHERE l.patient = w.id
        AND w IS NOT NULL AND w.age > 10) AS a FROM h.visits w""",
    "one table outside": """SELECT visits.age, (SELECT sum(x) FROM lab.labs AS l
        WHERE l.patient = visits.id) AS a FROM h.visits""",
    "a table without an alias": """SELECT labs.age, (SELECT sum(x + labs) FROM lab.labs AS l
        WHERE l.patient = labs.id) AS a FROM h.visits AS labs""",
    "an outer column and the inner alias": """SELECT v.age, (SELECT sum(l.x) FROM lab.labs l
        WHERE l.patient = v.id) AS l FROM h.visits v""",
    "an inner column and the inner alias": """SELECT v.age, (SELECT sum(l.l) FROM lab.labs l
        WHERE l.patient = v.id AND l.l > 7) AS l FROM h.visits v""",
    "a party and an alias": """SELECT h.age, (SELECT sum(lab.h) FROM lab.labs AS lab
        WHERE lab.patient = h.id) AS a FROM h.visits AS h""",
    "a path": """SELECT h.visits.age, (SELECT sum(h) FROM lab.labs
        WHERE lab.labs.patient = visits.id) AS a FROM h.visits""",
    "a column of a derived table": """SELECT v.age, (SELECT sum(d.z) FROM (SELECT patient AS v,
        x AS z FROM lab.labs) d WHERE d.v = v.id) AS a FROM h.visits v""",
    "a column of a CTE": """WITH c AS (SELECT patient AS p, v FROM lab.labs WHERE x > 1)
        SELECT v.age, (SELECT max(v) FROM c WHERE p = v.id) AS a FROM h.visits v""",
    "in a value": """SELECT v.age, EXISTS (SELECT 1 FROM lab.labs l WHERE l.patient = v.id
        AND v.y = 1) AS a FROM h.visits v""",
    "of EXISTS": """SELECT v.age FROM h.visits v WHERE EXISTS (SELECT v FROM lab.labs l
        WHERE l.patient = v.id AND l.v > 5)""",
    "of NOT EXISTS": """SELECT v.age FROM h.visits v WHERE NOT EXISTS (FROM lab.labs l
        WHERE l.patient = v.id AND l.v > 5)""",
    "of IN": """SELECT v.age FROM h.visits v WHERE v.id IN (SELECT age FROM lab.labs l
        WHERE l.patient = v.id)""",
    "in a derived table": """SELECT v.age, d.a FROM h.visits v JOIN (SELECT v.id,
        (SELECT min(v) FROM lab.labs l WHERE l.patient = v.id) AS a FROM h.visits v) d
        ON d.id = v.id""",
    "two tables outside": """SELECT v.age, l.x, (SELECT sum(m.x) FROM two.labs m
        WHERE m.patient = v.id AND m.l > 1) AS a FROM h.visits v JOIN lab.labs l
        ON l.patient = v.id""",
    "beside the alias of the other table": """SELECT v.age, (SELECT sum(m.x) FROM two.labs m
        WHERE m.patient = l.patient) AS a FROM h.visits v JOIN lab.labs l ON l.patient = v.id""",
    "several databases": """SELECT v.age, (SELECT avg(l.v) FROM two.labs l
        WHERE l.patient = v.id) AS a, EXISTS (SELECT 1 FROM two.labs l WHERE l.patient = v.id
        AND l.v = 6) AS e FROM h.visits v""",
    "several databases, of NOT EXISTS": """SELECT v.age FROM h.visits v WHERE NOT EXISTS
        (FROM two.labs l WHERE l.patient = v.id AND l.v = 6)""",
    "the row's own": """SELECT v.age, (SELECT sum(v.v) FROM lab.labs v WHERE v.patient = v.x) AS a
        , (SELECT sum(x) FROM lab.labs v WHERE v.patient = id) AS b FROM h.visits v""",
    "a column of a CTE in a value": """SELECT v.age, (WITH c AS (SELECT patient AS v, x
        FROM lab.labs), d(v, y) AS (FROM c) SELECT sum(y) FROM d WHERE d.v = v.id) AS a
        FROM h.visits v""",
    "a column of a CTE in EXISTS": """SELECT v.age FROM h.visits v WHERE EXISTS (WITH c AS (SELECT
        patient AS v FROM two.labs) FROM c WHERE c.v = v.id)""",
    "fields, in a semi join": """SELECT w.age, v.id FROM h.visits w JOIN h.visits v ON v.id = w.id
        SEMI JOIN lab.parts p ON p.patient = w.id AND v.id > 1""",
    "fields, in an anti join": """SELECT v.age FROM h.visits v ANTI JOIN lab.parts p
        ON p.patient = v.id AND v.y = 1 AND p.v.id < 7""",
    "fields, in a semi join of one database": """SELECT l.x, v.age FROM lab.labs l JOIN h.visits v
        ON v.id = l.patient SEMI JOIN (SELECT id, {'id': 9} AS v FROM h.visits) h
        ON h.id = v.id AND v.id < 3""",
    "fields, in a semi join by the name of a column": """SELECT v.patient FROM
        (SELECT id AS patient FROM h.visits) v ANTI JOIN lab.parts USING (patient)""",
    "a struct outside": """SELECT s.id, (SELECT sum(x) FROM lab.labs l WHERE l.patient = s.id) AS a,
        (SELECT sum(x) FROM lab.labs l WHERE l.patient = s.s.id) AS b FROM h.visits s""",
    "a field inside": """SELECT o.age, v.y, (SELECT sum(x) FROM lab.parts p WHERE p.v.id > 1
        AND p.patient = o.id AND v.id < 9) AS a FROM h.visits o JOIN h.visits v ON v.id = o.id""",
    "the fields of several databases": """SELECT o.age, v.y, (SELECT sum(x) FROM two.parts p
        WHERE p.patient = o.id AND v.id < 9) AS a FROM h.visits o JOIN h.visits v
        ON v.id = o.id""",
}


@pytest.mark.parametrize("query", NAMED_ALIKE.values(), ids=NAMED_ALIKE)
def test_columns_may_have_the_names_of_tables(
    query: str, named_alike: tuple[DatabaseCatalog, duckdb.DuckDBPyConnection]
) -> None:
    catalog, central = named_alike
    same_rows(catalog, central, query)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            "(SELECT sum(x + v.y) FROM lab.labs l WHERE l.patient = v.id)",
            "extract field 'y'",
        ),
        ("(SELECT sum(x) FROM lab.parts p WHERE p.patient = v.id)", "no equality ties it"),
    ],
)
def test_a_column_with_fields_precedes_a_table_outside(
    query: str, message: str, named_alike: tuple[DatabaseCatalog, duckdb.DuckDBPyConnection]
) -> None:
    """So does any column in a SELECT list, where DuckDB does not look for the table."""
    with pytest.raises(PlanError, match=message):
        plan(named_alike[0], f"SELECT v.age, {query} AS a FROM h.visits v")


ARGUMENTS = (
    "", "*", "i", "d", "s", "b", "l", "day", "bits", "price", "d, d", "i, i", "s, ','", "d, 0.5",
    "i, 2", "i, 0, 5", "d, [0.5]", "s, d", "i, i, i",
)  # fmt: skip


def test_values_over_no_rows_are_those_of_duckdb() -> None:
    """All aggregates that DuckDB has, with arguments of many types."""
    con = database("""CREATE TABLE t (
        i INTEGER, d DOUBLE, s VARCHAR, b BOOLEAN, l INTEGER[], day DATE, bits BIT,
        price DECIMAL(9, 2))""")
    listed = con.execute(
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'aggregate'"
    )
    names = {name for (name,) in listed.fetchall()} - {"combine_aggr"}  # takes states, not rows
    values: dict[str, set[object]] = {}
    for name in names:
        for arguments in ARGUMENTS:
            with suppress(duckdb.Error):
                (value,) = con.execute(f'SELECT "{name}"({arguments}) FROM t').fetchall()[0]
                values.setdefault(name, set()).add(value)
    assert values.keys() == names
    assert values == {name: {OVER_NONE.get(name)} for name in names}


# -- random queries --------------------------------------------------------------------------------

STATEMENTS = 1200 if THOROUGH else 30
CALLS = (
    "avg({}.x)", "sum(x)", "min({}.s)", "max(x)", "count(*)", "count({}.x)", "stddev_samp(x)",
    "count(DISTINCT x)", "bool_or({}.x > 3)", "count(*) FILTER (WHERE x > 2)", "median(x)",
    "quantile_cont({}.x, 0.5)", "sum(x) FILTER (WHERE {}.s = 'a')", "string_agg(s, ',' ORDER BY s)",
    "var_pop(x)", "arg_max(x, x)", "count_if(x > 1)", "regr_count(x, x)", "product(x)", "sum(1)",
    "approx_count_distinct(x)", "entropy(x)", "mode(s)", "bit_xor(x)",
)  # fmt: skip
AROUND = (
    "{}", "{}", "{}", "coalesce({}::VARCHAR, '7')", "({} IS NULL)", "{}::VARCHAR", "[{}]",
    "typeof({})",
    "CASE WHEN {} IS NULL THEN 1 ELSE 2 END",
)  # fmt: skip


def test_rows_of_random_queries() -> None:
    plans, refusals = random_plans(with_aggregates, STATEMENTS)
    assert all(refusal.line and refusal.hint for refusal in refusals)
    assert sum(is_taken(ucq) for ucq in plans) > STATEMENTS / 4


def is_taken(ucq: Ucq) -> bool:
    return any("sqlfl_by_0" in f.sql for slot in ucq.slots for f in slot.fragments)


def with_aggregates(random: Random) -> str:
    """A query over several parties, or a union of two, with aggregates over others' rows."""
    parts = []
    for _ in range(1 if random.random() < 0.92 else 2):
        query = Query.of(random)
        text, places = query.source()
        if random.random() < 0.5:
            item, more = query.source()
            text += f" {query.join(places, item, more)}"
            places = [*places, *more]
        subqueries = [_subquery(random, query, places) for _ in range(random.randint(1, 3))]
        values = [random.choice(AROUND).format(subquery) for subquery in subqueries[:2]]
        values = [*values, "1"][:2]
        tests = [f"{subquery}::VARCHAR > '1'" for subquery in subqueries[2:]]
        if random.random() < 0.4:
            tests.append(query.test(random.choice(places)))
        where = f" WHERE {' AND '.join(tests)}" if tests else ""
        shown = ", ".join(f"{value}::VARCHAR AS c{n}" for n, value in enumerate(values))
        parts.append(f"SELECT {random.choice(places)[0]}.x AS x, {shown} FROM {text}{where}")
    union = " UNION ALL ".join(parts)
    if random.random() < 0.15:
        return f"SELECT d.c0, d.x, d.c1 FROM ({union}) d WHERE d.x IS NOT NULL"
    return union


def _subquery(random: Random, query: Query, places: Sequence[tuple[str, str]]) -> str:
    """An aggregate over some party's table, names with and without their table."""
    party = random.choice(("red", "blue", "grey", "duo")) if random.random() < 0.2 else "grey"
    table = f"{party}.{random.choice('tu')}"
    source = random.choice((
        f"{table} AS u0", f"(SELECT k, m, coalesce(x, 1) AS x, s FROM {table}) AS u0",
        f"(SELECT u0.* FROM {table} u0 LEFT JOIN {party}.t w ON w.k = u0.m) AS u0",
    ) if random.random() < 0.3 else (f"{table} AS u0",))  # fmt: skip
    where = []
    for number in range(random.choice((1, 1, 1, 2))):
        inner = random.choice(("u0.k", "u0.m", "coalesce(u0.k, 1)", "u0.k + 1", "u0.k::VARCHAR"))
        outside = query.key(random.choice(list(places)))
        test = f"{inner} = {outside}" if random.random() < 0.7 else f"{outside} = {inner}"
        if number or random.random() < 0.1:
            test = random.choice((
                test, f"{outside} IS NOT DISTINCT FROM {inner}", f"u0.s = {places[0][0]}.s",
            ))  # fmt: skip
        where.append(test)
    if random.random() < 0.25:
        where[-1] = f"{outside} BETWEEN u0.k - 1 AND u0.k + {random.choice('012')}"
    if random.random() < 0.4:
        where.append(query.test(("u0", party)))
    if random.random() < 0.2:
        where.append(query.test(random.choice(list(places))))
    random.shuffle(where)
    if random.random() < 0.15:
        own, other = random.choice((("k", "m"), ("m", "k"), ("s", "s"), ("k", "k")))
        rows = f"(SELECT u0.{own} FROM {source} WHERE {where[0]})"
        return f"({places[0][0]}.{other} {random.choice(('IN', 'NOT IN'))} {rows})"
    value = random.choice(CALLS).format("u0")
    if random.random() < 0.2:
        value = f"coalesce({value}, NULL)"
    if random.random() < 0.1:
        value = "coalesce(sum(x), 0) + 2 * count(s)"
    having = random.choice(("count(*) > 1", "max(x) > 3", "count(x) < 2"))
    having = f" HAVING {having}" if random.random() < 0.15 else ""
    return f"(SELECT {value} FROM {source} WHERE {' AND '.join(where)}{having})"
