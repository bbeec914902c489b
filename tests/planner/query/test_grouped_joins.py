"""GROUP BY over tables of several parties: plans give the rows of one database, or are refused."""

from __future__ import annotations

import warnings
from random import Random

import duckdb
import pytest

import sqlfl
from sqlfl.base.errors import ModelError, PlanError
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.statements import PredictModel
from sqlfl.planner.query.draft import Roles
from sqlfl.planner.query.rules import to_ucq
from tests.depth import SEED, THOROUGH
from tests.planner.central import ordered, planned_rows
from tests.planner.conftest import DatabaseCatalog
from tests.planner.query.test_meaning import plan

ORDERS = "shop.orders o ON o.customer = p.id"
VISITS = "clinic.visits v ON v.person = p.id"
QUERIES = {
    "means and counts": f"""SELECT p.age, avg(o.amount) AS m, count(*) AS n FROM register.people p
        JOIN {ORDERS} GROUP BY p.id, p.age""",
    "the table of groups first": """SELECT age, sum(amount) AS s FROM shop.orders o
        JOIN register.people p ON o.customer = p.id GROUP BY customer, age""",
    "a LEFT JOIN": f"""SELECT p.id, p.age, count(o.amount) AS n, sum(o.amount) AS s, max(o.id) AS d
        FROM register.people p LEFT JOIN {ORDERS} GROUP BY ALL""",
    "aggregates that leave NULLs out": f"""SELECT p.id, count(*) FILTER (o.paid AND o.id > 0) AS a,
        count(DISTINCT o.note) AS b, string_agg(o.note, '-' ORDER BY o.id) AS c,
        count_if(o.paid) AS d,
        sum(o.amount * 2) FILTER (o.note IS NULL) AS e, arg_max(o.note, o.amount) AS f,
        first(o.amount ORDER BY o.id) AS g FROM register.people p LEFT JOIN {ORDERS}
        GROUP BY p.id""",
    "a LEFT JOIN with a condition": f"""SELECT p.age, count(o.id) AS n FROM register.people p
        LEFT JOIN {ORDERS} AND o.paid GROUP BY p.id, p.age HAVING count(o.id) < 2""",
    "HAVING and WHERE": f"""SELECT p.age, min(o.amount) AS m FROM register.people p JOIN {ORDERS}
        WHERE o.amount > 2 AND p.age < 60 GROUP BY p.id, p.age
        HAVING count(*) > 1 OR max(o.id) > 4""",
    "rows of a table in GROUP BY": f"""SELECT p.age, o.paid, count(*) AS n FROM register.people p
        JOIN {ORDERS} JOIN clinic.visits v ON v.person = p.boss
        GROUP BY p.id, p.age, o.paid, p.boss, v.kind, v.cost""",
    "a comma": """SELECT p.age, count(*) FILTER (o.paid) AS n FROM register.people p, shop.orders o
        WHERE p.id = o.customer GROUP BY p.id, 1""",
    "expressions": f"""SELECT p.age // 10 AS decade, o.paid, upper(o.code) AS c,
        sum(o.amount) / count(*) + 1 AS m FROM register.people p JOIN {ORDERS}
        GROUP BY p.id, decade, o.paid, upper(o.code) ORDER BY m""",
    "several databases": f"""SELECT p.age, v.kind, avg(v.cost) AS m, count(*) AS n
        FROM register.people p JOIN {VISITS} GROUP BY p.id, p.age, v.kind""",
    "several databases by a LEFT JOIN": f"""SELECT p.age, sum(v.cost) AS m, count(v.cost) AS n
        FROM register.people p LEFT JOIN {VISITS} GROUP BY p.id, p.age""",
    "two tables of groups": f"""SELECT p.age, max(o.amount) AS m, avg(v.cost) AS c,
        count(DISTINCT o.day) AS d FROM register.people p JOIN {ORDERS} JOIN {VISITS}
        GROUP BY p.id, p.age""",
    "tables that are not grouped": f"""SELECT p.age, c.size, sum(o.amount) AS s
        FROM register.people p JOIN register.cities c ON c.city = p.city JOIN {ORDERS}
        GROUP BY p.id, p.age, c.size""",
    "a derived table": """SELECT q.age, sum(u.price) AS s FROM (SELECT id, age FROM register.people
        WHERE age > 20) AS q JOIN (SELECT o.customer AS k, i.price FROM shop.orders o
        JOIN shop.items i ON i.order_id = o.id) AS u ON u.k = q.id GROUP BY q.id, q.age""",
    "a CTE": """WITH o AS (SELECT customer, amount FROM shop.orders) SELECT p.age,
        list_sum(list(o.amount ORDER BY o.amount)) AS l FROM register.people p
        JOIN o ON o.customer = p.id GROUP BY p.id, p.age""",
    "USING": """SELECT customer AS c, age, sum(amount) AS s FROM (SELECT id AS customer, age
        FROM register.people) AS p JOIN shop.orders USING (customer) GROUP BY customer, age""",
    "USING in a LEFT JOIN": """SELECT age, o.customer AS c, count(amount) AS n
        FROM (SELECT id AS customer, age FROM register.people) AS p
        LEFT JOIN shop.orders o USING (customer) GROUP BY p.customer, o.customer, age""",
    "whole names": """SELECT register.people.age, avg(shop.orders.amount) AS m
        FROM register.people JOIN shop.orders ON shop.orders.customer = register.people.id
        GROUP BY register.people.id, people.age""",
    "aliases": f"""SELECT o.id % 2 AS odd, odd AS o, sum(odd + o.amount) AS s, count(*) AS n,
        n * 2 AS t FROM register.people p JOIN {ORDERS} WHERE odd < o.amount GROUP BY p.id, odd
        HAVING n > 0 AND p.id > 1""",
    "a key that is cast to the type of the other": """SELECT o.amount, sum(c.size) AS s
        FROM shop.orders o JOIN register.cities c ON c.code = o.code
        GROUP BY o.id, o.code, o.amount""",
    "an integer that is compared as DOUBLE": """SELECT s.town, sum(o.amount) AS m
        FROM (SELECT number::DOUBLE AS k, town FROM north.staff) s
        JOIN shop.orders o ON o.customer = s.k GROUP BY s.k, s.town""",
    "a derived join": f"""SELECT d.id, d.age + 1 AS older, avg(d.amount) AS m, count(*) AS n
        FROM (SELECT p.id, p.age, o.amount * 2 AS amount FROM register.people p JOIN {ORDERS}
        WHERE o.amount > 1) d WHERE d.age < 60 GROUP BY d.id, d.age HAVING count(*) < 9""",
    "a CTE of a join": f"""WITH d AS (SELECT p.id, p.age, o.amount FROM register.people p
        JOIN {ORDERS}) SELECT id, age, sum(amount) AS s FROM d GROUP BY ALL""",
    "names of a derived join": f"""SELECT k, max(x) AS m FROM (SELECT p.id, o.amount
        FROM register.people p LEFT JOIN {ORDERS}) d(k, x) GROUP BY k""",
    "PIVOT": f"""SELECT * FROM (PIVOT (SELECT p.id, p.age, v.kind, v.cost FROM register.people p
        JOIN {VISITS}) ON kind IN ('a', 'b') USING sum(cost) GROUP BY id, age)""",
    "PIVOT of all other columns": f"""SELECT * FROM (PIVOT (SELECT p.id, p.age, v.kind, v.cost
        FROM register.people p JOIN {VISITS}) ON kind IN ('a', 'b') USING max(cost))""",
    "PIVOT with several aggregates": f"""SELECT * FROM (PIVOT (SELECT p.id, o.paid, o.amount
        FROM register.people p JOIN {ORDERS}) ON paid IN (true, false) USING avg(amount) AS mean,
        count(*) AS n GROUP BY id)""",
    "PIVOT with aggregates without names": f"""SELECT * FROM (PIVOT (SELECT p.id, o.paid, o.amount
        FROM register.people p JOIN {ORDERS}) ON paid IN (true, false) USING min(amount),
        max(amount) GROUP BY id)""",
    "PIVOT by two columns": f"""SELECT * FROM (PIVOT (SELECT p.id, v.kind, v.sick, v.cost
        FROM register.people p JOIN {VISITS}) ON kind IN ('a', 'b'), sick IN (true)
        USING sum(cost) GROUP BY id)""",
    "PIVOT of a LEFT JOIN": f"""SELECT g.id, g.a, coalesce(g.b, 0) AS b FROM (PIVOT (SELECT p.id,
        v.kind, v.cost FROM register.people p LEFT JOIN {VISITS}) ON kind IN ('a', 'b')
        USING sum(cost) GROUP BY id) g WHERE g.id > 1""",
    "PIVOT in FROM": f"""SELECT g.id, g.a + 1 AS a, g.b FROM (SELECT p.id, v.kind, v.cost
        FROM register.people p JOIN {VISITS}) d
        PIVOT (sum(cost) FOR kind IN ('a', 'b') GROUP BY id) g""",
    "PIVOT of a CTE": f"""WITH d AS (SELECT p.id, o.paid, o.amount FROM register.people p
        JOIN {ORDERS}) SELECT * FROM (PIVOT d ON paid IN (true, false) USING sum(amount)
        GROUP BY id)""",
    "PIVOT beside a join": f"""SELECT g.*, c.size FROM (PIVOT (SELECT p.id, p.city, v.kind, v.cost
        FROM register.people p JOIN {VISITS}) ON kind IN ('a') USING sum(cost) AS total
        GROUP BY id, city) g JOIN register.cities c ON c.city = g.city""",
    "PIVOT on the right of a LEFT JOIN": f"""SELECT o.amount, g.a FROM shop.orders o LEFT JOIN
        (PIVOT (SELECT p.id, v.kind, v.cost FROM register.people p JOIN {VISITS})
        ON kind IN ('a', 'b') USING sum(cost) GROUP BY id) g ON g.id = o.customer""",
    "on the right of a LEFT JOIN": """SELECT p.age, g.m FROM register.people p
        LEFT JOIN (SELECT q.boss, max(o.amount) AS m FROM register.people q
        JOIN shop.orders o ON o.customer = q.id GROUP BY q.id, q.boss) AS g ON g.boss = p.id""",
    "inside another query": f"""SELECT g.age, g.m FROM (SELECT p.id, p.age, avg(o.amount) AS m
        FROM register.people p JOIN {ORDERS} GROUP BY p.id, p.age) AS g WHERE g.m > 1""",
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_rows_are_those_of_the_query(
    query: str, catalog: DatabaseCatalog, central: duckdb.DuckDBPyConnection
) -> None:
    expected = ordered(central.execute(query).fetchall())
    assert expected
    assert planned_rows(plan(catalog, query), catalog.databases) == expected


@pytest.mark.parametrize(
    "query",
    {
        "no key": f"SELECT sum(o.amount) FROM register.people p JOIN {ORDERS} GROUP BY p.age",
        "a key of the groups that they do not determine": """SELECT p.age, sum(o.amount)
            FROM register.people p JOIN shop.orders o ON o.customer = p.id
            JOIN clinic.visits v ON v.kind = o.note GROUP BY p.id, p.age""",
        "sums of two tables": f"""SELECT sum(o.amount), sum(v.cost) FROM register.people p
            JOIN {ORDERS} JOIN {VISITS} GROUP BY p.id""",
        "an aggregate over both": f"""SELECT sum(o.amount * p.age) FROM register.people p
            JOIN {ORDERS} GROUP BY p.id""",
        "a condition after a LEFT JOIN": f"""SELECT p.age, sum(o.amount) FROM register.people p
            LEFT JOIN {ORDERS} WHERE o.paid IS NULL GROUP BY p.id, p.age""",
        "an expression over a LEFT JOIN": f"""SELECT coalesce(o.note, '') AS n, count(o.id)
            FROM register.people p LEFT JOIN {ORDERS} GROUP BY p.id, coalesce(o.note, '')""",
        "a LEFT JOIN with a condition on its left table": f"""SELECT p.city, count(o.id)
            FROM register.people p LEFT JOIN {ORDERS} AND p.age > 40 GROUP BY p.id, p.city""",
        "a LEFT JOIN by a column that is not grouped": """SELECT p.id, v.cost, count(v.kind)
            FROM register.people p LEFT JOIN clinic.visits v ON v.person = p.id
            AND v.cost = p.income GROUP BY p.id, v.cost""",
        "a LEFT JOIN of a LEFT JOIN": f"""SELECT q.age, sum(o.amount) FROM register.people q
            LEFT JOIN register.people p ON p.id = q.boss LEFT JOIN {ORDERS}
            GROUP BY q.id, q.age, p.id""",
        "lists over two tables": f"""SELECT list_sum(max(o.amount, 2)), max(v.cost)
            FROM register.people p JOIN {ORDERS} JOIN {VISITS} GROUP BY p.id""",
        "a subquery": f"""SELECT upper(o.note), sum(o.amount), (SELECT max(upper(note))
            FROM shop.orders) AS m FROM register.people p JOIN {ORDERS}
            GROUP BY p.id, upper(o.note)""",
        "WHERE over an aggregate": f"""SELECT sum(o.amount) AS s FROM register.people p
            JOIN {ORDERS} WHERE s > 1 GROUP BY p.id""",
        "a comparison": """SELECT p.id, sum(o.amount) FROM register.people p JOIN shop.orders o
            ON o.customer <= p.id GROUP BY p.id""",
        "tables of one database beside another": f"""SELECT p.age, sum(c.size), max(o.amount)
            FROM register.people p JOIN register.cities c ON c.city = p.city JOIN {ORDERS}
            GROUP BY p.id, p.age, p.city""",
    }.values(),
)
def test_other_groups_are_refused(query: str, catalog: DatabaseCatalog) -> None:
    with pytest.raises(PlanError, match="cannot be done over"):
        plan(catalog, query)


@pytest.mark.parametrize(
    ("query", "message"),
    {
        "no grouped column": (
            f"SELECT p.city, sum(o.id) FROM register.people p JOIN {ORDERS} GROUP BY p.id",
            "p.city is neither grouped by nor in an aggregate",
        ),
        "no such column": (
            f"SELECT sum(o.amounts) FROM register.people p JOIN {ORDERS} GROUP BY p.id",
            "o has no column amounts",
        ),
        "an aggregate of NULLs": (
            f"""SELECT p.age, sum(CASE WHEN o.paid THEN 1 ELSE 0 END) AS n FROM register.people p
            LEFT JOIN {ORDERS} GROUP BY p.id, p.age""",
            "may count the row of NULLs that a LEFT JOIN adds",
        ),
        "rows of a LEFT JOIN": (
            f"""SELECT p.age, count(*) AS n FROM register.people p LEFT JOIN {ORDERS}
            GROUP BY p.id, p.age""",
            r"COUNT\(\*\) may count the row of NULLs that a LEFT JOIN adds",
        ),
        "a list of NULLs": (
            f"""SELECT p.age, len(list(o.amount)) AS n FROM register.people p LEFT JOIN {ORDERS}
            GROUP BY p.id, p.age""",
            "may count the row of NULLs that a LEFT JOIN adds",
        ),
        "a FILTER of NULLs": (
            f"""SELECT p.age, count(*) FILTER (o.paid IS NULL) AS n FROM register.people p
            LEFT JOIN {ORDERS} GROUP BY p.id, p.age""",
            "may count the row of NULLs that a LEFT JOIN adds",
        ),
        "texts that equal one number": (
            """SELECT c.size, sum(o.amount) FROM register.cities c JOIN shop.orders o
            ON o.code = c.code GROUP BY c.code, c.size""",
            "o.code is VARCHAR and compared as INTEGER",
        ),
        "integers that equal one number": (
            """SELECT s.age, sum(p.income) FROM north.staff s JOIN register.people p
            ON p.id = s.age GROUP BY s.age""",
            "p.id is BIGINT and compared as DOUBLE",
        ),
        "texts between": (
            """SELECT c.size, sum(v.cost) FROM register.cities c
            JOIN (SELECT code FROM shop.orders) AS o ON o.code = c.code
            JOIN clinic.visits v ON v.kind = o.code GROUP BY c.code, c.size""",
            "o.code is VARCHAR and compared as INTEGER",
        ),
    }.values(),
)
def test_what_is_wrong_is_said(query: str, message: str, catalog: DatabaseCatalog) -> None:
    with pytest.raises(PlanError, match=message):
        plan(catalog, query)


def test_texts_that_a_collation_makes_equal_are_refused() -> None:
    texts, rows = duckdb.connect(), duckdb.connect()
    texts.execute("CREATE TABLE t (k VARCHAR COLLATE NOCASE, y INTEGER)")
    rows.execute("CREATE TABLE t (k VARCHAR, x INTEGER)")
    catalog = DatabaseCatalog({"a": (texts,), "b": (rows,)})
    query = "SELECT t.y, sum(u.x) AS s FROM a.t JOIN b.t AS u ON u.k = t.k GROUP BY t.k, t.y"
    with pytest.raises(PlanError, match="a collation makes unlike texts"):
        plan(catalog, query)
    for table in ("a.t", "b.t AS u"):
        alias = table[-1]
        encoded = f"(SELECT encode(lower(k)) AS k, * EXCLUDE (k) FROM {table}) AS {alias}"
        query = query.replace(table, encoded)
    plan(catalog, query)


def drawn(random: Random, unique: bool) -> dict[str, str]:
    """Tables of three parties: people, whose keys are `unique` or not, visits and doctors."""

    def value(top: int) -> str:
        return "NULL" if random.random() < 0.15 else str(random.randrange(top))

    def table(names: str, rows: list[str]) -> str:
        types = ", ".join(f"{name}::INTEGER AS {name}" for name in names.split(", "))
        return f"SELECT {types} FROM (VALUES {', '.join(rows)}) AS v({names})"

    ids = random.sample(range(8), 5) if unique else [random.randrange(6) for _ in range(5)]
    people = [f"({id_}, {value(2)}, {value(3)}, {random.randrange(9)})" for id_ in ids]
    if not unique and random.random() < 0.5:
        people.append(random.choice(people))
    visits = [f"({value(8)}, {value(9)}, {value(2)})" for _ in range(12)]
    doctors = [f"({n}, {value(2)})" for n in random.sample(range(3), 3)]
    return {
        "a": table("id, sex, doc, y", people),
        "b": table("pid, cost, kind", visits),
        "c": table("did, pay", doctors),
    }


def random_query(random: Random) -> str:
    side = random.choice(("", "LEFT "))
    groups = ["p.id", "p.y", *random.sample(("p.sex", "p.doc", "v.kind"), random.randrange(3))]
    values = ["count(v.cost) AS n", "sum(v.cost) AS s", "avg(v.cost) AS m", "max(cost) AS x"]
    values += ["count(DISTINCT v.kind) AS k", "count(*) FILTER (v.cost > 4) AS f"]
    values += [] if side else ["count(*) AS c"]
    shown = ["p.y", *random.sample(groups[2:], random.randrange(len(groups) - 1))]
    shown += random.sample(values[:5] if side else values, random.randrange(1, 4))
    tables = f"a.t p {side}JOIN b.t v ON v.pid = p.id"
    tables += random.choice(("", " AND v.kind = 1"))
    if random.random() < 0.3:
        tables += " JOIN c.t d ON d.did = p.doc"
        shown.append("d.pay")
        groups.append("d.pay")
    query = f"SELECT {', '.join(shown)} FROM {tables}"
    query += random.choice(("", " WHERE p.y > 2", "" if side else " WHERE v.cost < 7"))
    query += f" GROUP BY {', '.join(groups)}"
    return query + random.choice(("", "", " HAVING count(v.pid) < 3", " HAVING max(v.cost) > 3"))


@pytest.mark.parametrize("seed", range(400 if THOROUGH else 25))
def test_rows_of_random_queries(seed: int) -> None:
    random = Random(SEED * 1000 + seed)
    catalog = DatabaseCatalog({name: (duckdb.connect(),) for name in ("a", "b", "c")})
    whole = duckdb.connect()
    for client, select in zip(catalog.databases, drawn(random, unique=True).values(), strict=True):
        catalog.databases[client].execute(f"CREATE TABLE t AS {select}")
        whole.execute(f"CREATE SCHEMA {client.party}; CREATE TABLE {client.party}.t AS {select}")
    for _ in range(3):
        query = random_query(random)
        expected = ordered(whole.execute(query).fetchall())
        assert planned_rows(plan(catalog, query), catalog.databases) == expected, query


@pytest.mark.parametrize("seed", range(200 if THOROUGH else 10))
def test_rows_that_are_counted_together_are_an_error(seed: int) -> None:
    """A federation with people who stand twice trains over the rows of the query, or not at all."""
    random = Random(SEED * 1000 + seed)
    tables = drawn(random, unique=False)
    databases = {name: duckdb.connect() for name in tables}
    catalog = DatabaseCatalog({name: (con,) for name, con in databases.items()})
    whole = duckdb.connect()
    for name, select in tables.items():
        databases[name].execute(f"CREATE TABLE t AS {select}")
        whole.execute(f"CREATE SCHEMA {name}; CREATE TABLE {name}.t AS {select}")
    with sqlfl.connect() as fed:
        for name, con in databases.items():
            fed.attach(name, con)
        for number in range(3):
            query = random_query(random)
            expected = ordered(whole.execute(query).fetchall())
            right = planned_rows(plan(catalog, query), catalog.databases) == expected
            if not expected:
                continue
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    fed.sql(
                        f"TRAIN MODEL m{number} USING linear_regression TARGET y "
                        f"WITH (epochs = 1) FROM ({query})"
                    )
            except ModelError as error:
                if "GROUP BY counts rows of " not in str(error):
                    raise
            else:
                assert right, query


@pytest.mark.parametrize(
    ("ids", "side", "fails"),
    [
        ("1, 2, 3, 9", "LEFT", False),
        ("1, 2, 2, 3", "", True),
        ("1, 2, 3, 9, 9", "", False),
        ("1, 2, 3, 9, 9", "LEFT", True),
        ("1, 2, 3, NULL", "LEFT", False),
        ("1, 2, 3, NULL, NULL", "LEFT", True),
        ("1, 2, 3, NULL, NULL", "", False),
    ],
)
def test_a_row_that_stands_twice(ids: str, side: str, fails: bool) -> None:
    """People stand twice with a partner, and without one in a LEFT JOIN."""
    people, visits = duckdb.connect(), duckdb.connect()
    people.execute(f"CREATE TABLE t AS SELECT unnest([{ids}]) AS id")
    visits.execute("CREATE TABLE t AS SELECT n % 4 AS k, n AS x FROM range(10) r(n)")
    query = f"SELECT count(v.x) AS y, max(x) AS x FROM a.t p {side} JOIN b.t v ON v.k = p.id"
    statement = f"TRAIN MODEL m USING linear_regression TARGET y FROM ({query} GROUP BY p.id)"
    with sqlfl.connect() as fed:
        fed.attach("a", people)
        fed.attach("b", visits)
        if fails:
            with pytest.raises(ModelError, match="several joined rows have the keys of one group"):
                fed.sql(statement)
            assert fed.sql("SHOW MODELS").fetchall() == []
        else:
            assert fed.sql(statement)


VISITED = "SELECT p.id, p.id * 2 AS y, sum(v.x) AS s FROM a.t p {} JOIN b.t v ON v.k = p.id"


@pytest.mark.parametrize(
    ("query", "fails"),
    [
        (f"SELECT q.id AS y, g.s FROM c.t q LEFT JOIN ({VISITED.format('')} {{}}) g ON g.id = q.id",
         False),
        (f"SELECT q.id AS y, g.s FROM ({VISITED.format('')} {{}}) g JOIN c.t q ON q.id // 2 = g.id",
         True),
        (f"{VISITED.format('LEFT')} {{}} UNION ALL SELECT q.id, q.id, w.n FROM c.t q "
         "LEFT JOIN d.t w ON w.n = q.id", False),
        (f"{VISITED.format('LEFT')} {{}} UNION ALL SELECT 1, q.id // 2, w.n FROM c.t q "
         "LEFT JOIN d.t w ON w.n = q.id // 2", True),
    ],
    ids=["LEFT JOIN", "several rows for a group", "union", "union with equal keys"],
)  # fmt: skip
def test_groups_within_a_larger_query(query: str, fails: bool) -> None:
    scripts = {
        "a": "SELECT n AS id FROM range(6) r(n)",
        "b": "SELECT n % 4 AS k, n AS x FROM range(10) r(n)",
        "c": "SELECT n AS id FROM range(2, 12) r(n)",
        "d": "SELECT n FROM range(5, 9) r(n)",
    }
    with sqlfl.connect() as fed:
        for name, script in scripts.items():
            fed.attach(name, con := duckdb.connect())
            con.execute(f"CREATE TABLE t AS {script}")
        statement = f"CHECK FROM ({query.format('GROUP BY p.id')})"
        if fails:
            with pytest.raises(ModelError, match="GROUP BY counts rows of v"):
                fed.sql(statement)
        else:
            assert fed.sql(statement)


def test_identifiers_of_groups(catalog: DatabaseCatalog) -> None:
    """The hint for a column that is not there names those of the query."""
    parsed = parse(
        f"""PREDICT MODEL m ID (o.amount) FROM (SELECT p.age, sum(o.amount) AS s
        FROM register.people p JOIN {ORDERS} GROUP BY p.id, p.age)"""
    )
    assert isinstance(parsed, PredictModel)
    with pytest.raises(PlanError, match="FROM has no such column") as caught:
        to_ucq(parsed.query, parsed.sql, catalog, Roles(None, parsed.identifiers))
    assert "o.customer" in str(caught.value)
    assert "sqlfl_" not in str(caught.value)
