"""What a party tells of its tables."""

from __future__ import annotations

import duckdb
import pytest

from sqlfl.errors import ModelError
from sqlfl.schema import Column, Table
from sqlfl.udfs.describe import describe, list_tables
from tests.conftest import Open


def test_tables_and_views_of_all_schemas(database: Open) -> None:
    con = database(
        "CREATE TABLE t (b INTEGER, a DECIMAL(9,2), v FLOAT[3])",
        "INSERT INTO t SELECT range, 0, [1, 2, 3] FROM range(7)",
        "CREATE VIEW w AS SELECT a FROM t",
        "CREATE SCHEMA other",
        "CREATE TYPE kind AS ENUM ('x', 'y')",
        "CREATE TABLE other.u (e kind, z TIMESTAMPTZ)",
        "CREATE SCHEMA sqlfl",
        "CREATE TABLE sqlfl.models (x INTEGER)",
        "CREATE TEMP TABLE hidden (x INTEGER)",
        "ATTACH ':memory:' AS elsewhere",
        "CREATE TABLE elsewhere.far (x INTEGER)",
    )
    columns = (Column("b", "INTEGER"), Column("a", "DECIMAL(9,2)"), Column("v", "FLOAT[3]"))
    enum = Column("e", "ENUM"), Column("z", "TIMESTAMP WITH TIME ZONE")
    assert list_tables(con) == (
        Table(None, "t", columns, 7),
        Table(None, "w", columns[1:2], None),
        Table("other", "u", enum, 0),
    )
    con.execute("USE memory.other")
    assert [(t.schema, t.name) for t in list_tables(con)] == [
        ("main", "t"),
        ("main", "w"),
        (None, "u"),
    ]


def test_describe_binds_and_runs_nothing(database: Open) -> None:
    con = database("CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES (1)")
    query = "SELECT a, a / 0 AS b, error('it ran') AS c, a > 1 AS \"d e\" FROM t"
    assert [c.name for c in describe(con, query)] == ["a", "b", "c", "d e"]
    assert describe(con, query)[3].type == "BOOLEAN"


def test_describe_refuses_what_is_no_query(database: Open) -> None:
    con = database("CREATE TABLE t (a INTEGER)")
    for text in ("DROP TABLE t", "SELECT 1; SELECT 2", ""):
        with pytest.raises(ModelError):
            describe(con, text)
    with pytest.raises(duckdb.BinderException):
        describe(con, "SELECT b FROM t")
