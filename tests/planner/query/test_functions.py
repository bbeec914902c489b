"""What a function is, its party's database says: no list of names decides."""

from __future__ import annotations

import re
from collections.abc import Iterator

import duckdb
import pytest

from sqlfl.base.errors import PlanError
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.statements import EvaluateModel
from sqlfl.planner.query.rules import to_ucq
from sqlfl.planner.query.ucq import Ucq
from tests.planner.central import ordered, planned_rows
from tests.planner.conftest import DatabaseCatalog, database

MACROS = """
CREATE MACRO total(a) AS sum(a);
CREATE MACRO share(a) AS 1 + total(a);
CREATE MACRO spread(l) AS unnest(l);
CREATE MACRO place(a) AS row_number() OVER (ORDER BY a);
CREATE MACRO draw(a) AS a + random();
CREATE MACRO most(a) AS a + (SELECT max(v) FROM (VALUES (7)) q(v));
CREATE MACRO twice(a) AS a * 2;
CREATE MACRO sem(a) AS a + 1;
CREATE MACRO ladder(a) AS list_sum(list_transform([1, 2], lambda k: k * a));
CREATE MACRO along(l, a) AS list_sum([k * a FOR k IN l]);
CREATE MACRO inner_k(a) AS (SELECT sum(q.k * a) FROM range(3) q(k));
"""
A = """
CREATE TABLE t (id INTEGER, k INTEGER, n INTEGER, x DOUBLE, li INTEGER[], s VARCHAR, y DOUBLE);
INSERT INTO t SELECT i, i % 4, i * 3 % 7, i * 1.5, range(i % 3), 'a' || i || ',b', i
  FROM range(1, 13) r(i);
CREATE TABLE s (id INTEGER, n INTEGER, w DOUBLE);
INSERT INTO s SELECT i, i % 5, i / 2 FROM range(8) r(i);
"""
B = """
CREATE TABLE u (id INTEGER, k INTEGER, z DOUBLE, l INTEGER[]);
INSERT INTO u SELECT i, i % 5, i * 0.5, range(i % 2 + 1) FROM range(9) r(i);
"""
D = ("INSERT INTO v SELECT i, i % 4, i * 2.5, range(i % 3) FROM range(5) r(i)",
     "INSERT INTO v SELECT i, i % 4, i * 3.5, [i, i] FROM range(5, 9) r(i)")  # fmt: skip
V = "CREATE TABLE v (id INTEGER, k INTEGER, w DOUBLE, l INTEGER[]);"


@pytest.fixture(scope="module")
def parties() -> Iterator[DatabaseCatalog]:
    found = DatabaseCatalog(
        {
            "a": (database(MACROS, A),),
            "b": (database(MACROS, B),),
            "d": tuple(database(MACROS, V, rows) for rows in D),
        }
    )
    yield found
    for con in found.databases.values():
        con.close()


@pytest.fixture(scope="module")
def together() -> Iterator[duckdb.DuckDBPyConnection]:
    con = duckdb.connect()
    for party, scripts in (("a", (A,)), ("b", (B,)), ("d", (V, *D))):
        con.execute(f"ATTACH ':memory:' AS {party}; USE {party}")
        for script in scripts:
            con.execute(script)
    con.execute(f"USE memory; {MACROS}")
    yield con
    con.close()


def plan(parties: DatabaseCatalog, query: str) -> Ucq:
    statement = parse(f"EVALUATE MODEL m FROM ({query})")
    assert isinstance(statement, EvaluateModel)
    return to_ucq(statement.query, statement.sql, parties)


