"""Cohorts: `x IN (SELECT ...)`, EXISTS and NOT EXISTS over another party's tables, as joins.

A row passes EXISTS once, for any number of partners. So the subquery's table is joined as a link,
whose rows with equal keys count as one (`Relation.once`). The coordinator ensures this with the
keyed hashes that an inner join would send. NOT EXISTS is a LEFT JOIN that keeps rows without a
partner.

A subquery may join tables of several parties. Its tables are links too. A row of one of them counts
only if it has a partner in the next one, and of its partners one counts (`Block.partners`).

NOT IN is the same LEFT JOIN, with a further rule: it holds for no row if one of the subquery's
values is NULL. So it needs two more LEFT JOINs. Their rows have partners where values are NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.contract.schema import folded
from sqlfl.planner.grammar.refusals import has_hints, own_nodes
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.trees import nodes, plan_error
from sqlfl.planner.query.batches import BatchedCatalog
from sqlfl.planner.query.ctes import Environment, with_ctes
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.equalities import conjuncts, equality, is_transitive
from sqlfl.planner.query.joins import State
from sqlfl.planner.query.names import OF_TABLE
from sqlfl.planner.query.push import Pusher
from sqlfl.planner.query.relations import (
    DraftRelation,
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

ROW_CLAUSES = frozenset(("with_", "expressions", "from_", "joins", "where", "distinct", "order"))
"""Clauses that keep the set of rows: a subquery of these alone has, apart from repeated rows, one
row for each row of its FROM that passes WHERE.
"""
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
class _Rows:
    """The rows of a subquery: of one table, or of an inner join."""

    inner: State
    conditions: tuple[Term, ...]
    """Conditions of its WHERE."""
    pairs: tuple[tuple[Term, Term], ...] = ()
    """The values of IN, each with the output that it is compared with."""

    @property
    def matching(self) -> list[Term]:
        """Return all conditions that a partner's rows fulfil."""
        return [*self.conditions, *(_equal(*pair) for pair in self.pairs)]


@dataclass(frozen=True)
class Presence:
    """The rows of an EXISTS whose value is used: each outer row has one partner or none."""

    inner: State
    terms: tuple[Term, ...]
    """Conditions on its rows, and equalities with outside."""

    def joined(self, state: State) -> State:
        """Return the joins, with a LEFT JOIN of these rows."""
        left = _left(self.inner, self.terms)
        tree = replace(state.tree, lefts=(*state.tree.lefts, left))
        first = self.inner.tree.id
        inner = _marked(self.inner)
        relations = (with_presence(r) if first in r.ids else r for r in inner)
        return replace(state, relations=(*state.relations, *relations), tree=tree)


