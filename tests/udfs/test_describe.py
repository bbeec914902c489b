"""What a party tells of its tables."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from sqlfl.base.errors import ModelError
from sqlfl.contract.schema import Column, Place, Table
from sqlfl.udfs import describe as describe_module
from sqlfl.udfs.describe import Listing, ListingCache, current_place, describe, place_of, use
from sqlfl.udfs.sql import system_cursor
from tests.conftest import Open


def listing(con: duckdb.DuckDBPyConnection) -> Listing:
    with closing(con.cursor()) as cursor:
        return ListingCache().listing(cursor, place_of(con))


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
    far = Table("main", "far", (Column("x", "INTEGER"),), 0, "elsewhere")
    assert listing(con)[1] == (
        Table(None, "t", columns, 7),
        Table(None, "w", columns[1:2], None),
        Table("other", "u", enum, 0),
        far,
    )
    con.execute("USE memory.other")
    assert [(t.schema, t.name, t.catalog) for t in listing(con)[1]] == [
        ("main", "t", None),
        ("main", "w", None),
        (None, "u", None),
        ("main", "far", "elsewhere"),
    ]
    con.execute("USE elsewhere")
    assert [(t.schema, t.name, t.catalog) for t in listing(con)[1]] == [
        (None, "far", None),
        ("main", "t", "memory"),
        ("main", "w", "memory"),
        ("other", "u", "memory"),
    ]


def test_a_listing_is_kept_until_something_changes(
    database: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    con = database("CREATE TABLE t (a INTEGER)", "CREATE TYPE kind AS ENUM ('x')")
    made: list[int] = []

    def counted(con: duckdb.DuckDBPyConnection, *entries: Any) -> object:
        made.append(1)
        return listed(con, *entries)

    listed = describe_module._listed
    monkeypatch.setattr(describe_module, "_listed", counted)
    own, cursor = ListingCache(), con.cursor()

    def check(times: int, change: str = "") -> None:
        expected = listing(con)
        made.clear()
        assert own.listing(con, place_of(con)) == expected, change
        assert len(made) == times, change

    check(1)
    check(0)
    for change in (
        "ALTER TABLE t ADD COLUMN b INTEGER",
        "ALTER TABLE t RENAME COLUMN b TO c",
        "ALTER TABLE t ALTER COLUMN c TYPE VARCHAR",
        "ALTER TABLE t RENAME TO s",
        "INSERT INTO s VALUES (1, 'x')",
        "CREATE TABLE u (e kind)",
        "DROP TABLE u",
        "CREATE SCHEMA other",
        "CREATE TABLE other.s (a INTEGER)",
        "DROP TABLE s",
        f"ATTACH '{tmp_path / 'far.duckdb'}' AS far",
        "CREATE TABLE far.t (z DATE)",
        "USE far",
    ):
        (con if change.startswith("USE") else cursor).execute(change)
        check(1, change)
        check(0, change)


def test_few_tables_are_listed_as_many_are(database: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    con = database(
        """CREATE TABLE "an ""odd"".table" (
          "A b" INTEGER PRIMARY KEY, s STRUCT(x INTEGER, "y z" VARCHAR[]), "ü" MAP(INTEGER, DATE),
          g INTEGER GENERATED ALWAYS AS (3), d DECIMAL(5, 2)[] DEFAULT [])""",
        "CREATE TYPE kind AS ENUM ('it''s', 'b')",
        'CREATE SCHEMA "a.b"',
        'CREATE TABLE "a.b".t (k kind, n kind[])',
        "CREATE TEMP TABLE t (hidden INTEGER)",
        "ATTACH ':memory:' AS \"t\"",
        'CREATE TABLE "t".t (far INTEGER)',
    )
    asked: list[object] = []
    many = describe_module._with_columns
    monkeypatch.setattr(describe_module, "_with_columns", lambda: asked.append(1) or many())
    few = listing(con)
    assert not asked
    monkeypatch.setattr(describe_module, "_FEW", 2)
    assert listing(con) == few
    assert asked
    assert len(few[1]) == 3


def test_a_table_that_goes_while_it_is_listed(
    database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    con = database("CREATE TABLE t (a INTEGER)", "CREATE TABLE u (b INTEGER)")
    ask = describe_module._columns_of

    def late(con: duckdb.DuckDBPyConnection, entries: list[tuple[object, ...]]) -> object:
        con.execute("DROP TABLE IF EXISTS t")
        return ask(con, entries)

    monkeypatch.setattr(describe_module, "_columns_of", late)
    own = ListingCache()
    expected = (Table(None, "u", (Column("b", "INTEGER"),), 0),)
    assert own.listing(con, place_of(con))[1] == expected
    con.execute("ALTER TABLE u RENAME b TO c")
    assert own.listing(con, place_of(con))[1][0].columns == (Column("c", "INTEGER"),)


def test_where_there_is_a_view_the_listing_is_made_each_time(database: Open) -> None:
    con = database("CREATE TABLE t (a INTEGER)", "CREATE VIEW v AS FROM t")
    own = ListingCache()
    assert own.listing(con.cursor(), place_of(con)) == listing(con)
    con.execute("DROP TABLE t")
    con.execute("CREATE TABLE t (a VARCHAR)")
    assert own.listing(con.cursor(), place_of(con)) == listing(con)


def test_tables_of_one_name_in_several_databases(database: Open) -> None:
    con = database(
        "CREATE TABLE t (a INTEGER)",
        "ATTACH ':memory:' AS far",
        "CREATE TABLE far.t (b VARCHAR, c INTEGER)",
        "CREATE VIEW far.v AS SELECT 1 AS d",
    )
    assert listing(con)[1] == (
        Table(None, "t", (Column("a", "INTEGER"),), 0),
        Table("main", "t", (Column("b", "VARCHAR"), Column("c", "INTEGER")), 0, "far"),
        Table("main", "v", (Column("d", "INTEGER"),), None, "far"),
    )


def test_places_are_schemas_that_tables_can_lie_in(database: Open, tmp_path: Path) -> None:
    path = tmp_path / "read.duckdb"
    database("CREATE SCHEMA s", path=str(path)).close()
    con = database(
        "CREATE SCHEMA other",
        "CREATE SCHEMA sqlfl",
        "CREATE SCHEMA temp",
        f"ATTACH '{path}' AS read (READ_ONLY)",
        "USE memory.other",
    )
    assert listing(con)[0] == (
        Place("memory", "other"),
        Place("memory", "main"),
        Place("memory", "temp"),
        Place("read", "main", writable=False),
        Place("read", "s", writable=False),
    )


def test_the_current_place_is_told_without_running_anything(database: Open) -> None:
    con = database("ATTACH ':memory:' AS \"far.off\"", 'CREATE SCHEMA "far.off"."a ""b"""')
    assert current_place(con) == ("memory", "main")
    con.execute('USE "far.off"."a ""b"""')
    con.execute("FROM range(9000)")
    assert con.fetchmany(1) == [(0,)]
    assert current_place(con) == ("far.off", 'a "b"')
    assert con.fetchmany(1) == [(1,)]
    cursor = con.cursor()
    try:
        assert current_place(cursor) == ("memory", "main")
        use(cursor, current_place(con))
        assert place_of(cursor) == ("far.off", 'a "b"')
        with pytest.raises(duckdb.CatalogException):
            use(cursor, ("far.off", "gone"))
    finally:
        cursor.close()
    con.complete()


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


def test_listing_without_a_search_path(database: Open) -> None:
    con = database("CREATE SCHEMA s", "CREATE TABLE s.t (a INTEGER)", "CREATE VIEW v AS FROM s.t")
    expected = listing(con)
    assert [table.name for table in expected[1]] == ["v", "t"]
    with closing(system_cursor(con)) as cursor:
        assert ListingCache().listing(cursor, ("memory", "main")) == expected
    with closing(system_cursor(con)) as cursor:  # which the listing changed: there is a view
        con.execute("DROP VIEW v")
        assert ListingCache().listing(cursor, ("memory", "s"))[1][0].name == "t"
        with pytest.raises(duckdb.CatalogException):
            ListingCache().listing(cursor, ("memory", "gone"))
