"""Tables that list the contents of parties and models: names and types, never rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from sqlfl.contract.schema import Catalog, Client, Table, folded
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.statements import Path
from sqlfl.planner.query.names import CatalogTables, shortest
from sqlfl.store.registry import Model, ModelBlock

TABLES = pa.schema([("table", pa.string()), ("columns", pa.int64()), ("databases", pa.int64())])
PARTIES = pa.schema([("party", pa.string()), ("databases", pa.int64()), ("combined", pa.bool_())])
COLUMNS = pa.schema([("column", pa.string()), ("type", pa.string()), ("databases", pa.int64())])
FEATURES = pa.schema(
    [
        *((name, pa.string()) for name in ("feature", "party", "tables", "kind")),
        ("width", pa.int64()),
    ]
)


@dataclass(frozen=True)
class _Listed:
    """A table of a party, over all of its clients that have it."""

    path: tuple[str, ...]
    """The path from the party on, as short as a query may write it."""
    place: tuple[str, str]
    """Database and schema."""
    parts: tuple[tuple[Client, Table], ...]

    @property
    def name(self) -> str:
        return to_sql(exp.Dot.build([trees.identifier(part) for part in self.path]))

    def columns(self) -> Iterator[tuple[str, str, int]]:
        """Yield each column in the first client's order: its name, its type or types, and the
        number of clients that have it.
        """
        names: dict[str, str] = {}
        types: dict[str, list[str]] = {}
        for column in (column for _, table in self.parts for column in table.columns):
            names.setdefault(folded(column.name), column.name)
            types.setdefault(folded(column.name), []).append(column.type)
        for key, name in names.items():
            yield name, ", ".join(dict.fromkeys(types[key])), len(types[key])


def columns_of_tables(catalog: Catalog) -> pa.Table:
    """A row per column of each table: party, schema, table, column, type."""
    rows = [
        (listed.path[0], _schema(listed), listed.path[-1], name, kind)
        for listed in _tables(catalog)
        for name, kind, _ in listed.columns()
    ]
    return _texts(("party", "schema", "table", "column", "type"), rows)


def tables(catalog: Catalog) -> pa.Table:
    """A row per table: how a query writes it, the number of its columns, and of its party's
    databases that have it."""
    listing = list(_tables(catalog))
    return pa.table(
        {
            "table": [listed.name for listed in listing],
            "columns": [len(list(listed.columns())) for listed in listing],
            "databases": [len(listed.parts) for listed in listing],
        },
        TABLES,
    )


def parties(clients: Mapping[str, tuple[Client, ...]]) -> pa.Table:
    """A row per party: its name, the number of its databases, whether it combines them."""
    return pa.table(
        {
            "party": list(clients),
            "databases": [len(members) for members in clients.values()],
            "combined": [members[0].combined for members in clients.values()],
        },
        PARTIES,
    )


def columns(catalog: Catalog, path: Path, sql: str) -> pa.Table:
    """Return a row for each column of the table that `path` names in `sql`: name, type, and number
    of the party's databases that have it. Raises PlanError for an unknown table.
    """
    rows = list(_Listed(path.parts, ("", ""), tables_at(catalog, path, sql)).columns())
    return pa.table(
        {
            "column": [name for name, _, _ in rows],
            "type": [kind for _, kind, _ in rows],
            "databases": [number for _, _, number in rows],
        },
        COLUMNS,
    )


def tables_at(catalog: Catalog, path: Path, sql: str) -> tuple[tuple[Client, Table], ...]:
    """Return the table that `path` names in `sql`, at each client of its party. Raises PlanError
    for an unknown table.
    """
    known = CatalogTables(catalog, sql)
    party = known.party_named(path.parts[0], path.span)
    node = _placed(path)
    return tuple((client, known.table(node, client)) for client in catalog.clients(party))


def features(model: Model) -> pa.Table:
    """Return a row for each feature of the model, in the query's order: name, party, source tables,
    kind and width (an array's elements, else 1).
    """
    by_name = {
        name: (block, kind, width) for block in model.blocks for name, kind, width in block.features
    }
    rows = [(name, *by_name[name]) for name in model.features if name in by_name]
    return pa.table(
        {
            "feature": [name for name, *_ in rows],
            "party": [_owners(block) for _, block, *_ in rows],
            "tables": [", ".join(block.tables) for _, block, *_ in rows],
            "kind": [kind for *_, kind, _ in rows],
            "width": [width for *_, width in rows],
        },
        FEATURES,
    )


def _owners(block: ModelBlock) -> str:
    return ", ".join(dict.fromkeys(client.party for client in block.clients))


def _tables(catalog: Catalog) -> Iterator[_Listed]:
    known = CatalogTables(catalog, "")
    for party in catalog.parties():
        by_path: dict[tuple[str, ...], list[tuple[Client, Table]]] = {}
        for client in catalog.clients(party):
            for table in known.of(client):
                key = tuple(folded(part) for part in shortest(table))
                by_path.setdefault(key, []).append((client, table))
        for parts in by_path.values():
            client, table = parts[0]
            place = known.place(client, table)
            where = ("", table.schema or "") if place is None else (place.catalog, place.schema)
            yield _Listed((party, *shortest(table)), where, tuple(parts))


def _schema(listed: _Listed) -> str:
    """Return the schema, with the database if it is not the connection's own."""
    _, table = listed.parts[0]
    return listed.place[1] if table.catalog is None else ".".join(listed.place)


def _placed(path: Path) -> exp.Table:
    """The path as a table of a query, with its place."""
    parts = [exp.to_identifier(part, quoted=True) for part in path.parts]
    for identifier in parts:
        identifier.meta.update(start=path.span[0], end=path.span[1] - 1)
    before, inner = parts[:-1][:2], parts[:-1][2:]
    this = exp.Dot.build([*inner, parts[-1]]) if inner else parts[-1]
    return exp.Table(this=this, **dict(zip(("db", "catalog"), reversed(before), strict=False)))


def _texts(names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> pa.Table:
    values = zip(*rows, strict=True) if rows else ((),) * len(names)
    return pa.table(
        {
            name: pa.array(list(texts), pa.string())
            for name, texts in zip(names, values, strict=True)
        }
    )
