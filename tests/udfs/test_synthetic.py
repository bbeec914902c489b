"""Rows that are made up: by types alone, the same wherever these are."""

from __future__ import annotations

import duckdb
import pytest

from sqlfl.base.errors import Error
from sqlfl.messages import MADE_UP
from sqlfl.udfs import sql
from sqlfl.udfs.synthetic import NOTHING, SyntheticColumn, kind_of, made_up, staged
from tests.conftest import Open

PLAIN = SyntheticColumn()
WHOLE = ("TINYINT", "UTINYINT", "SMALLINT", "INTEGER", "BIGINT", "UHUGEINT", "BIGNUM")
BROKEN = ("FLOAT", "DOUBLE", "DECIMAL(9,2)", "DECIMAL(3,2)", "DECIMAL(4,4)", "DECIMAL(38,0)")
TIMES = (
    *("DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"),
    *("TIME", "TIME WITH TIME ZONE", "INTERVAL"),
)
OTHERS = ("BOOLEAN", "VARCHAR", "BLOB", "JSON", "BIT", "UUID")
NESTED = (
    *("INTEGER[]", "FLOAT[3]", "SMALLINT[2][]", "MAP(VARCHAR, INTEGER[])"),
    'STRUCT("a, (b" DECIMAL(4,1)[], c STRUCT(d DATE))',
    'UNION(num INTEGER, "s t" VARCHAR)',
)
SCALARS = (*WHOLE, *BROKEN, *TIMES, *OTHERS)


@pytest.fixture
def con(database: Open) -> duckdb.DuckDBPyConnection:
    return database()


def rows(con: duckdb.DuckDBPyConnection, kind: str, use: SyntheticColumn = PLAIN) -> list[object]:
    text = sql.to_sql(made_up({"c": (kind, use)}, "t"))
    found = con.sql(text)
    assert [str(own) for own in found.types] == [con.sql(f"SELECT NULL::{kind}").types[0]]
    return [value for (value,) in found.fetchall()]


@pytest.mark.parametrize("kind", [*SCALARS, *NESTED])
def test_every_type_has_values(con: duckdb.DuckDBPyConnection, kind: str) -> None:
    drawn, keys = rows(con, kind), rows(con, kind, SyntheticColumn(key=True))
    assert len(drawn) == len(keys) == MADE_UP
    assert None not in drawn
    assert len({repr(value) for value in drawn}) > 1
    few = {"TINYINT": 100, "UTINYINT": 100, "BOOLEAN": 2, "DECIMAL(3,2)": 10}
    assert len({repr(value) for value in keys}) == few.get(kind, MADE_UP)


@pytest.mark.parametrize("kind", [*WHOLE, *BROKEN])
def test_numbers_are_above_0(con: duckdb.DuckDBPyConnection, kind: str) -> None:
    """Logarithms and roots can be taken of them."""
    assert min(map(float, rows(con, kind))) > 0  # type: ignore[arg-type]


def test_keys_of_types_that_are_compared_match(con: duckdb.DuckDBPyConnection) -> None:
    con.execute(
        "CREATE TABLE a AS "
        + sql.to_sql(made_up({"k": ("BIGINT", SyntheticColumn(key=True))}, "a"))
    )
    for kind, asked in (("INTEGER", "k"), ("VARCHAR", "k::BIGINT"), ("DOUBLE", "k")):
        other = sql.to_sql(made_up({"k": (kind, SyntheticColumn(key=True))}, "b"))
        query = f"SELECT count(*) FROM a JOIN (SELECT {asked} AS k FROM ({other})) b ON a.k = b.k"
        assert con.execute(query).fetchall() == [(MADE_UP,)]
    for one, two in (("DATE", "TIMESTAMP"), ("TIMESTAMP", "TIMESTAMP_NS")):
        both = [
            sql.to_sql(made_up({"k": (kind, SyntheticColumn(key=True))}, "b"))
            for kind in (one, two)
        ]
        query = f"SELECT count(*) FROM ({both[0]}) a JOIN ({both[1]}) b ON a.k = b.k"
        assert con.execute(query).fetchall() == [(MADE_UP,)]


@pytest.mark.parametrize("kind", [*WHOLE[2:], *BROKEN[:3]])
def test_numbers_are_within_bounds(con: duckdb.DuckDBPyConnection, kind: str) -> None:
    found = [float(v) for v in rows(con, kind, SyntheticColumn(bounds=(2.0, 5.5)))]  # type: ignore[arg-type]
    assert 2.0 <= min(found) < 3.0
    assert 4.5 < max(found) <= 5.5
    # bounds that the type does not hold: values all the same
    assert len(rows(con, kind, SyntheticColumn(bounds=(-1e14, -1e13)))) == MADE_UP


def test_all_values_may_be_listed(con: duckdb.DuckDBPyConnection) -> None:
    found = rows(con, "VARCHAR", SyntheticColumn(listed=("yes", "no"), beside=("other",)))
    assert set(found) == {"yes", "no"}
    assert 400 < found.count("yes") < 600
    assert set(rows(con, "INTEGER", SyntheticColumn(listed=("3", "8")))) == {3, 8}


