"""What can be named at a place of a statement, and the ways to write the name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.planner.random.draws import Draws
from tests.planner.random.world import INT, PARTIES

POOL = ("q", "t", "n", "k", "u", "st", "p", "x", "v", "s", "id", "f", "w", "a", "kv", "r", "y")
"""Aliases, and names of columns that queries compute: the same few for both."""


@dataclass(frozen=True)
class Column:
    name: str
    """As it is written: in quotes where it needs them."""
    type: str
    party: str | None
    """None for what belongs to nobody: constants."""

    @property
    def folded(self) -> str:
        return self.name.strip('"').lower()


@dataclass(frozen=True)
class Source:
    """An item of FROM under the name by which its columns are called."""

    alias: str
    columns: tuple[Column, ...]
    path: str | None = None
    """Of a table without alias, by which its columns can be called too."""


@dataclass(frozen=True)
class Scope:
    """The sources of a FROM, inside the scopes around it."""

    sources: tuple[Source, ...] = ()
    merged: tuple[Column, ...] = ()
    """Of USING and NATURAL: one name for the columns of several sources."""
    variables: tuple[str, ...] = ()
    """Parameters of lambdas around the place; innermost last."""
    aliases: tuple[Column, ...] = ()
    """Of the select list so far, which later expressions may use."""
    outer: Scope | None = None
    equal: tuple[tuple[str, Column], ...] = ()
    """Values that a join makes of equal columns, `coalesce(a.k, b.k)`, and these columns."""

    @property
    def columns(self) -> tuple[tuple[Source, Column], ...]:
        return tuple((source, column) for source in self.sources for column in source.columns)

    def shown(self) -> tuple[Column, ...]:
        """What a star gives: merged columns first, then the others."""
        names = {column.folded for column in self.merged}
        return (*self.merged, *(c for _, c in self.columns if c.folded not in names))

    def repeated(self) -> set[str]:
        """Names that a star gives more than once."""
        counts = Counter(column.folded for column in self.shown())
        return {name for name, count in counts.items() if count > 1}

    def inside(self, variable: str) -> Scope:
        return replace(self, variables=(*self.variables, variable))

    def parties(self) -> list[str]:
        found = {c.party for _, c in self.columns if c.party is not None}
        return [party for party in PARTIES if party in found]

    def names(self) -> Counter[str]:
        """How often each name stands for something here or around: column, table, parameter."""
        found = Counter(column.folded for _, column in self.columns)
        found.update(source.alias.strip('"').lower() for source in self.sources)
        found.update(name.lower() for name in self.variables)
        found.update(column.folded for column in self.aliases)
        return found if self.outer is None else found + self.outer.names()

    def depth(self) -> int:
        return 0 if self.outer is None else 1 + self.outer.depth()


def columns_of(scope: Scope, type_: str, home: str | None) -> list[tuple[Scope, Source, Column]]:
    """Columns of a type that a party has, of this scope and of those around it."""
    found = [
        (scope, source, column)
        for source, column in scope.columns
        if column.type == type_ and (home is None or column.party in (home, None))
    ]
    return found if scope.outer is None else [*found, *columns_of(scope.outer, type_, home)]


def is_plain(scope: Scope, owner: Scope, column: Column) -> bool:
    """The bare name means this column, as far as columns of sources go."""
    if column.folded in {name.lower() for name in scope.variables}:
        return False
    here = [c for _, c in scope.columns if c.folded == column.folded]
    if scope is not owner:
        return not here and scope.outer is not None and is_plain(scope.outer, owner, column)
    merged = any(c.folded == column.folded for c in scope.merged)
    return len(here) == 1 or merged


def written(draws: Draws, scope: Scope, owner: Scope, source: Source, column: Column) -> str:
    """The column, called in one of the ways that SQL has."""
    ways = ["qualified", "qualified"]
    if is_plain(scope, owner, column):
        ways += ["bare", "bare"]
    elif draws.chance(4):
        ways += ["bare"]
    if source.path is not None:
        ways += ["path"]
    return cased(draws, name_of(draws.pick(ways), source, column))


def name_of(way: str, source: Source, column: Column) -> str:
    if way == "bare":
        return column.name
    if way == "path":
        return f"{source.path}.{column.name}"
    return f"{source.alias}.{column.name}"


def cased(draws: Draws, text: str) -> str:
    """Names ignore case, quoted or not."""
    way = draws.weighted(((92, "as it is"), (4, "upper"), (4, "quoted")))
    if way == "upper":
        return text.upper()
    if way == "quoted" and '"' not in text:
        return ".".join(f'"{part}"' for part in text.split("."))
    return text


def variable(draws: Draws, scope: Scope) -> str:
    """A name for the parameter of a lambda: often that of a column, or of a table."""
    names = [c.name for _, c in scope.columns] + [s.alias for s in scope.sources]
    names = [name for name in names if '"' not in name]
    return draws.pick(names if names and draws.chance(60) else ("i", *POOL))


def fresh(draws: Draws, taken: Sequence[str], prefix: str = "c", near: Sequence[str] = ()) -> str:
    """A name that is not taken yet: a number, out of the pool, or that of something `near`."""
    folded = {name.strip('"').lower() for name in taken}
    others = [name for name in near if '"' not in name]
    name = draws.pick(others if others and draws.chance(50) else (f"{prefix}{len(folded)}", *POOL))
    number = len(folded)
    while name.lower() in folded:
        number += 1
        name = f"{prefix}{number}"
    return name


INTS = (INT, "BIGINT")
