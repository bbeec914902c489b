"""Tables of a query as the database of its client calls them, and the CTEs that go with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from sqlfl.contract.schema import Client, Table, folded
from sqlfl.planner.grammar import build
from sqlfl.planner.query.ctes import Cte, Environment, local_names, tables_of
from sqlfl.planner.query.frames import Outputs
from sqlfl.planner.query.names import CatalogTables


@dataclass(frozen=True)
class PlacedTable:
    """A table of a party, where the query names it."""

    node: exp.Table
    client: Client
    table: Table
    paths: frozenset[tuple[str, ...]]
    """The ends of all its possible names, in lower case."""


@dataclass(eq=False)
class Hoisted:
    """A CTE that is defined outside of the query, and goes with it."""

    name: str
    node: exp.CTE
    outputs: Outputs = lambda: None


@dataclass(eq=False)
class LocatedQuery:
    """The tables in the FROMs of a query and of the CTEs that it names."""

    tables: CatalogTables
    taken: set[str]
    """Names of CTEs, in lower case."""
    placed: dict[int, PlacedTable] = field(default_factory=dict)
    """By the id of the node."""
    hoisted: dict[Cte, Hoisted] = field(default_factory=dict)
    """Each after the CTEs that it names."""
    _names: dict[Cte, str] = field(default_factory=dict)
    named: dict[int, Cte] = field(default_factory=dict)
    """Id of a node that names an outer CTE -> the CTE."""
    _kept: list[exp.Expr] = field(default_factory=list)

    def read(self, node: exp.Expr, known: Environment) -> None:
        """Find the tables below; `known` are the CTEs that are defined around."""
        for table, cte in list(tables_of(node, known)):
            self._kept.append(table)
            if cte is not None:
                self._hoist(cte)
                self.named[id(table)] = cte
                _rename(table, self._names[cte])
            elif table.db:
                client = self.tables.clients(table)[0]
                found = self.tables.table(table, client)
                ends = self.tables.ends(client, found)
                self.placed[id(table)] = PlacedTable(table, client, found, ends)

    def _hoist(self, cte: Cte) -> None:
        if cte in self._names:
            return
        name, number = cte.name, 1
        while folded(name) in self.taken:
            number += 1
            name = f"{cte.name}_{number}"
        self.taken.add(folded(name))
        self._names[cte] = name
        node = cte.node.copy()
        node.args["alias"].set("this", build.identifier(name))
        self.taken |= local_names(node.this)
        self.read(node.this, cte.inside)
        self.hoisted[cte] = Hoisted(name, node)

    def rename(self) -> None:
        """Call the tables as their client does, with a schema where a CTE has the same name."""
        for placed in self.placed.values():
            emitted = self.tables.emitted(
                placed.client, placed.table, folded(placed.table.name) in self.taken
            )
            set_path(placed.node, emitted.parts)

    def hoist(self, query: exp.Query) -> None:
        """Put the outer CTEs before those of the query."""
        if not self.hoisted:
            return
        old = query.args.get("with_")
        ctes = [hoisted.node.copy() for hoisted in self.hoisted.values()]
        recursive = any(cte.calls_itself for cte in self.hoisted)
        if old is not None:
            ctes += old.expressions
            recursive |= bool(old.args.get("recursive"))
        query.set("with_", exp.With(expressions=ctes, recursive=recursive or None))

    def names(self) -> frozenset[str]:
        """Return columns of the tables, and schemas and databases of their clients, in
        lower case.
        """
        columns = {folded(c.name) for p in self.placed.values() for c in p.table.columns}
        clients = {placed.client for placed in self.placed.values()}
        return frozenset(columns) | self.tables.schemas(clients)

    @property
    def client(self) -> Client | None:
        """A client that can be asked; any client for a query that reads no table of a party."""
        placed = (p.client for p in self.placed.values())
        return next(placed, next(iter(self.tables.asked()), None))


def _rename(table: exp.Table, name: str) -> None:
    if folded(table.name) != folded(name):
        if not table.alias:
            table.set("alias", exp.TableAlias(this=table.this.copy()))
        table.set("this", build.identifier(name))


def set_path(table: exp.Table, parts: Sequence[exp.Expr]) -> None:
    """Name the table by up to four parts; where there are four, as the parser has them."""
    path = [part.copy() for part in parts]
    last = path.pop()
    if len(path) == 3:
        last = exp.Dot(this=path.pop(), expression=last)
    table.set("this", last)
    table.set("db", path[-1] if path else None)
    table.set("catalog", path[-2] if len(path) > 1 else None)
