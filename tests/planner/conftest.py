"""Small parties for the planner: one organisation has three databases, one combines its two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import duckdb
import pytest

from sqlfl.base.errors import PartyError
from sqlfl.contract.schema import Client, Column, Place, Table

SHOP = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE orders (
  id INTEGER, customer INTEGER, day DATE, moment TIMESTAMP, code VARCHAR, amount DOUBLE,
  paid BOOLEAN, mood mood, vector FLOAT[2], tags VARCHAR[], token UUID, note VARCHAR
);
INSERT INTO orders VALUES
  (1, 10, '2024-01-01', '2024-01-01 10:00', '01', 5.5, true, 'ok', [1, 2], ['a'], NULL, 'x'),
  (2, 10, '2024-01-02', '2024-01-02 11:00', '2', 7.25, false, 'sad', [3, 4], [], NULL, NULL),
  (3, 11, '2024-01-02', '2024-01-02 12:00', '03', NULL, true, NULL, NULL, NULL, NULL, 'y'),
  (4, NULL, '2024-01-03', '2024-01-03 13:00', NULL, 1.0, NULL, 'happy', [5, 6], ['b'], NULL, 'x'),
  (5, 12, NULL, NULL, '1', 2.5, false, 'ok', [7, 8], NULL, NULL, 'z');
CREATE TABLE items (order_id INTEGER, product VARCHAR, price DECIMAL(9,2), quantity SMALLINT);
INSERT INTO items VALUES
  (1, 'pen', 1.50, 2), (1, 'ink', 4.00, 1), (2, 'pen', 1.50, 4),
  (5, 'pad', NULL, 1), (9, 'ink', 4, 3);
CREATE SCHEMA archive;
CREATE TABLE archive.orders AS SELECT id, customer, amount FROM orders WHERE id < 3;
CREATE MACRO tenfold(a) AS list_sum(list_transform([1, 9], lambda amount: amount * a));
CREATE VIEW big_orders AS SELECT * FROM orders WHERE amount > 2;
CREATE TABLE "Odd Names" (id INTEGER, "select" DOUBLE, "two words" INTEGER, Mixed VARCHAR);
INSERT INTO "Odd Names" VALUES (1, 1.5, 3, 'a'), (2, 2.5, 4, 'b');
"""

REGISTER = """
CREATE TABLE people (id BIGINT, age INTEGER, city VARCHAR, income DOUBLE, boss BIGINT);
INSERT INTO people VALUES
  (10, 30, 'Bonn', 1000.5, 11), (11, 41, 'Ulm', 2000, NULL), (12, 52, NULL, 900, 11),
  (13, 63, 'Bonn', 100, 10);
CREATE TABLE cities (city VARCHAR, size INTEGER, code INTEGER);
INSERT INTO cities VALUES ('Bonn', 330, 1), ('Ulm', 126, 2), ('Jena', 111, 3), (NULL, 0, 4);
CREATE TABLE weather (day DATE, city VARCHAR, temp REAL, moment TIMESTAMP);
INSERT INTO weather VALUES
  ('2024-01-01', 'Bonn', 1.5, '2024-01-01 10:00'), ('2024-01-02', 'Bonn', 2.5, '2024-01-02 11:00'),
  ('2024-01-02', 'Ulm', -1, '2024-01-02 12:00'), ('2024-01-03', 'Ulm', 0, '2024-01-03 00:00');
"""

CLINIC = """
CREATE TABLE visits (person INTEGER, kind VARCHAR, cost DOUBLE, sick BOOLEAN);
"""
VISITS = (
    "INSERT INTO visits VALUES (10, 'a', 1.5, true), (11, 'b', 2.5, false)",
    "INSERT INTO visits VALUES (10, 'b', 3.5, false), (13, NULL, 4.5, true), (NULL, 'c', 9, true)",
    "INSERT INTO visits VALUES (12, 'a', NULL, true), (12, 'a', 5.5, NULL)",
)

