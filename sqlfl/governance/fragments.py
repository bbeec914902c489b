"""Checks of a fragment's reads against the grants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import eq
from typing import TypeAlias

from sqlfl.base.errors import PolicyError
from sqlfl.contract.fragment_columns import BASE, KEPT, ROW
from sqlfl.contract.schema import SlotSpecification
from sqlfl.governance.expressions import NEUTRAL
from sqlfl.governance.names import Functions, Listed, NameLookup, functions_of
from sqlfl.governance.noising import budgets_of
from sqlfl.governance.policies import (
    FILTER,
    IDENTIFY,
    JOIN,
    LABEL,
    TRAIN,
    Ruling,
    definition_of,
)
from sqlfl.governance.policy_evaluation import has
from sqlfl.governance.scopes import (
    ASK,
    NONE,
    Bare,
    Reads,
    ScopeColumn,
    SelectOutput,
    Table,
    unnamed,
)
from sqlfl.governance.tree import SelectReading, read
from sqlfl.governance.value_forms import WRITE
from sqlfl.governance.value_types import comparable, lossless
from sqlfl.options.policies import EXACT, strictest
from sqlfl.udfs import sql

MAX_KEPT_TEXTS = 64
MAX_KEPT_CHARACTERS = 10_000
"""Limits of remembered texts of fragments: their number, and their characters."""

Found: TypeAlias = "tuple[Table, tuple[str, ...]]"
"""A table, and its columns."""
Kept: TypeAlias = "tuple[Found | None, tuple[str, ...]]"
"""The same, with the columns' types."""
Cursor: TypeAlias = Callable[[], sql.Connection]
"""Returns a cursor without temporary tables, which is made where it is needed."""
CONDITIONS = "conditions = 'never'"
KEY = "a join key is to be a column that is granted for JOIN, as it is"
LINK = (
    "tables are linked by columns that are granted for JOIN, as they are or cast to a type that "
    "holds all their values: CAST(column AS BIGINT), or AS VARCHAR"
)
LEAVE_OUT = "ask its owner, who may grant FILTER or a view that has the condition; or leave it out"
WHOLE = "write TRY(...) around it, which is NULL then; or ask its owner for a view that has it"


@dataclass(frozen=True)
class _Kept:
    """Reading of a text. It depends on the meaning of these names of tables, and on the grants."""

    ruling: Ruling
    tables: Mapping[tuple[str, ...], Kept]
    reading: SelectReading


