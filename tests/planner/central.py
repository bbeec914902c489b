"""The same query run centrally and by its plan: fragments and keys by hand, the join two ways.

The mapping query runs in DuckDB; the normal form is also joined by nested loops, which know nothing
of that query. Both must agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np

from sqlfl.contract.schema import Client
from sqlfl.coordinator.join.join_size import SlotCodes, once_each
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.query.emit import mapping_query
from sqlfl.planner.query.ucq import Block, Fragment, Join, LeftJoin, Slot, Ucq, groups_of

Databases = dict[Client, duckdb.DuckDBPyConnection]
COORDINATOR = duckdb.connect(config={"threads": 1})
"""Opening one takes longer than all that is asked of it."""


@dataclass(frozen=True)
class Row:
    """A row of a fragment."""

    fragment: int
    values: dict[str, Any]
    tags: dict[int, int | None]


@dataclass
class Snapshot:
    """The rows of every slot, with keys as numbers; rows without a label are out, as at parties."""

    slots: dict[int, list[Row]] = field(default_factory=dict)
    codes: dict[tuple[int, Any], int] = field(default_factory=dict)

    def add(self, ucq: Ucq, slot: Slot, databases: Databases, labelled: bool) -> None:
        rows = self.slots.setdefault(slot.index, [])
        groups = MergedGroups(slot, databases)
        for fragment in slot.fragments:
            cursor, text = groups.placed(fragment)
            found = cursor.execute(text)
            names = [column[0] for column in found.description]
            plain = [name for name in names if name != "sqlfl_kept"]
            assert plain == expected_columns(ucq, slot.index), (names, fragment.sql)
            count = 0
            for values in found.fetchall():
                row = dict(zip(names, values, strict=True))
                if row.pop("sqlfl_kept", not fragment.links) == fragment.links:
                    continue
                count += 1
                if labelled and slot.target and row["sqlfl_target"] is None and not fragment.links:
                    continue
                tags = {key: self._tag(ucq, slot, key, row) for key in slot.keys}
                rows.append(Row(fragment.index, row, tags))
            assert not fragment.virtual or count <= 1

    def _tag(self, ucq: Ucq, slot: Slot, key: int, row: dict[str, Any]) -> int | None:
        parts = tuple(row[f"sqlfl_key_{key}_{p}"] for p in range(len(ucq.keys[key].types)))
        if None in parts:
            assert key in slot.nullable
            return None
        parts = tuple("NaN" if part != part else part for part in parts)  # it equals itself there
        return self.codes.setdefault((key, parts), len(self.codes))


class MergedGroups:
    """Groups of a slot's databases, each at the one that a hash of its key chooses."""

    def __init__(self, slot: Slot, databases: Mapping[Client, duckdb.DuckDBPyConnection]) -> None:
        parts = slot.evaluated
        self._cursors = {part.client: databases[part.client] for part in parts}
        self._tables: dict[tuple[Client, str], str] = {}
        selects: dict[Client, list[str]] = {}
        for part in parts:
            found = groups_of(part.select)
            if found is not None and to_sql(found.this) not in selects.get(part.client, []):
                selects.setdefault(part.client, []).append(to_sql(found.this))
        self._cursors |= {client: _beside(databases[client]) for client in selects}
        for number in range(max(map(len, selects.values()), default=0)):
            self._merge({client: own[number] for client, own in selects.items()}, number)

    def _merge(self, selects: dict[Client, str], number: int) -> None:
        kept: dict[int, list[tuple[Any, ...]]] = {place: [] for place in range(len(selects))}
        for client, select in selects.items():
            described = self._cursors[client].execute(f"DESCRIBE {select}").fetchall()
            texts = [
                f"coalesce(({name}{' + 0' * (kind in ('FLOAT', 'DOUBLE'))})::VARCHAR, '')"
                for name, kind, *_ in described
                if name.startswith("sqlfl_by_")
            ]
            whole = " || ".join(f"strlen({text})::VARCHAR || ':' || {text}" for text in texts)
            home = f"(md5_number_lower({whole}) % {len(selects)})::INTEGER"
            for *row, place in (
                self._cursors[client].execute(f"SELECT *, {home} FROM ({select})").fetchall()
            ):
                kept[place].append(tuple(row))
        for place, (client, select) in enumerate(selects.items()):
            name, cursor = f"groups_{number}", self._cursors[client]
            cursor.execute(f"CREATE TEMP TABLE {name} AS {select} LIMIT 0")
            for row in kept[place]:
                cursor.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)
            self._tables[client, select] = f"temp.main.{name}"

    def placed(self, fragment: Fragment) -> tuple[duckdb.DuckDBPyConnection, str]:
        """A cursor, and the fragment's SQL on it, over merged groups where it is of groups."""
        text = fragment.sql
        for (client, select), table in self._tables.items():
            if client == fragment.client:
                text = text.replace(f"({select})", table)
        return self._cursors[fragment.client], text


