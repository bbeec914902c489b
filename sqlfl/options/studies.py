"""Limits of `CREATE STUDY ... WITH (...)`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from sqlfl.base.errors import InternalError, OptionError
from sqlfl.contract.methods import methods
from sqlfl.contract.request import EVALUATE, STATEMENTS, TRAIN, Study
from sqlfl.models.kinds import KINDS
from sqlfl.options.entries import Given, OptionTable, entries_of, error, markdown, option
from sqlfl.options.policies import DELTA, listed_names
from sqlfl.options.types import OptionType, integer, number


def read_until(text: str) -> dt.datetime | None:
    """Return the time until which something holds; None for text that is no time. A day is
    included. A time without a zone is local.

    >>> read_until("2030-06-30") == read_until("2030-07-01 00:00:00")
    True
    """
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    whole = moment + dt.timedelta(days=1) if len(text) <= len("2027-06-30") else moment
    return whole if whole.tzinfo else whole.astimezone()


def _read(value: object) -> dt.datetime | None:
    return read_until(value) if isinstance(value, str) else None


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """The limits of one study."""

    statements: tuple[str, ...] = option(
        listed_names("statements", lambda: STATEMENTS),
        (TRAIN, EVALUATE),
        "kinds of statement; 'evaluate' includes METRICS, ROC, CONFUSION, CALIBRATION, RESIDUALS",
        default_text="['train', 'evaluate']",
    )
    kinds: tuple[str, ...] | None = option(
        listed_names("kinds of models", lambda: KINDS),
        None,
        "kinds of models, as the run declares them",
        default_text="all",
    )
    algorithms: tuple[str, ...] | None = option(
        listed_names("algorithms", lambda: tuple(methods())),
        None,
        "methods of training",
        default_text="all",
    )
    epsilon: float | None = option(
        number(0, above=True),
        None,
        "maximum ε of a row's features in one training",
        default_text="they are sent in clear",
    )
    delta: float = option(number(0, above=True, most=0.5), DELTA, "the δ at which epsilon holds")
    label_epsilon: float | None = option(
        number(0, above=True),
        None,
        "maximum ε of a row's label in one run",
        default_text="they are sent in clear",
    )
    rounds: int | None = option(
        integer(1),
        None,
        "maximum rounds of one run",
        default_text="those of the owners' policies",
    )
    runs: int = option(
        integer(1), 0, "maximum runs, of all statements together", default_text="required"
    )
    until: dt.datetime | None = option(
        OptionType("a day or a time, as '2030-06-30'", _read, brief="'2030-06-30'"),
        None,
        "when the study ends; a day is included",
        default_text="required",
    )


TABLE = OptionTable("limit", {entry.name: entry for entry in entries_of(StudyOptions)}, {})


def resolve_study(given: Iterable[Given], sql: str, now: dt.datetime) -> StudyOptions:
    """Resolve the limits of a study. Raise OptionError for an unknown or a missing limit, for a
    wrong value, and for a study that has ended.
    """
    written = TABLE.read(tuple(given), sql)
    for name, example in (("runs", "30"), ("until", "'2030-06-30'")):
        if name not in written.places:
            raise OptionError(f"a study takes the limit {name}", hint=f"WITH ({name} = {example})")
    limits = StudyOptions(**written.values)
    if limits.until is not None and limits.until <= now:
        raise error("the study would have ended already", written.places["until"], sql)
    return limits


def check_limits(study: Study) -> None:
    """Raise InternalError for limits that no statement gives, as those of a coordinator's own
    making may be.
    """
    for name, entry in TABLE.entries.items():
        value = getattr(study, name)
        left_out = value is None and entry.default is None
        if name != "until" and not left_out and entry.type.read(value) != value:
            raise InternalError(f"the description of a study has a limit {name} that is none")


def studies_markdown() -> str:
    """The limits as Markdown, for the documentation."""
    return markdown(
        ("limit", "must be", "default", "meaning"),
        ((e.name, e.type.cell, e.usually, e.doc) for e in TABLE.entries.values()),
    )
