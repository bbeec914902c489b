"""What statements show of a model over rows: `ROC OF MODEL`, `INFERENCE OF MODEL` and the like.

Each is a frozen dataclass of its options; its statement may set those of scoring beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, TypeVar

from sqlfl.base.errors import OptionError
from sqlfl.models.kinds import ANY_CLASSES, KINDS, kind_of
from sqlfl.options.entries import (
    Given,
    OptionTable,
    WrittenOptions,
    entries_of,
    error,
    markdown,
    option,
)
from sqlfl.options.training import SCORING, with_options
from sqlfl.options.types import (
    ALIAS,
    BOOLEAN,
    CATEGORIES,
    CONFIDENCE,
    choice,
    integer,
    meant,
    number,
)

G = TypeVar("G", bound=Given)
ANY, CLASSES, NUMBERS = "any target", "classes", "numbers"


@dataclass(frozen=True, kw_only=True)
class Diagnostic:
    """One way of looking at a model's predictions beside the truth."""

    word: ClassVar[str]
    """Of the statement, in lower case."""
    of: ClassVar[str] = CLASSES
    """What it is of: ANY, CLASSES or NUMBERS."""
    at: ClassVar[bool] = False
    """It takes AT threshold."""
    kinds: ClassVar[tuple[str, ...]] = KINDS
    """Of models that it is of."""
    refusal: ClassVar[tuple[str, str]] = ("", "")
    """Why it is of no others, and what is instead."""
    words: ClassVar[str]
    """What it shows."""

    def fault(self, kind: str) -> tuple[str, str, str] | None:
        """What does not go with models of this kind: the option, why, and what to do instead."""
        return None


@dataclass(frozen=True, kw_only=True)
class Quality(Diagnostic):
    """Tables of predictions beside the truth."""

    threshold: float | None = None


@dataclass(frozen=True, kw_only=True)
class Cells(Quality):
    """What shows groups of rows."""

    min_cell: int = option(
        integer(1),
        1,
        "rows that whatever is shown must count at least; thresholds and bins are joined until "
        "they do, cells of a matrix are NULL",
    )


@dataclass(frozen=True, kw_only=True)
class Metrics(Quality):
    word = "metrics"
    of = ANY
    at = True
    words = "all metrics, of all rows and of each class"


@dataclass(frozen=True, kw_only=True)
class Roc(Cells):
    word = "roc"
    words = "of each threshold the true and false positives, recall and precision"
    points: int = option(
        integer(2),
        1000,
        "thresholds of a curve, at most: of more, these are spread evenly over the rows",
    )


@dataclass(frozen=True, kw_only=True)
class Confusion(Cells):
    word = "confusion"
    at = True
    words = "how many rows of each class were taken for which"


@dataclass(frozen=True, kw_only=True)
class Binned(Cells):
    bins: int = option(integer(1), 10, "bins of the predictions, at most")
    strategy: str = option(
        choice("quantile", "uniform"),
        "quantile",
        "'quantile': bins of about as many rows each; 'uniform': bins of equal width",
    )


@dataclass(frozen=True, kw_only=True)
class CalibrationOptions(Binned):
    word = "calibration"
    of = ANY
    kinds = tuple(kind for kind in KINDS if kind != "quantile_regression")
    refusal = (
        "CALIBRATION compares means, of predictions and of what is true",
        "EVALUATE MODEL shows its coverage: the share of rows that are at most what is predicted",
    )
    words = "of bins of the predictions, how they compare with what was true"


@dataclass(frozen=True, kw_only=True)
class ResidualsOptions(Binned):
    word = "residuals"
    of = NUMBERS
    words = "of bins of the predictions, how far the truth lay from them"


_ESTIMATED = (
    "linear_regression",
    "logistic_regression",
    "softmax_regression",
    "poisson_regression",
    "gamma_regression",
    "huber_regression",
    "quantile_regression",
)
_QUASI = ("logistic_regression", "poisson_regression")
_AREA, _SHARES = ("auc",), ("accuracy", "auc", "log_loss")
_DISTANCES = ("rmse", "mae", "r2")


