"""Translate BigQuery ML's spellings to our statements.

`CREATE MODEL m OPTIONS (...) AS query` and `SELECT * FROM ML.EVALUATE(MODEL m, (query))` become the
tokens of `TRAIN MODEL m ...` and `EVALUATE MODEL m ...`. Each token keeps the place of the
original, so that errors mark the user's text. After that there is one grammar.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot.tokenizer_core import Token, TokenType

from sqlfl.base.errors import ParseError, nearest
from sqlfl.planner.grammar.explaining import leading
from sqlfl.planner.grammar.foreign import instead
from sqlfl.planner.grammar.spelled_options import SpelledOption, spelled_options
from sqlfl.planner.grammar.spelled_transforms import read_spelled
from sqlfl.planner.grammar.statements import Word
from sqlfl.planner.grammar.tokens import Tokens, at_place, made

_CREATE_FORM = (
    "CREATE [OR REPLACE] MODEL [IF NOT EXISTS] name [TRANSFORM (...)] "
    "OPTIONS (model_type = '...', input_label_cols = ['column'], ...) AS SELECT ..."
)
_AROUND = (
    "take the result and go on from there: result = fed.sql('SELECT * FROM ML...'), then "
    "result.df(), or duckdb.sql('SELECT ... FROM result')"
)
_LABEL = "label"
"""The target where no option says which."""


def respelled(tokens: list[Token], sql: str) -> list[Token]:
    """Return the tokens of our statement; unchanged tokens if they are not BigQuery ML's. Raise
    ParseError, with the nearest form, for a statement without a counterpart.
    """
    words = [token.text.upper() for token in tokens[:8]]
    reader = _Spelling(tokens, sql, leading(words))
    if reader.accept("CREATE", "MODEL"):
        return reader.create(())
    if reader.accept("CREATE", "OR", "REPLACE", "MODEL"):
        return reader.create(("OR", "REPLACE"))
    if reader.word() == "SELECT" and reader.has_call():
        return reader.select()
    return tokens


class _Spelling(Tokens):
    def __init__(self, tokens: list[Token], sql: str, start: int) -> None:
        self.sql, self.tokens, self.at = sql, tokens, start
        self.before = tokens[:start]

    # -- CREATE MODEL ------------------------------------------------------------------------------

    def create(self, replace: Iterable[str]) -> list[Token]:
        first = self.tokens[self.at - 1]
        head = [*replace, "MODEL", *(("IF", "NOT", "EXISTS") * self.accept("IF", "NOT", "EXISTS"))]
        name = self._model_name()
        transforms = read_spelled(self) if self.accept("TRANSFORM") else None
        if self.word() == "AS":
            raise self.fail(
                "expected OPTIONS after the name of the model, got AS", hint=_CREATE_FORM
            )
        clause = self.token
        foreign = instead(self.tokens) if self.word() != "OPTIONS" else None
        self.expect("OPTIONS", "after the name of the model", foreign or _CREATE_FORM)
        options = self._options()
        self.expect("AS", "after OPTIONS (...)", _CREATE_FORM)
        query, rest = self._up_to_semicolon()
        if not query:
            raise self.fail("expected a query after AS, got nothing", hint=_CREATE_FORM)
        assert clause is not None
        kind, target, given = spelled_options(options, clause, self.fail)
        target = self._usual_target(clause, query) if target is None else target
        written = [token for option in given for token in (made(",", option[0]), *option)]
        return [
            *self.before,
            made("TRAIN", first),
            *(made(word, first) for word in head),
            name,
            *(made("USING", kind), kind, made("TARGET", target), target),
            *(transforms.written(target, self.fail) if transforms is not None else ()),
            *((made("WITH", clause), made("(", clause)) if written else ()),
            *written[1:],
            *((made(")", clause),) if written else ()),
            *_query(query),
            *rest,
        ]

    def _up_to_semicolon(self) -> tuple[list[Token], list[Token]]:
        left = self.tokens[self.at :]
        kinds = [token.token_type for token in left]
        end = kinds.index(TokenType.SEMICOLON) if TokenType.SEMICOLON in kinds else len(left)
        return left[:end], left[end:]

    def _model_name(self) -> Token:
        written = self.name("the name of the model")
        if self.word() == ".":
            raise self.fail(
                "a model's name has no dataset before it",
                hint=instead(self.tokens)
                or "models belong to the federation: write the last name alone",
                span=(written.span[0], self.span()[1]),
            )
        return self.tokens[self.at - 1]

    def _options(self) -> list[SpelledOption]:
        self.expect("(", "after OPTIONS", _CREATE_FORM)
        options: list[SpelledOption] = []
        while not self.accept(")"):
            if options:
                self.expect(",", "or ) after an option", _CREATE_FORM)
            name = self.name("the name of an option")
            self.expect("=", f"after {name}", _CREATE_FORM)
            value = self._value()
            if not value:
                raise self.fail(f"expected a value for option {name}, got {self.got()}")
            options.append(SpelledOption(Word(name.lower(), name.span), tuple(value)))
        return options

    def _value(self) -> list[Token]:
        """Read tokens up to the next comma or the end of the options."""
        depth, tokens = 0, []
        while self.token is not None:
            word = self.word()
            if depth == 0 and word in (",", ")", "AS"):
                break
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(word, 0)
            tokens.append(self.token)
            self.at += 1
        return tokens

    def _usual_target(self, clause: Token, query: list[Token]) -> Token:
        """`label`, as in BigQuery, where the query may have a column of that name."""
        if not any(t.text.lower() == _LABEL or t.text == "*" for t in query):
            raise self.fail(
                "OPTIONS does not say which column is to be predicted",
                hint=f"input_label_cols = ['column'], or give it the name {_LABEL} in the query",
                span=self.span(clause),
            )
        return at_place(TokenType.IDENTIFIER, _LABEL, clause, clause)

    # -- SELECT * FROM ML.FUNCTION(...) ------------------------------------------------------------

    def has_call(self) -> bool:
        """Return whether a function of ML stands in FROM."""
        words = [token.text.upper() for token in self.tokens]
        return any(
            (words[n], words[n + 1], words[n + 3]) == ("ML", ".", "(")
            and words[n - 1] in ("FROM", "JOIN", ",")
            for n in range(self.at + 1, len(words) - 3)
        )

    def select(self) -> list[Token]:
        if not self.accept("SELECT", "*", "FROM", "ML", "."):
            raise self.fail("only SELECT * FROM ML.function(...) is taken", hint=_AROUND)
        token = self.token
        written = self.name("a function after ML.")
        function = written.upper()
        if function not in _FUNCTIONS:
            raise self._unknown(function, written)
        self.expect("(", f"after ML.{function}")
        self.expect("MODEL", f"after ML.{function}(", _form(function))
        model, query, struct = self._model_name(), None, None
        if self.accept(","):
            query = self._rows(function)
        if self.accept(","):
            struct = self._struct(function)
        self.expect(")", f"after the arguments of ML.{function}", _form(function))
        statement, rest = self._up_to_semicolon()
        if statement:
            raise self.fail(
                f"only SELECT * FROM ML.{function}(...) is taken, got {self.got()} after it",
                hint=_AROUND,
            )
        assert token is not None
        words, rows = _FUNCTIONS[function]
        mapped = self._mapped(function, words, rows, (token, model), query, struct)
        return [*self.before, *mapped, *rest]

    def _mapped(
        self,
        function: str,
        words: tuple[str, ...],
        rows: bool,
        named: tuple[Token, Token],
        query: list[Token] | None,
        threshold: Token | None,
    ) -> list[Token]:
        token, model = named
        if rows and query is None:
            raise self.fail(
                f"ML.{function} needs rows: a model keeps no rows of its training",
                hint=f"{_form(function)}; DESCRIBE MODEL {model.text} has the metrics of training",
                span=self.span(token),
            )
        if query is not None and not rows:
            raise self.fail(f"ML.{function} takes a model alone", hint=_form(function),
                            span=self.span(query[0]))  # fmt: skip
        if threshold is None:
            at = []
        elif function in _THRESHOLDS:
            words = _THRESHOLDS[function]
            at = [made("AT", threshold), threshold]
        else:
            raise self.fail(f"ML.{function} takes no threshold", hint=_form(function),
                            span=self.span(threshold))  # fmt: skip
        heads = [made(word, token) for word in words]
        return [*heads, model, *at, *(_query(query) if query is not None else ())]

    def _unknown(self, function: str, written: Word) -> ParseError:
        close = nearest(function, _FUNCTIONS)
        listed = f"there are {', '.join(f'ML.{name}' for name in _FUNCTIONS)}"
        return self.fail(
            f"there is no function ML.{function}",
            hint=_INSTEAD.get(function) or (f"did you mean ML.{close}?" if close else listed),
            span=written.span,
        )

    def _rows(self, function: str) -> list[Token]:
        """The tokens of the query that an argument is."""
        start = self.at
        if self.accept("TABLE"):
            first = self.tokens[start]
            self.name("the name of a table")
            while self.accept("."):
                self.name("a name after the point")
            return [made("FROM", first), *self.tokens[start + 1 : self.at]]
        if self.word() != "(":
            raise self.fail(
                f"expected (SELECT ...) or TABLE party.table, got {self.got()}",
                hint=_form(function),
            )
        tokens = self._value()
        if tokens[-1].text != ")":
            raise self.fail("the parenthesis of the query is not closed", span=self.span(tokens[0]))
        return tokens[1:-1] or tokens

    def _struct(self, function: str) -> Token:
        """The number of STRUCT(number AS threshold)."""
        if not self.accept("STRUCT", "("):
            curve = function == "ROC_CURVE"
            hint = (
                "ROC OF MODEL name WITH (points = n) FROM (SELECT ...)"
                if curve
                else _form(function)
            )
            raise self.fail(f"{self.got()} is not taken here", hint=hint)
        number = self.token
        if self.digits_ahead():
            self.at += 1
        if number is None or not self.accept("AS", "THRESHOLD", ")"):
            raise self.fail(
                f"expected STRUCT(number AS threshold), got STRUCT({self.got()}",
                hint=_form(function),
            )
        return number

    def digits_ahead(self) -> bool:
        return self.token is not None and self.token.token_type is TokenType.NUMBER


def _query(tokens: list[Token]) -> list[Token]:
    """FROM ( query )"""
    return [made("FROM", tokens[0]), *in_parentheses(tokens)]


def in_parentheses(tokens: list[Token]) -> list[Token]:
    """The parentheses stand right around the tokens."""
    first, last = tokens[0], tokens[-1]
    before, after = first.start - 1, last.end + 1
    opening = Token(TokenType.L_PAREN, "(", first.line, first.col, before, before)
    closing = Token(TokenType.R_PAREN, ")", last.line, last.col, after, after)
    return [opening, *tokens, closing]


_OF = ("OF", "MODEL")
_FUNCTIONS: dict[str, tuple[tuple[str, ...], bool]] = {
    "EVALUATE": (("EVALUATE", "MODEL"), True),
    "PREDICT": (("PREDICT", "MODEL"), True),
    "EXPLAIN_PREDICT": (("CONTRIBUTIONS", *_OF), True),
    "ROC_CURVE": (("ROC", *_OF), True),
    "CONFUSION_MATRIX": (("CONFUSION", *_OF), True),
    "VALIDATE_DATA_SKEW": (("SKEW", *_OF), True),
    "WEIGHTS": (("WEIGHTS", *_OF), False),
    "TRAINING_INFO": (("HISTORY", *_OF), False),
    "FEATURE_INFO": (("FEATURES", *_OF), False),
}
"""The words before the model's name, and whether it takes rows."""
_THRESHOLDS = {"EVALUATE": ("METRICS", *_OF), "CONFUSION_MATRIX": ("CONFUSION", *_OF)}
"""The words where a threshold is given."""
_INSTEAD = {
    "ADVANCED_WEIGHTS": "ML.WEIGHTS(MODEL name) has the weights",
    "TRIAL_INFO": "each model is trained by a statement of its own: SHOW MODELS lists them",
}


def _form(function: str) -> str:
    rows = ", (SELECT ...)" if _FUNCTIONS[function][1] else ""
    return f"SELECT * FROM ML.{function}(MODEL name{rows})"
