"""What the planner may know of the parties: names and types, never values."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from sqlfl.privacy.specification import LabelPrivacy, SlotPrivacy

_FOLDED = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def folded(name: str) -> str:
    """The name as DuckDB compares it: A to Z as a to z, all other letters as they are."""
    return name.translate(_FOLDED)


@dataclass(frozen=True, eq=False)
class Client:
    """One DuckDB database of a party, whose name is compared as SQL does, ignoring case."""

    party: str
    index: int = 0
    """Position among the party's clients, from 0."""

    def __str__(self) -> str:
        return f"{self.party}/{self.index}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Client) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[str, int]:
        return self.party.lower(), self.index


@dataclass(frozen=True)
class Column:
    name: str
    type: str
    """As DuckDB writes it, but for the values of an ENUM: 'DECIMAL(9,2)', 'FLOAT[32]', 'ENUM'."""


@dataclass(frozen=True)
class Table:
    """A table or view of one client's database."""

    schema: str | None
    """None for a table that `party.table` names; else the schema that it lies in."""
    name: str
    columns: tuple[Column, ...]
    rows: int | None = None
    """The database's own estimate; None for views."""
    catalog: str | None = None
    """Of a database that the party attached to its connection; None for the connection's own."""


@dataclass(frozen=True)
class Place:
    """A schema of a database that a client's connection has open."""

    catalog: str
    schema: str
    writable: bool = True
    """Tables can be made in it."""


class Catalog(Protocol):
    """What a plan is made against."""

    def parties(self) -> tuple[str, ...]: ...

    def clients(self, party: str) -> tuple[Client, ...]:
        """The clients of `party`, in order; PlanError is the caller's if there is no such party."""
        ...

    def tables(self, client: Client) -> tuple[Table, ...]: ...

    def places(self, client: Client) -> tuple[Place, ...]:
        """The schemas that tables can lie in: first the current one, which `party.table` names."""
        ...

    def describe(self, client: Client, select: str) -> tuple[Column, ...]:
        """Names and types of the columns of a SELECT, as `client`'s database binds it.

        Nothing is run. Raises PartyError where the database cannot bind the query.
        """
        ...


@dataclass(frozen=True)
class FeatureSpecification:
    name: str
    kind: str
    """'numeric', 'boolean', 'array' or 'category'."""
    width: int = 1


@dataclass(frozen=True)
class KeySpecification:
    index: int
    """The domain of the hash: equal for all slots that join on this key."""
    types: tuple[str, ...]
    """The DuckDB type of each part, to which the fragment has cast it."""
    nullable: bool = False
    """Rows with a NULL in a part are kept; they have no tag."""


@dataclass(frozen=True)
class SlotSpecification:
    """What a client must know of one slot to take its snapshot; travels as JSON in `Prepare`."""

    slot: int
    features: tuple[FeatureSpecification, ...]
    target: bool
    classes: bool
    """The target is a class (travels as codes), not a number."""
    identifiers: tuple[int, ...]
    keys: tuple[KeySpecification, ...]
    fragments: tuple[int, ...]
    """Indices, among the slot's fragments, of those that this client evaluates, in order."""
    shared: bool
    """Several clients hold the slot: statistics are merged at the coordinator."""
    secret: str
    """Whose secret hashes the vocabulary: 'organisation' or 'federation'."""
    engine: str
    """'sql' or 'arrays'."""
    links: tuple[tuple[int, int], ...] = ()
    """(i, j) of `fragments`, which have the same text and are evaluated once: its rows are those of
    fragment i where the column `sqlfl_kept` is true, else of fragment j. The latter only match:
    they are kept without a target, and never active."""
    weight: bool = False
    """The fragments have a column of weights."""
    split: float = 0.0
    """The share of rows to draw for validation; where positive, the fragments have `sqlfl_base`."""
    weighted: bool = False
    """Rows are weighed after they are activated: statistics wait for that."""
    warm: tuple[str, int] | None = None
    """(model's run, block) that training starts from."""
    name: str = ""
    """The slot's, under which its block is kept."""
    seed: int | None = None
    """Row ids are to be the same in every run of this seed over the same rows; None: random."""
    device: str | None = None
    """Where the slot's tower is to be trained, 'auto', 'cpu' or 'cuda'; None where none is."""
    base: bool = False
    """The fragments have `sqlfl_base`, the whole row of the label's table: to draw by."""
    privacy: SlotPrivacy | None = None
    """None where nothing of the slot is noised."""


def specifications_to_json(slots: tuple[SlotSpecification, ...]) -> str:
    found = [asdict(slot) for slot in slots]
    for item in found:
        for name in ("device", "base", "privacy"):
            if not item[name]:
                del item[name]
    return json.dumps(found, separators=(",", ":"))


def specifications_from_json(text: str) -> tuple[SlotSpecification, ...]:
    return tuple(
        SlotSpecification(
            slot=item["slot"],
            features=tuple(FeatureSpecification(**f) for f in item["features"]),
            target=item["target"],
            classes=item["classes"],
            identifiers=tuple(item["identifiers"]),
            keys=tuple(
                KeySpecification(k["index"], tuple(k["types"]), k["nullable"]) for k in item["keys"]
            ),
            fragments=tuple(item["fragments"]),
            shared=item["shared"],
            secret=item["secret"],
            engine=item["engine"],
            links=tuple((real, link) for real, link in item["links"]),
            weight=item["weight"],
            split=item["split"],
            weighted=item["weighted"],
            warm=None if item["warm"] is None else (item["warm"][0], item["warm"][1]),
            name=item["name"],
            seed=item["seed"],
            device=item.get("device"),
            base=item.get("base", False),
            privacy=_slot_privacy(item.get("privacy")),
        )
        for item in json.loads(text)
    )


def _slot_privacy(item: dict[str, Any] | None) -> SlotPrivacy | None:
    if item is None:
        return None
    label = item["label"]
    if label is not None:
        bounds = None if label["bounds"] is None else (label["bounds"][0], label["bounds"][1])
        classes = tuple(label["classes"])
        label = LabelPrivacy(**label | {"bounds": bounds, "classes": classes})
    limits = tuple(None if limit is None else tuple(limit) for limit in item["bounds"])
    return SlotPrivacy(**item | {"label": label, "bounds": limits})


def tables_to_json(places: tuple[Place, ...], tables: tuple[Table, ...]) -> str:
    """For the `Tables` message of sqlfl.messages."""
    listing = {
        "places": [[p.catalog, p.schema, p.writable] for p in places],
        "tables": [
            {
                "schema": t.schema,
                "name": t.name,
                "columns": [[c.name, c.type] for c in t.columns],
                "rows": t.rows,
                "catalog": t.catalog,
            }
            for t in tables
        ],
    }
    return json.dumps(listing, separators=(",", ":"))


def tables_from_json(text: str) -> tuple[tuple[Place, ...], tuple[Table, ...]]:
    """What `tables_to_json` wrote."""
    listing = json.loads(text)
    tables = tuple(
        Table(
            t["schema"],
            t["name"],
            tuple(Column(*c) for c in t["columns"]),
            t["rows"],
            t["catalog"],
        )
        for t in listing["tables"]
    )
    return tuple(Place(*place) for place in listing["places"]), tables
