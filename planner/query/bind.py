"""Bind the syntax tree to blocks: resolve names, and dissolve derived tables and CTEs.

A query that one client can answer alone, and that is no select-project-join, goes to the client
whole, as one source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.contract.fragment_columns import GROUP_KEY, RESERVED
from sqlfl.contract.schema import Client, Column, folded
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.parsing import is_from, joins_of, unions_of
from sqlfl.planner.grammar.refusals import (
    HINTS,
    INSIDE,
    Refusal,
    has_hints,
    has_outer_join,
    refusals,
)
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.trees import nodes, plan_error, span_of
from sqlfl.planner.query import emit
from sqlfl.planner.query.asof import AsofJoins
from sqlfl.planner.query.batches import BatchedCatalog
from sqlfl.planner.query.clock import Clock
from sqlfl.planner.query.cohorts import Cohorts, without_semi_joins
from sqlfl.planner.query.columns import (
    distinct,
    named_alike,
    settled,
    types_of,
    unify_blocks,
    with_column_aliases,
)
from sqlfl.planner.query.constants import Constants, alone, called
from sqlfl.planner.query.correlated import CorrelatedAggregates
from sqlfl.planner.query.ctes import Cte, Environment, is_unstable, repeated, spread, with_ctes
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.equalities import is_bytewise
from sqlfl.planner.query.flattening import flattened
from sqlfl.planner.query.grouped_joins import check_inferred, grouped_join
from sqlfl.planner.query.groups import as_grouped, is_grouped, is_pivot_of_groups, is_unpivot
from sqlfl.planner.query.joins import Joiner, State, renamed
from sqlfl.planner.query.laterals import Laterals, in_turn, is_lateral
from sqlfl.planner.query.names import CatalogTables
from sqlfl.planner.query.nulls import TYPES, typed
from sqlfl.planner.query.projections import outputs_of
from sqlfl.planner.query.push import Pusher
from sqlfl.planner.query.relations import (
    ClientBranch,
    DraftBlock,
    DraftRelation,
    Group,
    Item,
    Output,
    Term,
    column,
    ids_of,
    substituted,
    with_filters,
)
from sqlfl.planner.query.scalars import ROWS, SCALAR, UNBOUND, Asker, claimed, has_calls, unrolled
from sqlfl.planner.query.scopes import Scope
from sqlfl.planner.query.sources import Sources
from sqlfl.planner.query.ucq import groups_of

MAX_BLOCKS = 1024
_PIVOT = (
    "values and the column after ON are of one table, whose keys of the join GROUP BY determines: "
    "PIVOT (SELECT a.id, b.kind, b.x FROM party.a JOIN other.b ON b.id = a.id) ON kind IN ('u', "
    "'v') USING sum(x) GROUP BY id; else join a PIVOT of one party's table"
)
"""The hint for a PIVOT over tables of several parties."""


class Binder:
    """Binder of one query; numbers its relations and sources."""

    def __init__(
        self, sql: str, catalog: BatchedCatalog, clock: Clock, careful: bool = False
    ) -> None:
        """`careful`: each SELECT asks the parties at once whether its columns have one value per
        row."""
        self.sql = sql
        self.catalog = catalog
        self.tables = CatalogTables(catalog, sql)
        self.pusher = Pusher(self.tables, sql, clock)
        self.joiner = Joiner(self.pusher, sql, catalog)
        self.asker = Asker(catalog)
        self.careful = careful
        self.claims: list[Term] = []
        """Terms over several relations that must be one value per row."""
        self.sources = Sources(self.pusher, sql, self._columns)
        self.constants = Constants(self.pusher)
        self.remarks: list[str] = []
        self.laterals = Laterals(
            self.sources, self._aggregates, self._from, self.joiner, self.asker, self._types
        )
        self.asof = AsofJoins(self.sources, catalog, self.joiner, self.remarks)

    def bind(
        self, query: exp.Query, environment: Environment | None = None, derived: bool = False
    ) -> tuple[DraftBlock, ...]:
        """Return the query as a union of blocks; outputs of all have the first one's names.

        `derived` says that other parts of the query refer only to its outputs.
        """
        if isinstance(query, exp.Pivot):
            grouped = self.sources.without_pivot(query, environment or {})
            if grouped is None:
                return (self._pivot(query, environment or {}),)
            query = grouped
        if not isinstance(query, exp.Query):
            raise self.sources.no_select(query)
        if environment is None:
            self._refuse_marks(query)
        known = with_ctes(query, environment or {})
        if isinstance(query, exp.Subquery) and not query.args.get("joins"):
            return self.bind(query.this, known, derived)
        if isinstance(query, exp.Select):
            query = self.sources.without_pivots(query, known)
        exists = without_semi_joins(query) if isinstance(query, exp.Select) else None
        if exists is not None and self.pusher.only_client(query, known) is None:
            query = exists
        if (cte := repeated(query, environment or {})) is not None:
            client = self.pusher.only_client(query, known)
            if client is not None:
                return (self.sources.whole(query, known, client),)
            if spread(query, cte):
                raise self._twice(cte)
        if (whole := self._of_one_client(query, known, derived)) is not None:
            return whole
        if isinstance(query, exp.SetOperation):
            return self._union(query, known, derived)
        if not isinstance(query, exp.Select):
            raise self.sources.no_select(query)
        try:
            asked = self.careful or has_hints(query)
            return self._asked(query, known) if asked else self._select(query, known)
        except PlanError as error:
            return (self._whole_or(error, query, known),)

    def _of_one_client(
        self, query: exp.Query, known: Environment, derived: bool
    ) -> tuple[DraftBlock, ...] | None:
        """Return the query as its one client runs it, if it must; None if it can be dissolved.
        Raise PlanError if neither is possible.
        """
        found = [*refusals(query)]
        others = [
            r
            for r in found
            if not (is_lateral(r.node) or r.of_join)
            and not (r.of_rows and self.constants.is_constant(alone(r.node), known))
        ]
        blocker = next(iter(others), None) or self._distinct_union(query)
        outer = has_outer_join(query)
        hinted = isinstance(query, exp.Select) and has_hints(query)
        if not (found or blocker is not None or self._recursive(query) or outer or hinted):
            return None
        client = self.pusher.only_client(query, known)
        if client is not None and not (found or hinted) and outer and not derived:
            return self._together(query, known, client)
        if client is not None:
            return (self.sources.whole(query, known, client),)
        if blocker is not None and (merged := self._merged(query, known)) is not None:
            return (merged,)
        if blocker is not None and (blocks := self._grouped_join(query, known)) is not None:
            return blocks
        if blocker is not None:
            raise self._refuse(blocker, query, known)
        return None

    def _merged(self, query: exp.Query, known: Environment) -> DraftBlock | None:
        """Return a GROUP BY over one table of a party with several databases, or an UNPIVOT of its
        rows; None for others.
        """
        clients = self.pusher.clients(query, known)
        if is_unpivot(query, known):
            return self.sources.each(query, known, clients)
        grouped = as_grouped(query)
        if not is_grouped(grouped, known):
            return None
        assert isinstance(grouped, exp.Select)
        if len({client.party for client in clients}) != 1:
            return None
        block = self.sources.merged(grouped, known, clients)
        for branch in block.relations[0].branches:
            self._refuse_collated(branch, grouped)
        return block

    def _grouped_join(self, query: exp.Query, known: Environment) -> tuple[DraftBlock, ...] | None:
        """Return a GROUP BY over tables of several parties as a join with groups; else None."""

        def columns(item: exp.Expr) -> frozenset[str]:
            (read,) = self._item(item, known, None)[0].items
            return frozenset(folded(name) for name, _ in (*read.columns, *read.hidden))

        def clients(item: exp.Expr) -> tuple[Client, ...]:
            return self.pusher.clients(item, known)

        whole = as_grouped(query)
        query = flattened(whole, known) if isinstance(whole, exp.Select) else query
        made = grouped_join(query, columns, clients, self.sql)
        if made is None:
            return None
        blocks = []
        draft = Draft(exp.select(), self.sql, self.catalog, None, (), False)
        for block in self.bind(made.select, known):
            check_inferred(made, block, draft, query.args["group"])
            items = [item for item in block.items if folded(item.name) in made.items]
            grouped = {name for item in items for _, term in item.columns for name in ids_of(term)}
            relations = (
                replace(relation, single=True) if grouped & {*relation.ids} else relation
                for relation in block.relations
            )
            blocks.append(replace(block, relations=tuple(relations)))
        return tuple(blocks)

    def _refuse_collated(self, branch: ClientBranch, query: exp.Select) -> None:
        """Refuse groups of texts that only a collation makes equal: no database has all of them."""
        (source,) = branch.sources
        groups = groups_of(source.item)
        assert groups is not None
        own = replace(branch, sources=(replace(source, item=exp.Subquery(this=groups.this)),))
        for described in self.catalog.describe(branch.client, to_sql(groups.this)):
            key = column(described.name, source.id)
            text = described.name.startswith(GROUP_KEY) and described.type == "VARCHAR"
            if text and not is_bytewise(self.catalog, own, key):
                raise plan_error(
                    "GROUP BY over several databases compares texts byte by byte, and a collation "
                    "makes unlike texts equal",
                    self.sql,
                    query.args["group"],
                    "group by the text in one spelling, GROUP BY lower(column)",
                )

    def _pivot(self, pivot: exp.Pivot, known: Environment) -> DraftBlock:
        """Return the PIVOT or UNPIVOT of a derived table: `FROM (PIVOT party.table ...)`."""
        query = exp.select("*").from_(exp.Subquery(this=pivot.copy()), copy=False)
        client = self.pusher.only_client(query, known)
        if client is not None:
            return self.sources.whole(query, known, client)
        clients = self.pusher.clients(query, known)
        block = self.sources.each(query, known, clients) if is_unpivot(pivot, known) else None
        if block is None:
            clause = "UNPIVOT" if pivot.args.get("unpivot") else "PIVOT"
            raise self._refuse(Refusal(clause, pivot, INSIDE), query, known)
        return block

    # -- refusals ----------------------------------------------------------------------------------

    def _refuse_marks(self, query: exp.Query) -> None:
        """Relations and sources are called so while the query is worked on."""
        for node in nodes(query, exp.Identifier):
            if emit.MARKED.fullmatch(node.name):
                raise plan_error(
                    f"the name {node.name} is taken by the planner itself",
                    self.sql,
                    node,
                    "give it another alias; call a column otherwise in a view",
                )

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

    def _twice(self, cte: Cte) -> PlanError:
        return plan_error(
            f"{cte.name} is named more than once, and may have other rows each time that it is "
            "evaluated: a sample, a LIMIT without ORDER BY, or an aggregate of rows in no order",
            self.sql,
            cte.node,
            "name it once, in one party's derived table: FROM (SELECT ... FROM "
            f"{cte.name} AS p JOIN {cte.name} AS q ON ...) AS t JOIN ...; or order its rows",
        )

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
            if found.what == "PIVOT":
                hint = (
                    "write each column as an aggregate with FILTER, which takes the rows of all "
                    "clients: JOIN (SELECT key, sum(x) FILTER (kind = 'a') AS a FROM party.table "
                    "GROUP BY key) AS u ON u.key = t.key"
                )
        else:
            over = f"{' and '.join(parties)} together" if parties else "what is no party's table"
            message, hint = f"{found.what} cannot be done over {over}", found.hint
            if is_pivot_of_groups(query):
                message, hint = f"PIVOT cannot be done over {over}", _PIVOT
        return plan_error(message, self.sql, found.node, hint)

    # -- queries -----------------------------------------------------------------------------------

    def _whole_or(self, error: PlanError, query: exp.Query, known: Environment) -> DraftBlock:
        """Return a query of one client that cannot be dissolved, as its database runs it."""
        try:
            client = self.pusher.only_client(query, known)
            if client is not None:
                return self.sources.whole(query, known, client)
        except PlanError:
            pass
        raise error

    def _together(
        self, query: exp.Query, known: Environment, client: Client
    ) -> tuple[DraftBlock, ...]:
        """Return the query as one relation, with the LEFT JOINs in its FROM; else as one source."""
        try:
            assert isinstance(query, exp.Select)
            blocks = self._select(query, known)
            if self.careful and any(self._others(block) for block in blocks):
                return (self.sources.whole(query, known, client),)
        except PlanError:
            return (self.sources.whole(query, known, client),)
        if len(blocks) == 1 and all(r.client == client for r in blocks[0].relations):
            return (replace(blocks[0], together=True),)
        return (self.sources.whole(query, known, client),)

    def _union(
        self, query: exp.SetOperation, known: Environment, derived: bool
    ) -> tuple[DraftBlock, ...]:
        unions = [(query, known)]
        first: tuple[DraftBlock, ...] | None = None
        for union in unions_of(query)[1:]:
            known = with_ctes(union, known)
            first = self._of_one_client(union, known, derived)
            if first is not None:
                break
            unions.append((union, known))
        parts = [(union.right, known) for union, known in reversed(unions)]
        if first is None:
            innermost, known = unions[-1]
            first, *others = self._each([(innermost.left, known), *parts], derived)
        else:
            others = self._each(parts, derived)
        found = first
        for (union, _), blocks in zip(reversed(unions), others, strict=True):
            if union.args.get("by_name"):
                found = named_alike(found, blocks, union.right, self.sql)
            else:
                names = [output.name for output in found[0].outputs]
                found = (*found, *(self._alike(block, names, union) for block in blocks))
        return found

    def _each(
        self, parts: Sequence[tuple[exp.Query, Environment]], derived: bool
    ) -> list[tuple[DraftBlock, ...]]:
        """Bind the parts of a union, whose databases describe them together."""

        def tried(part: exp.Query, known: Environment) -> tuple[DraftBlock, ...]:
            other = Binder(self.sql, self.catalog, self.pusher.clock, self.careful)
            return other.bind(part, known, derived)

        return self.catalog.each(
            [partial(self.bind, *part, derived) for part in parts],
            [partial(tried, *part) for part in parts],
        )

    def _alike(self, block: DraftBlock, names: list[str], union: exp.SetOperation) -> DraftBlock:
        """Return a block of the right operand with the names of the first one's columns."""
        if len(block.outputs) != len(names):
            raise plan_error(
                f"the parts of a UNION ALL must have the same number of columns, got "
                f"{len(names)} and {len(block.outputs)}",
                self.sql,
                union.right,
                "select the same columns in each part, in the same order",
            )
        outputs = (replace(o, name=n) for o, n in zip(block.outputs, names, strict=True))
        return replace(block, outputs=tuple(outputs))

    def _select(self, select: exp.Select, known: Environment) -> tuple[DraftBlock, ...]:
        from_ = select.args.get("from_")
        if from_ is None:
            raise plan_error(
                "the SELECT reads no table: FROM is missing",
                self.sql,
                select,
                "SELECT ... FROM party.table",
            )
        where = select.args.get("where")
        condition = None if where is None else where.this
        states = self._from(from_.this, select.args.get("joins") or [], known, None, condition)
        return tuple(self._block(select, state, known) for state in states)

    def _block(self, select: exp.Select, state: State, known: Environment) -> DraftBlock:
        scope = state.scope(self.sql)
        aggregates = self._aggregates(known)
        outputs, written = outputs_of(
            select.expressions,
            scope,
            self.pusher,
            known,
            lambda value, named: aggregates.replaced(value, state, named),
            partial(self._types, state),
        )
        where = select.args.get("where")
        named = scope.with_aliases(written)
        rest = None if where is None else aggregates.condition(where.this, state, named)
        state = aggregates.joined(state)
        if rest is not None:
            state, rest = aggregates.cohorts.taken(rest, state, named)
        tree = state.tree
        if rest is not None:
            condition = self.pusher.term(rest, named, known)
            if condition.span is None:  # of conditions that stand for others
                condition = replace(condition, span=span_of(where, self.sql))
            tree = replace(tree, conditions=(*tree.conditions, condition))
        span = span_of(select, self.sql)
        sorted_by = self._order(select, scope.with_aliases(written), known)
        relations, several = claimed(state.relations, [*outputs, *sorted_by])
        self.claims += several
        block = DraftBlock(relations, tree, tuple(outputs), state.items, span)
        return replace(block, sorted_by=sorted_by)

    def _columns(self, query: exp.Query, known: Environment) -> tuple[Column, ...]:
        """Return the columns of a query, with their types."""
        binder = Binder(self.sql, self.catalog, self.pusher.clock, self.careful)
        blocks = unify_blocks(binder.bind(query, known, derived=True), self.sql, self.catalog)
        draft = Draft(exp.select(), self.sql, self.catalog, None, (), False)
        names = distinct([output.name for output in blocks[0].outputs])
        types = types_of(draft, blocks[0])
        return tuple(Column(name, type_) for name, type_ in zip(names, types, strict=True))

    def _types(self, state: State, term: Term) -> tuple[str, ...]:
        """Return the types of a term at the databases of its relation; none if it reads several."""
        read = [r for r in state.relations if ids_of(term) & {*r.ids}]
        draft = Draft(exp.select(), self.sql, self.catalog, None, (), False)
        return draft.types(read[0], [term])[0] if len(read) == 1 else ()

    def _aggregates(self, known: Environment) -> CorrelatedAggregates:
        cohorts = Cohorts(self.pusher, self.sql, known, self._from, self._derived, self.remarks)
        return CorrelatedAggregates(
            self.sources, self.catalog, known, self._from, cohorts, self.remarks
        )

    # -- functions ---------------------------------------------------------------------------------

    def _asked(self, select: exp.Select, known: Environment) -> tuple[DraftBlock, ...]:
        """Bind as `_select`, after the parties have described its functions."""
        blocks = self._select(select, known)
        found = [self._others(block) for block in blocks]
        if not any(found):
            return blocks
        client = self.pusher.only_client(select, known)
        if client is not None:
            return (self.sources.whole(select, known, client),)
        done = [
            (unrolled(block, [o for o, _ in others], self.sources.fresh) if others else block)
            if all(kind == ROWS for _, kind in others)
            else None
            for block, others in zip(blocks, found, strict=True)
        ]
        made = tuple(block for block in done if block is not None)
        if len(made) == len(blocks):
            return made
        output, kind = next(others[0] for b, others in zip(done, found, strict=True) if b is None)
        raise self._refuse(Refusal(kind, output.term.span, HINTS[kind]), select, known)

    def _order(self, select: exp.Select, scope: Scope, known: Environment) -> tuple[Output, ...]:
        """Return the outputs that ORDER BY computes. Rows need no order, but an aggregate there
        makes one row of all.
        """
        order = select.args.get("order")
        if order is None:
            return ()
        called = [ordered.this for ordered in order.expressions if has_calls(ordered.this)]
        return tuple(Output("", self.pusher.term(node, scope, known)) for node in called)

    def _others(self, block: DraftBlock) -> list[tuple[Output, str]]:
        """Return the columns with another number of values than one per row, and their kinds."""
        kinds = (
            (output, self.asker.kind_over(block.relations, output.term))
            for output in (*block.outputs, *block.sorted_by)
            if has_calls(output.term.expression)
        )
        return [(output, kind) for output, kind in kinds if kind not in (SCALAR, UNBOUND)]

    # -- FROM --------------------------------------------------------------------------------------

    def _from(
        self,
        first: exp.Expr,
        joins: list[exp.Join],
        known: Environment,
        outer: Scope | None,
        where: exp.Expr | None = None,
    ) -> list[State]:
        """Read FROM. `outer` is the FROM before the parentheses around this one; `where` is the
        condition after it.
        """
        joins = list(in_turn(joins))
        homes = self.constants.homes(first, joins, known, where)
        states = self._placed(first, homes, known, outer)
        for place, join in enumerate(joins):
            lateral = id(join.this) not in homes and is_lateral(join.this)
            if lateral or join.method.upper() == "ASOF":
                whole = self._so_far(states, first, joins[: place + 1], known)
                states = whole or self._beside(states, join, known, outer, where)
                continue
            if join.side.upper() == "FULL":
                self._refuse_unstable([first, *(j.this for j in joins[: place + 1])], known)
            if any(joins_of(join.this)):
                states = self._with_nested(states, join, known, outer)
            else:
                others = self._placed(join.this, homes, known, outer)
                self._check_size(len(states) * len(others), join)
                states = self.joiner.joined(states, others, join, known, outer)
            self._check_size(len(states), join)
        return states

    def _with_nested(
        self, states: list[State], join: exp.Join, known: Environment, outer: Scope | None
    ) -> list[State]:
        """Join with joins in parentheses, whose ON may name tables before them."""
        joined: list[State] = []
        for state in states:
            before = outer if join.side.upper() == "RIGHT" else state.scope(self.sql, outer)
            others = self._item(join.this, known, before)
            if len(states) == 1:
                return self.joiner.joined(states, others, join, known, outer)
            self.joiner.check(states, others, join)
            for other in others:
                joined += self.joiner.join(state, other, join, known, outer)
            self._check_size(len(joined), join)
        return joined

    def _check_size(self, count: int, join: exp.Join) -> None:
        if count > MAX_BLOCKS:
            raise plan_error(
                f"the joins of unions make more than {MAX_BLOCKS} blocks",
                self.sql,
                join.this,
                "join fewer unions, or make each one table in a party's database",
            )

    def _so_far(
        self, states: list[State], first: exp.Expr, joins: list[exp.Join], known: Environment
    ) -> list[State]:
        """Return the joins so far as one query of the client that has all of their tables.

        Return none if several clients have them, or if a column is joined by its name.
        """
        query = exp.select("*").from_(first.copy())
        query.set("joins", [join.copy() for join in joins])
        client = self.pusher.only_client(query, known)
        by_name = any(j.args.get("using") or j.method.upper() == "NATURAL" for j in joins_of(query))
        if client is None or by_name or len(states) != 1 or joins[-1].method.upper() != "ASOF":
            return []
        items = (*states[0].items, *self._item(joins[-1].this, known, None)[0].items)
        named = [(item, name) for item in items for name, _ in item.columns]
        if len({folded(item.name) for item in items}) < len(items):
            return []
        shown = [exp.column(name, table=item.name, quoted=True) for item, name in named]
        query.set("expressions", [exp.alias_(c, f"{RESERVED}c{n}") for n, c in enumerate(shown)])
        block = self.sources.whole(query, known, client)
        terms = iter([output.term for output in block.outputs])
        items = tuple(
            replace(item, columns=tuple((n, next(terms)) for n, _ in item.columns), hidden=())
            for item in items
        )
        relation = replace(block.relations[0], name=items[0].name)
        return [State((relation,), block.tree, items)]

    def _beside(
        self,
        states: list[State],
        join: exp.Join,
        known: Environment,
        outer: Scope | None,
        where: exp.Expr | None,
    ) -> list[State]:
        """Join an item that reads the tables before it, or by ASOF."""
        if join.method.upper() == "ASOF":
            rights = self._item(join.this, known, outer)
            self.joiner.check(states, rights, join)
            return [
                self.asof.joined(state, right, join, known, outer, where)
                for state in states
                for right in rights
            ]
        return [
            joined for state in states for joined in self.laterals.joined(state, join, known, outer)
        ]

    def _refuse_unstable(self, items: list[exp.Expr], known: Environment) -> None:
        """Raise PlanError if the rows of a FULL JOIN may change: both sides are read twice."""
        item = next((item for item in items if is_unstable(item, known)), None)
        if item is not None:
            raise plan_error(
                "a side of a FULL JOIN may have other rows each time that it is evaluated: a "
                "sample, a LIMIT without ORDER BY, or an aggregate of rows in no order",
                self.sql,
                item,
                "order its rows, or make it a table in its party's database",
            )

    def _placed(
        self, node: exp.Expr, homes: dict[int, Client], known: Environment, outer: Scope | None
    ) -> list[State]:
        """Return an item of FROM; constants become a query of the client that gets them."""
        client = homes.get(id(node))
        if client is None:
            return self._item(node, known, outer)
        bare = node.copy()
        query = exp.select("*").from_(bare, copy=False)
        block = self.sources.whole(query, known, client)
        name = called(node)
        relation = replace(block.relations[0], name=name or "constants")
        shown = tuple((output.name, output.term) for output in block.outputs)
        return [State((relation,), block.tree, (Item(name, shown),))]

    def _item(self, node: exp.Expr, known: Environment, outer: Scope | None) -> list[State]:
        nested = node.args.get("joins") or []
        if nested:
            bare = node.copy()
            bare.set("joins", None)
            return self._from(bare, nested, known, outer)
        if node.args.get("pivots"):
            bare = node.copy()
            (*_, last) = bare.args["pivots"]
            named = exp.Subquery(this=exp.select("*").from_(bare), alias=last.args.get("alias"))
            last.set("alias", None)
            return self._derived(named, named.this, known, ())
        if isinstance(node, exp.Subquery) and is_from(node.this):
            states = self._item(node.this, known, outer)
            return states if not node.alias else [renamed(s, node, self.sql) for s in states]
        if isinstance(node, exp.Subquery):
            return self._derived(node, node.this, with_ctes(node, known), ())
        if not isinstance(node, exp.Table):
            raise plan_error(
                "FROM joins tables of parties: party.table",
                self.sql,
                node,
                "make it a table or a view in a party's database",
            )
        if not node.db:
            cte = known.get(folded(node.name))
            if cte is None:
                raise self.pusher.nameless(node)
            if cte.calls_itself:
                return [self._recursive_cte(node, known)]
            return self._derived(node, cte.query, cte.environment, cte.columns)
        return [self.sources.table(node)]

    def _recursive_cte(self, node: exp.Table, known: Environment) -> State:
        query = exp.select("*").from_(exp.Table(this=trees.identifier(node.name)))
        client = self.pusher.only_client(query, known)
        if client is None:
            raise plan_error(
                f"the recursive {node.name} does not read the tables of just one client",
                self.sql,
                node,
                "make it a view in one party's database",
            )
        block = self.sources.whole(query, known, client)
        relation = replace(block.relations[0], name=node.alias_or_name)
        shown = with_column_aliases(block.outputs, node.alias_column_names, node, self.sql)
        return State((relation,), Group(relation.ids), (Item(node.alias_or_name, shown),))

    def _derived(
        self, node: exp.Expr, query: exp.Query, known: Environment, columns: tuple[str, ...]
    ) -> list[State]:
        blocks = self.bind(query, known, derived=True)
        name = node.alias_or_name
        if len(blocks) > 1 and all(len(b.relations) == 1 for b in blocks):
            blocks = (self._stacked(blocks, name or "u", span_of(node, self.sql)),)
        blocks = tuple(settled(b) for b in unify_blocks(blocks, self.sql, self.catalog))
        aliases = tuple(node.alias_column_names) or columns
        states = []
        for block in blocks:
            relations = block.relations
            if len(relations) == 1 and name:
                relations = (replace(relations[0], name=name),)
            shown = with_column_aliases(block.outputs, aliases, node, self.sql)
            states.append(State(relations, block.tree, (Item(name, shown),)))
        return states

    def _stacked(
        self, blocks: tuple[DraftBlock, ...], name: str, span: tuple[int, int] | None
    ) -> DraftBlock:
        """Return a union of blocks of one relation each, as one relation with all their
        branches.
        """
        id_ = self.sources.fresh("#")
        branches: list[ClientBranch] = []
        for block in blocks:
            filtered = with_filters(block.relations[0], block.tree.conditions)
            for branch in filtered.branches:
                columns = {
                    (id_, folded(o.name)): substituted(o.term, branch).expression
                    for o in block.outputs
                }
                branches.append(replace(branch, columns=columns))
        relation = DraftRelation((id_,), name, span, tuple(branches))
        outputs = tuple(
            replace(o, term=Term(_united(o.name, id_, branches), o.term.span))
            for o in blocks[0].outputs
        )
        return DraftBlock((relation,), Group(relation.ids), outputs, span=span)


def _united(name: str, id_: str, branches: list[ClientBranch]) -> exp.Column:
    """Return a column of a union. Its types are known if each part is a column of known types."""
    types = [b.columns[id_, folded(name)].meta_get(TYPES) for b in branches]
    united = column(name, id_)
    return united if None in types else typed(united, dict.fromkeys(t for ts in types for t in ts))