RIGHT = {
    "an aggregate of no list, alone": "SELECT wavg(x, k) AS f, count(*) AS y FROM a.t",
    "a qualified aggregate, alone": "SELECT main.sum(x) AS f, system.main.sum(y) AS y FROM a.t",
    "a macro of an aggregate, alone": "SELECT total(x) AS f, share(y) AS y FROM a.t",
    "a method that aggregates": "SELECT x.total() AS f FROM a.t",
    "a macro of an aggregate, derived": """
        SELECT q.f, u.z FROM (SELECT total(x) AS f, max(k) AS k FROM a.t) q
        JOIN b.u u ON q.k = u.k WHERE q.f > 1""",
    "a macro only, derived": """
        SELECT q.f, u.z FROM (SELECT total(x) AS f, 1 AS k FROM a.t) q JOIN b.u u ON q.k = u.k""",
    "an aggregate that nobody reads": """
        SELECT q.one, u.z FROM (SELECT 1 AS one, total(x) AS f FROM a.t) q
        JOIN b.u u ON q.one = u.k""",
    "several rows that nobody reads": """
        SELECT q.k, u.z FROM (SELECT k, spread(li) AS e FROM a.t) q JOIN b.u u ON q.k = u.k""",
    "an aggregate of two tables of one client": """
        SELECT q.f, u.z FROM (SELECT share(t.x + s.w) AS f, 1 AS k FROM a.t, a.s s
        WHERE t.n < s.n) q JOIN b.u u ON q.k = u.k""",
    "an aggregate over a cross product": """
        SELECT q.f, u.z FROM (SELECT total(t.x) AS f, 1 AS k FROM a.t, a.s s) q
        JOIN b.u u ON q.k = u.k""",
    "an aggregate over a LEFT JOIN": """
        SELECT total(t.x) AS f, total(s.w) AS g FROM a.t LEFT JOIN a.s s ON t.n = s.n""",
    "a window of a macro": """
        SELECT q.p, u.z FROM (SELECT place(x) AS p, k FROM a.t) q JOIN b.u u ON q.k = u.k
        WHERE q.p > 2""",
    "a scalar macro with an aggregate's name": """
        SELECT sem(t.x) AS f, u.z FROM a.t JOIN b.u u ON t.k = u.k""",
    "a scalar macro with an aggregate's name, several clients": "SELECT sem(w) AS f FROM d.v",
    "a macro with a subquery": """
        SELECT most(t.x) AS f, u.z FROM a.t JOIN b.u u ON t.k = u.k WHERE most(u.z) > 8""",
    "scalar macros everywhere": """
        SELECT twice(t.x) AS f, t.x.twice() AS g, u.z FROM a.t JOIN b.u u
        ON twice(t.k) = twice(u.k) WHERE twice(t.n) > 2""",
    "several rows of one table": """
        SELECT unnest(t.li) AS e, t.y, u.z FROM a.t JOIN b.u u ON t.k = u.k WHERE t.x > 2""",
    "several rows in step": """
        SELECT unnest(t.li) AS e, generate_subscripts(t.li, 1) AS i, unnest(t.li) + t.k AS f, u.z
        FROM a.t JOIN b.u u ON t.k = u.k""",
    "several rows by a macro": """
        SELECT spread(t.li) AS e, t.y, u.z FROM a.t JOIN b.u u ON t.k = u.k""",
    "several rows of the left of a LEFT JOIN": """
        SELECT unnest(t.li) AS e, t.y, u.z FROM a.t LEFT JOIN b.u u ON t.id = u.k""",
    "several rows, conditions on them outside": """
        SELECT q.e, q.z FROM (SELECT unnest(t.li) AS e, t.k, u.z FROM a.t JOIN b.u u
        ON t.k = u.k) q WHERE q.e > 0""",
    "several rows over several clients": "SELECT unnest(l) AS e, w AS y FROM d.v WHERE w > 3",
    "several rows over several clients, as a macro": """
        SELECT q.e, u.z FROM (SELECT k, spread(l) AS e FROM d.v) q JOIN b.u u ON q.k = u.k
        WHERE q.e < 7""",
    "several rows on the right of a LEFT JOIN, in a derived table": """
        SELECT u.z, q.e FROM b.u u LEFT JOIN (SELECT k, unnest(li) AS e FROM a.t) q ON u.k = q.k""",
    "regexp_split_to_table in a derived table": """
        SELECT q.e, u.z FROM (SELECT k, regexp_split_to_table(s, ',') AS e FROM a.t) q
        JOIN b.u u ON q.k = u.k WHERE q.e <> 'b'""",
    "several rows over a union": """
        SELECT unnest(q.l) AS e, q.k
        FROM (SELECT l, k FROM d.v UNION ALL SELECT l, k FROM b.u) q""",
    "an unused column of two parties": """
        SELECT q.x, q.z FROM (SELECT t.x, u.z, twice(greatest(t.x, u.z)) AS g FROM a.t
        JOIN b.u u ON t.k = u.k) q""",
    "ORDER BY is left out": """
        SELECT q.x, u.z FROM (SELECT x, k FROM a.t ORDER BY y DESC) q
        JOIN (SELECT * FROM b.u ORDER BY id) u ON q.k = u.k ORDER BY lower(q.x::VARCHAR), 2""",
    "ORDER BY in a CTE and a union": """
        WITH q AS (SELECT x, k FROM a.t ORDER BY 1)
        SELECT q.x, u.z FROM q JOIN b.u u ON q.k = u.k
        UNION ALL SELECT q.x, u.z FROM q JOIN b.u u ON q.k = u.id ORDER BY 1, 2""",
    "error() is no value": """
        SELECT CASE WHEN t.x < 0 THEN error('no') ELSE t.x END AS f, u.z FROM a.t
        JOIN b.u u ON t.k = u.k""",
    "a number of a derived table is an INTEGER": """
        SELECT q.k::TINYINT + q.c AS f, u.z FROM (SELECT k, 127 AS c FROM a.t) q
        JOIN b.u u ON q.k = u.k""",
    "macros with variables": """
        SELECT ladder(k) AS f, along([1, k], n) AS g, inner_k(t.k) AS h, t.k.ladder() AS i
        FROM a.t WHERE ladder(n) > 3 AND ladder(t.k) > 0 AND inner_k(n) > 3
        AND list_sum(list_transform([1], lambda k: ladder(n) + k)) > 1 AND abs(k) < 3""",
    "correlated aggregates stay inside": """
        SELECT (SELECT max(s.w) FROM a.s s WHERE s.n = t.n) AS f, u.z FROM a.t
        JOIN b.u u ON t.k = u.k""",
}


