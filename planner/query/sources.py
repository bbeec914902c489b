"""Relations from a party: one of its tables, or a query that it runs whole."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from sqlfl.base.errors import LostError, PartyError, PlanError
from sqlfl.contract.schema import Client, Column, Table, folded
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.trees import nodes, plan_error, span_of
from sqlfl.planner.query.columns import distinct, with_column_aliases
from sqlfl.planner.query.ctes import Environment, tables_of
from sqlfl.planner.query.groups import WrittenPivot, over_groups, with_tests
from sqlfl.planner.query.joins import State
from sqlfl.planner.query.names import CatalogTables
from sqlfl.planner.query.nulls import typed
from sqlfl.planner.query.push import Pusher
from sqlfl.planner.query.relations import (
    UNLIKE,
    ClientBranch,
    DraftBlock,
    DraftRelation,
    Group,
    Item,
    Output,
    Source,
    Term,
    column,
)
from sqlfl.planner.query.types import NULL_TYPE, normal, union_type
from sqlfl.planner.query.ucq import groups_of

ROWID = "rowid"
_TOLD = re.compile(
    r"U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)|DECIMAL\(.*\)|FLOAT|DOUBLE|BOOLEAN|VARCHAR|UUID"
    r"|DATE|TIME|TIMESTAMP(_S|_MS|_NS)?|ENUM\(.*\)",
    re.DOTALL,
)
"""Types of columns of groups: their texts say all of their values."""


@dataclass(frozen=True)
class Sources:
    """Factory of relations with one source each, which it numbers."""

    pusher: Pusher
    sql: str
    columns: Callable[[exp.Query, Environment], tuple[Column, ...]]
    """The columns of a query of several parties."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def tables(self) -> CatalogTables:
        return self.pusher.tables

    def fresh(self, prefix: str) -> str:
        return f"{prefix}{next(self._numbers)}"

    def relation(
        self,
        name: str,
        span: tuple[int, int] | None,
        columns: tuple[str, ...],
        parts: list[tuple[Client, Source]],
        types: Sequence[Mapping[str, str]],
    ) -> tuple[DraftRelation, tuple[Output, ...]]:
        """Make a relation. `types` belong to each part, by the columns' names in lower case."""
        id_ = self.fresh("#")
        wanted = {
            n: union_type(tuple(by_name.get(folded(n), "") for by_name in types)) for n in columns
        }
        branches = tuple(
            ClientBranch(
                client,
                (source,),
                {
                    (id_, folded(n)): _united(n, source.id, by_name.get(folded(n), ""), wanted[n])
                    for n in columns
                },
            )
            for (client, source), by_name in zip(parts, types, strict=True)
        )
        outputs = tuple(
            Output(
                n,
                Term(
                    typed(column(n, id_), [by_name.get(folded(n), "") for by_name in types]), span
                ),
            )
            for n in columns
        )
        return DraftRelation((id_,), name, span, branches), outputs

    def table(self, node: exp.Table) -> State:
        parts: list[tuple[Client, Source]] = []
        clients = self.tables.clients(node)
        holders = [(client, self.tables.table(node, client)) for client in clients]
        self.tables.check_apart(node, holders)
        for client, table in holders:
            paths = self.tables.paths(client, table)
            item = self.tables.emitted(client, table)
            names = {folded(c.name) for c in table.columns} | self.tables.schemas([client])
            source = Source(
                self.fresh("@"), item, table.name, paths[0], table.rows, frozenset(names),
                paths[1:], keyed=table.keyed,
            )  # fmt: skip
            parts.append((client, source))
        common, lacking = self._columns(holders)
        hidden = _hidden(holders)
        span = span_of(node, self.sql)
        types = [{folded(c.name): c.type for c in table.columns} for _, table in holders]
        relation, outputs = self.relation(
            node.alias_or_name, span, (*common, *hidden), parts, types
        )
        outputs, unseen = outputs[: len(common)], outputs[len(common) :]
        aliases = node.alias_column_names
        if aliases and lacking:
            name, client_ = lacking[0]
            raise plan_error(
                f"columns get other names by their order, and {client_} lacks {name}",
                self.sql,
                node,
                "name them in a derived table: FROM (SELECT a AS b FROM party.table) AS t",
            )
        shown = with_column_aliases(outputs, aliases, node, self.sql)
        ends = frozenset() if node.alias else self.tables.ends(*holders[0])
        item_ = Item(
            node.alias_or_name, shown, ends, lacking, tuple((o.name, o.term) for o in unseen)
        )
        return State((relation,), Group(relation.ids), (item_,))

    def _columns(
        self, holders: list[tuple[Client, Table]]
    ) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        """Return the columns that all clients have, and for each other column one client that lacks
        it.
        """
        all_ = {folded(c.name): c.name for _, table in reversed(holders) for c in table.columns}
        column_names = [{folded(c.name) for c in table.columns} for _, table in holders]
        common = [
            c.name for c in holders[0][1].columns if all(folded(c.name) in o for o in column_names)
        ]
        lacking = []
        for key, name in all_.items():
            away = [
                client for (client, _), o in zip(holders, column_names, strict=True) if key not in o
            ]
            if away:
                lacking.append((name, self.tables.owner(away[0])))
        return tuple(common), tuple(lacking)

    def whole(self, query: exp.Query, known: Environment, client: Client) -> DraftBlock:
        """Return the query as one source of one relation."""
        for pivot in nodes(query, exp.Pivot):
            if _finds_columns(pivot):
                raise self.no_select(pivot)
        local = self.pusher.local(query, known)
        return self._block(query, [(client, local, self._described(query, client, local))])

    def merged(
        self, select: exp.Select, known: Environment, clients: Sequence[Client]
    ) -> DraftBlock:
        """Return a grouped query over several databases of a party as one relation. Each client has
        it over its groups (`sqlfl.planner.query.groups`). Raise PlanError if these have unlike
        types, and if an owner has made policies.
        """
        query = over_groups(select, self.sql, self._columns_of(select))
        self._refuse_governed(select, clients)
        parts, types = [], list[tuple[str, ...]]()
        for client in clients:
            pusher = replace(self.pusher, tables=self.tables.at(client))
            local = pusher.local(query, known)
            groups = groups_of(local)
            assert groups is not None
            _move_ctes(local, groups.this)  # a database evaluates its groups by themselves
            parts.append((client, local, self._described(query, client, local)))
            own = self._described(query, client, with_tests(groups.this))
            types.append(tuple(normal(column.type) for column in own))
        for other in types[1:]:
            for one, two in zip(types[0], other, strict=True):
                if one != two or not _TOLD.fullmatch(one):
                    raise plan_error(
                        f"rows of {clients[0].party} are grouped by, or aggregated to, {one} in "
                        f"one database and {two} in another"
                        if one != two
                        else f"aggregates over several databases are not built for {one}",
                        self.sql,
                        query,
                        "CAST the columns in the subquery, to a number, a text or a date",
                    )
        self._refuse_order(query, known, parts)
        return self._block(query, parts)

    def without_pivot(self, node: exp.Expr, known: Environment) -> exp.Select | None:
        """Return a PIVOT with listed values over several databases as GROUP BY, or None. The
        databases name its columns."""
        pivot = WrittenPivot.of(node)
        clients = () if pivot is None else self.pusher.clients(node, known)
        if pivot is None or len(clients) < 2:
            return None
        if len({client.party for client in clients}) > 1:
            return self._pivot_of_parties(pivot, node, known, clients[0])
        bare = node.copy()
        bare.set("joins", None)
        item = exp.Subquery(this=bare) if isinstance(node, exp.Pivot) else bare
        query = exp.select("*").from_(item, copy=False)
        names: dict[tuple[str, ...], tuple[str, ...]] = {}
        for client in clients:
            local = replace(self.pusher, tables=self.tables.at(client)).local(query, known)
            own = [column.name for column in self._described(node, client, local)]
            names.setdefault(tuple(map(folded, own)), tuple(own))
        return pivot.select(next(iter(names.values()))) if len(names) == 1 else None

    def _pivot_of_parties(
        self, pivot: WrittenPivot, node: exp.Expr, known: Environment, client: Client
    ) -> exp.Select | None:
        """Return a PIVOT over tables of several parties as GROUP BY. A database names its columns,
        from a row of NULLs in place of the tables'.
        """
        rows = exp.select("*").from_(pivot.item.copy(), copy=False)
        nulls = (
            exp.alias_(trees.cast(exp.Null(), column.type), column.name, quoted=True)
            for column in self.columns(rows, known)
        )
        alone = node.copy()
        item = exp.Subquery(this=exp.select(*nulls))
        if isinstance(alone, exp.Pivot):
            alone.set("this", item)
        else:
            item.set("pivots", alone.args["pivots"])
            alone = item
        bare = exp.Subquery(this=alone) if isinstance(alone, exp.Pivot) else alone
        query = exp.select("*").from_(bare, copy=False)
        described = self._described(node, client, query)
        return pivot.select([column.name for column in described])

    def without_pivots(self, query: exp.Select, known: Environment) -> exp.Select:
        """Return the query with `without_pivot` in place of items of its FROM."""
        if query.args.get("from_") is None or query.find(exp.Pivot) is None:
            return query
        whole = query.copy()
        joins = whole.args.get("joins") or []
        for item in [whole.args["from_"].this, *(join.this for join in joins)]:
            select = self.without_pivot(item, known) if item.args.get("pivots") else None
            if select is not None:
                alias = item.args["pivots"][0].args.get("alias")
                own = item.args.get("joins")
                item.replace(exp.Subquery(this=select, alias=alias, joins=own))
        return whole

    def each(
        self, query: exp.Query, known: Environment, clients: Sequence[Client]
    ) -> DraftBlock | None:
        """Return a query of single rows as one relation, each client having it over its own rows;
        None if its columns are not the same at all clients.
        """
        tables = [t for t in query.find_all(exp.Table) if t.db]
        columns = [self._columns_at(table, clients) for table in tables]
        if query.find(exp.Star, exp.Columns) and any(len(names) > 1 for names in columns):
            return None
        parts = []
        for client in clients:
            local = replace(self.pusher, tables=self.tables.at(client)).local(query, known)
            parts.append((client, local, self._described(query, client, local)))
        if len({tuple(folded(c.name) for c in own) for _, _, own in parts}) > 1:
            return None
        self._refuse_order(query, known, parts)
        return self._block(query, parts)

    def _refuse_order(
        self,
        query: exp.Query,
        known: Environment,
        parts: Sequence[tuple[Client, exp.Query, tuple[Column, ...]]],
    ) -> None:
        """Refuse new names for columns by their order, if databases have them in another order."""
        renamed = any(a.columns for _, local, _ in parts for a in local.find_all(exp.TableAlias))
        clients = [client for client, _, _ in parts]
        for table in _tables(query, known) if renamed else ():
            columns = (self.tables.table(table, client).columns for client in clients)
            if len({tuple(folded(column.name) for column in own) for own in columns}) > 1:
                raise plan_error(
                    f"columns get other names by their order, and databases of {clients[0].party} "
                    f"have those of {table.name} in another order",
                    self.sql,
                    query,
                    "name them in a derived table: FROM (SELECT a AS b FROM party.table) AS t",
                )

    def _columns_of(self, select: exp.Select) -> frozenset[str] | None:
        """Return the columns of the party's table that is the FROM of a query, in lower case."""
        item = select.args["from_"].this
        if not isinstance(item, exp.Table) or not item.db:
            return None
        return frozenset().union(*self._columns_at(item, self.tables.clients(item)))

    def _columns_at(self, item: exp.Table, clients: Sequence[Client]) -> set[frozenset[str]]:
        """Return the columns of a table, in lower case, as each of the clients has them."""
        tables = (self.tables.table(item, client) for client in clients)
        return {frozenset(folded(column.name) for column in table.columns) for table in tables}

    def _refuse_governed(self, select: exp.Select, clients: Sequence[Client]) -> None:
        if any(self.tables.catalog.governed(client) for client in clients):
            raise plan_error(
                f"aggregates over several databases of {clients[0].party} leave them for each "
                "other, and an owner of theirs has made policies",
                self.sql,
                select,
                "attach the databases under names of their own, and make a column of each",
            )

    def _described(self, query: exp.Expr, client: Client, local: exp.Query) -> tuple[Column, ...]:
        try:
            return self.tables.catalog.describe(client, to_sql(local))
        except LostError:
            raise
        except PartyError as error:
            message = f"{client.party} cannot bind this query: {_said(error)}"
            hint = f"try it in the database of {client.party}, with its own tables' names"
            raise plan_error(message, self.sql, query, hint) from error

    def _block(
        self, query: exp.Query, found: Sequence[tuple[Client, exp.Query, tuple[Column, ...]]]
    ) -> DraftBlock:
        """Return queries of clients, with their columns, as one relation."""
        columns = found[0][2]
        names = distinct([column.name for column in columns])
        parts, types = [], []
        for client, local, own in found:
            reserved = frozenset(folded(name) for name in names) | self.tables.schemas([client])
            item = exp.Subquery(this=local)
            source = Source(self.fresh("@"), item, "q", (client.party,), None, reserved)
            parts.append((client, source))
            types.append({folded(name): c.type for name, c in zip(names, own, strict=True)})
        span = span_of(query, self.sql)
        relation, outputs = self.relation("q", span, names, parts, types)
        written = zip(outputs, columns, strict=True)
        shown = tuple(replace(output, name=column.name) for output, column in written)
        return DraftBlock((relation,), Group(relation.ids), shown, span=span)

    def no_select(self, query: exp.Expr) -> PlanError:
        if _finds_columns(query):
            return plan_error(
                "PIVOT without the values makes a column of each that it finds: the plan would "
                "have to know them",
                self.sql,
                query,
                "list the values: PIVOT ... ON column IN (...)",
            )
        return plan_error(
            "expected a SELECT over tables of parties",
            self.sql,
            query,
            "SELECT ... FROM party.table, with joins and UNION ALL",
        )


