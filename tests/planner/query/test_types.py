"""The planner's table of types against DuckDB itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations_with_replacement, permutations

import duckdb
import pytest
from sqlglot import exp

from sqlfl.planner.grammar import refusals, trees
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.query import types

NUMBERS = (
    "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER",
    "UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE", "BIGNUM", "DECIMAL(3,0)", "DECIMAL(9,4)",
    "DECIMAL(18,3)", "DECIMAL(38,10)",
)  # fmt: skip
TEXTS = ("VARCHAR", "ENUM('a', 'b')", "ENUM('b')")
TIMES = (
    "DATE", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE",
    "TIME",
)  # fmt: skip
ZONED_TIME = "TIME WITH TIME ZONE"
OTHERS = ("BOOLEAN", "UUID", "BLOB")
TYPES = (*NUMBERS, *TEXTS, *TIMES, *OTHERS)
PAIRS = [
    pair
    for pair in combinations_with_replacement(TYPES, 2)
    if types.comparison_type(*pair) is not None
]


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    con = duckdb.connect()
    con.execute("PRAGMA explain_output = 'all'")
    yield con
    con.close()


def compared_as(con: duckdb.DuckDBPyConnection, left: str, right: str) -> str:
    """What DuckDB's plan of `l = r` casts both sides to."""
    con.execute(f"CREATE OR REPLACE TABLE t (l {left}, r {right})")
    plans = dict(con.execute("EXPLAIN (FORMAT json) SELECT * FROM t WHERE l = r").fetchall())
    text = json.loads(plans["logical_plan"])[0]["children"][0]["extra_info"]["Expressions"]
    casts = re.findall(r"CAST\([lr] AS ([A-Z_]+(?: WITH TIME ZONE)?(?:\(\d+,\d+\))?)\)", text)
    if casts:
        assert len(set(casts)) == 1
        return str(casts[0])
    assert left == right
    return left


@pytest.mark.parametrize(("left", "right"), PAIRS, ids=lambda name: str(name))
def test_comparison_is_duckdbs(con: duckdb.DuckDBPyConnection, left: str, right: str) -> None:
    found = types.comparison_type(left, right)
    assert found == types.comparison_type(right, left)
    if types.is_text(left) and left == right:
        assert found == "VARCHAR"  # of an enum: equal texts are equal values
    else:
        assert found == compared_as(con, left, right)


@pytest.mark.parametrize(("left", "right"), list(permutations((*TIMES, ZONED_TIME), 2)))
def test_a_comparison_that_depends_on_the_order_has_no_type(
    con: duckdb.DuckDBPyConnection, left: str, right: str
) -> None:
    """`l = r` is a join key, of which either side may stand first."""
    try:
        ways = {compared_as(con, left, right), compared_as(con, right, left)}
    except duckdb.BinderException:  # the types cannot be compared
        return
    assert len(ways) == 1 or types.comparison_type(left, right) is None


@pytest.mark.parametrize("name", [t for t in TYPES if types.can_be_key(t)])
def test_keys_can_be_cast_and_have_a_neutral_value(
    con: duckdb.DuckDBPyConnection, name: str
) -> None:
    type_ = "VARCHAR" if types.is_text(name) else name
    value = trees.cast(exp.Literal.string(types.neutral(type_)), type_)
    found = con.execute(f"SELECT typeof(x), x IS NULL FROM (SELECT {value.sql('duckdb')} AS x)")
    assert found.fetchone() == (type_, False)


@pytest.mark.parametrize(("left", "right"), list(combinations_with_replacement(NUMBERS[:10], 2)))
def test_lossless_widening_holds_the_bounds(
    con: duckdb.DuckDBPyConnection, left: str, right: str
) -> None:
    wide = types.lossless(left, right)
    bounds = {}
    for name in (left, right, *([wide] if wide else [])):
        bits = {"TINY": 8, "SMALL": 16, "INTEGER": 32, "BIG": 64, "HUGE": 128}
        size = next(b for word, b in bits.items() if word in name.removeprefix("U"))
        unsigned = name.startswith("U")
        bounds[name] = (0, 2**size) if unsigned else (-(2 ** (size - 1)), 2 ** (size - 1))
    if wide is not None:
        assert all(bounds[wide][0] <= bounds[n][0] for n in (left, right))
        assert all(bounds[wide][1] >= bounds[n][1] for n in (left, right))


