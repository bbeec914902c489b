"""Bounds on the size of what expressions make: that none is exceeded, and what is refused."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import duckdb
import pytest

from sqlfl.base.errors import PolicyError
from sqlfl.governance.names import functions_of
from sqlfl.governance.scopes import ScopeColumn, Table
from sqlfl.governance.sizes import NUMBER_SIZE, OVERHEAD
from sqlfl.governance.tree import SelectReading, read
from tests.depth import SEED, THOROUGH
from tests.open_databases import in_memory

TYPES = {
    "k": "INTEGER", "t": "VARCHAR", "u": "VARCHAR", "n": "DOUBLE", "i": "BIGINT", "d": "DATE",
    "l": "DOUBLE[]", "w": "VARCHAR[]", "s": "STRUCT(x DOUBLE, y VARCHAR)", "j": "JSON",
}  # fmt: skip
MADE = """CREATE TABLE rows AS SELECT r::INTEGER AS k,
  CASE r % 7 WHEN 0 THEN '' WHEN 1 THEN 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' WHEN 2 THEN 'ɐßŉ,é,ü'
    WHEN 3 THEN 'a,b,,c''"\\"{}[]' WHEN 4 THEN chr(1) || chr(9) || 'x' WHEN 5 THEN NULL
    ELSE 'Ward 12, north' END AS t,
  CASE r % 3 WHEN 0 THEN 'a' WHEN 1 THEN 'bb aa' ELSE '😀a' END AS u,
  CASE r % 5 WHEN 0 THEN 1e308 WHEN 1 THEN -0.123456789012345 WHEN 2 THEN NULL ELSE r END AS n,
  CASE r % 4 WHEN 0 THEN -9223372036854775807 ELSE r END AS i, DATE '2024-01-01' + r::INTEGER AS d,
  CASE r % 4 WHEN 0 THEN [] WHEN 1 THEN [1.5, NULL, 1e300] WHEN 2 THEN NULL
    ELSE [r, r, 2.0, 3.0] END::DOUBLE[] AS l,
  CASE r % 3 WHEN 0 THEN [] WHEN 1 THEN ['a', '', NULL, 'it''s, "x"'] ELSE ['bb'] END AS w,
  {'x': r * 1.0, 'y': 'a' || r} AS s, '{"a": [1, {"a": 1e5}], "b": "x"}'::JSON AS j