class Fragments:
    """Fragments of one client; place : its current database and schema."""

    def __init__(self, analyst: str, place: tuple[str, str]) -> None:
        self._analyst, self._place = analyst, place
        self._functions: Functions | None = None
        self._found: dict[tuple[str, ...], Found] = {}
        self._types: dict[Table, tuple[str, ...]] = {}
        self._kept: dict[str, _Kept] = {}
        self.listed = Listed()
        """Tables listed since."""

    def forget(self) -> None:
        """Look up names anew, with another ruling."""
        self._found.clear()
        self.listed = Listed()

    def check(
        self, cursor: Cursor, item: SlotSpecification, text: str, ruling: Ruling
    ) -> SelectReading:
        """Return the fragment's reading. Columns in comparisons other than links count among the
        conditions. Raise PolicyError for reads that the grants or the policies do not allow.
        """
        reading = self.read(cursor, text, ruling)
        roles = roles_of(item, reading.outputs)
        self._check_shown(roles, reading, ruling)
        for role, output in zip(roles, reading.outputs, strict=True):
            if role == JOIN:
                self._check_key(output, reading, ruling)
                continue
            if role in (BASE, ROW, KEPT):
                # whether a row is kept is a condition; of a whole row the granted columns are taken
                if role == BASE and output.whole is not None and not ruling.columns(output.whole):
                    raise PolicyError("rows are drawn by granted columns, and there is none")
                continue
            for column in sorted(output.reads):
                if not ruling.may(role, column):
                    raise self._not_granted(column, role.upper())
        self._check_spread(item, roles, reading, ruling)
        if reading.nobodys:
            # its values are NULL, whatever rows there are
            return replace(reading, filters={}, links=NONE)
        reading = self._ruled(item, roles, reading, ruling)
        self._check_conditions(reading, ruling)
        for column in sorted(reading.fallible):
            if not _leaves(ruling, column):
                raise self._may_fail(column)
        return reading

    @staticmethod
    def _check_shown(roles: list[str], reading: SelectReading, ruling: Ruling) -> None:
        """Raise PolicyError for columns that are granted for nothing, before other rules speak of
        columns in the order of their names, which would tell of theirs.
        """
        every = {*reading.filters, *reading.links, *reading.fallible}
        for role, output in zip(roles, reading.outputs, strict=True):
            if role != BASE or output.whole is None:
                every |= output.reads
        hidden = {column.table for column in every if not ruling.may_any(column)}
        if hidden:
            raise unnamed(min(hidden))

    def _check_spread(
        self, item: SlotSpecification, roles: list[str], reading: SelectReading, ruling: Ruling
    ) -> None:
        """Raise PolicyError for a feature or label by which many rows may tell a value of few."""
        rules = strictest(ruling.rules(reading.tables)) if reading.tables else None
        if rules is None or rules.min_cell <= 1:
            return
        for place, (role, output) in enumerate(zip(roles, reading.outputs, strict=True)):
            if output.spread and role in (TRAIN, LABEL):
                features = item.features
                name = features[place].name if place < len(features) else "the target or a weight"
                rule = f"min_cell = {rules.min_cell}, and {name} may give many rows a value of few"
                raise PolicyError(has(rule), hint=WRITE)

    def _ruled(
        self, item: SlotSpecification, roles: list[str], reading: SelectReading, ruling: Ruling
    ) -> SelectReading:
        """Return the reading with columns of links in `links`, and those of all other conditions in
        `filters`.
        """
        filters, chosen = dict(reading.filters), reading.chosen
        linked: set[ScopeColumn] = set()
        keys = {
            output.bare.column
            for role, output in zip(roles, reading.outputs, strict=True)
            if role == JOIN and output.bare is not None
        }
        for pair in reading.pairs:
            columns = [side.column for side in pair]
            if self._is_link(*pair) and all(ruling.may(JOIN, column) for column in columns):
                linked.update(columns)
            else:
                filters |= {c: "an equality" for c in columns if c not in filters}
        label = len(item.features)
        for test in reading.tests:
            if test.column in keys or test.column in linked:
                linked |= test.reads
            elif item.target and label in test.outputs:
                # rows without a label are not trained on
                reads = self._label_tested(reading.outputs[label], ruling)
                filters |= dict.fromkeys(reads, "a target that may be NULL")
                linked |= test.reads
            else:
                filters |= {c: test.place for c in test.reads if c not in filters}
        if item.target:
            reads = self._label_tested(reading.outputs[label], ruling)
            filters |= dict.fromkeys(reads, "a target that may be NULL")
            if reading.outputs[label].of_rows_alone and not reading.outputs[label].strict:
                chosen |= {"a target that may be NULL"}
        return replace(reading, filters=filters, links=frozenset(linked), chosen=chosen)

    def _is_link(self, left: Bare, right: Bare) -> bool:
        """Return True if different values stay different, and no comparison fails."""
        types = [self._cast(side) for side in (left, right)]
        return types[0] is not None and types[1] is not None and comparable(types[0], types[1])

    def _cast(self, bare: Bare) -> str | None:
        """Return its final type; None if a cast to it may fail, or lose information."""
        type_ = self._type(bare.column)
        for target in bare.casts:
            if type_ is None or not lossless(type_, target):
                return None
            type_ = target
        return type_

    def _type(self, column: ScopeColumn) -> str | None:
        known = next((f for f in self._found.values() if f[0] == column.table), None)
        if known is None:
            return None
        names = dict(zip(known[1], self._types.get(column.table, ()), strict=False))
        return names.get(column.name)

    @staticmethod
    def _label_tested(output: SelectOutput, ruling: Ruling) -> Reads:
        """Return columns whose values a NULL of the target would disclose beyond the noised
        labels.
        """
        if output.strict:
            return NONE
        return frozenset(column for column in output.reads if not _leaves(ruling, column))

    def _check_conditions(self, reading: SelectReading, ruling: Ruling) -> None:
        rules = strictest(ruling.rules(reading.tables)) if reading.tables else None
        exact = rules is None or rules.filters == EXACT
        for column, place in sorted(reading.filters.items()):
            named = f"column {column.name} of {'.'.join(column.table[1:])}"
            if not exact:
                raise PolicyError(
                    f"{has(CONDITIONS)}, and {place} decides by {named} which rows there are",
                    hint=LINK if place in LINKING else LEAVE_OUT,
                )
            if not ruling.may(FILTER, column):
                raise PolicyError(
                    f"{named} is not granted to {self._analyst} for FILTER, and {place} decides "
                    "by it which rows there are",
                    hint=LINK if place in LINKING else LEAVE_OUT,
                )
        if reading.chosen and not exact:
            raise PolicyError(
                f"{has(CONDITIONS)}, and {min(reading.chosen)} decides which rows there are",
                hint=LEAVE_OUT,
            )

    def _check_key(self, output: SelectOutput, reading: SelectReading, ruling: Ruling) -> None:
        """Raise PolicyError unless it is a column that is granted for joins. Hashes of chosen
        values would be a dictionary of other parties' keys, and a cast that fails or loses would
        disclose values.
        """
        if output.constant in NEUTRAL and not output.reads:
            return
        same = output.same
        if same is None or output.reads != {same}:
            raise PolicyError(KEY, hint=LINK)
        if not ruling.may(JOIN, same):
            raise self._not_granted(same, "JOIN")
        # the key of the row for missing partners is made of NULL
        if not reading.nobodys and (output.bare is None or self._cast(output.bare) is None):
            raise PolicyError(f"{KEY}, and {same.name} is not", hint=LINK)

    @staticmethod
    def _may_fail(column: ScopeColumn) -> PolicyError:
        return PolicyError(
            f"an expression of column {column.name} of {'.'.join(column.table[1:])} may fail on "
            "some of its values, which would show that there are such: its owner's policy lets no "
            "value of it leave as it is",
            hint=WHOLE,
        )

    def read(self, cursor: Cursor, text: str, ruling: Ruling) -> SelectReading:
        if self._functions is None:
            self._functions = functions_of(cursor())
        names = NameLookup(cursor, self._place, self.listed)
        asked: dict[tuple[str, ...], Kept] = {}

        def typed(parts: Sequence[str]) -> Kept:
            table = self._table(names, parts, ruling)
            return table, () if table is None else self._types[table[0]]

        def noted(parts: Sequence[str]) -> Found | None:
            asked[tuple(parts)] = table = typed(parts)
            return table[0]

        kept = self._kept.get(text)
        if kept is not None and kept.ruling == ruling:
            now = (typed(parts) for parts in kept.tables)
            if all(map(eq, now, kept.tables.values())):
                return kept.reading
        reading = read(cursor(), text, noted, self._functions, ruling.may_any, self._type)
        if len(text) <= MAX_KEPT_CHARACTERS:
            while len(self._kept) >= MAX_KEPT_TEXTS:
                self._kept.pop(next(iter(self._kept)))
            self._kept[text] = _Kept(ruling, asked, reading)
        return reading

    def _table(self, names: NameLookup, parts: Sequence[str], ruling: Ruling) -> Found | None:
        """Return a granted table. Raise PolicyError if it has changed since the grant."""
        key = tuple(parts)
        if key in self._found:
            return self._found[key]
        table = names.table(parts)
        grants = () if table is None else ruling.of(table[0])
        if table is None or not grants:
            return None
        now = definition_of(names.cursor(), table[0]) if names.is_view(table[0]) else ""
        if any(grant.definition != now for grant in grants):
            raise PolicyError(
                f"view {'.'.join(table[0][1:])}, or what it reads, is another one than "
                "when it was granted",
                hint="the owner looks at it, and grants it again: GRANT ... ON it ends what was "
                "granted before",
            )
        self._found[key], self._types[table[0]] = table, names.types(table[0])
        return table

    def _not_granted(self, column: ScopeColumn, role: str) -> PolicyError:
        return PolicyError(
            f"column {column.name} of {'.'.join(column.table[1:])} is not granted to "
            f"{self._analyst} for {role}",
            hint=ASK,
        )


