"""Interfaces of a client's part of a method, and the code that all methods share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, Protocol

import numpy as np
import numpy.typing as npt
from scipy import sparse

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract.configuration import Configuration, Own
from sqlfl.messages import Residuals
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
    """First column of each category feature; at the end the width."""

    @property
    def counts(self) -> Array:
        """Return cnt of every active row, the total weight of its joined rows: float64 (rows,)."""
        ...

    def predict(self, theta: Array, batch: Array | None = None) -> Array:
        """Return X̃ θ: (d, c) -> (rows or batch rows, c)."""
        ...

    def gradient(self, values: Array, batch: Array | None = None) -> Array:
        """Return X̃ᵀ V: (rows or batch rows, c) -> (d, c)."""
        ...

    def gram(self) -> GramMatrix:
        """Return Σ cnt x xᵀ before the one-hot columns are centred."""
        ...

    def norms(self) -> Array:
        """Return ‖x̃_r‖ of every active row, with centred columns: float64 (rows,)."""
        ...

    def columns(self, kind: npt.DTypeLike = np.float64) -> tuple[Array, sparse.csr_array]:
        """Return the encoded columns before centring: numeric (rows, p), as numbers of this kind,
        and one-hot (rows, d − p).
        """
        ...


class Metric(Protocol):
    def solve(self, values: Array) -> Array: ...


class ClientStep(ABC, Generic[Own]):
    """One method at one linear block. θ is (d, d_c), and starts from the given one."""

    takes: ClassVar[tuple[type[Residuals], ...]]
    """Types of the method's residuals."""
    needs_gram: ClassVar[bool] = False
    """True if the method uses second moments: the slot's, or in consensus the client's own."""
    ends: bool = True
    """True if a step whose predictions cover all rows ends an epoch."""

    def __init__(self, configuration: Own, engine: Engine, theta: Array) -> None:
        self._configuration = configuration
        self._centre = engine.centre
        self._theta = theta
        self._measure: Metric | None = None
        """P⁻¹ = curvature/N X̃ᵀCX̃ + l2 I, in which the slope is measured."""

    @property
    def theta(self) -> Array:
        return self._theta

    def set_gram(self, gram: GramMatrix) -> None:
        settings = self._configuration
        self._measure = BlockSolver(
            gram, self._centre, settings.total, settings.curvature, settings.l2
        )

    @property
    def completes(self) -> bool:
        """`completed` changes residuals."""
        return False

    def completed(self, values: Array, rows: Array | None) -> Array:
        """Return Y of these rows (None: all) as the gradient takes it: (n, d_c), from what the
        coordinator sent."""
        return values

    def begin(self, message: Any) -> None:  # there may be nothing to be told
        """Take the facts about the step from the message of residuals, before the gradient."""

    @abstractmethod
    def advance(self, gradient: Array) -> tuple[Array, Array]:
        """Step from Σ_r x̃_r Y[r] over the slot. Return the vector to multiply with X̃, and the
        products.
        """

    def restart(self, theta: Array, centre: Array) -> None:
        """Go on at θ, in columns of other units and centre."""
        raise InternalError(f"{self._configuration.method} has no strengths")

    def probe(self, gradient: Array) -> Array:
        """Make one power round: (d, 1) -> (d, 1)."""
        raise InternalError(f"{self._configuration.method} has no power rounds")

    def slope(self, gradient: Array) -> Array:
        """Return ‖g‖² from Σ_r x̃_r Y[r] over the slot, Y the residuals at θ. If the step has the
        slot's second moments, return gᵀP g too: (2,) or (1,).
        """
        settings = self._configuration
        g = gradient / settings.rows + settings.l2 * self.theta
        norms = [float(np.vdot(g, g))]
        if self._measure is not None:
            norms.append(float(np.vdot(g, self._measure.solve(g))))
        return np.array(norms)


class Averaging(Protocol):
    """Step whose clients average parameters instead of summing gradients, in place of `advance`."""

    def part(self, gradient: Array) -> Array:
        """Return the values to average in the first inner round, (d, d_c)."""
        ...

    def average(self, mean: Array) -> Array:
        """Take the average of an inner round. Return the values to average in the next one."""
        ...

    def settle(self, mean: Array) -> tuple[Array, Array]:
        """Take the last average, and return the values of `advance`."""
        ...


def penalty(theta: Array, configuration: Configuration) -> Array:
    """Return l2/2 ‖θ‖²: (1,)."""
    return np.array([0.5 * configuration.l2 * float(np.vdot(theta, theta))])
