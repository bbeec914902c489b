"""The options of TUNE: those of training, some with candidates, and how it chooses one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType

from sqlfl.base.errors import OptionError
from sqlfl.models.kinds import kind_of
from sqlfl.options.diagnostics import Importance
from sqlfl.options.entries import (
    Entry,
    Given,
    OptionTable,
    entries_of,
    error,
    markdown,
    option,
    resolved,
)
from sqlfl.options.entries import Setting as Setting
from sqlfl.options.resolve import check_kind, resolve_training
from sqlfl.options.training import TrainingOptions, with_options
from sqlfl.options.types import ALIAS, choice, integer, shown

MAX_CANDIDATES = 1000
"""Candidates of a statement."""
GREATER = ("accuracy", "auc", "r2")
"""Metrics where larger is better."""
SHARED = (
    *("engine", "memory_limit", "max_joined_rows", "algorithm", "seed", "network", "union", "wait"),
    *("allow_cross_join", "merge_equal_rows", "validation_fraction", "class_weight", "device"),
    *("threshold", "quantile"),  # they define the loss that fits are compared by
)
"""Options that are the same in all fits, because work that is done once depends on them."""
REFUSED = {
    "patience": "it would stop by the rows that candidates are compared on: tune epochs",
    "stragglers": "candidates would be compared by who was late as well",
    "checkpoint": "candidates are compared, and none of them is kept but the last",
    "warm_start": "the model that training starts from may know the rows that are held out",
}


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """Options of how TUNE makes and compares candidates."""

    # fmt: off
    folds: int = option(integer(2, 50), 5,
        "parts into which the label's rows are divided at random, for classifiers within each "
        "class. Each candidate is trained without each part, and measured on it",
        default_text="5; one part with validation_fraction")
    groups: str | None = option(ALIAS, None,
        "table whose rows the coordinator divides into folds, so that all joined rows of one row "
        "are in one fold",
        default_text="the label's table, whose owner draws the folds")
    metric: str = option(
        choice("loss", "accuracy", "auc", "log_loss", "rmse", "mae", "r2"), "loss",
        "metric that compares candidates, on the rows that were held out")
    search: str = option(choice("grid", "random"), "grid",
        "'grid': all combinations of the candidates; 'random': some of them")
    trials: int = option(integer(1, MAX_CANDIDATES), 20,
        "combinations to draw with search = 'random', by `seed`; without it, the same ones each "
        "time")
    # fmt: on


CALLED = {
    name: f"it is called {here} here"
    for name, here in {
        "cv": "folds",
        "n_splits": "folds",
        "scoring": "metric",
        "n_iter": "trials",
        "n_trials": "trials",
        "group": "groups",
    }.items()
}
"""Names of these options in scikit-learn and other libraries."""
TUNING = {entry.name: entry for entry in entries_of(TuneOptions)}


@dataclass(frozen=True)
class Candidate:
    """One combination of values."""

    values: Mapping[str, object]
    """Values of the tuned options, in JSON's types."""
    options: TrainingOptions


@dataclass(frozen=True)
class Tuning:
    """The candidates, and how TUNE compares them."""

    candidates: tuple[Candidate, ...]
    tuned: tuple[str, ...]
    """Options with candidates, in the order written; empty for a single combination."""
    combinations: int
    """Number of combinations that the candidates are taken from."""
    splits: int
    """Number of times that each candidate is trained on some rows and measured on the others."""
    share: float
    """Share of the label's rows that each split holds out."""
    metric: str
    groups: str | None = None
    """Table position whose rows are drawn into folds, or the expression whose values are; None for
    the label's table."""

    @property
    def greater(self) -> bool:
        """True if a larger metric is better."""
        return self.metric in GREATER

    @property
    def fits(self) -> int:
        """Number of fits, with the last one: the chosen candidate on all rows."""
        return len(self.candidates) * self.splits + 1

    @property
    def words(self) -> str:
        """A description of the candidates and their comparison."""
        number = len(self.candidates)
        of = f" of {self.combinations:,} combinations" if number < self.combinations else ""
        tuned = f" of {', '.join(self.tuned)}" if self.tuned else ""
        parts = f"{self.splits} folds"
        if self.splits == 1:
            parts = f"{self.share:g} of the rows"
        parts += f" of {self.groups}" if self.groups else ""
        return f"{number} candidate{'s' * (number != 1)}{of}{tuned}, by {self.metric} on {parts}"


@dataclass(frozen=True)
class _Chosen:
    """An option with one of its candidates."""

    name: str
    value: object
    span: tuple[int, int]


def resolve_tuning(kind: str, given: Iterable[Given], sql: str | None = None) -> Tuning:
    """Resolve the WITH clause of TUNE for a model of this kind.

    A list is a list of candidates if training takes no list for the option; else a list of lists
    is. Raise OptionError as `resolve_training` does, and for options that cannot be tuned.
    """
    check_kind(kind, sql=sql, span=getattr(kind, "span", None))
    every = tuple(given)
    named = [o for o in every if o.name in TUNING]
    training_items = [o for o in every if o.name not in TUNING]
    elsewhere = {**with_options().elsewhere, **CALLED}
    table = OptionTable("option", {**with_options().entries, **TUNING}, elsewhere)
    table.read([o for o in every if _candidates(o) is None], sql)
    _check_refused(training_items, sql)
    lists = {str(o.name): values for o in training_items if (values := _candidates(o)) is not None}
    for option_ in training_items:
        if str(option_.name) in lists:
            _check_candidates(table, option_, lists[str(option_.name)], sql)
    settings_read = table.read(named, sql)
    settings = TuneOptions(**resolved(TuneOptions, Setting(kind, values=settings_read.values)))
    _check_settings(kind, settings, settings_read.places, training_items, sql)
    combinations = prod(len(named) for named in lists.values())
    numbers = _numbers(settings, combinations, _seed(training_items), training_items, sql)
    candidates = tuple(_candidate(kind, training_items, lists, number, sql) for number in numbers)
    first = candidates[0].options
    _check_method(first, training_items, sql)
    single = first.validation_fraction > 0.0
    return Tuning(
        candidates=tuple(
            replace(c, options=replace(c.options, validation_fraction=0.0)) for c in candidates
        ),
        tuned=tuple(lists),
        combinations=combinations,
        splits=1 if single else settings.folds,
        share=first.validation_fraction if single else 1.0 / settings.folds,
        metric=settings.metric,
        groups=settings.groups,
    )


