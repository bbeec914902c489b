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


Event: TypeAlias = Gaussian | Threshold | Pure
