"""What an option is: a field of a frozen dataclass, with its line of the table beside it.

Everything about an option stands there and nowhere else: its type, its default and what that
depends on, its range, what it applies to and needs, its words. A statement's clause is read by a
`OptionTable` of such lines into values, and `resolved` gives the fields of the dataclass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol, TypeVar, overload

from sqlfl.base.errors import OptionError
from sqlfl.models.kinds import KINDS, NEURAL
from sqlfl.options.types import OptionType, meant, shown

T = TypeVar("T")
_ENTRY, _SECTION = "sqlfl_option", "sqlfl_section"
AUTO = "auto"
"""The value of an option that is settled later, by the query's columns."""
DEPENDS: Any = MISSING
"""The default of an option that has none but what is `chosen`."""


class Given(Protocol):
    """An option as it was written; `span` is the place of its value."""

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> object: ...
    @property
    def span(self) -> tuple[int, int]: ...


@dataclass(frozen=True)
class Needs:
    """What an option means nothing without: one of these others, or one that has such a value."""

    options: tuple[str, ...]
    values: tuple[object, ...] = ()
    message: str = ""
    """Instead of the usual one."""
    hint: str | None = None
    hides: bool = True
    """Where it is not met, the option is not listed with the others."""

    def met(self, values: Mapping[str, object]) -> bool:
        found = [values.get(name) for name in self.options]
        wanted = (*self.values, AUTO)
        return any(value in wanted for value in found) if self.values else any(found)

    @property
    def text(self) -> str:
        if not self.values:
            return " or ".join(self.options)
        return f"{self.options[0]} = {' or '.join(shown(value) for value in self.values)}"


@dataclass(frozen=True)
class Defaults:
    """What a method makes of the options of training that all methods have."""

    epochs: int
    tower_epochs: int | None
    """None: it trains no towers."""
    tolerance: float
    noised_epochs: int | None = None
    """Of linear models with noised predictions; None: as many as without noise."""
    protected_epochs: int | None = None
    """Where features are protected; None: as many as without."""
    unprotected: str = ""
    """Why it cannot protect features; empty where it can."""
    head: str = "none"
    """Of towers: what the coordinator makes of the sum of their outputs."""
    exact: str = ""
    """Why it cannot where predictions are exact; empty where it can."""
    drawn: bool = False
    """Of predictions there are sums over all slots only, and draws where features are protected."""
    solved: bool = False
    """The model is solved from moments that clients noise and tell once, for protected features
    alone: no row's prediction leaves them."""
    sketched: bool = False
    """Clients choose columns and tell sketches of them: no row's prediction leaves them, and where
    features are protected choices and sketches are noised."""


@dataclass(frozen=True)
class Setting:
    """What defaults depend on."""

    kind: str
    private: bool = False
    """Features are protected: each step costs, and what it tells is bounded best where it is of
    all rows."""
    noised: bool = False
    """Predictions are noised too."""
    solved: bool = False
    """Features are protected by a budget, and nothing is asked for that descent alone has."""
    method: Defaults | None = None
    values: Mapping[str, object] = field(default_factory=dict)
    """Options that are written, and defaults of those that stand before."""

    @property
    def neural(self) -> bool:
        return self.kind in NEURAL


@dataclass(frozen=True)
class Entry:
    """One line of a table."""

    name: str
    type: OptionType[Any]
    default: object
    """Where nothing is `chosen`."""
    chosen: Callable[[Setting], object] | None
    doc: str
    default_text: str
    """None, and what `chosen` makes, in words."""
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
        """None where the value is none of this type."""
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
    """A field whose value is a dataclass of options too: they are told as if they stood here."""
    found: T = field(metadata={_SECTION: options})
    return found


def entries_of(options: type) -> tuple[Entry, ...]:
    """In the order of the fields, with those of sections; other fields are left out."""
    found: list[Entry] = []
    for spec in fields(options):
        if _ENTRY in spec.metadata:
            found.append(replace(spec.metadata[_ENTRY], name=spec.name))
        elif _SECTION in spec.metadata:
            found += entries_of(spec.metadata[_SECTION])
    return tuple(found)


def resolved(options: type, setting: Setting) -> dict[str, Any]:
    """The fields of this dataclass: of every option what the setting's `values` say, or its
    default, which may depend on the options before."""
    values: dict[str, Any] = dict(setting.values)
    for entry in entries_of(options):
        if entry.name not in values:
            values[entry.name] = entry.usual(replace(setting, values=values))
    return _fields(options, values)


