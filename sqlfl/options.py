"""The options of WITH: one table of names, types, defaults, ranges and what each applies to."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from sqlfl.errors import OptionError, nearest

LINEAR = "linear_regression"
LOGISTIC = "logistic_regression"
SOFTMAX = "softmax_regression"
GENERALISED = (LINEAR, LOGISTIC, SOFTMAX)
"""Generalised linear models."""
NEURAL = ("mlp_regressor", "mlp_classifier")
BUILT_KINDS = (*GENERALISED, *NEURAL)
LATER_KINDS = ("lasso",)
KINDS = (*BUILT_KINDS, *LATER_KINDS)
CLASSIFIERS = (LOGISTIC, SOFTMAX, "mlp_classifier")

ALGORITHMS = ("lbfgs", "sgd", "admm")
EPOCHS = {"lbfgs": 100, "sgd": 100, "admm": 50}
"""Default number of epochs; for lbfgs iterations."""
TOLERANCE = {"lbfgs": 1e-11, "sgd": 0.0, "admm": 1e-7}
SCHEDULES = ("constant", "inverse", "exponential", "cosine")
DECAY = {"inverse": 0.25, "exponential": 0.95}
"""Default `decay` of the schedules that have one."""

LEARNING_RATE = 0.01
"""Default step length of Adam, and of all steps of towers."""
NETWORKS = {"us-uk": (0.136, 0.42e9), "us-us": (0.067, 1.15e9)}
"""Latency in seconds of a round, and bandwidth in bits per second, as TablePuppet measured them."""

LARGEST_WHOLE = 10**15
"""Whole numbers end where a double still tells them from their neighbours."""

_UNITS = ("B", "KB", "MB", "GB", "TB", "KIB", "MIB", "GIB", "TIB")


class Given(Protocol):
    """An option as it was written; `span` is the place of its value."""

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> object: ...
    @property
    def span(self) -> tuple[int, int]: ...


@dataclass(frozen=True)
class OptionType:
    """A type of option: how it is said, and how a written value is read (None: it is none)."""

    text: str
    read: Callable[[object], object | None]


def _number(least: float, above: bool = False, most: float = math.inf) -> OptionType:
    def read(value: object) -> object | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        inside = (value > least if above else value >= least) and value <= most
        return float(value) if inside and value <= sys.float_info.max else None

    low = "greater than 0" if above else f"from {least:g}"
    high = "" if most == math.inf else f" and at most {most:g}" if above else f" to {most:g}"
    return OptionType(f"a number {low}{high or ('' if above else ' up')}", read)


def _integer(least: int) -> OptionType:
    def read(value: object) -> object | None:
        whole = isinstance(value, int) and not isinstance(value, bool)
        inside = isinstance(value, int) and least <= value <= LARGEST_WHOLE
        return value if whole and inside else None

    return OptionType(f"a whole number from {least} up", read)


def _choice(*choices: str) -> OptionType:
    def read(value: object) -> object | None:
        lowered = value.lower() if isinstance(value, str) else None
        return lowered if lowered in choices else None

    *most, last = (f"'{c}'" for c in choices)
    return OptionType(f"{', '.join(most)} or {last}", read)


def _read_size(value: object) -> object | None:
    """Text that DuckDB takes for a size."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value}B" if value > 0 else None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", str(value).strip())
    if not isinstance(value, str) or match is None or match[2].upper() not in _UNITS:
        return None
    return f"{match[1]}{match[2]}" if float(match[1]) > 0 else None


def _read_boolean(value: object) -> object | None:
    return value if isinstance(value, bool) else None


def _read_widths(value: object) -> object | None:
    if not isinstance(value, tuple) or not value:
        return None
    whole = all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in value)
    return value if whole else None


def _read_text(value: object) -> object | None:
    return value if isinstance(value, str) and value else None


def _read_class_weight(value: object) -> object | None:
    """'balanced', or a dictionary of numbers by class."""
    if isinstance(value, str):
        return value.lower() if value.lower() == "balanced" else None
    items = getattr(value, "items", None)
    if not isinstance(items, tuple) or not items:
        return None
    number = _number(0).read
    read = {key: number(weight) for key, weight in items}
    return None if None in read.values() else read


_SIZE = OptionType("a size such as '4GB' or '512MiB', or bytes", _read_size)
_BOOLEAN = OptionType("true or false", _read_boolean)
_MODEL = OptionType("the name of a model", _read_text)
_CLASS_WEIGHT = OptionType(
    "'balanced', or a number from 0 up for each class, such as {'yes': 5, 'no': 1}",
    _read_class_weight,
)
_WIDTHS = OptionType("a list of whole numbers from 1 up, such as [16, 8]", _read_widths)


