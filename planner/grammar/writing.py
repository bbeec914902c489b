"""Writer of syntax trees as SQL that DuckDB reads with the same meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import UnsupportedError
from sqlglot.generator import Generator as BaseGenerator
from sqlglot.generators.duckdb import DuckDBGenerator

from sqlfl.planner.grammar.reading import Parser, Tokenizer
from sqlfl.planner.grammar.trees import Infix, Prefix, Verbatim, copied

_PREFIXES = frozenset("-+~@!")


def _binary(operator: str) -> Callable[[Any, exp.Expr], str]:
    return lambda self, node: f"{self.sql(node, 'this')} {operator} {self.sql(node, 'expression')}"


def _prefix(operator: str) -> Callable[[Any, exp.Expr], str]:
    """Write a prefix operator, separated from a following operator: DuckDB reads `~-` and `-@` as
    operators.
    """

    def written(self: Any, node: exp.Expr) -> str:
        inner: str = self.sql(node, "this")
        return f"{operator} {inner}" if inner[:1] in _PREFIXES else f"{operator}{inner}"

    return written


def _listed(before: str, after: str) -> Callable[[Any, exp.Expr], str]:
    return lambda self, node: f"{before}{self.expressions(node, flat=True)}{after}"


class Generator(DuckDBGenerator):
    """Writer that reproduces text read by `Parser`, except for spaces and case."""

    TRANSFORMS: ClassVar[dict[Any, Any]] = DuckDBGenerator.TRANSFORMS | {
        exp.Array: _listed("[", "]"),
        exp.BitwiseAnd: _binary("&"),
        exp.BitwiseLeftShift: _binary("<<"),
        exp.BitwiseNot: _prefix("~"),
        exp.BitwiseOr: _binary("|"),
        exp.BitwiseRightShift: _binary(">>"),
        exp.Collate: _binary("COLLATE"),
        exp.Glob: _binary("GLOB"),
        exp.IgnoreNulls: lambda self, node: f"{self.sql(node, 'this')} IGNORE NULLS",
        exp.Neg: _prefix("-"),
        exp.RespectNulls: lambda self, node: f"{self.sql(node, 'this')} RESPECT NULLS",
        Infix: lambda self, node: _binary(node.args["operator"])(self, node),
        Prefix: lambda self, node: f"{node.args['operator']} {self.sql(node, 'this')}",
        Verbatim: lambda self, node: node.this,
    }

    MULTI_ARG_DISTINCT = True

    def unsupported(self, message: str) -> None:
        raise UnsupportedError(message)

    def extract_sql(self, expression: exp.Extract) -> str:
        return f"EXTRACT({self.sql(expression, 'this')} FROM {self.sql(expression, 'expression')})"

    def in_sql(self, expression: exp.In) -> str:
        field = expression.args.get("field")
        if not isinstance(field, exp.Paren):
            return super().in_sql(expression)
        # IN (list) would compare with the list itself
        return f"CONTAINS({self.sql(field.this)}, {self.sql(expression, 'this')})"

    def interval_sql(self, expression: exp.Interval) -> str:
        unit = self.sql(expression, "unit")
        return f"INTERVAL {self.sql(expression, 'this')}{' ' if unit else ''}{unit}"

    def join_sql(self, expression: exp.Join, join_op: str | None = None) -> str:
        if isinstance(expression.this, exp.Unnest) and not expression.args.get("on"):
            return BaseGenerator.join_sql(self, expression, join_op)
        return super().join_sql(expression, join_op)

    def ordered_sql(self, expression: exp.Ordered) -> str:
        falling, first = expression.args.get("desc"), expression.args.get("nulls_first")
        order = "" if falling is None else " DESC" if falling else " ASC"
        nulls = "" if first is None else " NULLS FIRST" if first else " NULLS LAST"
        return f"{self.sql(expression, 'this')}{order}{nulls}"

    def tuple_sql(self, expression: exp.Tuple) -> str:
        if len(expression.expressions) == 1 and not isinstance(expression.parent, exp.Values):
            return f"({self.sql(expression.expressions[0])},)"
        return super().tuple_sql(expression)

    def withingroup_sql(self, expression: exp.WithinGroup) -> str:
        order = self.sql(expression, "expression").lstrip()
        return f"{self.sql(expression, 'this')} WITHIN GROUP ({order})"


class Dialect(DuckDB):
    """DuckDB's dialect, read and written as DuckDB does; the index of `a[1]` stays unchanged."""

    INDEX_OFFSET = 0

    Tokenizer = Tokenizer
    Parser = Parser
    Generator = Generator


_DIALECT = Dialect()


def to_sql(node: exp.Expr, pretty: bool = False) -> str:
    """The text of the tree."""
    return _DIALECT.generate(copied(node), copy=False, pretty=pretty)  # writing changes trees
