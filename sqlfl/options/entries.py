"""Definition of an option: a field of a frozen dataclass, with its table entry as metadata.

The entry holds everything about the option: type, range, default, the models it applies to, the
options that it needs, and its text. An `OptionTable` reads a clause into values; `resolved` returns
the fields of the dataclass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol, TypeVar, overload

from sqlfl.base.errors import OptionError
from sqlfl.models.kinds import KINDS, NEURAL
from sqlfl.options.types import OptionType, meant, shown

T = TypeVar("T")
_ENTRY, _SECTION = "sqlfl_option", "sqlfl_section"
_MAX_LISTED = 12
"""Options that a hint names; more are on a page."""
AUTO = "auto"
"""The value of an option that depends on the query's columns and is settled later."""
DEPENDS: Any = MISSING
"""The default of an option whose value always comes from `chosen`."""


class Given(Protocol):
    """An option as written; `span` is the position of its value."""

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> object: ...
    @property
    def span(self) -> tuple[int, int]: ...


@dataclass(frozen=True)
class Needs:
    """Options that another option needs: one of `options`, or the first of them with one of
    `values`.
    """

    options: tuple[str, ...]
    values: tuple[object, ...] = ()
    message: str = ""
    """Instead of the usual one."""
    hint: str | None = None
    hides: bool = True
    """True if the option is left out of lists while the need is not met."""

    def met(self, values: Mapping[str, object]) -> bool:
        present = [values.get(name) for name in self.options]
        wanted = (*self.values, AUTO)
        return any(value in wanted for value in present) if self.values else any(present)

    @property
    def text(self) -> str:
        if not self.values:
            return " or ".join(self.options)
        return f"{self.options[0]} = {' or '.join(shown(value) for value in self.values)}"


@dataclass(frozen=True)
class Defaults:
    """A method's defaults for the options that all methods have."""

    epochs: int
    tower_epochs: int | None
    """None for a method that trains no towers."""
    tolerance: float
    usual_rounds: tuple[int, int] | None = None
    """Least and greatest number of rounds that linear models usually take; None for all that the
    options allow.
    """
    noised_epochs: int | None = None
    """Epochs of linear models with noised predictions; None for the same as without noise."""
    protected_epochs: int | None = None
    """Epochs with protected features; None for the same as without protection."""
    unprotected: str = ""
    """Why it cannot protect features; empty where it can."""
    head: str = "none"
    """For towers, the coordinator's layer on the sum of their outputs."""
    exact: str = ""
    """Why it cannot where predictions are exact; empty where it can."""
    drawn: bool = False
    """The coordinator receives only sums of predictions over all slots. With protected features, it
    receives draws.
    """
    solved: bool = False
    """The model is solved from moments. Clients noise them and send them once. In a second round,
    one table's clients send noised fits of its rows too. This needs protected features.
    """
    sketched: bool = False
    """Clients choose columns and send sketches of them, and no row's prediction. With protected
    features, the choices and the sketches are noised.
    """


@dataclass(frozen=True)
class Setting:
    """The facts that defaults depend on."""

    kind: str
    private: bool = False
    """Features are protected. Each step costs budget; steps over all rows use it best."""
    noised: bool = False
    """Predictions are noised too."""
    solved: bool = False
    """Features are protected by a budget, and no written option needs gradient descent."""
    method: Defaults | None = None
    values: Mapping[str, object] = field(default_factory=dict)
    """The written options, and the defaults of options earlier in the table."""

    @property
    def neural(self) -> bool:
        return self.kind in NEURAL


@dataclass(frozen=True)
class Entry:
    """One line of an option table."""

    name: str
    type: OptionType[Any]
    default: object
    """The default where `chosen` is None."""
    chosen: Callable[[Setting], object] | None
    doc: str
    default_text: str
    """A description of the default, where it is None or comes from `chosen`."""
    needs: Needs | None
    kinds: tuple[str, ...]
    """Kinds of models that it applies to."""

    def usual(self, setting: Setting) -> object:
        return self.default if self.chosen is None else self.chosen(setting)

    @property
    def usually(self) -> str:
        """The default, in words."""
        return self.default_text or shown(self.type.written(self.default))

    def read(self, value: object) -> Any:
        """Return the value as read, or None if it has the wrong type."""
        return self.type.read(value)