FROM range(14) AS r(r)"""
TABLE: Table = ("memory", "main", "rows")
Reading = Callable[[str], SelectReading]


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with in_memory() as found:
        found.execute(MADE)
        yield found


def columns(parts: Sequence[str]) -> tuple[Table, tuple[str, ...]] | None:
    return (TABLE, tuple(TYPES)) if parts[-1].lower() == "rows" else None


def type_of(column: ScopeColumn) -> str | None:
    return TYPES.get(column.name)


@pytest.fixture(scope="module")
def read_select(con: duckdb.DuckDBPyConnection) -> Reading:
    """A function that reads a SELECT over `rows`."""
    functions = functions_of(con)
    return lambda text: read(con, text, columns, functions, types=type_of)


@pytest.fixture(scope="module")
def row_sizes(con: duckdb.DuckDBPyConnection) -> list[float]:
    """The size of the data of each row."""
    rows = con.execute("SELECT * FROM rows ORDER BY k").fetchall()
    return [NUMBER_SIZE + sum(map(size, row)) for row in rows]


def size(value: Any) -> float:
    """Of a value, in the measure of the bounds."""
    if isinstance(value, str | bytes):
        return OVERHEAD + len(value.encode() if isinstance(value, str) else value)
    if isinstance(value, list | tuple):
        return OVERHEAD + sum(map(size, value))
    if isinstance(value, dict):
        return OVERHEAD + sum(size(item) + len(str(name)) for name, item in value.items())
    return NUMBER_SIZE if value is not None else 0


class Drawn:
    """Random expressions, by the kind of their values."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lambdas: list[tuple[str, str]] = []

    def one(self, *made: Callable[[], str]) -> str:
        return self.random.choice(made)()

    def number(self, depth: int) -> str:
        own = [name for name, kind in self.lambdas if kind == "number"]
        if depth <= 0:
            return self.random.choice([*own, *own, "n", "i", "k", "3", "NULL", "1e300", "0.5"])
        d = depth - 1
        return self.one(
            lambda: f"({self.number(d)} {self.random.choice('+-*/')} {self.number(d)})",
            lambda: f"length({self.text(d)})",
            lambda: f"len({self.numbers(d)})",
            lambda: f"coalesce({self.number(d)}, {self.number(d)})",
            lambda: f"list_sum({self.numbers(d)})",
            lambda: f"{self.numbers(d)}[1]",
            lambda: f"levenshtein({self.text(d)}, 'abc')",
            lambda: f"list_reduce({self.numbers(d)}, lambda p, q: p + q, 0.0)",
            lambda: f"abs({self.number(d)})",
            lambda: f"TRY_CAST({self.text(d)} AS DOUBLE)",
            lambda: f"CASE WHEN {self.number(d)} > 1 THEN {self.number(d)} END",
        )

    def text(self, depth: int) -> str:
        own = [name for name, kind in self.lambdas if kind == "text"]
        if depth <= 0:
            return self.random.choice([*own, *own, "t", "u", "t", "'xyz'", "''", "'a'", "NULL"])
        d = depth - 1
        few = self.random.choice(["0", "3", "17", "least(k, 9)", "(-2)"])
        return self.one(
            lambda: f"({self.text(d)} || {self.text(d)})",
            lambda: f"concat({self.text(d)}, {self.number(d)}, {self.texts(d)})",
            lambda: f"concat_ws({self.text(d)}, {self.text(d)}, {self.number(d)})",
            lambda: f"{self.random.choice(['lpad', 'rpad'])}({self.text(d)}, {few}, '😀é')",
            lambda: f"repeat({self.text(d)}, {few})",
            lambda: f"replace({self.text(d)}, {self.text(0)}, {self.text(0)})",
            lambda: f"regexp_replace({self.text(d)}, 'a*', '<\\0>', 'g')",
            lambda: f"regexp_replace({self.text(d)}, '(a)(.)', '\\2-\\1')",
            lambda: f"regexp_extract({self.text(d)}, '(.)(a*)', 2)",
            lambda: f"translate({self.text(d)}, 'a', '😀')",
            lambda: f"{self.random.choice(['upper', 'lower', 'reverse', 'trim'])}({self.text(d)})",
            lambda: f"{self.random.choice(['strip_accents', 'url_encode'])}({self.text(d)})",
            lambda: f"{self.random.choice(['hex', 'bin'])}({self.text(d)})",
            lambda: f"substring({self.text(d)}, 2, {few})",
            lambda: f"left({self.text(d)}, {few})",
            lambda: f"{self.text(d)}[1:3]",
            lambda: f"format('{{:>20}}-{{}}', {self.text(d)}, {self.number(d)})",
            lambda: f"printf('%30s|%9.3f', {self.text(d)}, {self.number(d)}::DOUBLE)",
            lambda: f"CAST({self.numbers(d)} AS VARCHAR)",
            lambda: f"CAST({self.texts(d)} AS VARCHAR)",
            lambda: f"CAST({self.number(d)} AS VARCHAR)",
            lambda: "CAST(s AS VARCHAR)",
            lambda: f"CAST({{'a b': {self.text(d)}, 'c': {self.number(d)}}} AS VARCHAR)",
            lambda: f"array_to_string({self.texts(d)}, {self.text(0)})",
            lambda: f"list_aggregate({self.texts(d)}, 'string_agg', '--')",
            lambda: f"split_part({self.text(d)}, ',', 2)",
            lambda: f"{self.texts(d)}[2]",
            lambda: f"to_json({self.texts(d)})::VARCHAR",
            lambda: "json_extract(j, '$.*')::VARCHAR",
            lambda: "(j ->> '$.a')",
            lambda: f"strftime(d, '%c %A %B {self.random.choice(['', '%c'])}')",
            lambda: f"nullif({self.text(d)}, {self.text(d)})",
            lambda: f"CASE WHEN k > 3 THEN {self.text(d)} ELSE {self.text(d)} END",
            lambda: f"bar({self.number(d)}, 0, 10, 50)",
            lambda: f"md5({self.text(d)})",
        )

    def numbers(self, depth: int) -> str:
        if depth <= 0:
            return self.random.choice(["l", "l", "[1.0, 2.0]", "[]::DOUBLE[]"])
        d = depth - 1
        return self.one(
            lambda: f"[{self.number(d)}, {self.number(d)}]::DOUBLE[]",
            lambda: f"list_concat({self.numbers(d)}, {self.numbers(d)})",
            lambda: f"list_resize({self.numbers(d)}, 7, 1.0)",
            lambda: f"range(0, {self.random.randint(0, 20)})::DOUBLE[]",
            lambda: f"{self.numbers(d)}[1:2]",
            lambda: f"list_sort({self.numbers(d)})",
            lambda: f"list_select({self.numbers(d)}, [1, 1, 2])",
            lambda: f"list_append({self.numbers(d)}, {self.number(d)})",
            lambda: self.of_each("list_transform", self.numbers, "number", self.number, d),
            lambda: self.of_each("list_transform", self.texts, "text", self.number, d),
            lambda: self.of_each("list_filter", self.numbers, "number", self.greater, d),
        )

    def greater(self, depth: int) -> str:
        return f"{self.number(depth)} > 1"

    def texts(self, depth: int) -> str:
        if depth <= 0:
            return self.random.choice(["w", "w", "['a', 'bcd']"])
        d = depth - 1
        return self.one(
            lambda: f"[{self.text(d)}, {self.text(d)}]",
            lambda: f"string_split({self.text(d)}, {self.random.choice(['', ','])!r})",
            lambda: f"regexp_split_to_array({self.text(d)}, '[ab]*')",
            lambda: f"regexp_extract_all({self.text(d)}, 'a*')",
            lambda: f"list_concat({self.texts(d)}, {self.texts(d)})",
            lambda: f"list_distinct({self.texts(d)})",
            lambda: self.of_each("list_transform", self.texts, "text", self.text, d),
            lambda: self.of_each("list_transform", self.numbers, "number", self.text, d),
            lambda: f"list_resize({self.texts(d)}, 5, {self.text(d)})",
            lambda: f"CAST({self.numbers(d)} AS VARCHAR[])",
        )

    def of_each(
        self, name: str, lists: Callable[[int], str], kind: str, body: Callable[[int], str], d: int
    ) -> str:
        whole, parameter = lists(d), f"p{len(self.lambdas)}"
        self.lambdas.append((parameter, kind))
        made = body(d)
        self.lambdas.pop()
        return f"{name}({whole}, lambda {parameter}: {made})"

    def gathered(self, depth: int) -> str:
        return self.one(
            lambda: f"list({self.text(depth)})",
            lambda: f"list({self.number(depth)})",
            lambda: f"string_agg({self.text(depth)}, '; ')",
            lambda: f"histogram({self.number(depth)}::INTEGER)",
            lambda: f"list_sort(list({self.number(depth)}))",
            lambda: f"max({self.text(depth)}, 3)",
            lambda: f"array_to_string(list(DISTINCT {self.text(depth)}), ',')",
            lambda: f"quantile_cont({self.number(depth)}::DOUBLE, [0.1, 0.5])",
            lambda: f"first({self.texts(depth)})",
        )


