"""What clients are told of PBM-VFL."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlfl.methods.configuration import Configuration
from sqlfl.methods.sgd.options import Steps
from sqlfl.models.towers import TowerShape


@dataclass(frozen=True, kw_only=True)
class PbmConfiguration(Configuration):
    method = "pbm"
    steps: Steps = Steps()
    slots: int
    """M, slots whose embeddings are summed: of each joined row, each adds one number per output."""

    def shape(self, width: int) -> TowerShape | None:
        """Outputs are in [−1, 1]."""
        found = super().shape(width)
        return None if found is None else replace(found, bounded=True)
