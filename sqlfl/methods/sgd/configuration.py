from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeVar

from sqlfl.base.codec import LEFT_OUT
from sqlfl.contract.configuration import Configuration
from sqlfl.methods.sgd.options import Steps

Stepping = TypeVar("Stepping", bound="StepConfiguration")


@dataclass(frozen=True, kw_only=True)
class StepConfiguration(Configuration):
    """Configuration of methods whose blocks step along the slot's gradient."""

    steps: Steps = Steps()


@dataclass(frozen=True, kw_only=True)
class SgdConfiguration(StepConfiguration):
    method = "sgd"
    feedback: float = field(default=0.0, metadata=LEFT_OUT)
    """c: curvature with which a client adds its own scores to residuals that lack them; 0 for whole
    residuals.
    """

    def fault(self) -> str | None:
        """Return the error of an invalid feedback, or None; only linear blocks may have one."""
        fine = math.isfinite(self.feedback) and self.feedback >= 0.0
        return None if fine and not (self.feedback and self.tower) else f"feedback {self.feedback}"
