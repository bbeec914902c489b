"""Precedence of operators, as in DuckDB's grammar from 2.0.1 on.

Up to 2.0.0, `@` and `!` bind less, and `->` least of all: the cross-check with DuckDB refuses a
text that it reads differently.
"""

from __future__ import annotations

from typing import TypeAlias

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType as T

from sqlfl.planner.grammar.parsing import Naming
from sqlfl.planner.grammar.trees import Infix, Prefix

Node: TypeAlias = exp.Expr | None
Binaries: TypeAlias = dict[T, type[exp.Expr]]

_COMPARISONS: Binaries = {
    T.EQ: exp.EQ, T.NEQ: exp.NEQ, T.LT: exp.LT, T.LTE: exp.LTE, T.GT: exp.GT, T.GTE: exp.GTE,
}  # fmt: skip
_LIKES: Binaries = {
    T.LIKE: exp.Like, T.ILIKE: exp.ILike, T.GLOB: exp.Glob, T.SIMILAR_TO: exp.SimilarTo,
}  # fmt: skip
_BITS: Binaries = {T.AMP: exp.BitwiseAnd, T.PIPE: exp.BitwiseOr}
_TERMS: Binaries = {T.PLUS: exp.Add, T.DASH: exp.Sub}
_FACTORS: Binaries = {T.STAR: exp.Mul, T.SLASH: exp.Div, T.DIV: exp.IntDiv, T.MOD: exp.Mod}
_ARITHMETIC = frozenset((*_TERMS, *_FACTORS, T.CARET, T.DSTAR))
_ARROWS = frozenset((T.ARROW, T.DARROW))
_OPERATORS = frozenset((
    *_ARROWS, T.DPIPE, T.AT_GT, T.LT_AT, T.DAMP, T.CARET_AT, T.NULLSAFE_EQ, T.LR_ARROW, T.PIPE_GT,
))  # fmt: skip
_TRUTHS: dict[str, exp.Expr] = {
    "TRUE": exp.true(), "FALSE": exp.false(), "NULL": exp.null(), "UNKNOWN": exp.null(),
}  # fmt: skip