def _beside(database: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """Return another cursor that looks functions up as this one does."""
    (path,) = database.execute("SELECT current_setting('search_path')").fetchone() or ("",)
    cursor = database.cursor()
    cursor.execute(f"SET search_path = '{path}'")
    return cursor


def reduced(ucq: Ucq, rows: Mapping[int, Sequence[Row]]) -> dict[int, SlotCodes]:
    """The keys of the slots as the coordinator joins them: rows of EXISTS with equal keys once."""
    codes = {
        slot.index: SlotCodes(
            np.array([row.fragment for row in rows[slot.index]], np.int64),
            {
                key: np.array(
                    [-1 if row.tags[key] is None else row.tags[key] for row in rows[slot.index]],
                    np.int64,
                )
                for key in slot.keys
            },
        )
        for slot in ucq.slots
    }
    return once_each(ucq, codes)


def planned_rows(ucq: Ucq, databases: Databases, labelled: bool = False) -> list[Any]:
    """The rows that the plan joins: output columns in order, then identifiers; sorted.

    With `labelled`, rows whose target is NULL are left out, as they are for TRAIN.
    """
    snapshot = Snapshot()
    for slot in ucq.slots:
        snapshot.add(ucq, slot, databases, labelled)
    slots, mapped = _mapped(ucq, snapshot)
    looped = Counter(_shown(ucq, snapshot, row) for row in looped_rows(ucq, snapshot))
    rows = (dict(zip(slots, numbers, strict=True)) for numbers in mapped)
    assert Counter(_shown(ucq, snapshot, row) for row in rows) == looped
    result = []
    for numbers in mapped:
        merged: dict[str, Any] = {}
        for slot_index, number in zip(slots, numbers, strict=True):
            merged |= snapshot.slots[slot_index][number].values
        special = {
            ucq.target: "sqlfl_target",
            ucq.weight: "sqlfl_weight",
            ucq.offset: "sqlfl_offset",
        }
        names = [special.get(name, name) for name in ucq.columns]
        names += [f"sqlfl_id_{k}" for k in range(len(ucq.identifiers))]
        result.append(tuple(merged[name] for name in names))
    return ordered(result)


def _shown(ucq: Ucq, snapshot: Snapshot, row: Mapping[int, int]) -> tuple[int | bool, ...]:
    """A joined row, where of a subquery's tables only the existence of a row counts."""
    return tuple(
        slot.fragments[snapshot.slots[slot.index][row[slot.index]].fragment].virtual
        if slot.once
        else row[slot.index]
        for slot in ucq.slots
        if slot.index in ucq.mapped
    )


def _mapped(ucq: Ucq, snapshot: Snapshot) -> tuple[list[int], list[tuple[int, ...]]]:
    """The slots that the mapping query gives, and its rows."""
    COORDINATOR.execute("BEGIN")  # which is rolled back: the next query finds no table
    try:
        codes = reduced(ucq, snapshot.slots)
        for slot in ucq.slots:
            columns = "".join(f", key_{key} INTEGER" for key in slot.keys)
            own = codes[slot.index]
            COORDINATOR.execute(
                f'CREATE TABLE slot_{slot.index} (fragment USMALLINT, "row" INTEGER{columns})'
            )
            rows = ", ".join(
                f"({', '.join('NULL' if v < 0 else str(v) for v in values)})"
                for number, fragment in enumerate(own.fragment)
                for values in [(fragment, number, *(own.keys[key][number] for key in slot.keys))]
            )
            if rows:
                COORDINATOR.execute(f"INSERT INTO slot_{slot.index} VALUES {rows}")
        joined = COORDINATOR.execute(to_sql(mapping_query(ucq)))
        slots = [int(column[0].removeprefix("slot_")) for column in joined.description]
        return slots, joined.fetchall()
    finally:
        COORDINATOR.execute("ROLLBACK")


# -- nested loops ----------------------------------------------------------------------------------

Partial = dict[int, int | None]
"""Slot -> its row; None where a LEFT JOIN found none."""


def looped_rows(ucq: Ucq, snapshot: Snapshot) -> Iterator[dict[int, int]]:
    """The joined rows, slot by slot, as the normal form says."""
    for block in ucq.blocks:
        rows = _Loops(snapshot, block).rows()
        if block.partners or block.existences:
            yield from {
                (
                    *(row[s] for s, _ in block.members if not ucq.slots[s].once),
                    *_shown(ucq, snapshot, row),
                ): row
                for row in rows
            }.values()
        else:
            yield from rows


@dataclass(frozen=True)
class _Loops:
    snapshot: Snapshot
    block: Block

    def rows(self) -> Iterator[dict[int, int]]:
        core = [slot for slot, _ in self.block.members if slot not in self.block.optional]
        virtual = {slot: self._virtual(slot) for slot in self.block.optional}
        for partial in self._group([{}], core, self.block.joins, self.block.lefts):
            if all(self._kept(partial[slot], slot, kept) for slot, kept in self.block.kept):
                numbers = {s: virtual[s] if n is None else n for s, n in partial.items()}
                yield {slot: number for slot, number in numbers.items() if number is not None}
                assert None not in numbers.values()

    def _group(
        self,
        partials: list[Partial],
        slots: Sequence[int],
        joins: Iterable[Join],
        lefts: Sequence[LeftJoin],
    ) -> list[Partial]:
        for slot in slots:
            own = [j for j in joins if not j.virtual and slot in (j.left, j.right)]
            partials = [
                {**partial, slot: number}
                for partial in partials
                for number in self._real(slot)
                if self._hold(own, {**partial, slot: number})
            ]
        for left in lefts:
            rights = self._group([{}], left.slots, left.joins, left.lefts)
            missing: Partial = dict.fromkeys(left.within)
            extended = []
            for partial in partials:
                matching = [r for r in rights if self._hold(left.on, {**partial, **r})]
                extended += [{**partial, **right} for right in matching or [missing]]
            partials = extended
        late = [j for j in joins if j.virtual]
        return [partial for partial in partials if self._hold(late, partial)]

    def _real(self, slot: int) -> list[int]:
        fragments = dict(self.block.members)[slot]
        rows = self.snapshot.slots[slot]
        return [n for n, row in enumerate(rows) for f in fragments if row.fragment == f]

    def _virtual(self, slot: int) -> int | None:
        fragment = dict(self.block.virtual)[slot]
        rows = self.snapshot.slots[slot]
        return next((n for n, row in enumerate(rows) if row.fragment == fragment), None)

    def _hold(self, joins: Iterable[Join], partial: Partial) -> bool:
        for join in joins:
            if join.left in partial and join.right in partial:
                left = self._tag(join, join.left, partial)
                right = self._tag(join, join.right, partial)
                if left is None or left != right:
                    return False
        return True

    def _tag(self, join: Join, slot: int, partial: Partial) -> int | None:
        number = partial[slot]
        if number is None and join.virtual and slot == join.left:
            number = self._virtual(slot)
        return None if number is None else self.snapshot.slots[slot][number].tags[join.key]

    def _kept(self, number: int | None, slot: int, fragments: tuple[int, ...]) -> bool:
        if number is None:
            return self._virtual(slot) is not None
        return self.snapshot.slots[slot][number].fragment in fragments


def expected_columns(ucq: Ucq, index: int) -> list[str]:
    """The columns of the slot's fragments, as their contract says."""
    slot = ucq.slots[index]
    names = [feature.name for feature in slot.features]
    names += ["sqlfl_target"] if slot.target else []
    names += ["sqlfl_weight"] if slot.weight else []
    names += ["sqlfl_offset"] if slot.offset else []
    names += ["sqlfl_base"] if slot.split else []
    names += [f"sqlfl_id_{k}" for k in slot.identifiers]
    for key in slot.keys:
        names += [f"sqlfl_key_{key}_{part}" for part in range(len(ucq.keys[key].types))]
    return names or ["sqlfl_row"]


def ordered(rows: list[Any]) -> list[Any]:
    """Rows in an order of their own; numbers of different types compare as numbers."""

    def text(value: Any) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, str):
            return f"'{value}'"
        try:
            return f"{float(value):.9g}"
        except (TypeError, ValueError):
            return str(value)

    return sorted(tuple(text(value) for value in row) for row in rows)
