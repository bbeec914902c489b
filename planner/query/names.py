"""Names: parties, tables and columns of the catalog, and names as they are written.

A written name is words between dots, then calls and fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from sqlfl.base.errors import nearest as nearest_name
from sqlfl.contract.schema import Catalog, Client, Place, Table, folded
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.statements import Span
from sqlfl.planner.grammar.trees import plan_error
from sqlfl.planner.query.relations import operand

_LISTED = 8


def nearest(name: str, known: Iterable[str]) -> str | None:
    """A hint that names the nearest known name, or all of a few."""
    names = sorted(dict.fromkeys(known))
    closest = nearest_name(name, names)
    if closest is not None:
        return f"did you mean {closest}?"
    return f"there is {', '.join(names)}" if 0 < len(names) <= _LISTED else None


def listed(names: Iterable[str]) -> str | None:
    """Return a hint that lists the first names."""
    distinct = list(dict.fromkeys(name for name in names if name))
    more = ", ..." if len(distinct) > _LISTED else ""
    return f"there are {', '.join(distinct[:_LISTED])}{more}" if distinct else None


def no_table(name: str, known: Sequence[str], governed: bool = False) -> str:
    """Return the hint for an unknown table; `governed`: its owner discloses only granted tables."""
    hint = nearest(name, known)
    if hint is not None and hint.startswith("did"):
        return hint
    if governed:
        granted = f"granted to you: {', '.join(known[:_LISTED])}" if known else "none is"
        return (
            f"there is none of that name that is granted to you ({granted}); its owner grants a "
            f"table: GRANT TRAIN (...), JOIN (...) ON {name} TO 'you' UNDER policy"
        )
    listed = hint or (f"there are {len(known)} others" if known else "there is none")
    return (
        f"{listed}; temporary tables and data frames are not seen: CREATE TABLE {name} AS FROM ... "
        "on the party's connection"
    )


@dataclass
class CatalogTables:
    """The catalog's tables, each client asked once."""

    catalog: Catalog
    sql: str
    _tables: dict[Client, tuple[Table, ...]] = field(default_factory=dict)
    _places: dict[Client, tuple[Place, ...]] = field(default_factory=dict)
    _parties: dict[str, str] = field(default_factory=dict)
    """By name in lower case."""
    _only: Client | None = None

    def at(self, client: Client) -> CatalogTables:
        """Return the same tables, of which those of a party are the client's alone."""
        return replace(self, _only=client)

    def parties(self) -> tuple[str, ...]:
        return tuple(self.catalog.parties())

    def of(self, client: Client) -> tuple[Table, ...]:
        if client not in self._tables:
            self._tables[client] = tuple(self.catalog.tables(client))
        return self._tables[client]

    def places(self, client: Client) -> tuple[Place, ...]:
        """The schemas of a client, the current one first."""
        if client not in self._places:
            self._places[client] = tuple(self.catalog.places(client))
        return self._places[client]

    def party(self, node: exp.Table) -> str:
        """The party that a table of the query belongs to."""
        return self.party_named(node.parts[0].name, node)

    def party_named(self, written: str, where: exp.Expr | Span) -> str:
        known = self._parties.get(written.lower())
        if known is None:
            self._parties = {party.lower(): party for party in reversed(self.parties())}
            known = self._parties.get(written.lower())
        if known is not None:
            return known
        hint = nearest(written, self.parties())
        if not self._parties:
            hint = f'attach it first: fed.attach("{written}", connection)'
        raise plan_error(f"there is no party {written}", self.sql, where, hint)

    def clients(self, node: exp.Table) -> tuple[Client, ...]:
        clients = tuple(self.catalog.clients(self.party(node)))
        return clients if self._only not in clients else (self._only,)

    def check_apart(self, node: exp.Table, holders: Sequence[tuple[Client, Table]]) -> None:
        """Raise PlanError if two clients of a party have the same table."""
        known: dict[tuple[str, str, str], Client] = {}
        for client, table in holders:
            place = self.place(client, table)
            if place is None or not place.database:
                continue
            key = (place.database, place.schema.lower(), table.name.lower())
            if key in known:
                written = ".".join(part.name for part in node.parts)
                raise plan_error(
                    f"{written} is the same table at clients {known[key].index} and "
                    f"{client.index} of party {client.party}, which have one database open: each "
                    "of its rows would count twice",
                    self.sql,
                    node,
                    f"write {client.party}.{table.name}, which each client has of its own, or "
                    "attach the database under another name once",
                )
            known[key] = client

    def owner(self, client: Client) -> str:
        """The party, and which of its clients where it has several."""
        several = len(self.catalog.clients(client.party)) > 1
        return f"client {client.index} of party {client.party}" if several else client.party

    def table(self, node: exp.Table, client: Client) -> Table:
        """The table `party.[[catalog.]schema.]table`, or `party.catalog.table`, at one client."""
        written = [part.name for part in node.parts[1:]]
        if len(written) > 3:
            raise plan_error(
                f"{client.party}.{'.'.join(written)} has too many parts",
                self.sql,
                node,
                "tables are party.table, party.schema.table or party.catalog.schema.table",
            )
        places = self.located(client, written[:-1], node)
        tables = self.of(client)
        for place in places:
            for candidate in tables:
                if self.place(client, candidate) == place and _same(candidate.name, written[-1]):
                    return candidate
        clients = tuple(self.catalog.clients(client.party))
        elsewhere = any(_same(t.name, written[-1]) for other in clients for t in self.of(other))
        owner = self.owner(client) if elsewhere else client.party
        names = [".".join(shortest(candidate)) for candidate in tables]
        governed = self.catalog.governed(client)
        raise plan_error(
            f"{owner} has no table {'.'.join(written)}",
            self.sql,
            node,
            no_table(".".join(written), names, governed),
        )

    def located(
        self, client: Client, before: Sequence[str], where: exp.Expr | Span
    ) -> tuple[Place, ...]:
        """Return the schemas that `before`, the names between party and table, may mean; the
        likeliest first.

        As in DuckDB, one name is a schema of the current database or another database. Raises
        PlanError if it is both.
        """
        places = self.places(client)
        if not before:
            return places[:1]
        if len(before) == 2:
            wanted = (before[0], before[1])
            return tuple(p for p in places if _same((p.catalog, p.schema), wanted))
        current = places[0].catalog
        schemas = tuple(p for p in places if _same((p.catalog, p.schema), (current, before[0])))
        inside = [p for p in places if _same(p.catalog, before[0])]
        if schemas and inside:
            raise plan_error(
                f"{before[0]} is a schema and a database of {client.party}",
                self.sql,
                where,
                f"write {client.party}.{current}.{schemas[0].schema}.table, or "
                f"{client.party}.{inside[0].catalog}.{inside[0].schema}.table",
            )
        return schemas or tuple(p for p in inside if p is places[0] or p.schema in DEFAULTS)

    def place(self, client: Client, table: Table) -> Place | None:
        """Return the place of a client's table; None if the client does not report it."""
        current = self.places(client)[0]
        if table.schema is None:
            return current
        wanted = (table.catalog or current.catalog, table.schema)
        matching = (p for p in self.places(client) if (p.catalog, p.schema) == wanted)
        return next(matching, None)

    def emitted(self, client: Client, table: Table, located: bool = False) -> exp.Table:
        """Return the table in a form that the client's database finds, whatever other objects have
        the name. `located`: with its schema, if the name alone means another object.
        """
        current, places = self.places(client)[0], self.places(client)
        catalog = table.catalog
        schema = current.schema if located and table.schema is None else table.schema
        if catalog is None and any(_same(p.catalog, schema or "") for p in places):
            catalog = current.catalog
        if folded(table.name) in SYSTEM_VIEWS:  # which the database finds first
            schema, catalog = schema or current.schema, catalog or current.catalog
        return trees.table(table.name, schema, catalog)

    def schemas(self, clients: Iterable[Client]) -> frozenset[str]:
        """Names of the schemas and databases of clients, in lower case."""
        places = (place for client in clients for place in self.places(client))
        return frozenset(folded(name) for place in places for name in (place.catalog, place.schema))

    def asked(self) -> tuple[Client, ...]:
        """The clients of the tables that were looked up so far."""
        return tuple(self._tables)

    def paths(self, client: Client, table: Table) -> tuple[tuple[str, ...], ...]:
        """Return every path, from the party on, that names the table."""
        place, places = self.place(client, table), self.places(client)
        current = places[0]
        named_paths = [(client.party, *shortest(table))]
        if place is not None:
            if place == current:
                named_paths.append((client.party, table.name))
            if place.catalog == current.catalog:
                named_paths.append((client.party, place.schema, table.name))
            if place == current or (place.schema in DEFAULTS):
                named_paths.append((client.party, place.catalog, table.name))
            named_paths.append((client.party, place.catalog, place.schema, table.name))
        return tuple(dict.fromkeys(named_paths))

    def ends(self, client: Client, table: Table) -> frozenset[tuple[str, ...]]:
        """Return the words, in lower case, that may precede a column of it; party.table too, as in
        DuckDB.
        """
        paths = [*self.paths(client, table), (client.party, table.name)]
        lowered = [tuple(folded(part) for part in path) for path in paths]
        return frozenset(path[n:] for path in lowered for n in range(len(path) - 1))