@pytest.mark.parametrize("query", RIGHT.values(), ids=RIGHT)
def test_rows_are_those_of_the_query(
    query: str, parties: DatabaseCatalog, together: duckdb.DuckDBPyConnection
) -> None:
    found = planned_rows(plan(parties, query), parties.databases)
    assert found
    assert found == ordered(together.execute(query).fetchall())


AGGREGATES = (
    "wavg(w, k)", "weighted_avg(w, k)", "geomean(w)", "json_group_array(w)", "sum(w)", "total(w)",
    "json_group_object(k, w)", "variant_group_array(w)", "main.sum(w)", "system.main.sum(w)",
    "share(w)", "w.total()", "w.sum()", "sum(w) + 1", "{'a': total(w)}", "max(w, 2)", "count()",
    "mode() WITHIN GROUP (ORDER BY w)", "sum(w) FILTER (WHERE k > 1)", "any_value(w)",
    "list(w ORDER BY k)", "(SELECT total(w))", "EXISTS (SELECT total(w))",
)  # fmt: skip


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_aggregates_over_several_clients_are_refused(
    aggregate: str, parties: DatabaseCatalog
) -> None:
    for query in (
        f"SELECT {aggregate} AS f FROM d.v",
        f"SELECT 1 AS one FROM (SELECT {aggregate} AS f FROM d.v) q",
    ):
        with pytest.raises(PlanError) as caught:
            plan(parties, query)
        assert "an aggregate is not the same over the 2 clients of d together" in str(caught.value)
        assert caught.value.hint
        assert caught.value.span is not None
    own = re.sub(r"\b([wk])\b", r"v.\1", aggregate)
    with pytest.raises(PlanError, match="an aggregate cannot be done over d and b together"):
        plan(parties, f"SELECT {own} AS f, u.z FROM d.v JOIN b.u u ON v.id = u.id")


@pytest.mark.parametrize(
    "condition",
    [
        "WHERE ladder(k) = 6",
        "WHERE abs(ladder(k)) = 6",
        "WHERE k.ladder() = 6",
        "WHERE along([x], k) = 6",
        "WHERE inner_k(k + 1) = 6",
        "WHERE id IN (SELECT s.id FROM a.s WHERE ladder(k) = 6)",
        "WHERE (SELECT ladder(k)) = 6",
        "LEFT JOIN a.s s ON ladder(k) = s.n",
        "JOIN (SELECT l FROM b.u) u ON ladder(k) = u.l[1]",
    ],
)
def test_what_a_macro_may_capture_is_refused(condition: str, parties: DatabaseCatalog) -> None:
    with pytest.raises(
        PlanError, match=r"k in \w+\(...\) may be the column, or a variable"
    ) as caught:
        plan(parties, f"SELECT x AS f, t.y FROM a.t {condition}")
    assert caught.value.hint == "write table.k, which is the column"
    assert caught.value.span is not None


