"""What DuckDB reads and what the planner reads are one thing: its own parser is the measure."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

import duckdb
import pytest
from sqlglot import exp

from sqlfl.base.errors import InternalError, ParseError
from sqlfl.federation.parser_cross_check import confirm, confirm_fragments, explicit
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.statements import EvaluateModel
from tests.depth import SEED, THOROUGH
from tests.planner.plans import flights

OPERATORS = (
    "+", "-", "*", "/", "//", "%", "^", "**", "||", "&", "|", "<<", ">>", "=", "<>", "<", ">=",
    "AND", "OR", "IS DISTINCT FROM", "IS NOT DISTINCT FROM", "LIKE", "NOT LIKE", "ILIKE",
    "SIMILAR TO", "GLOB", "~", "!~", "->", "->>", "@>", "<@", "&&", "^@", "<->", "<=>", "IN",
    "COLLATE", "AT TIME ZONE",
)  # fmt: skip
BEFORE = ("-", "NOT ", "~", "+", "@ ", "- - ")
AFTER = (
    " IS NULL", " IS NOT NULL", " NOTNULL", " IS NOT FALSE", " BETWEEN d AND e", "::INT", "[1:2]",
    ".f", " NOT IN (1, 2)", " LIKE 'x' ESCAPE '!'",
)  # fmt: skip
KEYWORDS = (
    "date", "time", "timestamp", "year", "text", "json", "list", "user", "current_date", "div",
    "xor", "rlike", "apply", "index", "format", "percent", "first", "next", "row", "value", "key",
    "filter", "session", "cache", "view", "interval", "localtime", "regexp",
)  # fmt: skip


def query_of(expressions: Iterable[str]) -> EvaluateModel:
    statement = parse(f"EVALUATE MODEL m FROM (SELECT {', '.join(expressions)} FROM t)")
    assert isinstance(statement, EvaluateModel)
    return statement


def readable(con: duckdb.DuckDBPyConnection, expressions: Iterable[str]) -> list[str]:
    """Those that DuckDB can read."""
    found = []
    for expression in expressions:
        try:
            con.extract_statements(f"SELECT {expression} FROM t")
        except duckdb.Error:
            continue
        found.append(expression)
    return found


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    found = duckdb.connect()
    found.execute(
        "CREATE TABLE t AS SELECT 7 AS x, 'Abc' AS v, [3, 1, 2] AS li, [1, 2]::FLOAT[2] AS f, "
        "[4, 6]::FLOAT[2] AS g, DATE '2024-03-05' AS d, TIMESTAMP '2024-03-05 10:20:30' AS ts, "
        """true AS b, '{"a": {"b": [1, 2]}, "c": "q"}'::JSON AS j, {'a': 1} AS st, """
        "NULL::INTEGER AS nu, 2.5::DOUBLE AS dbl"
    )
    yield found
    found.close()


def same(con: duckdb.DuckDBPyConnection, *expressions: str) -> bool:
    """Whether DuckDB can read them, as one and the same."""
    if readable(con, expressions) != list(expressions):
        return False
    read = "SELECT json_deserialize_sql(json_serialize_sql(?))"
    return len({con.execute(read, [f"SELECT {e} FROM t"]).fetchone() for e in expressions}) == 1


MOVED = re.compile(r"(?<!<)->(?!>)|(?<![<^])@ ")
"""Operators whose rank is another one from DuckDB 2.0.1 on."""


def is_old(con: duckdb.DuckDBPyConnection) -> bool:
    return same(con, "@ a | b", "@ (a | b)")


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_bind_as_in_duckdb(operator: str, con: duckdb.DuckDBPyConnection) -> None:
    texts = [f"a {operator} b {other} c" for other in OPERATORS]
    texts += [f"{before}a {operator} b" for before in BEFORE]
    texts += [f"a {operator} {before}b = c" for before in BEFORE if before != "~"]
    texts += [f"a {operator} b{after} AND c" for after in AFTER]
    known = readable(con, texts)
    assert len(known) > 15
    if is_old(con):
        known = ["a", *(text for text in known if not MOVED.search(text))]
    confirm(query_of(known))


SUMS = ("+", "-", "*", "/", "//", "%", "^", "**", "COLLATE", "AT TIME ZONE")
"""What binds closer than `@` before it."""
MEANT = {
    f"@ a {o} b": f"@ (a {o} b)" if o in SUMS else f"(@ a) {o} b" for o in OPERATORS
} | {
    f"a {o} @ b + c": f"a {o} (@ (b + c))" for o in OPERATORS if o not in ("COLLATE", "IN")
} | {
    f"a {o} b -> c": f"a {o} (b -> c)" for o in ("=", "<", "AND", "OR", "LIKE", "IS DISTINCT FROM")
} | {
    f"a -> b {o} c": f"a -> (b {o} c)" for o in OPERATORS if o not in ("->", "->>", "COLLATE")
} | {
    "@ a + b | c": "(@ (a + b)) | c", "a || @ b | c": "a || ((@ b) | c)",
    "a | @ b || c": "(a | (@ b)) || c", "a ^ @ b ^ c * d": "a ^ (@ ((b ^ c) * d))",
    "@ a + ~b": "(@ a) + (~b)", "@ ~a + b | c": "(@ (~(a + b))) | c", "@ - a + b": "@ ((-a) + b)",
    "@ @ a + b": "@ (@ (a + b))", "- @ a + b": "-(@ (a + b))", "~ @ a + b": "~(@ (a + b))",
    "- @ a | b": "(-(@ a)) | b", "! a | b": "(! a) | b", "a * ! b + c": "a * (! (b + c))",
    "@ a[1]::INT": "@ (a[1]::INT)", "a LIKE @ b || c": "a LIKE ((@ b) || c)",
    "a BETWEEN @ b + c AND @ d | e": "a BETWEEN (@ (b + c)) AND ((@ d) | e)",
    "a -> b -> c = d": "(a -> b) -> (c = d)", "a -> b ->> c = d": "((a -> b) ->> c) = d",
    "a -> b + c ->> d": "(a -> (b + c)) ->> d", "a -> b || c ->> d": "a -> ((b || c) ->> d)",
    "a -> NOT b -> c": "a -> (NOT (b -> c))", "NOT a -> b ->> c = d": "NOT (((a -> b) ->> c) = d)",
    "a -> (b -> c) ->> d": "(a -> (b -> c)) ->> d", "a || b -> c || d": "(a || b) -> (c || d)",
    "a = b -> c = d OR e": "a = (b -> ((c = d) OR e))", "a IS NULL -> b": "(a IS NULL) -> b",
    "a -> b = c AND d -> e ->> f = g": "a -> ((b = c) AND (((d -> e) ->> f) = g))",
    "a -> b ->> c = d AND e": "(((a -> b) ->> c) = d) AND e",
}  # fmt: skip
"""What a text is from DuckDB 2.0.1 on; to 2.0.0 some are something else, or cannot be read."""


@pytest.mark.parametrize(("text", "meant"), MEANT.items(), ids=MEANT)
def test_what_binds_otherwise_than_before_is_never_misread(
    text: str, meant: str, con: duckdb.DuckDBPyConnection
) -> None:
    alike = same(con, text, meant)
    assert alike or is_old(con)
    if alike:
        confirm(query_of([text]))
    else:
        with pytest.raises(ParseError):
            confirm(query_of([text]))


def test_the_second_reading_rests_on_no_precedence() -> None:
    query = query_of(["a LIKE @ b || c + d * -e AND f AND NOT g = h -> i = j"]).query
    (found,) = explicit(query).selects
    meant = "(a LIKE ((@ b) || (c + (d * (-e))))) AND f AND (NOT (g = (h -> (i = j))))"
    assert to_sql(found) == meant


def test_fragments_are_read_back() -> None:
    """A sum in a product, written without parentheses, is another expression to DuckDB."""
    ucq = flights()
    confirm_fragments(ucq)
    first, *others = ucq.slots
    product_of = exp.Mul(
        this=exp.Add(this=exp.column("a"), expression=exp.column("b")), expression=exp.column("c")
    )
    select = first.fragments[0].select.copy()
    select.expressions[0].replace(exp.alias_(product_of, "distance"))
    broken = replace(first, fragments=(replace(first.fragments[0], select=select),))
    with pytest.raises(InternalError, match="reads a fragment otherwise"):
        confirm_fragments(replace(ucq, slots=(broken, *others)))


def test_prefixes_and_postfixes_bind_as_in_duckdb(con: duckdb.DuckDBPyConnection) -> None:
    texts = [f"{before}a{after}" for before, after in product(BEFORE, AFTER)]
    texts += [f"a{first}{second}" for first, second in product(AFTER, AFTER)]
    confirm(query_of(readable(con, texts)))


def test_functions_keep_their_names_and_arguments(con: duckdb.DuckDBPyConnection) -> None:
    rows = con.execute(
        "SELECT DISTINCT function_name, least(4, len(parameters)) FROM duckdb_functions() "
        "WHERE regexp_full_match(function_name, '[a-z][a-z_0-9]*') AND function_type <> 'pragma'"
    ).fetchall()
    special = {"map", "overlay", "substring", "trim"}
    texts = [f"{name}({', '.join('abcd'[:n])})" for name, n in rows]
    texts += [f"{name}(a -> 'b', c := d)" for name, _ in rows if name not in special]
    texts += [f"x.{name}(a)" for name, _ in rows]
    known = readable(con, texts)
    assert len(known) > 2500
    confirm(query_of(known if THOROUGH else known[SEED % 4 :: 4]))


def test_names_that_another_parser_takes_for_keywords() -> None:
    for form in ("{}", "t.{}", "x AS {}", "{} + 1", "{}.y", "{} = 1 AND {} IS NULL", "{{{}: 1}}"):
        confirm(query_of(form.format(word, word) for word in KEYWORDS))


VALUES = (
    "DATE '2024-01-01'::TIMESTAMP", "TIMESTAMP '2024-01-01 10:00'::DATE::VARCHAR",
    "TIMESTAMP '2024-01-01 10:00'::TIME", "TIME '10:00'::VARCHAR", "JSON '{\"a\": 1}'::VARCHAR",
    "INTERVAL '1.5 days'", "INTERVAL '1.5' DAYS", "INTERVAL 1.5 DAYS", "INTERVAL (x) DAYS",
    "INTERVAL '1 day 2 hours'", "ts + INTERVAL '0.5 month'", ".5", "1_000", "x'AB'",
    "b'101'", "E'a\\tb'", "$$a'b$$", "f <=> g", "f <-> g", "x IN li", "3 IN [1, 2, 3]",
    "li || [9]", "(x,)", "ROW(x, 1)", "j -> 'a.b'", "j -> 'a' -> 'b'", "len(j -> 'a')",
    "trim(j ->> 'c')", "j ->> 'c' || 'x'", "list_transform(li, lambda q: q + x)",
    "[q * x FOR q IN li IF q > 1]", "~(x::INT) + 1", "-2 ^ 2",
    "2 ^ 3 ^ 2", "2 ** -1", "@ x - 9", "x // 2 * 3", "nu IS NULL = b", "x = 7 IS NULL",
    "NOT x BETWEEN 1 AND 5 OR b", "x BETWEEN 1 AND 9 = b", "v ~ 'b'", "v !~ 'b'", "v ^@ 'A'",
    "v NOT SIMILAR TO 'A.*'", "v LIKE '%!%' ESCAPE '!'", "x::INT16", "x::FLOAT8", "x::DEC(4,1)",
    "'abc'::VARCHAR(1)", "ts::TIMESTAMP_MS", "x::DECIMAL", "1::UNION(a INT, b VARCHAR)",
    "extract(dow FROM d)", "extract('isodow' FROM d)", "date_part(['year', 'month'], d)",
    "date_diff('week', DATE '2024-01-31', d)", "date_trunc('week', ts)", "strftime('%Y', ts)",
    "substring(v FROM 2 FOR 1)", "substring(v FOR 2)", "position('b' IN v)",
    "trim(LEADING 'A' FROM v)", "overlay('abcdef' PLACING 'X' FROM 2 FOR 3)", "li[-1]", "li[1:2]",
    "[1, 2, 3, 4][1:-:2]", "map {1: 'a'}[1]", "st.a", "st['a']", "v.upper().lower()",
    "list_sort(li, 'DESC')", "list_cosine_distance(f, g)", "round(dbl)", "log(100)", "ARRAY[1, 2]",
    "x = ANY(li)", "(x, 1) = (7, 1)", "x IN ((7), 1)", "if(b, x, nu)", "ifnull(nu, 3)",
    "decode(encode(v))", "hash(x)", "CASE x WHEN 7 THEN 'a' END", "x::VARCHAR COLLATE NOCASE",
)  # fmt: skip


def test_values_are_those_of_the_text(con: duckdb.DuckDBPyConnection) -> None:
    written = ", ".join(f"typeof(c{n}), c{n}::VARCHAR" for n in range(len(VALUES)))
    own = ", ".join(f"{text} AS c{n}" for n, text in enumerate(VALUES))
    given = con.execute(f"SELECT {written} FROM (SELECT {own} FROM t)").fetchone()
    statement = query_of(f"{text} AS c{n}" for n, text in enumerate(VALUES))
    confirm(statement)
    found = con.execute(f"SELECT {written} FROM ({to_sql(statement.query)})").fetchone()
    assert found == given


def test_arrows_are_lambdas_where_they_were() -> None:
    arrows = ("list_transform(li, q -> q + 1)", "filter(li, (q, i) -> q > i)", "len(j -> 'a')")
    statement = query_of(arrows)
    confirm(statement)
    assert [to_sql(e) for e in statement.query.selects] == [
        "LIST_TRANSFORM(li, LAMBDA q : q + 1)",
        "FILTER(li, LAMBDA q, i : q > i)",
        "LEN(j -> 'a')",
    ]


QUERIES = (
    "FROM t SELECT x", "SELECT x FROM t, u LEFT JOIN v ON u.a = v.a, w",
    "SELECT x FROM t JOIN u JOIN v ON b ON a", "SELECT x FROM q: t", "SELECT y: x FROM t",
    "SELECT x FROM (VALUES (1), (2)) q(x)", "WITH a AS (VALUES (1)) FROM a",
    "SELECT x FROM t, unnest(t.l) q(x)", "SELECT x FROM t, LATERAL (SELECT t.a AS x) q",
    "SELECT x FROM t LEFT JOIN unnest(t.l) WITH ORDINALITY q(x, i) ON true",
    "SELECT x FROM t TABLESAMPLE 10%", "SELECT x FROM t USING SAMPLE reservoir(10 ROWS)",
    "SELECT DISTINCT ON (x, y) x FROM t ORDER BY y DESC NULLS LAST, z ASC",
    "FROM t ORDER BY ALL DESC",
    "SELECT x FROM t GROUP BY ALL HAVING count(*) > 1 QUALIFY rank() OVER (ORDER BY x) < 3",
    "SELECT sum(x) OVER (w ROWS BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE TIES) FROM t "
    "WINDOW w AS (PARTITION BY y ORDER BY z)", "SELECT x FROM t LIMIT 10% OFFSET 2",
    "SELECT x FROM t UNION ALL BY NAME SELECT y FROM u EXCEPT SELECT z FROM v ORDER BY 1",
    "(SELECT x FROM t LIMIT 1) UNION ALL (SELECT y FROM u)",
    "WITH RECURSIVE a(x) AS (SELECT 1 UNION SELECT x + 1 FROM a), b AS MATERIALIZED (FROM a) "
    "SELECT * FROM b", "SELECT x FROM t PIVOT (sum(x) AS s FOR y IN ('a' AS aa, 'b') GROUP BY w)",
    "SELECT * FROM (PIVOT t ON y IN ('a', 'b') USING sum(x), max(x) GROUP BY z)",
    "SELECT * FROM (UNPIVOT t ON a, b INTO NAME n VALUE v) q", "SELECT * FROM (SUMMARIZE t)",
    "SELECT x FROM t AT (VERSION => 3)", "SELECT s.t.* EXCLUDE (x), t.* FROM s.t, c.s.u, p.c.s.v",
    "SELECT * EXCLUDE (t.x) REPLACE (y + 1 AS y) RENAME (z AS w) FROM t",
    "SELECT COLUMNS('a.*') + 1, min(COLUMNS(* EXCLUDE (x))), *COLUMNS(*) FROM t",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY x DESC) FILTER (WHERE y) FROM t",
    "SELECT string_agg(DISTINCT x, ',' ORDER BY y), lag(x IGNORE NULLS) OVER () FROM t",
    "SELECT x FROM t WHERE (x, y) IN (SELECT a, b FROM u) AND NOT EXISTS (FROM v)",
    "SELECT x FROM t WHERE x > ALL (SELECT y FROM u) OR x = ANY ([1, 2])",
    "SELECT x, y, FROM t,", "SELECT `x y`, \"a\"\"b\" FROM `t`",
    "SELECT x FROM read_csv('a.csv', header := true, delim => ',')",
    "SELECT x FROM t JOIN u NEAREST 3 BY DISTANCE t.v <-> u.v",
    'SELECT x::"a""b", CAST(y AS s."c""d"[]) FROM t',
)  # fmt: skip


@pytest.mark.parametrize("query", QUERIES)
def test_queries_are_read_as_duckdb_does(query: str) -> None:
    confirm(parse(f"EVALUATE MODEL m FROM ({query})"))


@pytest.mark.parametrize(
    "from_", ["(t)", "((t))", "t JOIN (u AS v) ON b", "((t) JOIN u USING (a))"]
)
def test_a_table_alone_in_parentheses_is_one_where_duckdb_reads_it(
    from_: str, con: duckdb.DuckDBPyConnection
) -> None:
    """To 2.0.0 it was; 2.0.1 wants a join in parentheses."""
    statement = parse(f"EVALUATE MODEL m FROM (SELECT x FROM {from_})")
    try:
        con.extract_statements(f"SELECT x FROM {from_}")
    except duckdb.ParserException:
        with pytest.raises(ParseError, match="not valid SQL"):
            confirm(statement)
    else:
        confirm(statement)


FAULTS = {
    "an f-string's name": (
        "SELECT {x} FROM a.t", 33, "not valid SQL", "in Python",
    ),
    "a chain of comparisons": (
        "SELECT a < b < c FROM a.t", 24, "Chained comparisons", "try the query",
    ),
    "PIVOT by the values of the table": (
        "SELECT * FROM (PIVOT a.t ON y USING sum(x))", 24, "stay with its party", "IN ('a', 'b')",
    ),
    "a word that stands for a value": (
        "SELECT 'é', default FROM a.t", 36, "reads this otherwise", "write it otherwise",
    ),
    "operators that run together": (
        "SELECT x, ~-y FROM a.t", 36, "reads this otherwise", "write it otherwise",
    ),
    "a type of two words": (
        "SELECT x::BIT VARYING FROM a.t", 32, "reads this otherwise", "write it otherwise",
    ),
    "what the planner's parser does not know": (
        "SELECT 4! FROM a.t", 32, "the query cannot be read: ! is not expected", "DuckDB",
    ),
    "a hexadecimal number": (
        "SELECT x + 0xFF FROM a.t", 35, "expected A NUMBER IN DECIMALS, got 0xFF", "DuckDB",
    ),
    "no SELECT": ("VALUES (1)", 24, "expected a query, got VALUES", "SELECT"),
}  # fmt: skip


@pytest.mark.parametrize(("query", "column", "said", "hint"), FAULTS.values(), ids=FAULTS)
def test_what_is_read_otherwise_is_refused(
    query: str, column: int, said: str, hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(ParseError) as caught:
        confirm(parse(f"EVALUATE MODEL m FROM ({query})"))
    assert said in caught.value.message
    assert caught.value.column == column
    assert hint in (caught.value.hint or "")
    assert "sqlglot" not in str(caught.value)
    assert not caplog.records
