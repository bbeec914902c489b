"""Windows of days in a subquery, as equalities of keys that its rows are repeated with.

`u.day BETWEEN t.day - 7 AND t.day` holds where `t.day` is one of `u.day`, `u.day + 1`, ...,
`u.day + 7`, and then of exactly one. So the subquery's rows are joined with the numbers 0 to 7, and
`u.day` plus the number equals `t.day`: each row of outside meets each row in its window once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sqlglot import exp

from sqlfl.contract.fragment_columns import RESERVED
from sqlfl.planner.grammar import build
from sqlfl.planner.grammar.trees import nodes
from sqlfl.planner.query.groups import OF_NUMBERS
from sqlfl.planner.query.relations import Term, operand
from sqlfl.planner.query.windows import MAX_WIDTH, TIMES, Window, kind_of, system_call, window_of

_NUMBERS, _STEP = f"{RESERVED}steps_", f"{RESERVED}step"
"""Names of a derived table of numbers, and of its column."""


@dataclass(frozen=True)
class Sides:
    """The two sides of a condition of a subquery: 0 for its rows, 1 for those of outside."""

    is_inside: Callable[[exp.Expr], bool]
    """Return whether an expression reads rows of the subquery alone."""
    is_outside: Callable[[exp.Expr], bool]
    """Return whether it reads one table of outside alone."""

    def reads(self, term: Term) -> tuple[int, ...]:
        node = term.expression
        if not any(True for _ in nodes(node, exp.Column)):
            return ()
        if self.is_inside(node):
            return (0,)
        return (1,) if self.is_outside(node) else (0, 1)

    def window(self, condition: exp.Expr) -> Window | None:
        """Return the window that a condition is, of a value of outside minus one of the rows."""
        found = window_of(self, condition)
        if found is None:
            return None
        return found if self.reads(Term(found.minus, None)) == (0,) else found.turned


@dataclass(frozen=True)
class Step:
    """A window of a subquery: its rows are repeated with each number of the window."""

    window: Window
    kind: str
    """DATE, BIGINT or HUGEINT, in which the values are added."""
    place: int

    @property
    def join(self) -> exp.Join:
        """The numbers, to be joined with the rows."""
        low, high = (exp.Literal.number(n or 0) for n in (self.window.low, self.window.high))
        end = exp.Add(this=high, expression=exp.Literal.number(1))
        each = system_call("unnest", system_call("range", low, end))
        numbers = exp.select(exp.alias_(each, _STEP))
        alias = exp.TableAlias(this=exp.to_identifier(f"{_NUMBERS}{self.place}"))
        join = exp.Join(this=exp.Subquery(this=numbers, alias=alias), kind="CROSS")
        join.meta[OF_NUMBERS] = numbers.meta[OF_NUMBERS] = True
        return join

    @property
    def key(self) -> exp.Expr:
        """The value of the rows plus a number of the window."""
        value = self.window.minus
        if self.kind != "DATE":
            return exp.Add(this=build.cast(value, self.kind), expression=self._number)
        later = exp.Add(this=operand(value.copy()), expression=build.cast(self._number, "INTEGER"))
        finite = system_call("isfinite", value.copy())
        return exp.Case(ifs=[exp.If(this=finite, true=later)], default=value.copy())

    @property
    def test(self) -> exp.Expr | None:
        """The condition that an infinite day fulfils with one number at most; None for numbers."""
        if self.kind != "DATE":
            return None
        finite = system_call("isfinite", self.window.minus.copy())
        if not self.window.at_infinity:
            return finite
        first = exp.EQ(this=self._number, expression=exp.Literal.number(self.window.low or 0))
        return exp.Or(this=finite, expression=first)

    @property
    def _number(self) -> exp.Expr:
        return exp.column(_STEP, table=f"{_NUMBERS}{self.place}")


def step_of(window: Window, types: Iterable[str], times: Iterable[str], place: int) -> Step | None:
    """Return the step of a window between values of these types, which count hours and the like of
    `times`; None if there is none.
    """
    kind = kind_of(types)
    width = window.width
    if width is None or width > MAX_WIDTH or kind is None:
        return None
    if window.times and not {*times} <= TIMES:
        return None
    return None if window.has_days and kind != "DATE" else Step(window, kind, place)
