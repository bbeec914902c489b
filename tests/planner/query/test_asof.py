"""ASOF JOIN of two parties' tables: plans give the rows of one database."""

from __future__ import annotations

from random import Random

import duckdb
import pytest

from sqlfl.base.errors import PlanError
from tests.contradictions import contradicts_itself, note_contradiction
from tests.depth import SEED, THOROUGH
from tests.planner.central import ordered, planned_rows
from tests.planner.conftest import DatabaseCatalog, database
from tests.planner.query.rows import same_rows
from tests.planner.query.test_meaning import plan

WEATHER = "(SELECT city, day, min(temp) AS temp FROM register.weather GROUP BY city, day) w"
DAYS = """(SELECT city, DATE '2023-12-28' + 2 * unnest(range(9))::INTEGER AS day
  FROM (VALUES ('Bonn'), ('Ulm'), (NULL)) v(city), shop.orders) c"""
PERIOD = "WHERE c.day BETWEEN DATE '2023-12-29' AND DATE '2024-01-12'"
QUERIES = {
    "the last day up to one": f"""SELECT c.day::VARCHAR AS d, w.temp FROM {DAYS}
        ASOF LEFT JOIN {WEATHER} ON w.city = c.city AND w.day <= c.day {PERIOD}""",
    "the last day before one": f"""SELECT c.day::VARCHAR AS d, w.temp FROM {DAYS}
        ASOF LEFT JOIN {WEATHER} ON w.city = c.city AND c.day > w.day {PERIOD}""",
    "the next day from one on": f"""SELECT c.day::VARCHAR AS d, w.temp FROM {DAYS}
        ASOF LEFT JOIN {WEATHER} ON w.city = c.city AND w.day >= c.day {PERIOD}""",
    "the next day": f"""SELECT c.day::VARCHAR AS d, w.temp FROM {DAYS}
        ASOF LEFT JOIN {WEATHER} ON w.city = c.city AND c.day < w.day {PERIOD}""",
    "an inner join": f"""SELECT c.day::VARCHAR AS d, w.temp FROM {DAYS}
        ASOF JOIN {WEATHER} ON w.city = c.city AND w.day <= c.day {PERIOD}""",
    "no key": f"""SELECT c.day::VARCHAR AS d, w.temp FROM {DAYS} ASOF LEFT JOIN {WEATHER}
        ON w.day <= c.day AND w.city = 'Ulm' {PERIOD}""",
    "a limit in place of a period": f"""SELECT c.day::VARCHAR AS d, w.temp FROM {DAYS}
        ASOF LEFT JOIN {WEATHER} ON w.city = c.city AND w.day <= c.day AND c.day - w.day <= 3""",
    "a limit after": f"""SELECT c.day::VARCHAR AS d, w.temp FROM {DAYS} ASOF LEFT JOIN {WEATHER}
        ON w.city = c.city AND w.day > c.day AND date_diff('day', c.day, w.day) < 3""",
    "conditions of either side": f"""SELECT c.day::VARCHAR AS d, w.temp FROM {DAYS}
        ASOF LEFT JOIN {WEATHER} ON w.city = c.city AND w.day <= c.day AND w.temp > 0
        AND c.city <> 'Ulm' {PERIOD}""",
    "among other joins": f"""SELECT c.day::VARCHAR AS d, w.temp, x.size FROM {DAYS}
        JOIN register.cities x ON x.city = c.city
        ASOF LEFT JOIN {WEATHER} ON w.city = x.city AND w.day <= c.day
        JOIN north.staff s ON s.town = c.city {PERIOD}""",
    "whole numbers": """SELECT o.id, p.age FROM shop.orders o ASOF LEFT JOIN register.people p
        ON p.id > o.customer WHERE o.customer BETWEEN -5 AND 12""",
    "a left side of several databases": """SELECT v.cost, p.age FROM clinic.visits v
        ASOF LEFT JOIN register.people p ON p.id <= v.person AND v.person - p.id <= 2""",
    "of one database, beside another's": """SELECT w.temp, x.temp AS before, c.person
        FROM (SELECT city, day, max(temp) AS temp FROM register.weather GROUP BY ALL) w
        ASOF LEFT JOIN (SELECT day, min(temp) AS temp FROM register.weather GROUP BY ALL) x
        ON x.day < w.day JOIN north.staff s ON s.town = w.city
        JOIN clinic.visits c ON c.person = s.number""",
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_rows_are_those_of_the_query(
    query: str, catalog: DatabaseCatalog, central: duckdb.DuckDBPyConnection
) -> None:
    assert same_rows(catalog, central, query)


@pytest.mark.parametrize(
    ("join", "message"),
    [
        ("ASOF JOIN register.weather w ON w.day <= o.day", "how far away the nearest row may be"),
        (
            "ASOF JOIN register.weather w ON w.day <= o.day WHERE o.day > '2024-01-01'",
            "how far away the nearest row may be",
        ),
        (
            "ASOF JOIN register.weather w ON w.day <= o.day WHERE o.day BETWEEN '1900-01-01' "
            "AND '2024-01-01'",
            "is longer than 4000",
        ),
        (
            "ASOF JOIN register.weather w ON w.day <= o.day AND o.day - w.day BETWEEN 2 AND 9",
            "is not taken",
        ),
        ("ASOF JOIN register.weather w ON w.moment <= o.moment", "compares two DATEs"),
        ("ASOF JOIN register.weather w USING (day)", "ASOF [LEFT] JOIN"),
        ("ASOF RIGHT JOIN register.weather w ON w.day <= o.day", "ASOF [LEFT] JOIN"),
        ("ASOF JOIN clinic.visits w ON w.person <= o.id", "lies in one database"),
    ],
)
def test_others_are_refused(catalog: DatabaseCatalog, join: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan(catalog, f"SELECT o.amount, w.* FROM shop.orders o {join}")
    assert message in str(caught.value)
    assert caught.value.line
    assert caught.value.hint


def test_equal_keys_of_other_types_have_one_next_row() -> None:
    """'7' and '07' both equal 7, so the next row of '7' may be one of '07'."""
    catalog = DatabaseCatalog({name: (database(),) for name in ("a", "b")})
    whole = duckdb.connect()
    whole.execute("CREATE SCHEMA a; CREATE SCHEMA b")
    left = "t AS SELECT 7 AS k, d FROM range(1, 9) r(d)"
    right = "u AS SELECT * FROM (VALUES ('7', 2, 1.5), ('07', 4, 2.5), ('7', 6, 3.5)) v(k, d, y)"
    for (client, con), table in zip(catalog.databases.items(), (left, right), strict=True):
        con.execute(f"CREATE TABLE {table}")
        whole.execute(f"CREATE TABLE {client.party}.{table}")
    query = """SELECT t.d, u.y FROM a.t ASOF LEFT JOIN b.u ON u.k = t.k AND u.d <= t.d
      AND t.d - u.d < 5"""
    same_rows(catalog, whole, query)


def drawn(random: Random, count: int, kind: str, *, keyed: bool) -> str:
    """A table of keys, days or numbers, and values. No two rows have one key and day, or one day
    where no key is joined: of such rows DuckDB may take either."""

    def value(top: int) -> str:
        return "NULL" if random.random() < 0.15 else str(random.randrange(top))

    rows = {(value(3), value(12)) for _ in range(count)}
    if not keyed:
        rows = {(key, day) for day, key in {day: key for key, day in sorted(rows)}.items()}
    shown = ", ".join(f"({k}, {d}, {n})" for n, (k, d) in enumerate(sorted(rows)))
    day = "d::BIGINT" if kind == "BIGINT" else "DATE '2024-02-25' + d::INTEGER"
    return f"SELECT k::INTEGER AS k, {day} AS d, x FROM (VALUES {shown}) v(k, d, x)"


@pytest.mark.parametrize("seed", range(400 if THOROUGH else 25))
def test_rows_of_random_queries(seed: int) -> None:
    random = Random(SEED * 1000 + seed)
    kind = random.choice(("DATE", "BIGINT"))
    keyed = random.random() < 0.5
    catalog = DatabaseCatalog({name: (database(),) for name in ("a", "b")})
    whole = duckdb.connect()
    for name, con in zip(("a", "b"), catalog.databases.values(), strict=True):
        table = f"t AS {drawn(random, random.randrange(1, 12), kind, keyed=keyed)}"
        con.execute(f"CREATE TABLE {table}")
        whole.execute(f"CREATE SCHEMA {name}; CREATE TABLE {name}.{table}")
    sign = random.choice(("<", "<=", ">", ">="))
    on = [f"q.d {sign} p.d", *(["q.k = p.k"] if keyed else [])]
    on += random.sample(("q.x > 2", "p.x < 8"), random.randrange(3))
    where = []
    if random.random() < 0.5:
        away = "p.d - q.d" if sign in ("<", "<=") else "q.d - p.d"
        on.append(f"{away} <= {random.randrange(1, 6)}")
    else:
        low, high = random.randrange(6), random.randrange(3, 14)
        ends = [str(n) if kind == "BIGINT" else f"DATE '2024-02-25' + {n}" for n in (low, high)]
        if kind == "DATE":
            found = whole.execute(f"SELECT ({ends[0]})::DATE, ({ends[1]})::DATE").fetchone()
            assert found
            ends = [f"DATE '{day}'" for day in found]
        where.append(f"p.d >= {ends[0]} AND p.d < {ends[1]}")
    if random.random() < 0.3:
        where.append("p.x > 1")
    side = random.choice(("", "LEFT "))
    query = f"""SELECT p.x, q.x AS y, q.k FROM a.t p ASOF {side}JOIN b.t q ON {" AND ".join(on)}
      {"WHERE " + " AND ".join(where) if where else ""}"""
    expected = ordered(whole.execute(query).fetchall())
    if planned_rows(plan(catalog, query), catalog.databases) != expected:
        assert contradicts_itself(whole, query), query
        note_contradiction(query)
