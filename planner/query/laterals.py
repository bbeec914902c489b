"""Items of FROM that read the tables before them: `unnest(t.list)`, `range(t.a, t.b)`, LATERAL.

A list repeats the rows of its own table, once for each element. A LATERAL subquery of one row
becomes columns: expressions without FROM, aggregates over rows with an equal key, or the first row
in an order. A LATERAL subquery of several rows becomes a join with the tables of its FROM, by its
WHERE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.contract.schema import folded
from sqlfl.planner.grammar.parsing import COMMA
from sqlfl.planner.grammar.refusals import function_name, has_hints, is_aggregate, own_nodes
from sqlfl.planner.grammar.trees import plan_error, span_of
from sqlfl.planner.query.cohorts import scope_within
from sqlfl.planner.query.columns import distinct
from sqlfl.planner.query.correlated import CorrelatedAggregates
from sqlfl.planner.query.ctes import Environment, with_ctes
from sqlfl.planner.query.joins import Joiner, State
from sqlfl.planner.query.projections import outputs_of
from sqlfl.planner.query.relations import DraftBlock, Group, Item, Term, ids_of
from sqlfl.planner.query.scalars import SCALAR, Asker, has_calls, with_rows
from sqlfl.planner.query.scopes import Scope
from sqlfl.planner.query.sources import Sources
from sqlfl.planner.query.windows import system_call

_SERIES = ("range", "generate_series")
_AGGREGATED = frozenset(("with_", "expressions", "from_", "joins", "where", "having"))
_FIRST = frozenset(("with_", "expressions", "from_", "joins", "where", "order", "limit"))
_ROWS = _FIRST - {"limit"}
"""Clauses of a subquery that has a row for each row of its FROM that passes WHERE."""
_HINT = (
    "a list of one table is taken, FROM party.table AS t, unnest(t.list) AS u(x); so are rows as "
    "they are, JOIN LATERAL (SELECT u.x FROM party.table AS u WHERE u.key = t.key) AS q ON true, "
    "and a subquery of one row: LEFT JOIN LATERAL (SELECT avg(u.x) AS x FROM party.table AS u "
    "WHERE u.key = t.key) AS q ON true"
)


def is_lateral(item: object) -> bool:
    """Return whether an item of FROM may read columns of the items before it."""
    if isinstance(item, exp.Lateral):
        return True
    return _rows_of(item) is not None and item.find(exp.Column) is not None  # type: ignore[attr-defined]


def _rows_of(item: object) -> exp.Expr | None:
    """Return the list whose elements are the rows of an item; None for other items."""
    inner = item.this if isinstance(item, exp.Lateral) else item
    if isinstance(inner, exp.Unnest):
        plain = len(inner.expressions) == 1 and not inner.args.get("offset")
        return inner.expressions[0] if plain else None
    if isinstance(inner, exp.Table) and not inner.db:
        inner = inner.this
        if isinstance(inner, exp.Anonymous) and function_name(inner) in _SERIES:
            return inner
    return None


def _call(item: exp.Expr) -> str:
    """Return the name of the function that an item calls; of others none."""
    inner = item.this if isinstance(item, exp.Lateral) else item
    if isinstance(inner, exp.Unnest):
        return "unnest"
    is_call = isinstance(inner, exp.Table) and isinstance(inner.this, exp.Anonymous)
    return function_name(inner.this) if is_call else ""


def in_turn(joins: Iterable[exp.Join]) -> Iterator[exp.Join]:
    """Yield the joins, those that hang on a list or LATERAL after it: `a, unnest(a.l) u JOIN b` is
    `a CROSS JOIN unnest(a.l) u JOIN b`, where no column is joined by its name.
    """
    for join in joins:
        item, nested = _alone(join.this)
        if not nested or not is_lateral(item) or any(map(_is_by_name, nested)):
            yield join
            continue
        alone = join.copy()
        alone.set("this", item)
        alone.meta[COMMA] = join.meta_get(COMMA)
        yield alone
        yield from in_turn(nested)


def _alone(item: exp.Expr) -> tuple[exp.Expr, list[exp.Join]]:
    """Return an item of FROM without the joins that a comma before it has put into parentheses."""
    inner = item.this if isinstance(item, exp.Subquery) and not item.alias else None
    if not isinstance(inner, exp.Table) or not inner.args.get("joins"):
        return item, []
    bare = inner.copy()
    bare.set("joins", None)
    return (bare.this if isinstance(bare.this, exp.UDTF) else bare), inner.args["joins"]


def _is_by_name(join: exp.Join) -> bool:
    """Return whether the join has another meaning beside more tables on its left."""
    return bool(join.side.upper() in ("RIGHT", "FULL") or join.method or join.args.get("using"))


@dataclass(frozen=True)
class Laterals:
    """Joins of items that read the tables before them."""

    sources: Sources
    aggregates: Callable[[Environment], CorrelatedAggregates]
    """Factory of what takes correlated aggregates out of expressions."""
    read: Callable[[exp.Expr, list[exp.Join], Environment, Scope | None], list[State]]
    """Reads a FROM."""
    joiner: Joiner
    asker: Asker
    types: Callable[[State, Term], tuple[str, ...]]
    """Types of a term at the databases of its relation."""

    @property
    def sql(self) -> str:
        return self.sources.sql

    def joined(
        self, state: State, join: exp.Join, known: Environment, outer: Scope | None
    ) -> list[State]:
        """Return the joins with the item, as parts of a union. Raise PlanError if it is of another
        form.
        """
        item = join.this
        on = join.args.get("on")
        is_left = join.side.upper() == "LEFT"
        always = on is None or (isinstance(on.unnest(), exp.Boolean) and on.unnest().this)
        plain = join.kind.upper() in ("", "INNER", "CROSS", "OUTER") and not join.method
        bare = on is None and not (join.kind.upper() == "CROSS" or join.meta_get(COMMA))
        if not plain or bare or join.args.get("using") or item.args.get("joins"):
            raise self._refused(item)
        if join.side and not (is_left and always):
            raise self._refused(item)
        select = item.this.this if isinstance(item.this, exp.Subquery) else None
        if isinstance(select, exp.Select) and _has_rows(select):
            return self._with_rows(state, join, select, known, outer)
        state, names, terms = self._columns(state, item, known, outer, is_left)
        shown = tuple(zip(self._named(item, names), terms, strict=True))
        call = _call(item)
        hidden = ((call, terms[0]),) if call and not item.alias_column_names else ()
        added = Item(item.alias or call, shown, hidden=hidden)
        state = replace(state, items=(*state.items, added))
        if on is None or always:
            return [state]
        return [self._where(state, on, state.scope(self.sql, outer), known)]

    def _where(self, state: State, condition: exp.Expr, scope: Scope, known: Environment) -> State:
        """Return the joins with a condition on their rows."""
        term = self.sources.pusher.term(condition, scope, known)
        tree = replace(state.tree, conditions=(*state.tree.conditions, term))
        return replace(state, tree=tree)

    def _with_rows(
        self,
        state: State,
        join: exp.Join,
        select: exp.Select,
        known: Environment,
        outer: Scope | None,
    ) -> list[State]:
        """Return the joins with the tables of the subquery's FROM, by its WHERE."""
        item = join.this
        is_left = join.side.upper() == "LEFT"
        known = with_ctes(select, with_ctes(item.this, known))
        before = state.scope(self.sql, outer)
        first, joins = select.args["from_"].this, select.args.get("joins") or []
        parts = self.read(first, joins, known, before)
        self.joiner.check([state], parts, join)
        result = []
        for part in parts:
            tree = Group(
                (*state.tree.core, *part.tree.core),
                (*state.tree.conditions, *part.tree.conditions),
                (*state.tree.lefts, *part.tree.lefts),
            )
            relations = (*state.relations, *part.relations)
            whole = part if is_left else State(relations, tree, state.items, state.merged)
            scope = scope_within(part, self.sources.pusher, before)
            whole, shown = self._selected(whole, item, select, scope, known, is_left)
            if is_left:
                whole = replace(whole, items=(shown,))
                result += self.joiner.join(state, whole, join, known, outer)
                continue
            whole = replace(whole, items=(*state.items, shown))
            on = join.args.get("on")
            names = whole.scope(self.sql, outer)
            result.append(whole if on is None else self._where(whole, on, names, known))
        return result

    def _selected(
        self,
        state: State,
        item: exp.Expr,
        select: exp.Select,
        scope: Scope,
        known: Environment,
        is_left: bool,
    ) -> tuple[State, Item]:
        """Return the joins with the conditions of a subquery's WHERE, and its columns. Raise
        PlanError for subqueries in it on the right of a LEFT JOIN, which need joins of their own.
        """
        where = select.args.get("where")
        written = [*select.expressions, *([] if where is None else [where.this])]
        if is_left and any(node.find(exp.Query) for node in written):
            raise self._refused(item)
        aggregates = self.aggregates(known)
        outputs, named = outputs_of(
            select.expressions,
            replace(scope, is_plain=None),
            self.sources.pusher,
            known,
            lambda value, names: aggregates.replaced(value, state, names),
            lambda term: self.types(state, term),
        )
        scope = scope.with_aliases(named)
        rest = None if where is None else aggregates.condition(where.this, state, scope)
        joined = aggregates.joined(state)
        if rest is not None:
            joined, rest = aggregates.cohorts.taken(rest, joined, scope)
        joined = joined if rest is None else self._where(joined, rest, scope, known)
        for output in outputs:
            called = has_calls(output.term.expression)
            if called and self.asker.kind_over(joined.relations, output.term) != SCALAR:
                raise self._refused(item)
        names = [output.name for output in outputs]
        terms = (output.term for output in outputs)
        return joined, Item(item.alias, tuple(zip(self._named(item, names), terms, strict=True)))

    def _columns(
        self,
        state: State,
        item: exp.Expr,
        known: Environment,
        outer: Scope | None,
        is_left: bool,
    ) -> tuple[State, list[str], list[Term]]:
        """Return the joins with what the item reads, and names and meanings of its columns."""
        name = item.alias or _call(item)
        rows = _rows_of(item)
        select = item.this.this if isinstance(item.this, exp.Subquery) else None
        if rows is None and isinstance(select, exp.Select) and not select.args.get("from_"):
            rows, name = self._unnested(select) or (None, name)
        if rows is not None:
            if is_left:
                raise self._refused(item)
            state, term = self._repeated(state, rows, item, known, outer)
            return state, [name], [term]
        if not isinstance(select, exp.Select) or item.this.args.get("with_"):
            raise self._refused(item)
        aggregates = self.aggregates(known)
        scope = state.scope(self.sql, outer)
        names = [p.alias or p.name for p in select.expressions]
        terms = []
        for value in self._values(select, item, is_left):
            taken = aggregates.replaced(value, state, scope)
            term = self.sources.pusher.term(taken, scope, known)
            terms.append(replace(term, span=term.span or span_of(item, self.sql)))
        return aggregates.joined(state), names, terms

    def _unnested(self, select: exp.Select) -> tuple[exp.Expr, str] | None:
        """Return the list and the name of `SELECT unnest(list) AS name`."""
        if {key for key, value in select.args.items() if value} != {"expressions"}:
            return None
        (shown, *others) = select.expressions
        value = shown.unalias()
        if others or not isinstance(value, exp.Explode) or value.expressions:
            return None
        return value.this, shown.alias or "unnest"

    def _repeated(
        self, state: State, rows: exp.Expr, item: exp.Expr, known: Environment, outer: Scope | None
    ) -> tuple[State, Term]:
        """Return the joins with a row of the list's table for each of its elements."""
        span = span_of(item, self.sql)
        term = self.sources.pusher.term(rows, state.scope(self.sql, outer), known)
        block = DraftBlock(state.relations, state.tree, ())
        inside = ids_of(term) <= {id_ for relation in state.relations for id_ in relation.ids}
        read = block.reads(term) if inside else ()
        if len(read) != 1 or read[0] in block.optional:
            raise self._refused(item)
        repeated = block.relations[read[0]]
        governed = self.sources.tables.catalog.governed
        if any(governed(branch.client) for branch in repeated.branches):
            raise plan_error(
                f"a list in FROM makes several rows of one of {repeated.label}, and its owner's "
                "policies are about the rows of the table",
                self.sql,
                item,
                "read elements as columns, t.list[1], or list_sum(t.list); or ask its owner for a "
                "table with a row for each element",
            )
        call = Term(system_call("unnest", term.expression), span)
        block, (element,) = with_rows(block, read[0], [call], self.sources.fresh)
        return replace(state, relations=block.relations), Term(element, span)

    def _values(self, select: exp.Select, item: exp.Expr, is_left: bool) -> Iterator[exp.Expr]:
        """Yield the columns of a subquery of one row, as expressions beside the tables before."""
        given = {key for key, value in select.args.items() if value}
        shown = [projection.unalias() for projection in select.expressions]
        if not all(map(_is_one_column, shown)):
            raise self._refused(item)
        if given == {"expressions"}:
            if any(map(has_calls, shown)) or any(value.find(exp.Query) for value in shown):
                raise self._refused(item)
            yield from (value.copy() for value in shown)
            return
        aggregated = all(any(map(is_aggregate, own_nodes(value))) for value in shown)
        if given <= _AGGREGATED and aggregated and (is_left or "having" not in given):
            for projection in select.expressions:
                yield _of(select, projection)
            return
        if not (given <= _FIRST and {"order", "limit"} <= given and is_left):
            raise self._refused(item)
        if len(shown) == 1:
            yield _of(select, select.expressions[0])
            return
        row = _of_row(select)
        if row is None:
            raise self._refused(item)
        for place in range(len(shown)):
            number = exp.Literal.number(place + 1)
            yield exp.Anonymous(this="struct_extract", expressions=[row.copy(), number])

    def _named(self, item: exp.Expr, names: list[str]) -> tuple[str, ...]:
        """Return the names of the item's columns: those of its alias, then its own."""
        aliases = item.alias_column_names
        if len(aliases) > len(names):
            raise plan_error(
                f"{len(aliases)} names are given to {len(names)} columns",
                self.sql,
                item,
                "give as many as there are columns, or fewer",
            )
        return distinct([*aliases, *names[len(aliases) :]])

    def _refused(self, item: exp.Expr) -> PlanError:
        form = "LATERAL" if isinstance(item, exp.Lateral) else "a table function"
        return plan_error(
            f"{form} is not taken in this form over several databases", self.sql, item, _HINT
        )


