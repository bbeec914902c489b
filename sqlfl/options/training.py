"""The options of WITH: what a statement may set, each told once, beside the field that has it."""

from __future__ import annotations

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
    MODEL,
    NETWORK,
    SIZE,
    WIDEST,
    WIDTHS,
    ClassWeight,
    OptionType,
    choice,
    integer,
    number,
)
from sqlfl.transport.network import Network

LARGEST_TABLE = 2**31 - 1
"""Rows of a table, and joined rows that are written down: mappings number them by int32."""
LARGEST_JOIN = 2**32 - 1
"""Joined rows: so many of one row are told by 4 bytes."""

Own = TypeVar("Own", bound=MethodOptions)


_METHOD: OptionType[str] = OptionType("a method", lambda value: None)
"""Until it is known which there are: see `option_lines`."""


def options_of(method: str) -> type[MethodOptions]:
    """The method's own options."""
    found: type[MethodOptions] = part_of(method, "options")
    return found


@dataclass(frozen=True, kw_only=True)
class TowerOptions:
    """Of a neural model's towers."""

    # fmt: off
    hidden: tuple[int, ...] = option(WIDTHS, (16,),
        "widths of the hidden layers of each table position's tower", kinds=NEURAL)
    activation: str = option(choice("relu", "tanh", "gelu"), "relu",
        "function of the hidden units; the towers' outputs have none", kinds=NEURAL)
    dropout: float = option(FRACTION, 0.0,
        "share of the hidden units that each training step leaves out at random", kinds=NEURAL)
    head: str = option(choice("none", "linear"), "none",
        "what the coordinator makes of the sum of the towers' outputs: the scores as they are, or "
        "a linear layer that is trained there", chosen=lambda setting: _usual(setting).head,
        default_text="'none'; 'linear' of pbm", kinds=NEURAL)
    embedding: int = option(integer(1, WIDEST), 16,
        "outputs of each tower, where a head follows; only with head = 'linear'", kinds=NEURAL,
        needs=Needs(("head",), ("linear",)))
    device: str = option(choice("auto", "cpu", "cuda"), "auto",
        "where towers are trained: 'auto' is CUDA at those clients that have it, with float32 "
        "there and float64 on CPUs", kinds=NEURAL)
    # fmt: on

    @property
    def outputs(self) -> int | None:
        """P, numbers that a tower gives of a row, where a linear head follows; None for d_c."""
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
    """All options of a run of training, with their values.

    None of an option stands for what it says in the table where nothing is given.
    """

    kind: str
    """The model's, which says what applies."""
    # fmt: off
    engine: str = option(choice("auto", "sql", "arrays"), "auto",
        "what computes the local updates: queries on the party's database, or arrays beside it")
    memory_limit: str | None = option(SIZE, None,
        "what the join and the training may take at the coordinator, beyond which joined rows are "
        "kept on disk or refused, and what the arrays of an engine must fit in half of",
        default_text="four fifths of the machine's memory; 4 GiB for the arrays")
    max_joined_rows: int = option(integer(1, LARGEST_JOIN), 100_000_000,
        "the most rows that the join may have: more are refused before it is made")
    algorithm: str = option(_METHOD, DEPENDS,
        "how the model is trained; lbfgs is for linear models only, frank_wolfe for lasso, moments "
        "for linear, logistic and softmax regression whose features PRIVACY protects by epsilon",
        chosen=lambda setting: _algorithm(setting),
        default_text="'lbfgs'; 'sgd' of mlp_*; 'frank_wolfe' of lasso; with PRIVACY of features "
        "'sgd', or 'moments' where it has epsilon and asks for no other predictions")
    epochs: int = option(integer(1), DEPENDS,
        "passes over the joined rows; for lbfgs and frank_wolfe iterations", chosen=_epochs)
    method: MethodOptions
    """Of the algorithm alone."""
    l2: float = option(number(0), 1e-4,
        "weight of half the squared norm of the weights of the encoded columns; of mlp_*, of all "
        "weights of towers and head but biases", kinds=USUAL,
        chosen=_l2, default_text="0.0001; 0 of quantile_regression, whose loss grows with the "
        "target's unit as the weights do, and not as their squares")
    threshold: float | None = option(number(0, above=True), None,
        "where Huber's loss turns from ½ r² to a straight line: so far, in the target's own unit, "
        "may a target be from its prediction and still count in full",
        default_text="none: it must be given", kinds=("huber_regression",))
    quantile: float = option(number(0, above=True, most=0.999), 0.5,
        "which quantile of the target is predicted: 0.5 is the median",
        kinds=("quantile_regression",))
    tolerance: float = option(number(0), DEPENDS,
        "training ends where the objective changes by less than this, relatively; of frank_wolfe, "
        "where the duality gap is less",
        chosen=_tolerance)
    seed: int | None = option(integer(0), None,
        "with it, runs over the same tables repeat (to the last digit on CPUs of one kind), for "
        "rows too are numbered by it: the coordinator can then tell a row again in the next run",
        default_text="another in every run")
    network: Network | None = option(NETWORK, None,
        "the network that comm_seconds of the history is reckoned for",
        default_text="none: comm_seconds is NULL")
    allow_cross_join: bool = option(BOOLEAN, False,
        "take a query that joins tables without an equality")
    wait: float | None = option(LENGTH, None,
        "how long the statement waits, where owners of tables have to approve it before it runs: "
        "it asks again now and then",
        default_text="it ends, to be run again")
    tower: TowerOptions | None
    """None of linear models."""
    merge_equal_rows: bool = option(BOOLEAN, True,
        "rows of a table whose features are equal are trained as one that counts as they do "
        "together; each client then tells the coordinator which of its rows are equal, as exact "
        "predictions mostly do. Not where units drop, nor where PRIVACY protects features")
    validation_fraction: float = option(number(0, most=0.9), 0.0,
        "share of the label's rows that training leaves out, to validate on")
    patience: int | None = option(integer(1), None,
        "training ends after so many epochs without a lower valid_loss, and keeps the epoch where "
        "that was least; needs validation_fraction", default_text="no early end",
        needs=Needs(("validation_fraction",), message="option patience needs rows to validate on",
            hint="add validation_fraction = 0.2"))
    checkpoint: int | None = option(integer(1), None,
        "after so many epochs, again and again, the model so far is kept under its name: what ends "
        "the training then, RESUME MODEL goes on from", default_text="the model is kept in the end",
        kinds=USUAL)
    class_weight: ClassWeight | None = option(CLASS_WEIGHT, None,
        "by what the weights of a class's rows are multiplied: given numbers (1 for classes that "
        "are not named), or so that all classes weigh the same", kinds=CLASSIFIERS,
        default_text="1 for all")
    warm_start: str | None = option(MODEL, None,
        "the model whose blocks training starts from: of the same kind, columns and classes, and "
        "of towers of the same shape", default_text="weights of 0; of mlp_*, random ones",
        kinds=USUAL)
    # fmt: on

    def of(self, method: type[Own]) -> Own:
        """The method's own options. Raises InternalError where they are another method's."""
        if not isinstance(self.method, method):
            raise InternalError(f"options of {self.algorithm} are no {method.__name__}")
        return self.method

    def listed(self) -> dict[str, object]:
        """All that apply, as a statement has them and in the order of the table: JSON's types."""
        values = listed(self, self.kind) | listed(self.method, self.kind)
        values |= {} if self.tower is None else listed(self.tower, self.kind)
        return {name: values[name] for name in with_options().entries if name in values}


