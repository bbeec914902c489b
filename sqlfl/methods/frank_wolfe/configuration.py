"""Configuration of Frank-Wolfe that the coordinator sends to clients."""

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
    """τ, number of columns that an iteration considers; 0 for all."""
    sketch: int = 0
    """m, numbers that a column is sent as; 0: its values."""
    seed: int = 0
    """Seed of the considered columns; all clients of a slot draw the same ones."""

    def room(self, extent: Extent, most: int) -> Mapping[str, int]:
        sizes = dict(super().room(extent, most))
        sizes["sketch"] = 4 * NUMBER * self.sketch
        if self.sketch:
            sizes["rows"] = 6 * NUMBER * self.rows  # entries of the sketch, and their signs
        return sizes

    @property
    def metric(self) -> bool:
        return False
