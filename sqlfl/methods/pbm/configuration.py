"""What clients are told of PBM-VFL."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlfl.methods.sgd.configuration import StepConfiguration
from sqlfl.models.towers import TowerShape


@dataclass(frozen=True, kw_only=True)
class PbmConfiguration(StepConfiguration):
    method = "pbm"
    slots: int
    """M, slots whose embeddings are summed: of each joined row, each adds one number per output."""

    def shape(self, width: int) -> TowerShape | None:
        """Outputs are in [−1, 1]."""
        found = super().shape(width)
        return None if found is None else replace(found, bounded=True)
