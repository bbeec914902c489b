"""Several databases of one party: their differences, and the party as one client.

Differences are tables, columns and types that not all databases share. Where a party combines its
clients, the plan treats the party as one client from this rule on. Before it all clients are
separate, so that queries with another result on the union of their tables than on the parts have
been refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.contract.schema import Catalog, Client, Column, Table, folded
from sqlfl.planner.grammar.trees import nodes
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.names import CatalogTables, shortest
from sqlfl.planner.query.types import NULL_TYPE, normal, union_type
from sqlfl.planner.query.ucq import Block, Fragment, Slot, Ucq


@dataclass(frozen=True)
class Difference:
    """A column of a table, or the table itself, that a party's databases have unlike."""

    table: str
    """party.table, as the party's first database with it names it."""
    column: str
    """Empty where a database lacks the table."""
    found: str
    """Each type or name with the databases that have it."""
    text: str
    """A sentence with the consequence."""


def differences(query: exp.Query, sql: str, catalog: Catalog) -> tuple[Difference, ...]:
    """Return the differences between the databases of each party in the query's tables.

    It asks the catalog for names and types. The planner refuses unknown tables and parties.
    """
    tables = CatalogTables(catalog, sql)
    differences_: dict[Difference, None] = {}
    for node in nodes(query, exp.Table):
        if len(node.parts) < 2 or not isinstance(node.this, exp.Identifier):
            continue
        try:
            clients = tables.clients(node)
        except PlanError:
            continue
        if len(clients) > 1:
            differences_ |= dict.fromkeys(_of_table(tables, node, clients))
    return tuple(differences_)


def _of_table(
    tables: CatalogTables, node: exp.Table, clients: Sequence[Client]
) -> Iterator[Difference]:
    own: list[tuple[Client, Table]] = []
    away: list[Client] = []
    for client in clients:
        try:
            own.append((client, tables.table(node, client)))
        except PlanError:
            away.append(client)
    if not own:
        return
    name = ".".join((own[0][0].party, *shortest(own[0][1])))
    if away:
        lacking = _listed(away)
        yield Difference(
            name, "", f"not at {lacking}",
            f"{name}: {lacking} {'lacks' if len(away) == 1 else 'lack'} the table",
        )  # fmt: skip
    columns: dict[str, list[tuple[Client, Column]]] = {}
    for client, table in own:
        for column in table.columns:
            columns.setdefault(folded(column.name), []).append((client, column))
    alike: dict[str, list[str]] = {}
    for key in columns:
        alike.setdefault(key.casefold(), []).append(key)
    for key, holders in columns.items():
        at = {client for client, _ in holders}
        lacking_ = [client for client, _ in own if client not in at]
        others = [k for k in alike[key.casefold()] if k != key]
        yield from _of_column(name, holders, lacking_, [columns[k][0][1].name for k in others])


def _of_column(
    table: str, holders: list[tuple[Client, Column]], lacking: list[Client], others: list[str]
) -> Iterator[Difference]:
    column = holders[0][1].name
    if lacking:
        away = _listed(lacking)
        text = f"{table}: {away} {'lacks' if len(lacking) == 1 else 'lack'} column {column}"
        if others:
            text += f", and has {' and '.join(others)}, which differs in case only"
        yield Difference(table, column, f"not at {away}", text)
    names: dict[str, list[Client]] = {}
    types: dict[str, list[Client]] = {}
    for client, own in holders:
        names.setdefault(own.name, []).append(client)
        types.setdefault(normal(own.type), []).append(client)
    if len(names) > 1:
        texts = _each(names)
        yield Difference(
            table, column, texts,
            f"{table}: a column is {texts}; DuckDB takes these names for one",
        )  # fmt: skip
    if len(types) > 1:
        texts, wanted = _each(types), union_type(tuple(types))
        text = f"{table}: column {column} is {texts}"
        if wanted is None:
            kind = next((t for t in types if t not in ("VARCHAR", NULL_TYPE)), "VARCHAR")
            text += f"; cast it wherever the query reads it: {column}::{kind}"
        else:
            text += f"; it is read as {wanted}"
        yield Difference(table, column, texts, text)