@dataclass(frozen=True)
class OptionEntry:
    """One line of the table."""

    name: str
    type: OptionType
    default: object
    """None: see `default_text`."""
    doc: str
    algorithms: tuple[str, ...] = ALGORITHMS
    kinds: tuple[str, ...] = KINDS
    default_text: str = ""
    built: bool = True


_PER_ALGORITHM = ", ".join(f"{n} ({a})" for a, n in EPOCHS.items())
_TOLERANCES = ", ".join(f"{n:g} ({a})" for a, n in TOLERANCE.items())

OPTIONS: tuple[OptionEntry, ...] = (
    OptionEntry("engine", _choice("auto", "sql", "arrays"), "auto",
        "what computes the local updates: queries on the party's database, or arrays beside it"),
    OptionEntry("memory_limit", _SIZE, None,
        "what the coordinator's join may use, and what the arrays of an engine must fit in half of",
        default_text="4 GiB for the arrays"),
    OptionEntry("algorithm", _choice(*ALGORITHMS), "lbfgs", "how the model is trained"),
    OptionEntry("epochs", _integer(1), None,
        "passes over the joined rows; for lbfgs iterations", default_text=_PER_ALGORITHM),
    OptionEntry("batch_size", _integer(1), None,
        "joined rows per step", ("sgd",), default_text="all rows"),
    OptionEntry("learning_rate", _number(0, above=True), None,
        "step length", ("sgd",), default_text="from the curvature of the loss"),
    OptionEntry("schedule", _choice(*SCHEDULES), None,
        "how the step length changes over the epochs", ("sgd",),
        default_text="'inverse' for batches without learning_rate, else 'constant'"),
    OptionEntry("decay", _number(0), None,
        "how fast the step length falls, with schedule = 'inverse' or 'exponential' (from above 0 "
        "to 1)", ("sgd",),
        default_text=", ".join(f"{v:g} ({name})" for name, v in DECAY.items())),
    OptionEntry("rho", _number(1e-4, most=1e4), None,
        "weight of the penalty that ties the blocks together", ("admm",),
        default_text="the mean curvature of the loss"),
    OptionEntry("union", _choice("exact", "consensus"), "exact",
        "how the clients of one slot find their common block", ("admm",)),
    OptionEntry("inner_rounds", _integer(1), 10,
        "rounds of consensus in each epoch; only with union = 'consensus'", ("admm",)),
    OptionEntry("l2", _number(0), 1e-4,
        "weight of half the squared norm of the weights of the encoded columns"),
    OptionEntry("tolerance", _number(0), None,
        "training ends where the objective changes by less than this, relatively",
        default_text=_TOLERANCES),
    OptionEntry("seed", _integer(0), 0,
        "of the mini-batches and of the curvature estimate; rows are numbered at random in every "
        "run, so that runs of one seed differ in their batches"),
    OptionEntry("allow_cross_join", _BOOLEAN, False,
        "take a query that joins tables without an equality"),
    OptionEntry("hidden", _WIDTHS, None, "widths of the hidden layers", ("sgd", "admm"),
        ("mlp_regressor", "mlp_classifier"), built=False),
    OptionEntry("validation_fraction", _number(0, most=0.9), 0.0,
        "share of the label's rows that training leaves out, to validate on"),
    OptionEntry("patience", _integer(1), None,
        "training ends after so many epochs without a lower valid_loss, and keeps the epoch where "
        "that was least; needs validation_fraction", default_text="no early end"),
    OptionEntry("class_weight", _CLASS_WEIGHT, None,
        "by what the weights of a class's rows are multiplied: given numbers (1 for classes that "
        "are not named), or so that all classes weigh the same", kinds=CLASSIFIERS,
        default_text="1 for all"),
    OptionEntry("warm_start", _MODEL, None,
        "the model whose blocks training starts from: of the same kind, columns and classes",
        default_text="weights of 0"),
)  # fmt: skip

_BY_NAME = {entry.name: entry for entry in OPTIONS}


def check_kind(kind: str, *, sql: str | None = None, span: tuple[int, int] | None = None) -> None:
    """Raise OptionError unless a model of this kind can be trained."""
    if kind in BUILT_KINDS:
        return
    if kind in LATER_KINDS:
        message = f"model kind {kind} is not built yet"
        raise OptionError(message, hint=f"there is {', '.join(BUILT_KINDS)}", sql=sql, span=span)
    message = f"model kind must be one of {', '.join(BUILT_KINDS)}, got {kind}"
    raise OptionError(message, hint=_nearest(kind, KINDS), sql=sql, span=span)


