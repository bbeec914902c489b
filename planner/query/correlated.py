"""Aggregates over another party's rows with an equal key, as LEFT JOINs to one row for each key.

`(SELECT avg(u.z) FROM b.u AS u WHERE u.k = t.k)` becomes a column of `(SELECT k, avg(z) FROM u
GROUP BY k)`, which the party of u evaluates. Where t has no partner that is NULL, a count is 0.
Windows of days are keys of rows that are repeated (`windows`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.contract.fragment_columns import GROUP_KEY, RESERVED
from sqlfl.contract.schema import Client, folded
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.refusals import function_name, is_aggregate, own_nodes
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.trees import nodes, plan_error, span_of
from sqlfl.planner.query import types
from sqlfl.planner.query.batches import BatchedCatalog
from sqlfl.planner.query.cohorts import (
    Cohorts,
    Presence,
    existing,
    is_cohort,
    scope_within,
)
from sqlfl.planner.query.ctes import Environment, with_ctes
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.equalities import (
    BYTES,
    collation,
    common,
    compared_text,
    conjuncts,
    equality,
)
from sqlfl.planner.query.existence import (
    OF_ROWS,
    ExistenceParter,
    conditions_of,
    counted_rows,
    is_bounded,
)
from sqlfl.planner.query.groups import is_grouped, is_of_rows, outermost_aggregates
from sqlfl.planner.query.joins import State
from sqlfl.planner.query.memberships import Membership, memberships
from sqlfl.planner.query.push import OF_ONE_PARTY, Pusher
from sqlfl.planner.query.relations import (
    DraftBlock,
    DraftRelation,
    Group,
    OuterJoin,
    Term,
    clients_of,
    column,
    ids_of,
    operand,
    substituted,
    with_filters,
)
from sqlfl.planner.query.scopes import Scope
from sqlfl.planner.query.sources import Sources
from sqlfl.planner.query.windows import GOVERNED, GOVERNED_HINT, Sides, Step, Window, step_of

_CLAUSES = frozenset(("with_", "expressions", "from_", "joins", "where", "having", "distinct"))
OVER_NONE = {
    "approx_count_distinct": 0,
    "count": 0,
    "count_star": 0,
    "entropy": 0,
    "regr_count": 0,
}
"""Values that aggregates of DuckDB have over no rows; all others have NULL."""
_SEVERAL = (exp.In, exp.Exists, exp.Any, exp.All, exp.Lambda, exp.Comprehension)
"""Nodes below which a subquery may give several rows, or may read variables."""
_KEY, _VALUE = GROUP_KEY, f"{RESERVED}value_"
"""Names of columns of a derived table: what it groups by, and aggregates."""
_COLLATION = "VARCHAR COLLATE "
"""Begin of the type of a text that has a collation."""


@dataclass(frozen=True)
class _Key:
    """An equality of a value of the subquery's rows with a value of outside."""

    inner: exp.Expr
    """As it is written."""
    outer: Term
    nulls: bool
    """NULL equals NULL."""
    parts: bool
    """They are parts of rows."""

    def equality(self, own: exp.Expr) -> exp.Expr:
        """The condition, with a column in place of the value of the subquery's rows."""
        sides = [operand(own.copy()), operand(self.outer.expression.copy())]
        if self.parts:
            sides = [exp.Tuple(expressions=[side]) for side in sides]
        kind = exp.NullSafeEQ if self.nulls and not self.parts else exp.EQ
        return kind(this=sides[0], expression=sides[1])


@dataclass(frozen=True)
class _Grouped:
    """Rows that subqueries aggregate by keys: a derived table in the making."""

    id: str
    """Id of its relation."""
    name: str
    node: exp.Expr
    """The first of the subqueries."""
    clients: tuple[Client, ...]
    """The databases of the rows; several are of one party."""
    rows: exp.Select
    """FROM and WHERE."""
    keys: tuple[_Key, ...]
    on: tuple[Term, ...]
    """Conditions on columns of outside alone."""
    steps: tuple[Step, ...] = ()
    """Windows, each with a key."""
    calls: dict[str, exp.Expr] = field(default_factory=dict)
    """Aggregates, by their text; of a lookup values of its rows."""
    lookup: bool = False
    """True if the rows are not aggregated, and each key has one at most."""

    @property
    def identity(self) -> tuple[object, ...]:
        keys = ((to_sql(k.inner), to_sql(k.outer.expression), k.nulls, k.parts) for k in self.keys)
        return (
            self.lookup,
            self.clients,
            to_sql(self.rows),
            *keys,
            *(to_sql(term.expression) for term in self.on),
        )

    def select(self, compared: Mapping[int, str]) -> exp.Select:
        """The derived table; the keys at these places are compared as these types."""
        by = [_as(key.inner.copy(), compared.get(n)) for n, key in enumerate(self.keys)]
        shown = [exp.alias_(e, f"{_KEY}{n}", copy=True) for n, e in enumerate(by)]
        calls = self.calls.values()
        shown += [exp.alias_(call.copy(), f"{_VALUE}{n}") for n, call in enumerate(calls)]
        select = self.rows.copy()
        select.set("expressions", shown)
        if not self.lookup:
            select.set("group", exp.Group(expressions=by))
        return select