REFUSED = {
    "several rows of two parties": (
        "SELECT unnest(t.li) AS e, unnest(u.l) AS f FROM a.t JOIN b.u u ON t.k = u.k",
        "a function that gives several rows cannot be done over a and b together",
    ),
    "several rows of two parties by other functions": (
        "SELECT generate_subscripts(t.li, 1) AS e, regexp_split_to_table(u.l::VARCHAR, ',') AS f "
        "FROM a.t JOIN b.u u ON t.k = u.k",
        "a function that gives several rows cannot be done over a and b together",
    ),
    "several rows of the missing side": (
        "SELECT generate_subscripts(t.li, 1) AS e, u.z FROM b.u u LEFT JOIN a.t ON t.k = u.k",
        "a function that gives several rows cannot be done over b and a together",
    ),
    "several rows of the missing side with a condition": (
        "SELECT q.e, q.z FROM (SELECT spread(t.li) AS e, u.z FROM b.u u LEFT JOIN a.t "
        "ON t.k = u.k) q WHERE q.e > 1",
        "a function that gives several rows cannot be done over b and a together",
    ),
    "a window by a macro": (
        "SELECT place(t.x) AS p, u.z FROM a.t JOIN b.u u ON t.k = u.k",
        "a window function cannot be done over a and b together",
    ),
    "an aggregate as a key": (
        "SELECT t.x, u.z FROM a.t JOIN b.u u ON total(t.k) = u.k",
        "WHERE clause cannot contain aggregates",
    ),
    "an aggregate in WHERE": (
        "SELECT t.x, u.z FROM a.t JOIN b.u u ON t.k = u.k WHERE share(t.k) > 1",
        "WHERE clause cannot contain aggregates",
    ),
    "a volatile function": (
        "SELECT random() + t.x AS f, u.z FROM a.t JOIN b.u u ON t.k = u.k",
        "random() gives another value each time",
    ),
    "a volatile macro": (
        "SELECT draw(t.x) AS f, u.z FROM a.t JOIN b.u u ON t.k = u.k",
        "draw() gives another value each time",
    ),
    "a volatile macro in a lambda": (
        "SELECT list_transform(t.li, lambda e: draw(e)) [1] AS f, u.z FROM a.t "
        "JOIN b.u u ON t.k = u.k",
        "draw() gives another value each time",
    ),
    "a volatile macro in a condition": (
        "SELECT t.x AS f, u.z FROM a.t JOIN b.u u ON t.k = u.k WHERE draw(u.z) > 3",
        "draw() gives another value each time",
    ),
    "a volatile macro in a subquery": (
        "SELECT (SELECT max(draw(s.w)) FROM a.s s WHERE s.n = t.n) AS f, u.z FROM a.t "
        "JOIN b.u u ON t.k = u.k",
        "draw() gives another value each time",
    ),
    "an aggregate of ORDER BY": (
        "SELECT t.x, u.z FROM a.t JOIN b.u u ON t.k = u.k ORDER BY total(t.x)",
        "an aggregate cannot be done over a and b together",
    ),
    "an aggregate of two parties that nobody reads": (
        "SELECT q.one FROM (SELECT 1 AS one, total(t.x + u.z) AS g FROM a.t "
        "JOIN b.u u ON t.k = u.k) q",
        "an aggregate cannot be done over a and b together",
    ),
    "a text of a derived table is no number": (
        "SELECT q.k AS f, u.z FROM (SELECT k, '1' AS c FROM a.t) q JOIN b.u u ON q.k = u.k "
        "WHERE q.c < 2",
        "Cannot compare values of type VARCHAR and type INTEGER_LITERAL",
    ),
    "a variable of a connection": (
        "SELECT getvariable('v') AS f, t.x FROM a.t",
        "getvariable() is of one connection",
    ),
}


@pytest.mark.parametrize(("query", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_says_why(query: str, said: str, parties: DatabaseCatalog) -> None:
    with pytest.raises(PlanError) as caught:
        plan(parties, query)
    assert said in str(caught.value)
    assert caught.value.hint
    assert caught.value.span is not None
