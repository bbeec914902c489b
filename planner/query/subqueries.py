"""Prepare queries for the one client that runs them: with its database's table names, and outer
names replaced.

`Context` is what all expressions in a statement share: its tables, its text, its clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TypeAlias

from sqlglot import exp

from sqlfl.base.errors import LostError, PartyError, PlanError, ReplyError
from sqlfl.contract.schema import Client, Column, Table, folded
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.parsing import is_from, unions_of
from sqlfl.planner.grammar.refusals import is_aggregate, own_nodes
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.trees import nodes, plan_error, span_of
from sqlfl.planner.query.clock import Clock
from sqlfl.planner.query.ctes import Cte, Environment, local_names, tables_of
from sqlfl.planner.query.emit import NAMES_MARK
from sqlfl.planner.query.names import (
    CatalogTables,
    DottedName,
    chain_of,
    column_of,
    is_of_table,
    with_links,
)
from sqlfl.planner.query.relations import fitted
from sqlfl.planner.query.scopes import (
    UNSURE,
    Columns,
    Inner,
    Match,
    NameFrame,
    Outputs,
    Scope,
    joined,
    late,
    outputs_of,
    series_name,
    with_aliases,
)

_METHOD = "SELECT list_transform([1], lambda x: x.list_value()) AS found FROM (SELECT '' AS x)"
"""A probe: INTEGER[][] where x is the variable, VARCHAR[][] where it is the column."""
SYSTEM_SCHEMAS = frozenset(("main", "pg_catalog", "information_schema", "system", "temp"))


@dataclass(frozen=True)
class Context:
    tables: CatalogTables
    sql: str
    clock: Clock

    def placed(self, replacement: exp.Expr, original: exp.Expr) -> exp.Expr:
        """Return the replacement of a name, with the name's place in the text."""
        place = span_of(original, self.sql)
        for node in replacement.walk():
            node.meta.pop("start", None)
            node.meta.pop("end", None)
        if place is not None:
            replacement.meta.update(start=place[0], end=place[1] - 1)
        return fitted(replacement, original.parent)

    def is_schema(self, chain: DottedName) -> bool:
        """Return whether the words before a call name a schema, or a database and a schema."""
        schemas = SYSTEM_SCHEMAS | self.tables.schemas(self.tables.asked())
        return all(folded(part) in schemas for part in chain.parts)

    def is_of_variable(self, chain: DottedName, original: exp.Expr) -> bool:
        """Return whether `x.f()` refers to a lambda's variable x if there is a column x too: yes
        from DuckDB 2.0.1 on; up to 2.0.0 it is the column.
        """
        try:
            columns = self.tables.catalog.describe(self.tables.asked()[0], _METHOD)
        except (LostError, ReplyError):
            raise
        except PartyError as error:  # its owner does not let it be asked
            name = _call_name(chain)
            raise plan_error(
                f"{chain.written}.{name}() may be of the lambda's variable or of a column",
                self.sql,
                original,
                f"write {name}({chain.written}), which is of the variable",
            ) from error
        return [column.type for column in columns] == ["INTEGER[][]"]

    def refuse_method(self, chain: DottedName, original: exp.Expr) -> None:
        """Refuse a method call if DuckDB reads the words before it as another object than the
        column.
        """
        name = _call_name(chain)
        if len(chain.words) > 2:
            raise plan_error(
                f"{chain.written}.{name}(): DuckDB reads two words before a call, table.column",
                self.sql,
                original,
                f"write {name}({chain.written})",
            )
        if self.is_schema(chain):
            raise plan_error(
                f"{chain.written}.{name}() may be a function of the schema {chain.written}",
                self.sql,
                original,
                f"write {name}({chain.written})",
            )


def _call_name(chain: DottedName) -> str:
    call = chain.links[0]
    return call.name if isinstance(call, exp.Anonymous) else "function"