SYSTEM_VIEWS = frozenset((
    "duckdb_columns", "duckdb_constraints", "duckdb_databases", "duckdb_indexes", "duckdb_logs",
    "duckdb_schemas", "duckdb_tables", "duckdb_types", "duckdb_views", "pragma_database_list",
    "sqlite_master", "sqlite_schema", "sqlite_temp_master", "sqlite_temp_schema",
))  # fmt: skip
"""DuckDB's own views in `system.main`."""
DEFAULTS = ("main", "public")
"""Schemas that `catalog.table` means: DuckDB's and SQLite's, PostgreSQL's."""


def shortest(table: Table) -> tuple[str, ...]:
    """[catalog, schema,] table: the parts after the party that a table needs."""
    return tuple(part for part in (table.catalog, table.schema, table.name) if part is not None)


def _same(left: object, right: object) -> bool:
    """Return whether names, or tuples of names, are equal in lower case."""
    if isinstance(left, tuple) and isinstance(right, tuple):
        return all(_same(a, b) for a, b in zip(left, right, strict=True))
    return folded(str(left)) == folded(str(right))


@dataclass(frozen=True)
class DottedName:
    """`a.b.c.f(x).d`: the words a, b and c, then the call of f, then the field d."""

    words: tuple[exp.Identifier, ...]
    links: tuple[exp.Expr, ...] = ()
    """Nodes from the first call on."""

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(word.name for word in self.words)

    @property
    def is_method(self) -> bool:
        """A call follows the words: they are a column, or the schema of a function."""
        return bool(self.links)

    @property
    def written(self) -> str:
        return ".".join(to_sql(word) for word in self.words)


