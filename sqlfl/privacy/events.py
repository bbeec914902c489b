"""What a run releases of one row, as data: what the accountant adds up."""

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
"""What events are of: `what`."""


@dataclass(frozen=True)
class Gaussian:
    """Sums with normal noise, which the change of one row moves by at most Δ in ℓ2."""

    what: str
    multiplier: float
    """σ/Δ"""
    count: int = 1
    """So many of them, one after the other."""


@dataclass(frozen=True)
class Threshold:
    """Something that is shown where a noised count passes a threshold, and that one row alone
    brings over it with probability `delta` at most."""

    what: str
    delta: float


@dataclass(frozen=True)
class Pure:
    """A mechanism that is (ε, 0)-differentially private."""

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
    """n: slots whose draws are in the sum and that do not tell them, among them the row's own.
    Masked zeros are no draws."""
    count: int = 1
    """Such sums that the row takes part in: dimensions × epochs × joined rows."""
    moved: int = 1
    """Of the honest slots, those whose number neighbours may differ in, each from any to any other
    in its range: 1 of a slot's row, n of a whole joined row."""


@dataclass(frozen=True)
class Selection:
    """Report-noisy-max, as of sqlfl.privacy.selection."""

    what: str
    mechanism: str
    """'gumbel' or 'laplace'"""
    epsilon: float
    """ε₀ of one choice."""
    count: int = 1

    @property
    def rho(self) -> float:
        """zCDP of one choice."""
        return self.epsilon**2 / (8.0 if self.mechanism == "gumbel" else 2.0)


Event: TypeAlias = Gaussian | Threshold | Pure | PoissonBinomial | Selection
