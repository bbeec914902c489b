"""What clients are told of Frank-Wolfe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlfl.contract.configuration import NUMBER, Configuration, Extent


@dataclass(frozen=True, kw_only=True)
class FrankWolfeConfiguration(Configuration):
    method = "frank_wolfe"
    radius: float
    """r"""
    sample: int = 0
    """τ, columns that an iteration looks at; 0 for all."""
    sketch: int = 0
    """m, numbers that a column is sent as; 0: its values."""
    seed: int = 0
    """Of the columns that are looked at; all clients of a slot draw them alike."""

    def room(self, extent: Extent, most: int) -> Mapping[str, int]:
        found = dict(super().room(extent, most))
        found["sketch"] = 4 * NUMBER * self.sketch
        if self.sketch:
            found["rows"] = 6 * NUMBER * self.rows  # entries of the sketch, and their signs
        return found

    @property
    def metric(self) -> bool:
        return False
