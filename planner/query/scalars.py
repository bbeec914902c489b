"""Expressions with one value per row, the same at each evaluation, and functions that give several
rows.

The party's database decides what has one value, by binding it. WHERE binds expressions without
aggregates, window functions and several rows; TRY binds those that are not volatile. The database
expands macros, and knows the functions of its extensions.

In the select list of a query over tables of several clients, a function that gives several rows is
evaluated with its own table, which is replaced by one with a row for each of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count

from sqlglot import exp

from sqlfl.base.errors import LostError, PartyError, ReplyError
from sqlfl.contract.schema import Catalog, Client, Column, folded
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.refusals import AGGREGATES, function_name
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.trees import Infix, Prefix, nodes
from sqlfl.planner.query import emit
from sqlfl.planner.query.relations import (
    UNLIKE,
    ClientBranch,
    DraftBlock,
    DraftRelation,
    Output,
    Source,
    Term,
    clients_of,
    column,
    ids_of,
    operand,
    substituted,
)
from sqlfl.planner.query.relations import substituted as over

SCALAR = "one value"
AGGREGATE = "an aggregate"
WINDOW = "a window function"
ROWS = "a function that gives several rows"
UNBOUND = "what cannot be bound"

_CALLS = (
    exp.Anonymous, exp.Explode, exp.Unnest, exp.Window, exp.Filter, exp.WithinGroup,
    Infix, Prefix,
)  # fmt: skip
_NO_VALUES = (exp.Alias, exp.PropertyEQ, exp.Slice)
_OF_SELECT = (exp.Explode, exp.Unnest, exp.Window, exp.Filter, exp.WithinGroup)
_ONE = exp.Literal.number(1)


def has_calls(expression: exp.Expr) -> bool:
    """Return whether it may have other than one value per row; operators have one."""
    return any(not isinstance(n, Infix | Prefix) for n in nodes(expression, *_CALLS))


def one_value(expression: exp.Expr) -> exp.Expr:
    """A condition that binds where the expression is one value per row, and not volatile."""
    holder = exp.Paren(this=expression.copy())
    for call in nodes(holder, exp.Anonymous):
        if function_name(call) == "error":
            call.replace(exp.null())  # it has no value, but counts as volatile
    for node in list(_tried(holder.this)):
        node.replace(exp.Anonymous(this="TRY", expressions=[node.copy()]))
    return exp.Is(this=operand(holder.this), expression=exp.Null())


def _tried(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the largest values that TRY may hold: without subqueries and parts that only SELECT may
    have.
    """
    if not has_calls(node) or isinstance(node, (exp.Lambda, *_OF_SELECT)):
        return
    if isinstance(node, exp.Table) and isinstance(node.this, exp.Func):
        return  # a function of FROM
    names = {function_name(call) for call in nodes(node, exp.Anonymous)}
    whole = node.find(exp.Query, exp.Star, *_OF_SELECT) is None and not AGGREGATES & names
    if whole and isinstance(node, exp.Condition) and not isinstance(node, _NO_VALUES):
        yield node
        return
    for child in node.iter_expressions():
        yield from _tried(child)


