"""EXISTS and IN over joins of several parties' tables: plans give the rows of one database."""

from __future__ import annotations

from contextlib import closing
from itertools import product
from random import Random

import duckdb
import pytest

from sqlfl.base.errors import PlanError
from sqlfl.contract.schema import Client
from tests.depth import THOROUGH
from tests.planner.central import ordered, planned_rows
from tests.planner.conftest import DatabaseCatalog, database
from tests.planner.query.rows import random_plans, same_rows
from tests.planner.query.test_meaning import plan
from tests.planner.test_goldens import plan_text
from tests.planner.trees import Query

BOTH = "shop.orders o JOIN clinic.visits v ON v.person = o.customer"
OTHER = "shop.orders o JOIN register.weather w ON w.day = o.day"
QUERIES = {
    "exists": f"""
        SELECT p.age FROM register.people p WHERE EXISTS (SELECT 1 FROM {BOTH}
          WHERE o.customer = p.id AND v.cost > 1 AND o.amount > 1)""",
    "by commas, names without tables": """
        SELECT age FROM register.people p WHERE EXISTS (SELECT * FROM shop.orders, north.visits
          WHERE customer = p.id AND person = customer AND amount > 1)""",
    "each with the key of outside": """
        SELECT p.age FROM register.people p WHERE EXISTS (SELECT o.id FROM shop.orders o,
          north.visits v WHERE o.customer = p.id AND p.id = v.person AND v.cost > 1)""",
    "not exists": f"""
        SELECT p.age FROM register.people p WHERE NOT EXISTS (SELECT 1 FROM {BOTH}
          WHERE o.customer = p.id AND o.amount > 5)""",
    "in": f"SELECT p.age FROM register.people p WHERE p.id IN (SELECT o.customer FROM {BOTH})",
    "in, of rows": f"""
        SELECT p.age FROM register.people p WHERE (p.id, p.age) IN (
          SELECT v.person, 10 * o.id + 20 FROM {BOTH})""",
    "any": f"""
        SELECT p.age FROM register.people p WHERE p.id = ANY (SELECT v.person FROM {BOTH}
          WHERE v.sick)""",
    "of three parties, two tables of one of them": f"""
        SELECT p.age FROM register.people p WHERE p.id IN (
          SELECT o.customer FROM {BOTH} JOIN shop.items i ON i.order_id = o.id
          JOIN north.staff s ON s.number = v.person WHERE i.quantity > 1)""",
    "with the table outside": """
        SELECT o.amount FROM shop.orders o WHERE o.customer IN (SELECT p.id FROM register.people p
          JOIN shop.items i ON i.order_id = p.id)""",
    "of two databases of one party": """
        SELECT p.age FROM register.people p WHERE EXISTS (SELECT 1 FROM clinic.visits a
          JOIN clinic.visits b ON a.person = b.person WHERE b.person = p.id AND a.cost > 3)""",
    "a column": f"""
        SELECT p.age, EXISTS (SELECT 1 FROM {BOTH} WHERE o.customer = p.id) AS f
        FROM register.people p""",
    "beside or": f"""
        SELECT p.age FROM register.people p WHERE p.age > 60 OR EXISTS (SELECT 1 FROM {BOTH}
          WHERE o.customer = p.id AND v.kind = 'a')""",
    "using": """
        SELECT p.age FROM register.people p WHERE EXISTS (SELECT 1 FROM clinic.visits a
          JOIN north.visits b USING (person) WHERE person = p.id AND b.cost > 11)""",
    "derived tables and with": """
        WITH few AS (SELECT customer AS id FROM shop.orders GROUP BY ALL HAVING count(*) < 2)
        SELECT p.age FROM register.people p WHERE EXISTS (SELECT 1 FROM few
          JOIN (SELECT person AS id FROM south.visits WHERE sick) s ON s.id = few.id
          WHERE few.id = p.id)""",
    "a test of outside": f"""
        SELECT p.age FROM register.people p WHERE NOT EXISTS (SELECT 1 FROM {BOTH}
          WHERE o.customer = p.id AND p.age > 35) AND p.age < 60""",
    "another key": f"""
        SELECT p.age FROM register.people p WHERE EXISTS (SELECT 1 FROM {OTHER}
          WHERE o.customer = p.id AND w.temp > 0)""",
    "not exists, another key": f"""
        SELECT p.age FROM register.people p WHERE NOT EXISTS (SELECT 1 FROM {OTHER}
          WHERE o.customer = p.id)""",
    "in, another key": f"""
        SELECT v.cost FROM clinic.visits v WHERE v.person IN (SELECT o.customer FROM {OTHER}
          WHERE w.city IS NOT NULL)""",
    "in, as any, of rows, another key": f"""
        SELECT p.age FROM register.people p
        WHERE (p.id, p.age) = ANY (SELECT o.customer, 10 * o.id + 20 FROM {OTHER})""",
    "a column, another key": f"""
        SELECT p.age, EXISTS (SELECT 1 FROM {OTHER} WHERE o.customer = p.id) AS f
        FROM register.people p""",
    "beside or, another key": f"""
        SELECT v.cost FROM clinic.visits v WHERE v.sick OR NOT EXISTS (SELECT 1 FROM {OTHER}
          WHERE o.customer = v.person)""",
    "a chain of other keys": """
        SELECT p.age FROM register.people p WHERE EXISTS (SELECT 1 FROM clinic.visits v
          JOIN shop.orders o ON o.customer = v.person JOIN register.weather w ON w.day = o.day
          JOIN shop.items i ON i.order_id = o.id AND i.price < o.amount
          WHERE v.person = p.boss AND w.temp > 0)""",
    "a table between": """
        SELECT v.cost FROM clinic.visits v WHERE EXISTS (SELECT 1 FROM register.people p
          JOIN shop.orders o ON o.customer = p.id JOIN north.staff s ON s.town = p.city
          WHERE p.boss = v.person)""",
    "the key of outside in each, not exists": """
        SELECT p.age FROM register.people p WHERE NOT EXISTS (SELECT 1 FROM shop.orders o
          JOIN clinic.visits v ON v.kind IS NOT DISTINCT FROM nullif(o.note, 'y')
          WHERE o.customer = p.id AND v.person = p.id)
        AND NOT EXISTS (SELECT 1 FROM shop.orders o JOIN north.visits n ON n.person = o.id + 9
          WHERE o.customer = p.id AND n.person = p.id)""",
    "exists in exists": """
        SELECT p.age FROM register.people p WHERE EXISTS (SELECT 1 FROM shop.orders o
          WHERE o.customer = p.id AND EXISTS (SELECT 1 FROM register.weather w
            WHERE w.day = o.day AND w.temp > 0 AND o.customer = p.id))""",
    "in in in": """
        SELECT p.age FROM register.people p WHERE p.id IN (SELECT v.person FROM clinic.visits v
          WHERE v.person IN (SELECT o.customer FROM shop.orders o WHERE o.day IN (
            SELECT day FROM register.weather)) AND v.kind = 'a')""",
    "semi and anti joins": f"""
        SELECT v.cost FROM clinic.visits v SEMI JOIN ({OTHER}) ON o.customer = v.person
        ANTI JOIN (SELECT s.number, c.size FROM north.staff s JOIN register.cities c
          ON c.city = s.town) n ON n.number = v.person AND n.size > 200""",
    "several, in blocks of a union": f"""
        SELECT p.age FROM register.people p WHERE p.age < 50 AND EXISTS (SELECT 1 FROM {OTHER}
          WHERE o.customer = p.id) AND EXISTS (SELECT 1 FROM north.staff s
          JOIN shop.items i ON i.quantity = s.number - 10 WHERE s.number = p.id)
        UNION ALL
        SELECT p.age FROM register.people p WHERE EXISTS (SELECT 1 FROM south.visits v
          JOIN north.staff s ON s.number = v.extra + 9 WHERE v.person = p.id)
          AND EXISTS (SELECT 1 FROM {OTHER} WHERE o.customer = p.id)""",
    "two keys": """
        SELECT p.age FROM register.people p WHERE EXISTS (SELECT 1 FROM shop.orders o
          JOIN north.staff s ON s.number = o.customer AND s.town = o.note
          WHERE o.customer = p.id AND o.note = p.city)""",
    "two keys of outside": f"""
        SELECT p.age FROM register.people p WHERE EXISTS (SELECT 1 FROM {OTHER}
          WHERE o.customer = p.id AND w.city = p.city)""",
    "two keys of outside, not exists": f"""
        SELECT p.age FROM register.people p WHERE NOT EXISTS (SELECT 1 FROM {OTHER}
          WHERE o.customer = p.id AND w.city = p.city)""",
    "two keys of outside, a column": f"""
        SELECT p.age, EXISTS (SELECT 1 FROM {OTHER} WHERE o.customer = p.id AND w.city = p.city)
          AS f FROM register.people p""",
    "two keys of outside, beside or": f"""
        SELECT p.age FROM register.people p WHERE p.age > 60 OR NOT EXISTS (SELECT 1 FROM {OTHER}
          WHERE o.customer = p.id AND w.city = p.city)""",
    "two keys of outside, of two tables": """
        SELECT p.age, s.age AS years FROM register.people p JOIN north.staff s ON s.number = p.id
        WHERE EXISTS (SELECT 1 FROM shop.orders o JOIN clinic.visits v ON v.kind = o.note
          WHERE o.customer = p.id AND v.person = s.number)""",
    "two keys of outside, of a row that may be missing": f"""
        SELECT c.size, p.age FROM register.cities c LEFT JOIN register.people p ON p.city = c.city
        WHERE NOT EXISTS (SELECT 1 FROM {OTHER} WHERE o.customer = p.id AND w.city = c.city)""",
    "two keys of outside, on the right of a LEFT JOIN": f"""
        SELECT c.size, d.age FROM register.cities c LEFT JOIN (
          SELECT p.city, p.age FROM register.people p WHERE NOT EXISTS (SELECT 1 FROM {OTHER}
            WHERE o.customer = p.id AND w.city = p.city)) d ON d.city = c.city""",
    "a cycle": f"""
        SELECT p.age FROM register.people p WHERE EXISTS (SELECT 1 FROM {OTHER}
          JOIN north.staff s ON s.age = o.amount AND s.town = w.city WHERE o.customer = p.id)""",
    "a cycle through outside": """
        SELECT p.age FROM register.people p WHERE NOT EXISTS (SELECT 1 FROM clinic.visits v
          JOIN shop.orders o ON o.customer = v.person JOIN register.weather w ON w.day = o.day
          WHERE v.person = p.boss AND w.city = p.city)""",
    "semi and anti joins by two keys": f"""
        SELECT p.age FROM register.people p SEMI JOIN ({BOTH}) ON o.id + 9 = p.id AND v.cost = 2
        ANTI JOIN ({OTHER}) ON o.customer = p.id AND w.city = p.city""",
    "not in": f"""
        SELECT p.age FROM register.people p WHERE p.id NOT IN (SELECT v.person FROM {BOTH})""",
    "not in, with NULLs": """
        SELECT o.amount FROM shop.orders o WHERE o.customer NOT IN (SELECT p.boss
          FROM register.people p JOIN north.staff s ON s.town = p.city WHERE p.age < 40)""",
    "not in, without NULLs": """
        SELECT p.age FROM register.people p WHERE p.id IS NOT NULL AND p.id NOT IN (
          SELECT o.customer FROM shop.orders o JOIN register.weather w ON w.day = o.day
          WHERE o.customer IS NOT NULL AND w.temp > 0)""",
    "not in, of rows of outside": f"""
        SELECT p.age FROM register.people p WHERE p.city NOT IN (SELECT w.city FROM {OTHER}
          WHERE o.customer = p.id)""",
    "not in, of a derived table": f"""
        SELECT p.age FROM register.people p
        WHERE p.id <> ALL (SELECT u.customer FROM (SELECT o.customer, w.temp FROM {OTHER}) u)""",
    "in that may be NULL": f"""
        SELECT p.age FROM register.people p
        WHERE (p.id IN (SELECT v.person FROM {BOTH})) IS NULL OR p.age > 60""",
    "in as a column": f"""
        SELECT p.age, p.boss IN (SELECT o.customer FROM {OTHER}) AS f FROM register.people p""",
    "parts of a union that share a table with others": """
        SELECT p.age FROM register.people p WHERE p.id IN (SELECT v.person FROM north.visits v)
          AND p.id IN (SELECT o.customer FROM shop.orders o)
        UNION ALL
        SELECT p.age FROM register.people p WHERE EXISTS (SELECT 1 FROM north.visits v
          JOIN shop.orders o ON o.customer = v.person WHERE o.customer = p.boss)""",
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_rows_are_those_of_the_query(
    query: str, catalog: DatabaseCatalog, central: duckdb.DuckDBPyConnection
) -> None:
    same_rows(catalog, central, query)


def test_as_much_leaves_as_for_an_exists_of_each_party(catalog: DatabaseCatalog) -> None:
    joined = QUERIES["exists"]
    parts = """SELECT p.age FROM register.people p
      WHERE EXISTS (SELECT 1 FROM shop.orders o WHERE o.amount > 1 AND o.customer = p.id)
      AND EXISTS (SELECT 1 FROM clinic.visits v WHERE v.cost > 1 AND v.person = p.id)"""
    assert plan_text(plan(catalog, joined)) == plan_text(plan(catalog, parts))


REFUSED = {
    "not exists in it": (
        f"EXISTS (SELECT 1 FROM {OTHER} WHERE o.customer = p.id AND NOT EXISTS (SELECT 1 FROM "
        "north.visits v WHERE v.person = o.id))",
        "by equalities",
    ),
    "another comparison": (
        f"EXISTS (SELECT 1 FROM {BOTH} AND v.cost > o.amount WHERE o.customer = p.id)",
        "each other condition is on one party's tables",
    ),
    "a LEFT JOIN": (
        f"NOT EXISTS (SELECT 1 FROM {BOTH.replace('JOIN', 'LEFT JOIN')} WHERE o.customer = p.id)",
        "take an inner join",
    ),
    "not in, of rows": (f"(p.id, 1) NOT IN (SELECT v.person, o.id FROM {BOTH})", "NOT EXISTS ("),
    "not in, of a union": (
        f"p.id NOT IN (SELECT v.person FROM {BOTH} UNION SELECT s.number FROM north.staff s)",
        "by equalities",
    ),
    "a value": (f"p.age > (SELECT max(v.cost) FROM {BOTH})", "of one party in each subquery"),
    "no value of outside": (f"EXISTS (SELECT 1 FROM {BOTH} WHERE p.age > 3)", "take an inner join"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_with_what_gives_the_same_rows(
    name: str, catalog: DatabaseCatalog
) -> None:
    where, hint = REFUSED[name]
    with pytest.raises(PlanError) as caught:
        plan(catalog, f"SELECT p.age FROM register.people p WHERE {where}")
    assert hint in (caught.value.hint or "")
    assert caught.value.line


class _Governed(DatabaseCatalog):
    def governed(self, client: Client) -> bool:
        return client.party == "shop"


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (
            f"EXISTS (SELECT 1 FROM {OTHER} WHERE o.customer = p.id AND w.city = p.city)",
            "hears which of its rows are joined",
        ),
        (f"p.id NOT IN (SELECT o.customer FROM {OTHER})", "asks for no NULLs"),
    ],
)
def test_tables_with_policies_are_refused_with_what_gives_the_same_rows(
    where: str, said: str, catalog: DatabaseCatalog
) -> None:
    own = _Governed({})
    own.databases = catalog.databases
    with pytest.raises(PlanError) as caught:
        plan(own, f"SELECT p.age FROM register.people p WHERE {where}")
    assert said in caught.value.message
    assert caught.value.line
    assert caught.value.hint


def test_values_that_are_equal_across_types_are_not_equal_to_each_other() -> None:
    """Text '01' and '1' both equal the number 1, but not each other."""
    parties = {
        "a": "CREATE TABLE t AS SELECT '1' AS k, 5 AS x",
        "b": "CREATE TABLE u AS SELECT 1 AS k",
        "c": "CREATE TABLE v AS SELECT '01' AS k",
        "d": "CREATE TABLE w AS SELECT '1' AS k",
    }
    catalog = DatabaseCatalog({name: (database(text),) for name, text in parties.items()})
    rows = {}
    for tables in ("b.u, c.v", "b.u, d.w", "c.v, d.w"):
        first, second = (f"{table[2:]}.k" for table in tables.split(", "))
        for word, key in product(("", "NOT "), (first, second)):
            query = (
                f"SELECT t.x FROM a.t WHERE {word}EXISTS (SELECT 1 FROM {tables} "
                f"WHERE {first} = {second} AND {key} = t.k)"
            )
            rows[query] = _same_as_one_database(catalog, query)
    assert {len(found) for found in rows.values()} == {0, 1}


def test_texts_of_a_collation_are_equal_as_in_one_database() -> None:
    parties = {
        "a": "CREATE TABLE t (k VARCHAR, x INTEGER); INSERT INTO t VALUES ('A', 1)",
        "b": "CREATE TABLE u (k VARCHAR COLLATE NOCASE); INSERT INTO u VALUES ('a')",
        "c": "CREATE TABLE v (k VARCHAR); INSERT INTO v VALUES ('a')",
    }
    catalog = DatabaseCatalog({name: (database(text),) for name, text in parties.items()})
    for key in ("u.k", "v.k"):
        query = (
            "SELECT t.x FROM a.t WHERE EXISTS (SELECT 1 FROM b.u, c.v WHERE u.k = v.k "
            f"AND {key} = t.k)"
        )
        assert len(_same_as_one_database(catalog, query)) == (key == "u.k")


def _central(catalog: DatabaseCatalog) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    for client, own in catalog.databases.items():
        con.execute(f"ATTACH ':memory:' AS {client.party}; USE {client.party}")
        for text, name in own.execute("SELECT sql, table_name FROM duckdb_tables()").fetchall():
            con.execute(text)
            con.executemany(
                f"INSERT INTO {name} VALUES ({', '.join('?' * len(own.table(name).columns))})",
                own.table(name).fetchall(),
            )
    return con


def _same_as_one_database(catalog: DatabaseCatalog, query: str) -> list[object]:
    with closing(_central(catalog)) as central:
        expected = ordered(central.execute(query).fetchall())
    assert planned_rows(plan(catalog, query), catalog.databases) == expected, query
    return expected


# -- random queries --------------------------------------------------------------------------------

STATEMENTS = 1500 if THOROUGH else 30


def test_rows_of_random_queries() -> None:
    plans, refusals = random_plans(over_joins, STATEMENTS)
    assert all(refusal.line and refusal.hint for refusal in refusals)
    assert len(plans) > STATEMENTS / 3


def over_joins(random: Random) -> str:
    """A query over one table, or two, with one subquery over a join of several tables."""
    query = Query.of(random)
    text, places = query.source()
    if random.random() < 0.3:
        item, more = query.source()
        text += f" {query.join(places, item, more)}"
        places = [*places, *more]
    value = random.choice(places)[0]
    test = _subquery(random, random.choice(places)[0], query)
    if random.random() < 0.15:
        return f"SELECT {value}.x AS x, {test.replace('NOT ', '')} AS f FROM {text}"
    tests = [test, *([query.test(random.choice(places))] if random.random() < 0.3 else [])]
    joint = random.choice((" AND ", " AND ", " OR "))
    return f"SELECT {value}.x AS x, {value}.s AS s FROM {text} WHERE {joint.join(tests)}"


def _subquery(random: Random, outside: str, query: Query) -> str:
    """EXISTS, NOT EXISTS or IN over a join of two or three tables, mostly by one key."""
    aliases = [f"u{n}" for n in range(random.choice((2, 2, 3)))]
    tables = [
        f"{random.choice(('red', 'blue', 'duo', 'grey'))}.{random.choice('tu')}" for _ in aliases
    ]
    key = f"{outside}.{random.choice('km')}"
    where, text = [], ""
    for place, (alias, table) in enumerate(zip(aliases, tables, strict=True)):
        own = f"{alias}.{random.choice('km')}"
        before = f"{aliases[random.randrange(place)]}.{random.choice('km')}" if place else ""
        keys = [f"{own} = {key}", *([f"{before} = {own}"] if place else [])]
        item = f"{table} AS {alias}"
        if not place:
            text = item
            where.append(keys[0])
        elif random.random() < 0.5:
            text += f", {item}"
            where += random.choice((keys, keys[:1], keys[1:]))
        else:
            text += f" JOIN {item} ON {keys[1]}"
            where += random.choice((keys[:1], []))
        if random.random() < 0.3:
            where.append(query.test((alias, "")))
    if random.random() < 0.1:
        where.append(f"{aliases[0]}.x < {aliases[1]}.x")
    if random.random() < 0.2:
        where.append(f"{aliases[0]}.{random.choice('km')} = {aliases[-1]}.{random.choice('km')}")
    if random.random() < 0.2:
        party = random.choice(("red", "blue", "duo", "grey"))
        own = f"{random.choice(aliases)}.{random.choice('km')}"
        inner = f"SELECT n.{random.choice('km')} FROM {party}.{random.choice('tu')} AS n"
        where.append(f"{own} IN ({inner} WHERE n.x > 2 OR n.s = 'a')")
    if random.random() < 0.2:
        where.append(
            f"{random.choice(aliases)}.{random.choice('km')} = {outside}.{random.choice('km')}"
        )
    if random.random() < 0.3:
        where.pop(0)
        some = f"{random.choice(aliases)}.{random.choice('km')}"
        rest = f" WHERE {' AND '.join(where)}" if where else ""
        word = random.choice(("IN", "NOT IN"))
        return f"{key} {word} (SELECT {some} FROM {text}{rest})"
    word = random.choice(("EXISTS", "NOT EXISTS"))
    random.shuffle(where)
    shown = random.choice(("1", "*", "u0.x"))
    return f"{word} (SELECT {shown} FROM {text} WHERE {' AND '.join(where)})"
