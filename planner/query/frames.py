"""Resolve names inside a subquery: first its own tables, then those around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from sqlglot import exp

from sqlfl.contract.schema import folded
from sqlfl.planner.grammar.refusals import function_name
from sqlfl.planner.query.columns import distinct
from sqlfl.planner.query.dotted_names import chain_of
from sqlfl.planner.query.scopes import MAX_WORDS, Scope
from sqlfl.planner.query.types import has_fields

Columns: TypeAlias = tuple[str, ...] | None
"""Names of columns in order; None if unknown."""
Outputs: TypeAlias = Callable[[], Columns]
"""The columns of a query, asked of its database where only that knows them."""


@dataclass(frozen=True, eq=False)
class Inner:
    """An item of the FROM of a subquery."""

    name: str
    columns: Callable[[], Columns]
    paths: frozenset[tuple[str, ...]] = frozenset()
    """Other spellings of its name in lower case: the ends of `party.schema.table`."""
    native: tuple[exp.Expr, ...] = ()
    """Its name in its own database, if it has `paths`."""
    hidden: tuple[str, ...] = ()
    """Columns that a star leaves out."""
    types: Callable[[], Sequence[str] | None] = lambda: None
    """Types of the columns, in order; None if unknown."""

    def goes_by(self, words: Sequence[str]) -> bool:
        return tuple(words) in self.paths or [*words] == [folded(self.name)]

    def has(self, column: str) -> bool:
        """Return whether it is known to have the column, in lower case."""
        return column in (_known(self) or ())

    def is_plain(self, column: str) -> bool:
        """Return whether the column is known to have no fields."""
        columns, types = self.columns(), self.types()
        known = zip(columns, types, strict=False) if columns and types else ()
        found = [type_ for name, type_ in known if folded(name) == column]
        return bool(found) and not any(map(has_fields, found))


def with_aliases(columns: Columns, aliases: Sequence[str]) -> Columns:
    """The columns as `AS t(a, b)` calls them, repeated names numbered."""
    return None if columns is None else distinct([*aliases, *columns[len(aliases) :]])


@dataclass(frozen=True)
class Match:
    """A name of an inner FROM."""

    item: Inner | None = None
    words: int = 0
    """Number of words before the column that name the item."""


UNSURE = Match()
"""A possible match: the columns of an item are unknown."""


@dataclass(frozen=True, eq=False)
class NameFrame:
    """The items visible at a place of a subquery, and the scope around them."""

    items: tuple[Inner, ...]
    outer: NameFrame | Scope | None
    aliases: frozenset[str] = frozenset()
    """Outputs of the SELECT that may be named, in lower case; they precede outer names."""
    within_aggregates: bool = True
    """They may be named in the arguments of aggregates too."""

    def with_aliases(self, names: frozenset[str]) -> NameFrame:
        return replace(self, aliases=names)

    def find(self, parts: Sequence[str]) -> Match | None:
        """Return the meaning of the words here, resolved as in DuckDB; None without one."""
        words = [folded(part) for part in parts]
        unsure = False
        for length in range(min(MAX_WORDS, len(words) - 1), 0, -1):
            for item in self.items:
                if item.goes_by(words[:length]):
                    known = _known(item)
                    unsure |= known is None
                    if known is not None and words[length] in known:
                        return Match(item, length)
        for item in self.items:
            known = _known(item)
            unsure |= known is None
            if known is not None and words[0] in known:
                return Match(item)
        if len(words) == 1:
            named = (item for item in self.items if folded(item.name) == words[0])
            row = next(named, None)
            if row is not None or words[0] in self.aliases:
                return Match(row)
        return UNSURE if unsure else None


def _known(item: Inner) -> frozenset[str] | None:
    columns = item.columns()
    if columns is None:
        return None
    return frozenset(folded(name) for name in (*columns, *item.hidden))


# -- columns of a SELECT ---------------------------------------------------------------------------


def outputs_of(select: exp.Select, items: Sequence[Inner], merged: bool) -> Columns:
    """Return the names of the SELECT's columns; None if only its database knows them."""
    names: list[str] = []
    for place, projection in enumerate(select.expressions):
        outputs = _output(projection, items, merged, f"\0{place}")
        if outputs is None:
            return None
        names += outputs
    return tuple(names)


def _output(
    projection: exp.Expr, items: Sequence[Inner], merged: bool, unnamed: str
) -> Sequence[str] | None:
    if isinstance(projection, exp.Star):
        parts = [item.columns() for item in items]
        plain = not merged and not any(projection.args.values())
        return None if not plain or None in parts else [n for part in parts for n in part or ()]
    if isinstance(projection, exp.Column) and isinstance(projection.this, exp.Star):
        words = [folded(part.name) for part in projection.parts[:-1]]
        matching = [item for item in items if item.goes_by(words)]
        plain = len(matching) == 1 and not any(projection.this.args.values())
        return matching[0].columns() if plain else None
    if isinstance(projection, exp.Alias):
        return [projection.alias]
    if projection.find(exp.Star, exp.Columns, exp.Explode, exp.Unnest, exp.PositionalColumn):
        return None
    chain = chain_of(projection.unnest())
    named = chain is not None and not chain.is_method
    return [chain.parts[-1] if chain is not None and named else unnamed]


# -- items -----------------------------------------------------------------------------------------


def joined(node: exp.Subquery, items: Sequence[Inner]) -> Inner:
    """Joins in parentheses, with an alias."""

    def columns() -> Columns:
        parts = [item.columns() for item in items]
        if any(part is None for part in parts):
            return None
        names = distinct([name for part in parts for name in part or ()])
        return with_aliases(names, node.alias_column_names)

    return Inner(node.alias, columns)


def series_name(node: exp.Expr) -> str | None:
    """Return the name of the one column of `unnest`, `range` or `generate_series`; None
    for others.
    """
    inner = node.this if isinstance(node, exp.Table | exp.Lateral) else node
    call = inner.this if isinstance(inner, exp.Table) else inner
    if isinstance(call, exp.Anonymous) and function_name(call) in ("range", "generate_series"):
        return function_name(call)
    return "unnest" if isinstance(inner, exp.Unnest) else None


def late(outputs: Sequence[Outputs], aliases: Sequence[str]) -> Outputs:
    """The columns of a CTE, once they are known."""
    return lambda: with_aliases(outputs[0](), aliases) if outputs else None
