"""The options of WITH. Each is defined once, beside its field.

Several methods have the options `union` and `stragglers`; their other options are in `methods`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

from sqlfl.base.errors import InternalError
from sqlfl.contract.methods import methods, part_of
from sqlfl.models.kinds import CLASSIFIERS, KINDS, MOMENTS, NEURAL, USUAL, kind_of, trains
from sqlfl.options.entries import (
    DEPENDS,
    Defaults,
    Entry,
    MethodOptions,
    Needs,
    OptionTable,
    Setting,
    entries_of,
    listed,
    markdown,
    option,
)
from sqlfl.options.privacy import PRIVACY
from sqlfl.options.types import (
    BOOLEAN,
    CLASS_WEIGHT,
    FRACTION,
    LENGTH,
    MAX_WIDTH,
    MODEL,
    NETWORK,
    SECONDS,
    SIZE,
    WIDTHS,
    ClassWeight,
    OptionType,
    choice,
    integer,
    number,
)
from sqlfl.transport.network import Network

# The option `union`: how the clients of one slot combine their results.

EXACT, CONSENSUS, SECURE = "exact", "consensus", "secure"
SECRET = (
    "how results of one table's databases are summed: with 'secure' the coordinator receives only "
    "sums of gradients, second moments and statistics"
)
UNION: OptionType[str] = choice(EXACT, CONSENSUS, SECURE)


def summing(union: str, algorithm: str) -> tuple[str, str, str | None] | None:
    """Return the conflict of `union` with a method whose clients only sum gradients, or None."""
    if union != CONSENSUS:
        return None
    hint = "consensus is of algorithm = 'admm'"
    return "union", f"'{EXACT}' or '{SECURE}' with algorithm '{algorithm}'", hint


# The option `stragglers`: how long a step waits for late clients.

WAIT = "wait"
ALL = 0.0
"""The value that means waiting for all clients. It is a number because requests carry it as JSON.
"""
WORDS = (
    "time that a step waits for parties, for one in any case. It then uses late parties' latest "
    "predictions"
)
EXCLUDED = {
    "patience": "a party that was late no longer has the parameters of the best epoch",
    "network": "it is computed for rounds in which all parties answer",
}
"""Options that do not go with a length of time -> why."""
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)", re.IGNORECASE)


def _read(value: object) -> float | None:
    """Return seconds; ALL for waiting until all have answered."""
    text = value.strip().lower() if isinstance(value, str) else ""
    if text == WAIT:
        return ALL
    match = _TIME.fullmatch(text)
    unit = None if match is None else SECONDS.get(match[2])
    seconds = float(match[1]) * unit if match and unit else 0.0
    return seconds if 0.0 < seconds < math.inf else None


def _advise(value: object) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"'{value:g} s' for seconds"
    return None


def _written(seconds: float) -> str | None:
    return None if seconds == ALL else f"{seconds:g} s"


STRAGGLERS: OptionType[float] = OptionType(
    "'wait', or a length of time such as '30 s'", _read, _advise, _written
)


MAX_TABLE_ROWS = 2**31 - 1
"""Maximum rows of a table, and of joined rows that are stored: mappings number rows by int32."""
MAX_JOINED_ROWS = 2**32 - 1
"""Maximum joined rows: 4 bytes carry the number of joined rows of a row."""

Own = TypeVar("Own", bound=MethodOptions)


_METHOD: OptionType[str] = OptionType("a method", lambda value: None)
"""A placeholder until the methods are known: see `option_lines`."""


def options_of(method: str) -> type[MethodOptions]:
    """Return the class of the method's options."""
    options: type[MethodOptions] = part_of(method, "options")
    return options


