"""The items of TRANSFORM (...), as written."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot.tokenizer_core import TokenType

from sqlfl.base.errors import nearest
from sqlfl.contract.transforms import AUTO, COLUMN, FUNCTIONS
from sqlfl.planner.grammar.statements import Argument, TransformItem, Value, Word
from sqlfl.planner.grammar.tokens import Tokens

_FORM = "TRANSFORM (function(column [, argument, ...]) [AS name], ...)"
_CALLED = tuple(name for name in FUNCTIONS if name != COLUMN)
_CONSTANTS = ("TRUE", "FALSE", "NULL")


def read_items(tokens: Tokens, value: Callable[[str], Value]) -> tuple[TransformItem, ...]:
    """Read the items after the word TRANSFORM; `value` reads a value at the tokens' place."""
    tokens.expect("(", "after TRANSFORM", _FORM)
    items = [_item(tokens, value)]
    while tokens.accept(","):
        items.append(_item(tokens, value))
    if not tokens.accept(")"):
        raise tokens.fail(
            f"expected AS, a comma or ) after an item of TRANSFORM, got {tokens.got()}", hint=_FORM
        )
    return tuple(items)


def _item(tokens: Tokens, value: Callable[[str], Value]) -> TransformItem:
    start = tokens.span()[0]
    first = tokens.name("a function or a column of TRANSFORM")
    function: Word | None = None
    columns: tuple[Word, ...] = (first,)
    arguments: tuple[Argument, ...] = ()
    if tokens.word() == "(":
        function = _function(tokens, first)
        tokens.accept("(")
        columns, arguments = _inside(tokens, value, function)
    elif first.lower() == AUTO and not _is_quoted(tokens):
        function, columns = Word(AUTO, first.span), ()
    elif tokens.word() == ".":
        raise tokens.fail(
            "TRANSFORM takes output columns of the query, without their table",
            hint=f"give it an alias in the query, and write it in place of {first}.…",
        )
    end = tokens.span(tokens.tokens[tokens.at - 1])[1]
    name = tokens.name("the name of what is made") if tokens.accept("AS") else None
    return TransformItem(function, columns, arguments, name, (start, end))


def _is_quoted(tokens: Tokens) -> bool:
    """Return whether the previous token is a quoted name, which is no function."""
    return tokens.sql[tokens.span(tokens.tokens[tokens.at - 1])[0]] == '"'


def _function(tokens: Tokens, name: Word) -> Word:
    folded = name.lower()
    if folded in _CALLED:
        return Word(folded, name.span)
    near = nearest(folded, _CALLED)
    raise tokens.fail(
        f"TRANSFORM has no function {name}",
        hint=f"did you mean {near}?"
        if near
        else f"there are {', '.join(_CALLED)}; what "
        "a row's own values say may be computed in the query: SELECT expression AS name",
        span=name.span,
    )


def _inside(
    tokens: Tokens, value: Callable[[str], Value], function: Word
) -> tuple[tuple[Word, ...], tuple[Argument, ...]]:
    columns: list[Word] = []
    arguments: list[Argument] = []
    if function == AUTO and tokens.word(1) == "=>":
        arguments.append(_argument(tokens, value, function))
    elif tokens.accept("("):
        columns.append(_column(tokens, function))
        while tokens.accept(","):
            columns.append(_column(tokens, function))
        tokens.expect(")", f"after the columns of {function}")
    else:
        columns.append(_column(tokens, function))
    while tokens.accept(","):
        if _is_column(tokens) and not arguments:
            columns.append(_column(tokens, function))
        else:
            arguments.append(_argument(tokens, value, function))
    hint = "what is computed of columns stands in the query: SELECT expression AS name"
    if tokens.word() == "=":
        hint = "an argument is written name => value"
    tokens.expect(")", f"after the arguments of {function}", hint)
    return tuple(columns), tuple(arguments)


def _is_column(tokens: Tokens) -> bool:
    token = tokens.token
    named = tokens.word(1) == "=>"
    plain = token is not None and tokens.is_name(token) and tokens.word() not in _CONSTANTS
    return plain and not named


def _column(tokens: Tokens, function: Word) -> Word:
    column = tokens.name(f"a column of {function}")
    if tokens.word() == "(":
        raise tokens.fail(
            "functions of TRANSFORM do not stand in one another",
            hint=f"compute {column}(...) in the query, and name the column here",
            span=column.span,
        )
    if tokens.word() == ".":
        raise tokens.fail(
            f"{function} takes an output column of the query, without its table",
            hint=f"give it an alias in the query, and write it in place of {column}.…",
        )
    return column


def _argument(tokens: Tokens, value: Callable[[str], Value], function: Word) -> Argument:
    name = None
    if tokens.word(1) == "=>":
        written = tokens.name(f"the name of an argument of {function}")
        name = Word(written.lower(), written.span)
        tokens.accept("=>")
    token = tokens.token
    starts = token is not None and (
        token.token_type in (TokenType.NUMBER, TokenType.STRING)
        or tokens.word() in (*_CONSTANTS, "[", "-", "+", ".")
    )
    if not starts:
        raise tokens.fail(f"expected an argument of {function}, got {tokens.got()}", hint=_FORM)
    start = tokens.span()[0]
    argument = value(name or str(function))
    return Argument(name, argument, (start, tokens.span(tokens.tokens[tokens.at - 1])[1]))