def _each(holders: dict[str, list[Client]]) -> str:
    return ", ".join(f"{what} at {_listed(clients)}" for what, clients in holders.items())


_MAX_LISTED = 4


def _listed(clients: Sequence[Client]) -> str:
    names = [str(client) for client in clients]
    if len(names) > _MAX_LISTED:
        names = [*names[: _MAX_LISTED - 1], f"{len(names) - _MAX_LISTED + 1} others"]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


Part: TypeAlias = tuple[object, ...]
"""Identity of fragments that clients of one party evaluate alike."""


def combine_clients(draft: Draft) -> Draft:
    """Merge fragments with the same part in the query, at clients of one party."""
    assert draft.ucq is not None
    return replace(draft, ucq=_combined(draft.ucq))


def _combined(ucq: Ucq) -> Ucq:
    merged = [_Combined.of(ucq, slot) for slot in ucq.slots]
    slots = tuple(
        replace(slot, fragments=slot_parts.fragments)
        for slot, slot_parts in zip(ucq.slots, merged, strict=True)
    )
    return replace(ucq, slots=slots, blocks=tuple(_renumbered(b, merged) for b in ucq.blocks))


def _renumbered(block: Block, merged: Sequence[_Combined]) -> Block:
    def of_slot(slot: int, numbers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(merged[slot].places[number] for number in numbers))

    return replace(
        block,
        members=tuple((slot, of_slot(slot, numbers)) for slot, numbers in block.members),
        virtual=tuple((slot, merged[slot].places[number]) for slot, number in block.virtual),
        kept=tuple((slot, of_slot(slot, numbers)) for slot, numbers in block.kept),
    )


@dataclass(frozen=True)
class _Combined:
    """One slot's merged fragments, and the place of each original among them."""

    fragments: tuple[Fragment, ...]
    places: tuple[int, ...]

    @classmethod
    def of(cls, ucq: Ucq, slot: Slot) -> _Combined:
        groups: dict[tuple[Client, Part, int], list[Fragment]] = {}
        met: dict[tuple[Client, Part], int] = {}
        group_of = []
        for fragment in slot.fragments:
            client, part = fragment.client, _part(ucq, slot, fragment)
            number = met[client, part] = met.get((client, part), -1) + 1
            group = (
                (client.whole, part, number) if client.combined else (client, (), fragment.index)
            )
            group_of.append(group)
            groups.setdefault(group, []).append(fragment)
        order = list(groups)
        places = tuple(order.index(group) for group in group_of)
        made = (_one(parts, place, places) for place, parts in enumerate(groups.values()))
        return cls(tuple(made), places)


def _part(ucq: Ucq, slot: Slot, fragment: Fragment) -> Part:
    """Return the blocks that use the fragment, and its role in each."""
    identity: list[object] = [fragment.virtual]
    if fragment.beside is not None:
        identity.append(_part(ucq, slot, slot.fragments[fragment.beside]))
    for block in ucq.blocks:
        for among in (block.members, block.kept):
            numbers = dict(among).get(slot.index, ())
            identity.append(numbers.count(fragment.index))
        identity.append(dict(block.virtual).get(slot.index) == fragment.index)
    return tuple(identity)


def _one(parts: Sequence[Fragment], place: int, places: Sequence[int]) -> Fragment:
    """Return the merged fragment of these parts, at this place."""
    first = parts[0]
    beside = None if first.beside is None else places[first.beside]
    if not first.client.combined:
        return replace(first, index=place, beside=beside)
    rows = [part.rows for part in parts]
    return replace(
        first,
        index=place,
        client=first.client.whole,
        rows=None if None in rows else sum(r for r in rows if r is not None),
        beside=beside,
        parts=tuple(replace(part, index=place, beside=beside) for part in parts),
    )
