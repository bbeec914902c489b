"""A query and a table's name, written alone."""

from __future__ import annotations

from sqlglot.tokenizer_core import TokenType

from sqlfl.base.errors import ParseError
from sqlfl.planner.grammar import build
from sqlfl.planner.grammar.clauses import Clauses
from sqlfl.planner.grammar.decoding import decoded
from sqlfl.planner.grammar.spellings import in_parentheses
from sqlfl.planner.grammar.statements import PredictModel, Word
from sqlfl.planner.grammar.writing import to_sql

_FIRST = ("SELECT", "FROM", "WITH", "TABLE", "VALUES", "PIVOT", "UNPIVOT", "(")


def read_query(sql: str) -> PredictModel:
    """Return the query in the text, with its place, as an otherwise empty statement. Raise
    ParseError unless the text is exactly one query.
    """
    reader = Clauses(sql)
    if not reader.tokens:
        raise reader.fail("expected a query, got nothing")
    end = next((t for t in reader.tokens if t.token_type is TokenType.SEMICOLON), None)
    if end is not None:
        raise reader.fail("expected one query, got several", span=reader.span(end))
    if reader.word() not in _FIRST:
        raise reader.fail(
            f"expected a query, got {reader.got()}",
            hint="write SELECT ... FROM ...; statements are run with fed.sql(...)",
        )
    reader.tokens = in_parentheses(reader.tokens)
    query, place = reader.query()
    if reader.token is not None:
        raise reader.fail(f"expected the end of the query, got {reader.got()}")
    return PredictModel(Word("", (0, 0)), (), query, None, sql, (), False, place)


def read_path(text: object, what: str, least: int, most: int) -> tuple[str, ...]:
    """Return the parts of a dotted name, quoted or not. Raise ParseError for other text."""
    if not isinstance(text, str):
        raise ParseError(f"{what} must be text, got {type(text).__name__}")
    reader = Clauses(decoded(text))
    path = reader.path(what, least, most)
    if reader.token is not None:
        raise reader.fail(f"expected the end of {what}, got {reader.got()}")
    return path.parts


def written(*parts: str) -> str:
    """The dotted name, each part quoted where SQL needs it."""
    return ".".join(to_sql(build.identifier(part)) for part in parts)