@dataclass(frozen=True, kw_only=True)
class TowerOptions:
    """Options of a neural model's towers."""

    # fmt: off
    hidden: tuple[int, ...] = option(WIDTHS, (16,),
        "widths of the hidden layers of each table position's tower", kinds=NEURAL)
    activation: str = option(choice("relu", "tanh", "gelu"), "relu",
        "function of the hidden units; the towers' outputs have none", kinds=NEURAL)
    dropout: float = option(FRACTION, 0.0,
        "share of the hidden units that each training step leaves out at random", kinds=NEURAL)
    head: str = option(choice("none", "linear"), "none",
        "'linear': the coordinator trains a linear layer on the sum of the towers' outputs",
        chosen=lambda setting: _usual(setting).head,
        default_text="'none'; 'linear' with pbm", kinds=NEURAL)
    embedding: int = option(integer(1, MAX_WIDTH), 16,
        "number of outputs of each tower; only with head = 'linear'", kinds=NEURAL,
        needs=Needs(("head",), ("linear",)))
    device: str = option(choice("auto", "cpu", "cuda"), "auto",
        "where towers are trained: 'auto' is CUDA at clients that have it, except for small "
        "towers; float32 on CUDA, float64 on CPUs", kinds=NEURAL)
    # fmt: on

    @property
    def outputs(self) -> int | None:
        """P, a tower's outputs for a row before a linear head; None without a head, where it is
        d_c.
        """
        return self.embedding if self.head == "linear" else None


def _algorithm(setting: Setting) -> str:
    usual = "sgd" if setting.neural or setting.private else "lbfgs"
    usual = MOMENTS if setting.solved else usual
    return kind_of(setting.kind).algorithm or usual


def _epochs(setting: Setting) -> int:
    usual = _usual(setting)
    asked = setting.values.get("iterations")
    if isinstance(asked, int):
        return asked
    if setting.private and usual.protected_epochs:
        return usual.protected_epochs
    if setting.neural:
        return usual.tower_epochs or usual.epochs
    return (usual.noised_epochs if setting.noised else None) or usual.epochs


def _l2(setting: Setting) -> float:
    return 1e-4 if setting.kind in USUAL and setting.kind != "quantile_regression" else 0.0


def _tolerance(setting: Setting) -> float:
    return 0.0 if setting.private else _usual(setting).tolerance


def _usual(setting: Setting) -> Defaults:
    if setting.method is None:
        raise InternalError("options of training without a method")
    return setting.method


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """All options of a training run, with their values.

    The table says what None means for each option.
    """

    kind: str
    """The model's kind; it decides which options apply."""
    # fmt: off
    engine: str = option(choice("auto", "sql", "arrays"), "auto",
        "where parties compute local updates: by queries in the database, or on arrays beside it")
    memory_limit: str | None = option(SIZE, None,
        "memory at the coordinator; beyond it, joined rows go to disk or are refused. A party's "
        "arrays must fit in half of it",
        default_text="4/5 of the machine's memory; 4 GiB for arrays")
    max_joined_rows: int = option(integer(1, MAX_JOINED_ROWS), 100_000_000,
        "maximum joined rows")
    algorithm: str = option(_METHOD, DEPENDS,
        "training method: lbfgs for linear models, frank_wolfe for lasso, moments for linear, "
        "logistic and softmax regression with PRIVACY (epsilon)",
        chosen=lambda setting: _algorithm(setting),
        default_text="'lbfgs'; 'sgd' for mlp_*; 'frank_wolfe' for lasso; with PRIVACY of features "
        "'moments' or 'sgd'")
    epochs: int = option(integer(1), DEPENDS,
        "passes over the joined rows; iterations of lbfgs and frank_wolfe", chosen=_epochs)
    method: MethodOptions
    """The options of the algorithm."""
    l2: float = option(number(0), 1e-4,
        "penalty: this times half the squared norm of the encoded columns' weights; for mlp_*, of "
        "all weights except biases", kinds=USUAL,
        chosen=_l2, default_text="0.0001; 0 for quantile_regression")
    threshold: float | None = option(number(0, above=True), None,
        "residual, in the target's unit, at which Huber's loss turns from ½ r² to a straight line",
        default_text="none: it must be given", kinds=("huber_regression",))
    quantile: float = option(number(0, above=True, most=0.999), 0.5,
        "quantile of the target to predict: 0.5 is the median",
        kinds=("quantile_regression",))
    tolerance: float = option(number(0), DEPENDS,
        "training ends when the objective's relative change is less; for frank_wolfe, the duality "
        "gap",
        chosen=_tolerance)
    seed: int | None = option(integer(0), None,
        "makes runs over the same tables repeatable. The coordinator can then recognise a row in "
        "the next run",
        default_text="new in every run")
    network: Network | None = option(NETWORK, None,
        "network for which the history's comm_seconds are computed",
        default_text="none: comm_seconds is NULL")
    allow_cross_join: bool = option(BOOLEAN, False,
        "accept a query that joins tables without an equality")
    wait: float | None = option(LENGTH, None,
        "how long the statement waits for owners of tables to approve it",
        default_text="it ends, and you run it again after the approval")
    tower: TowerOptions | None
    """None for linear models."""
    merge_equal_rows: bool = option(BOOLEAN, True,
        "train rows of a table with equal features as one row with their total weight. Clients "
        "then disclose which of their rows are equal")
    validation_fraction: float = option(number(0, most=0.9), 0.0,
        "share of the label's rows that training leaves out for validation")
    patience: int | None = option(integer(1), None,
        "epochs without a lower valid_loss after which training ends, with the best epoch's model; "
        "needs validation_fraction", default_text="no early end",
        needs=Needs(("validation_fraction",), message="option patience needs rows to validate on",
            hint="add validation_fraction = 0.2"))
    checkpoint: int | None = option(integer(1), None,
        "the model is saved each time after so many epochs; RESUME MODEL continues from it",
        default_text="saved at the end",
        kinds=USUAL)
    class_weight: ClassWeight | None = option(CLASS_WEIGHT, None,
        "weight of each class's rows (1 for other classes); 'balanced' gives all classes the same "
        "total weight", kinds=CLASSIFIERS,
        default_text="1 for all")
    warm_start: str | None = option(MODEL, None,
        "model whose weights training starts from, of the same kind, columns, classes and towers",
        default_text="weights of 0; for mlp_*, random",
        kinds=USUAL)
    # fmt: on

    def of(self, method: type[Own]) -> Own:
        """Return the method's options. Raise InternalError if they belong to another method."""
        if not isinstance(self.method, method):
            raise InternalError(f"options of {self.algorithm} are no {method.__name__}")
        return self.method

    def listed(self) -> dict[str, object]:
        """Return all options that apply, in the order of the table and in JSON's types."""
        values = listed(self, self.kind) | listed(self.method, self.kind)
        values |= {} if self.tower is None else listed(self.tower, self.kind)
        return {name: values[name] for name in with_options().entries if name in values}