NORTH = """
CREATE TABLE visits (person SMALLINT, kind VARCHAR, cost REAL, sick BOOLEAN);
INSERT INTO visits VALUES (10, 'a', 10.5, true), (13, 'd', 11.5, false);
CREATE TABLE staff (number INTEGER, age DOUBLE, town VARCHAR);
INSERT INTO staff VALUES (10, 33.5, 'Bonn'), (12, 44.5, 'Ulm');
"""
SOUTH = """
CREATE TABLE visits (person BIGINT, kind VARCHAR, cost DOUBLE, sick BOOLEAN, extra INTEGER);
INSERT INTO visits VALUES (11, 'a', 20.5, false, 1), (12, 'e', 21.5, true, 2);
"""
WARD = """
CREATE TABLE beds (person INTEGER, days INTEGER, room VARCHAR);
CREATE TABLE rooms (room VARCHAR, size INTEGER);
"""
BEDS = (
    "INSERT INTO beds VALUES (10, 3, 'a'), (11, NULL, 'b'); INSERT INTO rooms VALUES ('a', 2)",
    "INSERT INTO beds VALUES (11, 5, NULL), (13, 1, 'a'); INSERT INTO rooms VALUES ('b', 4)",
)


class DatabaseCatalog:
    """A catalog that asks the databases themselves. `combined`: parties that combine clients."""

    def __init__(
        self,
        parties: Mapping[str, tuple[duckdb.DuckDBPyConnection, ...]],
        combined: tuple[str, ...] = (),
    ) -> None:
        self.databases = {
            Client(party, index, combined=party in combined): database
            for party, databases in parties.items()
            for index, database in enumerate(databases)
        }

    def parties(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(client.party for client in self.databases))

    def clients(self, party: str) -> tuple[Client, ...]:
        return tuple(client for client in self.databases if client.party == party)

    def tables(self, client: Client) -> tuple[Table, ...]:
        rows = self.databases[client].execute(
            "SELECT schema_name, table_name, column_name, data_type FROM duckdb_columns() "
            "WHERE NOT internal ORDER BY schema_name, table_name, column_index"
        )
        found: dict[tuple[str, str], list[Column]] = {}
        for schema, table, name, type_ in rows.fetchall():
            found.setdefault((schema, table), []).append(Column(name, type_))
        return tuple(
            Table(None if schema == "main" else schema, table, tuple(columns))
            for (schema, table), columns in found.items()
        )

    def places(self, client: Client) -> tuple[Place, ...]:
        rows = self.databases[client].execute(
            "SELECT DISTINCT schema_name FROM duckdb_columns() "
            "WHERE NOT internal AND schema_name <> 'main' ORDER BY schema_name"
        )
        others = [schema for (schema,) in rows.fetchall()]
        return tuple(Place("memory", schema) for schema in ("main", *others))

    def fleeting(self, client: Client) -> str:
        return ""

    def governed(self, client: Client) -> bool:
        return False

    def describe(self, client: Client, select: str) -> tuple[Column, ...]:
        try:
            rows = self.databases[client].execute(f"DESCRIBE {select}").fetchall()
        except duckdb.Error as error:
            raise PartyError(client.party, str(error)) from error
        return tuple(Column(row[0], row[1]) for row in rows)

    def describe_each(self, selects: Iterable[tuple[Client, str]]) -> None:
        """Ask nothing: `describe` takes no exchange."""


def database(*scripts: str) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    for script in scripts:
        con.execute(script)
    return con


@pytest.fixture(scope="session")
def catalog() -> Iterator[DatabaseCatalog]:
    found = DatabaseCatalog(
        {
            "shop": (database(SHOP),),
            "register": (database(REGISTER),),
            "clinic": tuple(database(CLINIC, visits) for visits in VISITS),
            "north": (database(NORTH),),
            "south": (database(SOUTH),),
            "ward": tuple(database(WARD, beds) for beds in BEDS),
        },
        combined=("ward",),
    )
    yield found
    for con in found.databases.values():
        con.close()


@pytest.fixture(scope="session")
def central(catalog: DatabaseCatalog) -> Iterator[duckdb.DuckDBPyConnection]:
    """One database with everything: party.table and party.schema.table name what they do in SQL."""
    con = duckdb.connect()
    for party in catalog.parties():
        con.execute(f"ATTACH ':memory:' AS {party}")
        for client in catalog.clients(party):
            source = catalog.databases[client]
            for table in catalog.tables(client):
                schema = table.schema or "main"
                con.execute(f"CREATE SCHEMA IF NOT EXISTS {party}.{schema}")
                name = f'{party}.{schema}."{table.name}"'
                arrow = source.sql(f'FROM {schema}."{table.name}"').to_arrow_table()
                con.register("arrow", arrow)
                columns = ", ".join(f'"{c.name}" {_central_type(c.type)}' for c in table.columns)
                con.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
                con.execute(f"INSERT INTO {name} SELECT * FROM arrow")
                con.unregister("arrow")
    yield con
    con.close()


def _central_type(type_: str) -> str:
    return "VARCHAR" if type_.startswith("ENUM") else type_
