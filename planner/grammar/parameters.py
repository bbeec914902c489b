"""Parameters of a text: `?`, `$1` and `$name`, replaced by literals of their values.

Values of Python become literals of SQL, or values of options. From then on the statement is the
text with values: spans, the plan and the model's statement refer to it. Each value is one literal,
token for token.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import numbers
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.errors import ParseError as SqlglotParseError
from sqlglot.tokenizer_core import Token, TokenType

from sqlfl.base.errors import Error, InternalError, ParseError, nearest
from sqlfl.planner.grammar.parsing import group_joins, move_clauses
from sqlfl.planner.grammar.sql import Dialect, to_sql
from sqlfl.planner.grammar.statements import Span, Statement
from sqlfl.planner.grammar.tokens import tokenize
from sqlfl.planner.grammar.trees import nodes

IN_QUERIES = (
    "int, float, Decimal, str, bool, None, date, time, datetime, timedelta, UUID, bytes, and lists "
    "and arrays of these"
)
IN_OPTIONS = "int, float, Decimal, str, bool, None, and lists and dicts of these"
_DIGITS = 38
"""Maximum digits of a DECIMAL, and of the largest integer."""


def literal(value: object, what: str) -> exp.Expr:
    """Return the value as an expression of a query; `what` names it in errors.

    A float becomes a DOUBLE, a Decimal a DECIMAL, a date a DATE, a time a TIME, a datetime a
    TIMESTAMP, with a time zone a TIMESTAMPTZ, a timedelta an INTERVAL, bytes a BLOB. Raises Error
    for a type without an SQL literal.
    """
    value = _plain(value)
    if isinstance(value, list | tuple):
        return exp.Array(expressions=[literal(item, f"an item of {what}") for item in value])
    if isinstance(value, bytes | bytearray | memoryview):
        escaped = "".join(f"\\x{byte:02X}" for byte in bytes(value))
        return _cast(escaped, "BLOB")
    if isinstance(value, dt.datetime):
        return _moment(value, what)
    if isinstance(value, dt.date):
        return _cast(value.isoformat(), "DATE")
    if isinstance(value, dt.time):
        return _cast(value.isoformat(), "TIME" if value.tzinfo is None else "TIMETZ")
    if isinstance(value, dt.timedelta):
        return _interval(value, what)
    if isinstance(value, uuid.UUID):
        return _cast(str(value), "UUID")
    if isinstance(value, float):
        if not math.isfinite(value):
            return _cast(str(value), "DOUBLE")
        text = repr(abs(value))
        return _signed(text if "e" in text else f"{text}e0", math.copysign(1.0, value) < 0)
    return _scalar(value, what, IN_QUERIES)


def written_option(value: object, what: str) -> str:
    """Return the text of the value as an option's value; `what` names it in errors."""
    value = _plain(value)
    if isinstance(value, Mapping):
        pairs = (
            f"{to_sql(_string(_key(key, what), what))}: {written_option(item, what)}"
            for key, item in value.items()
        )
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(written_option(item, what) for item in value)}]"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Error(f"{what} is {value}, which is no value of an option")
        return repr(float(value))
    return to_sql(_scalar(value, what, IN_OPTIONS).unnest())


def _plain(value: object) -> object:
    """Return Python's number, truth value or time for one of numpy, and a list for an array."""
    shape, kind = getattr(value, "shape", None), str(getattr(value, "dtype", ""))
    if shape is None or not kind:
        return value
    if type(value).__module__ == "numpy" and kind.endswith(("64[ns]", "64[ps]")):
        value = value.astype(f"{kind[:-4]}[us]")  # type: ignore[attr-defined]
    return value.item() if shape == () else value.tolist()  # type: ignore[attr-defined]


def _scalar(value: object, what: str, allowed: str) -> exp.Expr:
    if value is None:
        return exp.null()
    if isinstance(value, bool):
        return exp.Boolean(this=value)
    if isinstance(value, str):
        return _string(str.__str__(value), what)
    if isinstance(value, numbers.Integral):
        digits = str(abs(int(value)))
        if len(digits) > _DIGITS:
            raise Error(f"{what} is a whole number of more than {_DIGITS} digits")
        return _signed(digits, int(value) < 0)
    if isinstance(value, decimal.Decimal):
        return _decimal(value, what)
    raise Error(
        f"{what} is of type {type(value).__name__}, of which there is no literal",
        hint=f"take {allowed}",
    )


