"""BigQuery ML's spellings are our statements; golden pairs."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as some
from sqlglot.tokenizer_core import Token, TokenType

from sqlfl.base.errors import ParseError, StatementError
from sqlfl.federation.parser_cross_check import confirm
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.spellings import respelled
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.statements import TrainModel
from sqlfl.planner.grammar.tokens import tokenize
from tests.planner import goldens
from tests.planner.test_goldens import statement_text

SPELLINGS = goldens.cases("spellings.sql")


def ours(sql: str) -> str:
    """The tokens as text."""
    found = ""
    for token in respelled(tokenize(sql), sql):
        text = _text(token)
        apart = (
            found and found[-1] not in "(.[{" and text not in (",", ")", "]", "}", ".", ";", ":")
        )
        found += " " * bool(apart) + text
    return found


def _text(token: Token) -> str:
    if token.token_type is TokenType.STRING:
        return "'" + token.text.replace("'", "''") + "'"
    if token.token_type is TokenType.IDENTIFIER:
        return to_sql(trees.identifier(token.text))
    return token.text


def outcome(sql: str) -> str:
    try:
        confirm(parse(sql))
    except StatementError as error:
        return f"{type(error).__name__}: {error}"
    return ours(sql)


@pytest.mark.parametrize("case", SPELLINGS, ids=lambda case: case.name)
def test_a_spelling(case: goldens.Case) -> None:
    goldens.check("spellings.sql", case, outcome)
    if not case.expected.startswith("ParseError"):
        assert statement_text(case.sql) == statement_text(case.expected)


def test_places_are_those_of_what_was_written() -> None:
    sql = (
        "CREATE MODEL m OPTIONS (model_type = 'LINEAR_REG', input_label_cols = ['y'], l2_reg = 2) "
        "AS SELECT x, y FROM a.t"
    )
    statement = parse(sql)
    assert isinstance(statement, TrainModel)
    assert statement.sql == sql
    spans = [statement.name.span, statement.kind.span, statement.target.span, statement.place]
    assert [sql[slice(*span)] for span in spans] == [
        "m", "'LINEAR_REG'", "'y'", "SELECT x, y FROM a.t",
    ]  # fmt: skip
    (option,) = statement.options
    assert sql[slice(*option.name.span)] == "l2_reg"
    assert sql[slice(*option.span)] == "2"


def test_other_statements_keep_their_tokens() -> None:
    for sql in ("SHOW MODELS", "SELECT 1", "EXPLAIN TRAIN MODEL ml", "CREATE TABLE t AS FROM ml.x"):
        tokens = tokenize(sql)
        assert respelled(tokens, sql) is tokens


@given(some.sampled_from(SPELLINGS), some.data())
def test_whatever_is_missing_is_said(case: goldens.Case, data: some.DataObject) -> None:
    """Without one token, or with one more: a statement, or an error at its place."""
    places = [(token.start, token.end + 1) for token in tokenize(case.sql)]
    start, stop = data.draw(some.sampled_from(places))
    other = data.draw(some.sampled_from(["", "(", ")", ",", "=", "MODEL", "'a'", "3", ";", "x"]))
    sql = case.sql[:start] + f" {other} " + case.sql[stop:]
    with contextlib.suppress(ParseError):
        parse(sql)