@dataclass(frozen=True)
class Cohorts:
    """Converter of the cohort conditions in one WHERE."""

    pusher: Pusher
    sql: str
    known: Environment
    read: Callable[[exp.Expr, list[exp.Join], Environment, Scope | None], list[State]]
    """Reads a FROM."""
    derive: Callable[[exp.Expr, exp.Query, Environment, tuple[str, ...]], list[State]]
    """Reads a derived table."""
    remarks: list[str]
    """EXPLAIN says these of the query."""

    def taken(self, where: exp.Expr, state: State, scope: Scope) -> tuple[State, exp.Expr | None]:
        """Return the joins with those of the conditions, and the remaining conditions.

        Some subqueries stay in place, where their database evaluates them, or a later rule refuses
        them. These are subqueries that one database can evaluate with the rest of the condition,
        and subqueries of any other condition.
        """
        parts = list(conjuncts(where))
        rest: list[exp.Expr] = []
        for part in parts:
            cohort = _cohort(part)
            joined = None
            if cohort is not None and self._is_apart(part, cohort, state, scope):
                joined = self._joined(cohort, state, scope, parts)
                if joined is None and cohort.query.meta_get(_JOIN):
                    raise self._of_no_equality(cohort.query)
            if joined is None:
                rest.append(part)
            else:
                state = joined
        if len(rest) == len(parts):
            return state, where
        return state, exp.and_(*(part.copy() for part in rest), copy=False) if rest else None

    def _of_no_equality(self, query: exp.Query) -> PlanError:
        return plan_error(
            f"{query.meta_get(_JOIN)} takes one table of another party, by equalities with earlier "
            "tables and conditions on one table each",
            self.sql,
            query,
            "write ON u.key = t.key AND u.x > 1; or join the table by JOIN, if each row has one "
            "partner at most",
        )

    def presence(
        self, exists: exp.Exists, state: State, scope: Scope
    ) -> tuple[exp.Expr, Presence] | None:
        """Return the expression that replaces EXISTS as a value, and the LEFT JOIN that it needs.
        Return None for an unsupported form."""
        rows = self._rows(_Cohort(exists.this, None, False, exists), scope)
        if rows is None or not self._is_linked(rows.inner, rows.matching):
            return None
        missing = _missing(rows.inner)
        terms = self._tied(rows.inner, rows.matching, state.relations)
        return exp.Not(this=missing), Presence(rows.inner, tuple(terms))

    def _is_apart(self, part: exp.Expr, cohort: _Cohort, state: State, scope: Scope) -> bool:
        """Return whether no single database has all columns of the condition."""
        clients = self.pusher.clients(cohort.query, self.known)
        if len(clients) != 1:
            return bool(clients)
        reads = ids_of(self.pusher.term(part, scope, self.known))
        holders = {r.client for r in state.relations if reads & {*r.ids}}
        return bool(holders - {clients[0]})

    def _joined(
        self, cohort: _Cohort, state: State, scope: Scope, parts: Sequence[exp.Expr]
    ) -> State | None:
        """Return the joins with the cohort's; None for an unsupported form. `parts` are the
        conditions that hold with it.
        """
        rows = self._rows(cohort, scope)
        if rows is None or not self._is_linked(rows.inner, rows.matching):
            return None
        if not cohort.negated:
            return _within(state, rows.inner, rows.matching)
        terms = self._tied(rows.inner, rows.matching, state.relations)
        state = _without(state, rows.inner, terms)
        if cohort.value is None:
            return state
        return self._without_nulls(cohort, rows, state, scope, parts)

    def _without_nulls(
        self,
        cohort: _Cohort,
        rows: _Rows,
        state: State,
        scope: Scope,
        parts: Sequence[exp.Expr],
    ) -> State:
        """Return the joins with only the rows without a partner for which NOT IN holds.

        No row remains if a value of the subquery is NULL. A row that is NULL itself is removed if
        the subquery has a row. Raise PlanError if that needs to be tested for rows of several
        values, or at a client with policies.
        """
        questions = self._null_questions(rows, scope, parts)
        ids = frozenset(id_ for value, _ in rows.pairs for id_ in ids_of(value))
        branches = (b for r in state.relations if ids & {*r.ids} for b in r.branches)
        clients = (
            *self.pusher.clients(cohort.query, self.known), *(b.client for b in branches)
        )  # fmt: skip
        governed = any(map(self.pusher.tables.catalog.governed, clients))
        if questions and (governed or len(rows.pairs) != 1):
            raise plan_error(
                "NOT IN over another party's table holds of no row if one of its values is NULL, "
                + ("and a join of policies' tables asks for no NULLs" if governed else
                   "which is not asked of rows of several values"),
                self.sql,
                cohort.node,
                "write t.key IS NOT NULL AND NOT EXISTS (SELECT 1 FROM party.table AS u WHERE "
                "u.key = t.key), which leaves NULLs out",
            )  # fmt: skip
        for question in questions:
            again = self._rows_again(cohort, scope)
            value, element = again.pairs[0]
            conditions = question(value.expression, element.expression)
            terms = [Term(node, value.span) for node in conditions]
            state = _without(state, again.inner, [*again.conditions, *terms])
            relations = again.inner.relations
            holder = next((r for r in relations if ids_of(element) & {*r.ids}), relations[0])
            self.remarks.append(
                f"NOT IN asks if there is a NULL: the coordinator sees how many values of "
                f"{holder.label} are NULL, and which rows of the other side"
            )
        return state

    def _rows_again(self, cohort: _Cohort, scope: Scope) -> _Rows:
        """Return the rows of a supported subquery once more, as relations with new ids: each LEFT
        JOIN needs relations of its own.
        """
        rows = self._rows(cohort, scope)
        assert rows is not None
        return rows

    def _null_questions(
        self, rows: _Rows, scope: Scope, parts: Sequence[exp.Expr]
    ) -> Sequence[Callable[[exp.Expr, exp.Expr], list[exp.Expr]]]:
        """Return the functions that make the conditions of partners with NULLs, of an outer value
        and an element. Return none for values that other conditions say are not NULL.
        """
        known = {to_sql(t.expression) for t in (*rows.conditions, *rows.inner.tree.conditions)}
        plain = (part for part in parts if part.find(exp.Query) is None)
        known |= {to_sql(self.pusher.term(part, scope, self.known).expression) for part in plain}
        questions = []
        if any(
            to_sql(is_null(element.expression, False)) not in known for _, element in rows.pairs
        ):
            questions.append(_of_null_values)
        if any(to_sql(is_null(value.expression, False)) not in known for value, _ in rows.pairs):
            questions.append(_of_null_rows)
        return questions

    def _rows(self, cohort: _Cohort, scope: Scope) -> _Rows | None:
        """Return the subquery's rows, as relations with new ids at each call; None for an
        unsupported form."""
        select = cohort.query.unnest()
        stars = cohort.value is not None and isinstance(select, exp.Select) and _has_star(select)
        if isinstance(select, exp.Select) and has_row_where_true(select) and not stars:
            known = with_ctes(select, with_ctes(cohort.query, self.known))
            first, joins = select.args["from_"].this, select.args.get("joins") or []
            states = self.read(first, joins, known, None)
            if len(states) != 1 or not self._is_joined(states[0], cohort):
                return None
            scope_ = scope_within(states[0], self.pusher, scope)
            inside = replace(self, known=known)
            states[0], conditions = inside._conditions(select, states[0], scope_)
            selecting = replace(scope_, is_plain=None)
            shown = [self._shown(node, selecting, known) for node in select.expressions]
        elif cohort.value is None:
            return None
        else:
            query = with_union_all(cohort.query)
            holder = exp.Subquery(this=query.unnest(), alias=exp.TableAlias(this=_ALIAS))
            states = self.derive(holder, query, self.known, ())
            if len(states) != 1 or not self._is_joined(states[0], cohort):
                return None
            conditions = []
            shown = [term for item in states[0].items for _, term in item.columns]
        if cohort.value is None:
            return _Rows(states[0], tuple(conditions))
        row = cohort.value.unnest()
        values = row.expressions if isinstance(row, exp.Tuple) else [cohort.value]
        elements = [element for element in shown if element is not None]
        if len(values) != len(shown) or len(elements) != len(shown):
            return None
        terms = (self.pusher.term(value, scope, self.known) for value in values)
        return _Rows(states[0], tuple(conditions), tuple(zip(terms, elements, strict=True)))

    def _conditions(
        self, select: exp.Select, state: State, scope: Scope
    ) -> tuple[State, list[Term]]:
        """Return a subquery's FROM and the conditions of its WHERE. EXISTS and IN in it are joins:
        a row of the joined tables exists if a row of each exists."""
        where = select.args.get("where")
        conditions = []
        for part in () if where is None else conjuncts(where.this):
            nested = _cohort(part)
            rows = None
            if nested is not None and not nested.negated:
                apart = self._is_apart(part, nested, state, scope)
                rows = self._rows(nested, scope) if apart else None
            if rows is None:
                conditions.append(self.pusher.term(part, scope, self.known))
            else:
                state = _within(state, rows.inner, [])
                conditions += rows.matching
        return state, conditions

    def _shown(self, node: exp.Expr, scope: Scope, known: Environment) -> Term | None:
        """Return an output; None for a star."""
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and node.is_star):
            return None
        return self.pusher.term(node.unalias(), scope, known)

    def _tied(
        self, inner: State, terms: list[Term], outside: Sequence[DraftRelation]
    ) -> list[Term]:
        """Return conditions that compare each outer value with one table of the subquery, the first
        in order, and further tables with that table.

        An equality stays as it is where the values of the three sides are not equal transitively.
        """
        firsts: dict[str, tuple[DraftRelation, Term]] = {}
        result = []
        for term in terms:
            ends = self._ends(inner, term, outside)
            if ends is None:
                result.append(term)
                continue
            inner_end, outer_end = ends
            first = firsts.setdefault(to_sql(outer_end[1].expression), inner_end)
            is_same_table = first[0] is inner_end[0]
            if not is_same_table and is_transitive(self._draft, [first, inner_end, outer_end]):
                sides = [operand(side.expression.copy()) for _, side in (first, inner_end)]
                term = Term(exp.EQ(this=sides[0], expression=sides[1]), term.span)
            result.append(term)
        return result

    def _ends(
        self, inner: State, term: Term, outside: Sequence[DraftRelation]
    ) -> tuple[tuple[DraftRelation, Term], tuple[DraftRelation, Term]] | None:
        """Return the subquery's side of an equality with a value of outside, then that value, each
        with its relation. Return None for any other condition.
        """
        equal = equality(term.expression)
        if equal is None or equal.nulls or equal.parts:
            return None
        ends = []
        for relations in (inner.relations, outside):
            pairs = [
                (relation, Term(side, term.span))
                for side in (equal.left, equal.right)
                for relation in relations
                if ids_of(Term(side, None)) & {*relation.ids}
            ]
            if len(pairs) != 1:
                return None
            ends += pairs
        return ends[0], ends[1]

    @property
    def _draft(self) -> Draft:
        catalog = BatchedCatalog(self.pusher.tables.catalog)
        return Draft(exp.select(), self.sql, catalog, None, (), False)

    def _is_joined(self, inner: State, cohort: _Cohort) -> bool:
        """Return whether the subquery has one relation, or is an inner join; NOT IN takes none."""
        return len(inner.relations) == 1 or not inner.tree.lefts

    def _is_link(self, inner: State, term: Term) -> bool:
        """Return whether the condition compares relations of the subquery only by equalities, or
        within one database, which also has the tables of the condition's subqueries."""
        holders = [r for r in inner.relations if ids_of(term) & {*r.ids}]
        clients = clients_of(term.expression)
        if clients:
            return {r.client for r in holders} == {*clients}
        if len(holders) < 2 or {r.client for r in holders} == {holders[0].client} - {None}:
            return True
        equal = equality(term.expression)
        sides = () if equal is None else (equal.left, equal.right)
        reads = [ids_of(Term(side, None)) for side in sides]
        return (
            len(holders) == 2
            and all(sum(1 for r in holders if read & {*r.ids}) == 1 for read in reads)
            and bool(reads)
        )

    def _is_linked(self, inner: State, terms: list[Term]) -> bool:
        """Return whether at least one equality, and nothing else, compares the subquery's tables
        with earlier ones.

        Of one table, no condition may have a subquery. Of several tables, each condition must be a
        link (`_is_link`).
        """
        if len(inner.relations) > 1:
            joins = [
                Term(part, term.span)
                for term in inner.tree.conditions
                for part in conjuncts(term.expression)
            ]
            if not all(self._is_link(inner, term) for term in (*joins, *terms)):
                return False
        elif any(clients_of(term.expression) for term in terms):
            return False
        inside = frozenset(inner.tree.ids)
        crossing = [t for t in terms if ids_of(t) & inside and not ids_of(t) <= inside]
        return bool(crossing) and all(_is_equality_across(term, inside) for term in crossing)


