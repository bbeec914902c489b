"""Names are bound to the columns that one database binds them to, or are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator

import duckdb
import pytest
from sqlglot import exp

from sqlfl.base.errors import PartyError, PlanError, StatementError
from sqlfl.contract.schema import Client, Column
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.query.columns import distinct
from tests.planner import homonyms
from tests.planner.central import ordered, planned_rows
from tests.planner.conftest import DatabaseCatalog, database
from tests.planner.goldens import FIXTURES
from tests.planner.query.test_meaning import plan

STATEMENTS = [
    line.removesuffix(";")
    for line in (FIXTURES / "homonyms.sql").read_text().splitlines()
    if line.endswith(";")
]


@pytest.fixture(scope="module")
def tables() -> Iterator[DatabaseCatalog]:
    found = homonyms.catalog_of()
    yield found
    for con in found.databases.values():
        con.close()


@pytest.fixture(scope="module")
def one() -> Iterator[duckdb.DuckDBPyConnection]:
    found = homonyms.central_of()
    yield found
    found.close()


@pytest.mark.parametrize("query", STATEMENTS)
def test_rows_are_those_of_one_database(
    query: str, tables: DatabaseCatalog, one: duckdb.DuckDBPyConnection
) -> None:
    ucq = plan(tables, query, allow_cross_join=True)
    assert planned_rows(ucq, tables.databases) == ordered(one.execute(query).fetchall())
    for slot in ucq.slots:
        for fragment in slot.fragments:
            _check_aliases(fragment.select)


def test_tables_of_one_name_in_a_subquery(
    tables: DatabaseCatalog, one: duckdb.DuckDBPyConnection
) -> None:
    """DuckDB's `a.t` is a table of either schema there, so that it needs aliases for the same."""
    query = "SELECT x, u.z FROM a.t tt JOIN b.u u ON tt.id = u.id WHERE EXISTS ({})"
    written = query.format("FROM a.t JOIN a.q.t ON a.t.id = a.q.t.id WHERE a.q.t.n = tt.k")
    central = query.format("FROM a.t p JOIN a.q.t q ON p.id = q.id WHERE q.n = tt.k")
    found = planned_rows(plan(tables, written), tables.databases)
    assert found == ordered(one.execute(central).fetchall())


def _check_aliases(select: exp.Select) -> None:
    """Each source has an alias that nothing else is called by, and each column is one's."""
    aliases = {
        node.alias
        for node in _outside_subqueries(select)
        if isinstance(node, exp.Table | exp.Subquery) and node.alias
    }
    assert aliases
    for node in select.find_all(exp.Identifier):
        if node.name in aliases:
            named = isinstance(node.parent, exp.TableAlias)
            before = isinstance(node.parent, exp.Column) and node.arg_key == "table"
            assert named or before, to_sql(select)
    for node in _outside_subqueries(select):
        if isinstance(node, exp.Column) and not _is_schema(node):
            assert node.table in aliases, (to_sql(node), to_sql(select))


def _outside_subqueries(node: exp.Expr, top: bool = True) -> Iterator[exp.Expr]:
    yield node
    if isinstance(node, exp.Select) and not top:
        return
    for child in node.iter_expressions():
        if not isinstance(child, exp.SetOperation):
            yield from _outside_subqueries(child, top=False)


def _is_schema(node: exp.Column) -> bool:
    """Of a function, `main.abs(x)`."""
    return isinstance(node.parent, exp.Dot) and isinstance(node.parent.expression, exp.Func)


# -- refusals --------------------------------------------------------------------------------------

