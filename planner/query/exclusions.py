"""Conditions of which at most one is true of a row."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from sqlglot import exp

from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.query.equalities import conjuncts

TRUE, FALSE, NULL = "true", "false", "NULL"
_WORD = re.compile(r"[^\W\d_]{2,30}")
_SPECIAL = frozenset(
    ("true", "false", "yes", "no", "on", "off", "inf", "infinity", "nan", "epoch", "today", "now")
)
"""Words that other types than texts read."""


@dataclass(frozen=True)
class _Fact:
    """Fact that a condition states about an expression: outcomes of a test, or a range."""

    text: str
    outcomes: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    """Texts that it may be equal to, as no collation makes two different ones equal."""
    numbers: tuple[Decimal, ...] = ()
    """Numbers that it may be equal to."""
    low: tuple[Decimal, bool] | None = None
    """Least number, and whether it may be equal to it."""
    high: tuple[Decimal, bool] | None = None

    def excludes(self, other: _Fact) -> bool:
        if self.text != other.text:
            return False
        if self.outcomes and other.outcomes:
            return not self.outcomes & other.outcomes
        if self.words and other.words:
            return not self.words & other.words
        if self.numbers:
            return other._is_of_numbers and not any(map(other.admits, self.numbers))
        if other.numbers:
            return self._is_of_numbers and not any(map(self.admits, other.numbers))
        return _beyond(self.low, other.high) or _beyond(other.low, self.high)

    @property
    def _is_of_numbers(self) -> bool:
        return bool(self.numbers or self.low or self.high)

    def admits(self, number: Decimal) -> bool:
        """Return whether the expression may be equal to a number."""
        at = (number, True)
        if self.numbers:
            return number in self.numbers
        return not _beyond(self.low, at) and not _beyond(at, self.high)


def exclude(one: exp.Expr, other: exp.Expr) -> bool:
    """Return whether at most one of two conditions is true of a row, as far as their texts show."""
    facts = list(_facts(other))
    return any(fact.excludes(against) for fact in _facts(one) for against in facts)


def _beyond(low: tuple[Decimal, bool] | None, high: tuple[Decimal, bool] | None) -> bool:
    if low is None or high is None:
        return False
    return low[0] > high[0] or (low[0] == high[0] and not (low[1] and high[1]))


def _facts(condition: exp.Expr) -> Iterator[_Fact]:
    for test in conjuncts(condition):
        if isinstance(test, exp.Case) and test.this is None and test.args.get("default") is None:
            (branch, *more) = test.args["ifs"]
            if not more:
                yield from _facts(branch.this)
                yield from _facts(branch.args["true"])
                continue
        node, outcomes = _outcome(test)
        yield _Fact(to_sql(node), outcomes)
        if outcomes <= {TRUE, FALSE}:
            yield from _of_values(node, outcomes)


def _outcome(test: exp.Expr) -> tuple[exp.Expr, frozenset[str]]:
    """Return the expression that a condition tests, and the outcomes of which one holds."""
    inner = test.unnest()
    if isinstance(inner, exp.Coalesce) and len(inner.expressions) == 1:
        negated, (default,) = inner.this.unnest(), inner.expressions
        if isinstance(negated, exp.Not) and isinstance(default, exp.Boolean) and default.this:
            return negated.this.unnest(), frozenset((FALSE, NULL))
    if isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null):
        return inner.this.unnest(), frozenset((NULL,))
    if isinstance(inner, exp.NEQ):
        return exp.EQ(this=inner.this, expression=inner.expression), frozenset((FALSE,))
    if isinstance(inner, exp.Not):
        negated = inner.this.unnest()
        if isinstance(negated, exp.Is) and isinstance(negated.expression, exp.Null):
            return negated.this.unnest(), frozenset((TRUE, FALSE))
        return negated, frozenset((FALSE,))
    return inner, frozenset((TRUE,))


def _of_values(node: exp.Expr, outcomes: frozenset[str]) -> Iterator[_Fact]:
    """Yield what the outcome of a comparison with constants says of the value."""
    if not isinstance(node, exp.EQ | exp.GT | exp.GTE | exp.LT | exp.LTE | exp.In | exp.Between):
        return
    text = to_sql(node.this.unnest())
    yield _Fact(text, frozenset((TRUE, FALSE)))  # it is not NULL
    is_true = outcomes == {TRUE}
    if isinstance(node, exp.EQ | exp.In):
        constants = [node.expression] if isinstance(node, exp.EQ) else node.expressions
        numbers, words = [_number(c) for c in constants], [_word(c) for c in constants]
        if is_true and numbers and None not in numbers:
            yield _Fact(text, numbers=tuple(n for n in numbers if n is not None))
        elif is_true and words and None not in words:
            yield _Fact(text, words=frozenset(w for w in words if w is not None))
    elif isinstance(node, exp.Between):
        low, high = _number(node.args["low"]), _number(node.args["high"])
        if is_true and low is not None and high is not None:
            yield _Fact(text, low=(low, True), high=(high, True))
    elif len(outcomes) == 1 and (bound := _number(node.expression)) is not None:
        closed = isinstance(node, exp.GTE | exp.LTE) == is_true
        if isinstance(node, exp.GT | exp.GTE) == is_true:
            yield _Fact(text, low=(bound, closed))
        else:
            yield _Fact(text, high=(bound, closed))


def _number(node: exp.Expr) -> Decimal | None:
    inner = node.unnest()
    if isinstance(inner, exp.Neg):
        number = _number(inner.this)
        return None if number is None else -number
    if isinstance(inner, exp.Literal) and not inner.is_string:
        return Decimal(inner.this)
    return None


def _word(node: exp.Expr) -> str | None:
    inner = node.unnest()
    if not (isinstance(inner, exp.Literal) and inner.is_string and _WORD.fullmatch(inner.this)):
        return None
    plain = unicodedata.normalize("NFKD", inner.this)
    word = "".join(c for c in plain if not unicodedata.combining(c)).casefold()
    return None if word in _SPECIAL else word
