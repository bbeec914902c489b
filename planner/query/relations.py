"""The query in progress: blocks of relations, each with its branches.

Columns of a relation are written `Column(name, table='#n')`, columns of a source `Column(name,
table='@n')`; `substitute` replaces the former by the latter, branch by branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from sqlfl.contract.schema import Client, Made, folded
from sqlfl.contract.transforms import Transform
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.statements import Span
from sqlfl.planner.grammar.trees import copied, identifier, nodes

CLIENT_MARK = "sqlfl_client"
"""Key in the meta of a subquery: the client whose tables it reads."""
UNLIKE = "sqlfl_unlike"
"""Key in the meta of a column of a source: a party's databases have it in types that no one type
holds."""
WIDENED = "sqlfl_widened"
"""Key in the meta of a cast of a column to the type that it is compared as."""
PRESENT = "sqlfl_present"
"""An optional column of relations: true in their rows, NULL in rows that a LEFT JOIN adds."""


@dataclass(frozen=True)
class Term:
    """An expression and the place in the text that it was written at."""

    expression: exp.Expr
    span: Span | None


@dataclass(frozen=True)
class LeftOn:
    """A LEFT JOIN within a fragment's FROM, over columns of sources."""

    id: str
    on: tuple[Term, ...]


@dataclass(frozen=True)
class Source:
    """An item in the FROM of a fragment: a table, or a query that goes to the client whole."""

    id: str
    item: exp.Table | exp.Subquery
    name: str
    """The base of its alias in a fragment."""
    path: tuple[str, ...]
    """party, [catalog,] schema if any, table; only the party for a query."""
    rows: int | None
    names: frozenset[str]
    """Its columns, and the schemas and databases of its client, in lower case; no alias
    may be one.
    """
    others: tuple[tuple[str, ...], ...] = ()
    """Other paths that name it."""
    copies: bool = False
    """A row of its table may stand in several of its rows."""
    lefts: tuple[LeftOn, ...] = ()
    """The LEFT JOINs of the fragment that it stands on the right of, the outermost first."""
    keyed: bool = False
    """True if its owner has declared a key of the table."""


@dataclass(frozen=True)
class ClientBranch:
    """The part of a relation that one client holds."""

    client: Client
    sources: tuple[Source, ...]
    columns: Mapping[tuple[str, str], exp.Expr]
    """(relation id, column in lower case) -> expression over the sources."""
    filters: tuple[Term, ...] = ()
    claims: tuple[exp.Expr, ...] = ()
    """Expressions over the sources that must be one value per row; see `scalars`."""


@dataclass(frozen=True)
class DraftRelation:
    """A table position of a block."""

    ids: tuple[str, ...]
    """More than one where relations were fused."""
    name: str
    span: Span | None
    branches: tuple[ClientBranch, ...]
    once: str = ""
    """The subquery of EXISTS or IN that has the table: the id of its first relation. Then the rows
    only match, and those with equal keys count as one. Empty for a table of a join."""
    single: bool = False
    """True if its rows are groups of a GROUP BY over several parties, and each is in one joined row
    at most."""

    @property
    def label(self) -> str:
        paths = dict.fromkeys(".".join(s.path) for b in self.branches for s in b.sources)
        text = " and ".join(paths) if len(paths) <= 2 else f"{next(iter(paths))} and others"
        return text if text.split(".")[-1] == self.name else f"{self.name} ({text})"

    @property
    def client(self) -> Client | None:
        """The client, if there is a single branch."""
        return self.branches[0].client if len(self.branches) == 1 else None

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(b.client.party for b in self.branches))


@dataclass(frozen=True)
class Item:
    """A name of FROM and the columns behind it."""

    name: str
    columns: tuple[tuple[str, Term], ...]
    paths: frozenset[tuple[str, ...]] = frozenset()
    """Words that may precede its columns, in lower case, for a table without an alias: the ends of
    `party.schema.table`.
    """
    lacking: tuple[tuple[str, str], ...] = ()
    """(column, client that lacks it), for a table whose other clients have it."""

    hidden: tuple[tuple[str, Term], ...] = ()
    """Columns that a star leaves out: the `rowid` of a table."""

    def find(self, name: str) -> Term | None:
        """The column `item.name`."""
        known = (*self.columns, *self.hidden)
        return next((t for n, t in known if folded(n) == folded(name)), None)


@dataclass(frozen=True, eq=False)
class Merged:
    """A column that USING or NATURAL made from one column each of several items."""

    name: str
    items: tuple[int, ...]
    """Their places among the items of FROM."""
    term: Term
    """The meaning of the name alone: the left column, or the right one for a RIGHT JOIN."""
    coalesced: bool = False
    """True if a FULL JOIN made it: its type is that of coalesce, of all columns."""