@dataclass(frozen=True, kw_only=True)
class ScoringOptions:
    """Options of EVALUATE and PREDICT, which say how the join is made. TrainingOptions holds their
    texts.
    """

    engine: str
    memory_limit: str | None
    max_joined_rows: int
    allow_cross_join: bool
    tower: TowerOptions | None
    """The model's."""
    wait: float | None = None


SCORING = tuple(spec.name for spec in fields(ScoringOptions) if spec.name != "tower")
"""The options that a statement of EVALUATE or PREDICT may set."""

Options = TrainingOptions | ScoringOptions


@dataclass(frozen=True)
class OptionLine:
    """An option of WITH, with its entry in each method that has it."""

    entry: Entry
    """Its name and text. If several methods have it, the text is the first method's, with additions
    from the others.
    """
    methods: Mapping[str, Entry] | None
    """Method -> its own entry; None for an option of all methods."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of models that it applies to."""
        if self.methods is None:
            return self.entry.kinds
        return tuple(k for k in KINDS if self.of(k))

    def of(self, kind: str) -> tuple[str, ...]:
        """Algorithms of models of this kind that it applies to."""
        algorithms = methods() if self.methods is None else self.methods
        return tuple(
            name
            for name in algorithms
            if (self.methods is None or kind in self.methods[name].kinds)
            and trains(name, kind)
            and (kind not in NEURAL or options_of(name).usual.tower_epochs is not None)
        )

    @property
    def applies(self) -> str:
        """The models and algorithms that it applies to, as text."""
        if self.methods is None:
            return _kinds_text(self.entry.kinds)
        every = ", ".join(name for name, e in self.methods.items() if e.kinds == KINDS)
        some = ", ".join(name for name, e in self.methods.items() if e.kinds != KINDS)
        if not every:
            return f"{some} of {_kinds_text(self.kinds)}"
        return every + (f"; {some} of mlp_*" if some else "")


