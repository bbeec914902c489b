"""What a client's part of a method is made of, and what all of them share."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from scipy import sparse

from sqlfl.arrays import Array
from sqlfl.messages import Residuals
from sqlfl.methods.configuration import Configuration
from sqlfl.models.gram import GramMatrix
from sqlfl.models.solver import BlockSolver


class Engine(Protocol):
    """Products with the centred encoded columns X̃ of a client's active rows."""

    name: str
    """'sql' or 'arrays'."""
    rows: int
    width: int
    numeric: int
    """p: the first columns are numeric, the others one-hot."""
    centre: Array
    """(d,): μ of the one-hot columns, 0 for numeric ones."""
    offsets: tuple[int, ...]
    """Per category feature its first column; and at the end the width."""

    @property
    def counts(self) -> Array:
        """float64 (rows,): cnt of every active row, what its joined rows count in all."""
        ...

    def predict(self, theta: Array, batch: Array | None = None) -> Array:
        """X̃ θ: (d, c) -> (rows or batch rows, c)."""
        ...

    def gradient(self, values: Array, batch: Array | None = None) -> Array:
        """X̃ᵀ V: (rows or batch rows, c) -> (d, c)."""
        ...

    def gram(self) -> GramMatrix:
        """Σ cnt x xᵀ before the one-hot columns are centred."""
        ...

    def norms(self) -> Array:
        """‖x̃_r‖ of every active row, its columns centred: float64 (rows,)."""
        ...

    def columns(self) -> tuple[Array, sparse.csr_array]:
        """The encoded columns before centring: numeric (rows, p), one-hot (rows, d − p)."""
        ...


class ClientStep(Protocol):
    """One method at one block; θ is (d, d_c), and starts from what it is given."""

    needs_gram: bool
    """The method uses second moments: the slot's, or in consensus the client's own."""

    @property
    def takes(self) -> tuple[type[Residuals], ...]:
        """The method's residuals."""
        ...

    @property
    def theta(self) -> Array: ...

    def set_gram(self, gram: GramMatrix) -> None: ...

    def begin(self, message: Any) -> None:
        """What residuals that it `takes` say of the step; before the gradient."""
        ...

    def advance(self, gradient: Array) -> tuple[Array, Array]:
        """From Σ_r x̃_r Y[r] over the slot: what to multiply with X̃, and the products."""
        ...

    def probe(self, gradient: Array) -> Array:
        """One power round: (d, 1) -> (d, 1)."""
        ...

    def slope(self, gradient: Array) -> Array:
        """Of Σ_r x̃_r Y[r] over the slot, Y the residuals at θ: ‖g‖², and gᵀP g where the step has
        the slot's second moments: (2,) or (1,)."""
        ...


class ConsensusStep(ClientStep, Protocol):
    """One whose clients average parameters instead of summing gradients: not `advance`, but these
    for each step."""

    def part(self, gradient: Array) -> Array:
        """The first inner round: what is to be averaged, (d, d_c)."""
        ...

    def average(self, mean: Array) -> Array:
        """Of an inner round; what is to be averaged in the next one."""
        ...

    def settle(self, mean: Array) -> tuple[Array, Array]:
        """The last one: as `advance`."""
        ...


class Metric(Protocol):
    def solve(self, values: Array) -> Array: ...


def metric(own: Configuration, gram: GramMatrix, centre: Array) -> BlockSolver:
    """P⁻¹ = curvature/N X̃ᵀCX̃ + l2 I: the metric in which blocks are measured."""
    return BlockSolver(gram, centre, own.total, own.curvature, own.l2)


def squares(
    configuration: Configuration,
    theta: Array,
    gradient: Array,
    solver: Metric | None,
) -> Array:
    """‖g‖² and, where there is a `solver`, gᵀP g of g = gradient/N + l2 θ."""
    g = gradient / configuration.rows + configuration.l2 * theta
    found = [float(np.vdot(g, g))]
    if solver is not None:
        found.append(float(np.vdot(g, solver.solve(g))))
    return np.array(found)


def penalty(theta: Array, configuration: Configuration) -> Array:
    """l2/2 ‖θ‖²: (1,)."""
    return np.array([0.5 * configuration.l2 * float(np.vdot(theta, theta))])
