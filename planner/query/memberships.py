"""IN as a value, or beside OR, as tests by EXISTS.

`t.x IN (SELECT u.y FROM u)` is true if a row of u has `u.y = t.x`. Otherwise it is NULL if a value
of u is NULL, or if `t.x` is NULL and u has rows. If only rows that pass a test count, NULL has the
effect of false, and the first question is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlglot import exp

from sqlfl.contract.fragment_columns import RESERVED
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.query.cohorts import ROW_CLAUSES, is_null, with_union_all
from sqlfl.planner.query.equalities import conjuncts
from sqlfl.planner.query.relations import operand
from sqlfl.planner.query.scalars import has_calls

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
        """The outer values: several for a row `(a, b)`."""
        row = self.value.unnest()
        return list(row.expressions) if isinstance(row, exp.Tuple) else [self.value]

    def test(self, bound: Callable[[exp.Expr], exp.Expr]) -> exp.Expr | None:
        """Return the test by EXISTS. Return None if it would need NULLs of rows of several values,
        or if the numbers of values differ. `bound` replaces the names of an outer value.

        The test is true if an element equals the value. Otherwise it is NULL if an element is NULL,
        or if the value is NULL and there are elements. Otherwise it is false.
        """
        values = [bound(value) for value in self.values]
        select, elements = self._rows()
        if len(elements) != len(values):
            return None
        equal = [
            exp.EQ(this=operand(element.copy()), expression=operand(value.copy()))
            for element, value in zip(elements, values, strict=True)
        ]
        has_member = _exists(select, *equal)
        if self.decides and not self.negated:
            return has_member
        if len(values) > 1:
            return None
        null = trees.cast(exp.null(), "BOOLEAN")
        arms = [exp.If(this=has_member, true=exp.true())]
        arms += [
            exp.If(this=test, true=null.copy())
            for test in self._null_tests(select, values[0], elements[0])
        ]
        case: exp.Expr = exp.Paren(this=exp.Case(ifs=arms, default=exp.false()))
        return exp.Not(this=case) if self.negated else case

    def _null_tests(
        self, select: exp.Select, value: exp.Expr, element: exp.Expr
    ) -> Iterator[exp.Exists]:
        """Yield the tests by which the membership is NULL: an element is NULL and the value is not,
        unless WHERE excludes that; or the value is NULL and there is an element.

        They test the value by an equality of two truth values, since tables of two parties join
        only by equalities. The left one is true of each row that is compared.
        """
        element_is_null = exp.Paren(this=is_null(element))
        if not self._has_no_null(select, element):
            yield _exists(select, is_null(element), _equals(element_is_null, _not_null(value)))
        always = _not_null(element_is_null)
        yield _exists(select, _equals(always, is_null(value)))

    def _rows(self) -> tuple[exp.Select, list[exp.Expr]]:
        """Return the subquery as FROM and WHERE, and the expressions of its values. A subquery of
        another form becomes a derived table of FROM.
        """
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
                exp.Subquery(this=with_union_all(self.query).unnest(), alias=alias), copy=False
            )
            shown = [exp.column(name, table=_TABLE) for name in names]
        for clause in ("distinct", "order"):
            rows.set(clause, None)
        rows.set("expressions", [exp.Literal.number(1)])
        return rows, shown

    @staticmethod
    def _has_no_null(select: exp.Select, element: exp.Expr) -> bool:
        """Return whether a condition of WHERE is that the value is not NULL."""
        where = select.args.get("where")
        facts = () if where is None else map(to_sql, conjuncts(where.this))
        return to_sql(_not_null(element)) in facts


def memberships(node: exp.Expr, decides: bool) -> Iterator[Membership]:
    """Yield the outermost memberships of an expression. `decides`: NULL has the same effect there
    as FALSE."""
    membership = _membership(node, decides)
    if membership is not None:
        yield membership
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
    """Return the membership that the expression is; None for any other expression."""
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
    """Return whether FROM, WHERE and the SELECT's expressions alone determine the set of rows."""
    clauses = {key for key, value in select.args.items() if value}
    distinct = select.args.get("distinct")
    by_columns = isinstance(distinct, exp.Expr) and bool(distinct.args.get("on"))
    stars = any(node.find(exp.Star) for node in select.expressions)
    called = any(map(has_calls, select.expressions))
    return clauses <= ROW_CLAUSES and "from_" in clauses and not (by_columns or stars or called)


def _exists(select: exp.Select, *conditions: exp.Expr) -> exp.Exists:
    """Return EXISTS over the rows of the subquery that fulfil the conditions."""
    return exp.Exists(this=select.copy().where(*(operand(c) for c in conditions), copy=False))


def _equals(left: exp.Expr, right: exp.Expr) -> exp.EQ:
    return exp.EQ(this=exp.Paren(this=left.copy()), expression=exp.Paren(this=right.copy()))


def _not_null(value: exp.Expr) -> exp.Expr:
    return is_null(value, False)
