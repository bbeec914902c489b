"""Clauses of statements: dotted names, options and their values, queries in parentheses.

A query and a table's name can also be written alone.
"""

from __future__ import annotations

import re

from sqlglot import exp
from sqlglot.errors import ParseError as SqlglotParseError
from sqlglot.tokenizer_core import TokenType

from sqlfl.base.errors import ParseError
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.parsing import group_joins, move_clauses
from sqlfl.planner.grammar.spellings import in_parentheses
from sqlfl.planner.grammar.sql import Dialect, to_sql
from sqlfl.planner.grammar.statements import Option, Pairs, Path, PredictModel, Span, Value, Word
from sqlfl.planner.grammar.tokens import QUOTED, Tokens, decoded
from sqlfl.planner.grammar.trees import span_of

_EXPECTED = re.compile(r"Expect(?:ed|ing) ([A-Z)(\]}>][^'{]{0,30})$")
"""Expectations in the query parser's messages that users understand."""

_NUMBER = re.compile(r"(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][+-]?\d[\d_]*)?", re.ASCII)
_MAX_DIGITS = 38
"""Digits of the largest integer that DuckDB has."""

_TRUTHS = {"YES": "true", "ON": "true", "NO": "false", "OFF": "false"}

_AFTER = (
    *("INTO", "USING", "TARGET", "WEIGHT", "OFFSET", "EXPOSURE", "TRANSFORM", "WITH", "PRIVACY"),
)
"""Words that may follow the name of a join, in the right place or in a wrong one."""


