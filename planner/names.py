"""Names: parties, tables and columns of the catalog, and what a column of the query refers to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from sqlfl.errors import PlanError
from sqlfl.errors import nearest as nearest_name
from sqlfl.planner.relations import Item, Term
from sqlfl.planner.spans import plan_error
from sqlfl.schema import Catalog, Client, Table


def nearest(name: str, known: Iterable[str]) -> str | None:
    """A hint that names the nearest known name, or all of a few."""
    names = sorted(dict.fromkeys(known))
    found = nearest_name(name, names)
    if found is not None:
        return f"did you mean {found}?"
    return f"there is {', '.join(names)}" if 0 < len(names) <= 8 else None


@dataclass
class Tables:
    """The catalog's tables, each client asked once."""

    catalog: Catalog
    sql: str
    _tables: dict[Client, tuple[Table, ...]] = field(default_factory=dict)

    def parties(self) -> tuple[str, ...]:
        return tuple(self.catalog.parties())

    def of(self, client: Client) -> tuple[Table, ...]:
        if client not in self._tables:
            self._tables[client] = tuple(self.catalog.tables(client))
        return self._tables[client]

    def party(self, node: exp.Table) -> str:
        """The party that a table of the query belongs to."""
        written = node.catalog or node.db
        for party in self.parties():
            if party.lower() == written.lower():
                return party
        raise plan_error(
            f"there is no party {written}", self.sql, node, nearest(written, self.parties())
        )

    def clients(self, node: exp.Table) -> tuple[Client, ...]:
        return tuple(self.catalog.clients(self.party(node)))

    def table(self, node: exp.Table, client: Client) -> Table:
        """The table `party.table` or `party.schema.table` at one client."""
        schema = node.db.lower() if node.catalog else None
        tables = self.of(client)
        for found in tables:
            same = (found.schema or "").lower() == (schema or "")
            if same and found.name.lower() == node.name.lower():
                return found
        if schema == "main":
            return self.table(exp.Table(this=node.this, db=node.args["catalog"]), client)
        names = [f"{t.schema}.{t.name}" if t.schema else t.name for t in tables]
        written = ".".join(p.name for p in node.parts[1:])
        several = len(self.catalog.clients(client.party)) > 1
        owner = f"client {client.index} of party {client.party}" if several else client.party
        raise plan_error(
            f"{owner} has no table {written}",
            self.sql,
            node,
            nearest(written, names) or "see which tables each party shows",
        )


@dataclass(frozen=True)
class Scope:
    """What the names of one SELECT can refer to."""

    items: tuple[Item, ...]
    sql: str

    def resolve(self, node: exp.Column, aliases: Sequence[tuple[str, Term]] = ()) -> exp.Expr:
        """The expression that the column stands for; columns go before aliases, as in DuckDB."""
        found = self.lookup(node) or self._alias(node, aliases)
        if found is None:
            raise self._unknown(node)
        return found

    def lookup(self, node: exp.Column) -> exp.Expr | None:
        """As `resolve`, over columns only; None where there is no such column."""
        parts = [part.name for part in node.parts]
        for length in (3, 2, 1):
            found = self._under(node, parts, length) if len(parts) > length else None
            if found is not None:
                return found
        return self._bare(node, parts)

    def _under(self, node: exp.Column, parts: list[str], length: int) -> exp.Expr | None:
        """The first `length` parts name an item, the next its column, the rest fields of it."""
        lowered = tuple(part.lower() for part in parts[:length])
        items = [
            item
            for item in self.items
            if tuple(p.lower() for p in (item.path if length > 1 else (item.name,))) == lowered
        ]
        terms = [t for t in (item.find(parts[length]) for item in items) if t is not None]
        if not terms:
            return None
        if len(terms) > 1:
            raise plan_error(
                f"column {node.sql(dialect='duckdb')} is ambiguous: "
                f"{len(items)} tables go by the name {'.'.join(parts[:length])}",
                self.sql,
                node,
                "give each table an alias of its own: FROM party.table AS alias",
            )
        return _fields(terms[0].expression, node.parts[length + 1 :])

    def _bare(self, node: exp.Column, parts: list[str]) -> exp.Expr | None:
        found = [
            (item, term)
            for item in self.items
            if parts[0].lower() not in item.hidden and (term := item.find(parts[0])) is not None
        ]
        if len(found) > 1:
            places = [f"{item.name}.{parts[0]}" for item, _ in found]
            raise plan_error(
                f"column {parts[0]} is ambiguous: {' or '.join(places)}",
                self.sql,
                node,
                f"write {places[0]}",
            )
        return _fields(found[0][1].expression, node.parts[1:]) if found else None

    def _alias(self, node: exp.Column, aliases: Sequence[tuple[str, Term]]) -> exp.Expr | None:
        if len(node.parts) > 1:
            return None
        terms = (t for name, t in aliases if name.lower() == node.name.lower())
        term = next(terms, None)
        return None if term is None else term.expression.copy()

    def _unknown(self, node: exp.Column) -> PlanError:
        written = node.sql(dialect="duckdb")
        owners = [i for i in self.items if node.table and i.name.lower() == node.table.lower()]
        if node.table and not owners:
            hint = nearest(node.table, (i.name for i in self.items))
            return plan_error(
                f"column {written}: there is no table {node.table} in FROM", self.sql, node, hint
            )
        names = [n for i in (owners or self.items) for n, _ in i.columns]
        holder = f"{owners[0].name} has no column {node.name}" if owners else None
        return plan_error(
            holder or f"there is no column {written} in the tables of FROM",
            self.sql,
            node,
            nearest(node.name, names),
        )


def _fields(expression: exp.Expr, fields: Sequence[exp.Expr]) -> exp.Expr:
    found = expression.copy()
    for part in fields:
        found = exp.Dot(this=found, expression=part.copy())
    return found