@dataclass(frozen=True)
class _Inner:
    """What names in a subquery mean: its own FROM, then what stands around it."""

    pusher: Pusher
    scope: Scope
    known: Environment
    clients: tuple[Client, ...]
    relations: tuple[DraftRelation, ...]
    """Relations of its FROM."""

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(id_ for relation in self.relations for id_ in relation.ids)

    def term(self, node: exp.Expr) -> Term:
        return self.pusher.term(node, self.scope, self.known)

    def holds(self, node: exp.Expr) -> bool:
        """Return whether the expression names columns of the subquery alone."""
        try:
            term = self.pusher.term(node, replace(self.scope, outer=None), self.known)
        except PlanError:  # a column of outside may be a constant, of which the term tells nothing
            return False
        return set(clients_of(term.expression)) <= {*self.clients} and ids_of(term) <= self.ids

    @property
    def sides(self) -> Sides:
        return Sides(self.holds, lambda node: self.outside(node) is not None)

    def outside(self, node: exp.Expr) -> Term | None:
        """The expression, where it reads no rows of the subquery."""
        term = self.term(node)
        return None if clients_of(term.expression) or ids_of(term) & self.ids else term


class CorrelatedAggregates:
    """Takes correlated aggregates out of the expressions of one SELECT."""

    def __init__(
        self,
        sources: Sources,
        catalog: BatchedCatalog,
        known: Environment,
        read: Callable[[exp.Expr, list[exp.Join], Environment, Scope | None], list[State]],
        cohorts: Cohorts,
        remarks: list[str],
    ) -> None:
        """`read` reads a FROM; `cohorts` the subqueries of EXISTS. EXPLAIN says the `remarks`."""
        self._sources, self._pusher, self._sql = sources, sources.pusher, sources.sql
        self._known, self._read, self._catalog = known, read, catalog
        self._draft = Draft(exp.select(), sources.sql, catalog, None, (), False)
        self._parter = ExistenceParter(self._pusher, known, read, self._draft)
        self._found: dict[tuple[object, ...], _Grouped] = {}
        self.cohorts, self._present = cohorts, list[Presence]()
        self._remarks = remarks

    def condition(self, node: exp.Expr, state: State, scope: Scope) -> exp.Expr:
        """Return `replaced` for a condition of WHERE, in which EXISTS and IN by themselves stay."""
        if node.find(exp.Exists, exp.In, exp.Any, exp.All) is None:
            return self.replaced(node, state, scope)
        parts = (
            part
            if self._is_cohort(part) and not self._has_windows(part, state, scope)
            else self.replaced(part, state, scope, decides=True)
            for whole in conjuncts(node)
            for part in self._parted(whole, state, scope)
        )
        return exp.and_(*(part.copy() for part in parts), copy=False)

    def _is_cohort(self, part: exp.Expr) -> bool:
        """Return whether `Cohorts` takes the condition: a subquery over one table, or a join that
        no database can make."""
        if is_cohort(part):
            return True
        query = existing(part)
        return query is not None and len(self._pusher.clients(query, self._known)) > 1

    def _parted(self, part: exp.Expr, state: State, scope: Scope) -> Sequence[exp.Expr]:
        """Return EXISTS or IN over several parties' tables as one EXISTS for each party; another
        condition as it is.
        """
        exists: exp.Expr | None = part.unnest()
        member = next(memberships(part, True), None)
        if member is not None and member.node is exists and not member.negated:
            exists = self._member(member, state, scope)
        if not isinstance(exists, exp.Exists):
            return [part]
        return self._parter.parts(exists, state, scope) or [part]

    def replaced(
        self, node: exp.Expr, state: State, scope: Scope, *, decides: bool = False
    ) -> exp.Expr:
        """The expression with columns of the tables that `joined` adds in place of subqueries.
        `decides`: NULL has the same effect as FALSE.
        """
        if node.find(exp.Subquery, exp.Exists, exp.In, exp.Any, exp.All) is None:
            return node
        holder = exp.Paren(this=node.copy())
        for member in list(memberships(holder, decides)):
            test = self._member(member, state, scope)
            if test is not None:
                member.node.replace(exp.Paren(this=test))
        for exists in list(_existence(holder)):
            if parts := self._parter.parts(exists, state, scope):
                exists.replace(exp.Paren(this=exp.and_(*parts, copy=False)))
        for exists in list(_existence(holder)):
            some = self._exists(exists, state, scope)
            if some is not None:
                exists.replace(exp.Paren(this=some))
        for subquery in list(_scalar_subqueries(holder)):
            value = self._value(subquery, state, scope)
            if value is not None:
                subquery.replace(operand(value))
        result: exp.Expr = holder.this
        return result

    def joined(self, state: State) -> State:
        """The joins, with a LEFT JOIN for each derived table."""
        for grouped in self._found.values():
            relation, on = self._derived(grouped, state)
            span = span_of(grouped.node, self._sql)
            left = OuterJoin(Group(relation.ids), (*on, *grouped.on), span, grouped.lookup)
            tree = replace(state.tree, lefts=(*state.tree.lefts, left))
            state = replace(state, relations=(*state.relations, relation), tree=tree)
        for present in self._present:
            state = present.joined(state)
        return state

    # -- subqueries --------------------------------------------------------------------------------

    def _member(self, member: Membership, state: State, scope: Scope) -> exp.Expr | None:
        """Return IN by EXISTS, where another party than that of its value has the rows."""
        clients = self._pusher.clients(member.query, self._known)
        if not clients or not self._is_apart(member.node, clients, state, scope):
            return None
        if member.negated or not member.decides:
            self._refuse_governed(member, clients, state, scope)
        return member.test(lambda node: self._pusher.term(node, scope, self._known).expression)

    def _refuse_governed(
        self, member: Membership, clients: Sequence[Client], state: State, scope: Scope
    ) -> None:
        """Refuse IN that is NULL for some rows, where an owner has made policies: the join would
        need a computed key, of whether a value is NULL.
        """
        reads = {
            id_
            for value in member.values
            for id_ in ids_of(self._pusher.term(value, scope, self._known))
        }
        holders = [b.client for r in state.relations if reads & {*r.ids} for b in r.branches]
        if any(map(self._catalog.governed, (*clients, *holders))):
            raise plan_error(
                "IN over another party's table is NULL for a NULL, and a join of policies' tables "
                "asks for no NULLs",
                self._sql,
                member.node,
                "write EXISTS (SELECT 1 FROM party.table AS u WHERE u.key = t.key), which is true "
                "or false for each row",
            )

    def _value(self, node: exp.Subquery, state: State, scope: Scope) -> exp.Expr | None:
        """Return the expression that replaces the subquery; None for one that stays as it is."""
        select = node.unnest()
        if not isinstance(select, exp.Select):
            return None
        first = _as_first(select)
        select = first or select
        if not _is_plain(node, select):
            return None
        clients = self._pusher.clients(node, self._known)
        if (first is not None and len(clients) > 1) or not clients:
            return None
        if not self._is_apart(node, clients, state, scope):
            return None
        value = self._taken(node, select, clients, state.relations, scope)
        if value is not None and len({client.party for client in clients}) > 1:
            raise self._of_parties(node, clients)
        return value

    def _exists(self, exists: exp.Exists, state: State, scope: Scope) -> exp.Expr | None:
        """Return the expression in place of EXISTS: a count above 0, or over several databases
        whether a row of any of them is joined. None where EXISTS stays.
        """
        several = len(self._pusher.clients(exists.this, self._known)) > 1
        if several and not self._has_windows(exists, state, scope):
            presence = self.cohorts.presence(exists, state, scope)
            if presence is None:
                return None
            self._present.append(presence[1])
            return presence[0]
        counted = counted_rows(exists)
        value = self._value(counted, state, scope) if counted else None
        if value is None:
            return None
        return exp.GT(this=exp.Paren(this=value), expression=exp.Literal.number(0))

    def _has_windows(self, part: exp.Expr, state: State, scope: Scope) -> bool:
        """Return whether rows are in a window of those outside, which no equality joins."""
        exists = part.find(exp.Exists)
        counted = None if exists is None else counted_rows(exists)
        if exists is None or counted is None or not any(map(is_bounded, conditions_of(exists))):
            return False
        select = counted.this
        try:
            clients = self._pusher.clients(counted, self._known)
            parties = {client.party for client in clients}
            if len(parties) != 1 or not self._is_apart(counted, clients, state, scope):
                return False
            inner = self._inner(select, clients, scope)
            grouped = self._split(counted, select, inner, state.relations)
        except PlanError:  # which the query has in its own words
            return False
        return grouped is not None and bool(grouped.steps)

    def _inner(self, select: exp.Select, clients: tuple[Client, ...], scope: Scope) -> _Inner:
        """Return the meaning of names in the subquery."""
        known = with_ctes(select, self._known)
        joins: list[exp.Join] = select.args.get("joins") or []
        state = self._read(select.args["from_"].this, joins, known, None)[0]
        inner_scope = scope_within(state, self._pusher, scope)
        return _Inner(self._pusher, inner_scope, known, clients, state.relations)

    def _of_parties(self, node: exp.Expr, clients: Sequence[Client]) -> PlanError:
        parties = dict.fromkeys(client.party for client in clients)
        return plan_error(
            f"a subquery reads tables of {' and '.join(parties)}",
            self._sql,
            node,
            OF_ONE_PARTY,
        )

    def _of_several(self, grouped: _Grouped) -> PlanError:
        party = grouped.clients[0].party
        if grouped.lookup:
            return plan_error(
                f"a subquery over {party}, which has {len(grouped.clients)} databases, is a value "
                "only of one table's rows as they are, without joins, groups and subqueries",
                self._sql,
                grouped.node,
                f"join the rows instead: LEFT JOIN (SELECT key, max(x) AS x FROM {party}.u GROUP "
                "BY key) AS u ON u.key = t.key",
            )
        return plan_error(
            f"an aggregate over {party}, which has {len(grouped.clients)} databases, is taken of "
            "one table and of values of its rows, without joins and subqueries",
            self._sql,
            grouped.node,
            "name one table in the subquery; or attach the databases under names of their own, and "
            f"make a column of each: (SELECT sum(u.x) FROM {party}_1.u AS u WHERE u.key = t.key) "
            "AS x_1, and so on",
        )

    def _is_apart(
        self, node: exp.Expr, clients: Sequence[Client], state: State, scope: Scope
    ) -> bool:
        """Return whether the subquery reads columns that its client does not have."""
        if len(clients) > 1:
            return True
        reads = ids_of(self._pusher.term(node, scope, self._known))
        return any(r.client != clients[0] for r in state.relations if reads & {*r.ids})

    def _taken(
        self,
        node: exp.Expr,
        select: exp.Select,
        clients: tuple[Client, ...],
        outside: Sequence[DraftRelation],
        scope: Scope,
    ) -> exp.Expr | None:
        inner = self._inner(select, clients, scope)
        grouped = self._split(node, select, inner, outside)
        if grouped is None:
            return None
        if grouped.steps and any(map(self._catalog.governed, clients)):
            raise plan_error(GOVERNED.format(grouped.name), self._sql, grouped.node, GOVERNED_HINT)
        value = select.expressions[0].unalias().copy()
        selecting = replace(inner, scope=replace(inner.scope, is_plain=None))
        if _is_row(select):
            return self._looked_up(replace(grouped, lookup=True), value, selecting)
        grouped = self._found.get(grouped.identity, grouped)
        having = select.args.get("having")
        if having is not None:
            value = exp.Case(ifs=[exp.If(this=having.this.copy(), true=value)])
        holder = exp.Paren(this=value)
        calls = {to_sql(call): call.copy() for call in outermost_aggregates(holder)}
        for plain in map(_without_star, calls.values()):
            if not selecting.holds(plain):
                selecting.term(plain)  # which names a column that there is not
                return None
        places = {text: n for n, text in enumerate(dict.fromkeys((*grouped.calls, *calls)))}
        for call in list(outermost_aggregates(holder)):
            own_column = column(f"{_VALUE}{places[to_sql(call)]}", grouped.id)
            call.replace(over_none(call, own_column))
        named = any(other.table != grouped.id for other in nodes(holder, exp.Column))
        if not calls or named or holder.find(exp.Query, exp.Window):
            return None
        grouped.calls.update(calls)
        self._remarks += [
            f"{grouped.name} has {step.window.width} keys for each row: one for each "
            f"{'day' if step.kind == 'DATE' else 'number'} of a window"
            for step in grouped.steps
        ]
        self._found[grouped.identity] = grouped
        result: exp.Expr = holder.this
        return result

    def _looked_up(self, lookup: _Grouped, value: exp.Expr, inner: _Inner) -> exp.Expr | None:
        """Return the column of a value of the one row that has the keys; None where the value is
        not of the subquery's rows alone, or rows are in a window.
        """
        if lookup.steps or value.find(exp.Query, exp.Window, exp.Star):
            return None
        if not inner.holds(value):
            inner.term(value)  # which names a column that there is not
            return None
        if lookup.identity not in self._found:
            self._remarks.append(
                f"the subquery over {lookup.name} is a value: the statement fails if several of "
                "its rows have the key of one row outside"
            )
        lookup = self._found.setdefault(lookup.identity, lookup)
        lookup.calls.setdefault(to_sql(value), value)
        place = [*lookup.calls].index(to_sql(value))
        return column(f"{_VALUE}{place}", lookup.id)

    def _split(
        self,
        node: exp.Expr,
        select: exp.Select,
        inner: _Inner,
        outside: Sequence[DraftRelation],
    ) -> _Grouped | None:
        """The subquery's rows and keys; None where something else joins them with outside."""
        local: list[exp.Expr] = []
        keys: list[_Key] = []
        on: list[Term] = []
        windows: dict[tuple[str, str], Window] = {}
        where = select.args.get("where")
        for part in () if where is None else conjuncts(where.this):
            if inner.holds(part):
                local.append(part)
            elif (outer := inner.outside(part)) is not None:
                on.append(outer)
            elif (window := inner.sides.window(part)) is not None:
                windows[window.pair] = windows.get(window.pair, window).within(window)
            elif (key := _key(part, inner)) is None:
                return None
            elif not ids_of(key.outer):
                local.append(key.equality(key.inner))  # a column of outside that is a constant
            elif sum(1 for r in outside if ids_of(key.outer) & {*r.ids}) == 1:
                keys.append(key)
            else:
                return None
        steps = self._steps(windows.values(), inner, outside)
        if steps is None or not (keys or steps):
            return None
        for step in steps:
            outer = inner.outside(step.window.plus)
            assert outer is not None
            keys.append(_Key(step.key, outer, False, False))
            local += [] if step.test is None else [step.test]
        rows = exp.Select(**{key: select.args.get(key) for key in ("with_", "from_", "joins")})
        rows = rows.copy()
        for step in steps:
            rows.append("joins", step.join)
        if local:
            rows = rows.where(*(operand(part.copy()) for part in local), copy=False)
        name = inner.scope.items[0].name or "u"
        id_ = self._sources.fresh("#")
        return _Grouped(id_, name, node, inner.clients, rows, tuple(keys), tuple(on), tuple(steps))

    def _steps(
        self, windows: Iterable[Window], inner: _Inner, outside: Sequence[DraftRelation]
    ) -> list[Step] | None:
        """Return the steps of the subquery's windows; None where one of them has none."""
        steps: list[Step] = []
        for place, window in enumerate(windows):
            pairs = (
                [(window.plus, window.minus), window.times]
                if window.times
                else [(window.plus, window.minus)]
            )
            types_of_pairs: list[list[str]] = []
            for plus, minus in pairs:
                ends = (inner.term(minus), inner.outside(plus))
                types_: list[str] = []
                for end, relations in zip(ends, (inner.relations, outside), strict=True):
                    holders = [r for r in relations if end is not None and ids_of(end) & {*r.ids}]
                    if end is None or len(holders) != 1:
                        return None
                    types_ += self._draft.types(holders[0], [end])[0]
                types_of_pairs.append(types_)
            step = step_of(window, types_of_pairs[0], types_of_pairs[-1], place)
            if step is None:
                return None
            steps.append(step)
        return steps

    # -- derived tables ----------------------------------------------------------------------------

    def _derived(self, grouped: _Grouped, state: State) -> tuple[DraftRelation, list[Term]]:
        """The derived table as a relation, and the equalities of its keys."""
        relation, columns = self._bound(grouped, {})
        compared = {} if grouped.lookup else self._compared(grouped, relation, columns, state)
        if compared:
            relation, columns = self._bound(grouped, compared)
        equalities = zip(columns, grouped.keys, strict=False)
        return relation, [Term(key.equality(own), key.outer.span) for own, key in equalities]

    def _bound(
        self, grouped: _Grouped, compared: Mapping[int, str]
    ) -> tuple[DraftRelation, list[exp.Expr]]:
        """The relation with the id of `grouped`, and its columns."""
        select = grouped.select(compared)
        block: DraftBlock | None
        if len(grouped.clients) == 1:
            if grouped.lookup and (rows := self._rows(grouped, select)) is not None:
                return rows
            block = self._sources.whole(select, self._known, grouped.clients[0])
        elif grouped.lookup and is_of_rows(select, self._known):
            block = self._sources.each(select, self._known, grouped.clients)
        elif is_grouped(select, self._known):
            block = self._sources.merged(select, self._known, grouped.clients)
        else:
            block = None
        if block is None:
            raise self._of_several(grouped)
        (relation,) = block.relations
        branches = tuple(
            replace(b, columns={(grouped.id, name): e for (_, name), e in b.columns.items()})
            for b in relation.branches
        )
        columns = [output.term.expression.copy() for output in block.outputs]
        for own in columns:
            own.set("table", exp.to_identifier(grouped.id))
        relation = replace(
            relation,
            ids=(grouped.id,),
            name=grouped.name,
            span=span_of(grouped.node, self._sql),
            branches=branches,
        )
        return relation, columns

    def _rows(
        self, lookup: _Grouped, select: exp.Select
    ) -> tuple[DraftRelation, list[exp.Expr]] | None:
        """Return `_bound` of columns of one table, which its fragment then reads; else None."""
        item = exp.Subquery(this=select, alias=exp.TableAlias(this=exp.to_identifier(lookup.name)))
        states = self._read(item, [], self._known, None)
        state = states[0]
        (derived,) = state.items
        plain = all(isinstance(term.expression, exp.Column) for _, term in derived.columns)
        if len(states) > 1 or len(state.relations) > 1 or state.tree.lefts or not plain:
            return None
        (relation,) = state.relations
        branches = []
        for branch in with_filters(relation, state.tree.conditions).branches:
            columns = {
                (lookup.id, folded(name)): substituted(term, branch).expression
                for name, term in derived.columns
            }
            branches.append(replace(branch, columns=columns))
        span = span_of(lookup.node, self._sql)
        keys: list[exp.Expr] = []
        keys += (column(f"{_KEY}{place}", lookup.id) for place in range(len(lookup.keys)))
        return DraftRelation((lookup.id,), lookup.name, span, tuple(branches)), keys

    def _compared(
        self,
        grouped: _Grouped,
        relation: DraftRelation,
        columns: list[exp.Expr],
        state: State,
    ) -> dict[int, str]:
        """Types that keys are compared as, where rows would be grouped by something else: values
        that are equal to one of outside must be one group. '7' and '07' both equal the number 7,
        and 'a' and 'A' are equal with the collation NOCASE."""
        found: dict[int, str] = {}
        for place, (key, own) in enumerate(zip(grouped.keys, columns, strict=False)):
            outside = next(r for r in state.relations if ids_of(key.outer) & {*r.ids})
            inner = self._draft.types(relation, [Term(own, key.outer.span)])[0][0]
            outer = types.union_type(self._draft.types(outside, [key.outer])[0])
            wanted = None if outer is None else types.comparison_type(inner, outer)
            if wanted is None:
                continue
            if types.is_text(inner) and wanted == "VARCHAR":
                name = common(
                    collation(self._draft, *end)
                    for end in ((relation, [Term(own, None)]), (outside, [key.outer]))
                )
                if name != BYTES:
                    found[place] = f"{_COLLATION}{name}"
            elif wanted != types.normal(inner):
                found[place] = wanted
        return found


