"""Cohorts: `x IN (SELECT ...)`, EXISTS and NOT EXISTS over another party's tables, as joins.

A row passes EXISTS once, for any number of partners. So the subquery's table is joined as a link,
whose rows with equal keys count as one (`Relation.once`). The coordinator ensures this with the
keyed hashes that an inner join would send. NOT EXISTS is a LEFT JOIN that keeps rows without a
partner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.planner.grammar.refusals import has_hints, own_nodes
from sqlfl.planner.grammar.spans import plan_error
from sqlfl.planner.grammar.trees import nodes
from sqlfl.planner.query.ctes import Environment, with_ctes
from sqlfl.planner.query.dotted_names import OF_TABLE
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.equalities import conjuncts, equality
from sqlfl.planner.query.joins import State
from sqlfl.planner.query.push import Pusher
from sqlfl.planner.query.relations import (
    Group,
    OuterJoin,
    Term,
    clients_of,
    guard,
    ids_of,
    operand,
    with_presence,
)
from sqlfl.planner.query.scopes import Scope
from sqlfl.planner.query.types import has_fields

_PLAIN = frozenset(("with_", "expressions", "from_", "joins", "where", "distinct", "order"))
"""Clauses of a subquery for which only the existence of a row matters."""
_JOIN = "sqlfl_join"
"""Mark of a subquery that was a join: its words."""
_ALIAS = "sqlfl_cohort"
"""Name of a subquery that is joined as a derived table."""


@dataclass(frozen=True)
class _Cohort:
    """`[NOT] value IN (query)`, also as `value = ANY (query)`, or `[NOT] EXISTS (query)`."""

    query: exp.Query
    value: exp.Expr | None
    negated: bool
    node: exp.Expr


@dataclass(frozen=True)
class Presence:
    """The rows of an EXISTS whose value is used: rows of outside have one partner or none."""

    inner: State
    terms: tuple[Term, ...]
    """Conditions on its rows, and equalities with outside."""

    def joined(self, state: State) -> State:
        """The joins, with a LEFT JOIN of these rows."""
        (relation,) = self.inner.relations
        left = _left(self.inner, self.terms)
        tree = replace(state.tree, lefts=(*state.tree.lefts, left))
        relations = (*state.relations, with_presence(replace(relation, once=True)))
        return replace(state, relations=relations, tree=tree)


@dataclass(frozen=True)
class Cohorts:
    """Converter of such conditions in one WHERE."""

    pusher: Pusher
    sql: str
    known: Environment
    read: Callable[[exp.Expr, list[exp.Join], Environment, Scope | None], list[State]]
    """Reads a FROM."""
    derive: Callable[[exp.Expr, exp.Query, Environment, tuple[str, ...]], list[State]]
    """Reads a derived table."""

    def taken(self, where: exp.Expr, state: State, scope: Scope) -> tuple[State, exp.Expr | None]:
        """Return the joins with those of the conditions, and the remaining conditions.

        A subquery stays in place if one database can evaluate it with the rest of its condition, or
        if it is no such condition. It is then evaluated there, or refused.
        """
        parts = list(conjuncts(where))
        kept: list[exp.Expr] = []
        for part in parts:
            cohort = _cohort(part)
            joined = None
            if cohort is not None and self._is_apart(part, cohort, state, scope):
                joined = self._joined(cohort, state, scope)
                if joined is None and cohort.query.meta_get(_JOIN):
                    raise self._of_no_equality(cohort.query)
            if joined is None:
                kept.append(part)
            else:
                state = joined
        if len(kept) == len(parts):
            return state, where
        return state, exp.and_(*(part.copy() for part in kept), copy=False) if kept else None

    def _of_no_equality(self, query: exp.Query) -> PlanError:
        return plan_error(
            f"{query.meta_get(_JOIN)} takes one table of another party, by equalities with earlier "
            "tables and conditions on one table each",
            self.sql,
            query,
            "write ON u.key = t.key AND u.x > 1; or join the table by JOIN, if each row has one "
            "partner at most",
        )

    def presence(self, exists: exp.Exists, scope: Scope) -> tuple[exp.Expr, Presence] | None:
        """Return what stands for EXISTS as a value, and the LEFT JOIN that it needs. None for an
        unsupported form.
        """
        inner, terms = self._inner(_Cohort(exists.this, None, False, exists), scope)
        if inner is None or not self._is_linked(inner, terms):
            return None
        (relation,) = inner.relations
        missing = exp.Is(this=operand(guard(exp.true(), relation.ids[0])), expression=exp.Null())
        return exp.Not(this=missing), Presence(inner, tuple(terms))

    def _is_apart(self, part: exp.Expr, cohort: _Cohort, state: State, scope: Scope) -> bool:
        """Return whether no single database has all columns of the condition."""
        clients = self.pusher.clients(cohort.query, self.known)
        if len(clients) != 1:
            return bool(clients)
        try:
            reads = ids_of(self.pusher.term(part, scope, self.known))
        except PlanError:
            return False
        holders = {r.client for r in state.relations if reads & {*r.ids}}
        return bool(holders - {clients[0]})

    def _joined(self, cohort: _Cohort, state: State, scope: Scope) -> State | None:
        """Return the joins with the cohort's; None for an unsupported form."""
        if cohort.value is not None and cohort.negated:
            raise plan_error(
                "NOT IN over another party's table holds of no row if one of its values is NULL, "
                "which no party may tell",
                self.sql,
                cohort.node,
                "write t.key IS NOT NULL AND NOT EXISTS (SELECT 1 FROM party.table AS u WHERE "
                "u.key = t.key), which leaves NULLs out",
            )
        inner, terms = self._inner(cohort, scope)
        if inner is None or not self._is_linked(inner, terms):
            return None
        return _without(state, inner, terms) if cohort.negated else _within(state, inner, terms)

    def _inner(self, cohort: _Cohort, scope: Scope) -> tuple[State | None, list[Term]]:
        """The subquery's one table, and all that its rows must fulfil."""
        select = cohort.query.unnest()
        if isinstance(select, exp.Select) and _is_plain(select):
            known = with_ctes(select, with_ctes(cohort.query, self.known))
            first, joins = select.args["from_"].this, select.args.get("joins") or []
            states = self.read(first, joins, known, None)
            if len(states) != 1 or len(states[0].relations) != 1:
                return None, []
            scope_ = scope_within(states[0], self.pusher, scope)
            terms = self._conditions(select, scope_, known)
            selecting = replace(scope_, is_plain=None)
            shown = [self._shown(node, selecting, known) for node in select.expressions]
        elif cohort.value is None:
            return None, []
        else:
            holder = exp.Subquery(this=select.copy(), alias=exp.TableAlias(this=_ALIAS))
            states = self.derive(holder, cohort.query, self.known, ())
            if len(states) != 1 or len(states[0].relations) != 1:
                return None, []
            terms = []
            shown = [term for item in states[0].items for _, term in item.columns]
        if cohort.value is not None:
            row = cohort.value.unnest()
            values = row.expressions if isinstance(row, exp.Tuple) else [cohort.value]
            if len(values) != len(shown):
                return None, []
            for value, element in zip(values, shown, strict=True):
                if element is None:
                    return None, []
                own = self.pusher.term(value, scope, self.known)
                sides = [operand(term.expression.copy()) for term in (own, element)]
                terms.append(Term(exp.EQ(this=sides[0], expression=sides[1]), own.span))
        return states[0], terms

    def _conditions(self, select: exp.Select, scope: Scope, known: Environment) -> list[Term]:
        where = select.args.get("where")
        parts = () if where is None else conjuncts(where.this)
        return [self.pusher.term(part, scope, known) for part in parts]

    def _shown(self, node: exp.Expr, scope: Scope, known: Environment) -> Term | None:
        """Return an output; None for a star."""
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and node.is_star):
            return None
        return self.pusher.term(node.unalias(), scope, known)

    def _is_linked(self, inner: State, terms: list[Term]) -> bool:
        """Return whether only equalities join the subquery's table with earlier ones."""
        inside = frozenset(inner.tree.ids)
        linked = False
        for term in terms:
            if clients_of(term.expression):
                return False  # a subquery in the subquery
            reads = ids_of(term)
            if not reads & inside or reads <= inside:
                continue
            equal = equality(term.expression)
            if equal is None:
                return False
            sides = [ids_of(Term(side, None)) for side in (equal.left, equal.right)]
            apart = [side <= inside for side in sides if side]
            if sorted(apart) != [False, True] or any(
                side & inside and side - inside for side in sides
            ):
                return False
            linked = True
        return linked