@pytest.mark.parametrize(
    ("narrow", "one", "other"),
    [
        ("TINYINT", "127", "126"),
        ("INTEGER", "2147483647", "2147483646"),
        ("UINTEGER", "4294967295", "4294967294"),
        ("BIGINT", "9007199254740993", "9007199254740992"),
        ("FLOAT", "16777215", "16777214"),
        ("DOUBLE", "9007199254740992", "9007199254740991"),
        ("DATE", "2024-01-02", "2024-01-01"),
        ("TIMESTAMP", "2024-01-02 00:00:00.000001", "2024-01-02"),
        ("VARCHAR", "07", "7"),
        ("VARCHAR", "2024-01-01", "2024-1-1"),
    ],
)
def test_unlike_values_stay_unlike(
    con: duckdb.DuckDBPyConnection, narrow: str, one: str, other: str
) -> None:
    for wide in ("BIGINT", "FLOAT", "DOUBLE", "DECIMAL(20,1)", "VARCHAR", "DATE", "TIMESTAMP"):
        if types.comparison_type(narrow, wide) != wide:
            continue
        values = ", ".join(f"CAST(CAST('{value}' AS {narrow}) AS {wide})" for value in (one, other))
        try:
            (count,) = con.execute(
                f"SELECT count(DISTINCT x) FROM unnest([{values}]) t(x)"
            ).fetchone()
        except duckdb.ConversionException:
            continue
        assert count == 2 or not types.keeps_unlike(narrow, wide), wide
    assert not types.keeps_unlike("BIGINT", "DOUBLE")
    assert not types.keeps_unlike("VARCHAR", "INTEGER")
    assert types.keeps_unlike("INTEGER", "DOUBLE")
    assert types.keeps_unlike("DATE", "TIMESTAMP")


def test_union_types() -> None:
    assert types.union_type(("INTEGER", "DOUBLE")) == "DOUBLE"
    assert types.union_type(("BOOLEAN", "SMALLINT")) == "SMALLINT"
    assert types.union_type(("ENUM('a')", "ENUM('b')")) == "VARCHAR"
    assert types.union_type(("FLOAT[3]", "DOUBLE[3]")) == "DOUBLE[3]"
    assert types.union_type(("FLOAT[3]", "FLOAT[4]")) is None
    assert types.union_type(("FLOAT[3]", "FLOAT")) is None
    assert types.union_type(("VARCHAR", "INTEGER")) is None
    assert types.union_type(('"NULL"', "INTEGER")) == "INTEGER"


@pytest.mark.parametrize("branches", [("INTEGER", "DOUBLE"), ("BOOLEAN", "BIGINT"),
    ("SMALLINT", "UINTEGER"), ("DECIMAL(4,1)", "INTEGER"), ("DATE", "TIMESTAMP"),
    ("FLOAT", "BIGINT"), ("FLOAT[2]", "DOUBLE[2]")])  # fmt: skip
def test_union_is_duckdbs(con: duckdb.DuckDBPyConnection, branches: tuple[str, str]) -> None:
    left, right = branches
    query = f"SELECT typeof(x) FROM (SELECT NULL::{left} AS x UNION ALL SELECT NULL::{right})"
    assert con.execute(query).fetchone() == (types.union_type(branches),)


def test_kinds() -> None:
    assert types.kind("DECIMAL(9,2)") == "numeric"
    assert types.kind("BOOLEAN") == "boolean"
    assert types.kind("ENUM('a', 'B')") == "category"
    assert (types.kind("FLOAT[32]"), types.array_width("FLOAT[32]")) == ("array", 32)
    decimals = "DECIMAL(5,1)[2]"
    assert (types.kind(decimals), types.array_width(decimals)) == ("array", 2)
    for name in ("DATE", "TIME", "INTERVAL", "UUID", "BLOB", "FLOAT[]", "FLOAT[2][3]", "BIT",
                 "STRUCT(a INTEGER)", "MAP(VARCHAR, INTEGER)", "VARCHAR[3]", "JSON",
                 "DECIMAL(5,1)[]", "ENUM('a', 'b')[]", "ENUM('a', 'b')[2]"):  # fmt: skip
        assert types.kind(name) is None
        assert types.feature_hint(name)
        assert not types.can_be_key(name) or name in ("DATE", "TIME", "UUID", "BLOB")


def test_names_that_spare_a_question_are_duckdbs(con: duckdb.DuckDBPyConnection) -> None:
    rows = con.execute("SELECT function_name, function_type, stability FROM duckdb_functions()")
    known = rows.fetchall()
    aggregates = {name for name, kind, _ in known if kind == "aggregate"}
    assert aggregates <= refusals.AGGREGATES
    scalar = {name for name, kind, _ in known if kind == "scalar"}
    assert not scalar & (refusals.AGGREGATES - aggregates)
    volatile = {name for name, _, stability in known if stability == "VOLATILE"}
    assert volatile - {"error", "stats", "vector_type"} == refusals.VOLATILE


@pytest.mark.parametrize("word", ["select", "Order", "carrier", "two words", "9a", "date", "row"])
def test_identifiers_are_quoted_where_needed(con: duckdb.DuckDBPyConnection, word: str) -> None:
    name = to_sql(trees.identifier(word))
    found = con.execute(f"SELECT {name} FROM (SELECT 1 AS {name})")
    assert found.description[0][0] == word


def test_every_keyword_that_needs_quotes_has_them(con: duckdb.DuckDBPyConnection) -> None:
    rows = con.execute("SELECT keyword_name FROM duckdb_keywords()").fetchall()
    for (word,) in rows:
        name = to_sql(trees.identifier(word))
        con.execute(f"SELECT {name} AS {name} FROM (SELECT 1 AS {name}) WHERE {name} > 0")


def test_values_of_a_type_keep_their_case() -> None:
    for type_ in ("ENUM('a', 'B')", 'STRUCT(a INTEGER, "B" DOUBLE)'):
        assert types.normal(f" {type_} ") == type_
    assert types.normal(" Integer") == "INTEGER"
