"""Windows of days or whole numbers between two parties: plans give the rows of one database."""

from __future__ import annotations

from random import Random

import duckdb
import pytest

from sqlfl.base.errors import PlanError
from tests.depth import SEED, THOROUGH
from tests.planner.conftest import DatabaseCatalog
from tests.planner.query.rows import random_plans, same_rows
from tests.planner.query.test_meaning import plan
from tests.planner.trees import Query

FROM = "FROM shop.orders o JOIN register.weather w ON"
QUERIES = {
    "between days": f"SELECT o.id, w.temp {FROM} o.day BETWEEN w.day - 1 AND w.day + 1",
    "with a key": """SELECT o.id, w.temp, p.age FROM shop.orders o
        JOIN register.people p ON o.customer = p.id
        JOIN register.weather w ON w.city = p.city AND w.day BETWEEN o.day - 1 AND o.day""",
    "intervals": f"""SELECT o.id, w.temp {FROM}
        w.day BETWEEN o.day - INTERVAL 1 DAY AND o.day + INTERVAL '1 week'""",
    "comparisons": f"SELECT o.id, w.temp {FROM} w.day >= o.day AND w.day < o.day + 2",
    "the other way round": f"SELECT o.id, w.temp {FROM} o.day <= w.day AND o.day + 2 > w.day",
    "in WHERE": """SELECT o.id, w.temp FROM shop.orders o, register.weather w
        WHERE w.day - o.day BETWEEN 0 AND 1""",
    "an absolute value": f"SELECT o.id, w.temp {FROM} abs(o.day - w.day) <= 1",
    "an absolute value, on the right": f"SELECT o.id, w.temp {FROM} 2 > abs(w.day - o.day)",
    "date_diff": f"SELECT o.id, w.temp {FROM} date_diff('day', o.day, w.day) BETWEEN 0 AND 1",
    "the next day": f"SELECT o.id, w.temp {FROM} date_diff('day', o.day, w.day) = 1",
    "a difference": f"SELECT o.id, w.temp {FROM} w.temp > 0 AND 1 = w.day - o.day",
    "no difference": f"SELECT o.id, w.temp {FROM} o.day - w.day = 0",
    "the next hour, of a LEFT JOIN": """SELECT o.id, w.temp FROM shop.orders o
        LEFT JOIN register.weather w ON date_diff('hour', o.moment, w.moment) = 1""",
    "a difference of a subquery": """SELECT o.id, (SELECT count(*) FROM register.weather w
        WHERE w.day - o.day = 1) AS n FROM shop.orders o""",
    "a difference of numbers": """SELECT v.cost, p.age FROM clinic.visits v
        JOIN register.people p ON p.id - v.person = 1""",
    "days of times": f"""SELECT o.id, w.temp {FROM}
        w.moment::DATE BETWEEN o.moment::DATE AND o.moment::DATE + 1""",
    "numbers": """SELECT o.amount, p.age FROM shop.orders o
        JOIN register.people p ON o.customer BETWEEN p.id - 1 AND p.id""",
    "computed numbers": """SELECT o.amount, p.age FROM shop.orders o
        JOIN register.people p ON p.age // 10 - o.id BETWEEN -1 AND 1""",
    "the largest numbers": """SELECT a.x, b.x AS y FROM
        (SELECT customer + 9223372036854775795 AS x FROM shop.orders) a
        JOIN (SELECT id + 9223372036854775794 AS x FROM register.people) b
        ON abs(a.x - b.x) <= 2""",
    "numbers without a sign": """SELECT a.x, b.age
        FROM (SELECT customer::UBIGINT AS x FROM shop.orders) a
        JOIN register.people b ON b.id - a.x BETWEEN 0 AND 2""",
    "a window that is only in the future": f"""SELECT o.id, w.temp {FROM}
        w.day BETWEEN o.day + 1 AND o.day + 2""",
    "an empty window": f"SELECT o.id, w.temp {FROM} w.day BETWEEN o.day + 2 AND o.day + 1",
    "of several databases": """SELECT v.cost, p.age FROM clinic.visits v
        JOIN register.people p ON v.person BETWEEN p.id - 1 AND p.id""",
    "both of several databases": """SELECT v.cost, u.cost AS other FROM clinic.visits v
        JOIN (SELECT person, cost FROM clinic.visits) u ON abs(v.person - u.person) <= 1""",
    "a LEFT JOIN": """SELECT o.id, w.temp, w.day IS NULL AS none FROM shop.orders o
        LEFT JOIN register.weather w ON w.day BETWEEN o.day - 1 AND o.day""",
    "a LEFT JOIN, with conditions": """SELECT o.id, coalesce(w.temp, 99) AS t FROM shop.orders o
        LEFT JOIN register.weather w ON w.day BETWEEN o.day - 1 AND o.day AND w.city = 'Bonn'
        AND o.paid WHERE coalesce(w.temp, 0) < 2""",
    "a LEFT JOIN that WHERE makes inner": """SELECT o.id, w.temp FROM shop.orders o
        LEFT JOIN register.weather w ON o.customer = 10
        WHERE w.day BETWEEN o.day - 1 AND o.day""",
    "hours": f"""SELECT o.id, w.temp {FROM}
        date_diff('hour', w.moment, o.moment) BETWEEN -2 AND 25""",
    "months, of a LEFT JOIN": """SELECT o.id, w.temp FROM shop.orders o
        LEFT JOIN register.weather w ON abs(date_diff('months', o.moment, w.day)) < 1
        AND w.temp > 0""",
    "hours of a subquery": """SELECT o.id, (SELECT count(*) FROM register.weather w
        WHERE date_diff('hour', w.moment, o.moment) BETWEEN 0 AND 30) AS n FROM shop.orders o""",
    "one key or another": """SELECT o.amount, p.age FROM shop.orders o
        JOIN register.people p ON p.id = o.customer OR o.customer = p.boss""",
    "one key or another, on the right": """SELECT o.amount, p.age FROM shop.orders o
        LEFT JOIN register.people p ON o.customer IN (p.id, p.boss, p.age) AND p.income > 500""",
    "one key or another, of several databases": """SELECT v.cost, p.age FROM register.people p
        JOIN clinic.visits v ON (v.person = p.id OR v.person + 1 = p.id) IS TRUE""",
    "two windows": """SELECT o.id, w.temp, p.age FROM shop.orders o
        JOIN register.weather w ON w.day BETWEEN o.day - 1 AND o.day
        JOIN register.people p ON p.id BETWEEN o.customer - 1 AND o.customer + 1""",
    "two windows of one table": """SELECT o.id, w.temp, u.cost FROM register.weather w
        JOIN shop.orders o ON w.day BETWEEN o.day - 1 AND o.day
        JOIN north.visits u ON u.person BETWEEN o.customer - 1 AND o.customer + 1""",
    "an interval twice": f"SELECT o.id, w.temp {FROM} w.day > o.day - 3 AND w.day >= o.day - 1"
    " AND w.day <= o.day + 5 AND w.day < o.day + 1",
    "of one database": """SELECT w.temp, x.temp AS other, o.id FROM register.weather w
        JOIN register.weather x ON x.day BETWEEN w.day - 1 AND w.day
        JOIN shop.orders o ON o.day = w.day""",
    "in a part by tests": f"""SELECT o.id, w.temp {FROM} w.day BETWEEN o.day - 1 AND o.day
        WHERE o.paid OR w.temp > 0""",
    "in a derived table": """SELECT o.amount, d.temp FROM shop.orders o JOIN (
          SELECT w.temp, v.person FROM register.weather w
          JOIN north.visits v ON v.person - 9 BETWEEN day(w.day) AND day(w.day) + 1) d
        ON d.person = o.customer""",
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_rows_are_those_of_the_query(
    query: str, catalog: DatabaseCatalog, central: duckdb.DuckDBPyConnection
) -> None:
    same_rows(catalog, central, query)


def test_infinite_days_are_near_themselves_alone() -> None:
    catalog = DatabaseCatalog({name: (duckdb.connect(),) for name in ("a", "b")})
    whole = duckdb.connect()
    days = "(DATE '2024-01-01'), ('infinity'), ('-infinity'), (NULL), (DATE '2024-01-03')"
    for party, con in zip(("a", "b"), catalog.databases.values(), strict=True):
        for each, name in ((con, "t"), (whole, f"{party}.t")):
            each.execute(f"CREATE SCHEMA IF NOT EXISTS {party}")
            each.execute(f"CREATE TABLE {name} AS SELECT d, d::VARCHAR s FROM (VALUES {days}) v(d)")
    for window in (
        "y.d BETWEEN x.d - 2 AND x.d",
        "y.d BETWEEN x.d + 1 AND x.d + 2",
        "y.d BETWEEN x.d - INTERVAL 2 DAY AND x.d",
        "y.d > x.d - 2 AND y.d < x.d + 2",
        "y.d - x.d BETWEEN -2 AND 2",
        "y.d - x.d BETWEEN 1 AND 2",
        "date_diff('day', x.d, y.d) BETWEEN -2 AND 2",
        "y.d - x.d = 2",
        "y.d - x.d = 0",
        "date_diff('day', x.d, y.d) = 0",
        "abs(x.d - y.d) < 3",
    ):
        query = f"SELECT x.s AS one, y.s AS two FROM a.t x JOIN b.t y ON {window}"
        same_rows(catalog, whole, query)
        query = f"SELECT x.s, (SELECT count(*) FROM b.t y WHERE {window}) AS n FROM a.t x"
        same_rows(catalog, whole, query)


@pytest.mark.parametrize("unit", ["second", "minute", "hours", "month", "quarter", "years"])
def test_counted_units_are_duckdbs(unit: str) -> None:
    """Also before 1970, and where a time is a day, infinite or NULL."""
    random = Random(SEED)
    catalog = DatabaseCatalog({name: (duckdb.connect(),) for name in ("a", "b")})
    whole = duckdb.connect()
    size = {"second": 1, "minute": 60, "hours": 3600}.get(unit, 86400 * 40)
    for party, con in zip(("a", "b"), catalog.databases.values(), strict=True):
        whole.execute(f"CREATE SCHEMA {party}")
        times = [random.randrange(-9 * size, 9 * size) for _ in range(25)]
        values = ", ".join(f"(TIMESTAMP '1970-01-01' + to_seconds({n}))" for n in times)
        values += ", (NULL), ('infinity'), ('-infinity')"
        for each, name in ((con, "t"), (whole, f"{party}.t")):
            shown = "t, t::DATE AS d, row_number() OVER () AS n"
            each.execute(f"CREATE TABLE {name} AS SELECT {shown} FROM (VALUES {values}) v(t)")
    for side in ("y.t", "y.d"):
        window = f"date_diff('{unit}', x.t, {side}) BETWEEN -1 AND 2"
        query = f"SELECT x.n AS one, y.n AS two FROM a.t x JOIN b.t y ON {window}"
        assert same_rows(catalog, whole, query)


@pytest.mark.parametrize(
    "window",
    [
        "date_diff('week', o.moment, w.moment) BETWEEN 0 AND 1",
        "date_diff('hour', o.moment::TIMESTAMPTZ, w.moment) BETWEEN 0 AND 1",
        "w.moment BETWEEN o.moment AND o.moment + INTERVAL 3 HOUR",
    ],
)
def test_other_times_are_refused(catalog: DatabaseCatalog, window: str) -> None:
    with pytest.raises(PlanError, match="needs columns of 2 parties"):
        plan(catalog, f"SELECT o.id, w.temp {FROM} {window}")


@pytest.mark.parametrize(
    "on",
    [
        "o.customer = p.id OR o.id = p.boss",
        "p.id IN (o.customer, o.id) AND p.id IN (o.customer, o.amount)",
        "p.city IN (o.code, o.note)",
    ],
)
def test_other_keys_are_refused(catalog: DatabaseCatalog, on: str) -> None:
    with pytest.raises(PlanError, match="needs columns of 2 parties"):
        plan(catalog, f"SELECT o.amount, p.age FROM shop.orders o JOIN register.people p ON {on}")


@pytest.mark.parametrize(
    "condition",
    [
        "w.moment BETWEEN o.moment - INTERVAL 1 DAY AND o.moment",
        "w.moment - o.moment = INTERVAL 1 DAY",
        "w.day BETWEEN o.day - INTERVAL 1 MONTH AND o.day",
        "w.day >= o.day",
        "w.day BETWEEN o.day - 999 AND o.day",
        "w.temp BETWEEN o.amount - 1 AND o.amount",
        "NOT (w.day BETWEEN o.day - 1 AND o.day)",
    ],
)
def test_others_are_refused(condition: str, catalog: DatabaseCatalog) -> None:
    with pytest.raises(PlanError) as caught:
        plan(catalog, f"SELECT o.id, w.temp {FROM} {condition}")
    assert caught.value.line
    assert "compare days" in str(caught.value.hint)


# -- random queries --------------------------------------------------------------------------------

STATEMENTS = 1500 if THOROUGH else 30


def test_rows_of_random_queries() -> None:
    plans, _ = random_plans(with_windows, STATEMENTS)
    assert len(plans) > STATEMENTS / 3


def with_windows(random: Random) -> str:
    """A query whose joins have windows beside equalities, or alone."""
    query = Query.of(random)
    text, places = query.source()
    for _ in range(random.randint(1, 2)):
        item, more = query.source()
        window = _window(random, random.choice(places)[0], random.choice(more)[0])
        if random.random() < 0.5:
            text += f" {query.join(places, item, more)} AND {window}"
        else:
            text += f" {random.choice(('JOIN', 'LEFT JOIN', 'RIGHT JOIN'))} {item} ON {window}"
        places = [*places, *more]
    names = [place[0] for place in places]
    columns = ", ".join(f"{name}.{random.choice('xs')} AS v{n}" for n, name in enumerate(names))
    tests = []
    if random.random() < 0.4:
        tests.append(query.test(random.choice(places)))
    if random.random() < 0.2:
        tests.append(_window(random, *random.sample(names, 2)))
    where = f" WHERE {' AND '.join(tests)}" if tests else ""
    return f"SELECT {columns} FROM {text}{where}"


def _window(random: Random, one: str, other: str) -> str:
    low = random.randint(-3, 2)
    high = low + random.randint(-1, 4)
    name = random.choice("kmx")
    if random.random() < 0.4:
        left, right = (f"(DATE '2024-02-27' + {alias}.{name})" for alias in (one, other))
    else:
        left, right = f"{one}.{name}", f"{other}.{random.choice('kmx')}"
    return random.choice(
        (
            f"{left} BETWEEN {right} + {low} AND {right} + {high}",
            f"{left} >= {right} + {low} AND {right} + {high} >= {left}",
            f"{left} - {right} > {low} AND {left} < {right} + {high}",
            f"{left} - {right} = {low}",
            f"abs({left} - {right}) <= {high}",
            f"{left} - {right} BETWEEN {low} AND {high}",
        )
    )