def _string(text: str, what: str) -> exp.Expr:
    if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise Error(f"{what} is a text with a character that no SQL text can have")
    return exp.Literal.string(text)


def _decimal(value: decimal.Decimal, what: str) -> exp.Expr:
    text = format(abs(value), "f") if value.is_finite() else ""
    if not text or len(text.replace(".", "")) > _DIGITS:
        raise Error(f"{what} is {value}, and a DECIMAL has at most {_DIGITS} digits")
    return _signed(text if "." in text else f"{text}.", value.is_signed())


def _signed(digits: str, negative: bool) -> exp.Expr:
    """Return a number, in parentheses if negative: `x - ?` and `?::TEXT` then use its value."""
    number = exp.Literal.number(digits)
    return exp.Paren(this=exp.Neg(this=number)) if negative else number


def _moment(value: dt.datetime, what: str) -> exp.Expr:
    if value != value:  # NaT of pandas
        raise Error(f"{what} is {value}, which is no time", hint="None is NULL")
    if value.tzinfo is None:
        return _cast(value.isoformat(" "), "TIMESTAMP")
    return _cast(value.astimezone(dt.UTC).isoformat(" "), "TIMESTAMPTZ")


def _interval(value: dt.timedelta, what: str) -> exp.Expr:
    if value != value:  # NaT of pandas
        raise Error(f"{what} is {value}, which is no time", hint="None is NULL")
    rest = value.seconds * 1_000_000 + value.microseconds
    return _cast(f"{value.days} days {rest} microseconds", "INTERVAL")


def _cast(text: str, kind: str) -> exp.Expr:
    to = exp.DataType(this=exp.DType.USERDEFINED, kind=kind)
    return exp.Cast(this=exp.Literal.string(text), to=to)


def _key(key: object, what: str) -> str:
    key = _plain(key)
    if isinstance(key, bool):
        return str(key).lower()
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, numbers.Integral | float | decimal.Decimal):
        return str(key)
    raise Error(f"{what} has a key of type {type(key).__name__}", hint="take text or numbers")


_OPTIONS = ("WITH", "PRIVACY", "OPTIONS")
"""Clauses whose parentheses hold values of options."""
_CALL = "fed.sql(text, [value, ...]) for ? and $1, fed.sql(text, {'name': value}) for $name"
NO_NAME = "a parameter is a value: names of models, tables and columns are written"
_STANDS = (
    "names of tables, columns and models are written; for DATE ? give a date, or write "
    "CAST(? AS DATE)"
)


_OF_NAMES = (exp.Dot, exp.Join, exp.Star)
"""Nodes with names directly below them where others have values."""


@dataclass(frozen=True)
class ParameterPlace:
    """A parameter in a text."""

    name: str
    """The name in `$name`; '1' of `$1`; empty of `?`."""
    span: Span
    option: bool
    """True if it is the value of an option, or within one."""
    member: bool = False
    """True if it stands alone in the parentheses of IN."""

    @property
    def shown(self) -> str:
        return f"${self.name}" if self.name else "?"


@dataclass(frozen=True)
class Filled:
    """A text with values in the places of its parameters."""

    original: str
    sql: str
    edits: tuple[tuple[Span, Span], ...] = ()
    """The place of each parameter in `original`, and of its value in `sql`, in order."""

    def original_span(self, span: Span) -> Span:
        """Return the original place of a part of `sql`."""
        return self._offset(span[0], 0), self._offset(span[1], 1)

    def is_value(self, span: Span) -> bool:
        """Return whether the part of `sql` is exactly the value of a parameter."""
        return any(first <= span[0] < span[1] <= last for _, (first, last) in self.edits)

    def _offset(self, at: int, end: int) -> int:
        shift = 0
        for (start, stop), (first, last) in self.edits:
            if at < first + end:
                break
            if at < last + end:
                return (start, stop)[end]
            shift = stop - last
        return at + shift

    def check(self, statement: Statement, offset: int) -> None:
        """Raise ParseError if a value is not read as a literal. The statement was read from `sql`
        at `offset`, and the error points there.
        """
        query, place = getattr(statement, "query", None), getattr(statement, "place", (0, 0))
        inside = [(a - offset, b - offset) for _, (a, b) in self.edits]
        inside = [span for span in inside if place[0] <= span[0] and span[1] <= place[1]]
        if not inside or not isinstance(query, exp.Query):
            return
        text = self.sql[offset:]
        tokens = [t for t in tokenize(text) if place[0] <= t.start < place[1]]
        if _with_literals(tokens, text, inside) == query:
            return
        odd = (span for span in inside if _with_literals(tokens, text, [span]) != query)
        raise ParseError(
            "a parameter is a value, and here stands a name or a part of a literal",
            hint=_STANDS,
            sql=text,
            span=next(odd, place),
        )


