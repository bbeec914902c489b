"""SQL of DuckDB's expressions: a parser on sqlglot's, and a writer that keeps the meaning.

The parser keeps names and arguments of functions, and the text of types and literals, of which
sqlglot changes some in meaning. Operators have the precedence of DuckDB's grammar from 2.0.1 on. Up
to 2.0.0, `@` and `!` bind less, and `->` least of all: the cross-check with DuckDB refuses a text
that it reads differently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import UnsupportedError
from sqlglot.generator import Generator as BaseGenerator
from sqlglot.generators.duckdb import DuckDBGenerator
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import Token
from sqlglot.tokenizer_core import TokenType as T

from sqlfl.planner.grammar.parsing import Naming
from sqlfl.planner.grammar.trees import Infix, Prefix, Verbatim, copied

Node: TypeAlias = exp.Expr | None
Binaries: TypeAlias = dict[T, type[exp.Expr]]


# -- precedence of operators -----------------------------------------------------------------------

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
        """Read NOT, and operators that bind closer. sqlglot reads none after `x IS NULL`."""
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
        """Read =, < and the like. sqlglot has `<=>` with =, which binds looser."""
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
        """Read IN, BETWEEN and LIKE. sqlglot reads no cast after `x NOT IN (1)`."""
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
        """Read the right operand of IN. sqlglot reads no `IN a || b`."""
        if self._curr.token_type is T.L_PAREN:
            return super()._parse_in(this, alias)
        return self.expression(exp.In(this=this, field=self._parse_bitwise()))

    def _parse_bitwise(self) -> Node:
        """Read an operand of IN, BETWEEN and LIKE. sqlglot reads `a || b | c` as `(a || b) | c`."""
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
        """Read + and -. sqlglot reads `a + ~b * c` as `a + ((~b) * c)`. `parse_mod` says that % is
        an operator, and not per cent.
        """
        this = self._parse_factor(parse_mod)
        while (kind := self._next_of(_TERMS)) is not None:
            self._advance()
            this = self.expression(kind(this=this, expression=self._parse_factor(parse_mod)))
        return this

    def _parse_factor(self, parse_mod: bool = True) -> Node:
        """Read *, / and %. sqlglot reads `a * ~b + c` as `(a * (~b)) + c`."""
        this = self._parse_exponent()
        while (kind := self._next_of(_FACTORS)) is not None and (parse_mod or kind is not exp.Mod):
            self._advance()
            this = self.expression(kind(this=this, expression=self._parse_exponent()))
        return this

    def _parse_exponent(self) -> Node:
        """Read ^ and **. sqlglot reads `a ^ ~b + c` as `(a ^ (~b)) + c`."""
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
        """Read -, +, @ and !. sqlglot drops +, which DuckDB refuses before a text."""
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


# -- the parser ------------------------------------------------------------------------------------

_LOOSE: tuple[type[exp.Expr], ...] = (
    exp.Not, exp.Is, exp.NullSafeEQ, exp.NullSafeNEQ, exp.And, exp.Or, exp.Between, exp.In,
    exp.Escape, *_COMPARISONS.values(), *_LIKES.values(),
)  # fmt: skip


def _operand(node: Node) -> Node:
    """Add parentheses around loosely binding nodes, so that their text is unambiguous."""
    return exp.Paren(this=node) if isinstance(node, _LOOSE) else node


LAMBDA_FUNCTIONS = frozenset((
    "apply", "array_apply", "array_filter", "array_reduce", "array_transform", "filter",
    "list_apply", "list_filter", "list_reduce", "list_transform", "reduce",
))  # fmt: skip
"""In their arguments `x -> y` is a lambda, as before DuckDB 2; elsewhere `->` belongs to JSON."""


NAMES = frozenset((
    "APPLY", "CURRENT_CATALOG", "CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP", "CURRENT_USER",
    "DIV", "LOCALTIME", "LOCALTIMESTAMP", "REGEXP", "RLIKE", "SESSION_USER", "STRAIGHT_JOIN", "XOR",
))  # fmt: skip
"""Keywords of sqlglot that DuckDB reads as names."""
_UNITS = frozenset((
    "YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND", "WEEK",
    "QUARTER", "DECADE", "CENTURY", "MILLENNIUM", "YEARS", "MONTHS", "DAYS", "HOURS", "MINUTES",
    "SECONDS", "MILLISECONDS", "MICROSECONDS", "WEEKS", "QUARTERS", "DECADES", "CENTURIES",
    "MILLENNIA",
))  # fmt: skip


def _written(parser: Any, token: Token) -> exp.Expr:
    text = parser.sql[token.start : token.end + 1]
    if text[:2].lower() in ("0x", "0b"):
        parser.raise_error("Expected A NUMBER IN DECIMALS", token)  # DuckDB reads 0xFF as 0 AS xFF
    if token.token_type is T.NUMBER:
        return parser.expression(exp.Literal(this=text, is_string=False), token)  # type: ignore[no-any-return]
    return parser.expression(Verbatim(this=text), token)  # type: ignore[no-any-return]


class Tokenizer(DuckDB.Tokenizer):
    """Tokenizer of DuckDB's words: keywords of sqlglot alone are names."""

    COMMANDS: ClassVar[set[T]] = set()
    # sqlglot reads no x'AB', no b'101' and no name in backticks
    HEX_STRINGS: ClassVar[list[Any]] = [("x'", "'"), ("X'", "'")]
    BIT_STRINGS: ClassVar[list[Any]] = [("b'", "'"), ("B'", "'")]
    IDENTIFIERS: ClassVar[list[Any]] = ['"', "`"]
    KEYWORDS: ClassVar[dict[str, T]] = {
        word: token
        for word, token in DuckDB.Tokenizer.KEYWORDS.items()
        if word not in NAMES and word != "?::"  # `?::INT` casts a parameter
    }


