"""Expressions and subqueries, bound to relations or made ready for the one client they go to."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.contract.schema import Client, folded
from sqlfl.planner.grammar.refusals import GROUPED, LOCAL_TABLE_FUNCTIONS, is_aggregate
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.trees import copied, plan_error, span_of
from sqlfl.planner.query.ctes import Cte, Environment, Nameless, tables_of
from sqlfl.planner.query.emit import MARKED
from sqlfl.planner.query.names import DottedName, chain_of, with_links
from sqlfl.planner.query.relations import CLIENT_MARK, Term
from sqlfl.planner.query.scopes import Scope
from sqlfl.planner.query.subqueries import Context, localized

FILES = (".parquet", ".csv", ".csv.gz", ".tsv", ".json", ".jsonl", ".ndjson")
"""Ends of names that DuckDB reads as files."""

_JOINED = "(SELECT 1 FROM b.u AS u JOIN c.v AS v ON v.key = u.key WHERE u.key = t.key)"
OF_PARTIES = (
    "EXISTS and IN take an inner join of several parties' tables by equalities, if each other "
    f"condition is on one party's tables: EXISTS {_JOINED}; for a value of another party's table "
    "write the value itself: u.day IN ('2024-01-01', '2024-12-25')"
)
"""The hint for EXISTS and IN over tables of several parties."""
OF_DATABASES = (
    "attach the clients under names of their own; or write EXISTS for each table, with an equality "
    "with the row outside: EXISTS (SELECT 1 FROM party.table AS u WHERE u.key = t.key)"
)
"""The hint for a subquery over several databases of a party."""
OF_ONE_PARTY = "aggregate the rows of one party in each subquery"
"""The hint for one value of tables of several parties."""


@dataclass(frozen=True)
class Pusher(Context):
    """Resolver of names and subqueries: each name becomes a relation's column, and each subquery
    gets the form for its one client.

    It moves no conditions: rules of their own push those into the clients' queries.
    """

    # -- which clients -----------------------------------------------------------------------------

    def clients(self, node: exp.Expr, known: Environment) -> tuple[Client, ...]:
        """Return every client with a table that the node reads, also through CTEs. Raise PlanError
        for a table that no party has, and for a table function that reads no party's table.
        """
        holders: dict[Client, None] = {}
        self._collect(node, known, holders, set())
        return tuple(holders)

    def _collect(
        self, node: exp.Expr, known: Environment, holders: dict[Client, None], seen: set[Cte]
    ) -> None:
        """Add the node's clients to `holders`, in the order of its tables. `seen`: CTEs that were
        visited, each of which counts once.
        """
        try:
            tables = list(tables_of(node, known))
        except Nameless as error:
            raise self.nameless(error.table) from error
        for table, cte in tables:
            if cte is not None and cte not in seen:
                seen.add(cte)
                self._collect(cte.query, cte.inside, holders, seen)
            elif table.db:
                clients = self.tables.clients(table)
                self.tables.table(table, clients[0])
                holders |= dict.fromkeys(clients)
            elif isinstance(table.this, exp.Func):
                self._check_function(table)

    def nameless(self, table: exp.Table) -> PlanError:
        """Return the error for a table without a party's name, or for rows of constants."""
        if not table.name:
            return plan_error(
                "this SELECT reads rows of constants alone, and no party evaluates it",
                self.sql,
                table,
                "make the rows a table in a party's database, or join them with one by an equality",
            )
        parties = ", ".join(self.tables.parties())
        hint = f"write party.{table.name}; the parties are {parties}"
        if table.name.lower().endswith(FILES):
            view = to_sql(exp.Literal.string(table.name))
            hint = (
                f"a party's view reads a file: CREATE VIEW t AS FROM {view} on its connection, "
                f"then party.t; the parties are {parties}"
            )
        return plan_error(f"table {table.name} has no party", self.sql, table, hint)

    def _check_function(self, table: exp.Table) -> None:
        """Raise PlanError unless the table function makes rows of its arguments alone."""
        function = table.this
        name = function.name if isinstance(function, exp.Anonymous) else function.sql_name()
        if folded(name) not in LOCAL_TABLE_FUNCTIONS:
            raise plan_error(
                f"the table function {name.lower()} reads no party's table",
                self.sql,
                table,
                "make it a table or a view in the party's database",
            )

    def only_client(self, node: exp.Expr, known: Environment) -> Client | None:
        """Return the client of all tables that the node reads; None for several clients, and for a
        node that reads no table.
        """
        clients = self.clients(node, known)
        return clients[0] if len(clients) == 1 else None

    def local(self, query: exp.Query, known: Environment) -> exp.Query:
        """Return the query in the form for its one client: without party names, with the CTEs that
        it reads."""
        return localized(self, query, known, None)

    # -- expressions -------------------------------------------------------------------------------

    def term(self, node: exp.Expr, scope: Scope, known: Environment) -> Term:
        """Return the expression over the relations' columns. Raise PlanError for a name without a
        meaning, and for a subquery over several clients.
        """
        holder = exp.Paren(this=copied(node))
        _Expression(self, scope, known, node).resolve(holder, frozenset())
        return Term(holder.this, span_of(node, self.sql))