class Clauses(Tokens):
    """Parser of the clauses that several statements share."""

    def path(self, what: str, least: int, most: int) -> Path:
        words = [self.name(what)]
        while self.accept("."):
            words.append(self.name(f"a name after {'.'.join(words)}."))
        span = (words[0].span[0], words[-1].span[1])
        if not least <= len(words) <= most:
            form = "party.table.column or alias.column" if most == 5 else "party.table"
            hint = None
            if most == 5 and len(words) == 1:
                hint = f"write its table's alias before it: t.{words[0]} for FROM party.table t"
            raise self.fail(
                f"expected {what} as {form}, got {'.'.join(words)}", hint=hint, span=span
            )
        return Path(tuple(str(word) for word in words), span)

    def options(self, clause: str) -> tuple[Option, ...]:
        form = f"{clause} (option = value, ...)"
        self.expect("(", f"after {clause}", form)
        options = [self._option(form)]
        while self.accept(","):
            options.append(self._option(form))
        if not self.accept(")"):
            raise self.fail(f"expected , or ) after an option of {clause}, got {self.got()}")
        names = [option.name for option in options]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise self.fail(f"option {name} is given twice", span=name.span)
        return tuple(options)

    def _option(self, form: str) -> Option:
        written = self.name("the name of an option")
        self.expect("=", f"after {written}", form)
        start = self.span()[0]
        value = self.value(written)
        end = self.span(self.tokens[self.at - 1])[1]
        return Option(Word(written.lower(), written.span), value, (start, end))

    def value(self, option: str) -> Value:
        token = self.token
        negative = self.accept("-")
        signed = negative or self.accept("+")
        place = self.span()
        number = self.digits()
        if number is not None:
            return self.checked_number(number, negative, place[0])
        if not signed and token is not None:
            if token.token_type is TokenType.STRING:
                self.at += 1
                return token.text
            constants: dict[str, Value] = {"TRUE": True, "FALSE": False, "NULL": None}
            if self.word() in constants:
                self.at += 1
                return constants[self.tokens[self.at - 1].text.upper()]
            if self.accept("["):
                return self._list(option)
            if self.accept("{"):
                return self._pairs(option)
        hint = None
        if not signed and self.word() in _TRUTHS:
            hint = f"write {option} = {_TRUTHS[self.word()]}"
        elif token is not None and not signed and self.is_name(token):
            hint = f"text stands in single quotes: {option} = '{token.text}'"
        elif not signed and self.word() == "(":
            hint = f"a list stands in square brackets: {option} = [...]"
        raise self.fail(f"expected a value for option {option}, got {self.got()}", hint=hint)

    def checked_number(self, text: str, negative: bool, start: int) -> int | float:
        """Return the value of a number. Raise ParseError for text that only begins as one."""
        span = (start, self.span(self.tokens[self.at - 1])[1])
        if not _NUMBER.fullmatch(text):
            hint = "write 0.001 or 1e-3"
            raise self.fail(f"{text:.40} is not a number", hint=hint, span=span)
        digits = text.replace("_", "")
        if digits.isdigit() and len(digits) > _MAX_DIGITS:
            raise self.fail(f"a number of {len(digits):,} digits is too large", span=span)
        value: int | float = int(digits) if digits.isdigit() else float(digits)
        return -value if negative else value

    def digits(self) -> str | None:
        """A number's text; the tokens of `.5` are a point and, right behind it, a number."""
        point = self.token if self.word() == "." else None
        place = self.at + (point is not None)
        number = self.tokens[place] if place < len(self.tokens) else None
        if number is None or number.token_type is not TokenType.NUMBER:
            return None
        if point is not None and (number.start != point.end + 1 or "." in number.text):
            return None
        self.at = place + 1
        return number.text if point is None else f".{number.text}"

    def _list(self, option: str) -> Value:
        values: list[Value] = []
        while not self.accept("]"):
            if values:
                self.expect(",", f"or ] in the list of option {option}")
            values.append(self.value(option))
        return tuple(values)

    def _pairs(self, option: str) -> Value:
        items: dict[str, Value] = {}
        while not self.accept("}"):
            if items:
                self.expect(",", f"or }} after a value of option {option}")
            place, key = self.span(), self._key(option)
            if key in items:
                raise self.fail(f"option {option} has the key '{key}' twice", span=place)
            self.expect(":", f"after the key '{key}' of option {option}")
            items[key] = self.value(option)
        return Pairs(tuple(items.items()))

    def _key(self, option: str) -> str:
        """A string, a quoted name, a number or a boolean, as text."""
        sign = "-" if self.accept("-") else ""
        token = self.token
        wanted = [TokenType.NUMBER] if sign else [TokenType.NUMBER, *QUOTED]
        if token is not None and token.token_type in wanted:
            self.at += 1
            number = token.token_type is TokenType.NUMBER
            return sign + (token.text.replace("_", "") if number else token.text)
        if not sign and self.word() in ("TRUE", "FALSE"):
            self.at += 1
            return self.tokens[self.at - 1].text.lower()
        raise self.fail(
            f"expected a key of option {option}, got {self.got()}",
            hint=f"{option} = {{'key': value, ...}}",
        )

    def source(self) -> tuple[exp.Query, Span, Word | None]:
        """Return the query in parentheses as `query` does, or the name of a join with its place."""
        token = self.token
        ends = self.at + 1 == len(self.tokens) or self.word(1) in _AFTER
        if token is None or not ends or not self.is_name(token):
            return (*self.query(), None)
        name = self.name("the name of a join")
        table = exp.to_identifier(str(name), quoted=True)
        return exp.select("*").from_(exp.Table(this=table)), name.span, name

    def query(self, after: str = "FROM") -> tuple[exp.Query, Span]:
        """The query between parentheses, and its place; its nodes have places in the whole text."""
        if self.word() != "(":
            raise self.fail(
                f"expected ( query ) after {after}, got {self.got()}",
                hint=f"{after} is followed by a query in parentheses: {after} ( SELECT ... )",
            )
        opening = self.token
        depth, start = 0, self.at + 1
        while self.token is not None:
            depth += {"(": 1, ")": -1}.get(self.word(), 0)
            self.at += 1
            if depth == 0:
                break
        if depth:
            raise self.fail(f"the parenthesis of {after} ( is not closed", span=self.span(opening))
        tokens = self.tokens[start : self.at - 1]
        if not tokens:
            raise self.fail("expected a query, got ()", span=self.span(opening))
        try:
            queries = Dialect().parser().parse(tokens, self.sql)
        except SqlglotParseError as error:
            raise self._misparsed(error) from error
        if len(queries) != 1 or not isinstance(queries[0], exp.Query):
            span = self.span(tokens[0])
            raise self.fail(
                f"expected a query, got {self.sql[span[0] : span[1]]}",
                hint="write SELECT ... FROM ...; what else gives a table stands in FROM",
                span=span,
            )
        group_joins(queries[0])
        if (clause := move_clauses(queries[0])) is not None:
            raise self.fail(
                f"{clause.key.upper()} stands after parentheses, and the query in them has such a "
                "clause itself, or is no SELECT",
                hint="write SELECT * FROM ( query ) AS t, and the clause after it",
                span=span_of(clause, self.sql),
            )
        return queries[0], (self.span(opening)[1], self.span(self.tokens[self.at - 1])[0])

    def _misparsed(self, error: SqlglotParseError) -> ParseError:
        detail = error.errors[0] if error.errors else {}
        line, column = detail.get("line") or 1, detail.get("col") or 1
        end = sum(len(row) + 1 for row in self.sql.split("\n")[: line - 1]) + column
        near = [t for t in self.tokens if t.start < end <= t.end + 1]
        span = self.span(near[0]) if near else (end - 1, end)
        said = _EXPECTED.match(str(detail.get("description") or ""))
        got = self.sql[span[0] : span[1]].strip() or "the end"
        what = f"expected {said[1]}, got {got}" if said else f"{got} is not expected here"
        hint = "try it on a DuckDB connection; what DuckDB takes all the same may stand in a view "
        hint += "of the party"
        if got in ("{", "}"):
            hint = 'in Python, a text with {names} to fill in starts with f: f"..."'
        elif near and got == "." and (before := [t for t in self.tokens if t.end < near[0].start]):
            hint = f"is there a comma missing before {before[-1].text}?"  # SELECT a.x b.y
        return self.fail(f"the query cannot be read: {what}", hint=hint, span=span)


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
    return ".".join(to_sql(trees.identifier(part)) for part in parts)