@overload
def option(
    type_: OptionType[T],
    default: None,
    doc: str,
    *,
    default_text: str = "",
    chosen: Callable[[Setting], T | None] | None = None,
    needs: Needs | None = None,
    kinds: tuple[str, ...] = KINDS,
) -> T | None: ...
@overload
def option(
    type_: OptionType[T],
    default: T,
    doc: str,
    *,
    default_text: str = "",
    chosen: Callable[[Setting], T] | None = None,
    needs: Needs | None = None,
    kinds: tuple[str, ...] = KINDS,
) -> T: ...
def option(
    type_: OptionType[Any],
    default: Any,
    doc: str,
    *,
    default_text: str = "",
    chosen: Callable[[Setting], Any] | None = None,
    needs: Needs | None = None,
    kinds: tuple[str, ...] = KINDS,
) -> Any:
    """A field of a dataclass of options."""
    entry = Entry("", type_, default, chosen, doc, default_text, needs, kinds)
    if default is DEPENDS:
        return field(metadata={_ENTRY: entry})
    return field(default_factory=lambda: default, metadata={_ENTRY: entry})


def section(options: type[T]) -> T:
    """Declare a field that is itself a dataclass of options. Its options are listed with those of
    the outer dataclass.
    """
    section_field: T = field(metadata={_SECTION: options})
    return section_field


_ENTRIES: dict[type, tuple[Entry, ...]] = {}
"""Entries of the dataclasses that were asked for."""


def entries_of(options: type) -> tuple[Entry, ...]:
    """Return the entries in the order of the fields, those of sections included."""
    if options in _ENTRIES:
        return _ENTRIES[options]
    entries: list[Entry] = []
    for spec in fields(options):
        if _ENTRY in spec.metadata:
            entries.append(replace(spec.metadata[_ENTRY], name=spec.name))
        elif _SECTION in spec.metadata:
            entries += entries_of(spec.metadata[_SECTION])
    _ENTRIES[options] = tuple(entries)
    return _ENTRIES[options]


def resolved(options: type, setting: Setting) -> dict[str, Any]:
    """Return the fields of this dataclass. An option has its value in `setting.values`, or its
    default, which may depend on options earlier in the table.
    """
    values: dict[str, Any] = dict(setting.values)
    for entry in entries_of(options):
        if entry.name not in values:
            values[entry.name] = entry.usual(replace(setting, values=values))
    return _fields(options, values)


def _fields(options: type, values: Mapping[str, Any]) -> dict[str, Any]:
    arguments = {
        spec.name: values[spec.name] for spec in fields(options) if _ENTRY in spec.metadata
    }
    for spec in fields(options):
        if _SECTION in spec.metadata:
            inner = spec.metadata[_SECTION]
            arguments[spec.name] = inner(**_fields(inner, values))
    return arguments


def _values(options: Any) -> dict[str, Any]:
    """Return the values by option name, those of sections included."""
    by_name = {}
    for spec in fields(options):
        value = getattr(options, spec.name)
        if _ENTRY in spec.metadata:
            by_name[spec.name] = value
        elif _SECTION in spec.metadata:
            by_name |= _values(value)
    return by_name