@dataclass(frozen=True)
class Asker:
    """Requests to databases about the kind of an expression over one client's sources."""

    catalog: Catalog

    def columns(
        self,
        client: Client,
        sources: Sequence[Source],
        expressions: Iterable[exp.Expr],
        conditions: Iterable[exp.Expr],
    ) -> tuple[Column, ...]:
        """Return the columns of SELECT expressions FROM sources WHERE conditions. Raise PartyError
        if it does not bind.
        """
        shown = [(e, f"c{i}") for i, e in enumerate(expressions)]
        select = emit.fragment_select(sources, shown, conditions, alone=True)
        return self.catalog.describe(client, to_sql(select))

    def kind(self, client: Client, sources: Sequence[Source], expression: exp.Expr) -> str:
        """Return SCALAR, or another kind."""
        test = exp.Is(this=operand(expression.copy()), expression=exp.Null())
        if self._binds(client, sources, test, exp.Where):
            return SCALAR
        if self._binds(client, sources, test, exp.Having):
            return AGGREGATE
        if self._binds(client, sources, test, exp.Qualify):
            return WINDOW
        try:
            columns = self.columns(client, sources, [expression], ())
        except (LostError, ReplyError):
            raise
        except PartyError:
            return UNBOUND
        return ROWS if len(columns) == 1 else UNBOUND

    def volatile(
        self, client: Client, sources: Sequence[Source], expression: exp.Expr
    ) -> exp.Expr | None:
        """The call in it that gives another value each time."""
        if not self._is_volatile(client, sources, expression):
            return None
        calls = sorted(nodes(expression, exp.Anonymous), key=lambda n: sum(1 for _ in n.walk()))
        for node in calls:
            alone = exp.Anonymous(this=node.this, expressions=[_ONE] * len(node.expressions))
            if self._is_volatile(client, sources, alone):
                return node
        return calls[-1]

    def _is_volatile(self, client: Client, sources: Sequence[Source], node: exp.Expr) -> bool:
        try:
            self.columns(client, sources, [_ONE], [one_value(node)])
        except (LostError, ReplyError):
            raise
        except PartyError as error:
            return "volatile" in error.message
        return False

    def _binds(
        self,
        client: Client,
        sources: Sequence[Source],
        test: exp.Expr,
        clause: type[exp.Where | exp.Having | exp.Qualify],
    ) -> bool:
        select = emit.fragment_select(sources, [(_ONE, "c0"), (test, "c1")], (), alone=True)
        select.set(clause.key, clause(this=select.expressions.pop().unalias()))
        try:
            self.catalog.describe(client, to_sql(select))
        except (LostError, ReplyError):
            raise
        except PartyError:
            return False
        return True

    # -- over relations ----------------------------------------------------------------------------

    def kind_over(self, relations: Sequence[DraftRelation], term: Term) -> str:
        """SCALAR where the term is one value per row of the relations that it reads."""
        read = [relations[n] for n in _readers(relations, term)]
        if len(read) == 1:
            parts = ((b, substituted(term, b)) for b in read[0].branches)
            kinds = (self.kind(b.client, b.sources, t.expression) for b, t in parts)
            return next((kind for kind in kinds if kind != SCALAR), SCALAR)
        if len({r.client for r in read}) == 1 and read[0].client is not None:
            branches = [r.branches[0] for r in read]
            columns = {key: e for b in branches for key, e in b.columns.items()}
            sources = tuple(s for b in branches for s in b.sources)
            whole = replace(branches[0], sources=sources, columns=columns)
            return self.kind(whole.client, sources, substituted(term, whole).expression)
        return self._kind_of_typed(read, term)

    def _kind_of_typed(self, read: Sequence[DraftRelation], term: Term) -> str:
        """Return the kind of a term over several parties, none of which can evaluate it: over a row
        of its columns' types. UNBOUND if no party binds it.
        """
        holder = exp.Paren(this=term.expression.copy())
        shown: list[exp.Expr] = []
        for number, node in enumerate(nodes(holder, exp.Column)):
            relation = next((r for r in read if node.table in r.ids), None)
            if relation is None:
                continue  # a subquery's own column
            branch = relation.branches[0]
            one = substituted(Term(node, None), branch).expression
            found = self.columns(branch.client, branch.sources, [one], ())[0].type
            shown.append(exp.alias_(trees.cast(exp.null(), found), f"c{number}"))
            node.replace(column(f"c{number}", _TYPED))
        names = frozenset(node.alias for node in shown)
        source = Source(_TYPED, exp.select(*shown).subquery(), "typed", (), None, names)
        clients = dict.fromkeys(b.client for r in read for b in r.branches)
        kinds = [self.kind(client, (source,), holder.this) for client in clients]
        return SCALAR if SCALAR in kinds else next((k for k in kinds if k != UNBOUND), UNBOUND)


_TYPED = "@typed"


def _readers(relations: Sequence[DraftRelation], term: Term) -> list[int]:
    """Return the relations that the term reads; if it reads none, the first that can evaluate it.
    Empty if the term has a subquery over a party without a relation.
    """
    read = [n for n, r in enumerate(relations) if ids_of(term) & {*r.ids}]
    if read:
        return read
    marks = clients_of(term.expression)
    return [n for n, r in enumerate(relations) if not marks or r.client == marks[0]][:1]


