"""Meanings of names in a SELECT, and the columns of tables behind them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from sqlfl.base.errors import PolicyError
from sqlfl.contract.schema import folded
from sqlfl.governance.sizes import DATA, SizeBound, largest, total

Table: TypeAlias = "tuple[str, str, str]"
"""Database, schema and name, as in the catalog."""


ASK = "ask its owner; or leave out what is not granted"


def unknown(name: str) -> PolicyError:
    """Return the error about a column without a grant. A missing column gets the same words."""
    return PolicyError(f"column {folded(name)} is not granted", hint=ASK)


def unnamed(table: Table) -> PolicyError:
    """Return the error about a column without a grant that a query reads without its name, by `*`
    or by a whole row. It does not give the name away.
    """
    return PolicyError(
        f"a whole row of {'.'.join(table[1:])} has columns that are not granted",
        hint="write the columns that are granted, each by its name",
    )


@dataclass(frozen=True, order=True)
class ScopeColumn:
    table: Table
    name: str
    """Name as in the table."""


Reads: TypeAlias = "frozenset[ScopeColumn]"
NONE: Reads = frozenset()


@dataclass(frozen=True, order=True)
class Bare:
    """Column of a table, passed through subqueries or casts and nothing else."""

    column: ScopeColumn
    casts: tuple[str, ...] = ()
    """Types that it is cast to, one after the other."""


@dataclass(frozen=True)
class SelectOutput:
    """Output of a SELECT."""

    name: str
    """Name, folded; empty if none is written."""
    reads: Reads = NONE
    """Columns that its value is made of."""
    same: ScopeColumn | None = None
    """The column that it is, up to its type or its case."""
    constant: str | None = None
    """Text of its value, if that is the same in every row."""
    whole: Table | None = None
    """The table whose whole row it is."""
    row: bool = False
    """True if it is the whole row of a table or a query of FROM."""
    bare: Bare | None = None
    """The column that it is, up to its type."""
    computed: bool = False
    """True unless it is a column, up to its type: also if it follows from the rows, is constant, or
    comes from a join, where conditions may have chosen between several values.
    """
    strict: bool = True
    """True if it is NULL, or NaN, only if one of its columns is."""
    size: SizeBound = DATA
    """Bound of its values' size."""
    joined: bool = False
    """True if its rows may be more than those of any table."""
    conditional: bool = False
    """True if a condition other than a link decides which rows have it."""
    of_rows: bool = False
    """True if it follows from rows, whatever their values: their number, or the place of one."""

    spread: bool = False
    """True if many rows may have a value that is made of few: by a window or a subquery."""

    @property
    def of_rows_alone(self) -> bool:
        """True if it follows from rows, and from no column's values."""
        return self.of_rows and not self.reads


@dataclass(frozen=True)
class ScopeSource:
    outputs: tuple[SelectOutput, ...]
    table: Table | None = None


@dataclass
class SelectScope:
    outer: SelectScope | None = None
    sources: dict[str, ScopeSource] = field(default_factory=dict)
    aliases: dict[str, tuple[SelectOutput, ...]] = field(default_factory=dict)
    """Outputs of the same SELECT."""
    names: frozenset[str] = frozenset()
    """Parameters of lambdas."""
    common: Mapping[str, ScopeSource] = field(default_factory=dict)
    """Queries of WITH."""
    looked_up: set[str] = field(default_factory=set)
    """Sources of the right side of a SEMI or ANTI JOIN, which are out of sight behind it."""
    choosing: bool = False
    """True if a condition may choose, for a row of one source, among rows of another by values."""

    def chain(self) -> Iterator[SelectScope]:
        scope: SelectScope | None = self
        while scope is not None:
            yield scope
            scope = scope.outer


def meanings(
    names: Sequence[str], scope: SelectScope
) -> tuple[list[SelectOutput], list[SelectOutput]]:
    """Return all possible meanings of a name, of which DuckDB takes one, and the possible outputs
    whose names are unknown, which do not prove that such a name exists.

    A simple name that a table of FROM has as a column means that column, or an alias of the same
    SELECT, and nothing farther out; one of a lambda's parameter means that alone. `t.a` where `t`
    is a source of FROM, and has a column `a`, means that, though a column `t` may have a field `a`.
    Otherwise everything in sight counts. A name with points is a table's column, with or without
    its schema, or a field of a column.
    """
    sure: list[SelectOutput] = []
    unsure: list[SelectOutput] = []
    parts = [folded(str(name)) for name in names]
    first = parts[0]
    for level in scope.chain():
        if len(parts) == 1 and first in level.names and not sure:
            break
        visible = first in level.sources and first not in level.looked_up
        if len(parts) == 2 and visible and not sure and not unsure:
            sure += named(level.sources[first].outputs, parts[1])
            if sure:
                break
        for place, part in enumerate(parts):
            source = level.sources.get(part)
            if source is not None and place + 1 < len(parts):
                sure += named(source.outputs, parts[place + 1])
            elif source is not None and len(parts) == 1:
                sure.append(_row_of(source.outputs))
        for other in level.sources.values():
            sure += named(other.outputs, first)
            unsure += [output for output in other.outputs if not output.name]
        sure += level.aliases.get(first, ())
        every = (output for other in level.sources.values() for output in other.outputs)
        if len(parts) == 1 and any(output.name == first for output in every):
            break
    return sure, unsure


