"""From the syntax tree to blocks: names resolved, derived tables and CTEs taken apart.

What one client can answer alone and is not a select-project-join goes to it whole, as one source.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from sqlfl.errors import PartyError, PlanError
from sqlfl.planner.columns import unify_blocks, with_column_aliases
from sqlfl.planner.joins import Joiner, State, renamed
from sqlfl.planner.names import Scope, Tables
from sqlfl.planner.push import Pusher, strip_parties
from sqlfl.planner.refusals import HINTS, Refusal, has_hints, has_outer_join, refusals
from sqlfl.planner.relations import (
    Block,
    Branch,
    Group,
    Item,
    Output,
    Relation,
    Source,
    Term,
    column,
    substituted,
    with_filters,
)
from sqlfl.planner.scalars import ROWS, SCALAR, UNBOUND, Asker, claimed, has_calls
from sqlfl.planner.several import unrolled
from sqlfl.planner.spans import plan_error, span_of
from sqlfl.planner.stars import expand_star, is_star
from sqlfl.planner.writing import to_sql
from sqlfl.schema import Catalog, Client

MOST_BLOCKS = 1024


@dataclass(frozen=True)
class Cte:
    query: exp.Query
    columns: tuple[str, ...]
    environment: Mapping[str, Cte]
    node: exp.CTE
    recursive: bool

    @property
    def calls_itself(self) -> bool:
        names = {t.name.lower() for t in self.query.find_all(exp.Table) if not t.db}
        return self.recursive and self.node.alias.lower() in names


Environment = Mapping[str, Cte]


class Binder:
    """Binds one query; numbers its relations and sources."""

    def __init__(self, sql: str, catalog: Catalog, careful: bool = False) -> None:
        """`careful`: each SELECT asks at once whether its columns are one value per row."""
        self.sql = sql
        self.catalog = catalog
        self.tables = Tables(catalog, sql)
        self.pusher = Pusher(self.tables, sql)
        self.joiner = Joiner(self.pusher, sql)
        self.asker = Asker(catalog)
        self.careful = careful
        self.claims: list[Term] = []
        """Terms over several relations that must be one value per row."""
        self._numbers = itertools.count()

    def bind(
        self, query: exp.Query, environment: Environment | None = None, derived: bool = False
    ) -> tuple[Block, ...]:
        """The union of blocks that the query is; outputs of all have the first one's names.

        `derived` says that only its outputs can be referred to.
        """
        if not isinstance(query, exp.Query):
            raise plan_error("expected a SELECT over tables of parties", self.sql, query)
        known = self._with(query, environment or {})
        if isinstance(query, exp.Subquery) and not query.args.get("joins"):
            return self.bind(query.this, known, derived)
        blocker = next(refusals(query), None) or self._distinct_union(query)
        outer = has_outer_join(query)
        hinted = isinstance(query, exp.Select) and has_hints(query)
        if blocker is not None or self._recursive(query) or outer or hinted:
            client = self.pusher.only_client(query, known)
            if client is not None and not (blocker or hinted) and outer and not derived:
                return self._together(query, known, client)
            if client is not None:
                return (self._whole(query, known, client),)
            if blocker is not None:
                raise self._refuse(blocker, query, known)
        if isinstance(query, exp.SetOperation):
            return self._union(query, known, derived)
        if not isinstance(query, exp.Select):
            raise plan_error("expected a SELECT over tables of parties", self.sql, query)
        return self._asked(query, known) if self.careful or hinted else self._select(query, known)

    # -- refusals ----------------------------------------------------------------------------------

    def _distinct_union(self, query: exp.Query) -> Refusal | None:
        if not isinstance(query, exp.SetOperation):
            return None
        name = {exp.Union: "UNION", exp.Except: "EXCEPT", exp.Intersect: "INTERSECT"}[type(query)]
        if isinstance(query, exp.Union) and query.args.get("distinct") is False:
            return None
        hint = "write UNION ALL" if name == "UNION" else "filter or join instead"
        place = query.expression
        return Refusal(f"{name}{' without ALL' if name == 'UNION' else ''}", place, hint)

    def _recursive(self, query: exp.Query) -> bool:
        with_ = query.args.get("with_")
        return bool(with_ is not None and with_.args.get("recursive"))

    def _refuse(self, found: Refusal, query: exp.Query, known: Environment) -> PlanError:
        clients = self.pusher.clients(query, known)
        parties = list(dict.fromkeys(c.party for c in clients))
        if len(parties) == 1:
            message = (
                f"{found.what} is not the same over the {len(clients)} clients of {parties[0]} "
                "together as over each of them"
            )
            hint = (
                "attach the clients under names of their own, and where per client is meant write "
                "(SELECT ... FROM a.t ... UNION ALL SELECT ... FROM b.t ...) AS t"
            )
        else:
            over = f"{' and '.join(parties)} together" if parties else "what is no party's table"
            message, hint = f"{found.what} cannot be done over {over}", found.hint
        return plan_error(message, self.sql, found.node, hint)

    # -- queries -----------------------------------------------------------------------------------

    def _with(self, query: exp.Query, environment: Environment) -> Environment:
        with_ = query.args.get("with_")
        if with_ is None:
            return environment
        known = dict(environment)
        recursive = bool(with_.args.get("recursive"))
        for cte in with_.expressions:
            names = tuple(cte.alias_column_names)
            known[cte.alias.lower()] = Cte(cte.this, names, dict(known), cte, recursive)
        return known

    def _whole(self, query: exp.Query, known: Environment, client: Client) -> Block:
        """The query as one source of one relation."""
        local = self.pusher.local(query, known)
        try:
            columns = self.catalog.describe(client, to_sql(local))
        except PartyError as error:
            message = f"{client.party} cannot bind this query: {_said(error)}"
            raise plan_error(message, self.sql, query) from error
        item = exp.Subquery(this=local)
        source = Source(self._id("@"), item, "q", (client.party,), None)
        names = tuple(c.name for c in columns)
        relation, outputs = self._relation("q", span_of(query, self.sql), names, [(client, source)])
        return Block((relation,), Group(relation.ids), outputs, span=span_of(query, self.sql))

    def _together(self, query: exp.Query, known: Environment, client: Client) -> tuple[Block, ...]:
        """The query as one relation, with the LEFT JOINs in its FROM; else as one source."""
        try:
            assert isinstance(query, exp.Select)
            blocks = self._select(query, known)
            if self.careful and any(self._others(query, block) for block in blocks):
                return (self._whole(query, known, client),)
        except PlanError:
            return (self._whole(query, known, client),)
        if len(blocks) == 1 and all(r.client == client for r in blocks[0].relations):
            return (replace(blocks[0], together=True),)
        return (self._whole(query, known, client),)

    def _relation(
        self,
        name: str,
        span: tuple[int, int] | None,
        columns: tuple[str, ...],
        parts: list[tuple[Client, Source]],
    ) -> tuple[Relation, tuple[Output, ...]]:
        id_ = self._id("#")
        branches = tuple(
            Branch(c, (s,), {(id_, n.lower()): column(n, s.id) for n in columns}) for c, s in parts
        )
        outputs = tuple(Output(n, Term(column(n, id_), span)) for n in columns)
        return Relation((id_,), name, span, branches), outputs

    def _id(self, prefix: str) -> str:
        return f"{prefix}{next(self._numbers)}"

    def _union(
        self, query: exp.SetOperation, known: Environment, derived: bool
    ) -> tuple[Block, ...]:
        left, right = (self.bind(part, known, derived) for part in (query.left, query.right))
        names = [o.name for o in left[0].outputs]
        found = list(left)
        for block in right:
            if query.args.get("by_name"):
                block = self._by_name(block, names, query.right)
            if len(block.outputs) != len(names):
                raise plan_error(
                    f"the parts of a UNION ALL must have the same number of columns, got "
                    f"{len(names)} and {len(block.outputs)}",
                    self.sql,
                    query.right,
                )
            outputs = (replace(o, name=n) for o, n in zip(block.outputs, names, strict=True))
            found.append(replace(block, outputs=tuple(outputs)))
        return tuple(found)

    def _by_name(self, block: Block, names: list[str], place: exp.Expr) -> Block:
        own = {o.name.lower(): o for o in block.outputs}
        if {n.lower() for n in names} != set(own):
            odd = sorted({n.lower() for n in names} ^ set(own))
            raise plan_error(
                f"the parts of a UNION ALL BY NAME must have the same columns; "
                f"not in both: {', '.join(odd)}",
                self.sql,
                place,
            )
        return replace(block, outputs=tuple(own[n.lower()] for n in names))

    def _select(self, select: exp.Select, known: Environment) -> tuple[Block, ...]:
        from_ = select.args.get("from_")
        if from_ is None:
            raise plan_error("the SELECT reads no table: FROM is missing", self.sql, select)
        states = self._from(from_.this, select.args.get("joins") or [], known)
        return tuple(self._block(select, state, known) for state in states)

    def _block(self, select: exp.Select, state: State, known: Environment) -> Block:
        scope = Scope(state.items, self.sql)
        outputs: list[Output] = []
        written: list[tuple[str, Term]] = []
        for projection in select.expressions:
            if is_star(projection):
                outputs.extend(expand_star(projection, scope, self.pusher, known))
                continue
            term = self.pusher.term(projection.unalias(), scope, known, written)
            name = projection.alias or _derived_name(projection)
            outputs.append(Output(name, term))
            written.append((name, term))
        where = select.args.get("where")
        tree = state.tree
        if where is not None:
            condition = self.pusher.term(where.this, scope, known, written)
            tree = replace(tree, conditions=(*tree.conditions, condition))
        span = span_of(select, self.sql)
        sorted_by = self._order(select, scope, known, written)
        relations, several = claimed(state.relations, [*outputs, *sorted_by])
        self.claims += several
        return Block(relations, tree, tuple(outputs), state.items, span)

    # -- functions ---------------------------------------------------------------------------------

    def _asked(self, select: exp.Select, known: Environment) -> tuple[Block, ...]:
        """As `_select`, the parties having said what its functions are."""
        blocks = self._select(select, known)
        found = [self._others(select, block) for block in blocks]
        if not any(found):
            return blocks
        client = self.pusher.only_client(select, known)
        if client is not None:
            return (self._whole(select, known, client),)
        done = [
            (unrolled(block, [o for o, _ in others], self._id) if others else block)
            if all(kind == ROWS for _, kind in others)
            else None
            for block, others in zip(blocks, found, strict=True)
        ]
        made = tuple(block for block in done if block is not None)
        if len(made) == len(blocks):
            return made
        output, kind = next(others[0] for b, others in zip(done, found, strict=True) if b is None)
        raise self._refuse(Refusal(kind, output.term.span, HINTS[kind]), select, known)

    def _order(
        self,
        select: exp.Select,
        scope: Scope,
        known: Environment,
        written: list[tuple[str, Term]],
    ) -> list[Output]:
        """What ORDER BY computes: rows need no order, but an aggregate there makes one of them."""
        order = select.args.get("order")
        if order is None:
            return []
        called = [ordered.this for ordered in order.expressions if has_calls(ordered.this)]
        return [Output("", self.pusher.term(node, scope, known, written)) for node in called]

    def _others(self, select: exp.Select, block: Block) -> list[tuple[Output, str]]:
        """Its columns that are not one value per row, and what they are."""
        written = [(o.name, o.term) for o in block.outputs]
        scope = Scope(block.items, self.sql)
        columns = [*block.outputs, *self._order(select, scope, {}, written)]
        kinds = (
            (output, self.asker.kind_over(block.relations, output.term))
            for output in columns
            if has_calls(output.term.expression)
        )
        return [(output, kind) for output, kind in kinds if kind not in (SCALAR, UNBOUND)]

    # -- FROM --------------------------------------------------------------------------------------

    def _from(self, first: exp.Expr, joins: list[exp.Join], known: Environment) -> list[State]:
        states = self._item(first, known)
        for join in joins:
            others = self._item(join.this, known)
            self.joiner.check(states, others, join)
            if len(states) * len(others) > MOST_BLOCKS:
                raise plan_error(
                    f"the joins of unions make more than {MOST_BLOCKS} blocks", self.sql, join.this
                )
            states = [self.joiner.join(a, b, join, known) for a in states for b in others]
        return states

    def _item(self, node: exp.Expr, known: Environment) -> list[State]:
        nested = node.args.get("joins") or []
        if nested:
            bare = node.copy()
            bare.set("joins", None)
            return self._from(bare, nested, known)
        if isinstance(node, exp.Subquery) and _is_from(node.this):
            states = self._item(node.this, known)
            return states if not node.alias else [renamed(s, node) for s in states]
        if isinstance(node, exp.Subquery):
            return self._derived(node, node.this, self._with(node, known), ())
        if not isinstance(node, exp.Table):
            raise plan_error("FROM joins tables of parties: party.table", self.sql, node)
        if not node.db:
            cte = known.get(node.name.lower())
            if cte is not None and cte.calls_itself:
                return [self._recursive_cte(node, known)]
            if cte is not None:
                return self._derived(node, cte.query, cte.environment, cte.columns)
            raise plan_error(
                f"table {node.name} has no party",
                self.sql,
                node,
                f"write party.{node.name}; the parties are {', '.join(self.tables.parties())}",
            )
        return [self._base(node)]

    def _base(self, node: exp.Table) -> State:
        parts: list[tuple[Client, Source]] = []
        clients = self.tables.clients(node)
        found = [(client, self.tables.table(node, client)) for client in clients]
        names = [c.name for c in found[0][1].columns]
        for client, table in found:
            paths = self.tables.paths(client, table)
            item = self.tables.emitted(client, table)
            source = Source(self._id("@"), item, table.name, paths[0], table.rows, paths[1:])
            parts.append((client, source))
            own = {c.name.lower() for c in table.columns}
            names = [n for n in names if n.lower() in own]
        span = span_of(node, self.sql)
        relation, outputs = self._relation(node.alias_or_name, span, tuple(names), parts)
        shown = with_column_aliases(outputs, tuple(node.alias_column_names))
        path = () if node.alias else tuple(part.name for part in node.parts)
        items = (Item(node.alias_or_name, shown, path),)
        return State((relation,), Group(relation.ids), items)

    def _recursive_cte(self, node: exp.Table, known: Environment) -> State:
        query = exp.select("*").from_(exp.to_table(node.name, dialect="duckdb"))
        client = self.pusher.only_client(query, known)
        if client is None:
            raise plan_error(
                f"the recursive {node.name} does not read the tables of just one client",
                self.sql,
                node,
                "make it a view in one party's database",
            )
        block = self._whole(query, known, client)
        relation = replace(block.relations[0], name=node.alias_or_name)
        shown = with_column_aliases(block.outputs, tuple(node.alias_column_names))
        return State((relation,), Group(relation.ids), (Item(node.alias_or_name, shown),))

    def _derived(
        self, node: exp.Expr, query: exp.Query, known: Environment, columns: tuple[str, ...]
    ) -> list[State]:
        blocks = self.bind(query, known, derived=True)
        name = node.alias_or_name
        if len(blocks) > 1 and all(len(b.relations) == 1 for b in blocks):
            blocks = (self._stacked(blocks, name or "u", span_of(node, self.sql)),)
        blocks = unify_blocks(blocks, self.sql, self.catalog)
        aliases = tuple(node.alias_column_names) or columns
        states = []
        for block in blocks:
            relations = block.relations
            if len(relations) == 1 and name:
                relations = (replace(relations[0], name=name),)
            shown = with_column_aliases(block.outputs, aliases)
            states.append(State(relations, block.tree, (Item(name, shown),)))
        return states

    def _stacked(self, blocks: tuple[Block, ...], name: str, span: tuple[int, int] | None) -> Block:
        """A union of blocks of one relation each, as one relation with all their branches."""
        id_ = self._id("#")
        branches: list[Branch] = []
        for block in blocks:
            filtered = with_filters(block.relations[0], block.tree.conditions)
            for branch in filtered.branches:
                columns = {
                    (id_, o.name.lower()): substituted(o.term, branch).expression
                    for o in block.outputs
                }
                branches.append(replace(branch, columns=columns))
        relation = Relation((id_,), name, span, tuple(branches))
        outputs = tuple(
            replace(o, term=Term(column(o.name, id_), o.term.span)) for o in blocks[0].outputs
        )
        return Block((relation,), Group(relation.ids), outputs, span=span)


def _is_from(node: exp.Expr) -> bool:
    """Whether it is a table or joins, in parentheses or not, and no SELECT."""
    if isinstance(node, exp.Subquery):
        return bool(node.args.get("joins")) or _is_from(node.this)
    return isinstance(node, exp.Table)


def _said(error: PartyError) -> str:
    return error.message.split("\n")[0].partition(": ")[2] or error.message


def _derived_name(projection: exp.Expr) -> str:
    if isinstance(projection, exp.Column):
        return projection.name
    if isinstance(projection, exp.Dot):
        return str(projection.expression.name)
    return to_sql(strip_parties(projection))
