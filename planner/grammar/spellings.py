"""Translate BigQuery ML's spellings to our statements.

`CREATE MODEL m OPTIONS (...) AS query` and `SELECT * FROM ML.EVALUATE(MODEL m, (query))` become the
tokens of `TRAIN MODEL m ...` and `EVALUATE MODEL m ...`. Each token keeps the place of the
original, so that errors mark the user's text. After that there is one grammar.
`OPTIONS (...)` become a kind, a target and options of WITH; `TRANSFORM (...)` becomes ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlglot.tokenizer_core import Token, TokenType

from sqlfl.base.errors import ParseError, nearest
from sqlfl.planner.grammar.foreign import instead
from sqlfl.planner.grammar.statements import Span, Word, leading
from sqlfl.planner.grammar.tokens import Tokens, at_place, made

Fail = Callable[..., ParseError]
"""The error of a message, with `hint` and `span`."""
Written = list[Token]
"""`name = value`, in tokens."""


@dataclass(frozen=True)
class SpelledOption:
    name: Word
    """The name, in lower case."""
    value: tuple[Token, ...]
    """Its tokens, at least one."""

    @property
    def span(self) -> Span:
        return self.value[0].start, self.value[-1].end + 1

    @property
    def word(self) -> str:
        """The value, a text or a constant, in upper case; empty for other values."""
        return self.value[0].text.upper() if len(self.value) == 1 else ""

    @property
    def shown(self) -> str:
        text = self.value[0].token_type is TokenType.STRING
        return f"'{self.value[0].text}'" if text else self.word

    def written(self, name: str, *value: Token) -> Written:
        """Return our option of this name, with this value, or by default with the same value."""
        line, column, (start, end) = self.value[0].line, self.value[0].col, self.name.span
        token = Token(TokenType.VAR, name, line, column, start, end - 1)
        return [token, made("=", token), *(value or self.value)]

    def literal(self, text: str) -> Token:
        """A text in the place of the value."""
        return at_place(TokenType.STRING, text, self.value[0], self.value[-1])

    def number(self, digits: str) -> Token:
        return at_place(TokenType.NUMBER, digits, self.value[0], self.value[-1])


KINDS = {
    "LINEAR_REG": "linear_regression",
    "LOGISTIC_REG": "logistic_regression",
    "DNN_REGRESSOR": "mlp_regressor",
    "DNN_CLASSIFIER": "mlp_classifier",
}
"""model_type -> our kind."""
_NO_KINDS = (
    "ARIMA", "AUTOENCODER", "AUTOML", "BOOSTED_TREE", "CONTRIBUTION", "DNN_LINEAR", "KMEANS",
    "MATRIX", "ONNX", "PCA", "RANDOM_FOREST", "TENSORFLOW", "TRANSFORM", "XGBOOST",
)  # fmt: skip
"""Beginnings of model types without a counterpart."""
_SAME = {
    "l2_reg": "l2",
    "max_iterations": "epochs",
    "learn_rate": "learning_rate",
    "hidden_units": "hidden",
    "data_split_eval_fraction": "validation_fraction",
    "min_rel_progress": "tolerance",
}
"""Options with the same values as ours."""
_CHOICES: Mapping[str, Mapping[str, tuple[str, str] | None]] = {
    "activation_fn": {
        "RELU": ("activation", "relu"),
        "TANH": ("activation", "tanh"),
        "GELU": ("activation", "gelu"),
    },
    "optimizer": {
        "ADAM": ("optimizer", "adam"),
        "SGD": ("optimizer", "plain"),
        "PLAIN": ("optimizer", "plain"),
        "MOMENTUM": ("optimizer", "momentum"),
    },
    "learn_rate_strategy": {
        "CONSTANT": ("schedule", "constant"),
        "LINE_SEARCH": ("algorithm", "lbfgs"),
    },
    "optimize_strategy": {
        "AUTO_STRATEGY": None,
        "BATCH_GRADIENT_DESCENT": ("algorithm", "sgd"),
    },
    "category_encoding_method": {"ONE_HOT_ENCODING": None},
    "auto_class_weights": {"TRUE": ("class_weight", "balanced"), "FALSE": None},
    "fit_intercept": {"TRUE": None},
    "standardize_features": {"TRUE": None},
    "enable_global_explain": {"FALSE": None},
    "calculate_p_values": {"FALSE": None},
    "warm_start": {"FALSE": None},
}
"""Options with few values: the counterpart of each; None for the default behaviour."""
_NONE: Mapping[str, str] = {
    "l1_reg": "a model with few columns is USING lasso: model_type = 'lasso', radius = ...",
    "ls_init_learn_rate": "lbfgs, the usual algorithm, finds its own steps",
    "data_split_col": "train and evaluate on queries with WHERE, or set validation_fraction",
    "num_trials": "train one model for each setting, and compare them in SHOW MODELS",
    "hparam_tuning_algorithm": "train one model for each setting, and compare them",
    "model_registry": "a model's parts stay with their parties: docs/models.md",
    "vertex_ai_model_id": "a model's parts stay with their parties: docs/models.md",
    "kms_key_name": "a party's own file keeps its part: docs/models.md",
    "tf_version": "towers are trained with torch",
    "trial_budget_hours": "epochs and patience say when training ends",
    "enable_global_explain": "leave it out",
    "calculate_p_values": "leave it out",
    "fit_intercept": "there is an intercept in each model",
    "standardize_features": "columns are standardised in each model",
    "category_encoding_method": "texts are categories, each with a weight of its own",
    "warm_start": "ours names the model to start from: warm_start = 'name'",
    "optimize_strategy": "ours is algorithm = 'lbfgs', 'sgd', 'admm' or 'pbm'",
    "learn_rate_strategy": "ours is schedule = 'constant', 'inverse', 'exponential' or 'cosine'",
    "activation_fn": "ours is activation = 'relu', 'tanh' or 'gelu'",
    "optimizer": "there are 'adam', 'plain' and 'momentum'",
    "auto_class_weights": "it is TRUE or FALSE",
}
"""Options, or values of those above, without a counterpart -> a hint."""


def spelled_options(
    options: Sequence[SpelledOption], clause: Token, fail: Fail
) -> tuple[Token, Token | None, list[Written]]:
    """Return the kind, the target (None without one) and options of WITH, in tokens.

    Our own options stay unchanged. Raises ParseError for options without a counterpart.
    """
    named: dict[str, SpelledOption] = {}
    for option in options:
        if option.name in named:
            raise fail(f"option {option.name} is given twice", span=option.name.span)
        named[option.name] = option
    kind = _kind(named, clause, fail)
    target = _target(named, fail)
    given = [
        written_option
        for option in named.values()
        for written_option in _given(option, named, fail)
    ]
    return kind, target, given


def _kind(named: dict[str, SpelledOption], clause: Token, fail: Fail) -> Token:
    option = named.pop("model_type", None)
    listed = ", ".join(KINDS)
    if option is None:
        raise fail(
            "OPTIONS does not say what kind of model",
            hint=f"model_type = '...': {listed}, or a kind of ours such as 'poisson_regression'",
            span=(clause.start, clause.end + 1),
        )
    if len(option.value) > 1 or option.value[0].token_type is not TokenType.STRING:
        raise fail(f"model_type must be a text, such as '{listed.partition(',')[0]}'",
                   span=option.span)  # fmt: skip
    if option.word.startswith(_NO_KINDS):
        raise fail(
            f"model_type = '{option.word}' has no counterpart",
            hint=f"there are {listed}, and kinds of ours such as 'lasso'",
            span=option.span,
        )
    kind = KINDS.get(option.word, option.word.lower())
    return at_place(TokenType.IDENTIFIER, kind, option.value[0], option.value[0])


def _target(named: dict[str, SpelledOption], fail: Fail) -> Token | None:
    option = named.pop("input_label_cols", None)
    if option is None:
        return None
    texts = [token for token in option.value if token.token_type is TokenType.STRING]
    if len(texts) > 1:
        raise fail("a model has one target", hint="train one model for each", span=option.span)
    if not texts or [t.text for t in option.value] not in (["[", texts[0].text, "]"],
                                                           [texts[0].text]):  # fmt: skip
        raise fail("input_label_cols must be a list of one text",
                   hint="input_label_cols = ['column']", span=option.span)  # fmt: skip
    return at_place(TokenType.IDENTIFIER, texts[0].text, texts[0], texts[0])


def _given(option: SpelledOption, named: Mapping[str, SpelledOption], fail: Fail) -> list[Written]:
    name = option.name
    if name in _SAME:
        return [option.written(_SAME[name])]
    if name == "class_weights":
        return [option.written("class_weight", *_weights(option, fail))]
    if name == "early_stop" and option.word == "TRUE":
        return []
    if name == "early_stop" and option.word == "FALSE":
        if "min_rel_progress" in named:
            raise fail("min_rel_progress says nothing with early_stop = FALSE",
                       hint="leave one of them out", span=option.span)  # fmt: skip
        return [option.written("tolerance", option.number("0"))]
    if name == "data_split_method":
        return _split(option, named, fail)
    if name == "l1_reg" and option.word.strip("0.") == "" and option.word:
        return []
    if name in _CHOICES and option.word in _CHOICES[name]:
        chosen = _CHOICES[name][option.word]
        return [] if chosen is None else [option.written(chosen[0], option.literal(chosen[1]))]
    if name == "warm_start" and option.value[0].token_type is TokenType.STRING:
        return [option.written(name)]
    if name in _NONE:
        shown = f"{name} = {option.shown}" if name in _CHOICES and option.word else name
        raise fail(f"{shown} has no counterpart", hint=_NONE[name], span=option.span)
    return [option.written(name)]


def _split(option: SpelledOption, named: Mapping[str, SpelledOption], fail: Fail) -> list[Written]:
    fraction = "data_split_eval_fraction" in named
    if option.word == "NO_SPLIT" and not fraction:
        return [option.written("validation_fraction", option.number("0"))]
    if option.word == "RANDOM":
        return [] if fraction else [option.written("validation_fraction", option.number("0.2"))]
    raise fail(
        f"data_split_method = '{option.word or '...'}' has no counterpart",
        hint="ours is validation_fraction = 0.2: rows for validation are drawn at random",
        span=option.span,
    )


def _weights(option: SpelledOption, fail: Fail) -> list[Token]:
    """`[STRUCT('a', 0.2), ...]`, or `[('a', 0.2), ...]`, as `{'a': 0.2, ...}`."""
    rewritten = [made("{", option.value[0])]
    tokens, at = [t for t in option.value if t.text.upper() != "STRUCT"], 1
    while at < len(tokens) - 1:
        piece = tokens[at : at + 5]
        if [t.text for t in piece[::2]] != ["(", ",", ")"]:
            raise fail(
                "class_weights must be a list of classes and their weights",
                hint="class_weights = [STRUCT('yes', 5), STRUCT('no', 1)], or ours: "
                "class_weight = {'yes': 5, 'no': 1}",
                span=option.span,
            )
        rewritten += [piece[1], made(":", piece[2]), piece[3]]
        at += 6
        if at < len(tokens):
            rewritten.append(made(",", piece[4]))
    return [*rewritten, made("}", option.value[-1])]


# -- TRANSFORM (...) -------------------------------------------------------------------------------

_FORM = "TRANSFORM (column, ML.FUNCTION(column, ...) OVER () AS name, ...)"


@dataclass(frozen=True)
class _Function:
    name: str
    """Our name of the function."""
    arguments: int = 0
    """Behind the columns, at most."""
    struct: bool = False
    """True if its columns stand in STRUCT(...)."""


_TRANSFORMS = {
    "STANDARD_SCALER": _Function("standardize"),
    "MIN_MAX_SCALER": _Function("minmax"),
    "ROBUST_SCALER": _Function("robust_scale"),
    "BUCKETIZE": _Function("bucketize", 1),
    "QUANTILE_BUCKETIZE": _Function("quantile_bucketize", 1),
    "HASH_BUCKETIZE": _Function("hash_bucket", 1),
    "ONE_HOT_ENCODER": _Function("one_hot"),
    "IMPUTER": _Function("impute", 1),
    "POLYNOMIAL_EXPAND": _Function("polynomial", 1, struct=True),
    "FEATURE_CROSS": _Function("cross", 1, struct=True),
}
_TRANSFORM_HINTS = {
    "LABEL_ENCODER": "texts are categories, each with a weight of its own: ML.ONE_HOT_ENCODER",
    "MAX_ABS_SCALER": "ML.MIN_MAX_SCALER, or divide in the query: x / 100 AS x",
    "NORMALIZER": "compute it in the query: SELECT expression AS name",
}
_MORE = {
    "one_hot": "categories at most: TRAIN MODEL ... TRANSFORM (one_hot(c, max => 50))",
    "robust_scale": "it takes the median, and the distance of the quartiles",
}
"""Hints for further arguments."""


@dataclass(frozen=True)
class SpelledTransforms:
    first: Token
    """The word TRANSFORM."""
    items: tuple[tuple[Token | None, tuple[Token, ...]], ...]
    """The column, for an item that is one, and each item in our tokens."""
    rest: bool
    """Columns that no item has are features too: `*`."""

    def written(self, target: Token, fail: Fail) -> list[Token]:
        """Return the clause, without the target, which is no feature."""
        kept = [tokens for column, tokens in self.items if not _same(column, target)]
        if not kept and self.rest:
            return []
        if not kept:
            raise fail(
                "TRANSFORM has no feature",
                hint="name the columns that are to be features, or * for all",
                span=(self.first.start, self.first.end + 1),
            )
        head = ["TRANSFORM", *(() if self.rest else ("ONLY",)), "("]
        items = [t for tokens in kept for t in (made(",", self.first), *tokens)]
        return [*(made(word, self.first) for word in head), *items[1:], made(")", self.first)]


def _same(column: Token | None, target: Token) -> bool:
    return column is not None and column.text.lower() == target.text.lower()


def read_spelled(tokens: Tokens) -> SpelledTransforms:
    """Read the clause after the word TRANSFORM, the token before."""
    first = tokens.tokens[tokens.at - 1]
    tokens.expect("(", "after TRANSFORM", _FORM)
    items: list[tuple[Token | None, tuple[Token, ...]]] = []
    rest = False
    while True:
        if tokens.accept("*"):
            rest = True
            if tokens.word() in ("EXCEPT", "REPLACE", "EXCLUDE"):
                raise tokens.fail(
                    f"* {tokens.word()} is not taken in TRANSFORM",
                    hint="leave the columns out of the query, or name those that are features",
                )
        else:
            items.append(_item(tokens))
        if not tokens.accept(","):
            break
    if not tokens.accept(")"):
        raise tokens.fail(
            f"expected a comma or ) after an item of TRANSFORM, got {tokens.got()}",
            hint="of expressions only ML's functions are taken; compute others in the query: "
            "AS SELECT expression AS name, ...",
        )
    return SpelledTransforms(first, tuple(items), rest)


def _item(tokens: Tokens) -> tuple[Token | None, tuple[Token, ...]]:
    start = tokens.at
    if (tokens.word(), tokens.word(1)) != ("ML", "."):
        tokens.name("a column, or ML.FUNCTION(...)")
        alone = tokens.tokens[start]
        if tokens.word() not in (",", ")", "AS", ""):
            raise tokens.fail(
                "of expressions TRANSFORM takes ML's functions only",
                hint="compute others in the query: AS SELECT expression AS name, ...",
                span=tokens.span(alone),
            )
        renamed = _alias(tokens)
        return (None if renamed else alone), (alone, *renamed)
    tokens.at += 2
    named = tokens.token
    written = tokens.name("a function after ML.").upper()
    function = _TRANSFORMS.get(written)
    if function is None or named is None:
        near = nearest(written, _TRANSFORMS)
        listed = f"there are {', '.join(f'ML.{name}' for name in _TRANSFORMS)}"
        raise tokens.fail(
            f"TRANSFORM has no function ML.{written}",
            hint=_TRANSFORM_HINTS.get(written) or (f"did you mean ML.{near}?" if near else listed),
            span=tokens.span(named),
        )
    tokens.expect("(", f"after ML.{written}", _FORM)
    columns = _columns(tokens, written, function)
    arguments = _arguments(tokens, written, function)
    if function.name == "cross":
        _check_cross(tokens, columns, arguments)
        arguments = []
    if tokens.accept("OVER"):
        tokens.expect("(", "after OVER")
        tokens.expect(")", "after OVER (", "a function of TRANSFORM is of all rows: OVER ()")
    inner = [t for column in columns for t in (made(",", named), column)][1:]
    if function.name == "polynomial" and len(columns) > 1:
        inner = [made("(", named), *inner, made(")", named)]
    more = [t for argument in arguments for t in (made(",", named), *argument)]
    call = [made(function.name, named), made("(", named), *inner, *more, made(")", named)]
    return None, (*call, *_alias(tokens))


def _alias(tokens: Tokens) -> list[Token]:
    start = tokens.at
    if not tokens.accept("AS"):
        return []
    tokens.name("the name of what is made")
    return tokens.tokens[start : tokens.at]


def _columns(tokens: Tokens, written: str, function: _Function) -> list[Token]:
    struct = tokens.accept("STRUCT")
    if struct != function.struct:
        wanted = "STRUCT(column, ...)" if function.struct else "a column"
        raise tokens.fail(f"expected {wanted} in ML.{written}(, got {tokens.got()}", hint=_FORM)
    if struct:
        tokens.expect("(", "after STRUCT")
    columns = [_column(tokens, written)]
    while struct and tokens.accept(","):
        columns.append(_column(tokens, written))
    if struct:
        tokens.expect(")", "after the columns of STRUCT")
    return columns


def _column(tokens: Tokens, written: str) -> Token:
    tokens.name(f"a column of ML.{written}")
    if tokens.word() not in (",", ")", ""):
        raise tokens.fail(
            f"ML.{written} takes output columns of the query, got {tokens.got()}",
            hint="compute it in the query: AS SELECT expression AS name, ...",
        )
    return tokens.tokens[tokens.at - 1]


def _arguments(tokens: Tokens, written: str, function: _Function) -> list[list[Token]]:
    """Up to the closing parenthesis."""
    groups: list[list[Token]] = []
    while tokens.accept(","):
        start, depth = tokens.at, 0
        while tokens.token is not None and (depth or tokens.word() not in (",", ")")):
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(tokens.word(), 0)
            tokens.at += 1
        groups.append(tokens.tokens[start : tokens.at])
        if not groups[-1]:
            raise tokens.fail(f"expected an argument of ML.{written}, got {tokens.got()}")
        if len(groups) > function.arguments:
            raise tokens.fail(
                f"ML.{written} takes no further argument here",
                hint=_MORE.get(function.name, _FORM),
                span=(groups[-1][0].start, groups[-1][-1].end + 1),
            )
    tokens.expect(")", f"after the arguments of ML.{written}", _FORM)
    return groups


def _check_cross(tokens: Tokens, columns: list[Token], arguments: list[list[Token]]) -> None:
    """Raise ParseError unless crosses of several columns are pairs, or have `degree` columns."""
    degree = [token.text for argument in arguments for token in argument] or ["2"]
    if degree != [str(len(columns))]:
        raise tokens.fail(
            f"ML.FEATURE_CROSS of {len(columns)} columns makes several columns",
            hint="write an item for each: ML.FEATURE_CROSS(STRUCT(a, b)) AS a_b, ...",
            span=(columns[0].start, columns[-1].end + 1),
        )


# -- statements ------------------------------------------------------------------------------------

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
