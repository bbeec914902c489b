"""Values of parameters stand in a text as literals, and as nothing else."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import re

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from sqlfl.base.errors import Error, ParseError
from sqlfl.federation.parser_cross_check import confirm
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.parameters import Filled, fill, literal
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.statements import ExplainStatement, Pairs, Statement, TrainModel, Value
from sqlfl.planner.grammar.tokens import tokenize
from tests.planner import goldens

HEAD = "TRAIN MODEL m USING linear_regression TARGET y "
TEXTS = some.text(some.characters(exclude_characters="\0", exclude_categories=["Cs"]))
SCALARS = some.one_of(
    some.none(),
    some.booleans(),
    some.integers(-(10**37), 10**37),
    some.floats(),
    some.decimals(-(10**20), 10**20, places=5),
    TEXTS,
    some.dates(dt.date(1000, 1, 1)),
    some.datetimes(dt.datetime(1000, 1, 1)),
    some.times(),
    some.timedeltas(dt.timedelta(-10_000), dt.timedelta(10_000)),
    some.uuids(),
    some.binary(),
)


def read(query: str, values: object, clauses: str = "") -> TrainModel:
    return placed(f"{HEAD}{clauses}FROM ({query})", values)[0]


def placed(text: str, values: object) -> tuple[TrainModel, Filled]:
    filled = fill(text, values)
    statement = parse(filled.sql)
    filled.check(statement, 0)
    confirm(statement)
    assert isinstance(statement, TrainModel)
    return statement, filled


@given(SCALARS)
def test_a_value_comes_back_from_duckdb_as_it_was(value: object) -> None:
    with duckdb.connect() as con:
        row = con.execute(f"SELECT {to_sql(literal(value, 'it'))}").fetchone()
        assert row is not None
        bound = con.execute("SELECT ?", [value]).fetchone()
    assert bound is not None
    assert type(row[0]) is type(value)
    assert row == (value,) or value != value


@given(some.lists(SCALARS, min_size=1, max_size=5), some.lists(TEXTS, min_size=1, max_size=3))
def test_no_value_changes_how_the_rest_is_read(values: list[object], options: list[str]) -> None:
    query = f"SELECT {', '.join(f'x = ?/* ? */ AS c{n}' for n in range(len(values)))} FROM a.t"
    statement = read(query, [options, *values], "WITH (hidden = ?) ")
    assert statement.options[0].value == tuple(options)
    columns = statement.query.expressions
    assert [column.alias for column in columns] == [f"c{n}" for n in range(len(values))]
    assert [column.this.expression for column in columns] == [literal(v, "") for v in values]


def test_arrays_and_times_of_numpy_are_lists_and_times() -> None:
    nanoseconds = np.array(["2024-03-01T12:30", "NaT"], "datetime64[ns]")
    query = read("SELECT ?, ?, ?, ?", [np.array([1, 2]), nanoseconds[0], nanoseconds, "NaT"]).query
    moment = dt.datetime(2024, 3, 1, 12, 30)
    assert query == read("SELECT ?, ?, ?, ?", [[1, 2], moment, [moment, None], "NaT"]).query


OPTIONS: dict[str, tuple[object, Value]] = {
    "a number": (-1.5, -1.5),
    "a whole number": (np.int64(-3), -3),
    "a truth value": (np.True_, True),
    "a decimal": (decimal.Decimal("0.50"), 0.5),
    "nothing": (None, None),
    "a text": ("it's; --", "it's; --"),
    "a list": ([16, (8, -2)], (16, (8, -2))),
    "a dict": ({"a'": 1, 2: [True]}, Pairs((("a'", 1), ("2", (True,))))),
}


@pytest.mark.parametrize(("given", "value"), OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("clause", ["WITH (x = {})", "PRIVACY (x={})", "WITH (l2 = 1, x = [{}])"])
def test_a_value_of_an_option(given: object, value: Value, clause: str) -> None:
    for mark, values in (("?", [given]), ("$1", [given]), ("$v", {"v": given})):
        statement = read("SELECT 1 AS y", values, f"{clause.format(mark)} ")
        options = statement.privacy or statement.options
        assert options[-1].value == ((value,) if "[" in clause else value)


def test_a_value_stands_wherever_a_literal_may() -> None:
    query = (
        "SELECT x-?, x - -?, x->?, ?::INT AS u, interval ? day, a[?], {'k': ?}, f(?), x IN (?, 3) "
        "FROM (SELECT * FROM a.t WHERE k = ? LIMIT ?) t WHERE x > ?"
    )
    values = [-5, 2, "$.k", -3, 5, 1, True, [1, "a"], dt.date(2024, 1, 2), None, 7, 0.5]
    found = to_sql(read(query, values).query)
    assert found == (
        "SELECT x - (-5), x - -2, x -> '$.k', CAST((-3) AS INT) AS u, INTERVAL 5 DAY, a[1], "
        "{'k': TRUE}, F([1, 'a']), x IN (CAST('2024-01-02' AS DATE), 3) FROM (SELECT * FROM a.t "
        "WHERE k = NULL LIMIT 7) AS t WHERE x > 0.5e0"
    )


def test_numbers_and_names_may_stand_more_than_once() -> None:
    query = "SELECT x FROM a.t WHERE x > $2 AND z < $1 AND w = $2"
    assert (
        read(query, [1, 2]).query == read(query.replace("$2", "2").replace("$1", "1"), None).query
    )
    named = query.replace("$2", "$low").replace("$1", "$high")
    assert read(named, {"low": 2, "high": 1}).query == read(query, (1, 2)).query


def test_what_is_written_is_the_statement() -> None:
    statement, filled = placed(
        f"{HEAD}WITH (l2=?)FROM(SELECT x FROM a.t WHERE n=? -- ?\n)", [2, "o'k"]
    )
    assert statement.sql == filled.sql
    assert statement.sql == f"{HEAD}WITH (l2= 2)FROM(SELECT x FROM a.t WHERE n= 'o''k' -- ?\n)"
    assert parse(statement.sql).sql == statement.sql


def test_places_are_those_of_the_text_that_was_given() -> None:
    text = f"{HEAD}WITH (l2=?,hidden=$$a$$) FROM (SELECT x FROM a.t WHERE n=?)"
    filled = fill(text, [0.123456, "a longer text"])
    for word in ("hidden", "SELECT", "WHERE", "n"):
        start = filled.sql.index(word)
        span = filled.original_span((start, start + len(word)))
        assert text[slice(*span)] == word
    start = filled.sql.index("longer")
    assert text[slice(*filled.original_span((start, start + 3)))] == "?"


@given(some.lists(some.one_of(TEXTS, some.integers()), min_size=3, max_size=3))
def test_each_character_that_was_given_has_its_place(values: list[object]) -> None:
    text = f"{HEAD}WITH (l2=?,x=[?]) FROM (SELECT x\nFROM a.t WHERE n=?AND m)"
    filled = fill(text, values)
    inside = {at for _, (first, last) in filled.edits for at in range(first, last)}
    for at, character in enumerate(filled.sql):
        start, stop = filled.original_span((at, at + 1))
        assert text[start:stop] == ("?" if at in inside else character)
        assert filled.is_value((at, at + 1)) == (at in inside)


class Color(str, enum.Enum):  # noqa: UP042
    RED = "red"


def test_texts_and_numbers_of_other_classes() -> None:
    assert to_sql(literal(Color.RED, "it")) == "'red'"
    assert to_sql(literal(np.float64(0.5), "it")) == "0.5e0"
    zone = dt.timezone(dt.timedelta(hours=2))
    moment = to_sql(literal(dt.datetime(2024, 1, 2, 3, tzinfo=zone), "it"))
    assert moment == "CAST('2024-01-02 01:00:00+00:00' AS TIMESTAMPTZ)"


NAMES = [
    "SELECT x AS ? FROM a.t", "SELECT x FROM ?", "SELECT t.? FROM a.t", "SELECT x ? FROM a.t",
    "SELECT date ? AS d FROM a.t", "SELECT x FROM a.?", "SELECT 'a' ? AS x FROM a.t",
    "SELECT x FROM a.t AS ?", "SELECT extract(? FROM d) FROM a.t", "SELECT CAST(x AS ?) FROM a.t",
    "SELECT x FROM a.t JOIN b.u USING (?)", "SELECT * EXCLUDE (?) FROM a.t",
    "SELECT * EXCLUDE ? FROM a.t", "SELECT * RENAME (x AS ?) FROM a.t", "SELECT t.*, FROM ?.t",
    "WITH ? AS (SELECT 1) FROM a.t", "SELECT ?(x) FROM a.t", "SELECT x FROM a.t WINDOW ? AS ()",
    "SELECT x FROM (PIVOT a.t ON ? IN (?) USING sum(x))", "SELECT CAST(x AS DECIMAL(?)) FROM a.t",
]  # fmt: skip


@pytest.mark.parametrize("query", NAMES)
@pytest.mark.parametrize("value", ["x", "year", None, 5])
def test_a_parameter_is_no_name(query: str, value: object) -> None:
    with pytest.raises(ParseError) as caught:
        read(query, [value] * query.count("?"))
    assert caught.value.sql is not None


@pytest.mark.parametrize("text", [
    "TRAIN MODEL ? USING linear_regression TARGET y FROM (FROM a.t)", "DROP MODEL ?",
    "TRAIN MODEL m USING ? TARGET y FROM (FROM a.t)", "PREDICT MODEL m FROM (FROM a.t) INTO ?",
    "TRAIN MODEL m USING k TARGET y WITH (? = 3) FROM (FROM a.t)",
    "PREDICT MODEL m ID (?) FROM (FROM a.t)", "TRAIN MODEL m USING k TARGET y FROM (?)",
])  # fmt: skip
def test_nor_is_it_one_of_a_statement(text: str) -> None:
    filled = fill(text, ["x"])
    with pytest.raises(ParseError):
        parse(filled.sql)


MISTAKES: dict[str, tuple[str, object, str]] = {
    "no values": ("x > ?", None, r"the parameter \? has no value(?s:.*)fed\.sql\(text, \[value"),
    "too few": ("x > ? AND z < ?", [1], r"2 parameters, and 1 value is given(?s:.*)\^"),
    "too many": ("x > ?", [1, 2], "1 parameter, and 2 values are given"),
    "none at all": ("x > 1", [1], "no parameters, and 1 value is given"),
    "other marks": ("x > %s", [1], "no parameters, and 1 value is given"),
    "a gap": ("x > $1 AND z < $3", [1, 2, 3], r"nothing takes the value of \$2"),
    "from zero": ("x > $0", [1], r"count from \$1"),
    "both kinds": ("x > ? AND z < $1", [1], r"\? and \$1 stand in one text"),
    "a list for names": ("x > $low", [1], r"\$low is a name, and a list has none"),
    "names for marks": ("x > ?", {"low": 1}, r"\? has no name"),
    "names for numbers": ("x > $1", {"1": 1}, r"\$1 has no name"),
    "an unknown name": ("x > $lwo", {"low": 1}, r"\$lwo has no value(?s:.*)did you mean low"),
    "a surplus name": ("x > $low", {"low": 1, "hihg": 2}, r"no parameter \$hihg"),
    "one value": ("x > ?", 18, r"must be a list or a dict, got int"),
    "a text alone": ("x > ?", "LGA", r"must be a list or a dict, got str"),
    "a type": ("x > ?", [object()], r"of type object, of which there is no literal"),
    "a set": ("x > ?", [{1}], r"of type set"),
    "a dict in a query": ("x > ?", [{"a": 1}], r"of type dict"),
    "a long number": ("x > ?", [10**40], "more than 38 digits"),
    "a long decimal": ("x > ?", [decimal.Decimal("1e50")], "at most 38 digits"),
    "no decimal": ("x > ?", [decimal.Decimal("nan")], "at most 38 digits"),
    "a null byte": ("x > ?", ["a\0"], "no SQL text can have"),
    "half a character": ("x > ?", ["\ud800"], "no SQL text can have"),
    "a list among members": ("x IN (?)", [[1, 2]], r"(?s)the list itself.*IN \? compares"),
    "a named list": ("x IN ($ks)", {"ks": (1, 2)}, r"(?s)the list itself.*IN \$ks compares"),
    "names of another kind": ("x > :low", {"low": 1}, r"its parameters are: none, as \$name"),
    "a lone dollar": ("x > $ low", {"low": 1}, r"expected the name or the number"),
}  # fmt: skip


@pytest.mark.parametrize(("condition", "values", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(condition: str, values: object, said: str) -> None:
    with pytest.raises(Error, match=said):
        read(f"SELECT x FROM a.t WHERE {condition}", values)


@pytest.mark.parametrize(("value", "said"), [
    (dt.date(2024, 1, 1), "type date"), (float("nan"), "no value of an option"),
    (b"x", "type bytes"),
    ({(1,): 2}, "key of type tuple"),
])  # fmt: skip
def test_what_no_option_takes(value: object, said: str) -> None:
    with pytest.raises(ParseError, match=said):
        read("SELECT 1", [value], "WITH (x = ?) ")


def test_an_array_of_numpy_is_a_list_of_values() -> None:
    assert read("SELECT ?, ?", np.array([1, 2])).query == read("SELECT 1, 2", None).query


def test_marks_in_texts_and_comments_are_none() -> None:
    text = "SELECT '?', \"?\", $$ ? $1 $$ -- $name\n /* ? */ FROM a.t"
    assert fill(text).sql == text
    assert tokenize(fill(f"{text} WHERE ?", [1]).sql)[-1].text == "1"


def literals_of(sql: str) -> list[tuple[int, int, object]]:
    """Places and values of the numbers and texts in a text."""
    found: list[tuple[int, int, object]] = []
    for token in tokenize(sql):
        if token.token_type is TokenType.STRING and sql[token.start] == "'":
            found.append((token.start, token.end + 1, token.text))
        elif token.token_type is TokenType.NUMBER and re.fullmatch(r"\d+(\.\d+)?", token.text):
            whole = token.text.isdecimal() and str(int(token.text)) == token.text
            value = int(token.text) if whole else decimal.Decimal(token.text)
            found.append((token.start, token.end + 1, value))
    return found


PLANS = [case.sql for case in goldens.cases("plans.sql") if literals_of(case.sql)]


@pytest.mark.parametrize("sql", PLANS)
def test_each_literal_of_a_query_may_be_a_parameter(sql: str) -> None:
    """Where it is not a part of something else: DATE '2024-01-01', say."""
    plain = parse(sql)
    for start, stop, value in literals_of(sql):
        text = f"{sql[:start]} ? {sql[stop:]}"
        try:
            filled = fill(text, [value])
            statement = parse(filled.sql)
            filled.check(statement, 0)
        except ParseError:
            before = tokenize(sql[:start])
            assert before[-1].text.upper() in PARTS, text
            continue
        assert query_of(statement) == query_of(plain)


PARTS = {"DATE", "TIME", "TIMESTAMP"}


def query_of(statement: Statement) -> exp.Query:
    inner = statement.statement if isinstance(statement, ExplainStatement) else statement
    query = getattr(inner, "query", None)
    assert isinstance(query, exp.Query)
    return query