@dataclass(frozen=True)
class Output:
    name: str
    term: Term
    relation: int = -1
    """Index of the relation that evaluates it, once known."""
    type: str = ""
    transform: Transform | None = None
    """The transform of its columns."""
    made: Made | None = None
    """Its derivation from columns, once known; None for a plain column."""


@dataclass(frozen=True)
class Equality:
    """An equality between expressions of two relations, compared as `type`."""

    left: int
    right: int
    terms: tuple[Term, Term]
    type: str = ""
    span: Span | None = None
    group: str = ""
    """Id of the group that it joins within; of `on`, of the group on the right of the LEFT JOIN."""
    on: bool = False
    """True if it stands in the ON of a LEFT JOIN: `left` is a relation before that, `right` one of
    it.
    """
    own: bool = False
    """True if it implies no other equalities. `left` keeps its rows with a NULL term; it may be on
    the right of a LEFT JOIN, and is then compared after that join.
    """


@dataclass(frozen=True)
class OuterJoin:
    """LEFT JOIN (group) ON conditions."""

    group: Group
    on: tuple[Term, ...]
    span: Span | None
    lookup: bool = False
    """True if each row has one partner at most: the one row of a subquery that is a value."""


@dataclass(frozen=True)
class Group:
    """Relations joined with each other, then LEFT JOINs in order; conditions on the result."""

    core: tuple[str, ...]
    """An id of each relation."""
    conditions: tuple[Term, ...] = ()
    lefts: tuple[OuterJoin, ...] = ()

    @property
    def id(self) -> str:
        return self.core[0]

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of all relations, those of LEFT JOINs included."""
        return (*self.core, *(i for left in self.lefts for i in left.group.ids))

    def groups(self) -> Iterator[Group]:
        """Yield this group and those within."""
        yield self
        for left in self.lefts:
            yield from left.group.groups()

    def terms(self) -> Iterator[Term]:
        """Yield all conditions, those of ON and within included."""
        yield from self.conditions
        for left in self.lefts:
            yield from left.on
            yield from left.group.terms()


@dataclass(frozen=True)
class DraftBlock:
    """A select-project-join query."""

    relations: tuple[DraftRelation, ...]
    tree: Group
    outputs: tuple[Output, ...]
    items: tuple[Item, ...] = ()
    """Items of its own FROM; for the ID clause."""
    span: Span | None = None
    together: bool = False
    """True if all its relations belong to one client, and are fused."""
    identifiers: tuple[Output, ...] = ()
    equalities: tuple[Equality, ...] = ()
    kept: tuple[tuple[int, Term], ...] = ()
    """(relation, condition): joined rows that fail it are dropped, after all LEFT JOINs."""
    derived: tuple[tuple[int, Term], ...] = ()
    """(relation, condition) of conditions that follow from others over equal keys."""
    slots: tuple[int, ...] = ()
    """Slot of each relation."""
    sorted_by: tuple[Output, ...] = ()
    """Outputs that ORDER BY computes."""

    def of(self, id_: str) -> int:
        return next(i for i, r in enumerate(self.relations) if id_ in r.ids)

    def reads(self, term: Term) -> tuple[int, ...]:
        """Return indices of the relations whose columns the term reads."""
        return tuple(sorted({self.of(id_) for id_ in ids_of(term)}))

    @property
    def optional(self) -> frozenset[int]:
        """Indices of the relations on the right of a LEFT JOIN."""
        return frozenset(self.of(i) for left in self.tree.lefts for i in left.group.ids)


def ids_of(term: Term) -> frozenset[str]:
    """Return ids of the relations whose columns the term reads."""
    columns = nodes(term.expression, exp.Column)
    return frozenset(c.table for c in columns if c.table.startswith("#"))


def column(name: str, table: str) -> exp.Column:
    return exp.Column(this=identifier(name), table=exp.to_identifier(table))


def clients_of(expression: exp.Expr) -> tuple[Client, ...]:
    """Return the clients whose tables the subqueries of the expression read."""
    marks = (node.meta_get(CLIENT_MARK) for node in nodes(expression))
    return tuple(dict.fromkeys(c for c in marks if isinstance(c, Client)))


def substitute(expression: exp.Expr, columns: Mapping[tuple[str, str], exp.Expr]) -> exp.Expr:
    """Return the expression with each column of a relation replaced by its definition."""
    if isinstance(expression, exp.Column):
        return copied(columns.get((expression.table, folded(expression.name)), expression))
    holder = exp.Paren(this=copied(expression))
    for case in nodes(holder, exp.Case):
        guarded = _guarded(case, columns)
        if guarded is not None:
            case.replace(fitted(guarded, case.parent, holder))
    for node in nodes(holder, exp.Column):
        definition = columns.get((node.table, folded(node.name)))
        if definition is not None:
            node.replace(fitted(copied(definition), node.parent, holder))
    result: exp.Expr = holder.this
    return result


def guard(expression: exp.Expr, id_: str) -> exp.Expr:
    """Return the expression, NULL if a LEFT JOIN found no row of the relation."""
    return exp.Case(ifs=[exp.If(this=column(PRESENT, id_), true=expression.copy())])


def widened(expression: exp.Expr, type_: str) -> exp.Expr:
    """Return a column cast to a type in which its values stay equal to the same ones."""
    cast = trees.cast(expression, type_)
    cast.meta[WIDENED] = True
    return cast


def unwidened(expression: exp.Expr) -> exp.Expr:
    """Return the column in a cast of `widened`; other expressions as they are."""
    inner = expression.unnest()
    while inner.meta_get(WIDENED):
        inner = inner.this.unnest()
    return inner


def absent(id_: str) -> exp.Expr:
    """Return the condition that a LEFT JOIN found no row of the relation."""
    return exp.Is(this=operand(guard(exp.true(), id_)), expression=exp.Null())


def _guarded(case: exp.Case, columns: Mapping[tuple[str, str], exp.Expr]) -> exp.Expr | None:
    """Return the guarded expression, if all rows of the relation are its own."""
    test = case.args["ifs"][0].this
    if not isinstance(test, exp.Column) or test.name != PRESENT:
        return None
    present = columns.get((test.table, PRESENT))
    guarded: exp.Expr = case.args["ifs"][0].args["true"]
    return guarded if isinstance(present, exp.Boolean) and present.this else None


def with_presence(relation: DraftRelation) -> DraftRelation:
    """The relation with the column PRESENT."""
    key = (relation.ids[0], PRESENT)
    branches = tuple(
        b if key in b.columns else replace(b, columns={**b.columns, key: exp.true()})
        for b in relation.branches
    )
    return replace(relation, branches=branches)


def fitted(
    expression: exp.Expr, parent: exp.Expr | None, holder: exp.Expr | None = None
) -> exp.Expr:
    """Return the expression in a form that fits below `parent`; unchanged if that is `holder`."""
    if parent is None or parent is holder:
        return expression
    if _is_constant(expression) and _is_position(parent):
        return exp.Coalesce(this=expression, expressions=[])
    return operand(expression) if binds(parent) else expression


def _is_constant(expression: exp.Expr) -> bool:
    inner = expression.unnest()
    inner = inner.this if isinstance(inner, exp.Neg) else inner
    return isinstance(inner, exp.Literal | exp.Boolean | exp.Null)


def _is_position(parent: exp.Expr | None) -> bool:
    """Return whether a constant would mean a column of the SELECT list."""
    while isinstance(parent, exp.Paren | exp.Tuple):
        parent = parent.parent
    places = (exp.Group, exp.Ordered, exp.Distinct, exp.Rollup, exp.Cube, exp.GroupingSets)
    return isinstance(parent, places)


def operand(expression: exp.Expr) -> exp.Expr:
    """The expression, in parentheses where its text would fall apart beside an operator."""
    loose = isinstance(expression, exp.Binary | exp.Unary | exp.Predicate | exp.Case)
    loose = loose and not isinstance(expression, exp.Paren | exp.Dot)
    # AND, OR, COLLATE and -> are functions too, to sqlglot
    calls = isinstance(expression, exp.Func) and not isinstance(expression, exp.Binary)
    return exp.Paren(this=expression) if loose and not calls else expression


def binds(parent: exp.Expr | None) -> bool:
    """Return whether a node below `parent` is an operand of it."""
    operators = exp.Binary | exp.Unary | exp.Predicate | exp.Bracket | exp.Cast | exp.AtTimeZone
    return isinstance(parent, operators) and not isinstance(parent, exp.Paren)


def substituted(term: Term, branch: ClientBranch) -> Term:
    return replace(term, expression=substitute(term.expression, branch.columns))


def with_filters(relation: DraftRelation, terms: Iterable[Term]) -> DraftRelation:
    """The relation with conditions over its columns pushed into every branch."""
    added = tuple(terms)
    branches = tuple(
        replace(b, filters=(*b.filters, *(substituted(t, b) for t in added)))
        for b in relation.branches
    )
    return replace(relation, branches=branches)
