"""Places in the statement of a fragment's expressions."""

from __future__ import annotations

import re
from typing import TypeVar

from sqlglot import exp

from sqlfl.contract.fragment_columns import IDENTIFIER, KEPT, KEY, OFFSET, TARGET, WEIGHT
from sqlfl.planner.grammar.statements import Span
from sqlfl.planner.query.ucq import Ucq

PLACE = "sqlfl_place"
"""Key in the meta of an expression: the span that it was written at."""
_AT = re.compile(r"([0-9]{1,6}) ([0-9]{1,6}) ([0-9]{1,6})")
_SPECIAL = {TARGET: "the target", WEIGHT: "the weight", OFFSET: "the offset"}
_KINDS = {KEY: "a join key", IDENTIFIER: "an identifier", KEPT: "a condition"}

Node = TypeVar("Node", bound=exp.Expr)


def placed(expression: Node, span: Span | None) -> Node:
    """The expression, marked with its place in the statement."""
    if span is not None:
        expression.meta[PLACE] = span
    return expression


def found(ucq: Ucq, client: str, at: str) -> tuple[str, Span | None] | None:
    """Return the words for `at`, from a client's Failure, and its place in the statement; None if
    `client` does not evaluate it.

    `at` is three numbers: slot, fragment, and part of its SELECT: the columns, then the conditions
    of WHERE.
    """
    match = _AT.fullmatch(at)
    if match is None:
        return None
    slot, fragment, part = (int(number) for number in match.groups())
    if slot >= len(ucq.slots) or fragment >= len(ucq.slots[slot].fragments):
        return None
    evaluated = ucq.slots[slot].fragments[fragment]
    columns = evaluated.select.expressions
    parts = [*columns, *_conditions(evaluated.select)]
    if str(evaluated.client) != client or part >= len(parts):
        return None
    words = "a condition"
    if part < len(columns):
        words = _words(columns[part].alias_or_name)
    spans = (node.meta_get(PLACE) for node in parts[part].walk())
    return words, next((span for span in spans if isinstance(span, tuple)), None)


def _conditions(select: exp.Select) -> list[exp.Expr]:
    where = select.args.get("where")
    if where is None:
        return []
    return list(where.this.flatten()) if isinstance(where.this, exp.And) else [where.this]


def _words(name: str) -> str:
    for start, words in _KINDS.items():
        if name.startswith(start):
            return words
    return _SPECIAL.get(name, f"column {name}")
