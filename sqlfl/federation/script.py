"""The user's text: one statement or several, with values for their parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from sqlfl.base.errors import Error, ParseError, StatementError
from sqlfl.federation.parser_cross_check import confirm
from sqlfl.planner.grammar.clauses import read_query
from sqlfl.planner.grammar.dialect import parse, split
from sqlfl.planner.grammar.parameters import NO_NAME, Filled, fill
from sqlfl.planner.grammar.statements import PredictModel, Statement
from sqlfl.planner.grammar.tokens import decoded

S = TypeVar("S", bound=Statement)
Values: TypeAlias = Sequence[Any] | Mapping[str, Any] | None
"""Values of parameters."""
TOO_DEEP = "the statement is nested too deeply"
FLATTEN = "write long chains of OR as IN (...), and long expressions as views of the party"


@dataclass(frozen=True)
class ScriptPart:
    """One statement of a script."""

    filled: Filled
    sql: str
    """Its own text, with values in the places of parameters."""
    offset: int = 0
    """Its position in the text of `filled`."""
    number: int = 1
    of: int = 1

    def statement(self) -> Statement:
        """Parse the statement. Raise ParseError for invalid text."""
        return self._read(parse)

    def query(self) -> PredictModel:
        """Parse the text as a query, in a statement without anything else."""
        return self._read(read_query)

    def _read(self, read: Callable[[str], S]) -> S:
        with self.placed():
            try:
                statement = read(self.sql)
                self.filled.check(statement, self.offset)
                confirm(statement)
                return statement
            except RecursionError:
                raise ParseError(TOO_DEEP, hint=FLATTEN) from None

    @contextmanager
    def placed(self, done: bool = False) -> Iterator[None]:
        """Let errors in the block name the place in the user's own text. `done`: earlier statements
        have run.
        """
        try:
            yield
        except Error as error:
            if isinstance(error, StatementError):
                self._move(error)
            if self.of > 1:
                before = "; those before it are done" if done and self.number > 1 else ""
                error.say_where(f"statement {self.number} of {self.of}{before}")
            raise

    def _move(self, error: StatementError) -> None:
        if error.sql is None or not self.filled.sql.startswith(error.sql, self.offset):
            return
        span = error.span
        if span is not None:
            written = (span[0] + self.offset, span[1] + self.offset)
            if isinstance(error, ParseError) and self.filled.is_value(written):
                error.hint = error.hint or NO_NAME
            span = self.filled.original_span(written)
        error.move(self.filled.original, span)


def pieces(text: str | bytes, parameters: Values = None) -> tuple[ScriptPart, ...]:
    """Return the statements of the text in order, at least one. Numbers and names of parameters
    belong to the whole text. Raises Error for an empty text, and the errors of `fill`.
    """
    filled = _filled(text, parameters)
    spans = split(filled.sql) if ";" in filled.sql else ()
    if len(spans) < 2:
        return (_whole(filled),)
    parts = []
    for number, (start, end) in enumerate(spans, 1):
        part_text = filled.sql[start:end]
        sql = part_text.strip()
        parts.append(ScriptPart(filled, sql, start + part_text.index(sql), number, len(spans)))
    return tuple(parts)


def whole(text: str | bytes, parameters: Values = None) -> ScriptPart:
    """The text as one statement."""
    return _whole(_filled(text, parameters))


def _whole(filled: Filled) -> ScriptPart:
    sql = filled.sql.strip()
    return ScriptPart(filled, sql, filled.sql.index(sql))


def _filled(text: str | bytes, parameters: Values) -> Filled:
    return fill(decoded(text), parameters)