def bounds_hold(
    con: duckdb.DuckDBPyConnection,
    read_select: Reading,
    row_sizes: list[float],
    made: str,
    *,
    gathered: bool,
) -> str:
    """Whether the expression is refused, fails, or has values within their bounds."""
    try:
        (output,) = read_select(f"SELECT {made} AS f FROM rows").outputs
    except PolicyError:
        return "refused"
    query = f"SELECT {made} AS f FROM rows"
    try:
        values = con.execute(query if gathered else f"{query} ORDER BY k").fetchall()
    except duckdb.Error:
        return "failed"
    constant, times = output.size.terms[:2]
    for (value,), of in zip(values, [sum(row_sizes)] if gathered else row_sizes, strict=True):
        assert size(value) <= constant + times * of + NUMBER_SIZE, (made, value)
    return "held"


@pytest.mark.parametrize("part", range(4))
def test_no_value_is_larger_than_its_bound(
    con: duckdb.DuckDBPyConnection, read_select: Reading, row_sizes: list[float], part: int
) -> None:
    holds = partial(bounds_hold, con, read_select, row_sizes)
    drawn, met = Drawn(SEED + part), {"held": 0, "refused": 0, "failed": 0}
    for number in range(4_000 if THOROUGH else 120):
        depth = drawn.random.randint(1, 3)
        if number % 5 == 0:
            met[holds(drawn.gathered(depth - 1), gathered=True)] += 1
            continue
        kind = drawn.random.choice([drawn.text, drawn.numbers, drawn.texts, drawn.number])
        made = kind(depth)
        met[holds(made, gathered=False)] += 1
    assert met["held"] > met["refused"] + met["failed"]


def doubled(text: str, times: int) -> str:
    """The text with X in it, in which X is the text again."""
    made = "t"
    for _ in range(times):
        made = text.replace("X", made)
    return made