class Operators(Naming):
    """Parser of operators, one method for each rank; the loosest first."""

    _after_arrow = -1
    """Start of the right operand of the -> that is being read."""

    def _parse_equality(self, parse_is: bool = True) -> Node:
        """Read NOT, and operators that bind closer."""
        if self._curr.token_type is T.NOT and self._curr.text != "!":
            self._advance()
            return self.expression(exp.Not(this=self._parse_equality()))
        this = self._parse_distinct()
        tested = False
        while True:
            index = self._index
            test = self._parse_test(this)
            if test is not None:
                this, tested = test, True
            elif not tested:
                return this
            else:
                this = self._parse_after_test(this)
                if self._index == index:
                    return this

    def _parse_test(self, this: Node) -> Node:
        """IS [NOT] NULL and the like."""
        negative = False
        if self._match(T.ISNULL):
            value: exp.Expr = exp.null()
        elif self._match(T.NOTNULL) or self._match_pair(T.NOT, T.NULL):
            value, negative = exp.null(), True
        else:
            index = self._index
            if not self._match(T.IS):
                return None
            negative = bool(self._match(T.NOT))
            truth = _TRUTHS.get(self._curr.text.upper())
            if truth is None:
                self._retreat(index)
                return None
            self._advance()
            value = truth.copy()
        test = self.expression(exp.Is(this=_operand(this), expression=value))
        return self.expression(exp.Not(this=test)) if negative else test

    def _parse_after_test(self, this: Node) -> Node:
        this = self._operators(this, True)
        this = self._comparisons(this)
        return self._parse_column_ops(self._distincts(this))

    def _parse_distinct(self) -> Node:
        return self._distincts(self._parse_comparison())

    def _distincts(self, this: Node) -> Node:
        while True:
            index = self._index
            if not self._match(T.IS):
                return this
            kind = exp.NullSafeEQ if self._match(T.NOT) else exp.NullSafeNEQ
            if not self._match_text_seq("DISTINCT", "FROM"):
                self._retreat(index)
                return this
            right = self._parse_comparison()
            this = self.expression(kind(this=_operand(this), expression=_operand(right)))

    def _parse_comparison(self, this: Node = None) -> Node:
        return self._comparisons(this or self._parse_range())

    def _comparisons(self, this: Node) -> Node:
        while self._curr.token_type in _COMPARISONS and self._next.token_type is not T.LT:
            kind = _COMPARISONS[self._curr.token_type]
            self._advance()
            negative = self._curr.token_type is T.NOT and self._curr.text != "!"
            right = self._parse_equality() if negative else self._parse_range()
            this = self.expression(kind(this=_operand(this), expression=_operand(right)))
        return this

    def _parse_range(self, this: Node = None, parse_is: bool = False) -> Node:
        """IN, BETWEEN, LIKE."""
        this = this or self._parse_bitwise()
        while True:
            index = self._index
            negative = bool(self._match(T.NOT))
            if not self._match(T.IN):
                self._retreat(index)
                break
            this = self._negated(self._parse_in(_operand(this)), negative)
            while self._match(T.DCOLON):
                this = self.expression(exp.Cast(this=_operand(this), to=self._parse_dcolon()))
        this = self._parse_like(this)
        return (self._parse_comprehension(this) or this) if self._match(T.FOR) else this

    def _parse_like(self, this: Node) -> Node:
        index = self._index
        left = _operand(this)
        bang = self._curr.text == "!"
        negative = bool(self._match(T.NOT))
        kind = _LIKES.get(self._curr.token_type)
        if self._match(T.BETWEEN) and not bang:
            return self._negated(self._parse_between(left), negative)
        if self._curr.token_type in (T.TILDE, T.IRLIKE):
            operator = ("!" if negative else "") + self._curr.text
            self._advance()
            return self._infix(operator, left, self._parse_bitwise())
        elif kind is not None:
            self._advance()
        else:
            self._retreat(index)
            return this
        like: exp.Expr = self.expression(kind(this=left, expression=self._parse_bitwise()))
        if self._match(T.ESCAPE):
            like = self.expression(exp.Escape(this=like, expression=self._parse_bitwise()))
        return self._negated(like, negative)

    def _negated(self, this: exp.Expr, negative: bool) -> exp.Expr:
        inner = this.this if isinstance(this, exp.Escape) else this
        if negative and isinstance(inner, exp.Like | exp.ILike):
            inner.set("negate", True)
        elif negative:
            return self.expression(exp.Not(this=this))
        return this

    def _parse_in(self, this: Node, alias: bool = False) -> exp.In:
        if self._curr.token_type is T.L_PAREN:
            return super()._parse_in(this, alias)
        return self.expression(exp.In(this=this, field=self._parse_bitwise()))

    def _parse_bitwise(self) -> Node:
        """Read an operand of IN, BETWEEN and LIKE."""
        first, self._after_arrow = self._index == self._after_arrow, -1
        this = self._parse_bits()
        return this if first and self._curr.token_type in _ARROWS else self._operators(this)

    def _operators(self, this: Node, after_test: bool = False) -> Node:
        while self._curr.token_type in _OPERATORS or (
            # a + ~b, and x IS NULL + 1, have this rank
            self._curr.token_type in _ARITHMETIC
            and (after_test or self._next.token_type is T.TILDE)
        ):
            operator = self._curr.text
            arrow = self._match(T.ARROW)
            left = _operand(this) if after_test else this
            if arrow:
                # a = b -> c = d OR e is a = (b -> (c = d OR e)), but a -> b -> c is (a -> b) -> c
                self._after_arrow = self._index
                this = self._infix(operator, left, self._parse_disjunction())
            else:
                self._advance()
                this = self._infix(operator, left, self._parse_bits())
        return this

    def _infix(self, operator: str, left: Node, right: Node) -> exp.Expr:
        if operator == "||":
            return self.expression(exp.DPipe(this=left, expression=right, safe=False))
        return self.expression(Infix(this=left, expression=right, operator=operator))

    def _parse_bits(self) -> Node:
        this = self._parse_tilde_prefix()
        while True:
            kind = _BITS.get(self._curr.token_type)
            if kind is not None:
                self._advance()
            elif self._match_pair(T.LT, T.LT):
                kind = exp.BitwiseLeftShift
            elif self._match_pair(T.GT, T.GT):
                kind = exp.BitwiseRightShift
            else:
                return this
            this = self.expression(kind(this=this, expression=self._parse_tilde_prefix()))

    def _parse_tilde_prefix(self) -> Node:
        if self._match(T.TILDE):
            return self.expression(exp.BitwiseNot(this=_operand(self._parse_tilde_prefix())))
        return self._parse_term()

    def _next_of(self, kinds: Binaries) -> type[exp.Expr] | None:
        return None if self._next.token_type is T.TILDE else kinds.get(self._curr.token_type)

    def _parse_term(self, parse_mod: bool = True) -> Node:
        """`parse_mod` says that % is an operator, and not per cent."""
        this = self._parse_factor(parse_mod)
        while (kind := self._next_of(_TERMS)) is not None:
            self._advance()
            this = self.expression(kind(this=this, expression=self._parse_factor(parse_mod)))
        return this

    def _parse_factor(self, parse_mod: bool = True) -> Node:
        this = self._parse_exponent()
        while (kind := self._next_of(_FACTORS)) is not None and (parse_mod or kind is not exp.Mod):
            self._advance()
            this = self.expression(kind(this=this, expression=self._parse_exponent()))
        return this

    def _parse_exponent(self) -> Node:
        this = self._parse_collate()
        while self._curr.token_type in (T.CARET, T.DSTAR) and self._next.token_type is not T.TILDE:
            operator = self._curr.text
            self._advance()
            this = self._infix(operator, this, self._parse_collate())
        return this

    def _parse_collate(self) -> Node:
        this = self._parse_at_time_zone(self._parse_unary())
        while self._match(T.COLLATE):
            start = self._curr.start
            self._parse_at_time_zone(self._parse_unary())
            name = exp.var(self.sql[start : self._prev.end + 1])
            this = self.expression(exp.Collate(this=this, expression=name))
        return this

    def _parse_unary(self) -> Node:
        if self._match(T.DASH):
            return self.expression(exp.Neg(this=self._parse_unary()))
        if self._match(T.PLUS):
            return self.expression(Prefix(this=self._parse_unary(), operator="+"))
        if self._curr.token_type in (T.NOT, T.PARAMETER) and self._curr.text in ("@", "!"):
            # @ a + b | c is (@ (a + b)) | c
            operator = self._curr.text
            self._advance()
            inner = self._parse_tilde_prefix()
            return self.expression(Prefix(this=_operand(inner), operator=operator))
        return self._parse_type()


_LOOSE: tuple[type[exp.Expr], ...] = (
    exp.Not, exp.Is, exp.NullSafeEQ, exp.NullSafeNEQ, exp.And, exp.Or, exp.Between, exp.In,
    exp.Escape, *_COMPARISONS.values(), *_LIKES.values(),
)  # fmt: skip


def _operand(node: Node) -> Node:
    """Add parentheses around loosely binding nodes, so that their text is unambiguous."""
    return exp.Paren(this=node) if isinstance(node, _LOOSE) else node
