"""A party's macros that have names of DuckDB's own functions and operators hide nothing."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pytest

import sqlfl
from tests.depth import in_turn

MACROS = """
sum(x) AS 42
count(x) AS 3
min(x) AS 0
max(x) AS 0
list(x) AS [0]
first(x) AS 0
"+"(a, b) AS 99
"-"(a, b) AS 0
"*"(a, b) AS 0
"/"(a, b) AS 0
"%"(a, b) AS 0
"||"(a, b) AS 'q'
"~~"(a, b) AS false
nullif(a, b) AS 7
ifnull(a, b) AS 4
encode(x) AS 'z'::BLOB
hash(x) AS 4
array_extract(a, b) AS 9
array_slice(a, b, c) AS 'z'::BLOB
struct_pack(x) AS 3
"row"(x) AS 4
sha256(x) AS 'x'
unhex(x) AS 'a'::BLOB
concat(a, b) AS 'q'
lower(x) AS 'u'
isnan(x) AS true
abs(x) AS 0
sqrt(x) AS 0
exp(x) AS 0
length(x) AS 0
octet_length(x) AS 0
mod(a, b) AS 1
list_transform(a, b) AS 0
list_sum(x) AS 0
row_number() AS 0
current_database() AS 'x'
current_setting(x) AS 'x'
txid_current() AS random()
json_serialize_sql(x) AS '{}'
range(x) AS TABLE SELECT 3 AS range
duckdb_tables() AS TABLE SELECT 1 AS one
duckdb_schemas() AS TABLE SELECT 1 AS one
twice(x) AS x + x
list_value(x) AS 9
""".strip().split("\n")
QUERIES = (
    "SELECT t.x, t.v, u.c, u.z, t.y FROM a.t JOIN b.u ON t.ks = u.ks",
    "SELECT t.x, g.n, t.y FROM a.t LEFT JOIN (SELECT ks, sum(z) AS n FROM b.u GROUP BY ks) g "
    "ON t.ks = g.ks",
    "SELECT t.x + 1 AS p, nullif(t.k, 3) AS n, w.w, 'a' || u.c AS c, u.c LIKE '%1' AS l, "
    "u.tags[1] AS g, t.y FROM a.t JOIN a.s.w ON t.k = w.k JOIN b.u ON lower(t.ks) = u.ks",
    "SELECT (SELECT sum(w) FROM a.s.w q WHERE q.k <= t.k) AS run, u.z, t.y "
    "FROM a.t JOIN b.u ON t.ks = u.ks WHERE length(u.ks) > 1",
)


def parties(macros: Sequence[str]) -> list[duckdb.DuckDBPyConnection]:
    a, b = duckdb.connect(), duckdb.connect()
    a.execute(
        "CREATE SCHEMA s; CREATE TABLE t AS SELECT i AS k, 'k' || i AS ks, sin(i) AS x, "
        "cos(i) + i % 3 AS y, [sin(i), cos(2 * i)]::DOUBLE[2] AS v FROM range(60) r(i); "
        "CREATE TABLE s.w AS SELECT i AS k, i * 1.5 AS w FROM range(60) r(i)"
    )
    b.execute(
        "CREATE TABLE u AS SELECT i AS k, 'k' || i AS ks, sin(3 * i) AS z, 'd' || i % 4 AS c, "
        "[i % 5, 1] AS tags FROM range(0, 60, 2) r(i); "
        "CREATE TABLE duckdb_views AS SELECT k AS n FROM u"
    )
    for con in (a, b):
        for macro in macros:
            con.execute(f"CREATE MACRO {macro}")
    b.execute("CREATE VIEW v AS SELECT ks, CAST(abs(z) AS DOUBLE) AS z FROM u")
    return [a, b]


def trained(statement: str, macros: Sequence[str]) -> sqlfl.Federation:
    fed = sqlfl.connect(progress=False)
    for name, con in zip("ab", parties(macros), strict=True):
        fed.attach(name, con)
    fed.sql(statement)
    return fed


@pytest.mark.parametrize(("query", "engine"), in_turn(QUERIES, ("arrays", "sql")))
def test_macros_named_like_functions_change_nothing(query: str, engine: str) -> None:
    how = f"WITH (engine = '{engine}', epochs = 3)"
    statement = f"TRAIN MODEL m USING linear_regression TARGET y {how} FROM ({query})"
    found = []
    for macros in ((), MACROS):
        with trained(statement, macros) as fed:
            found.append([fed.model("m").metrics[name] for name in ("rows", "loss", "rmse")])
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_other_macros_and_views_stay_as_their_owner_made_them() -> None:
    query = (
        "SELECT twice(t.x) AS x, d.n, t.y FROM a.t JOIN b.v ON t.ks = v.ks "
        "JOIN b.duckdb_views d ON t.k = d.n WHERE twice(t.k) = 2 * t.k AND v.z = 0"
    )
    statement = f"TRAIN MODEL m USING linear_regression TARGET y FROM ({query})"
    with trained(statement, MACROS) as fed:
        assert fed.model("m").metrics["rows"] == 30