def _kinds_text(kinds: tuple[str, ...]) -> str:
    if kinds == KINDS:
        return "all"
    if kinds == USUAL:
        return f"all but {', '.join(kind for kind in KINDS if kind not in USUAL)}"
    if set(kinds) >= set(NEURAL):
        kinds = (*(kind for kind in kinds if kind not in NEURAL), "mlp_*")
    return ", ".join(kinds)


def option_lines() -> Mapping[str, OptionLine]:
    """The options of WITH by name, in the order of the documentation."""
    return _option_lines(tuple(methods()))


@cache
def _option_lines(names: tuple[str, ...]) -> Mapping[str, OptionLine]:
    """Build the options of WITH for these methods."""
    usual = {name: options_of(name).usual for name in names}
    known: dict[str, dict[str, Any]] = {
        "algorithm": {"type": _method_type(names)},
        "epochs": {"default_text": _epochs_text(usual)},
        "tolerance": {"default_text": _tolerance_text(usual)},
    }
    lines: dict[str, OptionLine] = {}
    entries = {entry.name: entry for entry in entries_of(TrainingOptions)}
    for spec in fields(TrainingOptions):
        if spec.name == "method":
            lines |= _method_lines(names)
        elif spec.name == "tower":
            lines |= {e.name: OptionLine(e, None) for e in entries_of(TowerOptions)}
        elif spec.name in entries:
            entry = replace(entries[spec.name], **known.get(spec.name, {}))
            lines[spec.name] = OptionLine(entry, None)
    return MappingProxyType(lines)


def _method_type(names: Iterable[str]) -> OptionType[str]:
    optimizers = {
        name: f"it is an optimizer: algorithm = 'sgd', optimizer = '{name}'"
        for name in ("adam", "momentum")
    }
    return choice(*names, instead=optimizers)


def _method_lines(names: Iterable[str]) -> dict[str, OptionLine]:
    """Merge an option of several methods into one line: the text of the first, and the differences
    of the others.
    """
    having: dict[str, dict[str, Entry]] = {}
    for method in names:
        for entry in entries_of(options_of(method)):
            having.setdefault(entry.name, {})[method] = entry
    method_lines = {}
    for name, entries in having.items():
        first, *others = entries.values()
        texts = [e.default_text for e in (first, *others) if e.default_text]
        defaults = dict.fromkeys(part for text in texts for part in text.split("; "))
        added = [f"in {m}, {e.doc}" for m, e in entries.items() if e.doc != first.doc]
        doc, default_text = "; ".join((first.doc, *added)), "; ".join(defaults)
        words = replace(first, doc=doc, default_text=default_text)
        method_lines[name] = OptionLine(words, entries)
    return method_lines


def _epochs_text(usual: Mapping[str, Defaults]) -> str:
    linear = _by_value({method: defaults.epochs for method, defaults in usual.items()})
    towers = {f"{m} of mlp_*": d.tower_epochs for m, d in usual.items()}
    values = {value for value in towers.values() if value is not None}
    same = f"{next(iter(values))} for mlp_*" if len(values) == 1 else ""
    return f"{linear}; {same or _by_value(towers)}"


def _tolerance_text(usual: Mapping[str, Defaults]) -> str:
    return _by_value({method: defaults.tolerance for method, defaults in usual.items()})


def _by_value(values: Mapping[str, float | None]) -> str:
    """Return each value once, with the names that have it; names of None are left out."""
    names: dict[float, list[str]] = {}
    for name, value in values.items():
        if value is not None:
            names.setdefault(value, []).append(name)
    return ", ".join(f"{value:g} ({', '.join(having)})" for value, having in names.items())


