"""What a user gives as text: one statement or several, with values for their parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from sqlfl.base.errors import Error, ParseError, StatementError
from sqlfl.federation.parser_cross_check import confirm
from sqlfl.planner.grammar.decoding import decoded
from sqlfl.planner.grammar.dialect import parse, split
from sqlfl.planner.grammar.parameters import NO_NAME, Filled, fill
from sqlfl.planner.grammar.queries import read_query
from sqlfl.planner.grammar.statements import PredictModel, Statement

S = TypeVar("S", bound=Statement)
Values: TypeAlias = Sequence[Any] | Mapping[str, Any] | None
"""Of parameters."""
TOO_DEEP = "the statement is nested too deeply"
FLATTEN = "write long chains of OR as IN (...), and long expressions as views of the party"


@dataclass(frozen=True)
class ScriptPart:
    """One statement of a text."""

    filled: Filled
    sql: str
    """Its own text, with values in the places of parameters."""
    offset: int = 0
    """Where that stands in the text of `filled`."""
    number: int = 1
    of: int = 1

    def statement(self) -> Statement:
        """Raises ParseError where the text is none."""
        return self._read(parse)

    def query(self) -> PredictModel:
        """The text as a query, in a statement that has nothing else."""
        return self._read(read_query)

    def _read(self, read: Callable[[str], S]) -> S:
        with self.placed():
            try:
                found = read(self.sql)
                self.filled.check(found, self.offset)
                confirm(found)
                return found
            except RecursionError:
                raise ParseError(TOO_DEEP, hint=FLATTEN) from None

    @contextmanager
    def placed(self, done: bool = False) -> Iterator[None]:
        """Errors within say where in the user's own text they are; `done`: those before are."""
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
    """The statements of the text in order, at least one; numbers and names of parameters are those
    of the whole text. Raises Error where it is none, and as `fill` does."""
    filled = _filled(text, parameters)
    spans = split(filled.sql) if ";" in filled.sql else ()
    if len(spans) < 2:
        return (_whole(filled),)
    found = []
    for number, (start, end) in enumerate(spans, 1):
        own = filled.sql[start:end]
        sql = own.strip()
        found.append(ScriptPart(filled, sql, start + own.index(sql), number, len(spans)))
    return tuple(found)


def whole(text: str | bytes, parameters: Values = None) -> ScriptPart:
    """The text as one statement."""
    return _whole(_filled(text, parameters))


def _whole(filled: Filled) -> ScriptPart:
    sql = filled.sql.strip()
    return ScriptPart(filled, sql, filled.sql.index(sql))


def _filled(text: str | bytes, parameters: Values) -> Filled:
    return fill(text_of(text, "a statement"), parameters)


def text_of(text: object, what: str) -> str:
    """The decoded text. Raises Error for what is none, and ParseError as `decoded` does."""
    if not isinstance(text, str | bytes):
        raise Error(f"{what} must be text, got {type(text).__name__}")
    return decoded(text)
