"""The client's part of sharing ADMM."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.methods.admm.configuration import AdmmConfiguration
from sqlfl.methods.admm.messages import AdmmResiduals
from sqlfl.models.gram import GramMatrix
from sqlfl.models.solver import BlockSolver
from sqlfl.party.operator import BuildOperator, ClientPart
from sqlfl.party.steps import ClientStep, Engine, penalty


class AdmmStep(ClientStep[AdmmConfiguration]):
    """θ ← θ − K⁻¹ (X̃ᵀV / N + l2 θ), K = ρ r/N X̃ᵀCX̃ + l2 I (eq. 11 in increments, r ≥ 1).

    V[r] = Σ_{j∈G(r)} w_j (λ_j + ρ (H_j − z_j)), w having a mean of 1. In private runs X̃ᵀV is
    clipped and noised, and a bound takes the place of X̃ᵀCX̃ (sqlfl.party.moments).
    """

    takes = (AdmmResiduals,)
    needs_gram = True

    def __init__(self, configuration: AdmmConfiguration, engine: Engine, theta: Array) -> None:
        super().__init__(configuration, engine, theta)
        self._gram: GramMatrix | None = None
        self._weight = configuration.rho
        self._solvers: dict[float, BlockSolver] = {}

    def set_gram(self, gram: GramMatrix) -> None:
        self._gram = gram

    def begin(self, message: AdmmResiduals) -> None:
        self._weight = message.weight

    def advance(self, gradient: Array) -> tuple[Array, Array]:
        configuration = self._configuration
        slope = gradient / configuration.rows + configuration.l2 * self._theta
        self._theta = self._theta - self._solver(self._weight).solve(slope)
        return self._theta, penalty(self._theta, configuration)

    def probe(self, gradient: Array) -> Array:
        configuration = self._configuration
        return self._solver(configuration.rho).solve(
            gradient * (configuration.rho / configuration.rows)
        )

    def slope(self, gradient: Array) -> Array:
        if self._configuration.metric and self._gram is not None:
            super().set_gram(self._gram)
        return super().slope(gradient)

    def _ridge(self, weight: float) -> float | Array:
        return self._configuration.l2

    def _solver(self, weight: float) -> BlockSolver:
        if self._gram is None:
            raise InternalError("second moments are missing")
        if weight not in self._solvers:
            total, ridge = self._configuration.total, self._ridge(weight)
            solver = BlockSolver(self._gram, self._centre, total, weight, ridge)
            self._solvers = {weight: solver}
        return self._solvers[weight]


class AveragedAdmmStep(AdmmStep):
    """The same over several clients without summed second moments: eq. 22-24.

    Inner round: θ^q = argmin l_q(θ) + l2/2Q ‖θ‖² + ½ ‖θ − w + u^q‖²_D, then w = mean(θ^q + u^q) at
    the coordinator, then u^q ← u^q + θ^q − w, with l_q the client's share of the θ-update's
    quadratic. R is divided among the clients, so that the coordinator's step is a mean; the metric
    D = ρ r/Q · diag(variances of the slot's encoded columns) takes the place of the scalar ρ of the
    paper and needs no tuning: all clients know these variances from the encoding; of categories
    that are not centred, as if they were equally frequent. u is kept over epochs.
    """

    def __init__(self, configuration: AdmmConfiguration, engine: Engine, theta: Array) -> None:
        super().__init__(configuration, engine, theta)
        options, centre = configuration, engine.centre
        variance = np.where(centre > 0, centre * (1.0 - centre), 1.0)
        for start, end in pairwise(engine.offsets):
            if not centre[start:end].any():  # by given categories, of unknown frequencies
                variance[start:end] = 1.0 / max(end - start, 1)
        variance = np.maximum(variance, 1e-6 * variance.max(initial=1.0))
        self._metric = variance / options.clients
        self._dual = np.zeros_like(self._theta)
        """u^q, in the metric's units: D u."""
        self._projector: BlockSolver | None = None
        self._local = self._theta
        self._slope = self._theta

    def _ridge(self, weight: float) -> float | Array:
        configuration = self._configuration
        ridge: Array = configuration.l2 / configuration.clients + weight * self._metric
        return ridge

    def probe(self, gradient: Array) -> Array:
        configuration = self._configuration
        if self._gram is None:
            raise InternalError("second moments are missing")
        if self._projector is None:
            ridge = configuration.l2 / configuration.clients
            self._projector = BlockSolver(
                self._gram, self._centre, configuration.total, configuration.rho, ridge
            )
        return self._projector.solve(gradient * (configuration.rho / configuration.rows))

    def part(self, gradient: Array) -> Array:
        """The first inner round of an epoch: θ^q + u^q."""
        self._slope = gradient / self._configuration.rows
        return self._minimise(self._theta)

    def average(self, mean: Array) -> Array:
        """u^q ← u^q + θ^q − w; the next θ^q + u^q."""
        metric = (self._weight * self._metric)[:, None]
        self._dual = self._dual + metric * (self._local - mean)
        return self._minimise(mean)

    def settle(self, mean: Array) -> tuple[Array, Array]:
        """The last inner round: all clients take θ = w."""
        metric = (self._weight * self._metric)[:, None]
        self._dual = self._dual + metric * (self._local - mean)
        self._theta = mean
        return mean, penalty(mean, self._configuration)

    def _minimise(self, mean: Array) -> Array:
        configuration = self._configuration
        metric = (self._weight * self._metric)[:, None]
        anchor = self._theta
        slope = self._slope + configuration.l2 / configuration.clients * anchor
        slope = slope + metric * (anchor - mean) + self._dual
        self._local = anchor - self._solver(self._weight).solve(slope)
        local: Array = self._local + self._dual / metric
        return local


def _step(configuration: AdmmConfiguration, engine: Engine, theta: Array) -> AdmmStep:
    kind = AveragedAdmmStep if configuration.averagings else AdmmStep
    return kind(configuration, engine, theta)


def _tower() -> BuildOperator:
    from sqlfl.methods.admm.tower_client import AdmmTower

    return AdmmTower


CLIENT = ClientPart(AdmmConfiguration, _step, _tower)