@dataclass(frozen=True, kw_only=True)
class ScoringOptions:
    """Of EVALUATE and PREDICT: how the join is made. TrainingOptions has the words."""

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
    """An option of WITH as all those have it that it applies to."""

    entry: Entry
    """Its name and its words; where several methods have it, those of the first with what the
    others add."""
    methods: Mapping[str, Entry] | None
    """Method -> its own entry; None for an option of all methods."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of models that it applies to."""
        if self.methods is None:
            return self.entry.kinds
        return tuple(k for k in KINDS if self.of(k))

    def of(self, kind: str) -> tuple[str, ...]:
        """Algorithms of models of this kind that it applies to."""
        found = methods() if self.methods is None else self.methods
        return tuple(
            name
            for name in found
            if (self.methods is None or kind in self.methods[name].kinds)
            and trains(name, kind)
            and (kind not in NEURAL or options_of(name).usual.tower_epochs is not None)
        )

    @property
    def applies(self) -> str:
        """To what, in words."""
        if self.methods is None:
            return "all" if self.entry.kinds == KINDS else ", ".join(self.entry.kinds)
        every = ", ".join(name for name, e in self.methods.items() if e.kinds == KINDS)
        some = ", ".join(name for name, e in self.methods.items() if e.kinds != KINDS)
        if not every:
            return f"{some} of {', '.join(self.kinds)}"
        return every + (f"; {some} of mlp_*" if some else "")


