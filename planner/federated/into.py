"""PREDICT INTO: the tables that a party shall make, checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.contract.schema import Catalog, Client, Table
from sqlfl.planner.grammar.statements import Path, Span
from sqlfl.planner.grammar.trees import nodes, plan_error
from sqlfl.planner.query.names import CatalogTables, nearest
from sqlfl.planner.query.ucq import Slot, Ucq

RESERVED_SCHEMA = "sqlfl"
PREDICTION = "prediction"
PROBABILITY = "probability_"

_INTEGERS = (
    "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER",
)  # fmt: skip
_SAME = ("BOOLEAN", "UBIGINT", "HUGEINT", "FLOAT", "DOUBLE")


@dataclass(frozen=True)
class Into:
    """The target tables of predictions. Each row has a prediction and identifiers, which do not
    leave their party."""

    path: str
    """The path as written."""
    tables: tuple[tuple[Client, tuple[str, str, str]], ...]
    """(client, (database, schema, name)) of each table, in the clients' order; for a combining
    party, one for each of its own.
    """
    slots: tuple[int, ...]
    """The slots that hold the identifiers."""
    names: tuple[str, ...]
    """The identifiers' columns."""
    classes: tuple[str, ...]
    """The model's classes, as text; empty for a regression."""
    type: str
    """The DuckDB type of classes in `prediction`."""
    replace: bool = False
    """The tables may take the place of others."""

    @property
    def requests(self) -> dict[Client, tuple[str, ...]]:
        """Return client -> database, schema and name of each of its tables."""
        places: dict[Client, tuple[str, ...]] = {}
        for client, place in self.tables:
            receiver = client.whole if client.combined else client
            places[receiver] = (*places.get(receiver, ()), *place)
        return places

    @property
    def clients(self) -> tuple[Client, ...]:
        return tuple(self.requests)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the column names of the tables."""
        return (*self.names, PREDICTION, *(PROBABILITY + name for name in self.classes))


def class_type(target_type: str) -> str:
    """Return the DuckDB type of predicted classes: the target's own type, or text."""
    if target_type in _INTEGERS:
        return "BIGINT"
    same = target_type in _SAME or target_type.startswith("DECIMAL(")
    return target_type if same else "VARCHAR"


def plan_into(
    path: Path,
    identifiers: Sequence[Path],
    ucq: Ucq,
    catalog: Catalog,
    classes: Sequence[str],
    target_type: str,
    sql: str,
    replaced_by: exp.Query | None = None,
) -> Into:
    """Plan the tables of INTO.

    `identifiers` are the ID clause's, in number as in `ucq`. With `replaced_by`, the query,
    existing tables may be replaced, except those that it reads. Raises PlanError, with the place,
    if the tables cannot be made there with these columns.
    """
    target = _Target(path, sql, CatalogTables(catalog, sql), replaced_by)
    party = target.tables.party_named(path.parts[0], path.span)
    if not identifiers:
        raise target.error(
            "INTO without ID would be predictions that belong to no row",
            f"name columns of {party}: PREDICT MODEL ... ID ({party}.table.column) FROM ...",
        )
    slots = _holders(target, party, identifiers, ucq)
    _check_columns(target, identifiers, ucq, classes)
    tables = tuple((client, target.place(client)) for client in slots[0].databases)
    return Into(
        str(path),
        tables,
        tuple(slot.index for slot in slots),
        tuple(identifier.name for identifier in ucq.identifiers),
        tuple(classes),
        class_type(target_type),
        replaced_by is not None,
    )