LARGE = [
    ("length(rpad('a', 150000000, 'b'))", "rpad may make a value of"),
    ("lpad(t, 400000, 'b')", "lpad may make a value of 1,600,020 bytes; 32,768 bytes are taken"),
    ("lpad(t, k, 'b')", "lpad makes values as large as its argument 2 says"),
    ("lpad(t, greatest(k, 5), 'b')", "argument 2 says, which is to be a literal"),
    ("repeat('ab', 100000)", "repeat may make a value of"),
    ("repeat(t, 100)", "repeat may make a value 101 times as large as the data"),
    ("repeat(t, k)", "argument 2 says"),
    ("range(1, 1000000)", "range may make a value of"),
    ("generate_series(k)", "as many values as its arguments say"),
    ("bitstring('1', 100000000)", "bitstring may make a value of"),
    ("list_resize(l, 1000000, 0)", "list_resize may make a value of"),
    ("list_resize(l, i)", "argument 2 says"),
    ("equi_width_bins(0, 10, 1000000, true)", "equi_width_bins may make a value of"),
    ("printf('%4000000d', k)", "printf may make a value of"),
    ("printf('%*d', i, k)", "a literal without *"),
    ("printf(t, k)", "argument 1 says, which is to be a literal"),
    ("format('{:>4000000}', t)", "format may make a value of"),
    ("format('{:{}}', t, i)", "without a width in {}"),
    ("replace(rpad(t, 5000, 'a'), 'a', rpad('b', 5000, 'b'))", "replace may make a value of"),
    ("replace(t, 'x', t)", "replace grows with arguments 1 and 3, of which none has a bounded"),
    ("regexp_replace(t, '', repeat('x', 200), 'g')", "regexp_replace may make a value"),
    ("regexp_replace(t, u, '')", "takes as long as its argument 2 makes it"),
    ("regexp_matches(t, '((a{90}){90}){90}')", "repeats 729,000 times"),
    ("array_to_string(string_split(t, ''), repeat('x', 100))", "array_to_string may make a value"),
    (doubled("(X || X)", 12), "may make a value 128 times as large as the data"),
    (doubled("concat(X, X, X)", 8), "concat may make a value"),
    (doubled("nullif(X, 1)", 16), "an expression stands for"),
    ("list_transform(range(1, 300), lambda x: rpad('a', 5000, 'b'))", "list_transform may make"),
    ("list_reduce(w, lambda x, y: x || x)", "list_reduce takes a lambda whose result is a number"),
    ("list_transform(w, lambda x: x || t)", "list_transform grows with what its lambda makes"),
    ("list_transform(l, lambda x: list_transform(l, lambda y: x * y))", "list_transform grows"),
    ("list_select(l, l::BIGINT[])", "list_select grows with the product of both lists' lengths"),
    ("levenshtein(t, u)", "levenshtein grows with the product of both texts' lengths"),
    ("list_sum(list_transform(range(1, 250), lambda x: list_sum(list_transform(range(1, 250), "
     "lambda y: x * y))))", "its expressions may make"),
    ("NULL::INTEGER[1000][1000]", "cast may make a value of"),
    ("string_agg(t, ',') OVER ()", "gathers as many rows as there are, for each row"),
    ("max(k, 100000000)", "max may make a value of"),
    ("approx_top_k(k, 100000000)", "approx_top_k may make a value of"),
    ("json_contains(j, j)", "json_contains"),
    ("(SELECT string_agg(b.t, '') FROM rows b, rows c)", "string_agg gathers rows of a join"),
    ("(SELECT list(x) FROM (SELECT b.t AS x FROM rows b JOIN rows c ON b.k = c.k))",
     "list gathers rows of a join"),
    ("bit_position(t::BIT, u::BIT)", "bit_position grows with the product"),
    ("damerau_levenshtein(rpad(t, 1300, 'b'), rpad(t, 1300, 'c'))", "its expressions may make"),
    ("json_extract(j, '$..a')", "json_extract takes as its argument 2 a literal without"),
    ("list_aggregate(l, t)", "an aggregate that no literal names is not among those"),
    ("list_aggregate(l, 'bitstring_agg')", "list_aggregate of bitstring_agg is not among those"),
]  # fmt: skip


@pytest.mark.parametrize(("made", "said"), LARGE)
def test_what_grows_with_a_literal_is_refused(read_select: Reading, made: str, said: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(said)):
        read_select(f"SELECT {made} AS f FROM rows")
    with pytest.raises(PolicyError):
        read_select(f"SELECT k FROM rows WHERE ({made}) IS NOT NULL")