LINKING = ("an equality", "USING", "a join")


def _leaves(ruling: Ruling, column: ScopeColumn) -> bool:
    """Return True if some policy lets values of the column leave unchanged, in any role."""
    rules = strictest(ruling.rules([column.table]))
    if budgets_of(ruling.rules([column.table]), ruling.total_rules(column.table)):
        return False
    modes = {
        TRAIN: rules.predictions, LABEL: rules.labels, IDENTIFY: rules.identifiers,
        FILTER: rules.filters,
    }  # fmt: skip
    return any(mode == EXACT and ruling.may(role, column) for role, mode in modes.items())


def roles_of(item: SlotSpecification, outputs: tuple[SelectOutput, ...]) -> list[str]:
    """Return the role of each output of a fragment, by its place, as the client takes it."""
    parts = sum(len(key.types) for key in item.keys)
    roles = [TRAIN] * len(item.features) + [LABEL] * (item.target + item.weight + item.offset)
    roles += [BASE] * item.base + [IDENTIFY] * len(item.identifiers) + [JOIN] * parts
    if len(outputs) == len(roles) + 1 and outputs[-1].name == KEPT:
        return [*roles, KEPT]
    roles = roles or [ROW]
    if len(outputs) != len(roles):
        raise PolicyError(f"a fragment of {len(outputs)} columns, of {len(roles)}")
    return roles