def scope_within(state: State, pusher: Pusher, outer: Scope) -> Scope:
    """Return the names of a subquery with this FROM: its own, then those of `outer`."""
    draft = Draft(exp.select(), pusher.sql, pusher.tables.catalog, None, (), False)

    def is_plain(term: Term) -> bool:
        holders = [relation for relation in state.relations if ids_of(term) & {*relation.ids}]
        if len(holders) != 1:
            return False
        return not any(map(has_fields, draft.types(holders[0], [term])[0]))

    return replace(state.scope(pusher.sql), outer=outer, is_plain=is_plain)


def without_semi_joins(select: exp.Select) -> exp.Select | None:
    """Return the query with EXISTS for SEMI JOIN, and NOT EXISTS for ANTI JOIN.

    None if it has neither, or if the result would differ: columns without a table in ON could be
    the inner ones, and a later RIGHT JOIN adds rows that the SEMI JOIN did not filter.
    """
    joins: list[exp.Join] = select.args.get("joins") or []
    semi_joins = [join for join in joins if join.kind.upper() in _SEMI]
    if not semi_joins or any(join.side.upper() in ("RIGHT", "FULL") for join in joins):
        return None
    others = [select.args["from_"].this, *(join.this for join in joins if join not in semi_joins)]
    where = select.args.get("where")
    tests = [] if where is None else [where.this.copy()]
    for join in semi_joins:
        test = _test(join, others)
        if test is None:
            return None
        rows = exp.select(exp.Literal.number(1)).from_(join.this.copy(), copy=False)
        rows = rows.where(test, copy=False)
        rows.meta[_JOIN] = f"{join.kind.upper()} JOIN"
        exists: exp.Expr = exp.Exists(this=rows)
        tests.append(exists if join.kind.upper() == "SEMI" else exp.Not(this=exists))
    whole = select.copy()
    whole.set("joins", [join.copy() for join in joins if join not in semi_joins] or None)
    return whole.where(*(operand(test) for test in tests), append=False, copy=False)


