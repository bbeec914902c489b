"""Who holds a slot; what they hold is merged by sqlfl.unions."""

from __future__ import annotations

from dataclasses import dataclass

from sqlfl.arrays import Array
from sqlfl.schema import Address


@dataclass(frozen=True, eq=False)
class Members:
    """The clients that hold one slot."""

    slot: int
    addresses: tuple[Address, ...]
    offsets: Array
    """int (clients + 1,): bounds of each client's active rows within the slot's."""

    @property
    def shared(self) -> bool:
        return len(self.addresses) > 1
