"""Nodes of syntax trees that sqlglot does not have."""

from __future__ import annotations

from typing import ClassVar

from sqlglot import exp


class Infix(exp.Expression, exp.Binary):
    """`this operator expression`, for an operator that sqlglot has no rules for, or other ones."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "expression": True, "operator": True}


class Prefix(exp.Unary):
    """`operator this`"""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "operator": True}


class Verbatim(exp.Expression, exp.Condition):
    """A literal in its original spelling: `this` is its text."""