_SEMI = ("SEMI", "ANTI")


def _test(join: exp.Join, others: list[exp.Expr]) -> exp.Expr | None:
    """Return the conditions that join a row of the SEMI JOIN's table."""
    if join.method or join.side or join.this.args.get("joins"):
        return None
    on, using = join.args.get("on"), join.args.get("using")
    if on is not None:
        whole = all(c.args.get("table") for c in nodes(on, exp.Column)) and not on.find(exp.Query)
        return _of_tables(on) if whole else None
    if not using or len(others) != 1 or others[0].args.get("joins"):
        return None
    names = [exp.to_identifier(item.alias_or_name) for item in (others[0], join.this)]
    return exp.and_(
        *(
            _of_tables(
                exp.EQ(
                    this=exp.Column(this=key.copy(), table=names[0].copy()),
                    expression=exp.Column(this=key.copy(), table=names[1].copy()),
                )
            )
            for key in using
        ),
        copy=False,
    )


def _of_tables(on: exp.Expr) -> exp.Expr:
    """Return the condition of a JOIN for a subquery: in a JOIN, tables of both sides go before
    columns with fields.
    """
    holder = exp.Paren(this=on.copy())
    for column in nodes(holder, exp.Column):
        column.meta[OF_TABLE] = True
    condition: exp.Expr = holder.this
    return condition


def _cohort(node: exp.Expr) -> _Cohort | None:
    """Return the cohort of a condition, or None."""
    inner = node.unnest()
    negated = isinstance(inner, exp.Not)
    if negated:
        inner = inner.this.unnest()
    value = None
    if isinstance(inner, exp.Exists):
        query = inner.this
    elif isinstance(inner, exp.In):
        value, query = inner.this, inner.args.get("query")
    elif isinstance(inner, exp.EQ | exp.NEQ):  # `= ANY` is IN, `<> ALL` is NOT IN
        several = exp.Any if isinstance(inner, exp.EQ) else exp.All
        if not isinstance(inner.expression, several):
            return None
        value, query = inner.this, inner.expression.this
        negated = negated is isinstance(inner, exp.EQ)
    else:
        return None
    return _Cohort(query, value, negated, node) if isinstance(query, exp.Query) else None


def _is_plain(select: exp.Select) -> bool:
    """Return whether the subquery has a row whenever its WHERE holds for one of its FROM."""
    given = {key for key, value in select.args.items() if value}
    distinct = select.args.get("distinct")
    by_columns = isinstance(distinct, exp.Expr) and bool(distinct.args.get("on"))
    windows = any(isinstance(n, exp.Window) for p in select.expressions for n in own_nodes(p))
    return given <= _PLAIN and "from_" in given and not (has_hints(select) or windows or by_columns)


def _within(state: State, inner: State, terms: list[Term]) -> State:
    """Rows that have a partner, each once."""
    (relation,) = inner.relations
    tree = replace(
        state.tree,
        core=(*state.tree.core, *inner.tree.core),
        conditions=(*state.tree.conditions, *inner.tree.conditions, *terms),
    )
    relations = (*state.relations, replace(relation, once=True))
    return replace(state, relations=relations, tree=tree)


def _without(state: State, inner: State, terms: list[Term]) -> State:
    """Keep rows without a partner."""
    (relation,) = inner.relations
    joined = Presence(inner, tuple(terms)).joined(state)
    missing = exp.Is(this=operand(guard(exp.true(), relation.ids[0])), expression=exp.Null())
    conditions = (*joined.tree.conditions, Term(missing, relation.span))
    return replace(joined, tree=replace(joined.tree, conditions=conditions))


def _left(inner: State, terms: Sequence[Term]) -> OuterJoin:
    """Return a LEFT JOIN of the one relation, by these conditions."""
    (relation,) = inner.relations
    inside = frozenset(relation.ids)
    inner_terms = tuple(term for term in terms if ids_of(term) <= inside)
    on = tuple(term for term in terms if not ids_of(term) <= inside)
    group: Group = replace(inner.tree, conditions=(*inner.tree.conditions, *inner_terms))
    return OuterJoin(group, on, relation.span)