_WITHOUT = ("qualify", "limit", "offset")
"""Clauses in which names of outside go before outputs of the SELECT."""
_OUTSIDE = "sqlfl_outside"
"""Mark of an expression that replaces an outer name; it may be a constant there."""


@dataclass(frozen=True, eq=False)
class LocalCte:
    """A CTE that is defined in the query itself."""

    columns: Outputs
    definitions: tuple[exp.Expr, ...]
    """Its definition, after those that it may name."""
    recursive: bool

    def select(self, table: exp.Table) -> exp.Select:
        """Return a query of all its columns; `table` names it."""
        definitions = [definition.copy() for definition in self.definitions]
        query = exp.select("*").from_(exp.Table(this=table.this.copy()), copy=False)
        query.set("with_", exp.With(expressions=definitions, recursive=self.recursive or None))
        return query


Local: TypeAlias = Mapping[str, LocalCte]
"""By name in lower case."""


def localized(
    context: Context, query: exp.Query, known: Environment, outer: Scope | None
) -> exp.Query:
    """Return the query as its one client runs it: without party names, with the CTEs that it reads.

    Names that its own tables lack are resolved in `outer`, the scope around it; None for an
    independent query. Raises PlanError if it is unclear whether a name is its own.
    """
    local_query = query.copy()
    if (
        isinstance(local_query, exp.Subquery)
        and not local_query.args.get("with_")
        and not local_query.alias
    ):
        local_query = local_query.this
    tables = LocatedQuery(context.tables, set(local_names(local_query)))
    tables.read(local_query, known)
    tables.rename()
    names = _Names(context, tables)
    for hoisted in tables.hoisted.values():
        hoisted.outputs = names.query(hoisted.node.this, {}, None)
    names.query(local_query, {}, outer)
    tables.hoist(local_query)
    local_query.meta[NAMES_MARK] = tables.names()
    return local_query