def _is_equality_across(term: Term, inside: frozenset[str]) -> bool:
    """Return whether the condition is an equality of which one side reads only relations of
    `inside`, and the other side only other relations.
    """
    equal = equality(term.expression)
    if equal is None:
        return False
    left, right = (ids_of(Term(side, None)) for side in (equal.left, equal.right))
    return any(
        bool(inner and outer) and inner <= inside and not outer & inside
        for inner, outer in ((left, right), (right, left))
    )


def _equal(value: Term, element: Term) -> Term:
    """Return the equality of an outer value with an element of the subquery."""
    sides = [operand(term.expression.copy()) for term in (value, element)]
    return Term(exp.EQ(this=sides[0], expression=sides[1]), value.span)


def is_null(value: exp.Expr, yes: bool = True) -> exp.Expr:
    """Return `value IS NULL`; its negation unless `yes`."""
    test = exp.Is(this=operand(value.copy()), expression=exp.Null())
    return test if yes else exp.Not(this=test)


# Tables of two parties join only by equalities, since parties send keyed hashes of both sides. So a
# test of an outer value for NULL is written as an equality of two truth values: one computed from
# the subquery's row, the other from the outer row.


def _of_null_values(value: exp.Expr, element: exp.Expr) -> list[exp.Expr]:
    """Return conditions that match an outer row that is not NULL with a NULL element."""
    # with the first condition, the left side of the equality is always true
    sides = exp.Paren(this=is_null(element)), exp.Paren(this=is_null(value, False))
    return [is_null(element), exp.EQ(this=sides[0], expression=sides[1])]


