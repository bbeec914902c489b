"""Estimates that INFERENCE OF MODEL is made of: designs that clients send, and what the coordinator
makes of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sqlfl.base.arrays import Array, Float
from sqlfl.coordinator.preparation import Joined
from sqlfl.messages import Errors
from sqlfl.models.aliasing import ZERO, Relations, touches
from sqlfl.models.inference import Estimated, Family, Fit


@dataclass(frozen=True, eq=False)
class Rotations:
    """The design: the constant 1, then what each slot's clients told."""

    joined: Joined
    values: Mapping[int, Float]
    """By slot (n_i, d_i)."""
    theta: Float
    """(P,): 0 for the constant. Of several classes, those of the first one."""
    weights: Float
    """(P, C): the same of each output."""
    origin: Float
    """(P,): the row whose score is the intercept in the features' own units."""

    @cached_property
    def rows(self) -> dict[int, Array]:
        """By slot int (N,): the row that each joined row comes from."""
        return {slot: self.joined.slots[slot].rows for slot in self.values}

    @cached_property
    def places(self) -> dict[int, slice]:
        """By slot, its columns of the design."""
        ends = np.cumsum([1, *(values.shape[1] for values in self.values.values())]).tolist()
        return {slot: slice(ends[k], ends[k + 1]) for k, slot in enumerate(self.values)}

    def design(self, rows: Array) -> Float:
        found = np.empty((len(rows), len(self.theta)))
        found[:, 0] = 1.0
        for slot, place in self.places.items():
            found[:, place] = self.values[slot][self.rows[slot][rows]]
        return found

    def scores(self, intercept: float) -> Float:
        """H (N,)"""
        found = np.full(self.joined.total, intercept)
        if self.joined.offset is not None:
            found += self.joined.offset
        for slot, place in self.places.items():
            found += (self.values[slot] @ self.theta[place])[self.rows[slot]]
        return found


@dataclass(frozen=True, eq=False)
class Resolved:
    """Estimates once relations between tables leave columns out, and what is left to their owners.

    All is in the bases of `Rotations`.
    """

    relations: Mapping[int, Relations]
    """Relations within each slot."""
    shift: Float
    """(P,): the estimates, with relations between tables resolved, less the model's parameters."""
    covariance: Float
    """(P, P)"""
    endless: Float
    """(P, k): directions without a finite estimate."""
    origin: Float
    """(P,): the intercept as a function of the parameters, before owners leave columns out."""
    intercept: float
    partnerless: Mapping[int, tuple[Float, Float]]
    """Weights (d,) that mark a slot's rows without partner, and their row (d,), by slot."""
    constants: Mapping[int, Float]
    """Change of the intercept (d,) by the relations left out within a slot, by slot."""

    penalised: bool
    """A penalty decides what the rows do not tell."""

    @property
    def moving(self) -> list[int]:
        """Slots whose owners may move the intercept."""
        return [slot for slot, constants in self.constants.items() if constants.any()]

    def is_intercept_known(self, told: Rotations, replies: Mapping[int, Errors]) -> bool:
        """Return whether replies tell a finite intercept: at most one slot may move it."""
        parts = [self.endless[told.places[slot]] for slot in self.moving]
        ends = touches(self.origin[None, :], self.endless)[0]
        ends |= any(np.abs(part).max(initial=0.0) > ZERO for part in parts)
        return bool(not ends and len(parts) < 2 and all(r.foreseen for r in replies.values()))


@dataclass(frozen=True, eq=False)
class Part:
    """Parameters of one output, or of one class less those of the first class."""

    told: Rotations
    resolved: Resolved
    found: Estimated
    """Of these parameters alone; its rank is that of all."""
    output: int
    reference: int
    """The first class, 0; −1 where there is one output."""


@dataclass(frozen=True, eq=False)
class Estimation:
    """What the rows say of a model."""

    family: Family
    found: Estimated
    fit: Fit
    units: int | None
    """Number of clusters."""
    parts: tuple[Part, ...]
    ratio: float | None
    """Of Firth's penalised likelihoods."""
    by_class: bool
    """Rows count by their class."""
