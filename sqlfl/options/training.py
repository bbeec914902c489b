"""The options of WITH: one table of names, types, defaults, ranges and what each applies to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from sqlfl.errors import OptionError
from sqlfl.models.kinds import BUILT_KINDS, CLASSIFIERS, KINDS, LATER_KINDS, NEURAL
from sqlfl.options.types import (
    BOOLEAN,
    CLASS_WEIGHT,
    FRACTION,
    MODEL,
    SIZE,
    WIDEST,
    WIDTHS,
    OptionType,
    choice,
    integer,
    meant,
    network,
    number,
    shown,
)

ALGORITHMS = ("lbfgs", "sgd", "admm")
NEURAL_ALGORITHMS = ("sgd", "admm")
EPOCHS = {"lbfgs": 100, "sgd": 100, "admm": 50}
"""Default number of epochs; for lbfgs iterations."""
NEURAL_EPOCHS = {"sgd": 20, "admm": 20}
NEURAL_BATCH = {"sgd": 10_000, "admm": 512}
"""Rows per step: joined rows in sgd, where `neural_batch` may take fewer, the client's own in the
local steps of admm."""
SMALLEST_BATCH, BATCHES = 32, 20
"""Few rows are taken in so many batches, for towers need hundreds of steps."""
TOLERANCE = {"lbfgs": 1e-11, "sgd": 0.0, "admm": 1e-7}
SCHEDULES = ("constant", "inverse", "exponential", "cosine")
DECAY = {"inverse": 0.25, "exponential": 0.95}
"""Default `decay` of the schedules that have one."""

LARGEST_JOIN = 2**31 - 1
"""Joined rows: mappings number them, and the rows of tables, by int32."""
MAX_JOINED_ROWS = 100_000_000
"""Default of the option: some 14 GB of the coordinator's memory, minutes an epoch."""
LEARNING_RATE = 0.01
"""Default step length of Adam, and of all steps of towers."""
HIDDEN = (16,)
EMBEDDING = 16
NETWORKS = {"us-uk": (0.136, 0.42e9), "us-us": (0.067, 1.15e9)}
"""Latency in seconds of a round, and bandwidth in bits per second, as TablePuppet measured them."""