_QUANTIFIERS: dict[Any, type[exp.Expr]] = {T.ALL: exp.All, T.SOME: exp.Any}
"""Reserved words of DuckDB: other things have such names only in quotes."""


class Parser(Operators):
    """Parser of operands, and of functions under the names that they have in the text."""

    # sqlglot changes the path of json_extract(j, 'a.b'), and reads no json_object(a || b, c)
    FUNCTIONS: ClassVar[dict[str, Any]] = {
        name: DuckDBParser.FUNCTIONS[name] for name in ("COALESCE", "COLUMNS", "NULLIF", "UNNEST")
    }
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: DuckDBParser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST")
    } | {
        "EXTRACT": lambda self: self._parse_part(),
        "OVERLAY": lambda self: self._parse_words("OVERLAY", "PLACING", "FROM", "FOR"),
        "POSITION": lambda self: self._parse_place(),
        "SUBSTRING": lambda self: self._parse_words("SUBSTRING", "FROM", "FOR"),
        "TRIM": lambda self: self._parse_ends(),
    }
    # `map` and others are columns too
    NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: DuckDBParser.NO_PAREN_FUNCTION_PARSERS[name] for name in ("ANY", "CASE")
    }
    # sqlglot writes x'AB' as a call, 1_000 as 1000, and a string in $$ in quotes
    PRIMARY_PARSERS: ClassVar[dict[T, Any]] = DuckDBParser.PRIMARY_PARSERS | dict.fromkeys(
        (T.NUMBER, T.HEX_STRING, T.BIT_STRING, T.BYTE_STRING, T.HEREDOC_STRING), _written
    )
    # sqlglot reads `l[:n]` as a parameter
    PLACEHOLDER_PARSERS: ClassVar[dict[T, Any]] = {
        T.PLACEHOLDER: DuckDBParser.PLACEHOLDER_PARSERS[T.PLACEHOLDER],
        T.PARAMETER: lambda self: self._parse_dollar(),
    }
    # `list[1]` is of a column
    ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}

    _lambdas = False
    """True if the parser is in the arguments of one of LAMBDA_FUNCTIONS."""

    def _warn_unsupported(self) -> None:
        """Write nothing to the log: an error says what is not expected."""

    # -- operands ----------------------------------------------------------------------------------

    def _parse_type(
        self, parse_interval: bool = True, fallback_to_identifier: bool = False
    ) -> Node:
        """Read an operand. sqlglot reads `DATE '2024-01-01'::TIMESTAMP` as a DATE."""
        if not fallback_to_identifier and (atom := self._parse_atom()) is not None:
            return atom
        if parse_interval and (interval := self._parse_interval()) is not None:
            return self._parse_column_ops(interval)
        index = self._index
        kind = self._parse_types(check_func=True, allow_identifiers=False)
        if kind is not None and self._match(T.STRING, advance=False):
            literal = self.expression(exp.Cast(this=self._parse_primary(), to=kind))
            return self._parse_column_ops(literal)
        self._retreat(index)
        return self._parse_id_var() if fallback_to_identifier else self._parse_column()

    def _parse_types(self, *given: Any, **options: Any) -> Node:
        """Read the type by its text, which DuckDB knows. sqlglot takes NUMBER for DECIMAL."""
        start = self._index
        type_ = super()._parse_types(*given, **options)
        if not isinstance(type_, exp.DataType):
            return type_
        tokens = self._tokens[start : self._index]
        text = self.sql[tokens[0].start : tokens[-1].end + 1]
        return exp.DataType(this=exp.DType.USERDEFINED, kind=text)

    def _parse_user_defined_type(self, identifier: exp.Identifier) -> exp.DataType:
        """Skip the type's name, which sqlglot reads as SQL, though quotes may stand in it."""
        while self._match(T.DOT):
            self._advance_any()
        return exp.DataType(this=exp.DType.USERDEFINED, kind=identifier.name)

    def _parse_interval(
        self, require_interval: bool = True, parse_function_unit: bool = True
    ) -> exp.Interval | None:
        """Read INTERVAL before an amount. sqlglot reads the column of `interval + 1` so too."""
        if not self._match(T.INTERVAL):
            return None
        if self._curr.token_type not in (T.STRING, T.NUMBER, T.L_PAREN):
            self._retreat(self._index - 1)
            return None
        amount = self._parse_primary()
        unit = self._curr.text.upper()
        if unit not in _UNITS:
            return self.expression(exp.Interval(this=amount))
        self._advance()
        return self.expression(exp.Interval(this=amount, unit=exp.var(unit)))

    def _parse_part(self) -> exp.Extract:
        """Read the arguments of EXTRACT. sqlglot writes the part in capitals."""
        part = self._parse_string() or self._parse_var(any_token=True)
        if not self._match(T.FROM):
            self.raise_error("Expected FROM after EXTRACT's part", self._prev)
        return self.expression(exp.Extract(this=part, expression=self._parse_disjunction()))

    def _parse_words(self, name: str, *words: str) -> exp.Expr:
        """Read arguments between commas, then some after words; SUBSTRING(x FOR 2) starts at 1.
        sqlglot reads FOR before FROM, which DuckDB does not.
        """
        arguments = self._parse_csv(self._parse_disjunction)
        if len(arguments) == 1:
            for word in words:
                if self._match_text_seq(word):
                    arguments += [self._parse_disjunction() or exp.null()]
                elif name == "SUBSTRING" and word == "FROM" and self._curr.text.upper() == "FOR":
                    arguments.append(exp.Literal.number(1))
        return self.expression(exp.Anonymous(this=name, expressions=arguments))

    def _parse_place(self) -> exp.Expr:
        """Read the arguments of POSITION. sqlglot reads a comma for IN."""
        part = self._parse_bitwise()
        if not self._match(T.IN):
            self.raise_error("Expected IN in POSITION", self._curr)
        whole = self._parse_disjunction()
        return self.expression(exp.Anonymous(this="STRPOS", expressions=[whole, part]))

    def _parse_ends(self) -> exp.Expr:
        """Read the arguments of TRIM. sqlglot reads no list after FROM."""
        names = {"LEADING": "LTRIM", "TRAILING": "RTRIM", "BOTH": "TRIM"}
        name = "TRIM"
        if self._match_texts(names):
            name = names[self._prev.text.upper()]
        first = [] if self._curr.token_type is T.FROM else self._parse_csv(self._parse_disjunction)
        if self._match(T.FROM):
            first = [*self._parse_csv(self._parse_disjunction), *first]
        return self.expression(exp.Anonymous(this=name, expressions=first))

    def _parse_primary(self) -> Node:
        """Read a literal, ARRAY or MAP. sqlglot reads .5 as 0.5, which has another type."""
        if self._curr.token_type is T.DOT and self._next.token_type is T.NUMBER:
            self._advance(2)
            return self.expression(exp.Literal(this=f".{self._prev.text}", is_string=False))
        if self._curr.token_type is T.ARRAY and self._next.token_type is T.L_BRACKET:
            self._advance()
            return self._parse_bracket()
        if self._curr.token_type is T.MAP and self._next.token_type is T.L_BRACE:
            self._advance()
            return self.expression(exp.ToMap(this=self._parse_bracket()))
        return super()._parse_primary()

    def _parse_dollar(self) -> Node:
        """Read a parameter. sqlglot reads `@x` as one."""
        read: Any = DuckDBParser.PLACEHOLDER_PARSERS[T.PARAMETER]
        return read(self) if self._prev.text == "$" else None

    def _parse_ordered(self, parse_method: Any = None) -> exp.Ordered | None:
        """Read a term of ORDER BY, without an order of NULLs if none is written. sqlglot reads no
        DESCENDING.
        """
        this = parse_method() if parse_method else self._parse_disjunction()
        if this is None:
            return None
        if isinstance(this, exp.Column) and this.sql().upper() == "ALL":
            this = exp.var("ALL")
        falling = bool(self._match(T.DESC) or self._match_text_seq("DESCENDING"))
        rising = bool(not falling and (self._match(T.ASC) or self._match_text_seq("ASCENDING")))
        nulls = None
        if self._match_text_seq("NULLS", "FIRST"):
            nulls = True
        elif self._match_text_seq("NULLS", "LAST"):
            nulls = False
        descending = True if falling else False if rising else None
        return exp.Ordered(this=this, desc=descending, nulls_first=nulls)

    def _parse_comprehension(self, this: Node) -> exp.Comprehension | None:
        """Read `x FOR x IN list IF condition`. sqlglot reads no operator in the list."""
        index = self._index
        names = self._parse_csv(self._parse_id_var)
        if not self._match(T.IN):
            self._retreat(index - 1)
            return None
        iterator = self._parse_disjunction()
        condition = self._parse_disjunction() if self._match_text_seq("IF") else None
        name, position = (*names, None)[:2]
        return self.expression(
            exp.Comprehension(
                this=this,
                expression=name,
                position=position,
                iterator=iterator,
                condition=condition,
            )
        )

    def _values_to_select(self, values: exp.Values) -> exp.Select:
        """VALUES as a CTE, by the name that DuckDB gives it."""
        select: exp.Select = super()._values_to_select(values)
        for alias in select.find_all(exp.TableAlias):
            if alias.name == "_values":
                alias.set("this", exp.to_identifier("valueslist"))
        return select

    # -- functions ---------------------------------------------------------------------------------

    def _parse_function_call(self, *given: Any, **options: Any) -> Node:
        """Read a call, and note for its arguments whether `->` in them is a lambda."""
        outer, name = self._lambdas, self._curr
        self._lambdas = name is not None and name.text.lower() in LAMBDA_FUNCTIONS
        try:
            call = super()._parse_function_call(*given, **options)
        finally:
            self._lambdas = outer
        quantifier = None if name is None else _QUANTIFIERS.get(name.token_type)
        if quantifier is not None and isinstance(call, exp.Anonymous):
            # over a list; over a query it is an expression already
            values = call.expressions
            if len(values) == 1:
                return quantifier(this=exp.Paren(this=values[0]))
        return call

    def _parse_lambda(self, alias: bool = False) -> Node:
        """Read an argument of a function. sqlglot reads the `j -> k` of any as a lambda."""
        index, first = self._index, self._curr
        lambda_ = super()._parse_lambda(alias)
        keyword = first is not None and first.text.upper() == "LAMBDA"
        if isinstance(lambda_, exp.Lambda) and not self._lambdas and not keyword:
            self._retreat(index)
            return self._parse_disjunction()
        return lambda_


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