# -- names -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Names:
    context: Context
    tables: LocatedQuery

    def query(self, node: exp.Expr, local: Local, outer: NameFrame | Scope | None) -> Outputs:
        """Resolve the names of a query; gives its columns."""
        local = self._with(node, local, outer)
        if isinstance(node, exp.Subquery):
            return self.query(node.this, local, outer)
        if isinstance(node, exp.SetOperation):
            return self._union(node, local, outer)
        if isinstance(node, exp.Select):
            return self._select(node, local, outer)
        self._below(node, NameFrame((), outer), local, frozenset())
        return self._asked(node)

    def _union(
        self, node: exp.SetOperation, local: Local, outer: NameFrame | Scope | None
    ) -> Outputs:
        """Read a union; `local` has the node's own WITH."""
        unions = [(node, local)]
        for union in unions_of(node)[1:]:
            local = self._with(union, local, outer)
            unions.append((union, local))
        columns = self.query(unions[-1][0].left, local, outer)
        for union, known in reversed(unions):
            self.query(union.right, known, outer)
            columns = self._asked(union) if union.args.get("by_name") else columns
        return columns

    def _with(self, node: exp.Expr, local: Local, outer: NameFrame | Scope | None) -> Local:
        with_ = node.args.get("with_")
        if with_ is None:
            return local
        known = dict(local)
        recursive = bool(with_.args.get("recursive"))
        before = tuple(definition for cte in local.values() for definition in cte.definitions[-1:])
        for cte in with_.expressions:
            aliases = tuple(cte.alias_column_names)
            inside = dict(known)
            before = (*before, cte)
            if recursive:  # the columns of a recursive one are those of its first part
                outputs: list[Outputs] = []
                own = LocalCte(late(outputs, aliases), before, recursive)
                inside[folded(cte.alias)] = own
                outputs.append(self.query(cte.this, inside, outer))
                known[folded(cte.alias)] = own
            else:
                columns = late([self.query(cte.this, inside, outer)], aliases)
                known[folded(cte.alias)] = LocalCte(columns, before, recursive)
        return known

    def _select(self, node: exp.Select, local: Local, outer: NameFrame | Scope | None) -> Outputs:
        from_, joins = node.args.get("from_"), node.args.get("joins") or []
        items: tuple[Inner, ...] = ()
        if from_ is not None:
            self._tell_apart(from_.this, joins)
            items = self._from(from_.this, joins, local, outer)
        aliases = frozenset(folded(p.alias) for p in node.expressions if isinstance(p, exp.Alias))
        plain = NameFrame(items, outer)
        named = plain.with_aliases(aliases)
        done = [from_, *joins, node.args.get("with_")]
        for child in list(node.iter_expressions()):
            if any(child is other for other in done):
                continue
            frame = replace(named, within_aggregates=child.arg_key != "having")
            self._one(child, plain if child.arg_key in _WITHOUT else frame, local, frozenset())
        self._refuse_lifted(node)
        merged = any(j.args.get("using") or j.method for j in nodes(node, exp.Join))
        return cache(lambda: outputs_of(node, items, merged) or self._asked(node)())

    def _refuse_lifted(self, node: exp.Select) -> None:
        """Refuse an aggregate over outer columns alone, which belongs to the outer query in SQL."""
        for part in own_nodes(node):
            call = part.this if isinstance(part, exp.Filter) else part
            if not is_aggregate(call) or isinstance(part.parent, exp.Filter | exp.Window):
                continue
            columns = [c for c in nodes(part, exp.Column) if isinstance(c.this, exp.Identifier)]
            outside = bool(columns) or any(_OUTSIDE in inner.meta for inner in part.walk())
            if outside and all(column.table.startswith("#") for column in columns):
                raise plan_error(
                    "an aggregate over columns of outside is none of the subquery, but of the "
                    "query around it",
                    self.context.sql,
                    part,
                    "aggregate a column of the subquery's own tables",
                )

    # -- FROM --------------------------------------------------------------------------------------

    def _from(
        self,
        first: exp.Expr,
        joins: Sequence[exp.Join],
        local: Local,
        outer: NameFrame | Scope | None,
    ) -> tuple[Inner, ...]:
        """Return the items; each sees those before it, and `outer` behind them."""
        items = self._item(first, local, outer)
        for join in joins:
            before = NameFrame(items, outer) if items else outer
            more = self._item(join.this, local, before)
            on = join.args.get("on")
            items = (*items, *more)
            if on is not None:
                self._one(on, NameFrame(items, outer), local, frozenset())
        return items

    def _item(
        self, node: exp.Expr, local: Local, outer: NameFrame | Scope | None
    ) -> tuple[Inner, ...]:
        items = self._alone(node, local, outer)
        for join in node.args.get("joins") or []:
            more = self._item(join.this, local, NameFrame(items, outer))
            items = (*items, *more)
            if join.args.get("on") is not None:
                self._one(join.args["on"], NameFrame(items, outer), local, frozenset())
        return items

    def _alone(
        self, node: exp.Expr, local: Local, outer: NameFrame | Scope | None
    ) -> tuple[Inner, ...]:
        """The item without the joins that hang on it."""
        items = self._unpivoted(node, local, outer)
        pivots = node.args.get("pivots")
        if pivots:
            return (Inner(pivots[-1].alias or node.alias_or_name, self._all(node)),)
        return items

    def _unpivoted(
        self, node: exp.Expr, local: Local, outer: NameFrame | Scope | None
    ) -> tuple[Inner, ...]:
        name, aliases = node.alias_or_name, tuple(node.alias_column_names)
        if isinstance(node, exp.Table) and isinstance(node.this, exp.UDTF):
            items = self._alone(node.this, local, outer)
            return tuple(_called(item, name, aliases) for item in items) if node.alias else items
        if isinstance(node, exp.Table) and not isinstance(node.this, exp.Func):
            return (self._table(node, local),)
        if isinstance(node, exp.Subquery) and is_from(node.this):
            items = self._item(node.this, local, outer)
            return (joined(node, items),) if node.alias else items
        if isinstance(node, exp.Subquery):
            columns = self.query(node, local, outer)
            return (
                Inner(
                    name,
                    lambda: with_aliases(columns(), aliases),
                    types=lambda: self._types(node.this),
                ),
            )
        if isinstance(node, exp.Lateral) and isinstance(node.this, exp.Subquery):
            columns = self.query(node.this, local, outer)
            return (Inner(name, lambda: with_aliases(columns(), aliases)),)
        for child in list(node.iter_expressions()):
            if child.arg_key != "joins":  # they see this item, and are read after it
                self._one(child, NameFrame((), outer), local, frozenset())
        series = series_name(node)
        if series is None:
            return (Inner(name, self._all(node)),)
        shown = aliases or (node.alias or series,)
        second = node.args.get("offset") or node.args.get("ordinality")
        if second:
            shown = (*shown, second.name if isinstance(second, exp.Expr) else "ordinality")
        return (Inner(name, lambda: shown, hidden=() if aliases else (series,)),)

    def _table(self, node: exp.Table, local: Local) -> Inner:
        name, aliases = node.alias_or_name, tuple(node.alias_column_names)
        placed, cte = self.tables.placed.get(id(node)), self.tables.named.get(id(node))
        if placed is not None:
            names = tuple(c.name for c in placed.table.columns)
            paths, native = (frozenset(), ()) if node.alias else (placed.paths, tuple(node.parts))
            hidden = () if placed.table.rows is None else ("rowid",)
            types = tuple(c.type for c in placed.table.columns)
            columns = partial(with_aliases, names, aliases)
            return Inner(name, columns, paths, native, hidden, lambda: types)
        if cte is not None:
            hoisted = self.tables.hoisted.get(cte)
            inner = cte.columns
            outputs = (lambda: None) if hoisted is None else hoisted.outputs
            return Inner(
                name,
                lambda: with_aliases(with_aliases(outputs(), inner), aliases),
                types=lambda: None if hoisted is None else self._types(hoisted.node.this),
            )
        own = local.get(folded(node.name))
        if own is None:
            return Inner(name, lambda: None)
        return Inner(
            name,
            lambda: with_aliases(own.columns(), aliases),
            types=lambda: self._types(own.select(node)),
        )

    def _tell_apart(self, first: exp.Expr, joins: Sequence[exp.Join]) -> None:
        """Write tables of one name in one FROM with their schemas."""
        located = [p for p in self.tables.placed.values() if not p.node.alias]
        within = {id(table) for node in (first, *joins) for table in _beside(node)}
        located = [placed for placed in located if id(placed.node) in within]
        names = [folded(placed.table.name) for placed in located]
        for placed, name in zip(located, names, strict=True):
            if names.count(name) > 1:
                emitted = self.context.tables.emitted(placed.client, placed.table, located=True)
                set_path(placed.node, emitted.parts)

    def _all(self, item: exp.Expr) -> Outputs:
        """The columns of an item that only its database knows."""
        copy = item.copy()
        if copy.args.get("joins"):
            copy.set("joins", None)
        return self._asked(exp.select("*").from_(copy, copy=False))

    def _asked(self, query: exp.Expr) -> Outputs:
        described = self._described(query)

        def names() -> Columns:
            columns = described()
            return None if columns is None else tuple(column.name for column in columns)

        return names

    def _types(self, query: exp.Expr) -> Sequence[str] | None:
        columns = self._described(query)()
        return None if columns is None else tuple(column.type for column in columns)

    def _described(self, query: exp.Expr) -> Callable[[], Sequence[Column] | None]:
        """Return a function that asks the query's database for its columns; None if it
        cannot tell.
        """

        def ask() -> Sequence[Column] | None:
            client = self.tables.client
            if client is None or any(c.table.startswith("#") for c in nodes(query, exp.Column)):
                return None
            local_query = query.copy()
            if isinstance(local_query, exp.Query):
                self.tables.hoist(local_query)
            try:
                return tuple(self.context.tables.catalog.describe(client, to_sql(local_query)))
            except (LostError, ReplyError):
                raise
            except PartyError:
                return None

        return cache(ask)

    # -- expressions -------------------------------------------------------------------------------

    def _below(
        self, parent: exp.Expr, frame: NameFrame, local: Local, bound: frozenset[str]
    ) -> None:
        if isinstance(parent, exp.Lambda):
            bound |= {folded(variable.name) for variable in parent.expressions}
        for child in list(parent.iter_expressions()):
            self._one(child, frame, local, bound)

    def _one(self, child: exp.Expr, frame: NameFrame, local: Local, bound: frozenset[str]) -> None:
        if not frame.within_aggregates and is_aggregate(child):
            frame = frame.with_aliases(frozenset())
        chain = chain_of(child)
        if chain is not None:
            self._name(child, chain, frame, local, bound)
        elif isinstance(child, exp.Column) and isinstance(child.this, exp.Star):
            self._star(child, frame)
        elif isinstance(child, exp.Query):
            self.query(child, local, frame)
        elif isinstance(child, exp.Comprehension):
            variables = (child.args.get(key) for key in ("expression", "position"))
            inside = bound | {folded(v.name) for v in variables if isinstance(v, exp.Expr)}
            for key in ("this", "iterator", "condition"):
                part = child.args.get(key)
                if isinstance(part, exp.Expr):
                    self._one(part, frame, local, bound if key == "iterator" else inside)
        else:
            self._below(child, frame, local, bound)

    def _star(self, node: exp.Column, frame: NameFrame) -> None:
        """`party.table.*`; before a star DuckDB takes one word."""
        words = [folded(part.name) for part in node.parts[:-1]]
        if len(words) > 1:
            item = next((i for i in frame.items if i.goes_by(words)), None)
            if item is not None and item.native:
                node.replace(column_of([item.native[-1], node.this]))

    def _name(
        self,
        child: exp.Expr,
        chain: DottedName,
        frame: NameFrame,
        local: Local,
        bound: frozenset[str],
    ) -> None:
        for link in chain.links:
            self._below(link, frame, local, bound)
        first = folded(chain.parts[0])
        if first in bound and len(chain.words) == 1 and not chain.is_method:
            return
        word = self.context.clock.word(chain.parts[0]) if len(chain.words) == 1 else None
        at: NameFrame | Scope | None = frame
        while isinstance(at, NameFrame):
            match = at.find(chain.parts)
            if match is not None and self._is_outside(match, chain, at, frame, child):
                match = None
            if match is UNSURE:
                self._refuse_unsure(child, chain, at)
                return
            if match is not None:
                if match.item is not None and match.words > 1:
                    if chain.is_method:
                        self.context.refuse_method(chain, child)
                    words = [*match.item.native, *chain.words[match.words :]]
                    child.replace(_linked(column_of(words), chain.links))
                return
            if at is frame and first in bound:
                return
            if word is not None:
                self._place(child, with_links(word, chain.links), chain)
                return
            at = at.outer
        if at is None:
            return
        meaning = at.lookup(chain, child)
        if meaning is None:
            return  # a function's schema, or unknown: its database will report it
        if chain.is_method:
            self.context.refuse_method(chain, child)
        self._place(child, with_links(meaning, chain.links), chain)

    def _place(self, child: exp.Expr, meaning: exp.Expr, chain: DottedName) -> None:
        """Replace a name by its meaning; a column keeps its name."""
        whole = child
        while isinstance(whole.parent, exp.Paren):
            whole = whole.parent
        placed = self.context.placed(meaning, child)
        placed.meta[_OUTSIDE] = True
        child.replace(placed)
        if isinstance(whole.parent, exp.Select) and not chain.is_method:
            shown = placed if whole is child else whole
            shown.replace(exp.Alias(this=shown.copy(), alias=chain.words[-1].copy()))

    def _is_outside(
        self, match: Match, chain: DottedName, at: NameFrame, frame: NameFrame, child: exp.Expr
    ) -> bool:
        """Return whether `x.y` is a column of an outer table x, because a column x has
        no fields.
        """
        if match.item is None or match.words or len(chain.words) == 1:
            return False
        if is_of_table(child) and _names_table(at.outer, chain, child):
            return True
        first = folded(chain.parts[0])
        select = child.find_ancestor(exp.Select)
        if at is frame and select is not None and not _is_filter(child, select):
            return False
        around = None if select is None else select.parent
        if isinstance(around, exp.Subquery) and isinstance(around.parent, exp.From | exp.Join):
            return False  # a derived table does not look outside for that
        if sum(item.has(first) for item in at.items) > 1:
            return False
        outer = at.outer
        while isinstance(outer, NameFrame):
            if outer.find(chain.parts) is not None:
                return match.item.is_plain(first)
            outer = outer.outer
        try:
            is_outer = outer is not None and outer.lookup(chain, child) is not None
        except PlanError:
            is_outer = True
        return is_outer and match.item.is_plain(first)

    def _refuse_unsure(self, child: exp.Expr, chain: DottedName, frame: NameFrame) -> None:
        """Raise PlanError for an ambiguous name, if an outer scope has it too."""
        at = frame.outer
        while isinstance(at, NameFrame):
            at = at.outer
        if at is not None and at.lookup(chain, child) is not None:
            raise plan_error(
                f"it cannot be told whether {chain.written} is a column of the subquery's own FROM",
                self.context.sql,
                child,
                "give its tables aliases with columns, AS t(a, b), and write alias.column",
            )


