"""Each thing for which a SELECT is refused, by itself, and what is just not refused; what decides
the rows, and what stands beside columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import duckdb
import pytest

from sqlfl.base.errors import PolicyError
from sqlfl.governance.names import Functions, functions_of
from sqlfl.governance.scopes import ScopeColumn, SelectScope
from sqlfl.governance.sizes import check_size
from sqlfl.governance.tree import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_NODES,
    PARSE,
    SelectReading,
    _Reader,
    read,
)
from sqlfl.udfs import sql
from tests.governance.test_tree import MADE, columns
from tests.open_databases import in_memory

Given: TypeAlias = tuple[duckdb.DuckDBPyConnection, Functions]


@pytest.fixture(scope="module")
def given() -> Iterator[Given]:
    with in_memory() as con:
        con.execute(MADE)
        yield con, functions_of(con)


def reading(
    given: Given, text: str, shown: Callable[[ScopeColumn], bool] = lambda _: True
) -> SelectReading:
    con, functions = given
    return read(con, text, columns, functions, shown)


def refused(given: Given, text: str, said: str) -> None:
    with pytest.raises(PolicyError) as error:
        reading(given, text)
    assert said in error.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT '\0'", "a character that ends texts"),
        ("INSERT INTO t VALUES (1)", "only SELECT is taken"),
        ("SELECT FROM FROM", "cannot be read as SQL"),
        ("", "one SELECT is taken, and 0 came"),
        ("SELECT 1; SELECT 2", "one SELECT is taken, and 2 came"),
        ("SELECT a, b FROM t UNION ALL SELECT a FROM t", "different numbers of columns"),
        ("SELECT a FROM t UNION ALL BY NAME SELECT b AS a FROM t", "UNION_BY_NAME is not taken"),
        ("SELECT a FROM t USING SAMPLE 1", "TABLESAMPLE is not taken"),
        ("SELECT a FROM t TABLESAMPLE 10%", "TABLESAMPLE is not taken"),
        ("SELECT a FROM t GROUP BY ALL", "GROUP BY ALL is not taken"),
        ("WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n FROM r) FROM r",
         "RECURSIVE_CTE_NODE is not taken"),
        ("SELECT * RENAME (b AS a) FROM t", "* that renames is not taken"),
        ("SELECT COLUMNS('.*') FROM t", "COLUMNS, or * that renames is not taken"),
        ("SELECT *", "* stands for no table"),
        ("SELECT x.* FROM t", "x* stands for no table"),
        ("SELECT a FROM t NATURAL JOIN u", "a natural join is not taken"),
        ("SELECT a FROM t POSITIONAL JOIN u", "a positional join is not taken"),
        ("SELECT a FROM t ASOF JOIN u ON t.id >= u.id", "a asof join is not taken"),
        ("FROM range(9)", "TABLE_FUNCTION is not taken"),
        ("SELECT a FROM t AT (VERSION => 1)", "AT is not taken"),
        ("FROM hr.salaries", "table hr.salaries is not granted"),
        ("WITH hr AS (SELECT a FROM t) SELECT a FROM hr.salaries", "table hr.salaries is not"),
        ("SELECT a FROM t, t", "two tables of one FROM are named t"),
        ("SELECT a FROM t, u AS T", "two tables of one FROM are named t"),
        ("SELECT k FROM t AS q(k, l, m, n, o, p)", "6 names for 5 columns"),
        ("WITH q(k, l) AS (SELECT a FROM t) FROM q", "2 names for 1 columns"),
        ("SELECT count(*) FILTER (WHERE (SELECT * FROM hr.salaries) > 1) FROM t", "hr.salaries"),
        ("SELECT $1", "PARAMETER is not taken"),
        ("SELECT count(COLUMNS(*)) FROM t", "* that stands here is not taken"),
        ("SELECT secret FROM t", "column secret is not granted"),
        ("SELECT t.secret FROM t", "column secret is not granted"),
        ("SELECT memory.main.t.secret FROM t", "column main is not granted"),
        ("SELECT secret.x FROM t", "column x is not granted"),
        ("SELECT a FROM t ORDER BY secret", "column secret is not granted"),
        ("SELECT list_transform([1], lambda t: t.rowid) FROM t", "column rowid is not granted"),
        ("SELECT getenv('HOME')", "function getenv is not among"),
        ("SELECT hr.twice(a) FROM t", "function hr.twice is not among"),
        ("SELECT hr.abs(a) FROM t", "function hr.abs is not among"),
        ("SELECT hr.round(a) FROM t", "function hr.round is not among"),
        ("SELECT memory.main.round(a) FROM t", "function memory.main.round is not among"),
        ("SELECT random() OVER () FROM t", "function random is not among"),
        ("SELECT a::mood FROM t", "type mood is not one"),
        ("SELECT a::hr.INTEGER FROM t", "type hr.INTEGER is not one"),
    ],
)  # fmt: skip
def test_what_is_refused_alone(given: Given, text: str, said: str) -> None:
    refused(given, text, said)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT round(a) FROM t", "SELECT main.round(a) FROM t",
        "SELECT pg_catalog.round(a) FROM t", "SELECT system.main.round(a) FROM t",
        "SELECT a::INTEGER FROM t", "SELECT a::int[] FROM t",
        "SELECT k FROM t AS q(k, l, m, n, o)", "SELECT q.a FROM t AS q, t", "SELECT t.* FROM t",
        "SELECT a FROM t UNION ALL SELECT d FROM u", "SELECT a FROM t LIMIT 3",
        "SELECT sum(a) OVER () FROM t", "SELECT rank() OVER (ORDER BY a) FROM t",
        "SELECT 1 AS k FROM (SELECT 1), (SELECT 2)", "SELECT list_transform([1], lambda x: x) AS f",
        "SELECT list_transform([{'k': 1}], lambda x: x.k) AS f FROM t",
        "SELECT list_transform([1], lambda x, i: x + i) AS f FROM t",
        f"SELECT '{'x' * (MAX_CHARACTERS - 9)}'",
    ],
    ids=lambda text: text[:60],
)  # fmt: skip
def test_what_is_just_taken(given: Given, text: str) -> None:
    reading(given, text)


def test_the_longest_query(given: Given) -> None:
    refused(given, f"SELECT '{'x' * (MAX_CHARACTERS - 8)}'", f"{MAX_CHARACTERS:,} are taken")


def test_how_large_and_how_deep_a_query_is(given: Given) -> None:
    said = "too large or too deep to be looked through"
    refused(given, f"SELECT {'+'.join(['a'] * 300)} AS k FROM t", said)
    reading(given, f"SELECT {'+'.join(['1'] * 100)} AS k FROM t")

    def deep(levels: int) -> Any:
        found: dict[str, Any] = {}
        for _ in range(levels - 1):
            found = {"x": found, "y": 1}
        return found

    check_size(deep(6 * MAX_DEPTH), MAX_NODES, MAX_DEPTH)
    check_size([[]] * (12 * MAX_NODES - 1), MAX_NODES, MAX_DEPTH)
    for large in (deep(6 * MAX_DEPTH + 1), [[]] * (12 * MAX_NODES)):
        with pytest.raises(PolicyError, match="too large or too deep"):
            check_size(large, MAX_NODES, MAX_DEPTH)


# -- what no text is read as today -----------------------------------------------------------------


def tree(given: Given, text: str) -> dict[str, Any]:
    ((found,),) = sql.fetch(given[0], PARSE, {"text": text})
    node: dict[str, Any] = json.loads(found)["statements"][0]["node"]
    return node


def reader(given: Given) -> _Reader:
    return _Reader(columns, given[1], lambda _: True)


def refused_node(given: Given, node: dict[str, Any], said: str) -> None:
    with pytest.raises(PolicyError) as error:
        reader(given).query(node, SelectScope())
    assert said in error.value.message


def test_nodes_that_are_not_known(given: Given) -> None:
    union = tree(given, "SELECT a FROM t UNION ALL SELECT d FROM u")
    refused_node(given, {**union, "setop_type": "OTHER"}, "OTHER is not taken")
    select = tree(given, "WITH q AS (SELECT a FROM t) SELECT a FROM q LIMIT 3")
    reader(given).query(select, SelectScope())
    refused_node(given, {**select, "type": "OTHER_NODE"}, "OTHER_NODE is not taken")
    other = {**select["modifiers"][0], "type": "OTHER_MODIFIER"}
    refused_node(given, {**select, "modifiers": [other]}, "OTHER_MODIFIER is not taken")
    (item,) = select["cte_map"]["map"]
    for value in ({}, {"query": {}}):
        map_ = {"map": [{**item, "value": value}]}
        refused_node(given, {**select, "cte_map": map_}, "WITH is not taken")
    inner = item["value"].get("query_node") or item["value"]["query"]["node"]
    for value in ({"query_node": inner}, {"query": {"node": inner}}):
        reader(given).query(
            {**select, "cte_map": {"map": [{**item, "value": value}]}}, SelectScope()
        )
    refused_node(given, {**select, "sample": {"x": 1}}, "TABLESAMPLE is not taken")
    source = {**select["from_table"], "type": "OTHER"}
    refused_node(given, {**select, "from_table": source}, "OTHER is not taken")
    joined = tree(given, "SELECT a FROM t JOIN u ON t.id = u.id")
    source = {**joined["from_table"], "duplicate_eliminated_columns": [joined["select_list"][0]]}
    refused_node(given, {**joined, "from_table": source}, "a join of columns without duplicates")


@pytest.mark.parametrize(
    "item", [{"type": "SELECT_NODE"}, {"type": "SET_OPERATION_NODE"}, {"node": {}}], ids=str
)
def test_queries_where_none_are_known(given: Given, item: dict[str, Any]) -> None:
    """Of the parts of an expression."""
    select = tree(given, "SELECT a + b AS k FROM t")
    select["select_list"][0]["arguments"].append(item)
    refused_node(given, select, "a query that stands here")


def test_expressions_that_are_not_known(given: Given) -> None:
    select = tree(given, "SELECT a + b AS k FROM t")
    select["select_list"][0]["arguments"].append({"class": "OTHER"})
    refused_node(given, select, "OTHER is not taken")


def test_the_name_of_a_function_is_what_its_path_says(given: Given) -> None:
    select = tree(given, "SELECT round(a) AS k FROM t")
    call = select["select_list"][0]
    reader(given).query(select, SelectScope())
    call["qualified_name"] = {"path": ["getenv"]}
    refused_node(given, select, "function getenv is not among")
    for path in ({"path": []}, {"path": None}, None):
        call["qualified_name"] = path
        reader(given).query(select, SelectScope())
    call["function_name"] = "getenv"
    refused_node(given, select, "function getenv is not among")


# -- what is told of a query -----------------------------------------------------------------------


def test_a_column_that_is_not_shown_is_none(given: Given) -> None:
    def shown(column: ScopeColumn) -> bool:
        return column.name != "b"

    assert reading(given, "SELECT a FROM t", shown).outputs
    for text in ("SELECT b FROM t", "SELECT t.b FROM t", "SELECT a FROM t WHERE b > 0",
                 "SELECT a FROM (SELECT a, b AS c FROM t)"):  # fmt: skip
        with pytest.raises(PolicyError, match="column b is not granted"):
            reading(given, text, shown)


def told(columns_: object) -> str:
    return " ".join(sorted({column.name for column in columns_}))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("where", "filters", "links", "equal"),
    [
        ("a = d", "", "a d", "a d"),
        ("NOT a = d", "a d", "", ""),
        ("NOT NOT a = d", "a d", "", ""),
        ("a IS NOT DISTINCT FROM d", "a d", "", ""),
        ("(a = d) IS TRUE", "", "a d", "a d"),
        ("(a = d) IS NOT TRUE", "a d", "", ""),
        ("CAST(a AS BIGINT) = d", "", "a d", "a d"),
        ("TRY_CAST(a AS BIGINT) = d", "a d", "", ""),
        ("coalesce(a, 0) = d", "a d", "", ""),
        ("a <> d", "a d", "", ""),
        ("a > d", "a d", "", ""),
        ("a = d + 1", "a d", "", ""),
        ("a + 1 = d", "a d", "", ""),
        ("a = 1", "a", "", ""),
        ("1 = 1", "", "", ""),
        ("a IS NULL", "a", "", ""),
        ("a IS NOT NULL", "", "a", ""),
        ("NOT a IS NULL", "", "a", ""),
        ("NOT a IS NOT NULL", "a", "", ""),
        ("a + 1 IS NULL", "a", "", ""),
        ("y", "y", "", ""),
        ("a = d AND b IS NULL AND e > 1", "b e", "a d", "a d"),
        ("a = d OR b IS NULL", "a b d", "", ""),
        ("a IN (SELECT d FROM u)", "", "a d", "a d"),
        ("a + 1 IN (SELECT d FROM u)", "a d", "", ""),
        ("a IN (SELECT d + 1 FROM u)", "a d", "", ""),
        ("a > ANY (SELECT d FROM u)", "a d", "", ""),
        ("a IN (SELECT d FROM u WHERE e > 1)", "e", "a d", "a d"),
        ("a NOT IN (SELECT d FROM u)", "a d", "", ""),
        ("a IN (SELECT 1 UNION ALL SELECT d FROM u)", "a d", "", ""),
        ("EXISTS (SELECT d FROM u)", "", "", ""),
        ("EXISTS (SELECT e FROM u WHERE d = a)", "", "a d", "a d"),
        ("NOT EXISTS (SELECT e FROM u WHERE d = a)", "a d", "", ""),
        ("EXISTS (SELECT e FROM u WHERE d IS NOT NULL)", "d", "", ""),
        ("a = d OR a = e", "a d e", "", ""),
        ("(SELECT max(d) FROM u) IS NULL", "d", "", ""),
        ("(SELECT d FROM u) = a", "a d", "", ""),
    ],
)
def test_what_decides_the_rows(
    given: Given, where: str, filters: str, links: str, equal: str
) -> None:
    found = reading(given, f"SELECT 1 AS k FROM t, (SELECT d, e FROM u) AS v WHERE {where}")
    assert (told(found.filters), told(found.links), told(found.equal)) == (filters, links, equal)


@pytest.mark.parametrize(
    ("text", "filters", "links"),
    [
        ("SELECT a FROM t UNION ALL SELECT d FROM u", "", ""),
        ("SELECT a FROM t UNION SELECT d FROM u", "a d", ""),
        ("SELECT a FROM t EXCEPT ALL SELECT d FROM u", "a d", ""),
        ("SELECT a FROM t INTERSECT ALL SELECT d FROM u", "a d", ""),
        ("SELECT a FROM t UNION ALL SELECT d FROM u ORDER BY a", "a d", ""),
        ("SELECT a FROM t HAVING b > 1", "b", ""),
        ("SELECT a FROM t QUALIFY b > 1", "b", ""),
        ("SELECT 1 AS k FROM t GROUP BY a", "", "a"),
        ("SELECT 1 AS k FROM t GROUP BY a + 1", "a", ""),
        ("SELECT DISTINCT a FROM t", "", "a"),
        ("SELECT DISTINCT a + 1 AS k FROM t", "a", ""),
        ("SELECT DISTINCT ON (b) a FROM t", "a b", ""),
        ("SELECT a FROM t ORDER BY b LIMIT 5", "b", ""),
        # which rows are the first follows from all that they are made of
        ("SELECT a FROM (SELECT DISTINCT a FROM t) AS q ORDER BY 1 LIMIT 5", "a", "a"),
        (
            "SELECT a FROM (SELECT a, b, max(y) AS y FROM t GROUP BY a, b) AS q LIMIT 5",
            "a b y",
            "a b",
        ),
        (
            "SELECT q.a FROM (SELECT a, b FROM t UNION ALL SELECT a, b FROM t) AS q "
            "QUALIFY row_number() OVER () = 1",
            "a b",
            "",
        ),
        ("SELECT a FROM t JOIN (VALUES (1)) AS v(id) USING (id)", "id", ""),
        ("SELECT t.a FROM t JOIN u ON t.id = u.id", "", "id"),
        ("SELECT t.a FROM t SEMI JOIN u ON t.id = u.id", "", "id"),
        ("SELECT t.a FROM t ANTI JOIN u ON t.id = u.id", "id", ""),
        ("SELECT t.a FROM t ANTI JOIN u USING (id)", "id", ""),
        ("SELECT t.a FROM t JOIN u ON t.id = u.id AND b > d", "b d", "id"),
        ("SELECT sum(b) FILTER (WHERE a > 1) AS k FROM t", "a", ""),
        ("SELECT sum(b) FILTER (WHERE a > 1) OVER () AS k FROM t", "a", ""),
        ("SELECT b FROM (SELECT b, a FROM t WHERE a IS NOT NULL) AS q", "a", ""),
        ("WITH q AS (SELECT b FROM t WHERE a > 1) SELECT b FROM q", "a", ""),
        ("SELECT a, b + 1 AS k FROM t GROUP BY 1", "", "a"),
        ("SELECT a, b + 1 AS k FROM t GROUP BY 2", "b", ""),
        ("SELECT a, b + 1 AS k FROM t ORDER BY 0", "", ""),
        ("SELECT a, b + 1 AS k FROM t ORDER BY 1", "a", ""),
        ("SELECT a, b + 1 AS k FROM t ORDER BY 2", "b", ""),
        ("SELECT a, b + 1 AS k FROM t ORDER BY 3", "", ""),
        ("SELECT a, b + 1 AS k FROM t ORDER BY 'x'", "", ""),
        ("SELECT a, b + 1 AS k FROM t ORDER BY -1", "", ""),
        ("SELECT a FROM t JOIN u USING (id)", "", "id"),
        ("SELECT a, b IS NULL AS sqlfl_kept FROM t", "b", ""),
        ("SELECT a, (b IS NOT NULL AND NOT isnan(b)) IS TRUE AS sqlfl_kept FROM t", "", "b"),
        ("SELECT a, (b IS NOT NULL OR a > 1) IS TRUE AS sqlfl_kept FROM t", "a b", ""),
    ],
)
def test_what_clauses_decide_the_rows(given: Given, text: str, filters: str, links: str) -> None:
    found = reading(given, text)
    assert (told(found.filters), told(found.links)) == (filters, links)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("CAST(a AS VARCHAR)", "a"), ("lower(c)", "c"), ("round(a)", None),
        ("trim(c, 'x')", None), ("lower(c || 'x')", None), ("upper(trim(c))", "c"),
        ("coalesce(a, 0)", "a"), ("coalesce(a, 0::BIGINT)", "a"), ("coalesce(a, 0, 1)", None),
        ("coalesce(a, '0'::BLOB::BIT::BIGINT)", None), ("coalesce(a, b)", None),
        ("ifnull(c, '')", "c"), ("a IS NULL", None),
        ("CASE WHEN FALSE THEN a END", "a"), ("CASE WHEN FALSE THEN a ELSE NULL END", "a"),
        ("CASE WHEN FALSE THEN a ELSE 7 END", None), ("CASE WHEN TRUE THEN a END", None),
        ("CASE WHEN FALSE THEN a WHEN b > 1 THEN a END", None),
        ("CASE WHEN b > 1 THEN a WHEN FALSE THEN a END", None),
        ("7", None), ("[a]", None), ("k", None),
    ],
)  # fmt: skip
def test_what_is_one_column_at_most_normalised(given: Given, text: str, same: str | None) -> None:
    found = reading(given, f"SELECT {text} AS f FROM t, (SELECT 1 + 1 AS k) AS q")
    (output,) = found.outputs
    assert (None if output.same is None else output.same.name) == same


def test_whole_rows_are_told(given: Given) -> None:
    def whole(text: str) -> list[tuple[str | None, bool]]:
        found = reading(given, text).outputs
        return [(None if o.whole is None else o.whole[2], o.row) for o in found]

    assert whole("SELECT t FROM t") == [("t", True)]
    assert whole("SELECT q FROM (SELECT a FROM t) AS q") == [(None, True)]
    assert whole("SELECT a AS k, t.a AS l, 1 AS m FROM t") == [(None, False)] * 3
    # a column of that name is meant
    assert whole("SELECT a FROM t AS a") == [(None, False)]
    assert whole("SELECT (SELECT max(e) FROM u WHERE t IS NULL) AS k FROM t") == [(None, False)]


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("SELECT v.k AS f, v.l AS g FROM t, (VALUES (t.a, 1), (t.b, 2)) AS v(k, l)", ["a b", ""]),
        ("SELECT col1 AS f FROM t, (VALUES (t.a, t.b))", ["b"]),
        ("SELECT q.k AS f FROM (SELECT a AS k FROM t UNION ALL SELECT d FROM u) AS q", ["a d"]),
        ("SELECT * EXCLUDE (id) REPLACE (b AS a) FROM t", ["b", "b", "c", "y"]),
        ("SELECT t.* FROM t, u", ["id", "a", "b", "c", "y"]),
    ],
)  # fmt: skip
def test_what_outputs_are_made_of(given: Given, text: str, reads: list[str]) -> None:
    assert [told(output.reads) for output in reading(given, text).outputs] == reads


def test_tables_are_told_wherever_they_are_read(given: Given) -> None:
    def tables(text: str) -> str:
        return " ".join(sorted(table[2] for table in reading(given, text).tables))

    assert tables("SELECT a FROM t") == "t"
    assert tables("SELECT 1 AS k") == ""
    for text in ("SELECT a FROM t, u", "SELECT a FROM t WHERE EXISTS (FROM u)",
                 "SELECT (SELECT max(d) FROM u) AS k FROM t", "WITH q AS (FROM u) SELECT a FROM t",
                 "SELECT a FROM t UNION ALL SELECT d FROM u",
                 "SELECT a FROM t ORDER BY (SELECT max(d) FROM u)"):  # fmt: skip
        assert tables(text) == "t u"


def test_names_of_outputs(given: Given) -> None:
    found = reading(given, 'SELECT a, t.b, a AS "K", 1, a + 1 FROM t').outputs
    assert [output.name for output in found] == ["a", "b", "k", "", ""]
    assert [output.constant for output in found] == [None, None, None, "1", None]


@pytest.mark.parametrize(
    ("text", "beside"),
    [
        ("a > 5", {("a", "5")}), ("a > CAST('5' AS INTEGER)", {("a", "5")}),
        ("a > NULL", set()), ("a IN (5, 6)", {("a", "5"), ("a", "6")}),
        ("a IS NULL", {("a", None)}), ("a IS NOT NULL", {("a", None)}),
        ("coalesce(a, 0) > 5", {("a", "0"), ("a", "5")}),
        ("a > b + 5", {("b", "5")}), ("a + b > 5", {("a", "5"), ("b", "5")}),
        ("CASE WHEN a > 5 THEN 6 ELSE 7 END = 1",
         {("a", "5"), ("a", "6"), ("a", "7"), ("a", "1")}),
        ("a BETWEEN 1 AND 2", {("a", "1"), ("a", "2")}), ("a > b", set()),
        ("a > (SELECT max(d) FROM u WHERE e > 3)", {("e", "3")}),
    ],
)  # fmt: skip
def test_what_stands_beside_columns(
    given: Given, text: str, beside: set[tuple[str, str | None]]
) -> None:
    found = reading(given, f"SELECT 1 AS k FROM t WHERE {text}")
    assert {(column.name, own) for column, own in found.beside} == beside


def test_columns_beside_which_something_stands_are_few(given: Given) -> None:
    wide = "t.id + t.a + b + length(c) + y::INTEGER + v.id + d + e"
    source = "FROM t, (SELECT id, d, e, s FROM u) AS v"
    assert len(reading(given, f"SELECT 1 AS k {source} WHERE {wide} > 5").beside) == 8
    wider = f"{wide} + s.x"
    assert not reading(given, f"SELECT 1 AS k {source} WHERE {wider} > 5").beside


def test_all_columns_that_are_named(given: Given) -> None:
    def named(text: str) -> str:
        return told(reading(given, text).named)

    assert named("SELECT a FROM (SELECT a, b FROM t WHERE c > '')") == "a b c"
    assert named("SELECT * EXCLUDE (id, c) FROM t") == "a b y"
    assert named("SELECT count(*) AS n FROM t") == ""
