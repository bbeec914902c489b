"""Conditions that follow over equal keys: where they do, where they must not, and the rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from random import Random

import duckdb
import pytest

from sqlfl.contract.schema import Client
from sqlfl.planner.query.implications import derive_conditions
from sqlfl.planner.query.rules import RULES
from sqlfl.planner.query.ucq import Ucq
from tests.contradictions import contradicts_itself, note_contradiction
from tests.depth import SEED, THOROUGH
from tests.planner.central import ordered, planned_rows
from tests.planner.conftest import DatabaseCatalog, database
from tests.planner.query.test_meaning import plan

LEFT = """
CREATE TYPE size AS ENUM ('small', 'big');
CREATE TABLE t (i INTEGER, b BIGINT, u UBIGINT, h UHUGEINT, d DECIMAL(9,2), wide DECIMAL(30,2),
  f DOUBLE, s VARCHAR, n VARCHAR COLLATE NOCASE, e size, day DATE,
  moment TIMESTAMP, z TIMESTAMPTZ, flag BOOLEAN, id UUID, y DOUBLE);
"""
SAME = "i INTEGER, b BIGINT, u UBIGINT, h UHUGEINT, d DECIMAL(9,2), wide DECIMAL(30,2), f DOUBLE, "
RIGHT = f"""
CREATE TYPE size AS ENUM ('big', 'small');
CREATE TABLE r ({SAME} s VARCHAR, n VARCHAR COLLATE NOCASE, e size, day DATE, moment TIMESTAMP,
  z TIMESTAMPTZ, flag BOOLEAN, id UUID, x DOUBLE);
