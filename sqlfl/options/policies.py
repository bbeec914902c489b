"""What `CREATE TRAINING POLICY ... WITH (...)` may say."""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from sqlfl.base.errors import OptionError
from sqlfl.contract.methods import methods
from sqlfl.models.kinds import KINDS
from sqlfl.options.entries import Entry, Given, OptionTable, entries_of, markdown, option
from sqlfl.options.types import LENGTH, SIZE, OptionType, choice, integer, meant, number

N = TypeVar("N", int, float)
EXACT, NOISED, SECURE_SUM, NEVER = "exact", "noised", "secure_sum", "never"
"""How something may leave."""
MODES = ("labels", "predictions", "moments", "identifiers", "weights", "metrics")
"""Rules that say so."""
DELTA = 1e-6
LARGEST_EPSILON = 4.0
"""Of one run, where nothing is said. Who guesses which of two rows it was may be right 98 times of
100 at that: beyond, noise is one by name only."""
ALWAYS, FIRST_TIME = "always", "first_time"


def _listed(what: str, choices: Callable[[], tuple[str, ...]]) -> OptionType[tuple[str, ...]]:
    def read(value: object) -> tuple[str, ...] | None:
        given = (value,) if isinstance(value, str) else value
        if not isinstance(given, tuple) or not given:
            return None
        found = tuple(str(item).lower() for item in given)
        return found if set(found) <= set(choices()) else None

    def advise(value: object) -> str | None:
        given = (value,) if isinstance(value, str) else value
        wrong = [v for v in given if v not in choices()] if isinstance(given, tuple) else []
        return meant(wrong[0], choices()) if wrong else None

    return OptionType(f"a list of names of {what}", read, advise, list)


