"""The normal form of a query: a union of conjunctive queries over slots and fragments.

Each expression of a fragment has its places in the statement.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from sqlglot import exp

from sqlfl.contract.fragment_columns import (
    GROUPS,
    IDENTIFIER,
    KEPT,
    KEY,
    OFFSET,
    RESERVED,
    TARGET,
    WEIGHT,
)
from sqlfl.contract.schema import Client, Made
from sqlfl.contract.transforms import AUTO, CURVE, VALUES, Transform
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.statements import Span

NUMERIC = "numeric"
BOOLEAN = "boolean"
ARRAY = "array"
CATEGORY = "category"


@dataclass(frozen=True)
class Feature:
    """An output column of the query that is not the target."""

    name: str
    """Name of the output column; equal in all blocks (the first block's)."""
    kind: str
    """NUMERIC, BOOLEAN, ARRAY or CATEGORY."""
    type: str
    """The DuckDB type at its first fragment."""
    width: int = 1
    """k of an array feature FLOAT[k], else 1."""
    transform: Transform | None = None
    """Its transform, if it is from TRANSFORM."""
    made: Made | None = None
    """Its derivation from output columns; None if it is one."""

    @property
    def pairs(self) -> int:
        """Return the maximum number of pairs of `auto` that it can be part of; 0 for none."""
        made = self.transform
        if made is None or made.function != AUTO or made.fitted or self.kind == ARRAY:
            return 0
        return made.count


@dataclass(frozen=True)
class JoinKey:
    """A composite key by which slots are joined; its index is the domain of its hash."""

    index: int
    types: tuple[str, ...]
    """The common DuckDB type that both sides of each part are cast to."""
    unit: str = ""
    """The expression whose equal values make rows of its slot one unit; no join uses such a key.
    Empty for a key of joins."""


@dataclass(frozen=True)
class Identifier:
    """A column that PREDICT returns beside each prediction."""

    name: str
    """Name in the result: the column's, or the whole path of the ID clause if that is taken."""


@dataclass(frozen=True)
class Fragment:
    """A single SELECT that one client evaluates for one slot, on its own database.

    Its columns are those of `sqlfl.contract.fragment_columns`, keys cast to the key's type. Rows
    with a NULL in a part of a key are filtered out, unless the key is among the slot's `nullable`.
    Keys of the slot that the fragment does not use are constants.
    """

    index: int
    """Position among the slot's fragments."""
    client: Client
    select: exp.Select
    rows: int | None
    """Estimated rows, from the catalog."""
    virtual: bool = False
    """True if its rows are virtual: at most one, the expressions over an all-NULL row, for joined
    rows without a partner in a LEFT JOIN.
    """
    beside: int | None = None
    """The fragment of the same SELECT that is evaluated once, together with this one. Rows with
    true `sqlfl_kept` belong to that one; others belong to this one, and only match.
    """
    parts: tuple[Fragment, ...] = ()
    """For a combining party: the fragments of its clients, each with its own `client` and `select`,
    and the index of this one. Its rows are all of theirs, and its `select` is one of them.
    """
    keyed: bool = False
    """True if its rows belong to a table with a declared key, which label noise follows from."""

    @property
    def links(self) -> bool:
        """Return whether its rows only match: their joined rows fail a WHERE, or have no label."""
        return self.beside is not None

    @cached_property
    def sql(self) -> str:
        return to_sql(self.select)


@dataclass(frozen=True)
class Slot:
    """One table position of the joins: a vertical table with its own model block."""

    index: int
    name: str
    """The alias in the first block that has the slot; unique in the query."""
    features: tuple[Feature, ...]
    target: bool
    identifiers: tuple[int, ...]
    """Indices into Ucq.identifiers."""
    keys: tuple[int, ...]
    """Indices into Ucq.keys of the keys whose tags this slot's clients send."""
    fragments: tuple[Fragment, ...]
    """Ordered by client (parties in order of attachment), then by block; virtual ones last of
    their client's."""
    nullable: tuple[int, ...] = ()
    """Indices among `keys` that rows may have a NULL in: such rows join nothing on the key, and
    stay.
    """
    weight: bool = False
    """True if it holds the column of WEIGHT."""
    offset: bool = False
    """True if it holds the column of OFFSET."""
    split: bool = False
    """Validation rows are drawn per row of this slot."""
    noised: bool = False
    """True if it holds the target, and labels are noised per row of it."""
    units: bool = False
    """True if joined rows of one of its rows may depend on each other, so that its rows are
    identified.
    """
    governed: bool = False
    """An owner of its tables has made a policy, and hears which of its rows are joined."""
    once: bool = False
    """True if its rows only match, and rows of all its clients with equal keys count as one: the
    table of a subquery in EXISTS or IN.
    """
    single: bool = False
    """True if its rows are groups of a GROUP BY over several parties. Then each must be in one
    joined row at most.
    """
    derived: tuple[str, ...] = ()
    """Conditions of its fragments that the query does not have, and that follow from others over
    equal keys; as text."""

    @property
    def shrunken(self) -> bool:
        """Return whether `auto` made some feature of it."""
        made = (feature.transform for feature in self.features)
        return any(item is not None and item.function == AUTO for item in made)

    @property
    def permuted(self) -> tuple[int, ...]:
        """Return the places of the features that IMPORTANCE permutes. A curve moves with its
        number."""
        beside = (CURVE, VALUES)
        return tuple(
            place
            for place, feature in enumerate(self.features)
            if feature.transform is None
            or feature.transform.function != AUTO
            or feature.transform.value not in beside
        )

    @property
    def refitted(self) -> bool:
        """Return whether each fit of TUNE encodes it anew, by the fit's training rows."""
        made = (feature.transform for feature in self.features)
        fitted = any(item is not None and item.fitted for item in made)
        return (self.shrunken or fitted) and len(self.clients) == 1

    @property
    def paired(self) -> tuple[Feature, ...]:
        """Return the features that pairs of `auto` may contain.

        There are none if a party combines its databases. Categories of several databases are
        excluded, because the databases know each other's only as hashes.
        """
        if self.databases != self.clients:
            return ()
        shared = len(self.clients) > 1
        kept = (f for f in self.features if f.pairs and not (shared and f.kind == CATEGORY))
        return tuple(kept)

    @property
    def pairs(self) -> int:
        """Return the maximum number of pairs of its features that `auto` adds; 0 for fewer than two
        features."""
        counts = [feature.pairs for feature in self.paired]
        return max(counts) if len(counts) > 1 else 0

    @property
    def crossings(self) -> int:
        """Return the number of pairs of the features that pairs may contain."""
        return len(self.paired) * (len(self.paired) - 1) // 2

    @property
    def base(self) -> bool:
        """Return whether its fragments have `sqlfl_base`."""
        return self.split or self.noised

    @cached_property
    def clients(self) -> tuple[Client, ...]:
        return tuple(self._by_client)

    @property
    def merging(self) -> tuple[Client, ...]:
        """Return the clients with groups of rows that several databases of a party merge."""
        return tuple(c for c in self.clients if any(self.groups(c)))

    def groups(self, client: Client) -> tuple[str, ...]:
        """Return the SELECT of groups in each SELECT of a client's fragments; empty texts without
        groups.
        """
        parts = (part for f in self.of(client) for part in f.parts or (f,))
        found = (groups_of(part.select) for part in parts)
        return tuple("" if own is None else to_sql(own.this) for own in found)

    def of(self, client: Client) -> tuple[Fragment, ...]:
        """Return its fragments at a client; empty without any."""
        return self._by_client.get(client, ())

    @cached_property
    def _by_client(self) -> dict[Client, tuple[Fragment, ...]]:
        by_client: dict[Client, list[Fragment]] = {}
        for fragment in self.fragments:
            by_client.setdefault(fragment.client, []).append(fragment)
        return {client: tuple(fragments) for client, fragments in by_client.items()}

    @cached_property
    def evaluated(self) -> tuple[Fragment, ...]:
        """Return the fragments that databases evaluate: the parts, for a combining party."""
        return tuple(part for f in self.fragments for part in f.parts or (f,))

    @cached_property
    def databases(self) -> tuple[Client, ...]:
        """Return the clients that evaluate the fragments: `clients`, with combined clients in place
        of their party's.
        """
        return tuple(dict.fromkeys(f.client for f in self.evaluated))

    @cached_property
    def parties(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(c.party for c in self.clients))


@dataclass(frozen=True)
class Join:
    """A join of two slots' rows with equal tags of `key`; a NULL equals nothing."""

    left: int
    """The slot whose rows stay, if the key is among its `nullable`."""
    right: int
    key: int
    virtual: bool = False
    """True if `left` is on the right of a LEFT JOIN, and its virtual row has a key of its own."""


@dataclass(frozen=True)
class LeftJoin:
    """A LEFT JOIN of slots, themselves joined, ON equalities with earlier slots."""

    slots: tuple[int, ...]
    """Slots joined by inner joins, without those of `lefts`."""
    joins: tuple[Join, ...]
    """Inner joins among `slots`; where virtual, `left` is a slot of `lefts`."""
    lefts: tuple[LeftJoin, ...]
    """Inside the parentheses, after `slots`."""
    on: tuple[Join, ...]
    """`left` is a slot before, `right` one of `slots`."""
    lookup: bool = False
    """True if a row with several partners is an error: the subquery of a value has one row."""

    @property
    def every(self) -> tuple[LeftJoin, ...]:
        """Return it, and the LEFT JOINs inside."""
        return (self, *(inner for left in self.lefts for inner in left.every))

    @property
    def within(self) -> tuple[int, ...]:
        """Return all slots in the parentheses."""
        return (*self.slots, *(slot for left in self.lefts for slot in left.within))


@dataclass(frozen=True)
class Partner:
    """A slot of a subquery in EXISTS or IN, whose rows with equal keys count as one."""

    slot: int
    keys: tuple[int, ...]
    """Indices of the keys that must be equal."""
    of: int | None = None
    """A slot of the subquery whose rows join only if they have a partner by these keys; None if the
    keys are those of slots outside."""


@dataclass(frozen=True)
class Block:
    """One select-project-join query of the union."""

    members: tuple[tuple[int, tuple[int, ...]], ...]
    """(slot, indices of its fragments in the block), in join order; none is virtual."""
    joins: tuple[Join, ...]
    """Inner joins of slots outside LEFT JOINs; if virtual, `left` is inside one."""
    lefts: tuple[LeftJoin, ...] = ()
    """In order; each may refer to slots of earlier ones."""
    virtual: tuple[tuple[int, int], ...] = ()
    """(slot, its virtual fragment) for each slot in a LEFT JOIN."""
    kept: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(slot in a LEFT JOIN, fragments): joined rows with a row of another fragment of the slot are
    dropped, and those without a partner if the virtual fragment is empty.
    """
    partners: tuple[tuple[Partner, ...], ...] = ()
    """The slots of each EXISTS or IN. A slot follows the slots that its rows need a partner of; the
    last one joins slots outside."""
    existences: tuple[tuple[int, ...], ...] = ()
    """The slots of each EXISTS or IN that has no such order. The mapping query joins them with each
    other, and takes each combination of their keys outside once. The first one has the value."""

    @property
    def optional(self) -> frozenset[int]:
        """Slots in a LEFT JOIN: joined rows may come from their virtual row."""
        return frozenset(slot for slot, _ in self.virtual)

    @property
    def every_left(self) -> tuple[LeftJoin, ...]:
        """Return its LEFT JOINs, with those inside others."""
        return tuple(each for left in self.lefts for each in left.every)

    @property
    def every_join(self) -> tuple[Join, ...]:
        """Return its joins, with those of its LEFT JOINs."""
        inside = (join for left in self.every_left for join in (*left.on, *left.joins))
        return (*self.joins, *inside)


@dataclass(frozen=True)
class Ucq:
    slots: tuple[Slot, ...]
    keys: tuple[JoinKey, ...]
    blocks: tuple[Block, ...]
    identifiers: tuple[Identifier, ...]
    columns: tuple[str, ...]
    """Output columns of the query in order, target included."""
    target: str | None
    target_type: str | None
    weight: str | None = None
    """The column of WEIGHT; neither feature nor target."""
    transforms: tuple[Transform, ...] = ()
    offset: str | None = None
    """The column of OFFSET or EXPOSURE; neither feature nor target."""
    remarks: tuple[str, ...] = ()
    """Sentences for EXPLAIN about forms that are planned as others."""
    parted: bool = False
    """True if tests of several parties part the rows: a table's row may be in several fragments."""
    shift: int = 0
    """Characters by which the query stands later in the statement than its expressions' places say:
    0, or else the normal form was made for another statement with the same query.
    """

    @property
    def unit(self) -> JoinKey | None:
        """Return the key whose equal values make rows one unit; None without one."""
        return next((key for key in self.keys if key.unit), None)

    @property
    def leading(self) -> int | None:
        """Return the slot of the target if it has features, or else the first slot that has; None
        without features."""
        slots = [slot for slot in self.slots if slot.features]
        return next((s.index for s in slots if s.target), slots[0].index if slots else None)

    @property
    def mapped(self) -> tuple[int, ...]:
        """Return the slots that the mapping uses for more than a link."""
        return tuple(
            s.index
            for s in self.slots
            if s.features or s.target or s.weight or s.offset or s.split or s.identifiers
            or s.units or s.governed
        )  # fmt: skip


def tied(sets: Sequence[Collection[Hashable]]) -> tuple[tuple[int, ...], ...]:
    """Group positions that share members: every position once, in the order of the first ones.

    >>> a, b, c = Client("a"), Client("b"), Client("c")
    >>> tied([{a, b}, {c}, {b}])
    ((0, 2), (1,))
    """
    groups: list[tuple[list[int], set[Hashable]]] = []
    for position, members in enumerate(sets):
        meeting = [group for group in groups if group[1] & set(members)]
        positions = sorted([position, *(p for group in meeting for p in group[0])])
        held = set(members).union(*(group[1] for group in meeting))
        groups = [group for group in groups if group not in meeting]
        groups.append((positions, held))
    return tuple(sorted(tuple(positions) for positions, _ in groups))


def groups_of(select: exp.Expr) -> exp.Subquery | None:
    """Return the groups in a fragment's SELECT; None for a fragment of rows as they are."""
    return next((s for s in select.find_all(exp.Subquery) if s.alias == GROUPS), None)


def as_written(value: exp.Expr, select: exp.Select) -> exp.Expr:
    """Return an expression of a fragment's SELECT, with the query's own text in place of columns
    that the planner named."""
    holder = exp.Paren(this=value.copy())
    items = [select.args["from_"].this, *(join.this for join in select.args.get("joins") or [])]
    derived = {item.alias: item.this for item in items if isinstance(item, exp.Subquery)}
    for column in [c for c in holder.find_all(exp.Column) if c.name.startswith(RESERVED)]:
        inner = derived.get(column.table)
        if not isinstance(inner, exp.Select):
            continue
        made = next((o for o in inner.expressions if o.alias == column.name), None)
        if made is None:
            continue
        written = exp.Paren(this=as_written(made.unalias(), inner))
        if not inner.args.get("joins"):
            source = inner.args["from_"].this.alias_or_name
            for own in [c for c in written.find_all(exp.Column) if c.table in ("", source)]:
                own.set("table", column.args["table"].copy())
        column.replace(written.this)
    result: exp.Expr = holder.this
    return result


PLACE = "sqlfl_place"
"""Key in the meta of an expression: the span that it was written at."""
_AT = re.compile(r"([0-9]{1,6}) ([0-9]{1,6}) ([0-9]{1,6})")
_SPECIAL = {TARGET: "the target", WEIGHT: "the weight", OFFSET: "the offset"}
_KINDS = {KEY: "a join key", IDENTIFIER: "an identifier", KEPT: "a condition"}

Node = TypeVar("Node", bound=exp.Expr)


def placed(expression: Node, span: Span | None) -> Node:
    """Return the expression, marked with its place in the statement."""
    if span is not None:
        expression.meta[PLACE] = span
    return expression


def found(ucq: Ucq, client: str, at: str) -> tuple[str, Span | None] | None:
    """Return the words for `at`, from a client's Failure, and its place in the statement.

    `at` is three numbers: slot, fragment, and part of its SELECT. Parts are the columns, then the
    conditions of WHERE. Return None if `client` does not evaluate it.
    """
    match = _AT.fullmatch(at)
    if match is None:
        return None
    slot, fragment, part = (int(number) for number in match.groups())
    if slot >= len(ucq.slots) or fragment >= len(ucq.slots[slot].fragments):
        return None
    evaluated = ucq.slots[slot].fragments[fragment]
    columns = evaluated.select.expressions
    parts = [*columns, *_conditions(evaluated.select)]
    if str(evaluated.client) != client or part >= len(parts):
        return None
    words = "a condition"
    if part < len(columns):
        words = _words(columns[part].alias_or_name)
    spans = (node.meta_get(PLACE) for node in parts[part].walk())
    span = next((span for span in spans if isinstance(span, tuple)), None)
    return words, None if span is None else (span[0] + ucq.shift, span[1] + ucq.shift)


def _conditions(select: exp.Select) -> list[exp.Expr]:
    where = select.args.get("where")
    if where is None:
        return []
    return list(where.this.flatten()) if isinstance(where.this, exp.And) else [where.this]


def _words(name: str) -> str:
    for start, words in _KINDS.items():
        if name.startswith(start):
            return words
    return _SPECIAL.get(name, f"column {name}")