def _names_table(outer: NameFrame | Scope | None, chain: DottedName, child: exp.Expr) -> bool:
    """Return whether the words name a table of outside, and its column."""
    while isinstance(outer, NameFrame):
        match = outer.find(chain.parts)
        if match is not None and match.words:
            return True
        outer = outer.outer
    return outer is not None and outer.has_table(chain, child)


def _beside(item: exp.Expr) -> Iterator[exp.Table]:
    """Yield the tables of an item or a join, without those in subqueries."""
    if isinstance(item, exp.Table):
        yield item
    for child in [item.this, *(item.args.get("joins") or [])]:
        if isinstance(child, exp.Join | exp.Table) or (
            isinstance(child, exp.Subquery) and is_from(child.this)
        ):
            yield from _beside(child)


def _is_filter(child: exp.Expr, select: exp.Select) -> bool:
    """Return whether it stands in WHERE or ON: elsewhere DuckDB does not search outer scopes for
    `x.y`.
    """
    at = child
    while at.parent is not None and at.parent is not select:
        at = at.parent
    return at.arg_key in ("where", "from_", "joins")


def _called(item: Inner, name: str, aliases: Sequence[str]) -> Inner:
    return replace(item, name=name, columns=lambda: with_aliases(item.columns(), aliases))


def _linked(target: exp.Expr, links: Sequence[exp.Expr]) -> exp.Expr:
    if links:
        target = exp.Paren(this=target)  # before a call DuckDB reads two words only
    for link in links:
        target = exp.Dot(this=target, expression=link.copy())
    return target


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
        node.args["alias"].set("this", trees.identifier(name))
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
        table.set("this", trees.identifier(name))


def set_path(table: exp.Table, parts: Sequence[exp.Expr]) -> None:
    """Name the table by up to four parts; where there are four, as the parser has them."""
    path = [part.copy() for part in parts]
    last = path.pop()
    if len(path) == 3:
        last = exp.Dot(this=path.pop(), expression=last)
    table.set("this", last)
    table.set("db", path[-1] if path else None)
    table.set("catalog", path[-2] if len(path) > 1 else None)
