"""Expressions and subqueries, bound to relations or made ready for the one client they go to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from sqlfl.planner.names import Scope, Tables
from sqlfl.planner.refusals import LOCAL_TABLE_FUNCTIONS
from sqlfl.planner.relations import CLIENT_MARK, Term, binds, operand
from sqlfl.planner.spans import plan_error, span_of
from sqlfl.schema import Client

if TYPE_CHECKING:
    from sqlfl.planner.bind import Environment


@dataclass(frozen=True)
class Pusher:
    tables: Tables
    sql: str

    # -- which clients -----------------------------------------------------------------------------

    def clients(self, node: exp.Expr, known: Environment) -> tuple[Client, ...]:
        """Every client that holds a table that the node reads, CTEs looked through."""
        inner = {cte.alias.lower() for cte in node.find_all(exp.CTE)}
        if isinstance(node.parent, exp.CTE):
            inner.add(node.parent.alias.lower())  # it may be recursive
        found: dict[Client, None] = {}
        for table in node.find_all(exp.Table):
            name = table.name.lower()
            if table.db:
                clients = self.tables.clients(table)
                self.tables.table(table, clients[0])
                found |= dict.fromkeys(clients)
            elif isinstance(table.this, exp.Func):
                self._check_function(table)
            elif name in inner:
                continue
            elif name in known:
                cte = known[name]
                found |= dict.fromkeys(self.clients(cte.query, cte.environment))
            else:
                parties = ", ".join(self.tables.parties())
                raise plan_error(
                    f"table {table.name} has no party",
                    self.sql,
                    table,
                    f"write party.{table.name}; the parties are {parties}",
                )
        return tuple(found)

    def _check_function(self, table: exp.Table) -> None:
        function = table.this
        name = function.name if isinstance(function, exp.Anonymous) else function.sql_name()
        if name.lower() not in LOCAL_TABLE_FUNCTIONS:
            raise plan_error(
                f"the table function {name.lower()} reads no party's table",
                self.sql,
                table,
                "make it a table or a view in the party's database",
            )

    def only_client(self, node: exp.Expr, known: Environment) -> Client | None:
        clients = self.clients(node, known)
        return clients[0] if len(clients) == 1 else None

    # -- queries that go to a client whole ---------------------------------------------------------

    def local(self, query: exp.Query, known: Environment) -> exp.Query:
        """The query as its one client runs it: without party names, with the CTEs that it reads."""
        own = strip_parties(self._resolved_tables(query))
        assert isinstance(own, exp.Query)
        if isinstance(own, exp.Subquery) and not own.args.get("with_") and not own.alias:
            own = own.this
        needed = self._needed(query, known)
        if needed:
            old = own.args.get("with_")
            ctes = [*needed, *(old.expressions if old is not None else [])]
            recursive = any(
                w is not None and w.args.get("recursive")
                for w in (old, *(c.parent for c in self._sources_of(query, known)))
            )
            own.set("with_", exp.With(expressions=ctes, recursive=recursive or None))
        return own

    def _sources_of(self, query: exp.Expr, known: Environment) -> list[exp.CTE]:
        inner = {cte.alias.lower() for cte in query.find_all(exp.CTE)}
        names = dict.fromkeys(
            t.name.lower() for t in query.find_all(exp.Table) if not t.db and t.name
        )
        found: dict[str, exp.CTE] = {}
        for name in names:
            if name in inner or name not in known:
                continue
            cte = known[name]
            for earlier in self._sources_of(cte.query, cte.environment):
                found.setdefault(earlier.alias.lower(), earlier)
            found.setdefault(name, cte.node)
        return list(found.values())

    def _needed(self, query: exp.Expr, known: Environment) -> list[exp.Expr]:
        return [strip_parties(self._resolved_tables(n)) for n in self._sources_of(query, known)]

    def _resolved_tables(self, node: exp.Expr) -> exp.Expr:
        """A copy with the tables' names as their database has them; the party stays in front."""
        copy = node.copy()
        renamed: dict[tuple[str, ...], list[exp.Expr]] = {}
        for table in list(copy.find_all(exp.Table)):
            if table.db:
                written = tuple(part.name.lower() for part in table.parts)
                client = self.tables.clients(table)[0]
                found = self.tables.emitted(client, self.tables.table(table, client))
                party = exp.to_identifier(client.party, quoted=True)
                renamed[written] = [party, *found.parts]
                _set_path(table, renamed[written])
        for column in list(copy.find_all(exp.Column)):
            _rename(column, renamed)
        return copy

    # -- expressions -------------------------------------------------------------------------------

    def term(
        self,
        node: exp.Expr,
        scope: Scope,
        known: Environment,
        aliases: Sequence[tuple[str, Term]],
    ) -> Term:
        """The expression over the relations' columns; `aliases` are earlier outputs by name."""
        holder = exp.Paren(this=node.copy())
        self._resolve(holder, scope, known, aliases)
        return Term(holder.this, span_of(node, self.sql))

    def _resolve(
        self,
        parent: exp.Expr,
        scope: Scope,
        known: Environment,
        aliases: Sequence[tuple[str, Term]],
        bound: frozenset[str] = frozenset(),
    ) -> None:
        if isinstance(parent, exp.Comprehension):
            bound |= {parent.expression.name.lower()}
        for child in list(parent.iter_expressions()):
            if isinstance(child, exp.Dot) and (found := scope.dotted(child)) is not None:
                child.replace(self._placed(found, child))
            elif isinstance(child, exp.Column):
                if isinstance(child.this, exp.Star):
                    self._no_star(child)
                if child.table or child.name.lower() not in bound:
                    child.replace(self._placed(scope.resolve(child, aliases), child))
            elif isinstance(child, exp.Star | exp.Columns):
                self._no_star(child)
            elif isinstance(child, exp.Query):
                child.replace(self._subquery(child, scope, known))
            else:
                self._resolve(child, scope, known, aliases, bound)

    def _no_star(self, node: exp.Expr) -> None:
        raise plan_error(
            "a star inside an expression is not taken", self.sql, node, "name the columns"
        )

    def _placed(self, found: exp.Expr, original: exp.Expr) -> exp.Expr:
        place = span_of(original, self.sql)
        for node in found.walk():
            node.meta.pop("start", None)
            node.meta.pop("end", None)
        if place is not None:
            found.meta.update(start=place[0], end=place[1] - 1)
        return operand(found) if binds(original.parent) else found

    def _subquery(self, node: exp.Query, scope: Scope, known: Environment) -> exp.Expr:
        clients = self.clients(node, known)
        parties = tuple(dict.fromkeys(c.party for c in clients))
        if len(parties) > 1:
            raise plan_error(
                f"a subquery reads tables of {' and '.join(parties)}",
                self.sql,
                node,
                "join the tables in FROM instead",
            )
        if len(clients) > 1:
            raise plan_error(
                f"a subquery over {parties[0]} would be answered by each of its {len(clients)} "
                "clients for itself",
                self.sql,
                node,
                "join the table in FROM, or attach the clients under names of their own",
            )
        self._correlate(node, scope, known)
        local = self.local(node, known)
        if isinstance(node, exp.Subquery) and not isinstance(local, exp.Subquery):
            local = exp.Subquery(this=local)
        if clients:
            local.meta[CLIENT_MARK] = clients[0]
        return local

    def _correlate(self, node: exp.Query, scope: Scope, known: Environment) -> None:
        """Replace the columns of the subquery that its own FROM does not know."""
        for column in list(node.find_all(exp.Column)):
            if isinstance(column.this, exp.Star) or self._is_inner(column, node, known):
                continue
            found = scope.lookup(column)
            if found is not None:
                column.replace(self._placed(found, column))

    def _is_inner(self, column: exp.Column, root: exp.Query, known: Environment) -> bool:
        at: exp.Expr | None = column.parent
        while at is not None:
            if isinstance(at, exp.Select):
                names = self._names(at, known)
                if column.table:
                    if column.parts[0].name.lower() in names or (
                        len(column.parts) > 2 and column.table.lower() in names
                    ):
                        return True
                else:
                    name = column.name.lower()
                    aliases = {s.alias.lower() for s in at.selects}
                    if name in aliases or any(n is None or name in n for n in names.values()):
                        return True
            if at is root:
                break
            at = at.parent
        return False

    def _names(self, select: exp.Select, known: Environment) -> Mapping[str, frozenset[str] | None]:
        """Columns of each name in FROM; None where only its database knows them."""
        items = [select.args["from_"].this] if select.args.get("from_") else []
        items += [join.this for join in select.args.get("joins") or []]
        found: dict[str, frozenset[str] | None] = {}
        for item in items:
            columns: frozenset[str] | None = None
            if isinstance(item, exp.Table) and item.db:
                table = self.tables.table(item, self.tables.clients(item)[0])
                columns = frozenset(c.name.lower() for c in table.columns)
            else:
                query = item.this if isinstance(item, exp.Subquery) else None
                if isinstance(item, exp.Table) and item.name.lower() in known:
                    query = known[item.name.lower()].query
                if isinstance(query, exp.Query) and not query.is_star:
                    columns = frozenset(n.lower() for n in query.named_selects)
            if item.alias_column_names:
                columns = frozenset(n.lower() for n in item.alias_column_names)
            found[item.alias_or_name.lower()] = columns
        return found


