"""Learning over a join: gather scores of joined rows from the clients' rows, and scatter sums back
to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract.schema import Address
from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.messages import Predictions

# Clients of a slot. `sqlfl.aggregation.slot_aggregation` merges their values.


@dataclass(frozen=True, eq=False)
class SlotMembers:
    """Clients that hold one slot."""

    slot: int
    addresses: tuple[Address, ...]
    offsets: Array
    """int (clients + 1,): bounds of each client's active rows within the slot's."""
    virtual: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """int (few,): active rows that a LEFT JOIN added, ascending."""

    @property
    def shared(self) -> bool:
        return len(self.addresses) > 1


@dataclass(frozen=True, eq=False)
class JoinedRows:
    """Joined rows of an exchange, all N or a batch, and the clients' rows that occur in them."""

    mapping: TableMapping
    members: tuple[SlotMembers, ...]
    cuts: tuple[Array, ...]
    """For each slot (clients + 1,): the bounds of each client within the mapping's rows of the
    slot.
    """
    rows: Mapping[Address, Array] | None
    """uint32 active rows of each client; None for all of them."""

    @property
    def total(self) -> int:
        return self.mapping.total

    @cached_property
    def sizes(self) -> Mapping[Address, int]:
        """Return the number of rows of each client."""
        return {
            address: int(cuts[number + 1] - cuts[number])
            for members, cuts in zip(self.members, self.cuts, strict=True)
            for number, address in enumerate(members.addresses)
        }

    def scatter(self, values: Array) -> list[Array]:
        """Return Y_i = A_iᵀ V of every slot (eq. 13): (N, c) -> (c, n_i) float64 each."""
        return [self.mapping.scatter(slot, values).T for slot in range(len(self.members))]

    def split(self, sums: Sequence[Array], *, exact: bool = False) -> dict[Address, Array]:
        """Return each client's part of Y_i of every slot (c, n_i): (rows, c) each, float32, or
        float64 if `exact`.
        """
        parts: dict[Address, Array] = {}
        for slot_sums, members, cuts in zip(sums, self.members, self.cuts, strict=True):
            aggregate = np.ascontiguousarray(slot_sums.T, np.float64 if exact else np.float32)
            for number, address in enumerate(members.addresses):
                parts[address] = aggregate[cuts[number] : cuts[number + 1]]
        return parts

    def concatenate(self, replies: Mapping[Address, Predictions]) -> list[Array]:
        """Return h_i of every slot, its clients' parts one after the other: (rows, c), of the
        messages' type.
        """
        slots = []
        for members, cuts in zip(self.members, self.cuts, strict=True):
            parts = [replies[address].values for address in members.addresses]
            values = parts[0] if len(parts) == 1 else np.concatenate(parts)
            if len(values) != cuts[-1]:
                raise InternalError(f"slot {members.slot}: {len(values)} rows for {cuts[-1]}")
            slots.append(values)
        return slots

    def gather(self, replies: Mapping[Address, Predictions]) -> Array:
        """Return Σ_i A_i h_i (eq. 12): float64 (N, c)."""
        return self.mapping.gather_sum(self.concatenate(replies))


def all_rows(mapping: TableMapping, members: Sequence[SlotMembers]) -> JoinedRows:
    """Return all joined rows. Raise InternalError if the clients' rows do not add up to the
    mapping's.
    """
    if len(mapping) != len(members):
        raise InternalError(f"{len(mapping)} mappings for {len(members)} slots")
    for size, slot in zip(mapping.sizes, members, strict=True):
        if len(slot.offsets) != len(slot.addresses) + 1 or slot.offsets[-1] != size:
            raise InternalError(f"slot {slot.slot}: offsets {slot.offsets} for {size} rows")
    return JoinedRows(mapping, tuple(members), tuple(slot.offsets for slot in members), None)


def listed_rows(
    mapping: TableMapping, members: Sequence[SlotMembers], joined: Array
) -> dict[Address, tuple[Array, Array]]:
    """Return each client's active rows of the joined rows `joined` (b,), in their order: uint32
    (k,).

    With them come their positions in `joined`, (k,). These are empty if the slot has one client,
    which has all rows.
    """
    listed: dict[Address, tuple[Array, Array]] = {}
    none = np.zeros(0, np.uint32)
    for slot_members, slot in zip(members, mapping.slots, strict=True):
        rows = slot.rows[joined]
        if not slot_members.shared:
            listed[slot_members.addresses[0]] = rows.astype(np.uint32), none
            continue
        holders = np.searchsorted(slot_members.offsets, rows, side="right") - 1
        for number, address in enumerate(slot_members.addresses):
            places = np.flatnonzero(holders == number)
            held = rows[places] - slot_members.offsets[number]
            listed[address] = held.astype(np.uint32), places.astype(np.uint32)
    return listed


def batch_of(whole: JoinedRows, joined: Array) -> JoinedRows:
    """Return the joined rows `joined` (b,), with only those rows of the clients that occur in
    them.
    """
    return occurring(whole, whole.mapping.restricted(joined))


def occurring(whole: JoinedRows, mapping: TableMapping) -> JoinedRows:
    """Return the joined rows of `mapping`, which is over all rows of the clients, with only those
    rows of the clients that occur in them.
    """
    subset = mapping.compacted()
    cuts = []
    rows: dict[Address, Array] = {}
    for members, bounds, unique in zip(whole.members, whole.cuts, subset.rows, strict=True):
        cut = np.searchsorted(unique, bounds)
        cuts.append(cut)
        for number, address in enumerate(members.addresses):
            client_rows = unique[cut[number] : cut[number + 1]] - bounds[number]
            rows[address] = client_rows.astype(np.uint32)
    return JoinedRows(subset.mapping, whole.members, tuple(cuts), rows)
