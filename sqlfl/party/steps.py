"""What a client computes in each method: from the gradient of its block to new predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeAlias

import numpy as np
from scipy import sparse

from sqlfl.arrays import Array
from sqlfl.codec import from_json, to_json
from sqlfl.errors import InternalError
from sqlfl.models.basis import MEMORY, Basis
from sqlfl.models.class_solver import ClassSolver
from sqlfl.models.gram import GramMatrix
from sqlfl.models.optimizers import optimizer_of
from sqlfl.models.solver import BlockSolver
from sqlfl.models.towers import TowerShape
from sqlfl.privacy.specification import RoundPrivacy

Solve = Callable[[Array], Array]


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


@dataclass(frozen=True)
class ClientConfiguration:
    """What a client must know of the training of one slot; travels as JSON in `Start`."""

    algorithm: str
    outputs: int
    """d_c"""
    rows: int
    """N, joined rows: the divisor of sums of residuals, whose weights have a mean of 1."""
    total: float
    """N, or Σ of the weights: the divisor of the second moments, and what counts add up to."""
    clients: int
    """Q_i, clients of the slot."""
    leader: bool
    """This client sends the block's scalars: the first of the slot."""
    l2: float
    curvature: float
    """Of the loss."""
    shares: tuple[float, ...] = ()
    """lbfgs: of the classes of a softmax, by which blocks are preconditioned."""
    rho: float = 0.0
    """admm: ρ of the power rounds."""
    consensus: bool = False
    """admm: inner rounds of consensus instead of summed second moments."""
    inner_rounds: int = 0
    memory: int = MEMORY
    """lbfgs: pairs that are kept."""
    keep: int = 0
    """Epochs to which `Save` may go back."""
    optimizer: str = "plain"
    """sgd: 'plain', 'momentum' or 'adam'."""
    momentum: float = 0.9
    """sgd: of the optimizer 'momentum'."""
    hidden: tuple[int, ...] = ()
    """Widths of a tower's hidden layers; empty for a linear block. `outputs` are then the tower's:
    d_c, or P where a head follows at the coordinator."""
    activation: str = ""
    dropout: float = 0.0
    seed: int = 0
    """Of a tower's first parameters, which all clients of the slot draw alike, its dropout and its
    local batches."""
    number: int = 0
    """Of this client among those of the slot: its dropout and local batches are its own."""
    device: str = "cpu"
    """Of a tower: 'auto', 'cpu' or 'cuda'."""
    local_epochs: int = 0
    """admm of a tower: passes over the client's own rows in the θ-update of an epoch."""
    local_batch: int = 0
    """admm of a tower: its own rows per local step."""
    local_rate: float = 0.0
    """admm of a tower: step length of Adam."""
    privacy: RoundPrivacy | None = None
    """What is clipped and noised; None where nothing is."""

    @property
    def shared(self) -> bool:
        return self.clients > 1

    @property
    def metric(self) -> bool:
        """A client that is asked for the slope has the second moments of the slot, or makes them:
        in sgd where there is no l2 by which the norm alone would tell enough."""
        if self.algorithm == "sgd":
            return not self.shared and self.l2 == 0.0
        return not self.consensus

    def tower(self, width: int) -> TowerShape | None:
        """Over `width` encoded columns; None where the block is linear."""
        if not self.hidden:
            return None
        return TowerShape(width, self.hidden, self.outputs, self.activation)

    def to_json(self) -> str:
        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> ClientConfiguration:
        """What `to_json` wrote. Raises InternalError for anything else."""
        try:
            return from_json(cls, text)
        except ValueError as error:
            raise InternalError(f"the options of training are none: {error}") from None


class ClientStep(Protocol):
    """One method at one block; θ is (d, d_c), and starts from what it is given."""

    needs_gram: bool
    """The method uses second moments: the slot's, or in consensus the client's own."""

    @property
    def theta(self) -> Array: ...

    def set_gram(self, gram: GramMatrix) -> None: ...

    def begin(self, coefficients: Array) -> None:
        """Takes the scalars of a `Residuals` message, before the gradient."""
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


