"""Small parties whose tables, columns and fields share a handful of names, and their union.

A `World` has the same rows twice: in one central database, where `party.table` is the whole table,
and in federations that split the rows of a party over one client or several.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from random import Random

import duckdb

import sqlfl
from sqlfl.contract.schema import Client
from sqlfl.federation.catalog import FederationCatalog
from sqlfl.transport.base import Audit, Channel
from sqlfl.udfs import sql
from sqlfl.udfs.describe import current_place, use
from tests.open_databases import in_memory

INT, BIG, DOUBLE, TEXT = "INTEGER", "BIGINT", "DOUBLE", "VARCHAR"
LIST, DATE, MOMENT, BOOL = "INTEGER[]", "DATE", "TIMESTAMP", "BOOLEAN"
MONEY = "DECIMAL(9,2)"
PAIR = "STRUCT(f INTEGER, k INTEGER)"
ROW = "STRUCT(k INTEGER, n INTEGER, id INTEGER)"
TEXTS, MAP, PAIRS = "VARCHAR[]", "MAP(VARCHAR, INTEGER)", f"{PAIR}[]"
HUGE, ZONED, MOOD = "HUGEINT", "TIMESTAMP WITH TIME ZONE", "ENUM('1', 'a', 'B')"
IDENTIFIER, TIME, ZONED_TIME = "UUID", "TIME", "TIME WITH TIME ZONE"
UNLIKE = "UNLIKE"
"""Whole numbers, in a column whose type each database of the party chooses for itself."""
TYPES_OF_UNLIKE = ("VARCHAR", DOUBLE, INT)

Columns = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Table:
    """A table of every world, or a view of one: `view` is its query, as its party writes it."""

    party: str
    path: str
    """After the party's name, as a statement writes it."""
    columns: Columns
    view: str | None = None

    @property
    def text(self) -> str:
        return f"{self.party}.{self.path}"

    @property
    def name(self) -> str:
        return self.path.split(".")[-1]


TABLES = (
    Table(
        "a",
        "t",
        (("id", INT), ("k", INT), ("n", INT), ("x", DOUBLE), ("li", LIST), ("y", DOUBLE)),
    ),
    Table("a", "s", (("id", INT), ("n", INT), ("w", TEXT))),
    Table("a", "kv", (("k", INT), ("t", ROW))),
    Table("a", "st", (("id", INT), ("k", INT), ("st", PAIR), ("f", INT), ("y", DOUBLE))),
    Table("a", "arch.t", (("id", INT), ("k", INT), ("n", INT))),
    Table("a", '"Odd T"', (('"select"', INT), ('"Two Words"', INT), ("K", INT))),
    Table("a", "side.s", (("id", INT), ("t", INT), ("x", DOUBLE))),
    Table("b", "u", (("id", BIG), ("k", INT), ("z", DOUBLE), ("m", INT))),
    Table("b", "n", (("n", INT), ("k", INT), ("t", TEXT))),
    Table("b", "x", (("x", INT), ("u", PAIR), ("day", DATE))),
    Table("c", "v", (("id", TEXT), ("k", BIG), ("w", TEXT))),
    Table("c", "k", (("k", INT), ("v", INT))),
    Table("c", "d", (("k", INT), ("day", DATE), ("moment", MOMENT), ("w", MONEY), ("ok", BOOL))),
    Table("a", "bag", (("id", INT), ("tags", TEXTS), ("mp", MAP), ("v", PAIRS), ("n", INT))),
    Table("b", "j", (("k", INT), ("li", LIST), ("mp", MAP), ("st", PAIR), ("x", DOUBLE))),
    Table("b", "od", (("k", BIG), ("z", UNLIKE), ("m", INT))),
    Table("c", "ol", (("id", INT), ("x", UNLIKE), ("tags", TEXTS))),
    Table("b", "Rä", (("k", HUGE), ("größe", INT), ("mood", MOOD), ("id", BIG))),
    Table("c", "z", (("k", INT), ("mood", MOOD), ("n", HUGE), ("zoned", ZONED))),
    Table("b", "ti", (("k", INT), ("id", IDENTIFIER), ("h", TIME), ("m", INT))),
    Table("c", "o", (("id", IDENTIFIER), ("h", ZONED_TIME), ("t", TIME), ("x", DOUBLE))),
)
VIEWS = (
    Table(
        "a",
        "tv",
        (("k", INT), ("id", INT), ("n", INT), ("y", DOUBLE)),
        "SELECT id AS k, k AS id, n, y FROM t WHERE n IS NOT NULL",
    ),
    Table(
        "b",
        "uv",
        (("k", INT), ("m", INT), ("id", BIG)),
        "SELECT u.k, coalesce(u.m, n.n) AS m, u.id FROM u LEFT JOIN n USING (k)",
    ),
)
SINGLE_ONLY = ("uv",)
"""Views over which a union of clients is not the view of their union."""

