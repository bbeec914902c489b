"""What a query is while the rules work on it: blocks of relations, each with its branches.

Columns of a relation are written `Column(name, table='#n')`, columns of a source
`Column(name, table='@n')`; `substitute` takes the former to the latter, branch by branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from sqlfl.planner.emit import identifier
from sqlfl.planner.statements import Span
from sqlfl.schema import Client

CLIENT_MARK = "sqlfl_client"
"""Key in the meta of a subquery: the client whose tables it reads."""


@dataclass(frozen=True)
class Term:
    """An expression and the place in the text that it was written at."""

    expression: exp.Expr
    span: Span | None


@dataclass(frozen=True)
class Source:
    """What stands in the FROM of a fragment: a table, or a query that goes to the client whole."""

    id: str
    item: exp.Table | exp.Subquery
    name: str
    """Its alias in the fragment, where one is needed."""
    path: tuple[str, ...]
    """party, schema if any, table; only the party for a query."""
    rows: int | None


@dataclass(frozen=True)
class Branch:
    """The part of a relation that one client holds."""

    client: Client
    sources: tuple[Source, ...]
    columns: Mapping[tuple[str, str], exp.Expr]
    """(relation id, column in lower case) -> expression over the sources."""
    filters: tuple[Term, ...] = ()


@dataclass(frozen=True)
class Relation:
    """A table position of a block."""

    ids: tuple[str, ...]
    """More than one where relations were fused."""
    name: str
    span: Span | None
    branches: tuple[Branch, ...]

    @property
    def label(self) -> str:
        paths = dict.fromkeys(".".join(s.path) for b in self.branches for s in b.sources)
        text = " and ".join(paths) if len(paths) <= 2 else f"{next(iter(paths))} and others"
        return text if text.split(".")[-1] == self.name else f"{self.name} ({text})"

    @property
    def client(self) -> Client | None:
        """Where there is a single branch."""
        return self.branches[0].client if len(self.branches) == 1 else None

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(b.client.party for b in self.branches))


@dataclass(frozen=True)
class Item:
    """A name of FROM and the columns behind it."""

    name: str
    columns: tuple[tuple[str, Term], ...]
    path: tuple[str, ...] = ()
    """For `party.table.column`: of a table without an alias."""
    hidden: frozenset[str] = frozenset()
    """Columns merged by USING: not to be found without the item's name."""

    def find(self, name: str) -> Term | None:
        return next((t for n, t in self.columns if n.lower() == name.lower()), None)


@dataclass(frozen=True)
class Output:
    name: str
    term: Term
    relation: int = -1
    """Index of the relation that it is evaluated on, once known."""
    type: str = ""


@dataclass(frozen=True)
class Equality:
    """An equality between expressions of two relations, compared as `type`."""

    left: int
    right: int
    terms: tuple[Term, Term]
    type: str = ""
    span: Span | None = None


@dataclass(frozen=True)
class Block:
    """A select-project-join query."""

    relations: tuple[Relation, ...]
    conditions: tuple[Term, ...]
    outputs: tuple[Output, ...]
    items: tuple[Item, ...] = ()
    """Of its own FROM; for the ID clause."""
    span: Span | None = None
    identifiers: tuple[Output, ...] = ()
    equalities: tuple[Equality, ...] = ()
    slots: tuple[int, ...] = ()
    """Slot of each relation."""

    def of(self, id_: str) -> int:
        return next(i for i, r in enumerate(self.relations) if id_ in r.ids)

    def reads(self, term: Term) -> tuple[int, ...]:
        """Indices of the relations whose columns the term reads."""
        ids = {c.table for c in term.expression.find_all(exp.Column) if c.table.startswith("#")}
        return tuple(sorted({self.of(id_) for id_ in ids}))


def column(name: str, table: str) -> exp.Column:
    return exp.Column(this=identifier(name), table=exp.to_identifier(table))


def clients_of(expression: exp.Expr) -> tuple[Client, ...]:
    """The clients whose tables the subqueries of the expression read."""
    found = (node.meta_get(CLIENT_MARK) for node in expression.walk())
    return tuple(dict.fromkeys(c for c in found if isinstance(c, Client)))


def substitute(expression: exp.Expr, columns: Mapping[tuple[str, str], exp.Expr]) -> exp.Expr:
    """The expression with each column of a relation replaced by what it stands for."""
    holder = exp.Paren(this=expression.copy())
    for node in list(holder.find_all(exp.Column)):
        found = columns.get((node.table, node.name.lower()))
        if found is not None:
            parent = node.parent if node.parent is not holder else None
            node.replace(operand(found.copy()) if binds(parent) else found.copy())
    result: exp.Expr = holder.this
    return result


def operand(expression: exp.Expr) -> exp.Expr:
    """The expression, in parentheses where its text would fall apart beside an operator."""
    loose = isinstance(expression, exp.Binary | exp.Unary | exp.Predicate | exp.Case)
    loose = loose and not isinstance(expression, exp.Paren | exp.Dot)
    # AND, OR, COLLATE and -> are functions too, to sqlglot
    calls = isinstance(expression, exp.Func) and not isinstance(expression, exp.Binary)
    return exp.Paren(this=expression) if loose and not calls else expression


def binds(parent: exp.Expr | None) -> bool:
    """Whether what stands below `parent` is an operand of it."""
    operators = exp.Binary | exp.Unary | exp.Predicate | exp.Bracket | exp.Cast | exp.AtTimeZone
    return isinstance(parent, operators) and not isinstance(parent, exp.Paren)


def substituted(term: Term, branch: Branch) -> Term:
    return replace(term, expression=substitute(term.expression, branch.columns))


def with_filters(relation: Relation, terms: Iterable[Term]) -> Relation:
    """The relation with conditions over its columns pushed into every branch."""
    added = tuple(terms)
    branches = tuple(
        replace(b, filters=(*b.filters, *(substituted(t, b) for t in added)))
        for b in relation.branches
    )
    return replace(relation, branches=branches)