@dataclass(frozen=True, kw_only=True)
class Inference(Diagnostic):
    word = "inference"
    of = ANY
    kinds = _ESTIMATED
    refusal = (
        f"standard errors are of {', '.join(_ESTIMATED[:-1])} and {_ESTIMATED[-1]}",
        "IMPORTANCE OF MODEL shows what each feature is worth to any model",
    )
    words = "of each coefficient its standard error, test and confidence interval"
    robust: bool = option(
        BOOLEAN,
        False,
        "standard errors that hold whatever the variance of the target: HC1 of linear models, HC0 "
        "of others",
    )
    cluster: str | None = option(
        ALIAS,
        None,
        "alias of a table of the query: joined rows of one row of it may depend on each other, and "
        "those of different rows do not",
    )
    firth: bool = option(
        BOOLEAN,
        False,
        "estimates of logistic_regression by Firth's penalised likelihood, which are finite also "
        "where rows of one class can be told apart",
    )
    base: Mapping[str, str] | None = option(
        CATEGORIES,
        None,
        "of features, by name, the category that their others are compared with",
        default_text="the most frequent in training",
    )
    confidence: float = option(
        CONFIDENCE, 0.95, "the share of intervals that are to hold the true coefficient"
    )
    quasi: bool = option(
        BOOLEAN,
        False,
        "the variance is that of the model times the dispersion, which the residuals tell (of "
        "logistic and poisson models; others have it anyway); tests are by Student's t then",
    )

    def fault(self, kind: str) -> tuple[str, str, str] | None:
        if self.quasi and kind not in _QUASI:
            return "quasi", f"a {kind} has no variance without a scale", "leave quasi out"
        if self.quasi and (self.robust or self.cluster is not None):
            why = "residuals decide errors that are robust, whatever the dispersion"
            return "quasi", why, "leave quasi or the other option out"
        if not self.firth:
            return None
        if kind != "logistic_regression":
            why = f"firth is of logistic_regression, and the model is a {kind}"
            return "firth", why, "leave firth out"
        if self.quasi or self.robust or self.cluster is not None:
            other = "quasi" if self.quasi else "robust" if self.robust else "cluster"
            why = f"{other} errors are of the likelihood without Firth's penalty"
            return other, why, f"leave out {other}, or firth"
        return None

    def compared(self, features: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Those of the features whose base is given, and their bases."""
        names = tuple(name for name in features if name in (self.base or {}))
        return names, tuple((self.base or {})[name] for name in names)


@dataclass(frozen=True, kw_only=True)
class Importance(Diagnostic):
    word = "importance"
    of = ANY
    words = "how much worse the metric is where a feature's values are those of other rows"
    repeats: int = option(integer(1, 1000), 5, "times that each feature is permuted")
    seed: int | None = option(
        integer(0),
        None,
        "permutations that are the same whenever the rows are; without it each party draws its "
        "own, and tells nobody",
        default_text="drawn by each party",
    )
    metric: str = option(
        choice("loss", *_SHARES, *_DISTANCES),
        "loss",
        "what is measured: 'loss' of any model, 'accuracy', 'auc' (of two classes) and 'log_loss' "
        "of classes, 'rmse', 'mae' and 'r2' of numbers",
    )

    def fault(self, kind: str) -> tuple[str, str, str] | None:
        found = kind_of(kind)
        own = found.metrics
        if found.classifies:
            own = tuple(n for n in _SHARES if n not in _AREA or found.target != ANY_CLASSES)
        if self.metric in ("loss", *own):
            return None
        return "metric", f"models of kind {kind} have no {self.metric}", "metric = 'loss'"


QUALITY = (Metrics, Roc, Confusion, CalibrationOptions, ResidualsOptions)


@dataclass(frozen=True, kw_only=True)
class ContributionsOptions(Diagnostic):
    word = "contributions"
    of = ANY
    words = "of each joined row what every table adds to the score"
    features: bool = option(
        BOOLEAN,
        False,
        "also what each feature adds, which its party tells of every row: of linear models only",
    )

    def fault(self, kind: str) -> tuple[str, str, str] | None:
        if not (self.features and kind_of(kind).towers):
            return None
        return (
            "features",
            f"the tables of a {kind} add what their features make together",
            ("leave features out; IMPORTANCE OF MODEL shows what each is worth"),
        )


@dataclass(frozen=True, kw_only=True)
class SkewOptions(Diagnostic):
    word = "skew"
    of = ANY
    words = "how features differ from those of the rows that the model was trained on"
    threshold: float = option(number(0), 0.3, "of `distance`, above which a feature has `drifted`")
    min_cell: int = option(
        integer(1), 5, "active rows that a mean, a bin and a category must be of"
    )


@dataclass(frozen=True, kw_only=True)
class Check(Diagnostic):
    """Of no model: of a query that one may be trained on."""

    word = "check"
    of = ANY
    words = "how the tables join, what the features are like, and what looks like a mistake"
    min_cell: int = option(
        integer(1),
        5,
        "rows that a range or a mean must be of: a range is from the value that so many rows have "
        "or are below, to that which so many have or are above",
    )
    explains: bool = option(
        BOOLEAN,
        True,
        "with TARGET, also how well each feature alone tells it: parties get the targets, summed "
        "per row",
    )


LOOKS: Mapping[str, type[Diagnostic]] = MappingProxyType(
    {look.word: look for look in (*QUALITY, Inference, Importance)}
)
"""Of rows that have a target."""
ALL: Mapping[str, type[Diagnostic]] = MappingProxyType(
    {**LOOKS, ContributionsOptions.word: ContributionsOptions, SkewOptions.word: SkewOptions}
)


def resolve_look(
    name: str, kind: str, given: Iterable[G], sql: str, threshold: float | None
) -> tuple[Diagnostic, tuple[G, ...]]:
    """The look that a statement asks for, of a model of this kind, and the options that are not its
    own, but of scoring.

    Raises OptionError for a value that is none of its option's, and for what a model of this kind
    has not.
    """
    found = ALL[name]
    classifies = kind_of(kind).classifies
    if kind not in found.kinds:
        why, instead = found.refusal
        raise OptionError(f"{why}, and the model is a {kind}", hint=instead)
    if (found.of == CLASSES and not classifies) or (found.of == NUMBERS and classifies):
        has = "classes" if classifies else "a number"
        instead = "calibration" if found.of == NUMBERS else "residuals"
        raise OptionError(
            f"{name.upper()} is of {found.of}, and the target of a {kind} is {has}",
            hint=f"{instead.upper()} OF MODEL shows {LOOKS[instead].words}",
        )
    if threshold is not None and not classifies:
        raise OptionError(f"AT is of probabilities, and a {kind} has none", hint="leave AT out")
    own, rest = _split(found, given, sql)
    values = dict(own.values)
    if issubclass(found, Quality):
        values["threshold"] = threshold
    look = found(**values)
    fault = look.fault(kind)
    if fault is not None:
        option_, why, hint = fault
        raise OptionError(why, hint=hint, sql=sql, span=own.places[option_].span)
    return look, rest


def resolve_check(given: Iterable[G], sql: str) -> tuple[Check, tuple[G, ...]]:
    """Likewise of CHECK, which is of no model."""
    own, rest = _split(Check, given, sql)
    return Check(**own.values), rest


def _split(
    found: type[Diagnostic], given: Iterable[G], sql: str
) -> tuple[WrittenOptions, tuple[G, ...]]:
    """The look's own options, and those of scoring."""
    entries = {entry.name: entry for entry in entries_of(found)}
    given = tuple(given)
    for written in given:
        if written.name not in {**entries, **with_options().entries}:
            known = (*entries, *SCORING)
            hint = meant(written.name, known) or f"the options are {', '.join(known)}"
            message = f"there is no option {written.name} of {found.word.upper()}"
            raise error(message, written, sql, hint=hint, name=True)
    own = OptionTable("option", entries, {}).read((o for o in given if o.name in entries), sql)
    return own, tuple(o for o in given if o.name not in entries)


def looks_markdown(looks: Iterable[type[Diagnostic]] = tuple(ALL.values())) -> str:
    """The table of these looks' options, for the documentation."""
    having: dict[str, list[str]] = {}
    entries = {}
    for look in looks:
        for entry in entries_of(look):
            entries[entry.name] = entry
            having.setdefault(entry.name, []).append(look.word.upper())
    return markdown(
        ("option", "must be", "default", "of", "meaning"),
        (
            (name, entry.type.text, entry.usually, ", ".join(having[name]), entry.doc)
            for name, entry in entries.items()
        ),
    )
