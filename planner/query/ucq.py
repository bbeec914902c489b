"""The normal form of a query: a union of conjunctive queries over slots and fragments."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sqlglot import exp

from sqlfl.contract.schema import Client, Made
from sqlfl.contract.transforms import AUTO, Transform
from sqlfl.planner.grammar.writing import to_sql

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
    """What of TRANSFORM it is."""
    made: Made | None = None
    """How it is made of output columns; None where it is one."""

    @property
    def pairs(self) -> int:
        """Return how many pairs `auto` adds at most of which it may be a part; 0 for none."""
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


@dataclass(frozen=True)
class Identifier:
    """A column that PREDICT returns beside each prediction."""

    name: str
    """Name in the result: the column's, or the whole path of the ID clause where that is taken."""


@dataclass(frozen=True)
class Fragment:
    """What one client evaluates for one slot: a single SELECT on its own database.

    Its columns are those of `sqlfl.contract.fragment_columns`, keys cast to the key's type. Rows
    with a NULL in a part of a key that is not among the slot's `nullable` are filtered out. Keys of
    the slot that the fragment takes no part in are constants.
    """

    index: int
    """Position among the slot's fragments."""
    client: Client
    select: exp.Select
    rows: int | None
    """Estimated rows, from the catalog."""
    virtual: bool = False
    """Its rows are not the table's: at most one, the expressions over an all-NULL row, which the
    joined rows that a LEFT JOIN found no partner for come from."""
    beside: int | None = None
    """The fragment of the same SELECT that is evaluated together with this one, once: the rows are
    that one's where `sqlfl_kept` is true, else this one's, and only match."""
    parts: tuple[Fragment, ...] = ()
    """Of a party that combines: what its clients evaluate, each with its own `client` and `select`,
    and the index that it has here. This one's rows are all of theirs, and its `select` is one of
    them."""
    keyed: bool = False
    """Its rows are those of a table whose owner has said what identifies one: noise of labels
    follows from that."""

    @property
    def links(self) -> bool:
        """Its rows only match: joined rows that they take part in fail a WHERE or have no label."""
        return self.beside is not None

    @property
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
    """Those of `keys` that rows may have a NULL of: they join nothing on it, and stay."""
    weight: bool = False
    """It holds the column of WEIGHT."""
    offset: bool = False
    """It holds the column of OFFSET."""
    split: bool = False
    """Validation rows are drawn per row of this slot."""
    noised: bool = False
    """It holds the target, and labels are noised per row of it."""
    units: bool = False
    """Joined rows of one of its rows may depend on each other: they are told apart by it."""
    governed: bool = False
    """An owner of its tables has made a policy, and hears which of its rows are joined."""
    once: bool = False
    """Its rows only match, and those with equal keys, of all its clients, count as one: the table
    of a subquery in EXISTS or IN."""
    derived: tuple[str, ...] = ()
    """Conditions of its fragments that the query does not have, and that follow from others over
    equal keys; as text."""

    @property
    def shrunken(self) -> bool:
        """`auto` made some feature of it."""
        made = (feature.transform for feature in self.features)
        return any(item is not None and item.function == AUTO for item in made)

    @property
    def pairs(self) -> int:
        """Return how many pairs of its features `auto` adds at most; 0 of fewer than two."""
        counts = [feature.pairs for feature in self.features if feature.pairs]
        return max(counts) if len(counts) > 1 else 0

    @property
    def base(self) -> bool:
        """Its fragments have `sqlfl_base`."""
        return self.split or self.noised

    @cached_property
    def clients(self) -> tuple[Client, ...]:
        return tuple(self._by_client)

    def of(self, client: Client) -> tuple[Fragment, ...]:
        """Its fragments at a client; none where it has none."""
        return self._by_client.get(client, ())

    @cached_property
    def _by_client(self) -> dict[Client, tuple[Fragment, ...]]:
        found: dict[Client, list[Fragment]] = {}
        for fragment in self.fragments:
            found.setdefault(fragment.client, []).append(fragment)
        return {client: tuple(own) for client, own in found.items()}

    @cached_property
    def evaluated(self) -> tuple[Fragment, ...]:
        """As databases evaluate them: the parts of what a party combines."""
        return tuple(part for f in self.fragments for part in f.parts or (f,))

    @cached_property
    def databases(self) -> tuple[Client, ...]:
        """Those that evaluate the fragments: `clients`, but for each that stands for others."""
        return tuple(dict.fromkeys(f.client for f in self.evaluated))

    @cached_property
    def parties(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(c.party for c in self.clients))


@dataclass(frozen=True)
class Join:
    """Rows of two slots join where their tags of `key` are equal; a NULL equals nothing."""

    left: int
    """Where the key is among its slot's `nullable`, the slot whose rows stay."""
    right: int
    key: int
    virtual: bool = False
    """`left` is on the right of a LEFT JOIN, and its virtual row has a key of its own."""


@dataclass(frozen=True)
class LeftJoin:
    """LEFT JOIN (slots joined among themselves) ON equalities with what stands before it."""

    slots: tuple[int, ...]
    """The slots joined by inner joins; those of `lefts` are not among them."""
    joins: tuple[Join, ...]
    """Inner joins among `slots`; where virtual, `left` is a slot of `lefts`."""
    lefts: tuple[LeftJoin, ...]
    """Inside the parentheses, after `slots`."""
    on: tuple[Join, ...]
    """`left` is a slot before, `right` one of `slots`."""

    @property
    def within(self) -> tuple[int, ...]:
        """All slots in the parentheses."""
        return (*self.slots, *(slot for left in self.lefts for slot in left.within))


@dataclass(frozen=True)
class Block:
    """One select-project-join query of the union."""

    members: tuple[tuple[int, tuple[int, ...]], ...]
    """(slot, indices of the slot's fragments that take part), in join order; none is virtual."""
    joins: tuple[Join, ...]
    """Inner joins of the slots that are in no LEFT JOIN; where virtual, `left` is one that is."""
    lefts: tuple[LeftJoin, ...] = ()
    """In order; each may refer to slots of those before it."""
    virtual: tuple[tuple[int, int], ...] = ()
    """(slot, its virtual fragment) for each slot in a LEFT JOIN."""
    kept: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(slot in a LEFT JOIN, fragments): joined rows whose row of the slot is in another fragment
    are dropped, and those without partner if the virtual fragment is empty."""

    @property
    def optional(self) -> frozenset[int]:
        """Slots in a LEFT JOIN: joined rows may come from their virtual row."""
        return frozenset(slot for slot, _ in self.virtual)


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

    @property
    def leading(self) -> int | None:
        """The slot of the target if it has features, or else the first slot that has; None without
        features.
        """
        slots = [slot for slot in self.slots if slot.features]
        return next((s.index for s in slots if s.target), slots[0].index if slots else None)

    @property
    def mapped(self) -> tuple[int, ...]:
        """The slots that are more than a link in the mapping."""
        return tuple(
            s.index
            for s in self.slots
            if s.features or s.target or s.weight or s.offset or s.split or s.identifiers
            or s.units or s.governed
        )  # fmt: skip
