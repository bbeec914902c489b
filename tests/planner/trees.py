"""Random queries with INNER, LEFT and RIGHT JOINs over small tables full of NULLs."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import duckdb

from tests.planner.conftest import DatabaseCatalog, database

COLUMNS = "k INTEGER, m INTEGER, x INTEGER, s VARCHAR"
PARTIES = {"red": 1, "blue": 1, "duo": 2, "grey": 1}
TABLES = ("t", "u")


def catalog_of(seed: int) -> DatabaseCatalog:
    random = Random(seed)
    return DatabaseCatalog(
        {
            party: tuple(_database(random) for _ in range(clients))
            for party, clients in PARTIES.items()
        }
    )


def _database(random: Random) -> duckdb.DuckDBPyConnection:
    def value(top: int) -> str:
        return "NULL" if random.random() < 0.2 else str(random.randrange(top))

    con = database()
    for table in TABLES:
        con.execute(f"CREATE TABLE {table} ({COLUMNS})")
        rows = []
        for _ in range(random.randrange(5)):
            text = random.choice(("NULL", "'a'", "'b'", "'c'"))
            rows.append(f"({value(3)}, {value(3)}, {value(10)}, {text})")
        if rows:
            con.execute(f"INSERT INTO {table} VALUES {', '.join(rows)}")
    return con


@dataclass
class Query:
    """One SELECT in the making; `places` are the aliases of FROM with their tables."""

    random: Random
    places: list[tuple[str, str]]
    used: set[str]
    kinds: tuple[str, ...] = ("JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN")

    @classmethod
    def of(cls, random: Random) -> Query:
        return cls(random, [], set())

    # -- FROM --------------------------------------------------------------------------------------

    def source(self, depth: int = 0) -> tuple[str, list[tuple[str, str]]]:
        """An item of FROM, and the aliases that it brings."""
        alias = f"a{len(self.places)}"
        party = self.random.choice(list(PARTIES))
        table = f"{party}.{self.random.choice(TABLES)}"
        self.places.append((alias, party))
        roll = self.random.random()
        if roll < 0.12:
            inner = self.random.choice(
                (
                    "SELECT k, m, coalesce(x, 7) AS x, s FROM {} WHERE m IS NOT NULL",
                    "SELECT k, m, 1 AS x, s FROM {}",
                    "SELECT * FROM {} WHERE x > 1 OR x IS NULL",
                )
            ).format(table)
            return f"({inner}) AS {alias}", [(alias, party)]
        if roll < 0.22:
            other = f"{self.random.choice(('red', 'blue', 'grey'))}.t"
            inner = f"SELECT k, m, coalesce(x, 5) AS x, s FROM {table}"
            inner += f" UNION ALL SELECT k, m, x, s FROM {other}"
            self.places[-1] = (alias, "mixed")
            return f"({inner}) AS {alias}", [(alias, "mixed")]
        if roll < 0.4 and depth < 2:
            self.places.pop()
            left, first = self.source(depth + 1)
            right, second = self.source(depth + 1)
            return f"({left} {self.join(first, right, second)})", [*first, *second]
        return f"{table} AS {alias}", [(alias, party)]

    def pair(
        self, left: list[tuple[str, str]], right: list[tuple[str, str]]
    ) -> tuple[tuple[str, str], tuple[str, str]]:
        """One of each side, more often than not of one party."""
        same = [(a, b) for a in left for b in right if a[1] == b[1] in ("red", "blue", "grey")]
        if same and self.random.random() < 0.8:
            return self.random.choice(same)
        return self.random.choice(left), self.random.choice(right)

    def join(self, left: list[tuple[str, str]], item: str, right: list[tuple[str, str]]) -> str:
        kind = self.random.choice(self.kinds)
        a, b = self.random.choice(left), self.random.choice(right)
        conditions = [f"{self.key(a)} = {self.key(b)}"]
        if self.random.random() < 0.25:
            c, d = self.random.choice(left), self.random.choice(right)
            conditions.append(f"{self.key(c)} = {self.key(d)}")
        if self.random.random() < 0.3:
            conditions.append(self.test(self.random.choice([*left, *right])))
        if self.random.random() < 0.15:
            c, d = self.pair(left, right)
            conditions.append(f"{c[0]}.x < {d[0]}.x")
        self.random.shuffle(conditions)
        return f"{kind} {item} ON {' AND '.join(conditions)}"

    def key(self, place: tuple[str, str]) -> str:
        name = f"{place[0]}.{self.random.choice('km')}"
        return self.random.choice((name, name, name, name, f"coalesce({name}, 1)", f"{name} + 1"))

    def test(self, place: tuple[str, str]) -> str:
        alias = place[0]
        return self.random.choice(
            (
                f"{alias}.x > 2",
                f"{alias}.x IS NULL",
                f"{alias}.x IS NOT NULL",
                f"coalesce({alias}.x, 9) > 4",
                f"coalesce({alias}.x, 0) > 4",
                f"({alias}.x IS NULL OR {alias}.m = 1)",
                f"NOT ({alias}.m = 1)",
                f"{alias}.s IN ('a', 'b')",
                f"{alias}.s IS DISTINCT FROM 'a'",
                f"CASE WHEN {alias}.x > 3 THEN false ELSE {alias}.k IS NULL OR {alias}.k > 0 END",
            )
        )

    # -- the whole ---------------------------------------------------------------------------------

    def select(self) -> str:
        text, places = self.source()
        for _ in range(self.random.randrange(1, 4)):
            item, more = self.source()
            text += f" {self.join(places, item, more)}"
            places = [*places, *more]
        where = ""
        if self.random.random() < 0.5:
            number = self.random.randrange(1, 3)
            tests = [self.test(self.random.choice(places)) for _ in range(number)]
            if self.random.random() < 0.2:
                a, b = self.random.choice(places), self.random.choice(places)
                tests.append(f"{self.key(a)} = {self.key(b)}")
            where = f" WHERE {' AND '.join(tests)}"
        columns = [
            f"{self.column(place)} AS c{number}_{n}"
            for number, place in enumerate(places)
            for n in range(self.random.randrange(0 if number else 1, 3))
        ]
        if self.random.random() < 0.2:
            a, b = self.pair(places, places)
            columns.append(f"coalesce({a[0]}.x, {b[0]}.x) AS some")
        return f"SELECT {', '.join(columns)} FROM {text}{where}"

    def column(self, place: tuple[str, str]) -> str:
        alias = place[0]
        return self.random.choice(
            (
                f"{alias}.x",
                f"{alias}.s",
                f"coalesce({alias}.x, -1)",
                f"({alias}.m IS NULL)",
                f"CASE WHEN {alias}.x > 4 THEN {alias}.k ELSE 0 END",
                f"{alias}.k + {alias}.m",
            )
        )


def random_query(random: Random) -> str:
    return Query.of(random).select()


def random_full_join(random: Random) -> str:
    """A FULL JOIN, alone or with other joins beside it."""
    query = Query.of(random)
    query.kinds = ("FULL JOIN", "FULL OUTER JOIN", "JOIN", "LEFT JOIN")
    return query.select()


def random_union(random: Random) -> str:
    """UNION ALL of queries over as many tables, with a column of each in the same order."""
    wanted = random.randrange(2, 4)
    parts: list[str] = []
    while len(parts) < 2:
        query = Query.of(random)
        text, places = query.source()
        item, more = query.source()
        text += f" {query.join(places, item, more)}"
        places = [*places, *more]
        if len(places) != wanted:
            continue
        where = f" WHERE {query.test(random.choice(places))}" if random.random() < 0.4 else ""
        values = ("{}.x", "coalesce({}.x, -1)", "{}.k + {}.m")
        columns = [
            f"{random.choice(values).format(place[0], place[0])} AS c{n}"
            for n, place in enumerate(places)
        ]
        parts.append(f"SELECT {', '.join(columns)} FROM {text}{where}")
    return " UNION ALL ".join(parts)


def random_using(random: Random) -> str:
    """Joins by the names of columns, and what the names then mean."""
    natural = random.random() < 0.3
    text, columns = "", ["k"]
    for number in range(random.randrange(2, 5)):
        table = f"{random.choice(list(PARTIES))}.{random.choice(TABLES)}"
        item = f"(SELECT k, x AS x{number} FROM {table}) AS a{number}"
        if not natural and random.random() < 0.3:
            item = f"(SELECT coalesce(k, 1) AS k, x AS x{number} FROM {table}) AS a{number}"
        kind = random.choice(("JOIN", "LEFT JOIN", "RIGHT JOIN"))
        if number:
            text += f" NATURAL {kind} {item}" if natural else f" {kind} {item} USING (k)"
        else:
            text = item
        columns.append(f"a{number}.k AS k{number}")
    shown = random.choice(("*", ", ".join(columns), "k + 1 AS next, * EXCLUDE (k)"))
    return f"SELECT {shown} FROM {text}"


def central_of(catalog: DatabaseCatalog) -> duckdb.DuckDBPyConnection:
    """One database with everything: party.table names the union of its clients' tables."""
    con = duckdb.connect()
    for party in catalog.parties():
        con.execute(f"ATTACH ':memory:' AS {party}")
        for table in TABLES:
            con.execute(f"CREATE TABLE {party}.{table} ({COLUMNS})")
            for client in catalog.clients(party):
                rows = catalog.databases[client].execute(f"FROM {table}").fetchall()
                if rows:
                    places = ", ".join(["(?, ?, ?, ?)"] * len(rows))
                    values = [value for row in rows for value in row]
                    con.execute(f"INSERT INTO {party}.{table} VALUES {places}", values)
    return con