def chain_of(node: exp.Expr) -> DottedName | None:
    """Return the names in a column, or in dots above one; None for any other expression."""
    links: list[exp.Expr] = []
    base = node
    while isinstance(base, exp.Dot):
        links.append(base.expression)
        base = base.this
    if not isinstance(base, exp.Column) or not isinstance(base.this, exp.Identifier):
        return None
    words = list(base.parts)
    links.reverse()
    while links and isinstance(links[0], exp.Identifier):
        words.append(links.pop(0))
    return DottedName(tuple(w for w in words if isinstance(w, exp.Identifier)), tuple(links))


def column_of(words: Sequence[exp.Expr]) -> exp.Expr:
    """The words with dots between them; a column, as the parser has it, where they are few."""
    names = [word.copy() for word in words]
    column: exp.Expr = exp.Column(
        **dict(zip(("this", "table", "db", "catalog"), reversed(names[:4]), strict=False))
    )
    for name in names[4:]:
        column = exp.Dot(this=column, expression=name)
    return column


def with_links(target: exp.Expr, links: Sequence[exp.Expr]) -> exp.Expr:
    """Calls and fields after an expression: a method `x.f(y)` becomes the call `f(x, y)`."""
    for link in links:
        target = (
            struct_field(target, link)
            if isinstance(link, exp.Identifier)
            else _called(target, link)
        )
    return target


def struct_field(target: exp.Expr, name: exp.Expr) -> exp.Expr:
    return exp.Dot(this=operand(target), expression=name.copy())


OF_TABLE = "sqlfl_of_table"
"""Mark of a column `x.y` for which a table x of outside goes before a column x with fields."""


def is_of_table(node: object) -> bool:
    """Return whether the column, or the one below its dots, has the mark OF_TABLE."""
    while isinstance(node, exp.Dot):
        node = node.this
    return isinstance(node, exp.Column) and bool(node.meta_get(OF_TABLE))


_WRAPPERS = (exp.Order, exp.Distinct, exp.Limit, exp.IgnoreNulls, exp.RespectNulls, exp.HavingMax)


def _called(target: exp.Expr, call: exp.Expr) -> exp.Expr:
    made = call.copy()
    arguments = made.expressions
    if isinstance(made, exp.Anonymous) and not any(isinstance(a, _WRAPPERS) for a in arguments):
        made.set("expressions", [target.copy(), *arguments])
        return made
    # `x.list(ORDER BY y)`: the parentheses hold no argument that x could precede
    return exp.Dot(this=exp.Paren(this=target.copy()), expression=made)
