"""Parser of DuckDB's expressions, on sqlglot's parser.

Functions keep their names and arguments; types and literals keep their text. sqlglot changes the
meaning of some of them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import Token
from sqlglot.tokenizer_core import TokenType as T

from sqlfl.planner.grammar.precedence import Node, Operators
from sqlfl.planner.grammar.trees import Verbatim

LAMBDA_FUNCTIONS = frozenset((
    "apply", "array_apply", "array_filter", "array_reduce", "array_transform", "filter",
    "list_apply", "list_filter", "list_reduce", "list_transform", "reduce",
))  # fmt: skip
"""In their arguments `x -> y` is a lambda, as before DuckDB 2; elsewhere `->` belongs to JSON."""


NAMES = frozenset((
    "APPLY", "CURRENT_CATALOG", "CURRENT_DATE", "CURRENT_ROLE", "CURRENT_SCHEMA", "CURRENT_TIME",
    "CURRENT_TIMESTAMP", "CURRENT_USER", "DIV", "LOCALTIME", "LOCALTIMESTAMP", "REGEXP", "RLIKE",
    "SESSION_USER", "STRAIGHT_JOIN", "XOR",
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
    HEX_STRINGS: ClassVar[list[Any]] = [("x'", "'"), ("X'", "'")]
    BIT_STRINGS: ClassVar[list[Any]] = [("b'", "'"), ("B'", "'")]
    IDENTIFIERS: ClassVar[list[Any]] = ['"', "`"]
    KEYWORDS: ClassVar[dict[str, T]] = {
        word: token
        for word, token in DuckDB.Tokenizer.KEYWORDS.items()
        if word not in NAMES and "?" not in word
    }


_QUANTIFIERS: dict[Any, type[exp.Expr]] = {T.ALL: exp.All, T.SOME: exp.Any}
"""Reserved words of DuckDB: other things have such names only in quotes."""


class Parser(Operators):
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
    NO_PAREN_FUNCTIONS: ClassVar[dict[T, Any]] = {}
    NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: DuckDBParser.NO_PAREN_FUNCTION_PARSERS[name] for name in ("ANY", "CASE")
    }
    PRIMARY_PARSERS: ClassVar[dict[T, Any]] = DuckDBParser.PRIMARY_PARSERS | dict.fromkeys(
        (T.NUMBER, T.HEX_STRING, T.BIT_STRING, T.BYTE_STRING, T.HEREDOC_STRING), _written
    )
    PLACEHOLDER_PARSERS: ClassVar[dict[T, Any]] = {
        T.PLACEHOLDER: DuckDBParser.PLACEHOLDER_PARSERS[T.PLACEHOLDER],
        T.PARAMETER: lambda self: self._parse_dollar(),
    }
    ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}
    TYPE_LITERAL_PARSERS: ClassVar[dict[Any, Any]] = {}
    TYPE_CONVERTERS: ClassVar[dict[Any, Any]] = {}

    _lambdas = False
    """True if the parser is in the arguments of one of LAMBDA_FUNCTIONS."""

    def _warn_unsupported(self) -> None:
        """Write nothing to the log: an error says what is not expected."""

    # -- operands
    # -------------------------------------------------------------------------------------

    def _parse_type(
        self, parse_interval: bool = True, fallback_to_identifier: bool = False
    ) -> Node:
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
        """Read the type by its text, whose meaning DuckDB knows."""
        start = self._index
        type_ = super()._parse_types(*given, **options)
        if not isinstance(type_, exp.DataType):
            return type_
        tokens = self._tokens[start : self._index]
        text = self.sql[tokens[0].start : tokens[-1].end + 1]
        return exp.DataType(this=exp.DType.USERDEFINED, kind=text)

    def _parse_user_defined_type(self, identifier: exp.Identifier) -> exp.DataType:
        """Skip the type's name, which is not read as SQL: quotes may stand in it."""
        while self._match(T.DOT):
            self._advance_any()
        return exp.DataType(this=exp.DType.USERDEFINED, kind=identifier.name)

    def _parse_interval(
        self, require_interval: bool = True, parse_function_unit: bool = True
    ) -> exp.Interval | None:
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
        """The arguments of EXTRACT."""
        part = self._parse_string() or self._parse_var(any_token=True)
        if not self._match(T.FROM):
            self.raise_error("Expected FROM after EXTRACT's part", self._prev)
        return self.expression(exp.Extract(this=part, expression=self._parse_disjunction()))

    def _parse_words(self, name: str, *words: str) -> exp.Expr:
        """Arguments between commas, then some after words; SUBSTRING(x FOR 2) starts at 1."""
        arguments = self._parse_csv(self._parse_disjunction)
        if len(arguments) == 1:
            for word in words:
                if self._match_text_seq(word):
                    arguments += [self._parse_disjunction() or exp.null()]
                elif name == "SUBSTRING" and word == "FROM" and self._curr.text.upper() == "FOR":
                    arguments.append(exp.Literal.number(1))
        return self.expression(exp.Anonymous(this=name, expressions=arguments))

    def _parse_place(self) -> exp.Expr:
        """The arguments of POSITION."""
        part = self._parse_bitwise()
        if not self._match(T.IN):
            self.raise_error("Expected IN in POSITION", self._curr)
        whole = self._parse_disjunction()
        return self.expression(exp.Anonymous(this="STRPOS", expressions=[whole, part]))

    def _parse_ends(self) -> exp.Expr:
        """The arguments of TRIM."""
        names = {"LEADING": "LTRIM", "TRAILING": "RTRIM", "BOTH": "TRIM"}
        name = "TRIM"
        if self._match_texts(names):
            name = names[self._prev.text.upper()]
        first = [] if self._curr.token_type is T.FROM else self._parse_csv(self._parse_disjunction)
        if self._match(T.FROM):
            first = [*self._parse_csv(self._parse_disjunction), *first]
        return self.expression(exp.Anonymous(this=name, expressions=first))

    def _parse_primary(self) -> Node:
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
        read: Any = DuckDBParser.PLACEHOLDER_PARSERS[T.PARAMETER]
        return read(self) if self._prev.text == "$" else None

    def _parse_ordered(self, parse_method: Any = None) -> exp.Ordered | None:
        """Read an expression of ORDER BY, without an order of NULLs if none is written."""
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
        """An argument of a function."""
        index, first = self._index, self._curr
        lambda_ = super()._parse_lambda(alias)
        keyword = first is not None and first.text.upper() == "LAMBDA"
        if isinstance(lambda_, exp.Lambda) and not self._lambdas and not keyword:
            self._retreat(index)
            return self._parse_disjunction()
        return lambda_
