"""Configuration that clients receive for the solution by noised moments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlfl.contract.configuration import NUMBER, Configuration, Extent


@dataclass(frozen=True, kw_only=True)
class MomentsConfiguration(Configuration):
    method = "moments"
    rounds: int = 1
    """1, or 2: what is released of the block beside its second moments."""

    def fault(self) -> str | None:
        found = super().fault()
        return found or (None if 1 <= self.rounds <= 2 else f"{self.rounds} rounds of moments")

    @property
    def metric(self) -> bool:
        return False

    def room(self, extent: Extent, most: int) -> Mapping[str, int]:
        found = dict(super().room(extent, most))
        # the columns, clipped and weighed, and what of the moments is made and noised
        found["columns"] = NUMBER * (3 * extent.rows * extent.numeric + 4 * extent.width**2)
        return found
