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
from sqlfl.models.aliasing import ROUNDED, Relations, touches
from sqlfl.models.inference import EPSILON, Estimated, Family, Fit, variances_of


@dataclass(frozen=True, eq=False)
class Rotations:
    """The design: the constant 1, then the columns that each slot's clients sent."""

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
        """Return rows of the design (b, P), in memory column by column."""
        design = np.empty((len(self.theta), len(rows)))
        design[0] = 1.0
        for slot, place in self.places.items():
            design[place] = self.values[slot].take(self.rows[slot][rows], axis=0).T
        return design.T

    def scores(self, intercept: float) -> Float:
        """Return the scores H (N,)."""
        scores = np.full(self.joined.total, intercept)
        if self.joined.offset is not None:
            scores += self.joined.offset
        for slot, place in self.places.items():
            scores += (self.values[slot] @ self.theta[place])[self.rows[slot]]
        return scores


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
    open: bool
    """The intercept depends on what owners leave out for relations between tables."""
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

    def roots(self, rotations: Rotations) -> Float:
        """Return roots of the covariance and of `endless`, (2, 1 + D, 1 + D): of the intercept,
        then of the D columns of slots whose owners move it; (2, 1, 0) without such slots.
        """
        if not self.moving:
            return np.zeros((2, 1, 0))
        size = len(self.origin)
        places = np.concatenate([np.arange(size)[rotations.places[slot]] for slot in self.moving])
        functions = np.vstack([self.origin, np.eye(size)[places]])
        roots = []
        for form in (self.covariance, self.endless @ self.endless.T):
            values, vectors = np.linalg.eigh(functions @ form @ functions.T)
            roots.append(vectors * np.sqrt(np.maximum(values, 0.0)))
        return np.stack(roots)

    def intercept_of(self, replies: Mapping[int, Errors]) -> tuple[float, float, bool]:
        """Return the intercept, its variance and whether it has a finite estimate."""
        if not self.moving:
            variance = float(variances_of(self.origin[None, :], self.covariance)[0])
            return self.intercept, variance, not touches(self.origin[None, :], self.endless)[0]
        moving = [replies[slot] for slot in self.moving]
        spread, ending = np.linalg.norm(np.sum([reply.turned for reply in moving], axis=0), axis=1)
        moved = sum(reply.moved for reply in moving)
        length = float(np.linalg.norm(self.origin))
        least = EPSILON * float(np.trace(self.covariance)) * length**2
        variance = float(spread) ** 2
        finite = bool(ending <= ROUNDED * length)
        return self.intercept - moved, variance if variance > least else 0.0, finite


@dataclass(frozen=True, eq=False)
class OutputEstimate:
    """Parameters of one output, or of one class less those of the first class."""

    rotations: Rotations
    resolved: Resolved
    estimated: Estimated
    """Of these parameters alone; its rank is that of all."""
    output: int
    reference: int
    """The first class, 0; −1 where there is one output."""


@dataclass(frozen=True, eq=False)
class Estimation:
    """What the rows say of a model."""

    family: Family
    estimated: Estimated
    fit: Fit
    units: int | None
    """Number of clusters."""
    parts: tuple[OutputEstimate, ...]
    ratio: float | None
    """Of Firth's penalised likelihoods."""
    by_class: bool
    """Rows count by their class."""
