"""Which table a name means, as the catalog has it."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from sqlfl.governance.names import CHANGING, Listed, NameLookup, unsteady
from tests.open_databases import in_memory

MADE = """CREATE TABLE t (a INTEGER, "B c" DOUBLE); CREATE VIEW v AS SELECT a FROM t;
CREATE SCHEMA hr; CREATE TABLE hr.t (z INTEGER); CREATE SCHEMA "Odd";
CREATE TABLE "Odd"."Ta ble" (x INTEGER); CREATE VIEW broken AS SELECT 1 AS k;
CREATE TABLE main.both (m INTEGER); CREATE SCHEMA other; CREATE TABLE other.both (o INTEGER)"""


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with in_memory() as found:
        found.execute(MADE)
        found.execute("ATTACH ':memory:' AS far; CREATE TABLE far.t (f INTEGER)")
        found.execute("CREATE SCHEMA far.hr; CREATE TABLE far.hr.t (h INTEGER)")
        found.execute("ATTACH ':memory:' AS other; CREATE TABLE other.main.both (d INTEGER)")
        yield found
        found.execute("DETACH far; DETACH other")


@pytest.fixture
def names(con: duckdb.DuckDBPyConnection) -> NameLookup:
    return NameLookup(lambda: con, ("memory", "main"))


@pytest.mark.parametrize(
    ("parts", "table", "columns"),
    [
        ("t", "memory.main.t", "a,B c"),
        ("T", "memory.main.T", "a,B c"),
        ("main.t", "memory.main.t", "a,B c"),
        ("hr.t", "memory.hr.t", "z"),
        ("HR.t", "memory.HR.t", "z"),
        ("far.t", "far.main.t", "f"),
        ("far.hr.t", "far.hr.t", "h"),
        ("memory.hr.t", "memory.hr.t", "z"),
        ("Odd.Ta ble", "memory.Odd.Ta ble", "x"),
        ("v", "memory.main.v", "a"),
        # a schema of the current database before another database
        ("other.both", "memory.other.both", "o"),
        ("other.main.both", "other.main.both", "d"),
    ],
)
def test_what_a_name_means(names: NameLookup, parts: str, table: str, columns: str) -> None:
    assert names.table(parts.split(".")) == (tuple(table.split(".")), tuple(columns.split(",")))


@pytest.mark.parametrize(
    "parts",
    ["gone", "hr.gone", "gone.t", "memory.gone.t", "gone.main.t", "a.memory.main.t", "", "x.csv",
     "duckdb_settings()", "read_csv('x')"],
)  # fmt: skip
def test_names_of_nothing(names: NameLookup, parts: str) -> None:
    assert names.table(parts.split(".")) is None
    assert names.table([]) is None


def test_views_are_known_from_tables(con: duckdb.DuckDBPyConnection, names: NameLookup) -> None:
    for name, view in (("t", False), ("v", True)):
        found = names.table([name])
        assert found is not None
        assert names.is_view(found[0]) == view
    con.execute("DROP TABLE t")  # and a view of what is gone is none
    assert NameLookup(lambda: con, ("memory", "main")).table(["v"]) is None


def test_a_temporary_view_of_that_name_is_in_the_way(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("CREATE TEMP VIEW T AS SELECT 1 AS secret")
    assert NameLookup(lambda: con, ("memory", "main")).table(["t"]) is None
    assert NameLookup(lambda: con, ("memory", "main")).table(["Odd", "Ta ble"]) is not None


def test_a_name_is_looked_up_once(con: duckdb.DuckDBPyConnection, names: NameLookup) -> None:
    before = names.table(["t"])
    con.execute("ALTER TABLE t ADD COLUMN late INTEGER")
    assert names.table(["T"]) == before
    assert names.table(["gone"]) is None
    con.execute("CREATE TABLE gone (a INTEGER)")
    assert names.table(["gone"]) is None


def test_what_was_listed_is_not_looked_up(con: duckdb.DuckDBPyConnection) -> None:
    listed = Listed()
    listed.add(("memory", "main", "X"), ("k",), ("BIGINT",), view=False)
    listed.add(("memory", "hr", "W"), ("l",), ("DATE",), view=True)
    names = NameLookup(lambda: con, ("memory", "main"), listed)
    assert names.table(["x"]) == (("memory", "main", "x"), ("k",))
    assert names.table(["hr", "w"]) == (("memory", "hr", "w"), ("l",))
    assert not names.is_view(("memory", "main", "x"))
    assert names.is_view(("memory", "hr", "w"))
    assert names.table(["hr", "t"]) == (("memory", "hr", "t"), ("z",))
    # what is found later is not listed
    found = names.table(["v"])
    assert found is not None
    assert names.is_view(found[0])
    assert listed.views == {("memory", "hr", "w")}


# -- rows that are others each time ----------------------------------------------------------------

BASE = """CREATE SEQUENCE q; CREATE TABLE rows_ (
  a DOUBLE DEFAULT random(), born DATE, day DATE, u DOUBLE GENERATED ALWAYS AS (a + 1));