@dataclass(frozen=True)
class _Expression:
    """An expression of the query, while its names are replaced."""

    pusher: Pusher
    scope: Scope
    known: Environment
    whole: exp.Expr
    """The original expression."""

    def resolve(self, parent: exp.Expr, bound: frozenset[str]) -> None:
        """Replace the names below `parent`; `bound` are the variables of lambdas around it."""
        if isinstance(parent, exp.Lambda):
            bound |= {folded(variable.name) for variable in parent.expressions}
        for child in list(parent.iter_expressions()):
            self._replace(child, bound)

    def _replace(self, child: exp.Expr, bound: frozenset[str]) -> None:
        """Replace a name, a position or a subquery; in other nodes, replace the names below.

        The order of the cases counts: a dotted name is a column or a dot, and so comes before both.
        Raise PlanError for stars, unknown names, and subqueries over several clients.
        """
        if isinstance(child, exp.Column) and MARKED.fullmatch(child.table):
            return  # a relation's column already: part of a replacement
        chain = chain_of(child)
        if chain is not None:
            self._replace_name(child, chain, bound)
        elif isinstance(child, exp.Dot) and not isinstance(child.expression, exp.Identifier):
            # a method of an expression: `(x + y).f(z)` becomes `f(x + y, z)`
            self.resolve(child, bound)
            child.replace(with_links(child.this, [child.expression]))
        elif isinstance(child, exp.Star) and is_aggregate(child.parent or child):
            raise plan_error(
                "an aggregate cannot be done over the rows of a join",
                self.pusher.sql,
                child.parent,
                GROUPED,
            )
        elif isinstance(child, exp.Column | exp.Star | exp.Columns):
            self._refuse(child, "a star inside an expression is not taken")
        elif isinstance(child, exp.PositionalColumn):
            output = self.scope.at(int(child.this.name), self.whole)
            child.replace(self.pusher.placed(output, child))
        elif isinstance(child, exp.Query):
            child.replace(self._subquery(child))
        elif isinstance(child, exp.Comprehension):
            self._comprehension(child, bound)
        else:
            self.resolve(child, bound)

    def _comprehension(self, node: exp.Comprehension, bound: frozenset[str]) -> None:
        """Replace the names in `[this FOR expression, position IN iterator IF condition]`. Its
        variables are unknown in the iterator.
        """
        variables = (node.args.get(key) for key in ("expression", "position"))
        inside = bound | {folded(v.name) for v in variables if isinstance(v, exp.Expr)}
        for key in ("this", "iterator", "condition"):
            part = node.args.get(key)
            if isinstance(part, exp.Expr):
                self._replace(part, bound if key == "iterator" else inside)

    def _replace_name(self, child: exp.Expr, chain: DottedName, bound: frozenset[str]) -> None:
        """Replace a dotted name by its meaning; a name before a call may stay, as a schema.

        The meanings, the first that applies: a variable of a lambda, a column of FROM, a function's
        schema, a column outside or a word such as `current_date`. Raise PlanError for any other
        name.
        """
        for link in chain.links:
            self.resolve(link, bound)
        is_bound = folded(chain.words[0].name) in bound
        if is_bound and self._is_variable(chain, child):
            child.replace(_variable(chain))
            return
        meaning = self.scope.near(chain, child)
        if meaning is None and is_bound:
            child.replace(_variable(chain))
            return
        if meaning is None:
            if chain.is_method and len(chain.words) <= 2 and self.pusher.is_schema(chain):
                return
            meaning = self._meaning_outside(chain, child)
        if chain.is_method:
            self.pusher.refuse_method(chain, child)
        child.replace(self.pusher.placed(with_links(meaning, chain.links), child))

    def _meaning_outside(self, chain: DottedName, child: exp.Expr) -> exp.Expr:
        """Return the column outside, or else the word, that a name means without such a column in
        FROM. Raise PlanError if it means neither.
        """
        first = chain.words[0].name
        word = self.pusher.clock.word(first) if len(chain.words) == 1 else None
        if chain.is_method and self._is_party(chain, child):
            raise plan_error(
                f"{first} is a party, and a function goes without its party's name",
                self.pusher.sql,
                child,
                "write function(x), which each party's database looks for itself",
            )
        if word is None:
            return self.scope.resolve(chain, child)
        return self.scope.lookup(chain, child) or word

    def _is_party(self, chain: DottedName, where: exp.Expr) -> bool:
        """Return whether the one word before a call names a party, and no column."""
        parties = {folded(party) for party in self.pusher.tables.parties()}
        is_name = len(chain.words) == 1 and folded(chain.words[0].name) in parties
        return is_name and self.scope.lookup(chain, where) is None

    def _is_variable(self, chain: DottedName, where: exp.Expr) -> bool:
        """Return whether a name that begins with a lambda's variable means it, not a column.

        It does if it is the variable alone. In `x.f()` a column x of FROM may go before the
        variable x, depending on DuckDB's version. In `x.y` a column goes before it.
        """
        if len(chain.words) > 1 or not chain.is_method:
            return len(chain.words) == 1
        return not self._is_in_from(chain, where) or self.pusher.is_of_variable(chain, where)

    def _is_in_from(self, chain: DottedName, where: exp.Expr) -> bool:
        """Return whether FROM has the name: as one column, as several, or as a table."""
        try:
            return self.scope.near(chain, where) is not None
        except PlanError:  # `near` refuses a name of several columns, and a table's
            return True

    def _refuse(self, node: exp.Expr, message: str) -> None:
        """Raise PlanError with this message, and the hint to name the columns."""
        raise plan_error(message, self.pusher.sql, node, "name the columns")

    def _subquery(self, node: exp.Query) -> exp.Expr:
        """Return the subquery in the form for its client, which CLIENT_MARK names. A subquery that
        reads no table has no mark. Raise PlanError for several clients.
        """
        clients = self.pusher.clients(node, self.known)
        parties = tuple(dict.fromkeys(c.party for c in clients))
        if len(parties) > 1:
            raise plan_error(
                f"a subquery reads tables of {' and '.join(parties)}",
                self.pusher.sql,
                node,
                _hint_of_parties(node),
            )
        if len(clients) > 1:
            raise plan_error(
                f"a subquery over {parties[0]} would be answered by each of its {len(clients)} "
                "clients for itself",
                self.pusher.sql,
                node,
                OF_DATABASES,
            )
        local: exp.Expr = localized(self.pusher, node, self.known, self.scope)
        if isinstance(node, exp.Subquery) and not isinstance(local, exp.Subquery):
            local = exp.Subquery(this=local)
        if clients:
            local.meta[CLIENT_MARK] = clients[0]
        return local


def _hint_of_parties(subquery: exp.Query) -> str:
    """Return a form that gives the rows of a subquery over several parties, by its use."""
    use = subquery.parent
    return OF_PARTIES if isinstance(use, exp.Exists | exp.In | exp.Any | exp.All) else OF_ONE_PARTY


def _variable(chain: DottedName) -> exp.Expr:
    """Return a variable of a lambda with its fields and calls, as `(x).a`. DuckDB takes the x of
    `x.a` for a table first."""
    first, *rest = (word.copy() for word in chain.words)
    target: exp.Expr = exp.Paren(this=first) if rest else first
    for word in rest:
        target = exp.Dot(this=target, expression=word)
    return with_links(target, chain.links)