class Generator(DuckDBGenerator):
    """Writer that reproduces text read by `Parser`, except for spaces and case."""

    # sqlglot writes `~ ~a` as `~~a`, and `a << b = c` with parentheses
    TRANSFORMS: ClassVar[dict[Any, Any]] = DuckDBGenerator.TRANSFORMS | {
        exp.BitwiseLeftShift: _binary("<<"),
        exp.BitwiseNot: _prefix("~"),
        exp.BitwiseRightShift: _binary(">>"),
        exp.IgnoreNulls: lambda self, node: f"{self.sql(node, 'this')} IGNORE NULLS",
        exp.Neg: _prefix("-"),
        exp.Pivot: lambda self, node: self.pivot_sql(node),
        exp.RespectNulls: lambda self, node: f"{self.sql(node, 'this')} RESPECT NULLS",
        Infix: lambda self, node: _binary(node.args["operator"])(self, node),
        Prefix: lambda self, node: f"{node.args['operator']} {self.sql(node, 'this')}",
        Verbatim: lambda self, node: node.this,
    }

    MULTI_ARG_DISTINCT = True
    """sqlglot writes count(DISTINCT a, b) with a CASE."""

    def unsupported(self, message: str) -> None:
        raise UnsupportedError(message)

    def extract_sql(self, expression: exp.Extract) -> str:
        """Write EXTRACT. sqlglot computes NANOSECOND, which DuckDB refuses."""
        return f"EXTRACT({self.sql(expression, 'this')} FROM {self.sql(expression, 'expression')})"

    def in_sql(self, expression: exp.In) -> str:
        """Write IN. sqlglot writes `IN a || b` as `IN (a || b)`, a list of one value."""
        field = expression.args.get("field")
        if not isinstance(field, exp.Paren):
            return super().in_sql(expression)
        return f"CONTAINS({self.sql(field.this)}, {self.sql(expression, 'this')})"

    def join_sql(self, expression: exp.Join, join_op: str | None = None) -> str:
        """Write a comma before UNNEST. sqlglot writes JOIN ... ON TRUE, which binds closer."""
        if isinstance(expression.this, exp.Unnest) and not expression.args.get("on"):
            return BaseGenerator.join_sql(self, expression, join_op)
        return super().join_sql(expression, join_op)

    def ordered_sql(self, expression: exp.Ordered) -> str:
        """Write the order of NULLs. sqlglot drops NULLS LAST, for a default that may differ."""
        falling, first = expression.args.get("desc"), expression.args.get("nulls_first")
        order = "" if falling is None else " DESC" if falling else " ASC"
        nulls = "" if first is None else " NULLS FIRST" if first else " NULLS LAST"
        return f"{self.sql(expression, 'this')}{order}{nulls}"

    def tuple_sql(self, expression: exp.Tuple) -> str:
        """Write a tuple. sqlglot writes `(a,)` as `(a)`."""
        if len(expression.expressions) == 1 and not isinstance(expression.parent, exp.Values):
            return f"({self.sql(expression.expressions[0])},)"
        return super().tuple_sql(expression)

    def withingroup_sql(self, expression: exp.WithinGroup) -> str:
        """Write WITHIN GROUP. sqlglot writes it as an order in the call, also where none may be."""
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
