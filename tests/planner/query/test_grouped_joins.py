"""GROUP BY over tables of several parties: plans give the rows of one database, or are refused."""

from __future__ import annotations

import warnings
from random import Random

import duckdb
import pytest

import sqlfl
from sqlfl.base.errors import ModelError, PlanError
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
        "rows of a LEFT JOIN": f"""SELECT p.age, count(*) FROM register.people p LEFT JOIN {ORDERS}
            GROUP BY p.id, p.age""",
        "a condition after a LEFT JOIN": f"""SELECT p.age, sum(o.amount) FROM register.people p
            LEFT JOIN {ORDERS} WHERE o.paid IS NULL GROUP BY p.id, p.age""",
        "no grouped column": f"SELECT p.city, sum(o.id) FROM register.people p JOIN {ORDERS} "
        "GROUP BY p.id",
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
    """Where people stand twice, a federation trains over the rows of the query, or not at all."""
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
    """With a partner, and without one in a LEFT JOIN."""
    people, visits = duckdb.connect(), duckdb.connect()
    people.execute(f"CREATE TABLE t AS SELECT unnest([{ids}]) AS id")
    visits.execute("CREATE TABLE t AS SELECT n % 4 AS k, n AS x FROM range(10) r(n)")
    query = f"SELECT count(v.x) AS y, max(x) AS x FROM a.t p {side} JOIN b.t v ON v.k = p.id"
    statement = f"TRAIN MODEL m USING linear_regression TARGET y FROM ({query} GROUP BY p.id)"
    with sqlfl.connect() as fed:
        fed.attach("a", people)
        fed.attach("b", visits)
        if fails:
            with pytest.raises(ModelError, match="several rows of p are in one group"):
                fed.sql(statement)
            assert fed.sql("SHOW MODELS").fetchall() == []
        else:
            assert fed.sql(statement)
