"""Rules of `CREATE TRAINING POLICY ... WITH (...)`."""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeVar

from sqlfl.base.errors import OptionError
from sqlfl.contract.methods import methods
from sqlfl.models.kinds import KINDS
from sqlfl.options.entries import Entry, Given, OptionTable, entries_of, markdown, option
from sqlfl.options.types import LENGTH, SIZE, OptionType, choice, integer, meant, number

N = TypeVar("N", int, float)
EXACT, NOISED, SECURE_SUM, NEVER = "exact", "noised", "secure_sum", "never"
"""Forms in which a kind of data may leave the party."""
MODES = ("labels", "predictions", "moments", "identifiers", "weights", "metrics")
"""Rules that say so."""
DELTA = 1e-6
MAX_EPSILON = 4.0
"""Maximum ε of one run by default. At this ε, a guess between two possible rows may be right 98
times in 100; a larger ε gives hardly any protection.
"""
ALWAYS, FIRST_TIME = "always", "first_time"
_OWN = "sqlfl"
"""Schema of the rules themselves, to which no run may write."""


def listed_names(
    things: str, choices: Callable[[], tuple[str, ...]]
) -> OptionType[tuple[str, ...]]:
    def read(value: object) -> tuple[str, ...] | None:
        given = (value,) if isinstance(value, str) else value
        if not isinstance(given, tuple) or not given:
            return None
        names = tuple(str(item).lower() for item in given)
        return names if set(names) <= set(choices()) else None

    def advise(value: object) -> str | None:
        given = (value,) if isinstance(value, str) else value
        wrong = [v for v in given if v not in choices()] if isinstance(given, tuple) else []
        return meant(wrong[0], choices()) if wrong else None

    return OptionType(f"a list of names of {things}", read, advise, list, "list of names")


def _read_schema(value: object) -> str | None:
    if not isinstance(value, str) or value.lower() in ("", _OWN):
        return None
    return value


def _read_hours(value: object) -> str | None:
    return value if isinstance(value, str) and _HOURS.fullmatch(value) else None


def _read_share(value: object) -> float | None:
    share = number(0, above=True).read(value)
    return share if share is not None and share < 1.0 else None


def _read_bytes(value: object) -> int | None:
    text = SIZE.read(value)
    match = None if text is None else _SIZE.fullmatch(text)
    return None if match is None else max(int(float(match[1]) * _BYTES[match[2].upper()]), 1)


def written_size(size: int) -> str:
    unit = next(unit for unit in reversed(_BYTES) if size % _BYTES[unit] == 0)
    return f"{size // _BYTES[unit]}{unit.replace('I', 'i')}"


def _read_folders(value: object) -> tuple[str, ...] | None:
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, tuple) or not given:
        return None
    good = all(isinstance(item, str) and os.path.isabs(item) for item in given)
    return tuple(str(item) for item in given) if good else None


_ROUNDED = {
    "rounded": "rounding bounds nothing: other numbers of the same rows disclose the hidden digits"
}
_METRICS = dict.fromkeys(
    ("rounded", NOISED, SECURE_SUM),
    "the coordinator computes metrics from the labels and predictions that it receives: a party "
    "can "
    "withhold these or have them noised (labels, predictions), but cannot round them",
)
_BYTES = {
    "B": 1, "KB": 10**3, "KIB": 2**10, "MB": 10**6, "MIB": 2**20, "GB": 10**9, "GIB": 2**30,
    "TB": 10**12, "TIB": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"([0-9.]+)([A-Za-z]+)")