def _has_rows(select: exp.Select) -> bool:
    """Return whether the subquery has a row for each row of its FROM that passes WHERE."""
    given = {key for key, value in select.args.items() if value}
    order = select.args.get("order")
    shown = [node for projection in select.expressions for node in own_nodes(projection)]
    return (
        "from_" in given
        and given <= _ROWS
        and not (has_hints(select) or (order is not None and has_calls(order)))
        and not any(isinstance(node, exp.Window) or is_aggregate(node) for node in shown)
    )


def _is_one_column(value: exp.Expr) -> bool:
    """Return whether the value has no star but that of count(*), and no window function."""
    stars = value.find_all(exp.Star)
    return value.find(exp.Columns, exp.Window) is None and all(
        isinstance(star.parent, exp.Anonymous) and function_name(star.parent) == "count"
        for star in stars
    )


def _of_row(select: exp.Select) -> exp.Subquery | None:
    """Return the subquery with its columns as one row, `SELECT row(x, y) ... ORDER BY z LIMIT 1`;
    None if the order names a column by its number.
    """
    one = select.copy()
    named = {folded(p.alias): p.unalias() for p in select.expressions if p.alias}
    for key in one.args["order"].expressions:
        value = key.this if isinstance(key, exp.Ordered) else key
        if isinstance(value, exp.Literal | exp.Var):
            return None
        if isinstance(value, exp.Column) and not value.table and folded(value.name) in named:
            value.replace(exp.Paren(this=named[folded(value.name)].copy()))
        elif any(folded(c.name) in named for c in value.find_all(exp.Column) if not c.table):
            return None
    shown = [projection.unalias().copy() for projection in select.expressions]
    one.set("expressions", [exp.Anonymous(this="row", expressions=shown)])
    return exp.Subquery(this=one)


def _of(select: exp.Select, projection: exp.Expr) -> exp.Subquery:
    one = select.copy()
    one.set("expressions", [projection.copy()])
    return exp.Subquery(this=one)