REFUSED = {
    "a join without a condition": (
        "SELECT x, z FROM a.t LEFT JOIN b.u WHERE t.k = u.k",
        "LEFT JOIN needs a condition",
        r"ON a\.x = b\.y",
    ),
    "FULL JOIN on the right of a LEFT JOIN": (
        "SELECT x, z FROM a.t LEFT JOIN (b.u FULL JOIN c.v ON u.k = v.k) ON t.k = u.k",
        "the right side of a LEFT JOIN is a union of 2 joins",
        r"c LEFT JOIN \(a FULL JOIN b USING",
    ),
    "SEMI JOIN in parentheses": (
        "SELECT x, z FROM a.t JOIN (b.u SEMI JOIN c.v ON u.k = v.k) ON t.k = u.k",
        "SEMI JOIN cannot be done",
        "inner JOIN",
    ),
    "a sample in parentheses": (
        "SELECT x, z FROM a.t JOIN (b.u TABLESAMPLE 50% JOIN c.v ON u.k = v.k) ON t.k = u.k",
        "a sample cannot be done",
        "leave it out",
    ),
    "ON of RIGHT JOIN after a comma, over what stands before it": (
        "SELECT t.x, u.z, v.w FROM a.t t, c.v v RIGHT JOIN b.u u ON t.k = u.k",
        "cannot be joined on this",
        "compare columns as they are",
    ),
    "ON in parentheses that are LEFT JOINed": (
        "SELECT x, z, w FROM a.t LEFT JOIN (c.v LEFT JOIN b.u ON t.k = u.k) ON t.k = v.k",
        "names a table before them",
        "inside of the parentheses",
    ),
    "ON in parentheses that are RIGHT JOINed": (
        "SELECT x, z, w FROM a.t RIGHT JOIN (c.v JOIN b.u ON t.k = u.k) ON t.k = v.k",
        "there is no table t in FROM",
        "u, v",
    ),
    "two columns that USING made": (
        "SELECT k FROM a.t JOIN b.u USING (k), c.v JOIN e.r USING (k)",
        "column k is ambiguous: t.k or u.k or v.k or r.k",
        "write t.k",
    ),
    "a method of three words": (
        "SELECT q.st.f.abs() AS f, z FROM a.st q JOIN b.u USING (k)",
        r"q\.st\.f\.abs\(\): DuckDB reads two words before a call",
        r"write abs\(q\.st\.f\)",
    ),
    "a method of a column that is called like a schema": (
        "SELECT main.abs() AS f, z FROM (SELECT n AS main, k FROM a.t) q JOIN b.u USING (k)",
        "may be a function of the schema main",
        r"write abs\(main\)",
    ),
    "a method of nothing": (
        "SELECT n.abs() AS f, z FROM (SELECT k FROM a.t) q JOIN b.u USING (k)",
        "there is no column n",
        "did you mean|there is",
    ),
    "the row of a table": (
        "SELECT n AS t, t AS f, z FROM a.t JOIN b.u USING (k)",
        "t is a table, and stands for its whole row",
        r"name a column of it: t\.id",
    ),
    "a star's column of another table": (
        "SELECT t.* EXCLUDE (u.k) FROM a.t JOIN b.u ON t.k = u.k",
        r"the star has no column u\.k",
        "did you mean|there is",
    ),
    "a star's column twice": (
        "SELECT * EXCLUDE (li, t.k) RENAME (k AS j) FROM a.t",
        "EXCLUDE, REPLACE and RENAME name column k twice",
        "name it once",
    ),
    "COLUMNS as several arguments": (
        "SELECT coalesce(*COLUMNS('z')) FROM a.t JOIN b.u USING (k)",
        "a star inside an expression is not taken",
        "name the columns",
    ),
    "COLUMNS without any": (
        "SELECT COLUMNS('none') FROM a.t JOIN b.u USING (k)",
        "no column of FROM has a name that matches",
        "there are",
    ),
    "COLUMNS by a function without any": (
        "SELECT COLUMNS(lambda c: c = 'none') FROM a.t JOIN b.u USING (k)",
        "no column of FROM has a name that matches",
        "there are",
    ),
    "COLUMNS by an earlier form of a function": (
        "SELECT COLUMNS(c -> c = 'z') FROM a.t JOIN b.u USING (k)",
        "the columns cannot be chosen: Binder Error: Deprecated lambda arrow",
        "name the columns",
    ),
    "COLUMNS by a pattern that is none": (
        "SELECT COLUMNS('((') FROM a.t JOIN b.u USING (k)",
        "the columns cannot be chosen: Binder Error: Failed to compile regex",
        "name the columns",
    ),
    "more names than columns": (
        "SELECT a FROM a.s q(a, b, c, d) JOIN b.u ON q.b = u.k",
        "4 names are given to 3 columns",
        "as many as there are columns",
    ),
    "a position that is none": (
        "SELECT #12 AS f, z FROM a.t JOIN b.u USING (k)",
        "#12 is no column of FROM, which has 10",
        "name the column",
    ),
    "an output with a subquery": (
        "SELECT (SELECT count(*) FROM a.s) AS c, c + 1 AS f, z FROM a.t JOIN b.u USING (k)",
        "output c has a subquery, and cannot be named in the SELECT list",
        "write the subquery again",
    ),
    "a column that a derived table does not show": (
        "SELECT n FROM (SELECT id AS n FROM d.p) q "
        "WHERE EXISTS (SELECT 1 FROM range(2) r(i) WHERE i = k)",
        'Referenced column "k" not found',
        "own connection",
    ),
    "an output before it is defined": (
        "SELECT -n AS p, p + 1 AS f, n AS p, z FROM a.t JOIN b.u USING (k)",
        "column p is named before it is defined",
        "further to the left",
    ),
    "an aggregate of the outer query": (
        "SELECT (SELECT max(q.n) FROM a.s LIMIT 1) AS f, z FROM a.t q, b.u",
        "an aggregate over columns of outside",
        "the subquery's own tables",
    ),
    "an aggregate of the outer query, over a constant of a derived table": (
        "SELECT q.n, z FROM (SELECT k, n, 1.5 AS x FROM a.t) q JOIN b.u USING (k) "
        "WHERE EXISTS (SELECT count(DISTINCT x) FROM a.s GROUP BY id)",
        "an aggregate over columns of outside",
        "the subquery's own tables",
    ),
    "a table of outside that is called as a column, but for WHERE": (
        "SELECT n, z FROM a.t k JOIN b.u ON k.k = u.k WHERE k.n >= ALL (SELECT k.n FROM a.kv)",
        "Cannot extract field 'n' from expression \"k\"",
        "own connection",
    ),
    "a name of the planner's": (
        'SELECT t.x, (SELECT max("#0".w) FROM a.s AS "#0" WHERE "#0".id = t.k) AS f FROM a.t',
        "the name #0 is taken",
        "another alias",
    ),
    "PIVOT over values that nobody lists": (
        "SELECT * FROM (PIVOT a.t ON k USING sum(x)) p",
        "PIVOT without the values",
        "IN",
    ),
    "a star over clients of which one lacks a column": (
        "SELECT * FROM d.p",
        "the star of p is not the same at all clients: client 0 of party d lacks z",
        r"\* EXCLUDE \(z\)",
    ),
    "the same after a join": (
        "SELECT p.*, u.m FROM d.p JOIN b.u USING (k)",
        "client 0 of party d lacks z",
        "EXCLUDE",
    ),
    "a column that one client lacks": (
        "SELECT p.z, u.m FROM d.p JOIN b.u USING (k)",
        "column z of p is not there at client 0 of party d",
        "leave it out",
    ),
    "a column that one client lacks, and another table has": (
        "SELECT q, z FROM d.p JOIN b.u USING (k)",
        r"column z is ambiguous: p\.z or u\.z",
        r"write p\.z",
    ),
    "NATURAL JOIN on what one client lacks": (
        "SELECT q, m FROM d.p NATURAL JOIN b.u",
        "NATURAL JOIN on z: p does not have it at client 0 of party d",
        "USING",
    ),
    "names by order where one client lacks a column": (
        "SELECT a FROM d.p q(a, b)",
        "client 0 of party d lacks z",
        "derived table",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_told_is_refused(
    case: tuple[str, str, str], tables: DatabaseCatalog
) -> None:
    query, message, hint = case
    with pytest.raises(StatementError) as caught:
        plan(tables, query, allow_cross_join=True)
    assert re.search(message, caught.value.message), caught.value
    assert re.search(hint, str(caught.value.hint)), caught.value
    assert caught.value.line == 1


@pytest.mark.parametrize("name", ["t", "k", "rowid"])
def test_a_method_of_a_lambdas_variable_that_a_table_or_two_columns_go_by(
    name: str, tables: DatabaseCatalog, one: duckdb.DuckDBPyConnection
) -> None:
    called = f"list_sum(list_transform(li, lambda {name}: {name}.abs()))"
    query = f"SELECT {called} AS f, z FROM a.t t JOIN b.u u ON t.k = u.k"
    try:
        rows = one.execute(query).fetchall()
    except duckdb.BinderException:  # to DuckDB 2.0.0 it is no variable
        with pytest.raises(PlanError, match=r"is a table|is ambiguous"):
            plan(tables, query)
    else:
        assert planned_rows(plan(tables, query), tables.databases) == ordered(rows)


def test_whose_a_method_is_may_be_a_secret() -> None:
    """Of a party whose owner does not grant what would tell it."""

    class Silent(homonyms.SizedCatalog):
        def describe(self, client: Client, select: str) -> tuple[Column, ...]:
            if "x.list_value()" in select:
                raise PartyError(client.party, "function x.list_value is not allowed")
            return super().describe(client, select)

    scripts = {
        "p": ("CREATE TABLE t(n INT, li INT[]); INSERT INTO t VALUES (5, [-2]);",),
        "o": ("CREATE TABLE u(n INT); INSERT INTO u VALUES (5);",),
    }
    catalog = Silent({party: tuple(map(database, own)) for party, own in scripts.items()})
    query = "SELECT list_transform(li, lambda n: {})[1] AS f, u.n FROM p.t JOIN o.u USING (n)"
    with pytest.raises(PlanError, match="lambda's variable or of a column") as caught:
        plan(catalog, query.format("n.abs()"))
    assert caught.value.hint == "write abs(n), which is of the variable"
    ucq = plan(catalog, query.format("abs(n)"))
    assert planned_rows(ucq, catalog.databases) == [("2", "5")]
    for con in catalog.databases.values():
        con.close()


def test_a_star_without_what_one_client_lacks(tables: DatabaseCatalog) -> None:
    ucq = plan(tables, "SELECT * EXCLUDE (z) FROM d.p")
    assert ucq.columns == ("id", "k", "q")
    assert len(planned_rows(ucq, tables.databases)) == 3


def test_clients_may_have_their_columns_in_another_order(tables: DatabaseCatalog) -> None:
    ucq = plan(tables, "SELECT * FROM e.r")
    assert ucq.columns == ("id", "k", "q")
    assert planned_rows(ucq, tables.databases) == ordered(
        [(0, 0, 900), (1, 1, 901), (2, 1, 902), (5, 2, 903)]
    )


def test_whether_a_name_is_a_subquerys_own_is_told_or_refused(tables: DatabaseCatalog) -> None:
    query = """
        SELECT q.x, (SELECT count(*) FROM (SELECT COLUMNS('i|n'), q.x FROM a.s) p
                     WHERE p.id = m) AS f
        FROM (SELECT x, k AS m FROM a.t) q, c.v"""
    with pytest.raises(PlanError) as caught:
        plan(tables, query)
    assert "it cannot be told whether m is a column of the subquery's own FROM" in str(caught.value)
    assert "write alias.column" in str(caught.value.hint)


# -- what is sent ----------------------------------------------------------------------------------


def test_aliases_avoid_what_the_database_calls_so() -> None:
    con = database(
        "CREATE SCHEMA t; CREATE TABLE t.u(id INT, t2 INT); INSERT INTO t.u VALUES (1, 2);",
        "CREATE TABLE things(id INT, t3 STRUCT(id INT), k INT);",
        "INSERT INTO things VALUES (1, {id: 9}, 2);",
    )
    catalog = homonyms.SizedCatalog({"p": (con,)})
    query = """
        SELECT t3.id AS f, (SELECT max(u.t2 + k) FROM p.t.u WHERE u.id = q.id) AS g
        FROM p.things q"""
    ucq = plan(catalog, query)
    assert "FROM things AS t4" in ucq.slots[0].fragments[0].sql
    assert planned_rows(ucq, catalog.databases) == [("9", "4")]
    con.close()


def test_repeated_columns_are_numbered_as_by_the_database() -> None:
    names = ["k", "K", "k_1", "k", "k_1", "x", "k_2"]
    query = ", ".join(f'{n} AS "{name}"' for n, name in enumerate(names))
    with duckdb.connect() as con:
        found = con.sql(f"SELECT * FROM (SELECT {query}) q").columns
    assert list(distinct(names)) == found


def test_letters_are_alike_as_to_the_database() -> None:
    con = database('CREATE TABLE w("Ä" INT, "ä" INT, "B" INT); INSERT INTO w VALUES (1, 2, 3);')
    catalog = homonyms.SizedCatalog({"p": (con,)})
    ucq = plan(catalog, 'SELECT "Ä" AS one, q."ä" AS two, b AS three FROM p.w q')
    assert planned_rows(ucq, catalog.databases) == [("1", "2", "3")]
    with pytest.raises(PlanError):
        plan(catalog, 'SELECT "ö", "Ö" FROM (SELECT "Ä" AS "Ö" FROM p.w) q')
    con.close()