@dataclass(frozen=True)
class _Target:
    path: Path
    sql: str
    tables: CatalogTables
    replaced_by: exp.Query | None

    def error(self, message: str, hint: str, span: Span | None = None) -> PlanError:
        return plan_error(message, self.sql, span or self.path.span, hint)

    def place(self, client: Client) -> tuple[str, str, str]:
        """Return database, schema and name of the table at one client. Raise PlanError if a table
        exists and must not be replaced."""
        *before, name = self.path.parts[1:]
        if any(part.lower() == RESERVED_SCHEMA for part in before):
            raise self.error(
                f"the schema {RESERVED_SCHEMA} is sqlfl's own", "choose another schema"
            )
        schemas = self.tables.located(client, before, self.path.span)
        if not schemas:
            places = self.tables.places(client)
            known = [p.schema for p in places if p.catalog == places[0].catalog]
            known += [p.catalog for p in places]
            raise self.error(
                f"{self.tables.owner(client)} has no schema or database {'.'.join(before)}",
                nearest(before[0], known) or f"CREATE SCHEMA {before[0]} in its database first",
            )
        place = schemas[0]
        if not place.writable:
            raise self.error(
                f"the database {place.catalog} of {self.tables.owner(client)} is open for reading "
                "only",
                "attach a connection that may write, duckdb.connect(path); a path is opened "
                "read-only",
            )
        for table in self.tables.of(client):
            same = table.name.lower() == name.lower()
            if not same or self.tables.place(client, table) != place:
                continue
            if self.replaced_by is None:
                raise self.error(
                    f"there is a table {place.schema}.{table.name} at {client} already",
                    f"INTO OR REPLACE {self.path} takes its place; or choose another name",
                )
            if any(table is read for read in self._read(client, self.replaced_by)):
                raise self.error(
                    f"the query reads {place.schema}.{table.name} at {client}, which INTO would "
                    "replace",
                    "choose another name: its rows would be lost",
                )
        return place.catalog, place.schema, name

    def _read(self, client: Client, query: exp.Query) -> list[Table]:
        """Return the client's tables that the query names."""
        named = [t for t in nodes(query, exp.Table) if t.db and isinstance(t.this, exp.Identifier)]
        tables = [t for t in named if t.parts[0].name.lower() == client.party.lower()]
        return [self.tables.table(t, client) for t in tables]


def _holders(target: _Target, party: str, identifiers: Sequence[Path], ucq: Ucq) -> list[Slot]:
    """Return the slots of the identifiers. Raise PlanError unless all belong to the party alone."""
    slots: dict[int, Slot] = {}
    for number, path in enumerate(identifiers):
        slot = next(s for s in ucq.slots if number in s.identifiers)
        if slot.parties != (party,):
            owners = " and ".join(p for p in slot.parties if p != party)
            raise target.error(
                f"identifier {path} is at {owners}, and INTO {target.path} is at {party}: "
                "identifiers do not leave their party",
                f"name columns of {party}, or leave INTO out: each column of ID then leaves its "
                "party",
                path.span,
            )
        slots.setdefault(slot.index, slot)
    several = [s for s in slots.values() if len(s.databases) > 1]
    if several and len(slots) > 1:
        first, second, *_ = slots.values()
        place = next(p for n, p in enumerate(identifiers) if n in second.identifiers)
        raise target.error(
            f"the identifiers are of {first.name} and {second.name}, and {party} has "
            f"{len(several[0].databases)} clients: rows of the two need not be at the same one",
            "name columns of one table in ID",
            place.span,
        )
    return list(slots.values())


def _check_columns(
    target: _Target, identifiers: Sequence[Path], ucq: Ucq, classes: Sequence[str]
) -> None:
    added = [PREDICTION, *(PROBABILITY + name for name in classes)]
    taken: dict[str, str] = {}
    for name in added:
        if name.lower() in taken:
            raise target.error(
                f"the columns {taken[name.lower()]} and {name} would differ in case only",
                "leave INTO out, and store the result with columns of your own",
            )
        taken[name.lower()] = name
    for path, identifier in zip(identifiers, ucq.identifiers, strict=True):
        for name in (path.parts[-1], identifier.name):
            if name.lower() in taken:
                raise target.error(
                    f"identifier {path}: the table has a column {taken[name.lower()]} already",
                    "rename it: FROM (SELECT column AS other, ... FROM party.table) AS t, "
                    "and ID (t.other)",
                    path.span,
                )
        taken[identifier.name.lower()] = identifier.name