"""


class Governed(DatabaseCatalog):
    """A catalog in which the owner of `east` has policies."""

    def governed(self, client: Client) -> bool:
        return client.party == "east"


@pytest.fixture(scope="module")
def parties() -> Iterator[dict[str, tuple[duckdb.DuckDBPyConnection, ...]]]:
    found = {"west": (database(LEFT),), "east": (database(RIGHT), database(RIGHT))}
    yield found
    for databases in found.values():
        for con in databases:
            con.close()


def derived(catalog: DatabaseCatalog, on: str, where: str, join: str = "JOIN") -> list[str]:
    """What is derived for `r`, then for `t`."""
    ucq = plan(catalog, f"SELECT t.y, r.x FROM west.t {join} east.r ON {on} WHERE {where}")
    by_name = {slot.name: slot.derived for slot in ucq.slots}
    return [*by_name["r"], *(f"t: {text}" for text in by_name["t"])]


FOLLOWS = [
    ("r.i = t.i", "t.i BETWEEN 10 AND 11", "i BETWEEN 10 AND 11"),
    ("r.i = t.i", "r.i IN (1, 2)", "t: i IN (1, 2)"),
    ("r.b = t.i", "t.i > -5", "b > -5"),
    ("r.u = t.i", "NOT (t.i = 3 OR 5 < t.i)", "NOT (u = 3)"),
    ("r.i = t.i", "(t.i < 3 OR t.i IS NULL)", "i < 3 OR i IS NULL"),
    ("r.d = t.d", "t.d >= 1.255", "d >= 1.255"),
    ("r.f = t.f", "t.f <> 1.5", "f <> 1.5"),
    ("r.s = t.s", "t.s = 'a'", "s = 'a'"),
    ("r.day = t.day", "t.day < '2024-02-01'", "day < '2024-02-01'"),
    ("r.moment = t.moment", "t.moment < DATE '2024-02-01'", "moment < CAST('2024-02-01' AS DATE)"),
    ("r.flag = t.flag", "t.flag = true", "flag = TRUE"),
    ("r.i = t.i + 1", "t.i + 1 = 3", "i = 3"),
]
FOLLOWS_NOT = {
    "values of two types": ("r.f = t.i", "t.i > 5"),
    "a text that is a number": ("r.s = t.i", "t.i = 5"),
    "a collation of the column's own": ("r.n = t.s", "t.s = 'a'"),
    "a collation where the condition is": ("r.s = t.n", "t.n = 'a'"),
    "an order of an ENUM's own": ("r.e = t.e", "t.e > 'small'"),
    "a time zone of a session": ("r.z = t.z", "t.z > '2024-01-01'"),
    "a cast of the column": ("r.day = t.day", "t.day < TIMESTAMP '2024-01-01 12:00:00'"),
    "a cast that may fail": ("r.h = t.h", "t.h > 5"),
    "a wide decimal": ("r.wide = t.wide", "t.wide > 5"),
    "a constant of another type": ("r.i = t.i", "t.i > '5'"),
    "a fraction beside whole numbers": ("r.i = t.i", "t.i > 1.5"),
    "a function": ("r.i = t.i", "abs(t.i) > 5"),
    "two columns": ("r.i = t.i", "t.i > t.b"),
    "a key that may fail": ("CAST(r.s AS INTEGER) = t.i", "t.i > 5"),
    "another column": ("r.i = t.i", "t.b > 5"),
    "a time zone in the text": ("r.moment = t.moment", "t.moment > '2024-01-01 00:00:00+02'"),
}


@pytest.mark.parametrize(("on", "where", "wanted"), FOLLOWS, ids=lambda text: text)
def test_a_condition_follows_over_an_equal_key(
    parties: dict[str, tuple[duckdb.DuckDBPyConnection, ...]], on: str, where: str, wanted: str
) -> None:
    assert wanted in derived(DatabaseCatalog(parties), on, where)
    assert derived(Governed(parties), on, where) == [
        text for text in derived(DatabaseCatalog(parties), on, where) if text.startswith("t: ")
    ]


@pytest.mark.parametrize(("on", "where"), FOLLOWS_NOT.values(), ids=FOLLOWS_NOT)
def test_no_condition_follows_that_may_mean_something_else(
    parties: dict[str, tuple[duckdb.DuckDBPyConnection, ...]], on: str, where: str
) -> None:
    assert derived(DatabaseCatalog(parties), on, where) == []


def test_a_left_join_gives_its_right_side_conditions_and_takes_none() -> None:
    parties = {"west": (database(LEFT),), "east": (database(RIGHT),)}
    catalog = DatabaseCatalog(parties)
    assert derived(catalog, "r.i = t.i", "t.i = 3", "LEFT JOIN") == ["i = 3"]
    assert derived(catalog, "r.i = t.i AND r.i = 3", "t.y > 0", "LEFT JOIN") == []
    assert derived(catalog, "r.i = t.i AND t.i = 3", "t.y > 0", "LEFT JOIN") == []
    assert derived(catalog, "r.i = t.i", "r.i = 3 OR r.i IS NULL", "LEFT JOIN") == []


def test_no_text_follows_where_the_database_has_a_collation() -> None:
    own = duckdb.connect()
    own.execute(LEFT)
    own.execute("SET GLOBAL default_collation = 'noaccent'")
    catalog = DatabaseCatalog({"west": (own,), "east": (database(RIGHT),)})
    assert derived(catalog, "r.s = t.s", "t.s = 'a'") == []
    assert derived(catalog, "r.i = t.i", "t.i = 3") == ["i = 3"]


# -- random queries --------------------------------------------------------------------------------

QUERIES = 1500 if THOROUGH else 40
TYPES = ("INTEGER", "BIGINT", "SMALLINT", "VARCHAR", "DOUBLE", "DATE", "DECIMAL(5,1)")
VALUES = {
    "VARCHAR": ["'a'", "'b'", "'A'", "'ab'", "''"],
    "DOUBLE": ["-0.0", "0.0", "1.5", "2"],
    "DATE": ["DATE '2024-01-01'", "DATE '2024-01-02'", "DATE '2023-12-31'"],
    "DECIMAL(5,1)": ["0.5", "1.0", "1.5", "2"],
}
WHOLE = ["0", "1", "2", "3", "-1"]


def test_derived_conditions_change_no_row() -> None:
    random = Random(SEED)
    narrowed = 0
    for _ in range(QUERIES // 20):
        catalog, tables = _world(random)
        with closing(_central(catalog, tables)) as central:
            for _ in range(20):
                query = _query(random, tables)
                if contradicts_itself(central, query):
                    note_contradiction(query)
                    continue
                expected = ordered(central.execute(query).fetchall())
                ucq = plan(catalog, query)
                assert planned_rows(ucq, catalog.databases) == expected, query
                narrowed += any(slot.derived for slot in ucq.slots)
        for con in catalog.databases.values():
            con.close()
    assert narrowed > QUERIES / 8


def _world(random: Random) -> tuple[DatabaseCatalog, dict[str, dict[str, str]]]:
    """Parties of 1 to 3 databases with a table each; the tables' columns with their types."""
    tables: dict[str, dict[str, str]] = {}
    parties: dict[str, tuple[duckdb.DuckDBPyConnection, ...]] = {}
    kinds = random.sample(TYPES, 2)
    for party in ("p0", "p1", "p2"):
        columns = {f"k{n}": _near(random, kind) for n, kind in enumerate(kinds)}
        tables[party] = {**columns, f"x_{party}": "INTEGER"}
        made = ", ".join(f"{name} {type_}" for name, type_ in tables[party].items())
        parties[party] = tuple(
            database(
                f"CREATE TABLE t ({made}); INSERT INTO t VALUES {_rows(random, tables[party])}"
            )
            for _ in range(random.randint(1, 3))
        )
    return DatabaseCatalog(parties), tables