def _read_schema(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _read_hours(value: object) -> str | None:
    return value if isinstance(value, str) and _HOURS.fullmatch(value) else None


def _read_share(value: object) -> float | None:
    found = number(0, above=True).read(value)
    return found if found is not None and found < 1.0 else None


def _read_bytes(value: object) -> int | None:
    text = SIZE.read(value)
    found = None if text is None else _SIZE.fullmatch(text)
    return None if found is None else max(int(float(found[1]) * _BYTES[found[2].upper()]), 1)


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
    "rounded": "rounding bounds nothing: what it hides of one number, others of the same rows tell"
}
_METRICS = dict.fromkeys(
    ("rounded", NOISED, SECURE_SUM),
    "the coordinator works metrics out, of labels and predictions that it was sent: a party can "
    "keep these, or have them noised (labels, predictions), and round nothing",
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
        "rows that a table of a query must have for the analyst, before it is joined and after, "
        "also where the query uses no column of it but for joining",
    )
    min_cell: int = option(
        integer(1),
        3,
        "joined rows of the table that each class of the target must have, each category of a "
        "feature, each side of a feature of two values, and its NULLs where there are any; joined "
        "rows without a partner, where nothing else has the value that they take; rows "
        "with a rare value of a computed feature, one that fewer rows have, must be as many, and "
        "it must not lean on fewer",
    )
    min_difference: int | None = option(
        integer(2),
        None,
        "rows by which what runs of the analyst are over must differ, where it differs: of any two "
        "runs, and of any that are taken from one another or added up",
        default_text="no such rule",
    )
    max_categories: int = option(
        integer(1), 40, "distinct values of a feature that is encoded by categories"
    )
    max_parameter_ratio: float | None = option(
        number(0, above=True),
        None,
        "encoded columns of a table's features to its joined rows",
        default_text="no limit",
    )
    max_fan_out: int | None = option(
        integer(1),
        None,
        "joined rows that one row of the table may be in, as the coordinator tells it",
        default_text="no limit",
    )
    algorithms: tuple[str, ...] | None = option(
        _listed("algorithms", lambda: tuple(methods())),
        None,
        "methods of training",
        default_text="all",
    )
    kinds: tuple[str, ...] | None = option(
        _listed("kinds of models", lambda: KINDS),
        None,
        "kinds of models, as the run that is proposed says it",
        default_text="all",
    )
    approval: str = option(
        choice(ALWAYS, FIRST_TIME, NEVER),
        NEVER,
        "which runs wait for APPROVE REQUEST: each, each that is another one than those approved, "
        "or none",
    )
    runs_per_day: int | None = option(
        integer(1),
        None,
        "runs of the analyst over tables of this database within any 24 hours",
        default_text="no limit",
    )
    hours: str | None = option(
        OptionType("the hours of a day, as '08:00-18:00'", _read_hours),
        None,
        "when runs may begin, by the clock of the party's machine",
        default_text="any",
    )
    epsilon: float | None = option(
        number(0, above=True),
        None,
        "what all runs of one analyst may come to, of each row of the table: what leaves of its "
        "features and labels is noised then, or refused",
        default_text="no account",
    )
    epsilon_total: float | None = option(
        number(0, above=True),
        None,
        "what the runs of all analysts together may come to, of each row of the table: the least "
        "of all policies under which it is granted to anybody",
        default_text="no account",
    )
    delta: float = option(
        OptionType("a number greater than 0 and less than 1", _read_share),
        DELTA,
        "at which epsilon, epsilon_total and max_epsilon hold",
    )
    per: float | None = option(
        LENGTH,
        None,
        "epsilon and epsilon_total hold of any window of this length",
        default_text="for ever",
    )
    rounds: int = option(
        integer(1),
        10_000,
        "requests of training and scoring that are answered for a table of the query in one run",
    )
    seconds: float = option(
        number(0, above=True),
        600.0,
        "that one request may take at the party: then it is ended, and its run with it",
        default_text="600",
    )
    lease: float = option(
        LENGTH,
        3600.0,
        "after which a run that nothing is heard of is ended, when anything next arrives",
    )
    open_runs: int = option(
        integer(1), 8, "runs of the analyst that may be open at once, of one federation"
    )
    memory: int | None = option(
        OptionType(SIZE.text, _read_bytes, SIZE.advise, written_size),
        None,
        "what training of a table may take beside the database; and memory_limit of a database "
        "that sqlfl opens by its path, the least of all policies",
        default_text="memory_limit of the database",
    )
    threads: int | None = option(
        integer(1),
        None,
        "of a database that sqlfl opens by its path, the least of all policies",
        default_text="as DuckDB has them",
    )
    folders: tuple[str, ...] | None = option(
        OptionType("a list of absolute paths of folders", _read_folders, written=list),
        None,
        "whose files views may read, in a database that sqlfl opens by its path; those of all "
        "policies together",
        default_text="none",
    )
    labels: str = option(
        choice(EXACT, NOISED, NEVER, instead=_ROUNDED),
        EXACT,
        "targets, weights and offsets: as they are; targets alone, under PRIVACY (label_epsilon = "
        "...); or neither",
    )
    max_label_epsilon: float = option(
        number(0, above=True),
        LARGEST_EPSILON,
        "of labels = 'noised': the largest epsilon of a row's label in one run",
    )
    predictions: str = option(
        choice(EXACT, NOISED, SECURE_SUM, NEVER, instead=_ROUNDED),
        EXACT,
        "what rounds of training and scores tell of features: anything; training alone, under "
        "PRIVACY (epsilon = ..., predictions = 'gaussian'); training alone, in sums under masks "
        "over several tables; or nothing",
    )
    max_epsilon: float = option(
        number(0, above=True),
        LARGEST_EPSILON,
        "of predictions or moments = 'noised': the largest epsilon of a row's features in one run, "
        "at delta",
    )
    moments: str = option(
        choice(EXACT, NOISED, SECURE_SUM, NEVER, instead=_ROUNDED),
        EXACT,
        "what is told of features but for predictions: INFERENCE, SKEW, CHECK, strengths of "
        "TRANSFORM (auto), statistics and products of columns of a table in several databases; "
        "'noised' and 'secure_sum' (union = 'secure') have statistics and products of training "
        "alone",
    )
    identifiers: str = option(
        choice(EXACT, NEVER), EXACT, "columns of ID, which leave as they are, or not at all"
    )
    weights: str = option(
        choice(EXACT, NEVER), EXACT, "the weights of its blocks, for WEIGHTS and CURVES OF MODEL"
    )
    metrics: str = option(
        choice(EXACT, NEVER, instead=_METRICS),
        EXACT,
        "whether a run may be there to measure a model: EVALUATE and all that looks into a model "
        "by labels, rows for validation, TUNE",
    )
    conditions: str | None = option(
        choice(EXACT, NEVER),
        None,
        "whether columns that are granted for FILTER may decide by their values which rows there "
        "are, or none may: in WHERE, ON beyond a link, HAVING, DISTINCT, GROUP BY and the like",
        default_text="'exact' where labels, predictions, moments, identifiers, weights and metrics "
        "are all 'exact', else 'never'",
    )
    into: str | None = option(
        OptionType("the name of a schema of the database", _read_schema),
        None,
        "the schema that PREDICT ... INTO may write to; such a run needs it of each party that "
        "takes part, also where another one is written to",
        default_text="none",
    )

    @property
    def filters(self) -> str:
        """`conditions`, with its default: what decides which rows there are shows."""
        if self.conditions is not None:
            return self.conditions
        return EXACT if all(getattr(self, name) == EXACT for name in MODES) else NEVER

    @property
    def noises_features(self) -> bool:
        """By a rule of its own, beside an account."""
        return NOISED in (self.predictions, self.moments)


