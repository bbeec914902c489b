"""Scores of all joined rows, stored by the rows of the slots: no array has a row per joined row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array


@dataclass(frozen=True, eq=False)
class Scores:
    """H = b + Σ_i A_i h_i."""

    slots: tuple[Array, ...]
    """h_i of every slot: float64 (d_c, n_i). () if all rows have the same scores."""
    constant: Array
    """b: float64 (d_c,)"""

    def moved(self, slots: Sequence[Array], constant: Array) -> Scores:
        """Return the scores after a step of h_i by (d_c, n_i) of every slot, and of b."""
        if not self.slots:
            return Scores(tuple(slots), self.constant + constant)
        steps = zip(self.slots, slots, strict=True)
        return Scores(tuple(held + step for held, step in steps), self.constant + constant)

    def shifted(self, constant: Array) -> Scores:
        return Scores(self.slots, self.constant + constant)

    def less(self, other: Scores) -> Scores:
        """Return H − H' of scores with the same slots."""
        pairs = zip(self.slots, other.slots, strict=True)
        return Scores(tuple(a - b for a, b in pairs), self.constant - other.constant)


def by_output(values: Sequence[Array], weights: Array | None = None) -> tuple[Array, ...]:
    """Return h_i of every slot, as `Scores` have it, from predictions (n_i, P). weights: W₀ (P,
    d_c).
    """
    if weights is None:
        return tuple(np.array(v.T, np.float64, order="C") for v in values)
    return tuple(weights.T @ np.asarray(v, np.float64).T for v in values)
