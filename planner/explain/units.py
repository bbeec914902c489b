"""The unit of privacy: the rows of a slot, and the tables that they come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from sqlfl.planner.grammar.trees import nodes
from sqlfl.planner.query.ucq import Slot


@dataclass(frozen=True)
class Unit:
    """The unit whose change ε is about: a part of one row, of any of these."""

    part: Literal["features", "label"]
    rows: tuple[str, ...]
    """Each as `unit_of` returns it."""

    def __str__(self) -> str:
        return f"the {self.part} of {' or of '.join(self.rows)}"

    @property
    def alone(self) -> str:
        """The rows, for a sentence that has named the part."""
        return " or ".join(self.rows)


def features_of(slots: Iterable[Slot], every: Iterable[Slot]) -> Unit:
    """The features of these of all slots of the query."""
    among = tuple(every)
    return Unit("features", tuple(unit_of(slot, among) for slot in slots))


def label_of(every: Iterable[Slot]) -> Unit:
    """Return the unit of labels among these slots."""
    among = tuple(every)
    return Unit("label", tuple(unit_of(slot, among) for slot in among if slot.target))


def tables_of(slot: Slot) -> tuple[str, ...]:
    """`party.table` of all that the slot's fragments read, in the order of the clients."""
    names: dict[str, None] = {}
    for fragment in slot.evaluated:
        for parts in _paths(fragment.select):
            names[".".join((fragment.client.party, *parts))] = None
    return tuple(names)


def unit_of(slot: Slot, every: Iterable[Slot]) -> str:
    """Return 'one row of p (census.people)' if a table's row is at most one row of the query; else
    text about a row of the SELECT. `every` are all slots of the query.
    """
    several = {table.lower() for table in repeated(every)}
    if derived(slot) or any(table.lower() in several for table in tables_of(slot)):
        return f"one row that this SELECT gives as {slot.name}"
    tables = ", ".join(tables_of(slot))
    named = tables.split(".")[-1] == slot.name and "," not in tables
    return f"one row of {tables}" if named else f"one row of {slot.name} ({tables})"


def derived(slot: Slot) -> bool:
    """Return whether a row of the slot may not be one row of one table. It may be aggregated,
    joined, computed over or selected by other rows, or made by an unknown function; or it may come
    from a view, for which the database reports no size.
    """
    shapes = (
        exp.Join, exp.Lateral, exp.Group, exp.AggFunc, exp.Window, exp.Distinct, exp.Qualify,
        exp.Having, exp.SetOperation, exp.With, exp.Subquery, exp.UDTF, exp.Explode,
        exp.GenerateSeries, exp.Limit, exp.Fetch, exp.Offset, exp.TableSample, exp.Pivot,
        exp.Exists, exp.Anonymous,
    )  # fmt: skip
    return any(
        fragment.rows is None
        or len(list(_paths(fragment.select))) != 1
        or len(nodes(fragment.select, exp.Select)) != 1
        or fragment.select.find(*shapes) is not None
        for fragment in slot.evaluated
        if not fragment.virtual
    )


def repeated(slots: Iterable[Slot]) -> tuple[str, ...]:
    """Return tables whose rows may be several rows of the slots: of several slots, or of several
    fragments of one client in a slot (parts of a UNION).
    """
    counts = Counter(
        (fragment.client, ".".join((fragment.client.party, *parts)).lower())
        for slot in slots
        for fragment in slot.evaluated
        if not (fragment.virtual or fragment.links)
        for parts in dict.fromkeys(_paths(fragment.select))
    )
    return tuple(dict.fromkeys(table for (_, table), count in counts.items() if count > 1))


def listed(words: Iterable[str]) -> str:
    """'a, b and c'."""
    items = list(words)
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def _paths(select: exp.Select) -> Iterable[tuple[str, ...]]:
    """Yield the paths of the tables that it reads, without those of WITH."""
    inner = {cte.alias for cte in nodes(select, exp.CTE)}
    for table in nodes(select, exp.Table):
        parts = tuple(part.name for part in table.parts)
        if table.name and (len(parts) > 1 or parts[0] not in inner):
            yield parts