def claimed(
    relations: Sequence[DraftRelation], outputs: Iterable[Output]
) -> tuple[tuple[DraftRelation, ...], tuple[Term, ...]]:
    """Return the relations with claims, by which their parties check that outputs have one value
    per row, and the outputs over several relations.

    A derived table's column counts even if it is not used: an aggregate makes one row of many
    anyway.
    """
    checked_relations, left = list(relations), []
    for output in outputs:
        if not has_calls(output.term.expression):
            continue
        read = _readers(checked_relations, output.term)
        if len(read) > 1:
            left.append(output.term)
        if len(read) != 1:
            continue
        branches = tuple(
            replace(b, claims=(*b.claims, substituted(output.term, b).expression))
            for b in checked_relations[read[0]].branches
        )
        checked_relations[read[0]] = replace(checked_relations[read[0]], branches=branches)
    return tuple(checked_relations), tuple(left)


UNROLLED = "sqlfl_rows"


def unrolled(
    block: DraftBlock, outputs: Sequence[Output], fresh: Callable[[str], str]
) -> DraftBlock | None:
    """Return the block with the several-row functions of `outputs` as columns of their relation.

    None if they read no relation or more than one, whose rows they would pair up, or one on the
    right of a LEFT JOIN, whose missing rows give none. `fresh` makes ids.
    """
    read = {block.reads(output.term) for output in outputs}
    if len(read) != 1 or len(next(iter(read))) != 1:
        return None
    index = next(iter(read))[0]
    if index in block.optional:
        return None
    block, columns = with_rows(block, index, [output.term for output in outputs], fresh)
    names = dict(zip(map(id, outputs), columns, strict=True))
    shown = tuple(
        replace(o, term=Term(names[id(o)], o.term.span)) if id(o) in names else o
        for o in block.outputs
    )
    return replace(block, outputs=shown)


def with_rows(
    block: DraftBlock,
    index: int,
    terms: Sequence[Term],
    fresh: Callable[[str], str],
    name: str = "",
) -> tuple[DraftBlock, list[exp.Column]]:
    """Return the block with a row of the relation for each row that several-row functions over it
    give, and the columns of `terms`, of which the first is called `name`. `fresh` makes ids.
    """
    relation = block.relations[index]
    taken = {known for branch in relation.branches for _, known in branch.columns}
    names_ = chain([name] if name else [], (f"{UNROLLED}_{n}" for n in count()))
    free = (made for made in names_ if made not in taken)
    names = [next(free) for _ in terms]
    branches = tuple(
        _branch(branch, relation, list(zip(terms, names, strict=True)), fresh("@"))
        for branch in relation.branches
    )
    relations = (
        *block.relations[:index],
        replace(relation, branches=branches),
        *block.relations[index + 1 :],
    )
    return replace(block, relations=relations), [column(n, relation.ids[0]) for n in names]


def _branch(
    branch: ClientBranch, relation: DraftRelation, terms: Sequence[tuple[Term, str]], id_: str
) -> ClientBranch:
    """The branch as one source, a row for each of the functions'."""
    shown = [(expression, name) for (_, name), expression in branch.columns.items()]
    shown += [(over(term, branch).expression, name) for term, name in terms]
    conditions = [f.expression for f in branch.filters]
    select = emit.fragment_select(branch.sources, shown, conditions)
    first = branch.sources[0] if len(branch.sources) == 1 else None
    path = (branch.client.party,) if first is None else first.path
    others = () if first is None else first.others
    names = frozenset(folded(name) for _, name in shown)
    names |= {name for own in branch.sources for name in own.names}
    item = exp.Subquery(this=select)
    source = Source(id_, item, relation.name, path, None, names, others, copies=True)
    keys = [*branch.columns, *((relation.ids[0], name) for _, name in terms)]
    columns: dict[tuple[str, str], exp.Expr] = {key: column(key[1], id_) for key in keys}
    for key, expression in branch.columns.items():
        columns[key].meta[UNLIKE] = bool(expression.meta_get(UNLIKE))
    return ClientBranch(branch.client, (source,), columns)
