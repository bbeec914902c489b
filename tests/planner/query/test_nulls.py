"""What expressions are said to be over NULLs, against what DuckDB makes of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

import duckdb
import pytest
from sqlglot import exp, parse_one

from sqlfl.planner.grammar.sql import Dialect
from sqlfl.planner.query.nulls import is_null_over_nulls, outcomes, rejects_nulls, typed
from sqlfl.planner.query.relations import column
from tests.depth import SEED, THOROUGH

NUMBERS = (
    "<n> + <n>", "<n> - <n>", "<n> * <n>", "-<n>", "abs(<n>)", "<n> % 3", "<n> // 2", "round(<n>)",
    "coalesce(<n>, <n>)", "nullif(<n>, <n>)", "CASE WHEN <b> THEN <n> ELSE <n> END",
    "CASE WHEN <b> THEN <n> WHEN <b> THEN <n> END", "CASE <n> WHEN <n> THEN <n> END",
    "if(<b>, <n>, <n>)", "length(<s>)", "<n>::DOUBLE",
    "TRY_CAST(<s> AS INTEGER)",
    "greatest(<n>, <n>)", "ifnull(<n>, <n>)", "<n> ^ 2", "2 ** <n>", "+<n>", "sqrt(abs(<n>))",
    "ceil(<n>)", "len(<s>)", "power(<n>, 2)", "@ <n>",
    "[<n>, <n>][1]", "{'f': <n>}.f", "<b>::INTEGER", "<n> & <n>",
)  # fmt: skip
TEXTS = (
    "lower(<s>)", "upper(<s>)", "trim(<s>)", "substring(<s>, <n>, 2)", "<s> || <s>",
    "concat(<s>, <s>)", "coalesce(<s>, <s>)", "<n>::VARCHAR", "CASE WHEN <b> THEN <s> END",
)  # fmt: skip
TRUTHS = (
    "<n> = <n>", "<n> <> <n>", "<n> < <n>", "<n> >= <n>", "<s> LIKE <s>", "<s> ILIKE 'A%'",
    "<n> BETWEEN <n> AND <n>", "<n> NOT BETWEEN <n> AND <n>", "<n> IN (<n>, <n>)",
    "<n> NOT IN (1, 2)", "<n> IN (SELECT 1 WHERE false)", "<n> NOT IN (SELECT 1 WHERE false)",
    "<n> IS NULL", "<n> IS NOT NULL", "<b> IS TRUE", "<b> IS NOT TRUE", "<b> IS FALSE",
    "<n> IS DISTINCT FROM <n>", "<n> IS NOT DISTINCT FROM <n>", "NOT <b>", "(<b> AND <b>)",
    "(<b> OR <b>)", "(<b> AND <b>)", "(<b> OR <b>)", "coalesce(<b>, <b>)", "<n> = ALL (SELECT 3)",
    "<n> > ALL (SELECT 3 WHERE false)", "<n> = ANY (SELECT 3)", "<n> = ANY ([<n>])",
    "<n> <> ALL ([<n>])", "<n> = ALL ([]::INTEGER[])", "<n> > SOME ([<n>, 3])",
    "<s> LIKE <s> ESCAPE '/'",
    "CASE WHEN <b> THEN <b> ELSE <b> END", "(<n>, <n>) = (<n>, <n>)",
)  # fmt: skip
LEAVES = {
    "n": ("t.a", "t.a", "u.a", "3", "0", "NULL::INTEGER"),
    "s": ("t.s", "t.s", "u.s", "'a'", "NULL::VARCHAR"),
    "b": ("t.b", "t.b", "u.b", "true", "false", "NULL::BOOLEAN"),
}
RULES = {"n": NUMBERS, "s": TEXTS, "b": TRUTHS}


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    found = duckdb.connect()
    found.execute("CREATE TABLE t AS SELECT NULL::INTEGER AS a, NULL::VARCHAR s, NULL::BOOLEAN b")
    found.execute("CREATE TABLE u (a INTEGER, s VARCHAR, b BOOLEAN)")
    found.execute(
        "INSERT INTO u VALUES (3, 'a', true), (0, 'b', false), (NULL, NULL, NULL), (7, 'A', true)"
    )
    yield found
    found.close()


def written(random: Random, kind: str, depth: int) -> str:
    """An expression of the kind over t, whose columns are NULL, and u."""
    if depth == 0:
        return random.choice(LEAVES[kind])

    def inner(found: re.Match[str]) -> str:
        return f"({written(random, found[1], random.randrange(depth))})"

    return re.sub(r"<([nsb])>", inner, random.choice(RULES[kind]))


def bound(text: str) -> exp.Expr:
    """As the binder leaves it: t is a relation that has no row."""
    tree = parse_one(f"SELECT {text}", dialect=Dialect).selects[0]
    holder = exp.Paren(this=tree)
    for node in list(holder.find_all(exp.Column)):
        type_ = {"a": "INTEGER", "s": "VARCHAR", "b": "BOOLEAN"}[node.name]
        node.replace(typed(column(node.name, {"t": "#0", "u": "#1"}[node.table]), [type_]))
    return holder.this


@pytest.mark.parametrize("seed", range(6 if THOROUGH else 1))
def test_what_duckdb_gives_is_among_the_outcomes(seed: int, con: duckdb.DuckDBPyConnection) -> None:
    random = Random(f"{SEED} {seed}")
    sure = rejected = 0
    for _ in range(400):
        kind = random.choice("nsbb")
        text = written(random, kind, random.randrange(1, 5))
        try:
            rows = con.execute(f"SELECT {text} FROM t, u").fetchall()
        except duckdb.Error:
            continue  # a cast of a text, or an index of 0
        expression = bound(text)
        for (value,) in rows:
            shown = value if value is None or isinstance(value, bool) else "value"
            assert shown in outcomes(expression, {"#0"}), text
            if is_null_over_nulls(expression, {"#0"}):
                assert value is None, text
            if kind == "b" and rejects_nulls(expression, {"#0"}):
                assert value is not True, text
        sure += is_null_over_nulls(expression, {"#0"})
        rejected += kind == "b" and rejects_nulls(expression, {"#0"})
    assert sure > 20
    assert rejected > 20


@pytest.mark.parametrize(
    ("condition", "rejects"),
    [
        ("t.a > 3", True),
        ("t.a > u.a AND u.b", True),
        ("t.a > 3 OR t.s = 'a'", True),
        ("t.a > 3 OR u.b", False),
        ("t.a IS NULL", False),
        ("NOT t.a IS NULL", True),
        ("NOT (t.a > 3)", True),
        ("coalesce(t.a, 0) > 3", False),
        ("coalesce(t.a, t.a) > 3", True),
        ("t.a IN (1, 2)", True),
        ("t.a NOT IN (SELECT 1)", False),
        ("t.a IS DISTINCT FROM 3", False),
        ("CASE WHEN t.a > 3 THEN u.b ELSE false END", True),
        ("unknown(t.a) > 3", False),
        ("t.b", True),
        ("true", False),
        ("false", True),
    ],
)
def test_conditions_that_a_missing_row_fails(condition: str, rejects: bool) -> None:
    assert rejects_nulls(bound(condition), {"#0"}) is rejects


TYPES = {
    "BOOLEAN": "true", "INTEGER": "1", "UTINYINT": "1", "HUGEINT": "1", "DOUBLE": "1.5",
    "DECIMAL(9,2)": "1.5", "BIGNUM": "1", "VARCHAR": "'a'", "BLOB": "'a'", "BIT": "'101'",
    "INTEGER[2]": "[1, 2]", "DATE": "'2020-01-01'", "INTEGER[]": "[1]", "TIME": "'10:00:00'",
    "TIMESTAMP": "'2020-01-01'",
    "TIMESTAMP WITH TIME ZONE": "'2020-01-01'", "INTERVAL": "'1 day'", "JSON": "'{\"a\": 1}'",
    "UUID": "'00000000-0000-0000-0000-000000000001'", "ENUM('a', 'b')": "'a'",
    "VARCHAR[]": "['a']", "STRUCT(a INTEGER)": "{'a': 1}",
    "MAP(VARCHAR, INTEGER)": "map {'a': 1}", "UNION(n INTEGER, s VARCHAR)": "1", "VARIANT": "1",
}  # fmt: skip
FEW = ("INTEGER", "VARCHAR", "DATE", "INTEGER[2]", "INTEGER[]", "UNION(n INTEGER, s VARCHAR)")
PAIRS = (
    "{} + {}", "{} - {}", "{} * {}", "{} / {}", "{} // {}", "{} % {}", "{} ^ {}", "{} ** {}",
    "{} = {}", "{} <> {}", "{} < {}", "{} >= {}", "{} LIKE {}", "{} ILIKE {}", "{} & {}",
    "{} << {}", "{} >> {}", "{} ->> {}", "{} ^@ {}", "{} ~ {}", "{} !~ {}", "{} || {}",
    "{} IN ({})", "{} NOT IN ({})", "{} BETWEEN {} AND {}", "{}[{}]", "{} IS DISTINCT FROM {}",
    "nullif({}, {})", "coalesce({}, {})", "CASE {} WHEN {} THEN 1 END", "{} IN (SELECT {})",
)  # fmt: skip
ALONE = (
    "+{}", "-{}", "~{}", "@ {}", "{}[1:2]", "NOT {}", "extract(year FROM {})",
    *(f"CAST({{}} AS {type_})" for type_ in TYPES), *(f"TRY_CAST({{}} AS {t})" for t in TYPES),
)  # fmt: skip


def over(text: str, types: dict[str, str]) -> exp.Expr:
    """`l` and `r` are columns of t, which has no row; `m` is one of u."""
    tree = parse_one(f"SELECT {text}", dialect=Dialect).selects[0]
    holder = exp.Paren(this=tree)
    for node in list(holder.find_all(exp.Column)):
        table = "#1" if node.name == "m" else "#0"
        node.replace(typed(column(node.name, table), [types[node.name]]))
    return holder.this


@pytest.fixture(scope="module")
def tables() -> Iterator[duckdb.DuckDBPyConnection]:
    """A table of one row for each type: `l` is NULL, `m` a value."""
    con = duckdb.connect()
    con.execute("PRAGMA disable_optimizer")
    for number, (type_, value) in enumerate(TYPES.items()):
        con.execute(
            f"CREATE TABLE t{number} AS SELECT NULL::{type_} AS l, NULL::{type_} AS r, "
            f"CAST({value} AS {type_}) AS m"
        )
    yield con
    con.close()


def test_operators_over_all_types(tables: duckdb.DuckDBPyConnection) -> None:
    names, few = list(TYPES), range(len(TYPES))
    few = few if THOROUGH else [names.index(type_) for type_ in FEW]
    sure = 0
    for pattern in (*PAIRS, *ALONE):
        binary = pattern in PAIRS
        for first in few if binary else range(len(names)):
            for second in few if binary else (first,):
                for a, b in (("l", "m"), ("m", "l")) if binary else (("l", "l"),):
                    types = {a: names[first], b: names[second]}
                    text = pattern.format(a, b, b)
                    possible = outcomes(over(text, types), {"#0"})
                    if possible >= {None, True, False, "value"}:
                        continue
                    sure += 1
                    run = pattern.format(f"p.{a}", f"q.{b}", f"q.{b}")
                    try:
                        rows = tables.execute(
                            f"SELECT {run} FROM t{first} AS p, t{second} AS q"
                        ).fetchall()
                    except duckdb.Error:
                        continue
                    shown = rows[0][0]
                    shown = shown if shown is None or isinstance(shown, bool) else "value"
                    assert shown in possible, (text, types)
    assert sure > 500