class SgdStep:
    """θ ← θ − η (X̃ᵀY / B + l2 θ), or the optimizer's step with that gradient.

    Coefficients: η, B and whether all rows are predicted next.
    """

    needs_gram = False

    def __init__(self, configuration: ClientConfiguration, theta: Array, centre: Array) -> None:
        self._configuration = configuration
        self._theta = theta
        self._centre = centre
        self._solver: Metric | None = None
        self._optimizer = optimizer_of(configuration.optimizer, configuration.momentum)
        self._rate, self._batch = 0.0, 1.0

    @property
    def theta(self) -> Array:
        return self._theta

    def set_gram(self, gram: GramMatrix) -> None:
        """For the slope alone."""
        self._solver = metric(self._configuration, gram, self._centre)

    def begin(self, coefficients: Array) -> None:
        self._rate, self._batch = float(coefficients[0]), float(coefficients[1])

    def advance(self, gradient: Array) -> tuple[Array, Array]:
        slope = gradient / self._batch + self._configuration.l2 * self._theta
        self._theta = self._optimizer.step(self._theta, slope, self._rate)
        return self._theta, penalty(self._theta, self._configuration)

    def probe(self, gradient: Array) -> Array:
        return gradient / self._configuration.rows

    def slope(self, gradient: Array) -> Array:
        return _squares(self._configuration, self._theta, gradient, self._solver)


class LbfgsStep:
    """θ ← θ + α d, then g and P g with P = (curvature/N X̃ᵀCX̃ + l2 I)⁻¹; see models.basis."""

    needs_gram = True

    def __init__(self, configuration: ClientConfiguration, theta: Array, centre: Array) -> None:
        self._configuration = configuration
        self._centre = centre
        self._solver: Metric | None = None
        self._basis = Basis(theta, self._solve, configuration.memory)

    @property
    def theta(self) -> Array:
        return self._basis.theta

    def set_gram(self, gram: GramMatrix) -> None:
        self._solver = metric(self._configuration, gram, self._centre)

    def _solve(self, values: Array) -> Array:
        if self._solver is None:
            raise InternalError("second moments are missing")
        return self._solver.solve(values)

    def begin(self, coefficients: Array) -> None:
        self._basis.move(coefficients)

    def advance(self, gradient: Array) -> tuple[Array, Array]:
        own = self._configuration
        products = self._basis.renew(gradient / own.rows + own.l2 * self._basis.theta)
        return self._basis.preconditioned, products

    def probe(self, gradient: Array) -> Array:
        raise InternalError("lbfgs has no power rounds")

    def slope(self, gradient: Array) -> Array:
        return _squares(self._configuration, self._basis.theta, gradient, self._solver)


class AdmmStep:
    """θ ← θ − K⁻¹ (X̃ᵀV / N + l2 θ), K = ρ r/N X̃ᵀCX̃ + l2 I (eq. 11 in increments, r ≥ 1).

    Coefficients: ρ r. V[r] = Σ_{j∈G(r)} w_j (λ_j + ρ (H_j − z_j)), w having a mean of 1. In private
    runs X̃ᵀV is clipped and noised, and a bound takes the place of X̃ᵀCX̃ (sqlfl.party.moments).
    """

    needs_gram = True

    def __init__(self, configuration: ClientConfiguration, theta: Array, centre: Array) -> None:
        self._configuration = configuration
        self._centre = centre
        self._theta = theta
        self._gram: GramMatrix | None = None
        self._weight = configuration.rho
        self._solvers: dict[float, BlockSolver] = {}

    @property
    def theta(self) -> Array:
        return self._theta

    def set_gram(self, gram: GramMatrix) -> None:
        self._gram = gram

    def begin(self, coefficients: Array) -> None:
        self._weight = float(coefficients[0])

    def advance(self, gradient: Array) -> tuple[Array, Array]:
        own = self._configuration
        slope = gradient / own.rows + own.l2 * self._theta
        self._theta = self._theta - self._solver(self._weight).solve(slope)
        return self._theta, penalty(self._theta, own)

    def probe(self, gradient: Array) -> Array:
        own = self._configuration
        return self._solver(own.rho).solve(gradient * (own.rho / own.rows))

    def slope(self, gradient: Array) -> Array:
        own = self._configuration
        solver = None
        if own.metric and self._gram is not None:
            solver = metric(own, self._gram, self._centre)
        return _squares(own, self._theta, gradient, solver)

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