CREATE TABLE drawn (a INTEGER, r DOUBLE GENERATED ALWAYS AS (a + (random())));
CREATE MACRO chance(x) AS x + random(); CREATE MACRO twice(x) AS chance(x) + 1;
CREATE MACRO plain(x) AS x + 1; CREATE MACRO clock() AS TABLE SELECT now() AS n;
CREATE TABLE many AS SELECT sin(i) AS a, DATE '2020-01-01' + (i % 9)::INTEGER AS born,
  DATE '2020-01-01' + (i % 7)::INTEGER AS day FROM range(122_881) AS r(i);
CREATE SCHEMA far_; CREATE VIEW far_.inner_ AS SELECT *, now() AS at FROM rows_"""


@pytest.mark.parametrize(
    "select",
    [
        "SELECT *, now() AS at FROM rows_",
        "SELECT *, CURRENT_DATE - born AS days FROM rows_",
        "SELECT *, age(born) AS years FROM rows_",
        "SELECT *, age(greatest(born, day)) AS years FROM rows_",
        "SELECT *, born::TIMESTAMP.age() AS years FROM rows_",
        'SELECT *, "random"() AS r FROM rows_',
        "SELECT *, nextval('q') AS n FROM rows_",
        "SELECT *, 'q'.nextval() AS n FROM rows_",
        "SELECT twice(a) AS r FROM rows_",
        "SELECT * FROM rows_, clock()",
        "SELECT a FROM drawn",
        "SELECT a FROM far_.inner_",
        "SELECT a FROM rows_ WHERE random() < 0.5",
        "SELECT a FROM (SELECT a, uuid() AS u FROM rows_)",
        "SELECT a FROM rows_ TABLESAMPLE 50%",
        "SELECT a FROM rows_ USING SAMPLE 10 ROWS",
        "SELECT a FROM (SELECT a FROM rows_ USING SAMPLE reservoir(10 ROWS) REPEATABLE (1))",
        "FROM query('SELECT a, random() AS r FROM rows_')",
        "FROM query_table('drawn')",
        "SELECT a, (SELECT count(*) FROM duckdb_settings()) AS n FROM rows_",
        "SELECT a, stats(a) AS s FROM rows_",
        "SELECT born, sum(a) AS s FROM (FROM rows_ UNION ALL FROM rows_) GROUP BY born",
        "SELECT born, sum(a) AS s FROM many GROUP BY born",
        "SELECT born, any_value(day) AS d, max(a) AS m FROM many GROUP BY born",
        "SELECT DISTINCT ON (born) * FROM many",
        "SELECT * FROM many ORDER BY born LIMIT 10",
        "SELECT *, row_number() OVER (ORDER BY born) AS n FROM many",
        "SELECT r.*, m.a AS b FROM rows_ r ASOF JOIN many m ON r.born >= m.born",
        "WITH w AS MATERIALIZED (SELECT born, avg(a) AS s FROM many GROUP BY born) FROM w",
        "SELECT a FROM rows_ WHERE a > (SELECT avg(a) FROM many)",
    ],
)
def test_rows_that_are_others_each_time(select: str) -> None:
    with in_memory() as con:
        con.execute(f"{BASE}; CREATE VIEW v AS {select}; CREATE VIEW over_ AS SELECT a FROM rows_")
        assert unsteady(con, ("memory", "main", "v"))
        assert unsteady(con, ("memory", "main", "drawn"))
        assert not unsteady(con, ("memory", "main", "over_"))


@pytest.mark.parametrize(
    "select",
    [
        "SELECT * FROM rows_",
        "SELECT *, 'now() random()' AS said FROM rows_",
        "SELECT a AS random, born AS now FROM rows_ -- now()",
        "SELECT *, age(day, born) AS years FROM rows_",
        "SELECT plain(a) AS b, date_part('year', born) AS y FROM rows_",
        "SELECT born, avg(a) AS m, any_value(day) AS d FROM rows_ GROUP BY born",
        "SELECT *, row_number() OVER (PARTITION BY born) AS n FROM rows_",
        "SELECT born, count(*) AS n, max(a) AS m, median(a) AS h FROM many GROUP BY born",
        "SELECT *, rank() OVER (ORDER BY born) AS n FROM many",
        "SELECT m.* FROM many m JOIN rows_ USING (born) WHERE m.a > 0",
        "SELECT DISTINCT born FROM (FROM many UNION ALL FROM many)",
    ],
)
def test_rows_that_stay_the_same(select: str) -> None:
    with in_memory() as con:
        con.execute(f"{BASE}; CREATE VIEW v AS {select}")
        assert not unsteady(con, ("memory", "main", "v"))
        assert not unsteady(con, ("memory", "main", "rows_"))  # a default is no value of a row


def test_all_functions_that_change_are_known(con: duckdb.DuckDBPyConnection) -> None:
    """Functions of a session alone, of errors and of plans give rows no other values."""
    text = """SELECT function_name FROM duckdb_functions() WHERE internal
      AND function_type IN ('scalar', 'aggregate')
      GROUP BY ALL HAVING bool_and(stability <> 'CONSISTENT')"""
    harmless = {
        "current_database", "current_schema", "current_schemas", "error", "in_search_path",
        "sleep_ms", "write_log",
    }  # fmt: skip
    assert {name for (name,) in con.sql(text).fetchall()} - {*CHANGING} <= harmless