def places(sql: str) -> tuple[ParameterPlace, ...]:
    """The parameters of a text, in their order."""
    tokens, parameters = tokenize(sql), []
    depth, clause = 0, ""
    for at, token in enumerate(tokens):
        if token.token_type is TokenType.L_PAREN:
            clause = tokens[at - 1].text.upper() if depth == 0 and at else clause
            depth += 1
        elif token.token_type is TokenType.R_PAREN:
            depth -= 1
        elif token.token_type is TokenType.SEMICOLON:
            depth = 0
        option = depth > 0 and clause in _OPTIONS
        if token.token_type is TokenType.PLACEHOLDER:
            parameters.append(
                ParameterPlace("", (token.start, token.end + 1), option, _is_member(tokens, at, at))
            )
        elif token.token_type is TokenType.PARAMETER and token.text == "$":
            named = tokens[at + 1] if at + 1 < len(tokens) else None
            if named is None or named.start != token.end + 1:
                raise _unnamed(sql, token)
            if not named.text.replace("_", "a").isalnum():
                raise _unnamed(sql, token)
            member = _is_member(tokens, at, at + 1)
            parameters.append(
                ParameterPlace(named.text, (token.start, named.end + 1), option, member)
            )
    return tuple(parameters)


def _is_member(tokens: Sequence[Token], first: int, last: int) -> bool:
    around = (*tokens[max(first - 2, 0) : first], *tokens[last + 1 : last + 2])
    return [token.text.upper() for token in around] == ["IN", "(", ")"]


def _unnamed(sql: str, token: Token) -> ParseError:
    return ParseError(
        "expected the name or the number of a parameter after $",
        hint=_CALL,
        sql=sql,
        span=(token.start, token.end + 1),
    )


def fill(sql: str, values: object = None) -> Filled:
    """Replace the parameters in the text by `values`: a list for `?` and `$1`, a mapping for
    `$name`, None for no parameters.

    Raises ParseError for parameters without values, and Error for values without parameters or
    without an SQL literal.
    """
    parameters = places(sql) if "?" in sql or "$" in sql else ()
    if values is None:
        if parameters:
            raise ParseError(
                f"the parameter {parameters[0].shown} has no value",
                hint=f"write the value, or give it: {_CALL}",
                sql=sql,
                span=parameters[0].span,
            )
        return Filled(sql, sql)
    pieces, edits, done, length = [], [], 0, 0
    for place, value in zip(parameters, _values(sql, parameters, values), strict=True):
        start, stop = place.span
        text = _text(place, value, sql)
        before = sql[done:start]
        text = " " * (before[-1:].strip("([,{") != "" and not before[-1:].isspace()) + text
        text += " " * (sql[stop : stop + 1].strip(")],};") != "" and not sql[stop].isspace())
        pieces += [before, text]
        first = length + len(before)
        length = first + len(text)
        edits.append((place.span, (first, length)))
        done = stop
    filled = Filled(sql, "".join([*pieces, sql[done:]]), tuple(edits))
    _check_tokens(filled)
    return filled


def _text(place: ParameterPlace, value: object, sql: str) -> str:
    what = f"the value of {place.shown}"
    if place.member and isinstance(value, list | tuple):
        raise ParseError(
            f"IN ({place.shown}) compares with the list itself",
            hint=f"IN {place.shown} compares with each of its items",
            sql=sql,
            span=place.span,
        )
    try:
        return written_option(value, what) if place.option else to_sql(literal(value, what))
    except Error as error:
        raise ParseError(error.message, hint=error.hint, sql=sql, span=place.span) from None


def _values(sql: str, parameters: Sequence[ParameterPlace], values: object) -> list[object]:
    """The value of each place."""
    if isinstance(values, Mapping):
        return _named(sql, parameters, values)
    kind = type(values).__name__
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        listed = getattr(values, "tolist", None)
        values = None if listed is None else listed()
        if not isinstance(values, list):
            raise Error(
                f"values of parameters must be a list or a dict, got {kind}",
                hint=_CALL,
            )
    for place in parameters:
        if place.name and not place.name.isdecimal():
            raise _mismatch(sql, place, f"{place.shown} is a name, and a list has none")
    numbered = [place for place in parameters if place.name]
    if numbered and len(numbered) < len(parameters):
        bare = next(place for place in parameters if not place.name)
        raise _mismatch(sql, bare, f"? and {numbered[0].shown} stand in one text")
    numbers = (
        [int(place.name) for place in parameters] if numbered else [*range(1, len(parameters) + 1)]
    )
    if numbers and min(numbers) < 1:
        raise _mismatch(sql, parameters[numbers.index(min(numbers))], "parameters count from $1")
    if set(numbers) != set(range(1, len(values) + 1)):
        raise _wrong_number(sql, parameters, numbers, len(values))
    return [values[number - 1] for number in numbers]


