"""Translate `OPTIONS (...)` of BigQuery's CREATE MODEL to a kind, a target and options of WITH."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlglot.tokenizer_core import Token, TokenType

from sqlfl.base.errors import ParseError
from sqlfl.planner.grammar.statements import Span, Word
from sqlfl.planner.grammar.tokens import at_place, made

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
        what = f"{name} = {option.shown}" if name in _CHOICES and option.word else name
        raise fail(f"{what} has no counterpart", hint=_NONE[name], span=option.span)
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
