"""Parts of a union that join different tables: plans give the rows of one database."""

from __future__ import annotations

from random import Random

import duckdb
import pytest

from sqlfl.base.errors import PlanError
from tests.depth import THOROUGH
from tests.planner.conftest import DatabaseCatalog
from tests.planner.query.rows import random_plans, same_rows
from tests.planner.query.test_meaning import plan

BOTH = "SELECT o.amount, p.age FROM shop.orders o JOIN register.people p ON o.customer = p.id"
QUERIES = {
    "the second lacks a table": f"{BOTH} UNION ALL BY NAME SELECT amount FROM shop.orders",
    "the first lacks a table": f"SELECT amount FROM shop.orders UNION ALL BY NAME {BOTH}",
    "by position": f"{BOTH} UNION ALL SELECT amount, NULL FROM shop.orders",
    "with a constant": f"{BOTH} UNION ALL SELECT amount, -1 FROM shop.orders WHERE paid",
    "each lacks another": """
        SELECT o.amount, p.age FROM shop.orders o JOIN register.people p ON o.customer = p.id
        UNION ALL BY NAME
        SELECT p.age, v.cost FROM register.people p JOIN north.visits v ON v.person = p.id
        UNION ALL BY NAME SELECT o.amount, p.age, v.cost FROM shop.orders o
        JOIN register.people p ON o.customer = p.id JOIN north.visits v ON v.person = p.id""",
    "two tables are lacking": """
        SELECT o.amount, p.age, v.cost FROM shop.orders o
        JOIN register.people p ON o.customer = p.id LEFT JOIN clinic.visits v ON v.person = p.id
        UNION ALL BY NAME SELECT amount FROM shop.orders""",
    "after a LEFT JOIN": """
        SELECT o.amount, p.age FROM shop.orders o LEFT JOIN register.people p ON o.customer = p.id
        UNION ALL BY NAME SELECT amount FROM shop.orders WHERE id < 3""",
    "of another table": f"{BOTH} UNION ALL BY NAME SELECT cost AS amount FROM clinic.visits",
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_rows_are_those_of_the_query(
    query: str, catalog: DatabaseCatalog, central: duckdb.DuckDBPyConnection
) -> None:
    same_rows(catalog, central, query)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT o.amount FROM shop.orders o JOIN register.people p ON o.customer = p.id "
        "UNION ALL SELECT amount FROM shop.orders",
        f"{BOTH} UNION ALL SELECT o.amount, o.id FROM shop.orders o",
    ],
)
def test_others_are_refused(query: str, catalog: DatabaseCatalog) -> None:
    with pytest.raises(PlanError) as caught:
        plan(catalog, query)
    assert caught.value.line
    assert caught.value.hint


# -- random queries --------------------------------------------------------------------------------

STATEMENTS = 1500 if THOROUGH else 30


def test_rows_of_random_queries() -> None:
    plans, _ = random_plans(with_parts, STATEMENTS)
    assert len(plans) > STATEMENTS / 3


def with_parts(random: Random) -> str:
    """A union by name of joins of some of three tables."""
    tables = {
        alias: (
            f"{random.choice(('red', 'blue', 'duo', 'grey'))}.{random.choice('tu')} AS {alias}",
            random.sample("msx", random.randint(1, 2)),
        )
        for alias in "abc"
    }

    def part(aliases: list[str]) -> str:
        text = tables[aliases[0]][0]
        for place, alias in enumerate(aliases[1:], 1):
            kind = random.choice(("JOIN", "JOIN", "LEFT JOIN"))
            text += f" {kind} {tables[alias][0]} ON {alias}.k = {random.choice(aliases[:place])}.k"
        columns = ", ".join(f"{a}.{c} AS {a}_{c}" for a in aliases for c in tables[a][1])
        where = f" WHERE {random.choice(aliases)}.x > 2" if random.random() < 0.3 else ""
        return f"SELECT {columns} FROM {text}{where}"

    parts = [part(random.sample("abc", random.randint(1, 3))) for _ in range(random.randint(1, 3))]
    parts.insert(random.randint(0, len(parts)), part(random.sample("abc", random.randint(2, 3))))
    return " UNION ALL BY NAME ".join(parts)
