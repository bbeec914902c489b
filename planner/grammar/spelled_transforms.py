"""`TRANSFORM (...)` of BigQuery's CREATE MODEL, as items of ours."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot.tokenizer_core import Token

from sqlfl.base.errors import nearest
from sqlfl.planner.grammar.spelled_options import Fail
from sqlfl.planner.grammar.tokens import Tokens, made

_FORM = "TRANSFORM (column, ML.FUNCTION(column, ...) OVER () AS name, ...)"


@dataclass(frozen=True)
class _Function:
    name: str
    """Our name of the function."""
    arguments: int = 0
    """Behind the columns, at most."""
    struct: bool = False
    """True if its columns stand in STRUCT(...)."""


_FUNCTIONS = {
    "STANDARD_SCALER": _Function("standardize"),
    "MIN_MAX_SCALER": _Function("minmax"),
    "ROBUST_SCALER": _Function("robust_scale"),
    "BUCKETIZE": _Function("bucketize", 1),
    "QUANTILE_BUCKETIZE": _Function("quantile_bucketize", 1),
    "HASH_BUCKETIZE": _Function("hash_bucket", 1),
    "ONE_HOT_ENCODER": _Function("one_hot"),
    "IMPUTER": _Function("impute", 1),
    "POLYNOMIAL_EXPAND": _Function("polynomial", 1, struct=True),
    "FEATURE_CROSS": _Function("cross", 1, struct=True),
}
_INSTEAD = {
    "LABEL_ENCODER": "texts are categories, each with a weight of its own: ML.ONE_HOT_ENCODER",
    "MAX_ABS_SCALER": "ML.MIN_MAX_SCALER, or divide in the query: x / 100 AS x",
    "NORMALIZER": "compute it in the query: SELECT expression AS name",
}
_MORE = {
    "one_hot": "categories at most: TRAIN MODEL ... TRANSFORM (one_hot(c, max => 50))",
    "robust_scale": "it takes the median, and the distance of the quartiles",
}
"""Hints for further arguments."""


@dataclass(frozen=True)
class SpelledTransforms:
    first: Token
    """The word TRANSFORM."""
    items: tuple[tuple[Token | None, tuple[Token, ...]], ...]
    """The column, for an item that is one, and each item in our tokens."""
    rest: bool
    """Columns that no item has are features too: `*`."""

    def written(self, target: Token, fail: Fail) -> list[Token]:
        """Return the clause, without the target, which is no feature."""
        kept = [tokens for column, tokens in self.items if not _same(column, target)]
        if not kept and self.rest:
            return []
        if not kept:
            raise fail(
                "TRANSFORM has no feature",
                hint="name the columns that are to be features, or * for all",
                span=(self.first.start, self.first.end + 1),
            )
        head = ["TRANSFORM", *(() if self.rest else ("ONLY",)), "("]
        items = [t for tokens in kept for t in (made(",", self.first), *tokens)]
        return [*(made(word, self.first) for word in head), *items[1:], made(")", self.first)]


def _same(column: Token | None, target: Token) -> bool:
    return column is not None and column.text.lower() == target.text.lower()


def read_spelled(tokens: Tokens) -> SpelledTransforms:
    """Read the clause after the word TRANSFORM, the token before."""
    first = tokens.tokens[tokens.at - 1]
    tokens.expect("(", "after TRANSFORM", _FORM)
    items: list[tuple[Token | None, tuple[Token, ...]]] = []
    rest = False
    while True:
        if tokens.accept("*"):
            rest = True
            if tokens.word() in ("EXCEPT", "REPLACE", "EXCLUDE"):
                raise tokens.fail(
                    f"* {tokens.word()} is not taken in TRANSFORM",
                    hint="leave the columns out of the query, or name those that are features",
                )
        else:
            items.append(_item(tokens))
        if not tokens.accept(","):
            break
    if not tokens.accept(")"):
        raise tokens.fail(
            f"expected a comma or ) after an item of TRANSFORM, got {tokens.got()}",
            hint="of expressions only ML's functions are taken; compute others in the query: "
            "AS SELECT expression AS name, ...",
        )
    return SpelledTransforms(first, tuple(items), rest)


def _item(tokens: Tokens) -> tuple[Token | None, tuple[Token, ...]]:
    start = tokens.at
    if (tokens.word(), tokens.word(1)) != ("ML", "."):
        tokens.name("a column, or ML.FUNCTION(...)")
        alone = tokens.tokens[start]
        if tokens.word() not in (",", ")", "AS", ""):
            raise tokens.fail(
                "of expressions TRANSFORM takes ML's functions only",
                hint="compute others in the query: AS SELECT expression AS name, ...",
                span=tokens.span(alone),
            )
        renamed = _alias(tokens)
        return (None if renamed else alone), (alone, *renamed)
    tokens.at += 2
    named = tokens.token
    written = tokens.name("a function after ML.").upper()
    function = _FUNCTIONS.get(written)
    if function is None or named is None:
        near = nearest(written, _FUNCTIONS)
        listed = f"there are {', '.join(f'ML.{name}' for name in _FUNCTIONS)}"
        raise tokens.fail(
            f"TRANSFORM has no function ML.{written}",
            hint=_INSTEAD.get(written) or (f"did you mean ML.{near}?" if near else listed),
            span=tokens.span(named),
        )
    tokens.expect("(", f"after ML.{written}", _FORM)
    columns = _columns(tokens, written, function)
    arguments = _arguments(tokens, written, function)
    if function.name == "cross":
        _check_cross(tokens, columns, arguments)
        arguments = []
    if tokens.accept("OVER"):
        tokens.expect("(", "after OVER")
        tokens.expect(")", "after OVER (", "a function of TRANSFORM is of all rows: OVER ()")
    inner = [t for column in columns for t in (made(",", named), column)][1:]
    if function.name == "polynomial" and len(columns) > 1:
        inner = [made("(", named), *inner, made(")", named)]
    more = [t for argument in arguments for t in (made(",", named), *argument)]
    call = [made(function.name, named), made("(", named), *inner, *more, made(")", named)]
    return None, (*call, *_alias(tokens))


def _alias(tokens: Tokens) -> list[Token]:
    start = tokens.at
    if not tokens.accept("AS"):
        return []
    tokens.name("the name of what is made")
    return tokens.tokens[start : tokens.at]


def _columns(tokens: Tokens, written: str, function: _Function) -> list[Token]:
    struct = tokens.accept("STRUCT")
    if struct != function.struct:
        wanted = "STRUCT(column, ...)" if function.struct else "a column"
        raise tokens.fail(f"expected {wanted} in ML.{written}(, got {tokens.got()}", hint=_FORM)
    if struct:
        tokens.expect("(", "after STRUCT")
    columns = [_column(tokens, written)]
    while struct and tokens.accept(","):
        columns.append(_column(tokens, written))
    if struct:
        tokens.expect(")", "after the columns of STRUCT")
    return columns


def _column(tokens: Tokens, written: str) -> Token:
    tokens.name(f"a column of ML.{written}")
    if tokens.word() not in (",", ")", ""):
        raise tokens.fail(
            f"ML.{written} takes output columns of the query, got {tokens.got()}",
            hint="compute it in the query: AS SELECT expression AS name, ...",
        )
    return tokens.tokens[tokens.at - 1]


def _arguments(tokens: Tokens, written: str, function: _Function) -> list[list[Token]]:
    """Up to the closing parenthesis."""
    groups: list[list[Token]] = []
    while tokens.accept(","):
        start, depth = tokens.at, 0
        while tokens.token is not None and (depth or tokens.word() not in (",", ")")):
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(tokens.word(), 0)
            tokens.at += 1
        groups.append(tokens.tokens[start : tokens.at])
        if not groups[-1]:
            raise tokens.fail(f"expected an argument of ML.{written}, got {tokens.got()}")
        if len(groups) > function.arguments:
            raise tokens.fail(
                f"ML.{written} takes no further argument here",
                hint=_MORE.get(function.name, _FORM),
                span=(groups[-1][0].start, groups[-1][-1].end + 1),
            )
    tokens.expect(")", f"after the arguments of ML.{written}", _FORM)
    return groups


def _check_cross(tokens: Tokens, columns: list[Token], arguments: list[list[Token]]) -> None:
    """Raise ParseError unless crosses of several columns are pairs, or have `degree` columns."""
    degree = [token.text for argument in arguments for token in argument] or ["2"]
    if degree != [str(len(columns))]:
        raise tokens.fail(
            f"ML.FEATURE_CROSS of {len(columns)} columns makes several columns",
            hint="write an item for each: ML.FEATURE_CROSS(STRUCT(a, b)) AS a_b, ...",
            span=(columns[0].start, columns[-1].end + 1),
        )
