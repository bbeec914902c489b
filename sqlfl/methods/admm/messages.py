"""Messages of a step of sharing ADMM."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlfl.messages.forms import real
from sqlfl.messages.training import Residuals


@dataclass(frozen=True, eq=False)
class AdmmResiduals(Residuals):
    """Y are the sums of λ + ρ (H − z)."""

    of_method = "admm"
    weight: float = field(metadata=real(least=0))
    """ρ r, of the θ-update's quadratic."""
