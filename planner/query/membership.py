"""`x IN (SELECT ...)` as a value, or beside OR, as EXISTS.

`t.x IN (SELECT u.y FROM u)` is true where a row of u has `u.y = t.x`. Where none has, it is NULL if
a value of u is NULL, or if `t.x` is NULL and u has rows. Where only rows that pass a test count,
NULL is as good as false, and the first question is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlglot import exp

from sqlfl.contract.fragment_columns import RESERVED
from sqlfl.planner.grammar import build
from sqlfl.planner.grammar.writing import to_sql
from sqlfl.planner.query.cohorts import as_set
from sqlfl.planner.query.equalities import conjuncts
from sqlfl.planner.query.relations import operand
from sqlfl.planner.query.scalars import has_calls

_ROWS = frozenset(("with_", "expressions", "from_", "joins", "where", "distinct", "order"))
"""Clauses of a subquery that leave its values as they are."""
_TABLE, _VALUE = f"{RESERVED}members", f"{RESERVED}member_"
"""Names of a subquery that becomes a derived table, and of its columns."""


@dataclass(frozen=True)
class Membership:
    """`value IN (query)`, `value = ANY (query)` or `value <> ALL (query)`."""

    node: exp.Expr
    value: exp.Expr
    query: exp.Query
    negated: bool
    decides: bool
    """True where NULL has the same effect as FALSE."""

    @property
    def values(self) -> list[exp.Expr]:
        row = self.value.unnest()
        return list(row.expressions) if isinstance(row, exp.Tuple) else [self.value]

    def test(self, bound: Callable[[exp.Expr], exp.Expr]) -> exp.Expr | None:
        """Return the test by EXISTS. None for NULLs of rows of several values. `bound` replaces the
        names of a value of outside.
        """
        values = [bound(value) for value in self.values]
        select, elements = self._rows()
        if len(elements) != len(values):
            return None
        equal = [
            exp.EQ(this=operand(element.copy()), expression=operand(value.copy()))
            for element, value in zip(elements, values, strict=True)
        ]
        some = _exists(select, *equal)
        if self.decides and not self.negated:
            return some
        if len(values) > 1:
            return None
        no_value = exp.Paren(this=_is_null(elements[0]))
        unknown = [_exists(select, _equals(_not_null(no_value), _is_null(values[0])))]
        if not self._has_no_null(select, elements[0]):
            both = (_is_null(elements[0]), _equals(no_value, _not_null(values[0])))
            unknown.insert(0, _exists(select, *both))
        null = build.cast(exp.null(), "BOOLEAN")
        ifs = [exp.If(this=some, true=exp.true())]
        ifs += [exp.If(this=test, true=null.copy()) for test in unknown]
        whole: exp.Expr = exp.Paren(this=exp.Case(ifs=ifs, default=exp.false()))
        return exp.Not(this=whole) if self.negated else whole

    def _rows(self) -> tuple[exp.Select, list[exp.Expr]]:
        """The subquery as FROM and WHERE, and the expressions of its values."""
        select = self.query.unnest()
        if isinstance(select, exp.Select) and _is_of_rows(select):
            rows = select.copy()
            shown = [node.unalias().copy() for node in select.expressions]
        else:
            names = [f"{_VALUE}{n}" for n in range(len(self.values))]
            alias = exp.TableAlias(
                this=exp.to_identifier(_TABLE), columns=[exp.to_identifier(name) for name in names]
            )
            rows = exp.select().from_(
                exp.Subquery(this=as_set(self.query).unnest(), alias=alias), copy=False
            )
            shown = [exp.column(name, table=_TABLE) for name in names]
        for clause in ("distinct", "order"):
            rows.set(clause, None)
        rows.set("expressions", [exp.Literal.number(1)])
        return rows, shown

    @staticmethod
    def _has_no_null(select: exp.Select, element: exp.Expr) -> bool:
        """Return whether WHERE says that the value is not NULL."""
        where = select.args.get("where")
        known = () if where is None else map(to_sql, conjuncts(where.this))
        return to_sql(_not_null(element)) in known


def memberships(node: exp.Expr, decides: bool) -> Iterator[Membership]:
    """Yield the outermost of an expression. `decides`: NULL has the same effect there as FALSE."""
    found = _membership(node, decides)
    if found is not None:
        yield found
    elif isinstance(node, exp.Paren | exp.And | exp.Or):
        for side in node.iter_expressions():
            yield from memberships(side, decides)
    elif isinstance(node, exp.Case) and node.this is None:
        for branch in node.args["ifs"]:
            yield from memberships(branch.this, True)
            yield from memberships(branch.args["true"], False)
        if (default := node.args.get("default")) is not None:
            yield from memberships(default, False)
    elif not isinstance(node, exp.Query | exp.Lambda | exp.Comprehension):
        for child in node.iter_expressions():
            yield from memberships(child, False)


def _membership(node: exp.Expr, decides: bool) -> Membership | None:
    negated = isinstance(node, exp.NEQ)
    if isinstance(node, exp.In):
        value, query = node.this, node.args.get("query")
    elif isinstance(node, exp.EQ | exp.NEQ):
        several = exp.All if negated else exp.Any
        if not isinstance(node.expression, several):
            return None
        value, query = node.this, node.expression.this
    else:
        return None
    if not isinstance(query, exp.Query) or value.find(exp.Query) is not None:
        return None
    return Membership(node, value, query, negated, decides)


def _is_of_rows(select: exp.Select) -> bool:
    given = {key for key, value in select.args.items() if value}
    distinct = select.args.get("distinct")
    by_columns = isinstance(distinct, exp.Expr) and bool(distinct.args.get("on"))
    stars = any(node.find(exp.Star) for node in select.expressions)
    called = any(map(has_calls, select.expressions))
    return given <= _ROWS and "from_" in given and not (by_columns or stars or called)


def _exists(select: exp.Select, *conditions: exp.Expr) -> exp.Exists:
    return exp.Exists(this=select.copy().where(*(operand(c) for c in conditions), copy=False))


def _equals(left: exp.Expr, right: exp.Expr) -> exp.EQ:
    return exp.EQ(this=exp.Paren(this=left.copy()), expression=exp.Paren(this=right.copy()))


def _is_null(value: exp.Expr) -> exp.Expr:
    return exp.Is(this=operand(value.copy()), expression=exp.Null())


def _not_null(value: exp.Expr) -> exp.Expr:
    return exp.Not(this=_is_null(value))