def _as(value: exp.Expr, type_: str | None) -> exp.Expr:
    if type_ is None:
        return value
    if type_.startswith(_COLLATION):
        return compared_text(value, type_.removeprefix(_COLLATION)) or value
    return trees.cast(value, type_)


def _scalar_subqueries(node: exp.Expr) -> Iterator[exp.Subquery]:
    """The outermost subqueries that stand for one value."""
    for child in node.iter_expressions():
        if isinstance(child, exp.Subquery):
            yield child
        elif not isinstance(child, exp.Query):
            yield from (
                found
                for found in _scalar_subqueries(child)
                if not isinstance(child, _SEVERAL) or found.arg_key == "this"
            )


def _existence(node: exp.Expr) -> Iterator[exp.Exists]:
    """The outermost EXISTS in an expression."""
    for child in node.iter_expressions():
        if isinstance(child, exp.Exists):
            yield child
        elif not isinstance(child, exp.Query | exp.Lambda | exp.Comprehension):
            yield from _existence(child)


def _as_first(select: exp.Select) -> exp.Select | None:
    """Return `SELECT first(x ORDER BY y)` for `SELECT x ... ORDER BY y LIMIT 1`, else None."""
    given = {key for key, value in select.args.items() if value}
    limit, order = select.args.get("limit"), select.args.get("order")
    if not given <= OF_ROWS | {"order", "limit"} or order is None or len(select.expressions) != 1:
        return None
    if limit is None or to_sql(limit).split() != ["LIMIT", "1"]:
        return None
    shown = select.expressions[0]
    value, name = shown.unalias(), folded(shown.alias)
    if shown.find(exp.Star, exp.Window) or any(map(is_aggregate, own_nodes(value))):
        return None
    keys = []
    for key in order.expressions:
        if not isinstance(key, exp.Ordered):
            return None
        ordered = key.copy()
        is_name = isinstance(ordered.this, exp.Column) and not ordered.this.table
        is_all = isinstance(ordered.this, exp.Var)
        is_number = isinstance(ordered.this, exp.Literal) and ordered.this.is_int
        if is_number and ordered.this.this != "1":
            return None  # the query has one column
        if is_all or is_number or (is_name and folded(ordered.this.name) == name):
            ordered.set("this", value.copy())
        keys.append(ordered)
    first = exp.Order(this=value.copy(), expressions=keys)
    whole = select.copy()
    for clause in ("order", "limit"):
        whole.set(clause, None)
    whole.set("expressions", [exp.Anonymous(this="first", expressions=[first])])
    return whole