def option_lines() -> Mapping[str, OptionLine]:
    """The options of WITH by name, in the order of the documentation."""
    return _option_lines(tuple(methods()))


@cache
def _option_lines(names: tuple[str, ...]) -> Mapping[str, OptionLine]:
    """Where there are these methods."""
    usual = {name: options_of(name).usual for name in names}
    known: dict[str, dict[str, Any]] = {
        "algorithm": {"type": _method_type(names)},
        "epochs": {"default_text": _epochs_text(usual)},
        "tolerance": {"default_text": _tolerance_text(usual)},
    }
    found: dict[str, OptionLine] = {}
    own = {entry.name: entry for entry in entries_of(TrainingOptions)}
    for spec in fields(TrainingOptions):
        if spec.name == "method":
            found |= _method_lines(names)
        elif spec.name == "tower":
            found |= {e.name: OptionLine(e, None) for e in entries_of(TowerOptions)}
        elif spec.name in own:
            entry = replace(own[spec.name], **known.get(spec.name, {}))
            found[spec.name] = OptionLine(entry, None)
    return MappingProxyType(found)


def _method_type(names: Iterable[str]) -> OptionType[str]:
    optimizers = {
        name: f"it is an optimizer: algorithm = 'sgd', optimizer = '{name}'"
        for name in ("adam", "momentum")
    }
    return choice(*names, instead=optimizers)


def _method_lines(names: Iterable[str]) -> dict[str, OptionLine]:
    """What several methods have is one option: its words are the first's, and what others add."""
    having: dict[str, dict[str, Entry]] = {}
    for method in names:
        for entry in entries_of(options_of(method)):
            having.setdefault(entry.name, {})[method] = entry
    found = {}
    for name, entries in having.items():
        first, *others = entries.values()
        texts = [e.default_text for e in (first, *others) if e.default_text]
        added = [f"in {m}, {e.doc}" for m, e in entries.items() if e.doc != first.doc]
        words = replace(first, doc="; ".join((first.doc, *added)), default_text="; ".join(texts))
        found[name] = OptionLine(words, entries)
    return found


def _epochs_text(usual: Mapping[str, Defaults]) -> str:
    texts = [f"{own.epochs:g} ({method})" for method, own in usual.items()]
    texts += [
        f"{own.tower_epochs:g} ({method} of mlp_*)"
        for method, own in usual.items()
        if own.tower_epochs is not None
    ]
    return ", ".join(texts)


def _tolerance_text(usual: Mapping[str, Defaults]) -> str:
    return ", ".join(f"{own.tolerance:g} ({method})" for method, own in usual.items())


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
    "solver": "algorithm",
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
"""Names of scikit-learn, R and torch for some of them, and options of other clauses."""
_TREES = "there are no trees here: docs/models.md lists the kinds of models"
_ALWAYS = "leave it out: each model has an intercept, and columns are standardised"
_NOT_HERE = {
    "firth": "INFERENCE OF MODEL m WITH (firth = true) estimates by Firth's penalised likelihood",
    "c": "scikit-learn's C is l2 = 1 / (C * rows) here",
    **dict.fromkeys(("penalty", "regularizer"), "l2 = ... is a ridge; a lasso is USING lasso"),
    **dict.fromkeys(("l1_ratio", "l1_reg", "alpha_l1"), "a model with few columns is USING lasso"),
    **dict.fromkeys(("family", "link", "loss", "objective"), "USING says it: logistic_regression, "
                    "poisson_regression, gamma_regression, ..."),
    **dict.fromkeys(("n_estimators", "max_depth", "num_leaves", "n_trees"), _TREES),
    **dict.fromkeys(("fit_intercept", "intercept", "standardize", "normalize", "scale"), _ALWAYS),
    **dict.fromkeys(("n_jobs", "verbose", "num_threads"), "leave it out; connect(progress=False) "
                    "says nothing"),
    **dict.fromkeys(("cv", "folds"), "TUNE MODEL compares candidates by cross-validation"),
    **dict.fromkeys(("multi_class", "n_classes"), "USING softmax_regression is for more classes"),
    "shuffle": "leave it out: rows are drawn at random, and seed makes that repeatable",
    "num_layers": "hidden = [64, 32] lists the sizes of the layers",
}  # fmt: skip
"""Options without a counterpart here, and what to do instead."""


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
                line.entry.type.text,
                line.entry.usually,
                line.applies,
                line.entry.doc,
            )
            for line in option_lines().values()
        ),
    )