MACROS = (
    "CREATE MACRO {}plus(x, k := 1) AS x + k",
    "CREATE MACRO {}pick(n, k) AS CASE WHEN n > 1 THEN n ELSE k END",
    "CREATE MACRO {}mean_of(z) AS sum(z) / count(z)",
    "CREATE MACRO {}most(z) AS max(z)",
    "CREATE MACRO {}steps(n) AS unnest([n, n + 1])",
    "CREATE MACRO {}total(n) AS list_sum(list_transform([1, 2], lambda k: k * n))",
)
TABLE_MACRO = "CREATE MACRO near(z) AS TABLE SELECT id, k, n FROM {}t WHERE k = z OR n = z"
"""Of party a; without the party's name, it is only known beside a table of it."""

HIDING = (
    "nullif(a, b) AS 7", "list_value(x) AS 9", '"||"(a, b) AS 9', '"+"(a, b) AS 99',
    '"*"(a, b) AS 0', '"~~"(a, b) AS false', "count(x) AS 3", "max(x) AS 0", "min(x) AS 0",
    "list(x) AS 0", "len(x) AS 3", "length(x) AS 3", "upper(x) AS 'u'", "concat(a, b) AS 'q'",
    "list_transform(a, b) AS 0", "struct_pack(x) AS 3", "struct_extract(a, b) AS 0",
    "map_extract(a, b) AS 0", "array_extract(a, b) AS 9", "array_slice(a, b, c) AS [7]",
    "list_contains(a, b) AS true", "contains(a, b) AS true", "greatest(a, b) AS 0",
    "typeof(x) AS 'none'", "least(a, b) AS 0", "list_concat(a, b) AS 8", "round(a, b) AS 0",
)  # fmt: skip
"""Macros of the parties of every second world, named like DuckDB's own functions: they mean nothing
to a statement."""

WORLD = 250
"""Statements of consecutive seeds that share a world."""
LAYOUTS = ((1, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 3))
"""Clients of a, b and c."""
PARTIES = ("a", "b", "c")


@dataclass(frozen=True)
class Federated:
    """One federation over a world."""

    fed: sqlfl.Federation
    databases: dict[Client, duckdb.DuckDBPyConnection]

    @cached_property
    def catalog(self) -> FederationCatalog:
        """Asked once for all statements: nothing is made while a world is open."""
        parties: dict[str, tuple[Client, ...]] = {}
        for client in self.databases:
            parties[client.party] = (*parties.get(client.party, ()), client)
        return FederationCatalog(Channel(self.fed._transport, Audit()), parties)


@dataclass
class World:
    """The rows of one seed; databases are opened when they are first needed."""

    seed: int
    stack: ExitStack
    layouts: dict[tuple[int, int, int], Federated] = field(default_factory=dict)

    @cached_property
    def rows(self) -> dict[str, list[str]]:
        """Table -> literals of its rows."""
        random = Random(self.seed)
        return {table.text: rows(random, table) for table in TABLES}

    @cached_property
    def central(self) -> duckdb.DuckDBPyConnection:
        con = self.open()
        for party in PARTIES:
            con.execute(f"ATTACH ':memory:' AS {party}")
        con.execute("CREATE SCHEMA a.arch")
        con.execute("CREATE SCHEMA a.side")
        for table in TABLES:
            create(con, table.text, table, self.rows[table.text])
        for place in ("", *(f"{party}.main." for party in PARTIES)):
            for macro in MACROS:
                con.execute(macro.format(place))
        for view in VIEWS:
            con.execute(f"USE {view.party}")
            con.execute(f"CREATE VIEW {view.path} AS {view.view}")
        con.execute("USE memory")
        con.execute(TABLE_MACRO.format("a."))
        return con

    def federated(self, layout: tuple[int, int, int]) -> Federated:
        if layout not in self.layouts:
            self.layouts[layout] = self._federated(layout)
        return self.layouts[layout]

    def _federated(self, layout: tuple[int, int, int]) -> Federated:
        fed = self.stack.enter_context(sqlfl.Federation(progress=False))
        databases: dict[Client, duckdb.DuckDBPyConnection] = {}
        for party, clients in zip(PARTIES, layout, strict=True):
            own: list[duckdb.DuckDBPyConnection] = []
            for number in range(clients):
                own.append(self.open())
                self._fill(own[-1], party, number, clients)
                cursor = self.stack.enter_context(closing(sql.cursor(own[-1])))
                use(cursor, current_place(own[-1]))
                databases[Client(party, number)] = cursor
            fed.attach(party, own if clients > 1 else own[0])
        return Federated(fed, databases)

    def _fill(self, con: duckdb.DuckDBPyConnection, party: str, number: int, clients: int) -> None:
        if party == "a":
            con.execute("CREATE SCHEMA arch")
            con.execute("ATTACH ':memory:' AS side")
        for table in TABLES:
            if table.party == party:
                own = self.rows[table.text][number::clients]
                create(con, table.path, table, own, number)
        for macro in MACROS:
            con.execute(macro.format(""))
        for macro in HIDING if self.seed % 2 else ():
            con.execute(f"CREATE MACRO {macro}")
        for view in VIEWS:
            if view.party == party:
                con.execute(f"CREATE VIEW {view.path} AS {view.view}")
        if party == "a":
            con.execute(TABLE_MACRO.format(""))

    def open(self) -> duckdb.DuckDBPyConnection:
        return self.stack.enter_context(in_memory(threads=1))