def _of_null_rows(value: exp.Expr, element: exp.Expr) -> list[exp.Expr]:
    """Return the condition that matches an outer row that is NULL with any element."""
    always = is_null(is_null(element), False)  # true of each row, and a value of the subquery
    return [exp.EQ(this=exp.Paren(this=always), expression=exp.Paren(this=is_null(value)))]


def _has_star(select: exp.Select) -> bool:
    return any(
        isinstance(node, exp.Star) or (isinstance(node, exp.Column) and node.is_star)
        for node in select.expressions
    )


def with_union_all(query: exp.Query) -> exp.Query:
    """Return the query with UNION ALL for UNION, for a use in which equal rows count as one. A
    UNION with LIMIT or OFFSET stays, since equal rows would count there.
    """
    whole = query.copy()
    parts_to_visit = [whole.unnest()]
    while parts_to_visit:
        part = parts_to_visit.pop().unnest()
        is_limited = any(part.args.get(key) for key in ("limit", "offset"))
        if type(part) is exp.Union and not is_limited:
            part.set("distinct", False)
            parts_to_visit += [part.left, part.right]
    return whole


def scope_within(state: State, pusher: Pusher, outer: Scope) -> Scope:
    """Return the names of a subquery with this FROM: its own, then those of `outer`."""
    draft = Draft(exp.select(), pusher.sql, BatchedCatalog(pusher.tables.catalog), None, (), False)

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
    where = select.args.get("where")
    tests = [] if where is None else [where.this.copy()]
    for join in semi_joins:
        before = [j for j in joins[: joins.index(join)] if j not in semi_joins]
        test = _test(join, select.args["from_"].this, before)
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