def resolve(kind: str, given: Iterable[Given], sql: str | None = None) -> Mapping[str, object]:
    """Every option that applies to the model kind and the algorithm, with its value.

    `kind` carries its place in the attribute `span` where it was parsed. None stands for: all rows
    (batch_size), from the curvature (learning_rate, rho), the database's own (memory_limit, which
    is else text that DuckDB takes for a size). Raises OptionError for all that is not in the table.
    """
    check_kind(kind, sql=sql, span=getattr(kind, "span", None))
    values: dict[str, object] = {}
    written: dict[str, Given] = {}
    for option in given:
        entry = _known(option, sql)
        if option.name in written:
            raise _error(f"option {option.name} is given twice", option, sql, name=True)
        written[option.name] = option
        value = entry.type.read(option.value)
        if value is None:
            message = f"option {entry.name} must be {entry.type.text}, got {_shown(option.value)}"
            raise _error(message, option, sql, hint=_advice(entry, option.value))
        values[entry.name] = value
    algorithm = str(values.get("algorithm", _BY_NAME["algorithm"].default))
    for name, option in written.items():
        entry = _BY_NAME[name]
        if kind not in entry.kinds:
            fitting = [k for k in entry.kinds if k in BUILT_KINDS]
            message = f"option {name} does not apply to {kind}, only to {', '.join(fitting)}"
            raise _error(message, option, sql, name=True)
        if algorithm not in entry.algorithms:
            message = (
                f"option {name} does not apply to algorithm '{algorithm}', "
                f"only to {', '.join(entry.algorithms)}"
            )
            raise _error(message, option, sql, name=True)
    if "inner_rounds" in written and values.get("union", "exact") != "consensus":
        message = "option inner_rounds applies only with union = 'consensus'"
        raise _error(message, written["inner_rounds"], sql, name=True)
    _check_together(values, written, sql)
    defaults: dict[str, object] = {
        e.name: e.default
        for e in OPTIONS
        if e.built and algorithm in e.algorithms and kind in e.kinds
    }
    defaults |= {"epochs": EPOCHS[algorithm], "tolerance": TOLERANCE[algorithm]}
    return defaults | values


def _check_together(
    values: Mapping[str, object], written: Mapping[str, Given], sql: str | None
) -> None:
    """Options that need others."""
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
            f"'exponential', got {_shown(written['decay'].value)}"
        )
        raise _error(message, written["decay"], sql)


def _known(option: Given, sql: str | None) -> OptionEntry:
    entry = _BY_NAME.get(option.name)
    if entry is None:
        names = [e.name for e in OPTIONS if e.built]
        message = f"there is no option {option.name}"
        hint = _nearest(option.name, names) or f"the options are {', '.join(names)}"
        raise _error(message, option, sql, hint=hint, name=True)
    if not entry.built:
        raise _error(f"option {entry.name} is not built yet", option, sql, name=True)
    return entry


def _error(
    message: str, option: Given, sql: str | None, *, hint: str | None = None, name: bool = False
) -> OptionError:
    span = getattr(option.name, "span", option.span) if name else option.span
    return OptionError(message, hint=hint, sql=sql, span=span)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(_shown(v) for v in value)}]"
    items = getattr(value, "items", None)
    if isinstance(items, tuple):
        return "{" + ", ".join(f"'{key}': {_shown(v)}" for key, v in items) + "}"
    return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value)


def _advice(entry: OptionEntry, value: object) -> str | None:
    if entry.type.text.startswith("a whole") and isinstance(value, int) and value > LARGEST_WHOLE:
        return f"whole numbers go up to {LARGEST_WHOLE:.0e}"
    choices = re.findall(r"'([a-z]+)'", entry.type.text)
    return _nearest(value, choices) if isinstance(value, str) else None


def _nearest(name: str, known: Iterable[str]) -> str | None:
    found = nearest(name, known)
    return None if found is None else f"did you mean {found}?"


def options_markdown() -> str:
    """The table as Markdown, for the documentation."""
    lines = [
        "| option | must be | default | applies to | meaning |",
        "|---|---|---|---|---|",
    ]
    for entry in OPTIONS:
        default = entry.default_text or ("none" if entry.default is None else _shown(entry.default))
        applies = "all" if entry.algorithms == ALGORITHMS else ", ".join(entry.algorithms)
        if entry.kinds != KINDS:
            applies = ", ".join(entry.kinds)
        meaning = entry.doc if entry.built else f"{entry.doc} (not built yet)"
        lines.append(f"| `{entry.name}` | {entry.type.text} | {default} | {applies} | {meaning} |")
    return "\n".join(lines) + "\n"
