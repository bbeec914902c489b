"""Origins of a query's features, label, weight, keys and conditions: columns of tables.

They are read from the fragments, where definitions replace all names. A column of a view counts as
a table's column: its origin within the view is not visible, and neither is the origin of stored
values. If a query within a fragment is not understood, its result depends on everything that it
reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from sqlglot import exp

from sqlfl.contract import fragment_columns
from sqlfl.contract.fragment_columns import KEPT, TARGET
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.query.ucq import Fragment, Slot, Ucq

FEATURE = "feature"
LABEL = "label"
WEIGHT = "weight"
OFFSET = "offset"
KEY = "key"
CONDITION = "condition"
"""Kinds of a `Use`."""
ALL = "*"
_SPECIAL = {TARGET: LABEL, fragment_columns.WEIGHT: WEIGHT, fragment_columns.OFFSET: OFFSET}


@dataclass(frozen=True)
class Origin:
    """A column of a table of one client; names in lower case."""

    client: str
    table: str
    column: str
    """ALL where the whole row is read; with a point between, a field of a struct."""

    def meets(self, other: Origin) -> bool:
        """Return whether one contains the other, or they are equal."""
        if (self.client, self.table) != (other.client, other.table):
            return False
        pair = (self.column, other.column)
        short, long = sorted(pair, key=len)
        return ALL in pair or long == short or long.startswith(f"{short}.")


Origins: TypeAlias = "frozenset[Origin]"
NOTHING: Origins = frozenset()


@dataclass(frozen=True)
class Use:
    """A quantity that a slot's fragments compute from columns."""

    what: str
    """FEATURE, LABEL, WEIGHT, OFFSET, KEY or CONDITION."""
    slot: int
    name: str
    """Name of a feature; else empty."""
    origins: Origins

    def meets(self, other: Use) -> bool:
        """Some column is in both."""
        return any(one.meets(two) for one in self.origins for two in other.origins)


def uses(ucq: Ucq) -> tuple[Use, ...]:
    """Return all uses, slot by slot; one for the conditions of a slot, and one for its keys."""
    by_use: dict[tuple[str, int, str], set[Origin]] = {}
    for slot in ucq.slots:
        for fragment in slot.evaluated:
            if fragment.virtual:
                continue  # over a row of NULLs
            for what, name, origins in _of_fragment(slot, fragment):
                by_use.setdefault((what, slot.index, name), set()).update(origins)
    return tuple(Use(*key, frozenset(origins)) for key, origins in by_use.items() if origins)


def views(ucq: Ucq) -> tuple[str, ...]:
    """Return `party.table` for tables without a known size, as views are."""
    paths: dict[str, None] = {}
    for slot in ucq.slots:
        for fragment in slot.evaluated:
            source = fragment.select.args["from_"].this
            alone = isinstance(source, exp.Table) and not fragment.select.args.get("joins")
            if alone and fragment.rows is None and not fragment.virtual:
                path = ".".join(part.name for part in source.parts)
                paths[f"{fragment.client.party}.{path}"] = None
    return tuple(paths)


def _of_fragment(slot: Slot, fragment: Fragment) -> Iterator[tuple[str, str, Origins]]:
    select = fragment.select
    scope = _Scope.of(select, str(fragment.client).lower())
    features = {feature.name.lower(): feature.name for feature in slot.features}
    keys: list[str] = []
    for output in select.expressions:
        name = output.alias_or_name.lower()
        if name in _SPECIAL:
            yield _SPECIAL[name], "", scope.read(output)
        elif name in features:
            yield FEATURE, features[name], scope.read(output)
        elif name.startswith(fragment_columns.KEY):
            keys.append(to_sql(output.unalias()))
            yield KEY, "", scope.read(output)
    for condition in _conditions(select):
        if not _presence(condition, keys):
            yield CONDITION, "", scope.read(condition)
    yield CONDITION, "", frozenset(o for s in scope.sources.values() for o in s.filtered())


def _conditions(select: exp.Select) -> Iterator[exp.Expr]:
    """Yield the conditions that decide which rows exist and count, each part of an AND
    separately.
    """
    clauses = (select.args.get(name) for name in ("where", "having", "qualify"))
    conditions = [clause.this for clause in clauses if clause is not None]
    conditions += [e.unalias() for e in select.expressions if e.alias_or_name.lower() == KEPT]
    for part in conditions:
        yield from part.flatten() if isinstance(part, exp.And) else [part]
    for name in ("group", "distinct", "order", "limit", "offset", "sample"):
        part = select.args.get(name)
        if isinstance(part, exp.Expr):
            yield part
    source = select.args.get("from_")
    inner = [] if source is None else source.this.args.get("joins") or []
    for join in [*(select.args.get("joins") or []), *inner]:
        if join.args.get("on") is not None:
            yield join.args["on"]
        yield from join.args.get("using") or []


def _presence(condition: exp.Expr, keys: Iterable[str]) -> bool:
    """Return whether the condition only requires that a key is not NULL, which every
    key implies.
    """
    test = condition.this if isinstance(condition, exp.Not) else None
    if not isinstance(test, exp.Is) or not isinstance(test.expression, exp.Null):
        return False
    return any(to_sql(test.this.unnest()) in key for key in keys)


class _Source:
    """An item of FROM."""

    def column(self, whole: str) -> Origins:
        """Return the origins of a column, or, with dots, of a field of it."""
        return NOTHING

    def everything(self) -> Origins:
        return NOTHING

    def filtered(self) -> Origins:
        """Return the origins that decide which rows it has."""
        return NOTHING


@dataclass(frozen=True)
class _Table(_Source):
    client: str
    path: str

    def column(self, whole: str) -> Origins:
        return frozenset({Origin(self.client, self.path, whole)})

    def everything(self) -> Origins:
        return self.column(ALL)