def listed(options: Any, kind: str) -> dict[str, object]:
    """Return the values in JSON's types, for the options that apply to this kind of model and whose
    needs are met. None stands for a value that a statement cannot express.
    """
    values = _values(options)
    entries = entries_of(type(options))
    shown_values = {e.name: e.type.written(values[e.name]) for e in entries if kind in e.kinds}
    hidden = {
        e.name for e in entries if e.needs and e.needs.hides and not e.needs.met(shown_values)
    }
    return {name: value for name, value in shown_values.items() if name not in hidden}


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """Options of one method. Each method derives its own dataclass."""

    usual: ClassVar[Defaults]

    @property
    def secure(self) -> bool:
        """Sums over the clients of a slot are made in secret."""
        return False

    @property
    def waits(self) -> float | None:
        """Seconds that a step waits for late clients; None means until all clients have
        answered.
        """
        return None

    @property
    def unit_expression(self) -> str | None:
        """Expression whose equal values make rows one unit; None where rows of a table are, or
        joined rows."""
        return None

    def with_tables(self, tables: int, labelled: bool, epsilon: float | None) -> MethodOptions:
        """Return the options with defaults that depend on the query: how many tables have features,
        and whether that of the target does. epsilon : of features. Raise OptionError for a value
        that does not go with these.
        """
        return self

    @property
    def excluded(self) -> Mapping[str, str]:
        """Options of all methods that these leave no room for -> why."""
        return {}

    def conflict(self, kind: str) -> tuple[str, str, str | None] | None:
        """Return an option whose value conflicts with other options or this kind of model: its
        name, the required value, and a hint. None without a conflict.
        """
        return None


@dataclass(frozen=True)
class WrittenOptions:
    """Options as a clause has them."""

    values: dict[str, Any]
    places: dict[str, Given]


@dataclass(frozen=True)
class OptionTable:
    """The options of one clause, by name."""

    clause: str
    """The name of an option in errors."""
    entries: Mapping[str, Entry]
    elsewhere: Mapping[str, str]
    """Names from other clauses and other libraries -> a hint."""

    def read(self, given: Iterable[Given], sql: str | None) -> WrittenOptions:
        """Read the options of a clause. Raise OptionError for unknown and repeated options, and for
        values of the wrong type.
        """
        written = WrittenOptions({}, {})
        for option in given:
            entry = self._known(option, sql)
            if option.name in written.places:
                message = f"{self.clause} {option.name} is given twice"
                raise error(message, option, sql, name=True)
            value = entry.read(option.value)
            if value is None:
                hint = entry.type.advise(option.value)
                raise self.wrong(entry.type.text, option, sql, hint)
            written.places[option.name] = option
            written.values[entry.name] = value
        return written

    def wrong(
        self, must: str, option: Given, sql: str | None, hint: str | None = None
    ) -> OptionError:
        message = f"{self.clause} {option.name} must be {must}, got {shown(option.value)}"
        return error(message, option, sql, hint=hint)

    def check_needs(
        self, written: WrittenOptions, values: Mapping[str, object], sql: str | None
    ) -> None:
        """Raise OptionError for a written option whose needs are not met; `values` are those of all
        options.
        """
        for name, option in written.places.items():
            needs = self.entries[name].needs
            if needs is not None and not needs.met(values):
                message = needs.message or f"{self.clause} {name} applies only with {needs.text}"
                raise error(message, option, sql, hint=needs.hint, name=True)

    def _known(self, option: Given, sql: str | None) -> Entry:
        entry = self.entries.get(option.name)
        if entry is None:
            hint = self.elsewhere.get(option.name) or meant(option.name, self.entries)
            hint = hint or options_hint(self.clause, self.entries)
            raise error(
                f"there is no {self.clause} {option.name}", option, sql, hint=hint, name=True
            )
        return entry


def options_hint(clause: str, names: Collection[str]) -> str:
    """Return the hint that lists the options of a clause; of many, the page that does."""
    if len(names) <= _MAX_LISTED:
        return f"the options are {', '.join(names)}"
    if clause == "rule":
        return "sqlfl docs owner lists every rule"
    return f"sqlfl docs options lists every {clause}, and HELP with its name says what it must be"


def error(
    message: str, option: Given, sql: str | None, *, hint: str | None = None, name: bool = False
) -> OptionError:
    """Make an OptionError at the option's value, or at its name."""
    span = getattr(option.name, "span", option.span) if name else option.span
    return OptionError(message, hint=hint, sql=sql, span=span)


def markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of options, the first cell a name, for the documentation."""
    heads = tuple(heads)
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    lines += ["| `{}` | {} |".format(first, " | ".join(rest)) for first, *rest in rows]
    return "\n".join(lines) + "\n"
