"""A query with parentheses around every operand, so that its text says what its tree is."""

from __future__ import annotations

from sqlglot import exp

from sqlfl.planner.query.relations import binds, operand

_BARE = (exp.Any, exp.All, exp.Exists)
"""What stands after an operator without parentheses of its own."""


def explicit(query: exp.Expr) -> exp.Expr:
    """A copy that does not rest on the precedence of operators.

    DuckDB reads the text of the copy as it reads the text that the query was parsed from, unless
    the two parsers differ about it.
    """
    copy = query.copy()
    for node in reversed(list(copy.walk())):  # the innermost first: what is wrapped is a copy
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
