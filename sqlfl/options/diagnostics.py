"""Options of statements about a model: `ROC OF MODEL`, `INFERENCE OF MODEL` and others, and EXPORT.

Each diagnostic is a frozen dataclass of its options. Its statement also takes the options of
scoring.
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
    OptionType,
    choice,
    integer,
    meant,
    number,
)

G = TypeVar("G", bound=Given)
ANY, CLASSES, NUMBERS = "any target", "classes", "numbers"


@dataclass(frozen=True, kw_only=True)
class Diagnostic:
    """A statement that compares a model's predictions with the target, and its options."""

    word: ClassVar[str]
    """The statement's keyword, in lower case."""
    of: ClassVar[str] = CLASSES
    """The targets that it applies to: ANY, CLASSES or NUMBERS."""
    at: ClassVar[bool] = False
    """True if the statement takes AT threshold."""
    kinds: ClassVar[tuple[str, ...]] = KINDS
    """Kinds of models that it applies to."""
    refusal: ClassVar[tuple[str, str]] = ("", "")
    """Why it does not apply to other kinds, and which statement to use instead."""
    words: ClassVar[str]
    """A description of the result, for hints."""

    def fault(self, kind: str) -> tuple[str, str, str] | None:
        """Return an option that does not fit this kind of model, with the reason and a hint; else
        None.
        """
        return None


@dataclass(frozen=True, kw_only=True)
class Quality(Diagnostic):
    """Tables of predictions beside the truth."""

    threshold: float | None = None


@dataclass(frozen=True, kw_only=True)
class Cells(Quality):
    """Diagnostics that report groups of rows."""

    min_cell: int = option(
        integer(1),
        1,
        "minimum rows of each reported group; thresholds and bins are merged until they have "
        "it, and smaller cells of a matrix are NULL",
    )


@dataclass(frozen=True, kw_only=True)
class Metrics(Quality):
    word = "metrics"
    of = ANY
    at = True
    words = "all metrics, for all rows and for each class"


@dataclass(frozen=True, kw_only=True)
class Roc(Cells):
    word = "roc"
    words = "true and false positives, recall and precision at each threshold"
    points: int = option(
        integer(2),
        1000,
        "maximum thresholds of a curve; a longer curve is thinned evenly over the rows",
    )


@dataclass(frozen=True, kw_only=True)
class Confusion(Cells):
    word = "confusion"
    at = True
    words = "how many rows of each class the model assigned to each class"


@dataclass(frozen=True, kw_only=True)
class Binned(Cells):
    bins: int = option(integer(1), 10, "maximum bins of the predictions")
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
        "CALIBRATION compares the mean of predictions with the mean of targets",
        "EVALUATE MODEL reports its coverage: the share of rows whose target is at most the "
        "prediction",
    )
    words = "for each bin of predictions, their mean and the mean of the targets"


