"""Resolve a name in an expression, in DuckDB's order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.contract.schema import folded
from sqlfl.planner.grammar.spans import plan_error
from sqlfl.planner.grammar.statements import Span
from sqlfl.planner.grammar.trees import copied
from sqlfl.planner.query.dotted_names import DottedName, field, is_of_table
from sqlfl.planner.query.names import listed, nearest
from sqlfl.planner.query.relations import Item, Merged, Term

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
        value = field(value, word)
    return value


def _meant(chain: DottedName, close: str | None) -> str | None:
    """Return the hint for an unknown column; double quotes may have been meant for a text."""
    word = chain.words[-1]
    if not word.quoted or len(chain.words) > 1:
        return close
    text = exp.Literal.string(word.name).sql(dialect="duckdb")
    also = f"; {close}" if close is not None and close.startswith("did") else ""
    return f"a text stands in single quotes: {text}; double quotes are for names{also}"