@contextmanager
def opened(seed: int) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(seed, stack)


def create(
    con: duckdb.DuckDBPyConnection,
    name: str,
    table: Table,
    literals: list[str],
    number: int = 0,
) -> None:
    """The clients of a party number their tables: in every second one the columns stand in another
    order, and an unlike column has another type in each."""
    step = -1 if number % 2 else 1
    unlike = TYPES_OF_UNLIKE[number % len(TYPES_OF_UNLIKE)]
    columns = ", ".join(
        f"{column} {unlike if type_ == UNLIKE else type_}"
        for column, type_ in table.columns[::step]
    )
    con.execute(f"CREATE TABLE {name} ({columns})")
    if literals:
        names = ", ".join(column for column, _ in table.columns)
        con.execute(f"INSERT INTO {name} ({names}) VALUES {', '.join(literals)}")


def rows(random: Random, table: Table) -> list[str]:
    """0 to 8 rows, as literals, of values that collide."""
    count = random.choice((0, 2, 3, 4, 5, 6, 6, 7, 8, 8))
    return [
        f"({', '.join(value(random, type_) for _, type_ in table.columns)})" for _ in range(count)
    ]


def value(random: Random, type_: str) -> str:
    if random.random() < 0.15:
        return "NULL"
    small = random.randrange(0, 5)
    match type_:
        case "DOUBLE":
            return str(random.choice((small, small + 0.5, -1)))
        case "VARCHAR":
            return random.choice(("'1'", "'2'", "'3'", "'a'", "'01'", "'1.0'", "'B'"))
        case "INTEGER[]":
            return str([random.randrange(4) for _ in range(random.randrange(4))])
        case "DATE":
            return f"DATE '2024-01-0{1 + small}'"
        case "HUGEINT":
            return str(random.choice((small, small, 2**100)))
        case "TIMESTAMP WITH TIME ZONE":
            return f"TIMESTAMPTZ '2024-01-0{1 + small} 0{small}:30:00+00'"
        case "ENUM('1', 'a', 'B')":
            return random.choice(("'1'", "'a'", "'B'"))
        case "UUID":
            return f"'00000000-0000-0000-0000-00000000000{small}'::UUID"
        case "TIME":
            return f"TIME '0{small}:30:00'"
        case "TIME WITH TIME ZONE":
            return f"'0{small}:30:00+0{random.randrange(2)}'::TIMETZ"
        case "TIMESTAMP":
            return f"TIMESTAMP '2024-01-0{1 + small} 0{small}:30:00'"
        case "BOOLEAN":
            return random.choice(("true", "false"))
        case "DECIMAL(9,2)":
            return random.choice((f"{small}", f"{small}.25"))
        case "STRUCT(f INTEGER, k INTEGER)":
            return f"{{'f': {small}, 'k': {random.randrange(4)}}}"
        case "STRUCT(k INTEGER, n INTEGER, id INTEGER)":
            return f"{{'k': {small}, 'n': {random.randrange(4)}, 'id': {random.randrange(4)}}}"
        case "VARCHAR[]":
            return str(random.choices(("a", "1", "b"), k=random.randrange(4)))
        case "MAP(VARCHAR, INTEGER)":
            keys = random.sample(("a", "b", "k"), random.randrange(3))
            entries = ", ".join(f"'{key}': {random.randrange(4)}" for key in keys)
            return f"MAP {{{entries}}}"
        case "STRUCT(f INTEGER, k INTEGER)[]":
            return f"[{', '.join(value(random, PAIR) for _ in range(random.randrange(3)))}]"
    return str(small)