def _united(name: str, source: str, type_: str, wanted: str | None) -> exp.Expr:
    """Return a column of one of a party's databases, cast to its type over all of them.

    Without the cast, `x // 2` would mean another division in each database. If there is no such
    type (`wanted` is None), the column is marked: only a cast of the query may read it.
    """
    typed_column = typed(column(name, source), [type_])
    if wanted is None:
        typed_column.meta[UNLIKE] = True
        return typed_column
    same = not type_ or type_ == NULL_TYPE or normal(type_) == normal(wanted)
    return typed_column if same else trees.cast(typed_column, wanted)


def _move_ctes(outer: exp.Query, inner: exp.Query) -> None:
    """Move the CTEs of a query before those of its only subquery, in place."""
    with_ = outer.args.get("with_")
    if with_ is None:
        return
    own = inner.args.get("with_")
    ctes = [*with_.expressions, *([] if own is None else own.expressions)]
    recursive = any(node.args.get("recursive") for node in (with_, own) if node is not None)
    outer.set("with_", None)
    inner.set("with_", exp.With(expressions=ctes, recursive=recursive or None))


def _tables(query: exp.Expr, known: Environment) -> Iterator[exp.Table]:
    """Yield the parties' tables that a query reads, with those of CTEs."""
    for table, cte in tables_of(query, known):
        if cte is not None:
            yield from _tables(cte.query, cte.environment)
        elif table.db:
            yield table


def _hidden(holders: list[tuple[Client, Table]]) -> tuple[str, ...]:
    """Columns that the database adds to a table; not to a view, which has no size."""
    names = {folded(c.name) for _, table in holders for c in table.columns}
    whole = len(holders) == 1 and holders[0][1].rows is not None
    return (ROWID,) if whole and ROWID not in names else ()


def _finds_columns(query: exp.Expr) -> bool:
    """Return whether it is a PIVOT whose columns are named after values of the table."""
    if not isinstance(query, exp.Pivot) or query.args.get("unpivot"):
        return False
    return (
        bool(query.expressions)
        and not query.args.get("fields")
        and not all(isinstance(column, exp.In) for column in query.expressions)
    )


def _said(error: PartyError) -> str:
    return error.message.split("\n")[0].partition(": ")[2] or error.message
