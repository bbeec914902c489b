"""Releases of a run about one row, as data for the accountant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

GRADIENTS = "gradients"
PREDICTIONS = "predictions"
MOMENTS = "moments"
STATISTICS = "statistics"
CATEGORIES = "categories"
OTHERS = "gradients of slot {}"
INTERCEPT = "intercept"
EMBEDDINGS = "embeddings"
CHOICES = "choices of columns"
COLUMNS = "columns"
CROSSES = "moments with the label"
"""Names of events: `what`."""


@dataclass(frozen=True)
class Gaussian:
    """Sums with normal noise; a change of one row moves them by at most Δ in ℓ2."""

    what: str
    multiplier: float
    """σ/Δ"""
    count: int = 1
    """Number of such releases, one after the other."""


@dataclass(frozen=True)
class Threshold:
    """A fact released if a noised count passes a threshold; one row alone has it pass with
    probability at most `delta`.
    """

    what: str
    delta: float


@dataclass(frozen=True)
class Pure:
    """An (ε, 0)-differentially private mechanism."""

    what: str
    epsilon: float


@dataclass(frozen=True)
class PoissonBinomial:
    """Sums of binomial draws of several slots, as of sqlfl.privacy.poisson_binomial: of each sum
    the row has one draw."""

    what: str
    bins: int
    """b: coins of each slot's draw."""
    theta: float
    """θ, not more than ¼: how far the coins' probability moves from ½."""
    honest: int
    """n: slots in the sum that keep their draws secret, the row's own included. Masked zeros are no
    draws.
    """
    count: int = 1
    """Number of such sums with the row: dimensions × epochs × joined rows."""
    moved: int = 1
    """Number of honest slots whose numbers may differ between neighbours, each within its range: 1
    for a slot's row, n for a whole joined row.
    """


@dataclass(frozen=True)
class Selection:
    """Report-noisy-max, as of sqlfl.privacy.mechanisms."""

    what: str
    mechanism: str
    """'gumbel' or 'laplace'"""
    epsilon: float
    """ε₀ of one choice."""
    count: int = 1

    @property
    def rho(self) -> float:
        """ρ of zCDP of one choice."""
        return self.epsilon**2 / (8.0 if self.mechanism == "gumbel" else 2.0)


Event: TypeAlias = Gaussian | Threshold | Pure | PoissonBinomial | Selection