_HOURS = re.compile(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d")
_AND = " and "


def within(hours: str, now: dt.datetime) -> bool:
    """hours: '08:00-18:00', or '22:00-06:00' over midnight; several of these with 'and'."""
    time = now.strftime("%H:%M")
    ends = [window.split("-") for window in hours.split(_AND)]
    return all(a <= time < b if a <= b else time >= a or time < b for a, b in ends)


@dataclass(frozen=True, kw_only=True)
class TrainingPolicy:
    """The rules of one policy."""

    min_rows: int = option(
        integer(1),
        5,
        "minimum rows of the table in a query, before and after the join",
    )
    min_cell: int = option(
        integer(1),
        3,
        "minimum joined rows of each class, each category and each of two values of a feature; "
        "minimum rows on which a computed feature depends",
    )
    min_difference: int | None = option(
        integer(2),
        None,
        "minimum rows by which row sets of the analyst's runs, or their sums and differences, "
        "differ, if they differ",
        default_text="none",
    )
    max_categories: int = option(
        integer(1),
        40,
        "maximum distinct values of a feature that is encoded by categories",
    )
    max_parameter_ratio: float | None = option(
        number(0, above=True),
        None,
        "maximum encoded columns of the table's features for each joined row",
        default_text="no limit",
    )
    max_fan_out: int | None = option(
        integer(1),
        None,
        "maximum joined rows of one row, as the coordinator reports it",
        default_text="no limit",
    )
    algorithms: tuple[str, ...] | None = option(
        listed_names("algorithms", lambda: tuple(methods())),
        None,
        "permitted training methods",
        default_text="all",
    )
    kinds: tuple[str, ...] | None = option(
        listed_names("kinds of models", lambda: KINDS),
        None,
        "permitted kinds of models, as the run declares",
        default_text="all",
    )
    approval: str = option(
        choice(ALWAYS, FIRST_TIME, NEVER),
        NEVER,
        "which runs wait for APPROVE REQUEST: all, those unlike approved ones, or none",
    )
    runs_per_day: int | None = option(
        integer(1),
        None,
        "maximum runs of the analyst in any 24 hours, over tables under policies with this rule",
        default_text="no limit",
    )
    hours: str | None = option(
        OptionType("the hours of a day, as '08:00-18:00'", _read_hours, brief="'08:00-18:00'"),
        None,
        "when runs may begin, by the clock of the party's machine",
        default_text="any",
    )
    epsilon: float | None = option(
        number(0, above=True),
        None,
        "budget: maximum ε of one analyst's runs together, for each row",
        default_text="no account",
    )
    epsilon_total: float | None = option(
        number(0, above=True),
        None,
        "budget: maximum ε of all analysts' runs together, for each row",
        default_text="no account",
    )
    delta: float = option(
        OptionType("a number greater than 0 and less than 1", _read_share, brief="number > 0, < 1"),
        DELTA,
        "the δ of epsilon, epsilon_total and max_epsilon",
    )
    per: float | None = option(
        LENGTH,
        None,
        "length of any window in which epsilon and epsilon_total hold",
        default_text="for ever",
    )
    rounds: int = option(
        integer(1),
        10_000,
        "maximum training and scoring requests for a table in one run",
    )
    seconds: float = option(
        number(0, above=True),
        600.0,
        "maximum seconds of one request; after them, its run ends",
        default_text="600",
    )
    lease: float = option(
        LENGTH,
        3600.0,
        "time without a request after which a run ends",
    )
    open_runs: int = option(
        integer(1),
        8,
        "maximum open runs of the analyst in one federation",
    )
    join_time: float | None = option(
        LENGTH,
        None,
        "how long CREATE JOIN may keep rows, their numbers and hashed keys",
        default_text="none may last",
    )
    memory: int | None = option(
        OptionType(SIZE.text, _read_bytes, SIZE.advise, written_size, SIZE.brief),
        None,
        "memory for the training of a table, beside the database's own; also memory_limit of a "
        "database that sqlfl opens by its path",
        default_text="the database's memory_limit",
    )
    threads: int | None = option(
        integer(1),
        None,
        "threads of a database that sqlfl opens by its path",
        default_text="DuckDB's default",
    )
    folders: tuple[str, ...] | None = option(
        OptionType(
            "a list of absolute paths of folders",
            _read_folders,
            written=list,
            brief="list of paths",
        ),
        None,
        "folders that views may read, in a database that sqlfl opens by its path",
        default_text="none",
    )
    labels: str = option(
        choice(EXACT, NOISED, NEVER, instead=_ROUNDED),
        EXACT,
        "how targets, weights and offsets may leave",
    )
    max_label_epsilon: float = option(
        number(0, above=True),
        MAX_EPSILON,
        "with labels = 'noised': maximum ε of a row's label in one run",
    )
    predictions: str = option(
        choice(EXACT, NOISED, SECURE_SUM, NEVER, instead=_ROUNDED),
        EXACT,
        "how training rounds and scores may disclose features",
    )
    max_epsilon: float = option(
        number(0, above=True),
        MAX_EPSILON,
        "with predictions or moments = 'noised': maximum ε of a row's features in one run",
    )
    moments: str = option(
        choice(EXACT, NOISED, SECURE_SUM, NEVER, instead=_ROUNDED),
        EXACT,
        "how other results about features may leave: INFERENCE, SKEW, CHECK, strengths and pairs "
        "of TRANSFORM (auto); of a table in several databases statistics and products too",
    )
    identifiers: str = option(choice(EXACT, NEVER), EXACT, "whether columns of ID may leave")
    weights: str = option(
        choice(EXACT, NEVER),
        EXACT,
        "whether the party's weights may leave, with each column's mean and scale whatever moments "
        "says: WEIGHTS, CURVES, INFERENCE, EXPORT",
    )
    metrics: str = option(
        choice(EXACT, NEVER, instead=_METRICS),
        EXACT,
        "whether runs may measure a model: EVALUATE and the like, validation rows, TUNE",
    )
    conditions: str | None = option(
        choice(EXACT, NEVER),
        None,
        "whether columns granted for FILTER may decide which rows the query has",
        default_text="'exact' if all modes above are, else 'never'",
    )
    into: str | None = option(
        OptionType(
            "the name of a schema of the database, other than sqlfl", _read_schema, brief="a schema"
        ),
        None,
        "schema whose tables PREDICT ... INTO may make and replace; every party that takes part "
        "needs this rule",
        default_text="none",
    )

    @property
    def filters(self) -> str:
        """`conditions` with its default. The set of rows itself discloses values."""
        if self.conditions is not None:
            return self.conditions
        return EXACT if all(getattr(self, name) == EXACT for name in MODES) else NEVER

    @property
    def noises_features(self) -> bool:
        """True if a rule requires noise on features, independent of any account."""
        return NOISED in (self.predictions, self.moments)


TABLE = OptionTable("rule", {entry.name: entry for entry in entries_of(TrainingPolicy)}, {})


def resolve_policy(given: Iterable[Given], sql: str | None = None) -> TrainingPolicy:
    """Resolve the rules of a policy. Raise OptionError for an unknown rule or a wrong value."""
    return TrainingPolicy(**TABLE.read(tuple(given), sql).values)


def damaged(policy: TrainingPolicy) -> str | None:
    """Return the text of an error for a stored rule whose value no statement can give, or None."""
    for name, entry in TABLE.entries.items():
        value = getattr(policy, name)
        if not _may_be(entry, value):
            return f"{name} = {value!r:.40}, and must be {entry.type.text}"
    return None


def _may_be(entry: Entry, value: Any) -> bool:
    if value is None:
        return entry.default is None
    if entry.type is LENGTH:
        return bool(value > 0.0)  # in seconds: the written text may round them
    return bool(entry.type.read(value) == value)


def strictest(policies: Iterable[TrainingPolicy]) -> TrainingPolicy:
    """Combine policies: each rule takes its strictest value."""
    return _strictest(tuple(policies))


@lru_cache(maxsize=256)
def _strictest(policies: tuple[TrainingPolicy, ...]) -> TrainingPolicy:
    if not policies:
        raise OptionError("there is no policy to apply")
    counted = [p for p in policies if p.epsilon is not None or p.epsilon_total is not None]
    noised = [p for p in policies if p.noises_features]
    of_rules = {
        name: combine([getattr(policy, name) for policy in policies])
        for name, combine in _STRICTEST.items()
    }
    return TrainingPolicy(
        **of_rules,
        delta=min((p.delta for p in (*counted, *noised)), default=DELTA),
        per=_longest([p.per for p in counted]),
        max_epsilon=min((p.max_epsilon for p in noised), default=MAX_EPSILON),
        max_label_epsilon=min(
            (p.max_label_epsilon for p in policies if p.labels == NOISED), default=MAX_EPSILON
        ),
        conditions=_mode([p.filters for p in policies]),
    )


@lru_cache(maxsize=64)
def modes(rule: str) -> frozenset[str]:
    """Split a rule's value into the modes that hold at once. Neither of 'noised' and 'secure_sum'
    is stricter, so that a combined policy may require both.
    """
    return frozenset(rule.split(_AND))


def _mode(given: list[str]) -> str:
    strict = sorted(set(given) - {EXACT})
    return NEVER if NEVER in strict else _AND.join(strict) or EXACT


def _longest(lengths: list[float | None]) -> float | None:
    """Return the longest length; None means for ever."""
    known = [length for length in lengths if length is not None]
    return max(known) if known and len(known) == len(lengths) else None


def _shortest(lengths: list[float | None]) -> float | None:
    """Return the shortest length; None means none at all."""
    known = [length for length in lengths if length is not None]
    return min(known) if len(known) == len(lengths) else None


def _least(values: list[N | None]) -> N | None:
    return min((value for value in values if value is not None), default=None)


def _greatest(values: list[N | None]) -> N | None:
    return max((value for value in values if value is not None), default=None)


def _common(given: list[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    limits = [set(item) for item in given if item is not None]
    return tuple(sorted(set.intersection(*limits))) if limits else None


def _every_folder(given: list[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    return tuple(sorted({folder for folders in given for folder in folders or ()})) or None


def _every_window(given: list[str | None]) -> str | None:
    """Return `hours` in which all of these hold."""
    return _AND.join(sorted({hours for hours in given if hours is not None})) or None


def _same(schemas: list[str | None]) -> str | None:
    return schemas[0] if len(set(schemas)) == 1 else None


_STRICTEST: Mapping[str, Callable[[list[Any]], Any]] = {
    **dict.fromkeys(("min_rows", "min_cell"), max),
    **dict.fromkeys(("max_categories", "rounds", "seconds", "lease", "open_runs"), min),
    **dict.fromkeys(("max_parameter_ratio", "max_fan_out", "epsilon", "epsilon_total"), _least),
    **dict.fromkeys(("runs_per_day", "memory", "threads"), _least),
    **dict.fromkeys(("algorithms", "kinds"), _common),
    **dict.fromkeys(MODES, _mode),
    "min_difference": _greatest,
    "approval": partial(min, key=(ALWAYS, FIRST_TIME, NEVER).index),
    "join_time": _shortest,
    "folders": _every_folder,
    "hours": _every_window,
    "into": _same,
}
"""Strictest of several policies' values, for each rule that rests on no other rule."""


def policies_markdown() -> str:
    """The rules as Markdown, for the documentation."""
    return markdown(
        ("rule", "must be", "default", "meaning"),
        ((e.name, e.type.cell, e.usually, e.doc) for e in TABLE.entries.values()),
    )
