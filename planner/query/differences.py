"""Differences between the databases of a party: tables, columns and types that not all share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.contract.schema import Catalog, Client, Column, Table, folded
from sqlfl.planner.grammar.trees import nodes
from sqlfl.planner.query.names import CatalogTables, shortest
from sqlfl.planner.query.types import NULL_TYPE, normal, union_type


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