def _test(join: exp.Join, first: exp.Expr, before: Sequence[exp.Join]) -> exp.Expr | None:
    """Return the conditions that join a row of the SEMI JOIN's table to the tables before it, of
    which `first` has the columns that USING makes of several.
    """
    if join.method or join.side or join.this.args.get("joins"):
        return None
    on, using = join.args.get("on"), join.args.get("using")
    if on is not None:
        whole = all(c.args.get("table") for c in nodes(on, exp.Column)) and not on.find(exp.Query)
        alias = folded(join.this.alias_or_name)
        named = any(folded(c.table) == alias and not c.db for c in nodes(on, exp.Column))
        same = alias in {folded(item.alias_or_name) for item in (first, *(j.this for j in before))}
        return of_tables(on) if whole and not (named and same) else None
    if not using or first.args.get("joins"):
        return None
    names_of_joins = [{folded(key.name) for key in j.args.get("using") or []} for j in before]
    if not all(folded(key.name) in names for key in using for names in names_of_joins):
        return None
    names = [exp.to_identifier(item.alias_or_name) for item in (first, join.this)]
    return exp.and_(
        *(
            of_tables(
                exp.EQ(
                    this=exp.Column(this=key.copy(), table=names[0].copy()),
                    expression=exp.Column(this=key.copy(), table=names[1].copy()),
                )
            )
            for key in using
        ),
        copy=False,
    )


