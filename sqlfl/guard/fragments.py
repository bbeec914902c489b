"""What a fragment reads, held against what is granted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import eq
from typing import TypeAlias

from sqlfl.errors import PolicyError
from sqlfl.fragment_columns import BASE, KEPT, ROW
from sqlfl.guard.functions import Functions, functions_of
from sqlfl.guard.governance import (
    IDENTIFY,
    JOIN,
    LABEL,
    TRAIN,
    Ruling,
    definition_of,
)
from sqlfl.guard.names import Listed, Names
from sqlfl.guard.scopes import ASK, Column, Output, Table, unknown
from sqlfl.guard.tree import NEUTRAL, Reading, read
from sqlfl.schema import SlotSpecification
from sqlfl.udfs import sql

MOST_KEPT = 64
LONGEST_KEPT = 10_000
"""Of the texts of fragments of which it is remembered what they read: how many, and characters."""

Found: TypeAlias = "tuple[Table, tuple[str, ...]]"
"""A table, and its columns."""


@dataclass(frozen=True)
class _Kept:
    """What a text read: that follows from what these names of tables meant, and from what is
    granted."""

    ruling: Ruling
    tables: Mapping[tuple[str, ...], Found | None]
    reading: Reading


class Fragments:
    """Of one client; place : its current database and schema."""

    def __init__(self, analyst: str, place: tuple[str, str]) -> None:
        self._analyst, self._place = analyst, place
        self._functions: Functions | None = None
        self._found: dict[tuple[str, ...], Found] = {}
        self._kept: dict[str, _Kept] = {}
        self.listed = Listed()
        """What was listed since."""

    def forget(self) -> None:
        """What names mean is looked up anew, and with another ruling."""
        self._found.clear()
        self.listed = Listed()

    def check(
        self, cursor: sql.Connection, item: SlotSpecification, text: str, ruling: Ruling
    ) -> Reading:
        reading = self.read(cursor, text, ruling)
        for role, output in zip(roles_of(item, reading.outputs), reading.outputs, strict=True):
            if role == JOIN:
                self._check_key(output, ruling)
                continue
            if role in (BASE, ROW, KEPT):
                # a row is drawn by all that it has; whether it is kept is a condition
                others = [] if role != BASE or output.whole is not None else sorted(output.reads)
                for column in others:
                    if not ruling.may_any(column):
                        raise unknown(column.name)
                continue
            for column in sorted(output.reads):
                if not ruling.may(role, column):
                    raise self._not_granted(ruling, column, role.upper())
        for column in sorted(reading.filters):
            if not ruling.may(TRAIN, column):
                raise self._not_granted(ruling, column, "TRAIN, as a condition on its values takes")
        for column in sorted(reading.links):
            if not ruling.may_any(column):
                raise unknown(column.name)
        return reading

    def _check_key(self, output: Output, ruling: Ruling) -> None:
        """A column that is granted for it, normalised at most: hashes of values of one's choice
        would be a dictionary of other parties' keys."""
        if output.constant in NEUTRAL and not output.reads:
            return
        if output.same is None or output.reads != {output.same}:
            raise PolicyError(
                "a join key is to be a column that is granted for JOIN, at most in lower or upper "
                "case or trimmed",
                hint="the owner may grant a view that has the expression as a column",
            )
        if not ruling.may(JOIN, output.same):
            raise self._not_granted(ruling, output.same, "JOIN")

    def read(self, cursor: sql.Connection, text: str, ruling: Ruling) -> Reading:
        if self._functions is None:
            self._functions = functions_of(cursor)
        names = Names(cursor, self._place, self.listed)
        asked: dict[tuple[str, ...], Found | None] = {}

        def noted(parts: Sequence[str]) -> Found | None:
            asked[tuple(parts)] = found = self._table(names, parts, ruling)
            return found

        kept = self._kept.get(text)
        if kept is not None and kept.ruling == ruling:
            now = (self._table(names, parts, ruling) for parts in kept.tables)
            if all(map(eq, now, kept.tables.values())):
                return kept.reading
        reading = read(cursor, text, noted, self._functions, ruling.may_any)
        if len(text) <= LONGEST_KEPT:
            while len(self._kept) >= MOST_KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[text] = _Kept(ruling, asked, reading)
        return reading

    def _table(self, names: Names, parts: Sequence[str], ruling: Ruling) -> Found | None:
        """A table that is granted. Raises PolicyError where it is not what was granted."""
        key = tuple(parts)
        if key in self._found:
            return self._found[key]
        found = names.table(parts)
        grants = () if found is None else ruling.of(found[0])
        if found is None or not grants:
            return None
        now = definition_of(names.cursor, found[0]) if names.is_view(found[0]) else ""
        if any(grant.definition != now for grant in grants):
            raise PolicyError(
                f"view {'.'.join(found[0][1:])}, or what it reads, is another one than "
                "when it was granted",
                hint="the owner looks at it, and grants it again",
            )
        self._found[key] = found
        return found

    def _not_granted(self, ruling: Ruling, column: Column, role: str) -> PolicyError:
        if not ruling.may_any(column):
            return unknown(column.name)
        return PolicyError(
            f"column {column.name} of {'.'.join(column.table[1:])} is not granted to "
            f"{self._analyst} for {role}",
            hint=ASK,
        )


def roles_of(item: SlotSpecification, outputs: tuple[Output, ...]) -> list[str]:
    """What each output of a fragment is for: by its place, as that is how it is taken."""
    parts = sum(len(key.types) for key in item.keys)
    found = [TRAIN] * len(item.features) + [LABEL] * (item.target + item.weight)
    found += [BASE] * item.base + [IDENTIFY] * len(item.identifiers) + [JOIN] * parts
    if len(outputs) == len(found) + 1 and outputs[-1].name == KEPT:
        return [*found, KEPT]
    found = found or [ROW]
    if len(outputs) != len(found):
        raise PolicyError(f"a fragment of {len(outputs)} columns, of {len(found)}")
    return found
