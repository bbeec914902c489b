"""Resolve a name in an expression, in DuckDB's order.

Inside a subquery its own tables come first, then those around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.contract.schema import folded
from sqlfl.planner.grammar.refusals import function_name
from sqlfl.planner.grammar.statements import Span
from sqlfl.planner.grammar.trees import copied, plan_error
from sqlfl.planner.query.columns import distinct
from sqlfl.planner.query.names import (
    DottedName,
    chain_of,
    is_of_table,
    listed,
    nearest,
    struct_field,
)
from sqlfl.planner.query.relations import Item, Merged, Term
from sqlfl.planner.query.types import has_fields

MAX_WORDS = 4
"""Words before a column: party.catalog.schema.table."""


@dataclass(frozen=True)
class Scope:
    """The names visible in one SELECT, or in one ON."""

    items: tuple[Item, ...]
    sql: str
    merged: tuple[Merged, ...] = ()
    aliases: tuple[tuple[str, Term], ...] = ()
    """Outputs that may be named; columns go before them, and of equal names the last is meant."""
    later: frozenset[str] = frozenset()
    """Outputs that are defined later, in lower case."""
    closed: frozenset[str] = frozenset()
    """Outputs with a subquery, in lower case; DuckDB allows no reference to them."""
    outer: Scope | None = None
    """Tables before a comma or a JOIN, for the ON in parentheses behind it; or those around a
    subquery.
    """
    is_plain: Callable[[Term], bool] | None = None
    """Test in WHERE of a subquery: true for a column x without fields, so that `x.y` is of a table
    outside."""

    def with_aliases(
        self,
        aliases: Sequence[tuple[str, Term]],
        later: frozenset[str] = frozenset(),
        closed: frozenset[str] = frozenset(),
    ) -> Scope:
        return replace(self, aliases=tuple(aliases), later=later, closed=closed)

    def resolve(self, chain: DottedName, where: exp.Expr | Span) -> exp.Expr:
        """Return the expression that the words mean. Raise PlanError for an unknown column."""
        expression = self.lookup(chain, where)
        if expression is None:
            raise self._unknown(chain, where)
        return expression

    def lookup(self, chain: DottedName, where: exp.Expr | Span) -> exp.Expr | None:
        """Resolve like `resolve`; return None for an unknown column."""
        expression = self.near(chain, where)
        if expression is None and len(chain.words) == 1:
            expression = self._alias(chain.parts[0], where)
        if expression is None and self.outer is not None:
            return self.outer.lookup(chain, where)
        return expression

    def near(self, chain: DottedName, where: exp.Expr | Span) -> exp.Expr | None:
        """Resolve like `lookup`, in the items alone: a column of a named table, or of any."""
        words = chain.words
        for length in range(min(MAX_WORDS, len(words) - 1), 0, -1):
            term = self._under(chain, length, where)
            if term is not None:
                return _fields(term, words[length + 1 :])
        term = self.bare(words[0].name, where)
        if term is not None and len(words) > 1 and self._is_outside(chain, where, term):
            term = None
        if term is not None:
            return _fields(term, words[1:])
        if len(words) == 1:
            self._refuse_row(chain, where)
        return None

    def has_table(self, chain: DottedName, where: exp.Expr | Span) -> bool:
        """Return whether the words name a table, here or outside, and its column."""
        lengths = range(1, min(MAX_WORDS + 1, len(chain.words)))
        if any(self._under(chain, length, where) is not None for length in lengths):
            return True
        return self.outer is not None and self.outer.has_table(chain, where)

    def _is_outside(self, chain: DottedName, where: exp.Expr | Span, term: Term) -> bool:
        """Return whether `x.y` is a column of a table x outside, although `term` is a column x."""
        if is_of_table(where) and self.outer is not None and self.outer.has_table(chain, where):
            return True
        return self.is_plain is not None and self.is_plain(term)

    def _alias(self, name: str, where: exp.Expr | Span) -> exp.Expr | None:
        if folded(name) in self.later:
            raise plan_error(
                f"column {name} is named before it is defined",
                self.sql,
                where,
                "define it further to the left, or write out what it stands for",
            )
        named = (term for n, term in reversed(self.aliases) if folded(n) == folded(name))
        output = next((term.expression.copy() for term in named), None)
        if output is not None and folded(name) in self.closed:
            raise plan_error(
                f"output {name} has a subquery, and cannot be named in the SELECT list",
                self.sql,
                where,
                "write the subquery again, or name it outside: FROM (SELECT ... AS column) AS t",
            )
        return output

    def bare(self, name: str, where: exp.Expr | Span) -> Term | None:
        """The column `name`, written alone; one that USING made goes before others."""
        made = [m for m in self.merged if folded(m.name) == folded(name)]
        if len(made) == 1:
            return made[0].term
        if made:
            items = [self.items[place] for m in made for place in m.items]
        else:
            items = [item for item in self.items if item.find(name) or _lacks(item, name)]
        if len(items) > 1:
            places = list(dict.fromkeys(f"{item.name}.{name}" for item in items))
            raise plan_error(
                f"column {name} is ambiguous: {' or '.join(places)}",
                self.sql,
                where,
                f"write {places[0]}"
                if len(places) > 1
                else "give each table an alias of its own: FROM party.table AS alias",
            )
        return self._present(items[0], name, where) if items else None

    def at(self, position: int, where: exp.Expr) -> exp.Expr:
        """`#position`, a column of FROM by its number from 1."""
        columns = [term for item in self.items for _, term in item.columns]
        lacking = [name for item in self.items for name, _ in item.lacking]
        if lacking or not 1 <= position <= len(columns):
            raise plan_error(
                f"#{position} is no column of FROM, which has {len(columns)}"
                if not lacking
                else f"#{position}: not all clients have the column {lacking[0]}",
                self.sql,
                where,
                "name the column",
            )
        return columns[position - 1].expression.copy()

    def name_at(self, position: int) -> str:
        """Return the name of a column of FROM that `at` finds."""
        return [name for item in self.items for name, _ in item.columns][position - 1]

    def named(self, words: Sequence[str]) -> list[int]:
        """Places of the items that go by the words, `alias` or the end of `party.schema.table`."""
        wanted = tuple(folded(word) for word in words)
        return [
            place
            for place, item in enumerate(self.items)
            if (wanted == (folded(item.name),) if len(wanted) == 1 else wanted in item.paths)
        ]

    def shown(self, excluded: frozenset[tuple[int, str]] = frozenset()) -> Iterator[StarColumn]:
        """Yield the columns of `*`, in the order of FROM.

        A column made by USING stands at the first item with it that is not `excluded`: pairs of an
        item and a column in lower case.
        """
        made = {(place, folded(m.name)): m for m in self.merged for place in m.items}
        seen: list[Merged] = []
        for place, item in enumerate(self.items):
            for name, term in item.columns:
                merged = made.get((place, folded(name)))
                if (place, folded(name)) in excluded or merged in seen:
                    continue
                if merged is not None:
                    seen.append(merged)
                    term = merged.term
                yield StarColumn(place, name, term)

    def _under(self, chain: DottedName, length: int, where: exp.Expr | Span) -> Term | None:
        """The first `length` words name an item, the next its column."""
        name = chain.parts[length]
        items = [self.items[place] for place in self.named(chain.parts[:length])]
        holders = [item for item in items if item.find(name) or _lacks(item, name)]
        if len(holders) > 1:
            raise plan_error(
                f"column {chain.written} is ambiguous: "
                f"{len(items)} tables go by the name {'.'.join(chain.parts[:length])}",
                self.sql,
                where,
                "give each table an alias of its own: FROM party.table AS alias",
            )
        return self._present(holders[0], name, where) if holders else None

    def _present(self, item: Item, name: str, where: exp.Expr | Span) -> Term:
        term = item.find(name)
        if term is None:
            raise plan_error(
                f"column {name} of {item.name} is not there at {_lacks(item, name)}",
                self.sql,
                where,
                "clients of one party need the same columns; add it there, or leave it out",
            )
        return term

    def _refuse_row(self, chain: DottedName, where: exp.Expr | Span) -> None:
        """Refuse a table's name alone: in DuckDB it means the row, and precedes an output of that
        name.
        """
        places = self.named(chain.parts)
        if places:
            item = self.items[places[0]]
            example = next((n for n, _ in item.columns), "column")
            raise plan_error(
                f"{chain.written} is a table, and stands for its whole row here",
                self.sql,
                where,
                f"name a column of it: {item.name}.{example}",
            )

    def _unknown(self, chain: DottedName, where: exp.Expr | Span) -> PlanError:
        scopes = list(self._chain())
        items = [item for scope in scopes for item in scope.items]
        name, table = chain.words[-1].name, chain.words[-2].name if len(chain.words) > 1 else ""
        owners = [i for i in items if table and folded(i.name) == folded(table)]
        if table and not owners:
            hint = nearest(table, (i.name for i in items)) or listed(i.name for i in items)
            return plan_error(
                f"column {chain.written}: there is no table {table} in FROM", self.sql, where, hint
            )
        names = [n for i in (owners or items) for n, _ in i.columns]
        holder = f"{owners[0].name} has no column {name}" if owners else None
        return plan_error(
            holder or f"there is no column {chain.written} in the tables of FROM",
            self.sql,
            where,
            _meant(chain, nearest(name, names)) or listed(names),
        )

    def _chain(self) -> Iterator[Scope]:
        yield self
        if self.outer is not None:
            yield from self.outer._chain()


@dataclass(frozen=True)
class StarColumn:
    """A column of a star."""

    item: int
    name: str
    term: Term


def _lacks(item: Item, name: str) -> str | None:
    return next((client for n, client in item.lacking if folded(n) == folded(name)), None)


def _fields(term: Term, words: Sequence[exp.Expr]) -> exp.Expr:
    value = copied(term.expression)
    for word in words:
        value = struct_field(value, word)
    return value


def _meant(chain: DottedName, close: str | None) -> str | None:
    """Return the hint for an unknown column; double quotes may have been meant for a text."""
    word = chain.words[-1]
    if not word.quoted or len(chain.words) > 1:
        return close
    text = exp.Literal.string(word.name).sql(dialect="duckdb")
    also = f"; {close}" if close is not None and close.startswith("did") else ""
    return f"a text stands in single quotes: {text}; double quotes are for names{also}"


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