class ConsensusStep(AdmmStep):
    """The same over several clients without summed second moments: eq. 22-24.

    Inner round: θ^q = argmin l_q(θ) + l2/2Q ‖θ‖² + ½ ‖θ − w + u^q‖²_D, then w = mean(θ^q + u^q) at
    the coordinator, then u^q ← u^q + θ^q − w, with l_q the client's share of the θ-update's
    quadratic. R is divided among the clients, so that the coordinator's step is a mean; the metric
    D = ρ r/Q · diag(variances of the slot's encoded columns) takes the place of the scalar ρ of the
    paper and needs no tuning: all clients know these variances from the encoding; of categories
    that are not centred, as if they were equally frequent. u is kept over epochs. `offsets` are
    those of the engine.
    """

    def __init__(
        self,
        configuration: ClientConfiguration,
        theta: Array,
        centre: Array,
        offsets: Sequence[int],
    ) -> None:
        super().__init__(configuration, theta, centre)
        own = configuration
        variance = np.where(centre > 0, centre * (1.0 - centre), 1.0)
        for start, end in pairwise(offsets):
            if not centre[start:end].any():  # by given categories, of unknown frequencies
                variance[start:end] = 1.0 / max(end - start, 1)
        variance = np.maximum(variance, 1e-6 * variance.max(initial=1.0))
        self._metric = variance / own.clients
        self._dual = np.zeros_like(self._theta)
        """u^q, in the metric's units: D u."""
        self._projector: BlockSolver | None = None
        self._local = self._theta
        self._slope = self._theta

    def _ridge(self, weight: float) -> float | Array:
        own = self._configuration
        ridge: Array = own.l2 / own.clients + weight * self._metric
        return ridge

    def probe(self, gradient: Array) -> Array:
        own = self._configuration
        if self._gram is None:
            raise InternalError("second moments are missing")
        if self._projector is None:
            ridge = own.l2 / own.clients
            self._projector = BlockSolver(self._gram, self._centre, own.total, own.rho, ridge)
        return self._projector.solve(gradient * (own.rho / own.rows))

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
        own = self._configuration
        metric = (self._weight * self._metric)[:, None]
        anchor = self._theta
        slope = self._slope + own.l2 / own.clients * anchor
        slope = slope + metric * (anchor - mean) + self._dual
        self._local = anchor - self._solver(self._weight).solve(slope)
        local: Array = self._local + self._dual / metric
        return local


Metric: TypeAlias = BlockSolver | ClassSolver


def metric(configuration: ClientConfiguration, gram: GramMatrix, centre: Array) -> Metric:
    """P⁻¹ = curvature/N X̃ᵀCX̃ + l2 I, or with a curvature of each class: the metric in which blocks
    are preconditioned and measured."""
    own = configuration
    if own.shares:
        return ClassSolver(gram, centre, own.total, own.shares, own.l2)
    return BlockSolver(gram, centre, own.total, own.curvature, own.l2)


def _squares(
    configuration: ClientConfiguration,
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


def penalty(theta: Array, configuration: ClientConfiguration) -> Array:
    """l2/2 ‖θ‖²: (1,)."""
    return np.array([0.5 * configuration.l2 * float(np.vdot(theta, theta))])
