"""Clients of a slot. `sqlfl.aggregation.slot_aggregation` merges their values."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.contract.schema import Address


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