@dataclass(frozen=True, kw_only=True)
class ResidualsOptions(Binned):
    word = "residuals"
    of = NUMBERS
    words = "for each bin of predictions, how far the targets were from them"


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
        "IMPORTANCE OF MODEL reports how much each feature matters, for any model",
    )
    words = "for each coefficient its standard error, test and confidence interval"
    robust: bool = option(
        BOOLEAN,
        False,
        "standard errors that hold for any variance of the target",
    )
    cluster: str | None = option(
        ALIAS,
        None,
        "table with independent rows; joined rows of one of them are dependent",
    )
    firth: bool = option(
        BOOLEAN,
        False,
        "logistic_regression by Firth's penalised likelihood",
    )
    base: Mapping[str, str] | None = option(
        CATEGORIES,
        None,
        "reference category of features, by name",
        default_text="the most frequent in training",
    )
    confidence: float = option(
        CONFIDENCE, 0.95, "share of intervals that should contain the true coefficient"
    )
    quasi: bool = option(
        BOOLEAN,
        False,
        "multiply the variance of logistic and poisson models by the dispersion",
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
        """Return the features that have a base, and their bases."""
        names = tuple(name for name in features if name in (self.base or {}))
        return names, tuple((self.base or {})[name] for name in names)


@dataclass(frozen=True, kw_only=True)
class Importance(Diagnostic):
    word = "importance"
    of = ANY
    words = "how much worse the metric becomes when a feature's values are permuted"
    repeats: int = option(integer(1, 1000), 5, "times that each feature is permuted")
    seed: int | None = option(
        integer(0),
        None,
        "makes permutations repeatable, and known to the coordinator",
        default_text="secret, drawn by each party",
    )
    metric: str = option(
        choice("loss", *_SHARES, *_DISTANCES),
        "loss",
        "metric that permuting makes worse, one of the model's",
    )

    def fault(self, kind: str) -> tuple[str, str, str] | None:
        spec = kind_of(kind)
        metrics = spec.metrics
        if spec.classifies:
            metrics = tuple(n for n in _SHARES if n not in _AREA or spec.target != ANY_CLASSES)
        if self.metric in ("loss", *metrics):
            return None
        return "metric", f"models of kind {kind} have no {self.metric}", "metric = 'loss'"


QUALITY = (Metrics, Roc, Confusion, CalibrationOptions, ResidualsOptions)


@dataclass(frozen=True, kw_only=True)
class ContributionsOptions(Diagnostic):
    word = "contributions"
    of = ANY
    words = "for each joined row, how much each table adds to the score"
    features: bool = option(
        BOOLEAN,
        False,
        "also how much each feature of a linear model adds to each row",
    )

    def fault(self, kind: str) -> tuple[str, str, str] | None:
        if not (self.features and kind_of(kind).towers):
            return None
        return (
            "features",
            f"in a {kind}, only all features of a table together add to the score",
            ("leave features out; IMPORTANCE OF MODEL reports how much each matters"),
        )


@dataclass(frozen=True, kw_only=True)
class SkewOptions(Diagnostic):
    word = "skew"
    of = ANY
    words = "how features differ from their values in the training rows"
    threshold: float = option(number(0), 0.3, "`distance` above which a feature has `drifted`")
    min_cell: int = option(integer(1), 5, "minimum active rows of a mean, a bin and a category")


@dataclass(frozen=True, kw_only=True)
class Check(Diagnostic):
    """CHECK: a diagnostic of a query, not of a model."""

    word = "check"
    of = ANY
    words = "how the tables join, what the features are like, and what looks like a mistake"
    min_cell: int = option(
        integer(1),
        5,
        "minimum rows behind a mean, and at or beyond each end of a range",
    )
    explains: bool = option(
        BOOLEAN,
        True,
        "with TARGET, also how well each feature alone predicts it; parties receive the targets, "
        "summed per row",
    )


LOOKS: Mapping[str, type[Diagnostic]] = MappingProxyType(
    {look.word: look for look in (*QUALITY, Inference, Importance)}
)
"""Diagnostics of a model over rows with a target, by keyword."""
ALL: Mapping[str, type[Diagnostic]] = MappingProxyType(
    {**LOOKS, ContributionsOptions.word: ContributionsOptions, SkewOptions.word: SkewOptions}
)


def resolve_look(
    name: str, kind: str, given: Iterable[G], sql: str, threshold: float | None
) -> tuple[Diagnostic, tuple[G, ...]]:
    """Resolve the diagnostic of a model of this kind. Return it, and the options of scoring.

    Raise OptionError for a value of the wrong type, and for a diagnostic that does not apply to
    this kind of model.
    """
    diagnostic = ALL[name]
    classifies = kind_of(kind).classifies
    if kind not in diagnostic.kinds:
        why, instead = diagnostic.refusal
        raise OptionError(f"{why}, and the model is a {kind}", hint=instead)
    if (diagnostic.of == CLASSES and not classifies) or (diagnostic.of == NUMBERS and classifies):
        has = "classes" if classifies else "a number"
        instead = "calibration" if diagnostic.of == NUMBERS else "residuals"
        raise OptionError(
            f"{name.upper()} is of {diagnostic.of}, and the target of a {kind} is {has}",
            hint=f"{instead.upper()} OF MODEL shows {LOOKS[instead].words}",
        )
    if threshold is not None and not classifies:
        raise OptionError(f"AT is of probabilities, and a {kind} has none", hint="leave AT out")
    named, rest = _split(diagnostic, given, sql)
    values = dict(named.values)
    if issubclass(diagnostic, Quality):
        values["threshold"] = threshold
    look = diagnostic(**values)
    fault = look.fault(kind)
    if fault is not None:
        option_, why, hint = fault
        raise OptionError(why, hint=hint, sql=sql, span=named.places[option_].span)
    return look, rest


def resolve_check(given: Iterable[G], sql: str) -> tuple[Check, tuple[G, ...]]:
    """Resolve the options of CHECK. Return them, and the options of scoring."""
    named, rest = _split(Check, given, sql)
    return Check(**named.values), rest


_CALLED = {
    "alpha": "confidence, which is 1 - alpha,",
    **dict.fromkeys(("level", "conf_level", "confidence_level"), "confidence"),
    **dict.fromkeys(("cov_type", "hc0", "hc1", "hc3", "sandwich", "vcov"), "robust"),
    **dict.fromkeys(("groups", "clusters", "cluster_by", "id", "subject"), "cluster"),
    **dict.fromkeys(("reference", "ref", "baseline", "contrast"), "base"),
    **dict.fromkeys(("overdispersion", "scale", "dispersion"), "quasi"),
    **dict.fromkeys(("n_repeats", "n", "permutations"), "repeats"),
    **dict.fromkeys(("scoring", "score"), "metric"),
    **dict.fromkeys(("random_state", "random_seed"), "seed"),
    **dict.fromkeys(("cutoff", "limit"), "threshold"),
}
"""Names in statsmodels, R and scikit-learn -> the option here."""


def _split(
    diagnostic: type[Diagnostic], given: Iterable[G], sql: str
) -> tuple[WrittenOptions, tuple[G, ...]]:
    """Split the written options into the diagnostic's options and those of scoring."""
    entries = {entry.name: entry for entry in entries_of(diagnostic)}
    given = tuple(given)
    for written in given:
        if written.name not in {**entries, **with_options().entries}:
            known = (*entries, *SCORING)
            called = _CALLED.get(written.name, "")
            hint = f"it is called {called} here" if called.partition(",")[0] in entries else None
            hint = hint or meant(written.name, known) or f"the options are {', '.join(known)}"
            message = f"there is no option {written.name} of {diagnostic.word.upper()}"
            raise error(message, written, sql, hint=hint, name=True)
    named = OptionTable("option", entries, {}).read((o for o in given if o.name in entries), sql)
    return named, tuple(o for o in given if o.name not in entries)


def looks_markdown(looks: Iterable[type[Diagnostic]] = tuple(ALL.values())) -> str:
    """The table of these looks' options, for the documentation."""
    having: dict[str, list[str]] = {}
    entries = {}
    for look in looks:
        for entry in entries_of(look):
            entries[entry.name] = entry
            having.setdefault(entry.name, []).append(look.word.upper())
    shared = len(set(map(tuple, having.values()))) == 1
    heads = ("option", "must be", "default", *(() if shared else ("of",)), "meaning")
    rows = (
        (
            *(name, entry.type.cell, entry.usually),
            *(() if shared else (", ".join(having[name]),)),
            entry.doc,
        )
        for name, entry in entries.items()
    )
    return markdown(heads, rows)


FORMATS = ("safetensors", "onnx", "sql")


def _read_formats(value: object) -> tuple[str, ...] | None:
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, tuple) or not given:
        return None
    lowered = {v.lower() if isinstance(v, str) else v for v in given}
    return tuple(f for f in FORMATS if f in lowered) if lowered <= set(FORMATS) else None


FORMATS_TYPE = OptionType(
    f"a list of {', '.join(repr(f) for f in FORMATS)}, or one of them",
    _read_formats,
    lambda value: meant(value, FORMATS),
)


@dataclass(frozen=True, kw_only=True)
class Export:
    formats: tuple[str, ...] = option(
        FORMATS_TYPE,
        FORMATS,
        "formats in which each block is written; IMPORT reads safetensors; the first two need "
        "`pip install 'sqlfl[export]'`",
    )


def resolve_export(given: Iterable[Given], sql: str) -> Export:
    """Resolve the options of EXPORT MODEL. Raise OptionError, with the place in `sql`, for invalid
    ones.
    """
    entries = {entry.name: entry for entry in entries_of(Export)}
    given = tuple(given)
    for written in given:
        if written.name not in entries:
            hint = meant(written.name, entries) or f"the options are {', '.join(entries)}"
            message = f"there is no option {written.name} of EXPORT"
            raise error(message, written, sql, hint=hint, name=True)
    return Export(**OptionTable("option", entries, {}).read(given, sql).values)