def of_tables(on: exp.Expr) -> exp.Expr:
    """Return the condition of a JOIN for a subquery: in a JOIN, tables of both sides go before
    columns with fields.
    """
    holder = exp.Paren(this=on.copy())
    for column in nodes(holder, exp.Column):
        column.meta[OF_TABLE] = True
    condition: exp.Expr = holder.this
    return condition


def is_cohort(condition: exp.Expr) -> bool:
    """Return whether the condition is IN, EXISTS or a negation of them that this module supports.
    Its subquery has no SELECT, or reads one table and contains no further subquery."""
    cohort = _cohort(condition)
    if cohort is None:
        return False
    select = cohort.query.unnest()
    where = select.args.get("where")
    nested = where is not None and where.find(exp.Query) is not None
    return not (isinstance(select, exp.Select) and (nested or select.args.get("joins")))


def existing(condition: exp.Expr) -> exp.Query | None:
    """Return the subquery of a condition that is EXISTS, IN or a negation; None for others."""
    cohort = _cohort(condition)
    return None if cohort is None else cohort.query


def of_existence(query: exp.Query) -> exp.Query:
    """Return the query of EXISTS without `LIMIT 1` and similar clauses, which keep a row if there
    is one."""
    select = query.unnest()
    limit = select.args.get("limit")
    number = limit.expression if isinstance(limit, exp.Limit) else None
    is_some = isinstance(number, exp.Literal) and number.is_int and int(number.this) > 0
    if not is_some or select.args.get("offset"):
        return query
    whole = query.copy()
    whole.unnest().set("limit", None)
    return whole


def _cohort(node: exp.Expr) -> _Cohort | None:
    """Return the cohort of a condition, or None."""
    inner = node.unnest()
    negated = isinstance(inner, exp.Not)
    if negated:
        inner = inner.this.unnest()
    value, query = None, None
    if isinstance(inner, exp.Exists):
        query = of_existence(inner.this)
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


def has_row_where_true(select: exp.Select) -> bool:
    """Return whether the subquery has a row whenever its WHERE holds for one of its FROM."""
    given = {key for key, value in select.args.items() if value}
    distinct = select.args.get("distinct")
    by_columns = isinstance(distinct, exp.Expr) and bool(distinct.args.get("on"))
    windows = any(isinstance(n, exp.Window) for p in select.expressions for n in own_nodes(p))
    return (
        given <= ROW_CLAUSES
        and "from_" in given
        and not (has_hints(select) or windows or by_columns)
    )


def _within(state: State, inner: State, terms: list[Term]) -> State:
    """Return the joins in which rows need a partner; each row stays single."""
    tree = replace(
        state.tree,
        core=(*state.tree.core, *inner.tree.core),
        conditions=(*state.tree.conditions, *inner.tree.conditions, *terms),
    )
    return replace(state, relations=(*state.relations, *_marked(inner)), tree=tree)


def _without(state: State, inner: State, terms: list[Term]) -> State:
    """Return the joins that keep only rows without a partner."""
    joined = Presence(inner, tuple(terms)).joined(state)
    missing = Term(_missing(inner), inner.relations[0].span)
    conditions = (*joined.tree.conditions, missing)
    return replace(joined, tree=replace(joined.tree, conditions=conditions))


def _marked(inner: State) -> tuple[DraftRelation, ...]:
    """Return the relations of a subquery, of which only the existence of a row matters."""
    return tuple(replace(relation, once=inner.tree.id) for relation in inner.relations)


def _missing(inner: State) -> exp.Is:
    """Return the condition that the LEFT JOIN of a subquery found no row."""
    return exp.Is(this=operand(guard(exp.true(), inner.tree.id)), expression=exp.Null())


def _left(inner: State, terms: Sequence[Term]) -> OuterJoin:
    """Return a LEFT JOIN of the subquery's relations, by these conditions."""
    inside = frozenset(inner.tree.ids)
    inner_terms = tuple(term for term in terms if ids_of(term) <= inside)
    on = tuple(term for term in terms if not ids_of(term) <= inside)
    group: Group = replace(inner.tree, conditions=(*inner.tree.conditions, *inner_terms))
    return OuterJoin(group, on, inner.relations[0].span)