COPIES = [
    "SELECT k + k AS a0, " + ", ".join(f"a{n} + a{n} AS a{n + 1}" for n in range(16))
    + " FROM rows",
    "SELECT " + doubled("CASE X WHEN 1 THEN 2 WHEN 3 THEN 4 END", 16) + " FROM rows",
    "SELECT " + ", ".join(["sum(k) OVER w"] * 300) + " FROM rows WINDOW w AS (ORDER BY "
    + ", ".join(["k + 1"] * 300) + ")",
    "SELECT count(*) FROM rows GROUP BY CUBE (k, t, u, n, i, d, l)",
    "WITH a AS (SELECT t || t || t || t AS t FROM rows), "
    "b AS (SELECT t || t || t || t AS t FROM a), c AS (SELECT t || t || t || t AS t FROM b), "
    "d AS (SELECT t || t AS t FROM c) SELECT t FROM d",
    "WITH RECURSIVE r AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM r) SELECT a FROM r",
]  # fmt: skip


@pytest.mark.parametrize("text", COPIES, ids=range(len(COPIES)))
def test_what_stands_for_much_more_than_its_text_is_refused(
    read_select: Reading, text: str
) -> None:
    with pytest.raises(PolicyError):
        read_select(text)


HARMLESS = [
    "lpad(t, 10, '0')", "rpad(t, least(k, 100), ' ')", "repeat('-', 10)", "range(1, 10)",
    "list_sum(range(1, 13))", "printf('%05.2f of %s', n, t)", "format('{:>20} {}', t, k)",
    "replace(t, 'a', '')", "replace(t, ',', ' and ')", "replace(left(t, 30), 'x', left(t, 30))",
    "replace(replace(replace(lower(trim(t)), '-', ''), ' ', ''), '.', '')",
    "regexp_replace(t, '[^a-z]', '', 'g')", "regexp_extract(t, '([0-9]{4})-([0-9]{2})', 1)",
    "t || ' ' || u || ' ' || k", "concat_ws(', ', t, u, k)", "array_to_string(w, ', ')",
    "list_transform(l, lambda x: x / 2 + n)", "list_filter(l, lambda x: x > 0)",
    "list_transform(l, lambda x, place: x * place)", "list_reduce(l, lambda p, q: p + q)",
    "list_transform([1, 2, 3], lambda x: list_transform([4, 5, 6], lambda y: x * y))",
    "list_transform(l[1:50], lambda x: list_sum(list_transform(l[1:50], lambda y: x * y)))",
    "list_transform(string_split(t, ','), lambda x: trim(x))",
    "levenshtein(left(t, 50), left(u, 50))", "levenshtein(t, 'smith')", "jaro_similarity(t, 'x')",
    "len(list(t))", "list_sum(list(n))", "list_distinct(list(t))", "string_agg(t, ', ')",
    "quantile_cont(n, [0.25, 0.5, 0.75])", "max(n, 3)", "arg_max(t, n)", "histogram(k)",
    "list(n) OVER (ORDER BY k ROWS BETWEEN 3 PRECEDING AND CURRENT ROW)",
    "lag(n, 2, 0.0) OVER (ORDER BY k)", "avg(n) OVER (PARTITION BY t)",
    "date_trunc('month', d)", "strftime(d, '%Y-%m-%d')", "json_extract_string(j, '$.b')",
    "j ->> '$.b'", "s.x + length(s.y)", "CASE k WHEN 1 THEN 'a' WHEN 2 THEN 'b' END",
    "nullif(nullif(t, ''), 'unknown')", "md5(t)", "coalesce(n, 0) ** 2", "k::VARCHAR", "l::VARCHAR",
    "t COLLATE nocase = 'a'", "t LIKE '%a%'", "CAST(w AS VARCHAR)", "{'a': k, 'b': t}",
    " + ".join(f"{n} * n" for n in range(20)),
]  # fmt: skip


@pytest.mark.parametrize("made", HARMLESS)
def test_what_features_are_made_of_is_taken(read_select: Reading, made: str) -> None:
    assert len(read_select(f"SELECT {made} AS f FROM rows").outputs) == 1


def test_many_features_are_taken(read_select: Reading) -> None:
    many = ", ".join(f"lower(t) = '{n}', round(n / {n + 1}, 2)" for n in range(300))
    assert len(read_select(f"SELECT {many} FROM rows").outputs) == 600