def _central(
    catalog: DatabaseCatalog, tables: dict[str, dict[str, str]]
) -> duckdb.DuckDBPyConnection:
    """One database in which `party.t` has the rows of all databases of the party."""
    con = duckdb.connect()
    for party, columns in tables.items():
        con.execute(f"ATTACH ':memory:' AS {party}")
        made = ", ".join(f"{name} {type_}" for name, type_ in columns.items())
        con.execute(f"CREATE TABLE {party}.t ({made})")
        for client in catalog.clients(party):
            rows = catalog.databases[client].execute("FROM t").fetchall()
            places = ", ".join("?" for _ in columns)
            con.executemany(f"INSERT INTO {party}.t VALUES ({places})", rows)
    return con


def _near(random: Random, kind: str) -> str:
    whole = ("INTEGER", "BIGINT", "SMALLINT")
    return random.choice(whole) if kind in whole else kind


def _rows(random: Random, columns: dict[str, str]) -> str:
    rows = []
    for _ in range(random.randint(0, 6)):
        values = (
            "NULL" if random.random() < 0.15 else random.choice(VALUES.get(type_, WHOLE))
            for type_ in columns.values()
        )
        rows.append(f"({', '.join(values)})")
    return ", ".join(rows) or f"({', '.join('NULL' for _ in columns)})"


def _query(random: Random, tables: dict[str, dict[str, str]]) -> str:
    parties = [*tables]
    random.shuffle(parties)
    text = f"FROM {parties[0]}.t {parties[0]}"
    for number, party in enumerate(parties[1:], 1):
        on = [
            f"{random.choice(parties[:number])}.{key} = {party}.{key}"
            for key in random.sample(("k0", "k1"), random.randint(1, 2))
        ]
        if random.random() < 0.3:
            on.append(_condition(random, party, tables[party]))
        join = random.choice(("JOIN", "LEFT JOIN", "JOIN", "RIGHT JOIN"))
        text += f" {join} {party}.t {party} ON {' AND '.join(on)}"
    columns = ", ".join(f"{party}.x_{party}" for party in parties)
    where = [_condition(random, p, tables[p]) for p in random.sample(parties, 2)]
    return f"SELECT {columns} {text} WHERE {' AND '.join(where[: random.randint(1, 2)])}"


def _condition(random: Random, party: str, columns: dict[str, str]) -> str:
    key = random.choice(("k0", "k1"))
    value = f"{party}.{key}"
    known = VALUES.get(columns[key], WHOLE)
    one, other = random.choice(known), random.choice(known)
    return random.choice((
        f"{value} {random.choice(('=', '<>', '<', '<=', '>', '>='))} {one}",
        f"{one} < {value}",
        f"{value} BETWEEN {one} AND {other}",
        f"{value} IN ({one}, {other})",
        f"{value} NOT IN ({one}, {other})",
        f"({value} = {one} OR {value} IS NULL)",
        f"NOT ({value} = {one} AND {value} > {other})",
        f"{value} IS NOT NULL",
    ))  # fmt: skip


def test_without_the_rule_the_rows_are_the_same() -> None:
    """The rule takes keys away, and no joined row."""
    assert derive_conditions in RULES
    catalog = DatabaseCatalog({
        "west": (database(LEFT, "INSERT INTO t (i, y) SELECT i, i FROM range(9) s(i)"),),
        "east": (database(RIGHT, "INSERT INTO r (i, x) SELECT i, i FROM range(9) s(i)"),),
    })  # fmt: skip
    query = "SELECT t.y, r.x FROM west.t LEFT JOIN east.r USING (i) WHERE i IN (3, 4)"
    ucq = plan(catalog, query)
    assert [_count(ucq, catalog, name) for name in ("t", "r")] == [2, 2]
    assert len(planned_rows(ucq, catalog.databases)) == 2


def _count(ucq: Ucq, catalog: DatabaseCatalog, name: str) -> int:
    slot = next(slot for slot in ucq.slots if slot.name == name)
    fragments = (f for f in slot.fragments if not f.virtual)
    return sum(len(catalog.databases[f.client].execute(f.sql).fetchall()) for f in fragments)