def _candidates(given: Given) -> tuple[object, ...] | None:
    """Return the candidates; None for a single value, and for a value that reading will refuse."""
    entry = with_options().entries.get(given.name)
    if entry is None or not isinstance(given.value, tuple) or entry.read(given.value) is not None:
        return None
    if not given.value or (_takes_lists(entry) and not isinstance(given.value[0], tuple)):
        return None
    return given.value


def _takes_lists(entry: Entry) -> bool:
    return entry.read((1,)) is not None


def _check_candidates(
    table: OptionTable, given: Given, values: Sequence[object], sql: str | None
) -> None:
    if given.name in SHARED:
        message = f"option {given.name} is the same in all fits of TUNE, and was given a list"
        raise error(message, given, sql, hint="give one value")
    table_of_one = [_Chosen(str(given.name), value, given.span) for value in values]
    for chosen in table_of_one:
        table.read([chosen], sql)
    read_values = [table.entries[given.name].read(value) for value in values]
    if any(value in read_values[:place] for place, value in enumerate(read_values)):
        raise error(f"option {given.name} has a candidate twice: {shown(values)}", given, sql)


def _check_refused(given: Iterable[Given], sql: str | None) -> None:
    for option_ in given:
        why = REFUSED.get(option_.name)
        if why is not None:
            message = f"option {option_.name} does not go with TUNE: {why}"
            raise error(message, option_, sql, hint=f"leave {option_.name} out", name=True)


def _check_settings(
    kind: str,
    settings: TuneOptions,
    written: Mapping[str, Given],
    others: Iterable[Given],
    sql: str | None,
) -> None:
    if any(o.name == "validation_fraction" for o in others) and "folds" in written:
        message = "options folds and validation_fraction exclude each other"
        hint = "folds hold out each row once; validation_fraction holds out some rows, once"
        raise error(message, written["folds"], sql, hint=hint, name=True)
    if "trials" in written and settings.search != "random":
        message = "option trials applies only with search = 'random'"
        raise error(message, written["trials"], sql, name=True)
    fault = Importance(metric=settings.metric).fault(kind)
    # how many classes there are is not known yet: of more than two, no candidate has an auc
    if fault is not None and not (settings.metric == "auc" and kind_of(kind).classifies):
        _, why, hint = fault
        raise error(f"option metric: {why}", written["metric"], sql, hint=hint)


def _seed(given: Iterable[Given]) -> int:
    value = next((o.value for o in given if o.name == "seed"), 0)
    return value if isinstance(value, int) else 0


def _numbers(
    settings: TuneOptions,
    combinations: int,
    seed: int,
    others: Sequence[Given],
    sql: str | None,
) -> Sequence[int]:
    """Return the numbers of the combinations to try, ascending."""
    if settings.search == "random" and settings.trials < combinations:
        return sorted(random.Random(seed).sample(range(combinations), settings.trials))
    if combinations > MAX_CANDIDATES:
        message = f"there are {combinations:,} combinations of candidates, and TUNE takes "
        message += f"{MAX_CANDIDATES:,}"
        hint = "search = 'random', trials = 20 tries some of them"
        place = next(o for o in others if _candidates(o) is not None)
        raise error(message, place, sql, hint=hint)
    return range(combinations)


def _candidate(
    kind: str,
    given: Sequence[Given],
    lists: Mapping[str, Sequence[object]],
    number: int,
    sql: str | None,
) -> Candidate:
    """The combination of that number: the last of the options changes fastest."""
    places: dict[str, int] = {}
    for name, values in reversed(list(lists.items())):
        number, places[name] = divmod(number, len(values))
    chosen = [
        _Chosen(o.name, lists[o.name][places[o.name]], o.span) if o.name in places else o
        for o in given
    ]
    options = resolve_training(kind, chosen, sql)
    listed = options.listed()
    return Candidate(MappingProxyType({name: listed.get(name) for name in lists}), options)


def _check_method(options: TrainingOptions, given: Iterable[Given], sql: str | None) -> None:
    """Raise OptionError unless the fits can run one after the other and the coordinator knows
    predictions.
    """
    place = next((o for o in given if o.name in ("algorithm", "union", "sketch")), None)
    why = ""
    if options.method.secure:
        why = "union = 'secure', whose masks are of one fit"
    elif options.algorithm == "pbm" or getattr(options.method, "sketch", None) is not None:
        why = f"algorithm '{options.algorithm}' without exact predictions of rows"
    if why:
        raise OptionError(
            f"TUNE is not built for {why}",
            hint="TRAIN models one by one, with validation_fraction",
            sql=sql,
            span=None if place is None else place.span,
        )


def tuning_markdown() -> str:
    """The table as Markdown, for the documentation."""
    return markdown(
        ("option", "must be", "default", "meaning"),
        ((e.name, e.type.cell, e.usually, e.doc) for e in TUNING.values()),
    )
