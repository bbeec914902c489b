"""Common table expressions: the meaning of table names without a party."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from sqlglot import exp

from sqlfl.contract.schema import folded
from sqlfl.planner.grammar.parsing import unions_of
from sqlfl.planner.grammar.refusals import function_name
from sqlfl.planner.grammar.trees import nodes


@dataclass(frozen=True, eq=False)
class Cte:
    """A query of WITH, bound to no table yet."""

    query: exp.Query
    columns: tuple[str, ...]
    environment: Environment
    """CTEs that its own query can name, without itself."""
    node: exp.CTE
    recursive: bool
    """True if it is defined in WITH RECURSIVE."""

    @property
    def name(self) -> str:
        return str(self.node.alias)

    @property
    def calls_itself(self) -> bool:
        return self.recursive and any(cte is self for _, cte in tables_of(self.query, self.inside))

    @property
    def inside(self) -> Environment:
        """Return the CTEs that its own query can name."""
        itself = {folded(self.name): self} if self.recursive else {}
        return {**self.environment, **itself}


Environment: TypeAlias = Mapping[str, Cte]
"""Name in lower case -> the CTE."""


def with_ctes(query: exp.Expr, environment: Environment) -> Environment:
    """Return the CTEs that a query can name, those of its own WITH included."""
    with_ = query.args.get("with_")
    if with_ is None:
        return environment
    known = dict(environment)
    recursive = bool(with_.args.get("recursive"))
    for cte in with_.expressions:
        names = tuple(cte.alias_column_names)
        known[folded(cte.alias)] = Cte(cte.this, names, dict(known), cte, recursive)
    return known


def tables_of(
    node: exp.Expr, environment: Mapping[str, Cte | None]
) -> Iterator[tuple[exp.Table, Cte | None]]:
    """Yield the tables in all FROMs below, each with the CTE that it names.

    The CTE is None for a party's table, a function, and a CTE that is defined below `node`. Raises
    `Nameless` for an unknown name.
    """
    parts = unions_of(node) if isinstance(node, exp.SetOperation) else [node]
    within: list[tuple[exp.Expr, Mapping[str, Cte | None]]] = []
    for part in parts:
        environment = yield from _defined(part, environment)
        within.append((part, environment))
    if isinstance(parts[-1], exp.SetOperation):
        yield from tables_of(parts[-1].left, environment)
    for part, known in reversed(within):
        if isinstance(part, exp.Table):
            yield from _table(part, known)
        done = [part.args.get("with_"), part.this if isinstance(part, exp.SetOperation) else None]
        for child in part.iter_expressions():
            if not any(child is other for other in done):
                yield from tables_of(child, known)


def _defined(
    node: exp.Expr, environment: Mapping[str, Cte | None]
) -> Generator[tuple[exp.Table, Cte | None], None, Mapping[str, Cte | None]]:
    """Yield the tables in the WITH of a node; return the CTEs that the node can name."""
    with_ = node.args.get("with_")
    if with_ is None:
        return environment
    known = dict(environment)
    recursive = bool(with_.args.get("recursive"))
    for cte in with_.expressions:
        inside = {**known, folded(cte.alias): None} if recursive else known
        yield from tables_of(cte.this, inside)
        known[folded(cte.alias)] = None
    return known


class Nameless(LookupError):
    """A table without party that is no CTE."""

    def __init__(self, table: exp.Table) -> None:
        super().__init__(table.name)
        self.table = table


def _table(
    node: exp.Table, known: Mapping[str, Cte | None]
) -> Iterator[tuple[exp.Table, Cte | None]]:
    if node.db or isinstance(node.this, exp.Func):
        yield node, None
    elif isinstance(node.this, exp.Identifier):
        if folded(node.name) not in known:
            raise Nameless(node)
        yield node, known[folded(node.name)]


def local_names(node: exp.Expr) -> frozenset[str]:
    """Return the names, in lower case, of all CTEs defined in the query or below."""
    return frozenset(folded(cte.alias) for cte in nodes(node, exp.CTE))


# -- named twice -----------------------------------------------------------------------------------

_BY_ORDER = frozenset((
    "any_value", "arbitrary", "array_agg", "first", "group_concat", "last", "list", "listagg",
    "string_agg",
))  # fmt: skip
"""Aggregates that depend on the order of rows."""


def repeated(query: exp.Expr, environment: Environment) -> Cte | None:
    """Return a CTE that the query names more than once and that may have other rows at each
    evaluation. DuckDB treats it as one table.
    """
    known = with_ctes(query, environment)
    for name, cte in known.items():
        if len(_names(query, name)) > 1 and _is_unstable(cte, set()):
            return cte
    return None


def spread(query: exp.Expr, cte: Cte) -> bool:
    """Return True where several items of FROM name the CTE, or another clause does."""
    if not isinstance(query, exp.Select) or query.args.get("from_") is None:
        return True
    items = [query.args["from_"].this, *(join.this for join in query.args.get("joins") or [])]
    every = len(_names(query, folded(cte.name)))
    derived = [item for item in items if isinstance(item, exp.Subquery)]
    return not any(len(_names(item, folded(cte.name))) == every for item in derived)


def _names(query: exp.Expr, name: str) -> list[exp.Table]:
    return [t for t in nodes(query, exp.Table) if not t.db and folded(t.name) == name]


def _is_unstable(cte: Cte, seen: set[Cte]) -> bool:
    if cte in seen:
        return False
    seen.add(cte)
    return is_unstable(cte.query, cte.inside, seen)


def is_unstable(query: exp.Expr, known: Environment, seen: set[Cte] | None = None) -> bool:
    """Return True if the query may have other rows each time that it is evaluated: it has a sample,
    a LIMIT without ORDER BY, or values that depend on the order of rows."""
    for node in query.walk():
        if isinstance(node, exp.TableSample) or node.args.get("sample"):
            return True
        cut = node.args.get("limit") or node.args.get("offset")
        if isinstance(node, exp.Query) and cut and not node.args.get("order"):
            return True
        bare = isinstance(node, exp.Window) and not node.args.get("order")
        if bare and function_name(node.this) in _NUMBERED:
            return True
        by_order = isinstance(node, exp.Anonymous) and function_name(node) in _BY_ORDER
        if by_order and node.find(exp.Order, exp.Ordered) is None:
            return True
    found = set() if seen is None else seen
    inner = (known.get(folded(t.name)) for t in nodes(query, exp.Table) if not t.db)
    return any(_is_unstable(other, found) for other in inner if other is not None)


_NUMBERED = _BY_ORDER | {"row_number", "first_value", "last_value", "nth_value", "lag", "lead"}
