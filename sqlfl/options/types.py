"""The types that options have: how each is said, and how a written value is read."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar

from sqlfl.base.errors import nearest
from sqlfl.transport.network import NETWORKS, Network

MIN_ROWS, MAX_ROWS, BATCHES = 32, 10_000, 20
"""MIN_ROWS and MAX_ROWS bound the usual batch. Otherwise the rows make BATCHES batches, because
towers need hundreds of steps.
"""


@dataclass(frozen=True)
class Whole:
    """All rows in each step."""

    def of(self, rows: int) -> int:
        return rows


@dataclass(frozen=True)
class BatchRows:
    """The number of rows that the statement gives, or all rows if there are fewer."""

    number: int

    def of(self, rows: int) -> int:
        return min(self.number, rows)


@dataclass(frozen=True)
class Usual:
    """A twentieth of the rows, from MIN_ROWS to MAX_ROWS: the default for towers.

    >>> [Usual().of(rows) for rows in (20, 1_000, 10_000, 1_000_000)]
    [20, 50, 500, 10000]
    """

    def of(self, rows: int) -> int:
        return min(max(-(-rows // BATCHES), MIN_ROWS), MAX_ROWS, rows)


Batch: TypeAlias = Whole | BatchRows | Usual


MAX_INTEGER = 10**15
"""Maximum whole number: a double still distinguishes it from its neighbours."""
MAX_WIDTH = 65_536
"""Maximum width of a layer; more weights fit no memory."""

BALANCED = "balanced"
ClassWeight: TypeAlias = str | Mapping[str, float]
"""BALANCED, or numbers by class."""
_UNITS = ("B", "KB", "MB", "GB", "TB", "KIB", "MIB", "GIB", "TIB")


T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class OptionType(Generic[T_co]):
    """A type of option: its description, and a function that reads a written value (None: wrong
    type).
    """

    text: str
    read: Callable[[object], T_co | None]
    advise: Callable[[object], str | None] = lambda value: None
    """Return a hint for a value of the wrong type."""
    written: Callable[[Any], object] = lambda value: value
    """Return a value that `read` returned as a statement writes it, in JSON's types."""
    brief: str = ""
    """Shorter description for tables of options; empty where `text` is short."""

    @property
    def cell(self) -> str:
        """The description in a table of options."""
        return self.brief or self.text


def number(least: float, above: bool = False, most: float = math.inf) -> OptionType[float]:
    """Accept numbers from `least` (or above it, if `above`) to `most`."""

    def read(value: object) -> float | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        inside = (value > least if above else value >= least) and value <= most
        return float(value) if inside and value <= sys.float_info.max else None

    low = "greater than 0" if above else f"from {least:g}"
    high = "" if most == math.inf else f" and at most {most:g}" if above else f" to {most:g}"
    text = f"a number {low}{high or ('' if above else ' up')}"
    ends = f"{'>' if above else '≥'} {least:g}" if most == math.inf else f"{least:g} to {most:g}"
    ends = f"> 0, ≤ {most:g}" if above and most < math.inf else ends
    return OptionType(text, read, brief=f"number {ends}")