def _is_row(select: exp.Select) -> bool:
    """Return whether the subquery gives rows, of which it must have one for a value."""
    given = {key for key, value in select.args.items() if value}
    value = exp.Paren(this=select.expressions[0].unalias().copy())
    has_aggregate = any(outermost_aggregates(value)) or any(map(is_aggregate, own_nodes(value)))
    return given <= OF_ROWS and not has_aggregate


def _is_plain(node: exp.Expr, select: exp.Select) -> bool:
    """Return whether the subquery is FROM, WHERE and HAVING of one aggregate."""
    given = {key for key, value in select.args.items() if value}
    distinct = select.args.get("distinct")
    by_columns = isinstance(distinct, exp.Expr) and bool(distinct.args.get("on"))
    wrapped = any(n.args.get("with_") for n in nodes(node, exp.Subquery))
    return (
        given <= _CLAUSES
        and "from_" in given
        and len(select.expressions) == 1
        and not (by_columns or wrapped)
    )


def over_none(call: exp.Expr, value: exp.Expr) -> exp.Expr:
    """Return the column of an aggregate; its value over no rows where the LEFT JOIN finds none."""
    while isinstance(call, exp.Filter | exp.WithinGroup):
        call = call.this
    found = OVER_NONE.get(function_name(call))
    if found is None:
        return value
    return exp.Coalesce(this=value, expressions=[exp.Literal.number(found)])


def _without_star(call: exp.Expr) -> exp.Expr:
    """The call with a number for the star of count(*)."""
    holder = exp.Paren(this=call.copy())
    for star in nodes(holder, exp.Star):
        if isinstance(star.parent, exp.Anonymous):
            star.replace(exp.Literal.number(1))
    result: exp.Expr = holder.this
    return result


def _key(part: exp.Expr, inner: _Inner) -> _Key | None:
    """The equality of a value of the subquery's rows with one of outside that a condition is."""
    equal = equality(part)
    if equal is None:
        return None
    for own, other in ((equal.left, equal.right), (equal.right, equal.left)):
        outer = inner.outside(other)
        if outer is not None and inner.holds(own):
            return _Key(own, outer, equal.nulls, equal.parts)
    return None