_CALLED = {
    "alpha": "l2, of lasso radius",
    "batch": "batch_size",
    "class_weights": "class_weight",
    "data_split_eval_fraction": "validation_fraction",
    "early_stopping": "patience",
    "hidden_layer_sizes": "hidden",
    "eta0": "learning_rate",
    "eval_fraction": "validation_fraction",
    "hidden_units": "hidden",
    "init": "warm_start",
    "l1": "radius, of lasso",
    "l2_reg": "l2",
    "lambda": "l2, of lasso radius",
    "lambda_l2": "l2",
    "learn_rate": "learning_rate",
    "lr": "learning_rate",
    "learning_rate_init": "learning_rate",
    "max_iter": "epochs",
    "max_iterations": "epochs",
    "maxit": "epochs",
    "n_epochs": "epochs",
    "n_iter": "epochs",
    "num_epochs": "epochs",
    "n_iter_no_change": "patience",
    "nesterovs_momentum": "momentum",
    "num_iterations": "epochs",
    "random_seed": "seed",
    "random_state": "seed",
    "reg_lambda": "l2",
    "sample_weight": "the clause WEIGHT column",
    "weight": "the clause WEIGHT column",
    "offset": "the clause OFFSET column",
    "exposure": "the clause EXPOSURE column",
    **dict.fromkeys(("method", "alg", "algo", "solver"), "algorithm"),
    "test_fraction": "validation_fraction",
    "test_size": "validation_fraction",
    "tol": "tolerance",
    "validation": "validation_fraction",
    "validation_size": "validation_fraction",
    "validation_split": "validation_fraction",
    "units": "hidden",
    "weight_decay": "l2",
    "weights": "the clause WEIGHT column",
}
"""Names in scikit-learn, R and torch -> the option here, or the clause."""
_TREES = "there are no trees here: sqlfl docs statements lists the kinds of models after USING"
_ALWAYS = "leave it out: each model has an intercept, and columns are standardised"
_NOT_HERE = {
    "firth": "INFERENCE OF MODEL m WITH (firth = true) estimates by Firth's penalised likelihood",
    "c": "scikit-learn's C is l2 = 1 / (C * rows) here",
    **dict.fromkeys(("dp", "differential_privacy", "epsilon_dp"),
                    "PRIVACY (epsilon = ...) is a clause, after WITH"),
    **dict.fromkeys(("penalty", "regularizer", "regularization"),
                    "l2 = ... is a ridge; a lasso is USING lasso"),
    **dict.fromkeys(("l1_ratio", "l1_reg", "alpha_l1"), "a model with few columns is USING lasso"),
    **dict.fromkeys(("family", "link", "loss", "objective", "kind", "type", "model", "model_type"),
                    "USING says it: logistic_regression, poisson_regression, ..."),
    **dict.fromkeys(("n_estimators", "max_depth", "num_leaves", "n_trees"), _TREES),
    **dict.fromkeys(("fit_intercept", "intercept", "standardize", "normalize", "scale"), _ALWAYS),
    **dict.fromkeys(("n_jobs", "verbose", "num_threads"), "leave it out; connect(progress=False) "
                    "says nothing"),
    **dict.fromkeys(("cv", "folds"), "TUNE MODEL compares candidates by cross-validation"),
    **dict.fromkeys(("multi_class", "n_classes"), "USING softmax_regression is for more classes"),
    **dict.fromkeys(("target", "label", "labels", "y"), "TARGET column is a clause, before WITH"),
    **dict.fromkeys(("transform", "transforms", "preprocessing"),
                    "TRANSFORM (function(column), ...) is a clause, before WITH"),
    **dict.fromkeys(("features", "feature_cols", "x"), "features are the columns of the query"),
    "privacy": "PRIVACY (label_epsilon = ...) is a clause, after WITH",
    "shuffle": "leave it out: rows are drawn at random, and seed makes that repeatable",
    "num_layers": "hidden = [64, 32] lists the sizes of the layers",
}  # fmt: skip
"""Options of other libraries without a counterpart here -> a hint."""


def with_options() -> OptionTable:
    """The options of WITH, for reading."""
    elsewhere = _CALLED | {name: f"PRIVACY ({name} = ...)" for name in PRIVACY.entries}
    return OptionTable(
        "option",
        {name: line.entry for name, line in option_lines().items()},
        {name: f"it is called {here} here" for name, here in elsewhere.items()} | _NOT_HERE,
    )


def options_markdown() -> str:
    """The table as Markdown, for the documentation."""
    return markdown(
        ("option", "must be", "default", "applies to", "meaning"),
        (
            (
                line.entry.name,
                line.entry.type.cell,
                line.entry.usually,
                line.applies,
                line.entry.doc,
            )
            for line in option_lines().values()
        ),
    )