@dataclass(frozen=True)
class _Computed(_Source):
    """A function of columns, such as UNNEST."""

    origins: Origins

    def column(self, whole: str) -> Origins:
        return self.origins

    def everything(self) -> Origins:
        return self.origins


@dataclass(frozen=True)
class _Query(_Source):
    query: exp.Expr
    outer: _Scope

    def column(self, whole: str) -> Origins:
        query = _unwrapped(self.query)
        if not isinstance(query, exp.Select):
            return self.everything()
        scope = _Scope.of(query, self.outer.client, self.outer)
        name, _, _ = whole.partition(".")
        named = [e for e in query.expressions if e.alias_or_name.lower() == name]
        if named:
            return frozenset(o for e in named for o in scope.read(e))
        stars = [e for e in query.expressions if e.find(exp.Star)]
        if len(stars) == len(query.expressions) == 1 and isinstance(stars[0], exp.Star):
            return frozenset(o for s in scope.sources.values() for o in s.column(whole))
        return self.everything()

    def everything(self) -> Origins:
        return _read(self.query, self.outer)

    def filtered(self) -> Origins:
        query = _unwrapped(self.query)
        if not isinstance(query, exp.Select):
            return self.everything()
        scope = _Scope.of(query, self.outer.client, self.outer)
        found = [scope.read(condition) for condition in _conditions(query)]
        found += [source.filtered() for source in scope.sources.values()]
        return frozenset(o for origins in found for o in origins)


def _unwrapped(query: exp.Expr) -> exp.Expr:
    while isinstance(query, exp.Subquery) and not query.args.get("joins"):
        query = query.this
    return query


@dataclass(frozen=True)
class _Scope:
    """The names of a SELECT's FROM, and of the queries around it."""

    client: str
    sources: Mapping[str, _Source] = field(default_factory=dict)
    known: Mapping[str, _Source] = field(default_factory=dict)
    """CTEs that WITH defines."""
    outer: _Scope | None = None

    @classmethod
    def of(cls, select: exp.Select, client: str, outer: _Scope | None = None) -> _Scope:
        known = dict(outer.known) if outer is not None else {}
        base = cls(client, {}, known, outer)
        clause = select.args.get("with_")
        for cte in clause.expressions if clause is not None else ():
            known[cte.alias.lower()] = _Query(cte.this, cls(client, {}, dict(known), outer))
        sources: dict[str, _Source] = {}
        for item in _items(select):
            alias = item.alias_or_name.lower() or f"#{len(sources)}"
            before = cls(client, dict(sources), known, outer)
            sources[alias] = base._source(item, before)
        return cls(client, sources, known, outer)

    def _source(self, item: exp.Expr, before: _Scope) -> _Source:
        if isinstance(item, exp.Table) and isinstance(item.this, exp.Identifier):
            name = item.name.lower()
            if not item.db and name in self.known:
                return self.known[name]
            return _Table(self.client, ".".join(part.name.lower() for part in item.parts))
        if isinstance(item, exp.Subquery):
            return _Query(item, before)
        return _Computed(before.read(item))

    def read(self, expression: exp.Expr) -> Origins:
        """Return the columns in the expression."""
        origins: set[Origin] = set()
        waiting = [expression]
        while waiting:
            node = waiting.pop()
            if isinstance(node, exp.Query):
                origins |= _read(node, self)
            elif isinstance(node, exp.Column):
                origins |= self._column([part.name.lower() for part in node.parts])
            else:
                waiting += node.iter_expressions()
        return frozenset(origins)

    def _column(self, names: list[str]) -> Origins:
        """A name alone may be a column of each source; one of a source may be its whole row."""
        scope: _Scope | None = self
        while scope is not None:
            if names[0] in scope.sources:
                source = scope.sources[names[0]]
                return source.column(".".join(names[1:])) if len(names) > 1 else source.everything()
            scope = scope.outer
        name = ".".join(names)
        origins = {o for s in self.sources.values() for o in s.column(name)}
        return frozenset(
            origins | (self.outer._column(names) if self.outer is not None else NOTHING)
        )


def _items(select: exp.Select) -> Iterator[exp.Expr]:
    """Yield the items of FROM, without parentheses around joins."""
    source = select.args.get("from_")
    waiting = [] if source is None else [source.this]
    waiting += [join.this for join in select.args.get("joins") or []]
    waiting += select.args.get("laterals") or []
    while waiting:
        item = waiting.pop(0)
        waiting += [join.this for join in item.args.get("joins") or []]
        if isinstance(item, exp.Subquery) and not isinstance(item.this, exp.Query):
            waiting.append(item.this)
        else:
            yield item


def _read(query: exp.Expr, outer: _Scope) -> Origins:
    """Return all columns that a query reads."""
    origins: set[Origin] = set()
    waiting = [query]
    while waiting:
        one = _unwrapped(waiting.pop())
        if isinstance(one, exp.Select):
            origins |= _read_by(one, outer)
        else:
            waiting += [part for part in one.iter_expressions() if isinstance(part, exp.Query)]
    return frozenset(origins)


def _read_by(query: exp.Select, outer: _Scope) -> Origins:
    scope = _Scope.of(query, outer.client, outer)
    origins: set[Origin] = set()
    for name, part in query.args.items():
        if name in ("from_", "joins", "laterals", "with_"):
            continue
        for item in part if isinstance(part, list) else [part]:
            if isinstance(item, exp.Expr):
                origins |= scope.read(item)
    for condition in _conditions(query):
        origins |= scope.read(condition)
    for source in scope.sources.values():
        origins |= source.filtered()
        if query.find(exp.Star) is not None:
            origins |= source.everything()
    return frozenset(origins)