def _fields(options: type, values: Mapping[str, Any]) -> dict[str, Any]:
    found = {spec.name: values[spec.name] for spec in fields(options) if _ENTRY in spec.metadata}
    for spec in fields(options):
        if _SECTION in spec.metadata:
            inner = spec.metadata[_SECTION]
            found[spec.name] = inner(**_fields(inner, values))
    return found


def _values(options: Any) -> dict[str, Any]:
    """By the names of the options, those of sections too."""
    found = {}
    for spec in fields(options):
        value = getattr(options, spec.name)
        if _ENTRY in spec.metadata:
            found[spec.name] = value
        elif _SECTION in spec.metadata:
            found |= _values(value)
    return found


def listed(options: Any, kind: str) -> dict[str, object]:
    """The values as a statement has them, in JSON's types, of what applies to models of this kind
    and means something beside the others. None stands for what a statement cannot say."""
    values = _values(options)
    entries = entries_of(type(options))
    found = {e.name: e.type.written(values[e.name]) for e in entries if kind in e.kinds}
    hidden = {e.name for e in entries if e.needs and e.needs.hides and not e.needs.met(found)}
    return {name: value for name, value in found.items() if name not in hidden}


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """Options of one method alone. A method's own dataclass derives from it."""

    usual: ClassVar[Defaults]

    @property
    def secure(self) -> bool:
        """Sums over the clients of a slot are made in secret."""
        return False

    @property
    def waits(self) -> float | None:
        """Seconds for which a step waits for clients that are late; None for all of them."""
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
        """An option whose value does not go with the others or with this kind of model: its name,
        what it must be, and a hint. None where all is well."""
        return None


@dataclass(frozen=True)
class WrittenOptions:
    """Options as a clause has them."""

    values: dict[str, Any]
    places: dict[str, Given]


@dataclass(frozen=True)
class OptionTable:
    """The options of one clause, by their names."""

    clause: str
    """What an option is called in errors."""
    entries: Mapping[str, Entry]
    elsewhere: Mapping[str, str]
    """Name of elsewhere -> what is meant by it here."""

    def read(self, given: Iterable[Given], sql: str | None) -> WrittenOptions:
        """Raises OptionError for what is not in the table, twice there, or none of its type."""
        found = WrittenOptions({}, {})
        for option in given:
            entry = self._known(option, sql)
            if option.name in found.places:
                message = f"{self.clause} {option.name} is given twice"
                raise error(message, option, sql, name=True)
            value = entry.read(option.value)
            if value is None:
                hint = entry.type.advise(option.value)
                raise self.wrong(entry.type.text, option, sql, hint)
            found.places[option.name] = option
            found.values[entry.name] = value
        return found

    def wrong(
        self, must: str, option: Given, sql: str | None, hint: str | None = None
    ) -> OptionError:
        message = f"{self.clause} {option.name} must be {must}, got {shown(option.value)}"
        return error(message, option, sql, hint=hint)

    def check_needs(
        self, written: WrittenOptions, values: Mapping[str, object], sql: str | None
    ) -> None:
        """Raise OptionError for what is written without an option that it needs; `values` are those
        of all options."""
        for name, option in written.places.items():
            needs = self.entries[name].needs
            if needs is not None and not needs.met(values):
                message = needs.message or f"{self.clause} {name} applies only with {needs.text}"
                raise error(message, option, sql, hint=needs.hint, name=True)

    def _known(self, option: Given, sql: str | None) -> Entry:
        entry = self.entries.get(option.name)
        if entry is None:
            hint = self.elsewhere.get(option.name) or meant(option.name, self.entries)
            hint = hint or f"the options are {', '.join(self.entries)}"
            raise error(
                f"there is no {self.clause} {option.name}", option, sql, hint=hint, name=True
            )
        return entry


def error(
    message: str, option: Given, sql: str | None, *, hint: str | None = None, name: bool = False
) -> OptionError:
    """At the option's value, or at its name."""
    span = getattr(option.name, "span", option.span) if name else option.span
    return OptionError(message, hint=hint, sql=sql, span=span)


def markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of options, the first cell a name, for the documentation."""
    heads = tuple(heads)
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    lines += ["| `{}` | {} |".format(first, " | ".join(rest)) for first, *rest in rows]
    return "\n".join(lines) + "\n"