def _wrong_number(
    sql: str, parameters: Sequence[ParameterPlace], numbers: Sequence[int], given: int
) -> Error:
    wanted = len(set(numbers))
    said = f"{wanted} parameter{'s' * (wanted != 1)}" if wanted else "no parameters"
    message = f"the text has {said}, and {given} value{'s are' if given != 1 else ' is'} given"
    beyond = next((p for p, n in zip(parameters, numbers, strict=True) if n > given), None)
    if beyond is not None:
        return _mismatch(sql, beyond, message)
    unused = sorted(set(range(1, given + 1)) - set(numbers))
    hint = (
        f"nothing takes the value of ${unused[0]}" if parameters and parameters[0].name else _CALL
    )
    return Error(message, hint=hint)


def _named(
    sql: str, parameters: Sequence[ParameterPlace], values: Mapping[object, object]
) -> list[object]:
    for place in parameters:
        if not place.name or place.name.isdecimal():
            raise _mismatch(sql, place, f"{place.shown} has no name, and a dict gives names")
    names = {str(name): value for name, value in values.items()}
    for place in parameters:
        if place.name not in names:
            close = nearest(place.name, names)
            listed = f"values are given of: {', '.join(names) or 'none'}"
            hint = f"did you mean {close}?" if close else listed
            raise ParseError(
                f"the parameter {place.shown} has no value", hint=hint, sql=sql, span=place.span
            )
    surplus = next((name for name in names if name not in {p.name for p in parameters}), None)
    if surplus is not None:
        known = [place.name for place in parameters]
        close = nearest(surplus, known)
        listed = ", ".join(dict.fromkeys(f"${name}" for name in known)) or "none, as $name"
        raise Error(
            f"the text has no parameter ${surplus}",
            hint=f"did you mean ${close}?" if close else f"its parameters are: {listed}",
        )
    return [names[place.name] for place in parameters]


def _mismatch(sql: str, place: ParameterPlace, message: str) -> ParseError:
    return ParseError(message, hint=_CALL, sql=sql, span=place.span)


def _check_tokens(filled: Filled) -> None:
    """Check that each value has its own tokens, and that all other tokens are the original's."""
    expected, done = [], 0
    for (start, stop), (first, last) in filled.edits:
        expected += _kinds(filled.original, done, start)
        expected += _kinds(filled.sql[first:last], 0, last - first)
        done = stop
    expected += _kinds(filled.original, done, len(filled.original))
    if expected != _kinds(filled.sql, 0, len(filled.sql)):
        raise InternalError("the values of parameters change how their text is read")


def _kinds(sql: str, start: int, stop: int) -> list[tuple[TokenType, str]]:
    return [(t.token_type, t.text) for t in tokenize(sql) if start <= t.start < stop]


def _with_literals(tokens: Sequence[Token], sql: str, values: Sequence[Span]) -> exp.Query | None:
    """Return the query read with a number, which is never a name, at each place, and then with the
    place's value. None if it cannot be read so.
    """
    read: list[Token] = []
    for token in tokens:
        start, stop = next((v for v in values if v[0] <= token.start < v[1]), (0, 0))
        if start == stop:
            read.append(token)
        elif not read or read[-1].start != start:
            read.append(Token(TokenType.NUMBER, "0", token.line, token.col, start, stop - 1))
    try:
        (query,) = Dialect().parser().parse(read, sql)
    except (SqlglotParseError, ValueError):
        return None
    if not isinstance(query, exp.Query):
        return None
    group_joins(query)
    move_clauses(query)
    literals = {node.meta_get("start"): node for node in nodes(query, exp.Literal)}
    for start, stop in values:
        node = literals.get(start)
        if node is None or isinstance(node.parent, _OF_NAMES):
            return None
        (value,) = Dialect().parse(sql[start:stop])
        if value is None:
            return None
        node.replace(value)
    return query
