"""What clients are told of PBM-VFL."""

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
    """M, slots whose embeddings are summed: of each joined row, each adds one number per output."""

    def room(self, extent: Extent, most: int) -> Mapping[str, int]:
        """With the sums of embeddings, which are of all joined rows at most, and their masks."""
        found = dict(super().room(extent, most))
        found["rows"] = 3 * NUMBER * self.rows * self.outputs
        return found

    def shape(self, width: int) -> TowerShape | None:
        """Outputs are in [−1, 1]."""
        found = super().shape(width)
        return None if found is None else replace(found, bounded=True)
