"""Add parentheses around every operand, so that a query's text expresses its tree."""

from __future__ import annotations

from sqlglot import exp

from sqlfl.planner.query.relations import binds, operand

_BARE = (exp.Any, exp.All, exp.Exists)
"""Nodes that stand after an operator without parentheses of their own."""


def explicit(query: exp.Expr) -> exp.Expr:
    """Return a copy that does not depend on the precedence of operators.

    DuckDB reads the copy's text like the original text, unless the two parsers disagree about the
    original.
    """
    copy = query.copy()
    for node in reversed(list(copy.walk())):  # innermost first, because wrapping copies a node
        parent = node.parent
        if parent is None or not binds(parent) or isinstance(node, _BARE):
            continue
        if isinstance(parent, exp.Escape) and node.arg_key == "this":
            continue
        if isinstance(parent, exp.Connector) and type(node) is type(parent):
            continue  # a AND b AND c is one list, and may be a long one
        wrapped = operand(node.copy())
        if not isinstance(node, type(wrapped)):
            node.replace(wrapped)
    return copy
