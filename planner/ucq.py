"""The normal form of a query: a union of conjunctive queries over slots and fragments."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from sqlfl.schema import Client

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

    Its columns, in this order: each feature under its own name; `sqlfl_target` where the slot
    holds the target; `sqlfl_id_<k>` for identifier k; `sqlfl_key_<j>_<p>` for part p of key j,
    cast to the key's type. Rows with a NULL in a key part are filtered out. Keys of the slot that
    the fragment takes no part in are constants; a fragment without any column has `sqlfl_row`.
    """

    index: int
    """Position among the slot's fragments."""
    client: Client
    select: exp.Select
    rows: int | None
    """Estimated rows, from the catalog."""

    @property
    def sql(self) -> str:
        return self.select.sql(dialect="duckdb")


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
    """Ordered by client (parties in order of attachment), then by block."""

    @property
    def clients(self) -> tuple[Client, ...]:
        return tuple(dict.fromkeys(f.client for f in self.fragments))

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(c.party for c in self.clients))


@dataclass(frozen=True)
class Join:
    """Rows of two slots join where their tags of `key` are equal."""

    left: int
    right: int
    key: int


@dataclass(frozen=True)
class Block:
    """One select-project-join query of the union."""

    members: tuple[tuple[int, tuple[int, ...]], ...]
    """(slot, indices of the slot's fragments that take part), in join order."""
    joins: tuple[Join, ...]


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