def strip_parties(node: exp.Expr) -> exp.Expr:
    """A copy in which `party.table` is `table`, in FROM and before columns."""
    copy = node.copy()
    named: dict[tuple[str, ...], list[exp.Expr]] = {}
    for table in list(copy.find_all(exp.Table)):
        if table.db:
            parts = list(table.parts)
            named[tuple(part.name.lower() for part in parts)] = parts[1:]
            _set_path(table, parts[1:])
    for column in list(copy.find_all(exp.Column)):
        _rename(column, named)
    return copy


def _set_path(table: exp.Table, parts: Sequence[exp.Expr]) -> None:
    """Name the table by up to four parts; where there are four, as the parser has them."""
    own = [part.copy() for part in parts]
    last = own.pop()
    if len(own) == 3:
        last = exp.Dot(this=own.pop(), expression=last)
    table.set("this", last)
    table.set("db", own[-1] if own else None)
    table.set("catalog", own[-2] if len(own) > 1 else None)


def _rename(column: exp.Column, named: Mapping[tuple[str, ...], Sequence[exp.Expr]]) -> None:
    """Put the new path of a table before a column that is written with the old one."""
    parts = list(column.parts)
    if len(parts) > 2 and (path := named.get(_lowered(parts[:-1]))) is not None:
        new = [part.copy() for part in (*path, parts[-1])]
        column.replace(_path_column(new))
    elif isinstance(column.parent, exp.Dot) and (path := named.get(_lowered(parts))) is not None:
        new = [part.copy() for part in (*path, column.parent.expression)]
        column.parent.replace(_path_column(new))


def _lowered(parts: Sequence[exp.Expr]) -> tuple[str, ...]:
    return tuple(part.name.lower() for part in parts)


def _path_column(parts: Sequence[exp.Expr]) -> exp.Expr:
    """A column by up to five parts; where there are five, as the parser has them."""
    names = list(reversed(parts[:4]))
    column = exp.Column(**dict(zip(("this", "table", "db", "catalog"), names, strict=False)))
    return exp.Dot(this=column, expression=parts[4]) if len(parts) > 4 else column
