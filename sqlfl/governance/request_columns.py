"""Columns that a request reads, by role: the party's own reading of its fragments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlfl.base.codec import LEFT_OUT
from sqlfl.contract.schema import SlotSpecification
from sqlfl.governance.fragments import roles_of
from sqlfl.governance.policies import FILTER, IDENTIFY, JOIN, LABEL, TRAIN
from sqlfl.governance.proposals import Read
from sqlfl.governance.scopes import ScopeColumn, Table
from sqlfl.governance.tree import SelectReading

WEIGHT, OFFSET, LINK = "weight", "offset", "link"
"""Roles in a request beside those of grants. WEIGHT and OFFSET take a grant of LABEL. LINK is an
equality that decides which of the party's own rows belong together, and takes a grant of JOIN.
"""


@dataclass(frozen=True, order=True)
class ColumnUse:
    """Use of one column."""

    role: str
    """TRAIN, LABEL, WEIGHT, OFFSET, IDENTIFY, JOIN, LINK or FILTER."""
    table: Table
    name: str
    bare: bool = True
    """True if the value is the column's own, up to its type or case; False if it is computed."""


@dataclass(frozen=True)
class SlotColumns:
    """Tables and columns that one slot of a request reads."""

    slot: int
    tables: tuple[Table, ...]
    uses: tuple[ColumnUse, ...]
    chosen: tuple[str, ...] = ()
    """Clauses that choose among rows by something other than values, such as LIMIT."""
    constants: tuple[tuple[str, str], ...] | None = field(default=None, metadata=LEFT_OUT)
    """(column, constant) of columns that are conditions on rows, and the constants beside them in
    the SQL; None without such.
    """

    def names(self, role: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(use.name for use in self.uses if use.role == role))


def columns_of(proposed: Read) -> tuple[SlotColumns, ...]:
    """Return the columns of each slot of a request."""
    return tuple(_of_slot(item, proposed) for item in proposed.slots)


def _of_slot(item: SlotSpecification, proposed: Read) -> SlotColumns:
    readings = proposed.readings[item.slot]
    uses = {use for reading in readings for use in _uses(item, reading)}
    chosen = {clause for reading in readings for clause in reading.chosen}
    tables = tuple(sorted(proposed.tables[item.slot]))
    constants = tuple(sorted({
        (column.name, text)
        for reading in readings
        for column, text in reading.beside
        if text is not None and column in reading.filters
    }))  # fmt: skip
    return SlotColumns(
        item.slot, tables, tuple(sorted(uses)), tuple(sorted(chosen)), constants or None
    )


def _uses(item: SlotSpecification, reading: SelectReading) -> Iterator[ColumnUse]:
    labels = iter([LABEL] * item.target + [WEIGHT] * item.weight + [OFFSET] * item.offset)
    for role, output in zip(roles_of(item, reading.outputs), reading.outputs, strict=True):
        if role not in (TRAIN, LABEL, IDENTIFY, JOIN):
            continue
        named = next(labels) if role == LABEL else role
        for column in output.reads:
            yield _use(named, column, bare=output.same == column)
    for column in reading.filters:
        yield _use(FILTER, column, bare=True)
    for column in {side.column for pair in reading.pairs for side in pair} & reading.links:
        yield _use(LINK, column, bare=True)


def _use(role: str, column: ScopeColumn, *, bare: bool) -> ColumnUse:
    return ColumnUse(role, column.table, column.name, bare)