def neural_batch(rows: int) -> int:
    """Joined rows per step of towers in sgd, where `batch_size` is not given.

    >>> [neural_batch(rows) for rows in (20, 1_000, 10_000, 1_000_000)]
    [32, 50, 500, 10000]
    """
    return min(max(-(-rows // BATCHES), SMALLEST_BATCH), NEURAL_BATCH["sgd"])


class Given(Protocol):
    """An option as it was written; `span` is the place of its value."""

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> object: ...
    @property
    def span(self) -> tuple[int, int]: ...


@dataclass(frozen=True)
class OptionEntry:
    """One line of the table."""

    name: str
    type: OptionType
    default: object
    """Of linear models; None: see `default_text`."""
    doc: str
    algorithms: tuple[str, ...] = ALGORITHMS
    kinds: tuple[str, ...] = KINDS
    default_text: str = ""
    neural: tuple[str, ...] = ()
    """Algorithms of neural models that it applies to as well."""

    def applies(self, kind: str, algorithm: str) -> bool:
        return kind in self.kinds and algorithm in self.of(kind)

    def of(self, kind: str) -> tuple[str, ...]:
        """Algorithms of models of this kind that it applies to."""
        if kind not in NEURAL:
            return self.algorithms
        return tuple(a for a in NEURAL_ALGORITHMS if a in (*self.algorithms, *self.neural))


def _by_algorithm(linear: Mapping[str, float], neural: Mapping[str, float]) -> str:
    own = ", ".join(f"{n:g} ({a})" for a, n in linear.items())
    return own + "".join(f", {n:g} ({a} of mlp_*)" for a, n in neural.items())


_NO_ALGORITHM = {
    name: f"it is an optimizer: algorithm = 'sgd', optimizer = '{name}'"
    for name in ("adam", "momentum")
}
_NO_OPTIMIZER = {
    "sgd": "sgd is the algorithm; its steps without more are 'plain'",
    "lbfgs": "algorithm = 'lbfgs', which takes no optimizer",
}
"""What takes one for the other is told so."""

OPTIONS: tuple[OptionEntry, ...] = (
    OptionEntry("engine", choice("auto", "sql", "arrays"), "auto",
        "what computes the local updates: queries on the party's database, or arrays beside it"),
    OptionEntry("memory_limit", SIZE, None,
        "what the joined rows may take at the coordinator, where more are refused, and what the "
        "arrays of an engine must fit in half of",
        default_text="four fifths of the machine's memory; 4 GiB for the arrays"),
    OptionEntry("max_joined_rows", integer(1, LARGEST_JOIN), MAX_JOINED_ROWS,
        "the most rows that the join may have: more are refused before it is made"),
    OptionEntry("algorithm", choice(*ALGORITHMS, instead=_NO_ALGORITHM), "lbfgs",
        "how the model is trained; lbfgs is for linear models only",
        default_text="'lbfgs'; 'sgd' of mlp_*"),
    OptionEntry("epochs", integer(1), None,
        "passes over the joined rows; for lbfgs iterations",
        default_text=_by_algorithm(EPOCHS, NEURAL_EPOCHS)),
    OptionEntry("batch_size", integer(1), None,
        "joined rows per step; in admm, the client's own rows per local step", ("sgd",),
        default_text="all rows; sgd of mlp_*: a twentieth of the rows, but from 32 to 10000; "
        "admm of mlp_*: 512", neural=("admm",)),
    OptionEntry("learning_rate", number(0, above=True), None,
        "step length; in admm, of the local steps", ("sgd",),
        default_text="from the curvature of the loss; 0.01 with optimizer = 'adam' and of mlp_*",
        neural=("admm",)),
    OptionEntry("optimizer", choice("plain", "momentum", "adam", instead=_NO_OPTIMIZER), "plain",
        "what a step makes of the gradient; the same at every client of a slot, and of what the "
        "coordinator trains", ("sgd",), default_text="'plain'; 'adam' of mlp_*"),
    OptionEntry("momentum", FRACTION, 0.9,
        "share of the last step that the next one keeps; only with optimizer = 'momentum'",
        ("sgd",)),
    OptionEntry("schedule", choice(*SCHEDULES), None,
        "how the step length changes over the epochs", ("sgd",),
        default_text="'inverse' for batches whose step length is estimated, else 'constant'"),
    OptionEntry("decay", number(0), None,
        "how fast the step length falls, with schedule = 'inverse' or 'exponential' (from above 0 "
        "to 1)", ("sgd",),
        default_text=", ".join(f"{v:g} ({name})" for name, v in DECAY.items())),
    OptionEntry("rho", number(1e-4, most=1e4), None,
        "weight of the penalty that ties the blocks together", ("admm",),
        default_text="the mean curvature of the loss"),
    OptionEntry("union", choice("exact", "consensus"), "exact",
        "how the clients of one slot find their common block; neural models by consensus only",
        ("admm",), default_text="'exact'; 'consensus' of mlp_*"),
    OptionEntry("inner_rounds", integer(1), 10,
        "rounds of consensus in each epoch; only with union = 'consensus'", ("admm",)),
    OptionEntry("local_epochs", integer(1), 5,
        "passes over its own rows that a client makes to update its block", ("admm",), NEURAL),
    OptionEntry("l2", number(0), 1e-4,
        "weight of half the squared norm of the weights of the encoded columns; of mlp_*, of all "
        "weights of towers and head but biases"),
    OptionEntry("tolerance", number(0), None,
        "training ends where the objective changes by less than this, relatively",
        default_text=_by_algorithm(TOLERANCE, {})),
    OptionEntry("seed", integer(0), None,
        "with it, runs over the same tables repeat (to the last digit on CPUs of one kind), for "
        "rows too are numbered by it: the coordinator can then tell a row again in the next run",
        default_text="another in every run"),
    OptionEntry("network", network(NETWORKS), None,
        "the network that comm_seconds of the history is reckoned for",
        default_text="none: comm_seconds is NULL"),
    OptionEntry("allow_cross_join", BOOLEAN, False,
        "take a query that joins tables without an equality"),
    OptionEntry("hidden", WIDTHS, HIDDEN,
        "widths of the hidden layers of each table position's tower", kinds=NEURAL),
    OptionEntry("activation", choice("relu", "tanh", "gelu"), "relu",
        "function of the hidden units; the towers' outputs have none", kinds=NEURAL),
    OptionEntry("dropout", FRACTION, 0.0,
        "share of the hidden units that each training step leaves out at random", kinds=NEURAL),
    OptionEntry("head", choice("none", "linear"), "none",
        "what the coordinator makes of the sum of the towers' outputs: the scores as they are, or "
        "a linear layer that is trained there", kinds=NEURAL),
    OptionEntry("embedding", integer(1, WIDEST), EMBEDDING,
        "outputs of each tower, where a head follows; only with head = 'linear'", kinds=NEURAL),
    OptionEntry("device", choice("auto", "cpu", "cuda"), "auto",
        "where towers are trained: 'auto' is CUDA at those clients that have it, with float32 "
        "there and float64 on CPUs", kinds=NEURAL),
    OptionEntry("validation_fraction", number(0, most=0.9), 0.0,
        "share of the label's rows that training leaves out, to validate on"),
    OptionEntry("patience", integer(1), None,
        "training ends after so many epochs without a lower valid_loss, and keeps the epoch where "
        "that was least; needs validation_fraction", default_text="no early end"),
    OptionEntry("class_weight", CLASS_WEIGHT, None,
        "by what the weights of a class's rows are multiplied: given numbers (1 for classes that "
        "are not named), or so that all classes weigh the same", kinds=CLASSIFIERS,
        default_text="1 for all"),
    OptionEntry("warm_start", MODEL, None,
        "the model whose blocks training starts from: of the same kind, columns and classes, and "
        "of towers of the same shape", default_text="weights of 0; of mlp_*, random ones"),
)  # fmt: skip

_BY_NAME = {entry.name: entry for entry in OPTIONS}

ELSEWHERE = {
    "alpha": "l2",
    "early_stopping": "patience",
    "hidden_layer_sizes": "hidden",
    "lr": "learning_rate",
    "learning_rate_init": "learning_rate",
    "max_iter": "epochs",
    "n_iter_no_change": "patience",
    "nesterovs_momentum": "momentum",
    "random_state": "seed",
    "sample_weight": "the clause WEIGHT column",
    "solver": "algorithm",
    "tol": "tolerance",
    "weight_decay": "l2",
} | {
    name: f"PRIVACY ({name} = ...)"
    for name in (
        "clip", "delta", "epsilon", "feature_bounds", "label_bounds", "label_classes",
        "label_epsilon", "label_mechanism", "max_fan_out", "noise_multiplier", "prediction_clip",
        "prediction_share", "predictions", "statistics", "statistics_share",
    )
}  # fmt: skip
"""What scikit-learn and torch call some of them, and what belongs to another clause."""
PRIVATE: dict[str, object] = {"tolerance": 0.0, "batch_size": None}
"""Defaults of other values where features are protected: then each step costs, and what it tells
is bounded best where it is of all rows."""
PRIVATE_NEURAL: dict[str, object] = {"local_epochs": 1, "inner_rounds": 1}
WHOLE_RATE = 0.03
"""Of towers with private parameters and exact predictions, where an epoch is one step."""
NOISED_RATE = 0.003
"""Of towers with noised predictions: Adam makes long steps of noise too."""
NOISED_EPOCHS = {"sgd": 20, "admm": 10}
"""Default epochs of linear models with noised predictions: noise drowns what more would add."""


def check_kind(kind: str, *, sql: str | None = None, span: tuple[int, int] | None = None) -> None:
    """Raise OptionError unless a model of this kind can be trained."""
    if kind in BUILT_KINDS:
        return
    if kind in LATER_KINDS:
        message = f"model kind {kind} is not built yet"
        raise OptionError(message, hint=f"there is {', '.join(BUILT_KINDS)}", sql=sql, span=span)
    message = f"model kind must be one of {', '.join(BUILT_KINDS)}, got {kind}"
    longer = [name for name in BUILT_KINDS if kind and name.startswith(f"{kind.lower()}_")]
    hint = meant(kind, KINDS) or (f"did you mean {longer[0]}?" if longer else None)
    raise OptionError(message, hint=hint, sql=sql, span=span)


def resolve(
    kind: str,
    given: Iterable[Given],
    sql: str | None = None,
    private: bool = False,
    noised: bool = False,
) -> Mapping[str, object]:
    """Every option that applies to the model kind, the algorithm and the others, with its value.

    `kind` carries its place in the attribute `span` where it was parsed. None stands for: all rows,
    or of towers `neural_batch` (batch_size), from the curvature (learning_rate, rho), the
    database's own (memory_limit, which is else text that DuckDB takes for a size), drawn for the
    run (seed). `network` is a name of
    NETWORKS, or a dictionary of latency and bandwidth. With `private` features are protected:
    defaults are others, and all rows are what no batch_size stands for; with `noised` predictions
    are noised too. Raises OptionError for all that is not in the table.
    """
    check_kind(kind, sql=sql, span=getattr(kind, "span", None))
    values: dict[str, object] = {}
    written: dict[str, Given] = {}
    for option in given:
        entry = _known(option, sql)
        if option.name in written:
            raise _error(f"option {option.name} is given twice", option, sql, name=True)
        written[option.name] = option
        values[entry.name] = _read(entry, option, sql)
    usual = "sgd" if kind in NEURAL or private else _BY_NAME["algorithm"].default
    algorithm = str(values.get("algorithm", usual))
    if kind in NEURAL and algorithm not in NEURAL_ALGORITHMS:
        message = f"algorithm '{algorithm}' does not train {kind}: towers are not linear"
        hint = "algorithm = 'sgd' or 'admm'"
        raise _error(message, written["algorithm"], sql, hint=hint)
    for name, option in written.items():
        _check_applies(_BY_NAME[name], kind, algorithm, option, sql)
    usual_values = _defaults(kind, algorithm, values, private)
    if noised and kind not in NEURAL and algorithm in NOISED_EPOCHS:
        usual_values["epochs"] = NOISED_EPOCHS[algorithm]
    if private and not noised and kind in NEURAL and "batch_size" not in values:
        usual_values["learning_rate"] = WHOLE_RATE
    if noised and kind in NEURAL and algorithm == "sgd":
        usual_values["learning_rate"] = NOISED_RATE
    resolved = usual_values | values
    _check_together(kind, resolved, written, sql)
    return {n: v for n, v in resolved.items() if n not in _NEEDS or _given_its_need(n, resolved)}


SCORING = ("engine", "memory_limit", "max_joined_rows", "allow_cross_join")
"""Options of EVALUATE and PREDICT: those of how the join is made."""


def resolve_scoring(given: Iterable[Given], sql: str | None = None) -> Mapping[str, object]:
    """The options that a scoring sets, by their names. Raises OptionError for others."""
    values: dict[str, object] = {}
    for option in given:
        entry = _known(option, sql)
        if entry.name not in SCORING:
            message = f"option {entry.name} is of TRAIN; EVALUATE and PREDICT take"
            raise _error(f"{message} {', '.join(SCORING)}", option, sql, name=True)
        values[entry.name] = _read(entry, option, sql)
    return values


def _read(entry: OptionEntry, option: Given, sql: str | None) -> object:
    value = entry.type.read(option.value)
    if value is None:
        message = f"option {entry.name} must be {entry.type.text}, got {shown(option.value)}"
        raise _error(message, option, sql, hint=entry.type.advise(option.value))
    return value


_NEEDS = {"momentum": ("optimizer", "momentum"), "embedding": ("head", "linear")}
"""Option -> the value of another one without which it means nothing."""


def _given_its_need(name: str, values: Mapping[str, object]) -> bool:
    other, value = _NEEDS[name]
    return values.get(other) == value


def _defaults(
    kind: str, algorithm: str, values: Mapping[str, object], private: bool
) -> dict[str, object]:
    """Of the options that apply; `values` are those that were written."""
    found: dict[str, object] = {e.name: e.default for e in OPTIONS if e.applies(kind, algorithm)}
    found |= {"algorithm": algorithm, "tolerance": TOLERANCE[algorithm]}
    found["epochs"] = EPOCHS[algorithm]
    usual: dict[str, object] = {}
    if kind in NEURAL:
        found["epochs"] = NEURAL_EPOCHS[algorithm]
        usual = {"optimizer": "adam", "union": "consensus"}
        if algorithm == "admm":
            usual["batch_size"] = NEURAL_BATCH[algorithm]
    if kind in NEURAL or values.get("optimizer") == "adam":
        usual["learning_rate"] = LEARNING_RATE
    if private:
        usual |= PRIVATE | (PRIVATE_NEURAL if kind in NEURAL else {})
    return found | {name: value for name, value in usual.items() if name in found}


def _check_applies(
    entry: OptionEntry, kind: str, algorithm: str, option: Given, sql: str | None
) -> None:
    if kind not in entry.kinds:
        fitting = [k for k in entry.kinds if k in BUILT_KINDS]
        message = f"option {entry.name} does not apply to {kind}, only to {', '.join(fitting)}"
        raise _error(message, option, sql, name=True)
    if algorithm not in entry.of(kind):
        message = (
            f"option {entry.name} does not apply to algorithm '{algorithm}', "
            f"only to {', '.join(entry.of(kind))}"
        )
        raise _error(message, option, sql, name=True)


def _check_together(
    kind: str, values: Mapping[str, object], written: Mapping[str, Given], sql: str | None
) -> None:
    """Options that need others."""
    if kind in NEURAL and values.get("union") == "exact":
        message = f"option union must be 'consensus' for {kind}, got 'exact'"
        hint = "towers have no second moments to sum; leave union out"
        raise _error(message, written["union"], sql, hint=hint)
    if "inner_rounds" in written and values.get("union") != "consensus":
        message = "option inner_rounds applies only with union = 'consensus'"
        raise _error(message, written["inner_rounds"], sql, name=True)
    for name, (other, value) in _NEEDS.items():
        if name in written and values.get(other) != value:
            message = f"option {name} applies only with {other} = '{value}'"
            raise _error(message, written[name], sql, name=True)
    if "patience" in written and not values.get("validation_fraction"):
        message = "option patience needs rows to validate on"
        hint = "add validation_fraction = 0.2"
        raise _error(message, written["patience"], sql, hint=hint, name=True)
    if "decay" not in written:
        return
    schedule, decay = values.get("schedule"), values["decay"]
    if schedule not in DECAY:
        message = "option decay applies only with schedule = 'inverse' or 'exponential'"
        raise _error(message, written["decay"], sql, name=True)
    if schedule == "exponential" and not (isinstance(decay, float) and 0.0 < decay <= 1.0):
        message = (
            "option decay must be a number greater than 0 and at most 1 with schedule = "
            f"'exponential', got {shown(written['decay'].value)}"
        )
        raise _error(message, written["decay"], sql)


def _known(option: Given, sql: str | None) -> OptionEntry:
    entry = _BY_NAME.get(option.name)
    if entry is None:
        message = f"there is no option {option.name}"
        name = ELSEWHERE.get(option.name)
        hint = f"it is called {name} here" if name else meant(option.name, _BY_NAME)
        hint = hint or f"the options are {', '.join(_BY_NAME)}"
        raise _error(message, option, sql, hint=hint, name=True)
    return entry


def _error(
    message: str, option: Given, sql: str | None, *, hint: str | None = None, name: bool = False
) -> OptionError:
    span = getattr(option.name, "span", option.span) if name else option.span
    return OptionError(message, hint=hint, sql=sql, span=span)


def options_markdown() -> str:
    """The table as Markdown, for the documentation."""
    lines = [
        "| option | must be | default | applies to | meaning |",
        "|---|---|---|---|---|",
    ]
    for entry in OPTIONS:
        default = entry.default_text or shown(entry.default)
        cells = (entry.type.text, default, _applies_text(entry), entry.doc)
        lines.append(f"| `{entry.name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _applies_text(entry: OptionEntry) -> str:
    kinds = "" if entry.kinds == KINDS else ", ".join(entry.kinds)
    if entry.algorithms == ALGORITHMS:
        return kinds or "all"
    algorithms = ", ".join(entry.algorithms)
    if kinds:
        return f"{algorithms} of {kinds}"
    more = [a for a in entry.neural if a not in entry.algorithms]
    return algorithms + (f"; {', '.join(more)} of mlp_*" if more else "")
