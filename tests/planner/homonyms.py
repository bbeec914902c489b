"""Tables whose columns, fields of structs, aliases and schemas share names, at five parties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import duckdb

from sqlfl.contract.schema import Client, Table
from tests.planner.conftest import DatabaseCatalog, database

A = """
CREATE TABLE t(id INT, k INT, n INT, x DOUBLE, li INT[], y BOOLEAN);
INSERT INTO t VALUES
  (0, 0, 3, 0.5, [1, 2], true), (1, 1, 1, 1.5, [3], false), (2, 2, 2, NULL, [], true),
  (3, NULL, 0, 3.5, NULL, false), (4, 1, 9, 4.5, [0, 5, 1], NULL), (5, 7, -4, 5.5, [2], true);
CREATE TABLE s(id INT, n INT, w INT);
INSERT INTO s VALUES (0, 10, 20), (1, 11, 21), (2, NULL, 22), (9, 1, 23);
CREATE TABLE kv(k INT, t STRUCT(n INT, k INT));
INSERT INTO kv VALUES
  (0, {n: 100, k: 2}), (1, {n: 101, k: 1}), (3, {n: 102, k: 0}), (NULL, NULL);
CREATE TABLE st(id INT, k INT, st STRUCT(f INT, k INT), f INT, y BOOLEAN);
INSERT INTO st VALUES
  (0, 0, {f: 50, k: 60}, 70, true), (1, 2, {f: 51, k: 1}, 71, false), (2, 1, NULL, 72, true),
  (8, 5, {f: 0, k: 2}, 2, false);
CREATE SCHEMA q;
CREATE TABLE q.t(id INT, n INT, z INT);
INSERT INTO q.t VALUES (1, 2, 3), (2, 0, 1);
"""
B = """
CREATE TABLE u(id INT, k INT, z INT, m INT);
INSERT INTO u VALUES
  (0, 0, 500, 600), (1, 1, 501, 601), (2, 1, 502, 602), (3, 4, 503, 3), (NULL, NULL, 504, 1);
"""
C = """
CREATE TABLE v(id INT, k INT, w INT);
INSERT INTO v VALUES (0, 0, 700), (1, 3, 701), (2, 2, 702), (3, NULL, 703), (4, 1, 1);
"""
LACKING = (
    "CREATE TABLE p(id INT, k INT, q INT); INSERT INTO p VALUES (0, 0, 900), (1, 1, 901);",
    "CREATE TABLE p(id INT, k INT, q INT, z INT); INSERT INTO p VALUES (2, 1, 902, 7);",
)
ORDERED = (
    "CREATE TABLE r(id INT, k INT, q INT); INSERT INTO r VALUES (0, 0, 900), (1, 1, 901);",
    "CREATE TABLE r(q INT, id INT, k INT); INSERT INTO r VALUES (902, 2, 1), (903, 5, 2);",
)
WHOLE = """
CREATE TABLE r(id INT, k INT, q INT);
INSERT INTO r VALUES (0, 0, 900), (1, 1, 901), (2, 1, 902), (5, 2, 903);
"""
CENTRAL = {"a": A, "b": B, "c": C, "e": WHOLE}


class SizedCatalog(DatabaseCatalog):
    """As the parties tell it: tables have a size, and so a rowid."""

    def tables(self, client: Client) -> tuple[Table, ...]:
        return tuple(replace(table, rows=10) for table in super().tables(client))


def catalog_of(parties: Mapping[str, tuple[str, ...]] | None = None) -> DatabaseCatalog:
    scripts = {"a": (A,), "b": (B,), "c": (C,), "d": LACKING, "e": ORDERED}
    return SizedCatalog(
        {party: tuple(map(database, own)) for party, own in (parties or scripts).items()}
    )


def central_of(scripts: Mapping[str, str] = CENTRAL) -> duckdb.DuckDBPyConnection:
    """One database with everything: each party is a database of it."""
    con = duckdb.connect()
    for party, script in scripts.items():
        con.execute(f"ATTACH ':memory:' AS {party}; USE {party}; {script}; USE memory")
    return con
