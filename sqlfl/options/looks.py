"""What statements show of a model's quality over rows: `ROC OF MODEL` and the like.

Each is a frozen dataclass of its options; its statement may set those of scoring beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, TypeVar

from sqlfl.errors import OptionError
from sqlfl.models.kinds import kind_of
from sqlfl.options.entries import Given, Table, entries_of, markdown, option
from sqlfl.options.types import choice, integer

G = TypeVar("G", bound=Given)
ANY, CLASSES, NUMBERS = "any target", "classes", "numbers"


@dataclass(frozen=True, kw_only=True)
class Look:
    """One way of looking at a model's predictions beside the truth."""

    word: ClassVar[str]
    """Of the statement, in lower case."""
    of: ClassVar[str] = CLASSES
    """What it is of: ANY, CLASSES or NUMBERS."""
    at: ClassVar[bool] = False
    """It takes AT threshold."""
    words: ClassVar[str]
    """What it shows."""
    threshold: float | None = None


@dataclass(frozen=True, kw_only=True)
class Cells(Look):
    """What shows groups of rows."""

    min_cell: int = option(
        integer(1),
        1,
        "rows that whatever is shown must count at least; thresholds and bins are joined until "
        "they do, cells of a matrix are NULL",
    )


@dataclass(frozen=True, kw_only=True)
class Metrics(Look):
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
class Calibration(Binned):
    word = "calibration"
    of = ANY
    words = "of bins of the predictions, how they compare with what was true"


@dataclass(frozen=True, kw_only=True)
class Residuals(Binned):
    word = "residuals"
    of = NUMBERS
    words = "of bins of the predictions, how far the truth lay from them"


LOOKS: Mapping[str, type[Look]] = MappingProxyType(
    {look.word: look for look in (Metrics, Roc, Confusion, Calibration, Residuals)}
)


def resolve_look(
    name: str, kind: str, given: Iterable[G], sql: str, threshold: float | None
) -> tuple[Look, tuple[G, ...]]:
    """The look that a statement asks for, of a model of this kind, and the options that are not its
    own, but of scoring.

    Raises OptionError for a value that is none of its option's, and for what a model of this kind
    has not.
    """
    found = LOOKS[name]
    classifies = kind_of(kind).classifies
    if (found.of == CLASSES and not classifies) or (found.of == NUMBERS and classifies):
        has = "classes" if classifies else "a number"
        instead = "calibration" if found.of == NUMBERS else "residuals"
        raise OptionError(
            f"{name.upper()} is of {found.of}, and the target of a {kind} is {has}",
            hint=f"{instead.upper()} OF MODEL shows {LOOKS[instead].words}",
        )
    if threshold is not None and not classifies:
        raise OptionError(f"AT is of probabilities, and a {kind} has none", hint="leave AT out")
    entries = {entry.name: entry for entry in entries_of(found)}
    given = tuple(given)
    own = Table("option", entries, {}).read((o for o in given if o.name in entries), sql)
    return found(threshold=threshold, **own.values), tuple(
        o for o in given if o.name not in entries
    )


def looks_markdown() -> str:
    """The table of all looks' options, for the documentation."""
    having: dict[str, list[str]] = {}
    entries = {}
    for look in LOOKS.values():
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