def _row_of(outputs: Sequence[SelectOutput]) -> SelectOutput:
    """Return a table's row as one value, of which its name is the name too."""
    reads = frozenset().union(*(o.reads for o in outputs))
    size = total([o.size for o in outputs], 16.0 * len(outputs) + 16.0)
    of_rows = any(o.of_rows for o in outputs)
    return SelectOutput(
        "", reads, size=size, of_rows=of_rows, spread=any(o.spread for o in outputs)
    )


def is_field(names: Sequence[str], scope: SelectScope) -> bool:
    """Return whether a name may mean a part of a column's value, as a field of a STRUCT, rather
    than a column.
    """
    parts = [folded(str(name)) for name in names]
    if len(parts) == 1:
        return False
    levels = list(scope.chain())
    sources = [level.sources[parts[-2]] for level in levels if parts[-2] in level.sources]
    if not any(named(source.outputs, parts[-1]) for source in sources):
        return True
    outer = parts[-3] if len(parts) > 2 else ""
    before = [level.sources[outer] for level in levels if outer in level.sources]
    return any(named(source.outputs, parts[-2]) for source in before)


def is_joined(scope: SelectScope) -> bool:
    """Return whether rows of the scope's FROM may be more than those of any table."""
    sources = scope.sources.values()
    return len(sources) > 1 or any(output.joined for source in sources for output in source.outputs)


def has_table_twice(scope: SelectScope) -> bool:
    """Return whether a table stands in FROM twice: its columns are then those of two rows."""
    tables = [
        table
        for source in scope.sources.values()
        for table in {column.table for output in source.outputs for column in output.reads}
    ]
    return len(set(tables)) < len(tables)


def partnerless(
    join: object,
    left: Mapping[str, ScopeSource],
    right: Mapping[str, ScopeSource],
    *,
    chosen: bool,
) -> dict[str, ScopeSource]:
    """Return the sources of whose rows a join has NULL where it finds no partner. If a condition
    decides which rows have one, as where `chosen`, it makes the values.
    """
    sides = {"LEFT": [right], "RIGHT": [left], "OUTER": [left, right]}.get(str(join), [])
    return {
        name: replace(
            source,
            outputs=tuple(
                replace(o, computed=True) if chosen or o.conditional else o for o in source.outputs
            ),
        )
        for side in sides
        for name, source in side.items()
    }


def named(outputs: Iterable[SelectOutput], name: str) -> list[SelectOutput]:
    return [output for output in outputs if output.name == folded(name)]


def with_aliases(outputs: Iterable[SelectOutput]) -> dict[str, tuple[SelectOutput, ...]]:
    """Return the outputs by name; several may have one."""
    aliases: dict[str, tuple[SelectOutput, ...]] = {}
    for output in outputs:
        if output.name:
            aliases[output.name] = (*aliases.get(output.name, ()), output)
    return aliases


def by_name(scope: SelectScope, name: str) -> list[SelectOutput]:
    return [o for source in scope.sources.values() for o in named(source.outputs, str(name))]


def renamed(outputs: tuple[SelectOutput, ...], names: Sequence[str]) -> tuple[SelectOutput, ...]:
    if len(names) > len(outputs):
        raise PolicyError(f"{len(names)} names for {len(outputs)} columns")
    first = (
        replace(o, name=folded(str(name)), whole=None, row=False)
        for name, o in zip(names, outputs, strict=False)
    )
    return (*first, *outputs[len(names) :])


def merged(parts: tuple[SelectOutput, ...]) -> SelectOutput:
    """Return one output for the parts of a union."""
    same, bare = {part.same for part in parts}, {part.bare for part in parts}
    reads: Reads = frozenset().union(*(part.reads for part in parts))
    sizes = {part.size for part in parts}
    return SelectOutput(
        parts[0].name,
        reads,
        same.pop() if len(same) == 1 else None,
        bare=bare.pop() if len(bare) == 1 else None,
        computed=mixed(parts),
        strict=all(part.strict for part in parts),
        joined=any(part.joined for part in parts),
        conditional=any(part.conditional for part in parts),
        of_rows=any(part.of_rows for part in parts),
        spread=any(part.spread for part in parts),
        size=sizes.pop() if len(sizes) == 1 else largest([part.size for part in parts]),
    )


def mixed(parts: Sequence[SelectOutput]) -> bool:
    """Return True if a condition may decide how values of these outputs, of several queries, are
    made: if one is computed, or if rows of one table, or of one join, have different columns.
    """
    columns: Reads = frozenset().union(*(part.reads for part in parts))
    joined = len(columns) > 1 and any(part.joined for part in parts)
    several = joined or len({column.table for column in columns}) < len(columns)
    return several or any(part.computed for part in parts)


def all_common(scope: SelectScope) -> dict[str, ScopeSource]:
    common: dict[str, ScopeSource] = {}
    for level in scope.chain():
        common = {**level.common, **common}
    return common