def _read_fraction(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0.0 <= value < 1.0 else None


def integer(least: int, most: int = MAX_INTEGER) -> OptionType[int]:
    def read(value: object) -> int | None:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return value if whole and isinstance(value, int) and least <= value <= most else None

    def advise(value: object) -> str | None:
        large = isinstance(value, int) and value > MAX_INTEGER == most
        return f"whole numbers go up to {MAX_INTEGER:.0e}" if large else None

    end = "up" if most == MAX_INTEGER else f"to {most}"
    brief = f"integer ≥ {least}" if most == MAX_INTEGER else f"integer {least} to {most}"
    return OptionType(f"a whole number from {least} {end}", read, advise, brief=brief)


def choice(
    *choices: str,
    instead: Mapping[str, str] | None = None,
    spellings: Mapping[str, str] | None = None,
) -> OptionType[str]:
    """Read one of these texts, in any case.

    instead : hints for other texts. spellings : texts that stand for one of the choices.
    """

    def read(value: object) -> str | None:
        lowered = value.lower() if isinstance(value, str) else None
        if lowered is not None and spellings is not None:
            lowered = spellings.get(lowered, lowered)
        return lowered if lowered in choices else None

    def advise(value: object) -> str | None:
        return (instead or {}).get(str(value).lower()) or meant(value, choices)

    *most, last = (f"'{c}'" for c in choices)
    return OptionType(f"{', '.join(most)} or {last}", read, advise)


_LINE: dict[str, OptionType[float]] = {"latency": number(0), "bandwidth": number(0, above=True)}


def _read_network(value: object) -> Network | None:
    """A known network, or {'latency': seconds, 'bandwidth': bits per second}."""
    if isinstance(value, str):
        return NETWORKS.get(value.lower())
    given = _items(value)
    if given is None or {key.lower() for key in given} != set(_LINE) or len(given) != 2:
        return None
    ends = {key.lower(): _LINE[key.lower()].read(item) for key, item in given.items()}
    latency, bandwidth = ends["latency"], ends["bandwidth"]
    return None if latency is None or bandwidth is None else Network(latency, bandwidth)


def _advise_network(value: object) -> str | None:
    given = _items(value)
    if given is None:
        ends = sorted(str(value).lower().split("-"))
        turned = next((name for name in NETWORKS if sorted(name.split("-")) == ends), None)
        return f"did you mean {turned}?" if turned else meant(value, NETWORKS)
    for key, item in given.items():
        type_ = _LINE.get(key.lower())
        if type_ is None:
            return meant(key, _LINE) or "it has the keys 'latency' and 'bandwidth'"
        if type_.read(item) is None:
            return f"{key} must be {type_.text}, got {shown(item)}"
    missing = [name for name in _LINE if name not in {key.lower() for key in given}]
    return f"{missing[0]} is missing" if missing else "each key stands once"


def _written_network(value: Network | None) -> object:
    if value is None or value.name is not None:
        return None if value is None else value.name
    return {"latency": value.latency, "bandwidth": value.bandwidth}


def _items(value: object) -> dict[str, object] | None:
    """Return the items of a dictionary, from a statement or from a file."""
    if isinstance(value, Mapping):
        return dict(value)
    items = getattr(value, "items", None)
    return dict(items) if isinstance(items, tuple) else None


def _read_size(value: object) -> str | None:
    """Text that DuckDB takes for a size."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value}B" if value > 0 else None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", str(value).strip())
    if not isinstance(value, str) or match is None or match[2].upper() not in _UNITS:
        return None
    return f"{match[1]}{match[2]}" if float(match[1]) > 0 else None


def _read_length(value: object) -> float | None:
    """Return seconds."""
    match = _LENGTH.fullmatch(value.strip()) if isinstance(value, str) else None
    unit = None if match is None else SECONDS.get(match[2].lower())
    return float(match[1]) * unit if match and unit and float(match[1]) else None


def written_length(seconds: float | None) -> str | None:
    """Return the length as text that a statement can have.

    >>> written_length(7200.0), written_length(90.0)
    ('2 hours', '90 seconds')
    """
    if seconds is None:
        return None
    unit = next((u for u in ("day", "hour", "minute") if seconds % _UNIT[u] == 0), "second")
    number = seconds / _UNIT[unit]
    return f"{number:g} {unit}{'s' * (number != 1)}"


_UNIT = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0, "week": 7 * 86400.0}
SECONDS = {
    **_UNIT,
    **{f"{name}s": seconds for name, seconds in _UNIT.items()},
    **{short: _UNIT[name] for short, name in (("s", "second"), ("min", "minute"), ("h", "hour"))},
}
"""Seconds in each unit of time."""
_LENGTH = re.compile(r"([0-9]+)\s*([a-z]+)", re.IGNORECASE)


def _read_boolean(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _read_widths(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, tuple) or not value:
        return None
    read = integer(1, MAX_WIDTH).read
    return None if any(read(width) is None for width in value) else value


def _advise_widths(value: object) -> str | None:
    if value == ():
        return "a model without hidden layers is a linear one: USING linear_regression, ..."
    return f"[{value}]" if integer(1, MAX_WIDTH).read(value) is not None else None


def _read_text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _read_class_weight(value: object) -> ClassWeight | None:
    """'balanced', or a dictionary of numbers by class."""
    if isinstance(value, str):
        return BALANCED if value.lower() == BALANCED else None
    items = _items(value)
    if not items:
        return None
    weights = {key: number(0).read(weight) for key, weight in items.items()}
    known = {key: weight for key, weight in weights.items() if weight is not None}
    return MappingProxyType(known) if len(known) == len(weights) else None


def _written_class_weight(value: ClassWeight | None) -> object:
    return dict(value) if isinstance(value, Mapping) else value


def _read_texts(value: object) -> Mapping[str, str] | None:
    items = _items(value)
    if not items or not all(isinstance(item, str) for item in items.values()):
        return None
    return MappingProxyType({key: str(item) for key, item in items.items()})


def _read_batch(value: object) -> Batch | None:
    rows = integer(1).read(value)
    return None if rows is None else BatchRows(rows)


SIZE = OptionType("a size such as '4GB' or '512MiB', or bytes", _read_size, brief="size: '4GB'")
LENGTH: OptionType[float] = OptionType(
    "a length of time, as '30 days' or '12 hours'",
    _read_length,
    written=written_length,
    brief="time: '12 hours'",
)
BOOLEAN = OptionType("true or false", _read_boolean)
MODEL = OptionType("the name of a model", _read_text, brief="a model")
ALIAS = OptionType("the alias of a table of the query", _read_text, brief="alias of a table")
FRACTION = OptionType("a number from 0 up and below 1", _read_fraction, brief="number ≥ 0, < 1")
CONFIDENCE = OptionType(
    "a number above 0 and below 1, such as 0.95",
    lambda value: _read_fraction(value) or None,
    brief="number > 0, < 1",
)
CLASS_WEIGHT: OptionType[ClassWeight] = OptionType(
    "'balanced', or a number from 0 up for each class, such as {'yes': 5, 'no': 1}",
    _read_class_weight,
    lambda value: meant(value, (BALANCED,)),
    _written_class_weight,
    "'balanced', or numbers ≥ 0: {'yes': 5, 'no': 1}",
)
CATEGORIES: OptionType[Mapping[str, str]] = OptionType(
    "a category for each of some features, such as {'town': 'north'}",
    _read_texts,
    written=lambda value: None if value is None else dict(value),
    brief="categories: {'town': 'north'}",
)
NETWORK = OptionType(
    ", ".join(f"'{name}'" for name in NETWORKS) + " or your own latency in seconds and bandwidth "
    "in bits per second, such as {'latency': 0.05, 'bandwidth': 1e9}",
    _read_network,
    _advise_network,
    _written_network,
    ", ".join(f"'{name}'" for name in NETWORKS) + " or {'latency': 0.05, 'bandwidth': 1e9}",
)
BATCH = OptionType(
    integer(1).text,
    _read_batch,
    integer(1).advise,
    lambda value: value.number if isinstance(value, BatchRows) else None,
    integer(1).brief,
)
WIDTHS = OptionType(
    f"a list of whole numbers from 1 to {MAX_WIDTH}, such as [16, 8]",
    _read_widths,
    _advise_widths,
    brief="list: [16, 8]",
)


def shown(value: object) -> str:
    """Return a value as a statement writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(shown(v) for v in value)}]"
    items = value if isinstance(value, Mapping) else _items(value)
    if items is not None:
        return "{" + ", ".join(f"'{key}': {shown(v)}" for key, v in items.items()) + "}"
    return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value)


def meant(value: object, known: Iterable[str]) -> str | None:
    """The nearest of the known words, as a hint."""
    nearest_word = nearest(value, known) if isinstance(value, str) else None
    return None if nearest_word is None else f"did you mean {nearest_word}?"