@pytest.mark.parametrize(
    ("kind", "texts", "condition"),
    [
        ("VARCHAR", ("DE",), "c = 'DE'"),
        ("VARCHAR", ("DE", "FR"), "c IN ('DE', 'FR')"),
        ("VARCHAR", ("A%",), "c LIKE 'A%'"),
        ("VARCHAR", ("DE",), "c <> 'DE'"),
        ("INTEGER", ("4711",), "c = 4711"),
        ("INTEGER", ("4711",), "c > 4711"),
        ("INTEGER", ("-4711",), "c < -4711"),
        ("BIGINT", ("9007199254740993",), "c = 9007199254740993"),
        ("UTINYINT", ("0",), "c < 1"),
        ("DOUBLE", ("1e6",), "c BETWEEN 999999 AND 1000000.5"),
        ("DATE", ("1999-12-31",), "c > DATE '1999-12-31' AND c < DATE '2000-01-02'"),
        ("DATE", ("1999", "year"), "date_part('year', c) = 1999"),
        ("TIMESTAMP", ("1999-12-31 12:00:00",), "c = TIMESTAMP '1999-12-31 12:00:00'"),
        ("VARCHAR", (None,), "c IS NULL"),
        ("VARCHAR", (None,), "c IS NOT NULL"),
        ("VARCHAR", (None, "DE"), "c = 'DE'"),
        ("VARCHAR", ("it's",), "c = 'it''s'"),
        ("ENUM", ("glad",), "c = 'glad'"),
    ],
)
def test_some_rows_fulfil_a_condition(
    con: duckdb.DuckDBPyConnection, kind: str, texts: tuple[str | None, ...], condition: str
) -> None:
    query = sql.to_sql(made_up({"c": (kind, SyntheticColumn(beside=texts))}, "t"))
    ((found,),) = con.execute(f"SELECT count(*) FROM ({query}) WHERE {condition}").fetchall()
    assert 20 < found < MADE_UP


def test_some_rows_fulfil_several(con: duckdb.DuckDBPyConnection) -> None:
    columns = {f"c{n}": ("VARCHAR", SyntheticColumn(beside=("x",))) for n in range(12)}
    query = sql.to_sql(made_up(columns, "t"))
    every = " AND ".join(f"{name} = 'x'" for name in columns)
    mixed = "c0 = 'x' AND c1 <> 'x' AND c2 = 'x' AND c3 <> 'x'"
    for condition in (every, mixed):
        ((found,),) = con.execute(f"SELECT count(*) FROM ({query}) WHERE {condition}").fetchall()
        assert found > 20


def test_a_table_without_columns_has_rows(con: duckdb.DuckDBPyConnection) -> None:
    found = con.sql(sql.to_sql(made_up({}, "t")))
    assert found.columns == [NOTHING]
    assert len(found.fetchall()) == MADE_UP


@pytest.mark.parametrize("kind", ["GEOMETRY", "STRUCT(a GEOMETRY)", "nonsense"])
def test_a_type_without_values_is_refused(kind: str) -> None:
    with pytest.raises(Error, match="column c: no values are made up of type"):
        made_up({"c": (kind, SyntheticColumn())}, "t")


def test_values_of_an_enum_are_no_ones(con: duckdb.DuckDBPyConnection) -> None:
    """Which there are is data."""
    kind = kind_of("STRUCT(m ENUM('sad, (', 'gl''ad'), n ENUM('x')[2])")
    assert kind.text == 'STRUCT("m" VARCHAR, "n" VARCHAR[2])'
    query = sql.to_sql(made_up({"c": ("ENUM('sad', 'glad')", SyntheticColumn())}, "t"))
    assert not {"sad", "glad"} & {v for (v,) in con.execute(query).fetchall()}


# -- the database ----------------------------------------------------------------------------------


TABLES = {
    ("bank", "main", "t"): {"x": ("INTEGER", SyntheticColumn())},
    ("bank", "other", "t"): {"y": ("VARCHAR", SyntheticColumn(key=True))},
    ("memory", "main", "u"): {"z": ("DOUBLE", SyntheticColumn())},
}


def test_names_mean_what_they_mean_elsewhere() -> None:
    con = staged(TABLES, ("bank", "other"))
    try:
        for name, column in (("t", "y"), ("bank.main.t", "x"), ("memory.main.u", "z")):
            found = con.sql(f"FROM {name}")
            assert (found.columns, len(found.fetchall())) == ([column], MADE_UP)
    finally:
        con.close()


def test_nothing_else_can_be_reached(tmp_path: object) -> None:
    con = staged(TABLES, ("bank", "main"))
    here = t = con.sql("SELECT 1 AS secret")  # noqa: F841
    try:
        for text in (
            "FROM read_csv('/etc/passwd')",
            "FROM '/etc/passwd'",
            "FROM here",
            "FROM glob('/*')",
            f"COPY t TO '{tmp_path}/t.csv'",
            f"ATTACH '{tmp_path}/other.duckdb' AS other",
            "SET enable_external_access = true",
            "SET python_enable_replacements = true",
            "SET memory_limit = '100GB'",
            "INSTALL httpfs",
            "LOAD '/tmp/some.duckdb_extension'",
        ):
            with pytest.raises(duckdb.Error):
                con.execute(text).fetchall()
    finally:
        con.close()


def test_the_same_types_have_the_same_rows() -> None:
    found = []
    for _ in range(2):
        con = staged(TABLES, ("bank", "main"))
        found.append([con.sql(f"FROM {'.'.join(name)}").fetchall() for name in TABLES])
        con.close()
    assert found[0] == found[1]
