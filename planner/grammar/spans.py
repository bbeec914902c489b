"""Places of syntax trees in the text."""

from __future__ import annotations

import re

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.planner.grammar.statements import Span


def span_of(node: exp.Expr | None, sql: str) -> Span | None:
    """The characters that the node was read from; its nearest ancestor's where it has no trace."""
    while node is not None:
        inner = node.this if isinstance(node, exp.Alias) else node
        places = [_place(n) for n in inner.walk()] if isinstance(inner, exp.Expr) else []
        known = [p for p in places if p is not None]
        if known:
            span = min(s for s, _ in known), max(e for _, e in known)
            if isinstance(inner, exp.Select):
                span = _with_keyword(span, sql)
            return _closed(span, sql, isinstance(inner, exp.Func))
        node = node.parent
    return None


def _place(node: exp.Expr) -> Span | None:
    start, end = node.meta_get("start"), node.meta_get("end")
    if isinstance(node, exp.Star) and end == 0:
        return None  # the star of a query without SELECT
    return (start, end + 1) if isinstance(start, int) and isinstance(end, int) else None


def _with_keyword(span: Span, sql: str) -> Span:
    """Extend the span to SELECT, which leaves no trace in its tree."""
    match = re.search(r"select(\s+distinct)?\s+\(*[\w.]*\(?$", sql[: span[0]], re.IGNORECASE)
    return (match.start(), span[1]) if match else span


def _closed(span: Span, sql: str, call: bool) -> Span:
    """Widen the span to the name of a call, and to parentheses that are open at the end."""
    start, end = span
    before = sql[:start].rstrip()
    if call and before.endswith("("):
        start = len(before) - 1
        while start and (sql[start - 1].isalnum() or sql[start - 1] == "_"):
            start -= 1
    text = sql[start:end]
    missing = text.count("(") - text.count(")")
    while missing > 0 and end < len(sql):
        missing -= {")": 1, "(": -1}.get(sql[end], 0)
        end += 1
    return start, end


def plan_error(
    message: str, sql: str, where: exp.Expr | Span | None, hint: str | None = None
) -> PlanError:
    span = where if where is None or isinstance(where, tuple) else span_of(where, sql)
    return PlanError(message, hint=hint, sql=sql, span=span)