TABLE = OptionTable("rule", {entry.name: entry for entry in entries_of(TrainingPolicy)}, {})


def resolve_policy(given: Iterable[Given], sql: str | None = None) -> TrainingPolicy:
    """Raises OptionError for what is no rule."""
    return TrainingPolicy(**TABLE.read(tuple(given), sql).values)


def damaged(policy: TrainingPolicy) -> str | None:
    """Of one that was kept: what is said of a rule that has a value which nobody can give it."""
    for name, entry in TABLE.entries.items():
        value = getattr(policy, name)
        if not _may_be(entry, value):
            return f"{name} = {value!r:.40}, and must be {entry.type.text}"
    return None


def _may_be(entry: Entry, value: Any) -> bool:
    if value is None:
        return entry.default is None
    if entry.type is LENGTH:
        return bool(value > 0.0)  # in seconds, of which the text may round
    return bool(entry.type.read(value) == value)


def strictest(policies: Iterable[TrainingPolicy]) -> TrainingPolicy:
    """Of each rule the strictest of all, as rules of clean rooms are put together."""
    return _strictest(tuple(policies))


@lru_cache(maxsize=256)
def _strictest(found: tuple[TrainingPolicy, ...]) -> TrainingPolicy:
    if not found:
        raise OptionError("there is no policy to apply")
    counted = [p for p in found if p.epsilon is not None or p.epsilon_total is not None]
    noised = [p for p in found if p.noises_features]
    return TrainingPolicy(
        min_rows=max(p.min_rows for p in found),
        min_cell=max(p.min_cell for p in found),
        min_difference=max(
            (p.min_difference for p in found if p.min_difference is not None), default=None
        ),
        max_categories=min(p.max_categories for p in found),
        max_parameter_ratio=_least(p.max_parameter_ratio for p in found),
        max_fan_out=_least(p.max_fan_out for p in found),
        rounds=min(p.rounds for p in found),
        algorithms=_common([p.algorithms for p in found]),
        kinds=_common([p.kinds for p in found]),
        approval=min((p.approval for p in found), key=(ALWAYS, FIRST_TIME, NEVER).index),
        epsilon=_least(p.epsilon for p in found),
        epsilon_total=_least(p.epsilon_total for p in found),
        delta=min((p.delta for p in (*counted, *noised)), default=DELTA),
        per=_longest([p.per for p in counted]),
        runs_per_day=_least(p.runs_per_day for p in found),
        seconds=min(p.seconds for p in found),
        lease=min(p.lease for p in found),
        open_runs=min(p.open_runs for p in found),
        memory=_least(p.memory for p in found),
        threads=_least(p.threads for p in found),
        folders=tuple(sorted({folder for p in found for folder in p.folders or ()})) or None,
        hours=_AND.join(sorted({p.hours for p in found if p.hours is not None})) or None,
        max_epsilon=min((p.max_epsilon for p in noised), default=LARGEST_EPSILON),
        max_label_epsilon=min(
            (p.max_label_epsilon for p in found if p.labels == NOISED), default=LARGEST_EPSILON
        ),
        **{name: _mode(getattr(p, name) for p in found) for name in MODES},
        conditions=_mode(p.filters for p in found),
        into=found[0].into if len({p.into for p in found}) == 1 else None,
    )  # fmt: skip


@lru_cache(maxsize=64)
def modes(rule: str) -> frozenset[str]:
    """That hold at once: both of 'noised' and 'secure_sum' where policies have both, as neither is
    the stricter one."""
    return frozenset(rule.split(_AND))


def _mode(given: Iterable[str]) -> str:
    found = sorted(set(given) - {EXACT})
    return NEVER if NEVER in found else _AND.join(found) or EXACT


def _longest(lengths: list[float | None]) -> float | None:
    """None is for ever."""
    known = [length for length in lengths if length is not None]
    return max(known) if known and len(known) == len(lengths) else None


def _least(values: Iterable[N | None]) -> N | None:
    return min((value for value in values if value is not None), default=None)


def _common(given: list[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    limits = [set(item) for item in given if item is not None]
    return tuple(sorted(set.intersection(*limits))) if limits else None


def policies_markdown() -> str:
    """The rules as Markdown, for the documentation."""
    return markdown(
        ("rule", "must be", "default", "meaning"),
        ((e.name, e.type.text, e.usually, e.doc) for e in TABLE.entries.values()),
    )
