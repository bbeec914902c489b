"""A run that is proposed: what it reads, and what it takes of what its owner keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from sqlfl import messages as ms
from sqlfl.guard import noising
from sqlfl.guard.governance import Ruling
from sqlfl.guard.judging import has
from sqlfl.guard.ledger import Asking
from sqlfl.guard.marks import marked
from sqlfl.guard.runs import GovernedRun, Parts
from sqlfl.guard.scopes import Table
from sqlfl.guard.tree import Reading
from sqlfl.options.policies import TrainingPolicy
from sqlfl.request import REFUSED, Request, Verdict
from sqlfl.schema import SlotSpecification, specifications_from_json, specifications_to_json
from sqlfl.udfs import sql


@dataclass(frozen=True)
class Proposal:
    """A run that was allowed, and has not begun."""

    ruling: Ruling
    run: GovernedRun
    of: ms.Propose
    digest: str
    views: Mapping[Table, str]
    """What each table's definition is."""
    asked: Asking
    """Of the ledger."""

    @property
    def told(self) -> str:
        """What it is, for who looks at what has left."""
        return told_of(self.run.request, self.views)


def told_of(request: Request, tables: Iterable[Table]) -> str:
    by = f" by {request.algorithm}" if request.algorithm else ""
    named = ", ".join(".".join(table[1:]) for table in sorted(tables))
    return f"{request.purpose} {request.kind}{by} of {named}"


@dataclass(frozen=True)
class Read:
    """What the fragments of a request read."""

    slots: tuple[SlotSpecification, ...]
    tables: Mapping[int, frozenset[Table]]
    readings: Mapping[int, tuple[Reading, ...]]

    @property
    def canonical(self) -> tuple[str, ...]:
        return tuple(own.canonical for readings in self.readings.values() for own in readings)


def parts_of(item: SlotSpecification, found: Read, rules: Mapping[int, TrainingPolicy]) -> Parts:
    readings = zip(item.fragments, found.readings[item.slot], strict=True)
    tables = {
        number: None if own.nobodys else next(iter(own.tables), None) for number, own in readings
    }
    made = sum(feature.width for feature in item.features if feature.fitted)
    return Parts(tables, rules[item.slot].min_difference, bool(item.keys), made)


def not_known_again(found: Read, rules: Mapping[int, TrainingPolicy]) -> tuple[Verdict, ...]:
    """Slots of which it would not be known which rows of which table they are of."""
    verdicts = []
    every: list[Table] = []
    for item in found.slots:
        least = rules[item.slot].min_difference
        linked = {link for _, link in item.links}
        own = [
            reading
            for number, reading in zip(item.fragments, found.readings[item.slot], strict=True)
            if number not in linked and not reading.nobodys
        ]
        every += [table for reading in own for table in reading.tables]
        if least is not None and not all(
            reading.stable and len(reading.tables) == 1 for reading in own
        ):
            why = f"{has(f'min_difference = {least}')}, which takes {noising.STABLE}"
            verdicts.append(Verdict(item.slot, "", REFUSED, why))
    twice = any(every.count(table) > 1 for table in every)
    if twice and not verdicts and any(own.min_difference is not None for own in rules.values()):
        why = f"{has('min_difference')}, which takes a table once in a query"
        verdicts.append(Verdict(ms.CLIENT, "", REFUSED, why))
    return tuple(verdicts)


def with_marks(con: sql.Connection, request: ms.Prepare, parts: Mapping[int, Parts]) -> ms.Prepare:
    """With what rows are known again by, where that is needed."""
    if all(own.least is None for own in parts.values()):
        return request
    slots: list[SlotSpecification] = []
    texts: list[str] = []
    start = 0
    with closing(sql.waiting(con.cursor)) as cursor:
        for item in specifications_from_json(request.specification):
            own = request.fragments[start : start + len(item.fragments)]
            start += len(item.fragments)
            own_parts = parts[item.slot]
            if own_parts.least is not None:
                item = replace(item, marked=True)
                tables = (own_parts.tables[number] for number in item.fragments)
                own = tuple(
                    marked(cursor, text, table) for text, table in zip(own, tables, strict=True)
                )
            slots.append(item)
            texts += own
    specification = specifications_to_json(tuple(slots))
    return replace(request, specification=specification, fragments=tuple(texts))
