"""Configuration of sharing ADMM that the coordinator sends to clients."""

from __future__ import annotations

from dataclasses import dataclass

from sqlfl.contract.configuration import Configuration


@dataclass(frozen=True)
class LocalSteps:
    """Local steps of clients in the θ-update of towers."""

    epochs: int
    """Passes over a client's own rows."""
    batch: int
    """Own rows per step."""
    rate: float
    """Step length of Adam."""


@dataclass(frozen=True, kw_only=True)
class AdmmConfiguration(Configuration):
    method = "admm"
    rho: float = 0.0
    """ρ of the power rounds."""
    consensus: bool = False
    """True if clients of a shared slot agree by rounds of consensus instead of summed second
    moments.
    """
    inner_rounds: int = 0
    """Rounds of consensus in each step."""
    local: LocalSteps | None = None
    """Local steps of towers; None for linear blocks."""

    @property
    def averagings(self) -> int:
        return max(self.inner_rounds, 1) if self.consensus and self.shared else 0

    @property
    def metric(self) -> bool:
        return not self.averagings

    @property
    def gram(self) -> bool:
        return self.tower is None

    @property
    def passes(self) -> int:
        return 1 if self.local is None else max(self.local.epochs, self.inner_rounds)
