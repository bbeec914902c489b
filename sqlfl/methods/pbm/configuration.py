"""Configuration of PBM-VFL that the coordinator sends to clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlfl.contract.configuration import NUMBER, Extent
from sqlfl.methods.sgd.configuration import StepConfiguration
from sqlfl.models.towers import TowerShape


@dataclass(frozen=True, kw_only=True)
class PbmConfiguration(StepConfiguration):
    method = "pbm"
    slots: int
    """M, number of slots whose embeddings are summed. For each joined row, each slot adds one
    number per output.
    """

    def room(self, extent: Extent, most: int) -> Mapping[str, int]:
        """Return the memory with the sums of embeddings, for at most all joined rows, and their
        masks.
        """
        sizes = dict(super().room(extent, most))
        sizes["rows"] = 3 * NUMBER * self.rows * self.outputs
        return sizes

    def shape(self, width: int) -> TowerShape | None:
        """Outputs are in [−1, 1]."""
        tower = super().shape(width)
        return None if tower is None else replace(tower, bounded=True)
