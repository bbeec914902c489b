"""The client's part of L-BFGS."""

from __future__ import annotations

from sqlfl.arrays import Array
from sqlfl.errors import InternalError
from sqlfl.methods.lbfgs.basis import Basis
from sqlfl.methods.lbfgs.configuration import LbfgsConfiguration
from sqlfl.methods.lbfgs.messages import ExactLbfgsResiduals, LbfgsResiduals
from sqlfl.models.class_solver import ClassSolver
from sqlfl.models.gram import GramMatrix
from sqlfl.party.operator import ClientPart
from sqlfl.party.steps import Engine, Metric, metric, squares


class LbfgsStep:
    """θ ← θ + α d, then g and P g with P = (curvature/N X̃ᵀCX̃ + l2 I)⁻¹; see methods.lbfgs.basis."""

    takes = (LbfgsResiduals, ExactLbfgsResiduals)
    needs_gram = True

    def __init__(self, configuration: LbfgsConfiguration, engine: Engine, theta: Array) -> None:
        if configuration.privacy is not None:
            raise InternalError("lbfgs searches and multiplies exactly: it cannot be private")
        self._configuration = configuration
        self._centre = engine.centre
        self._solver: Metric | None = None
        self._basis = Basis(theta, self._solve, configuration.memory)

    @property
    def theta(self) -> Array:
        return self._basis.theta

    def set_gram(self, gram: GramMatrix) -> None:
        """P; of several classes with a curvature of each."""
        own = self._configuration
        if own.shares:
            self._solver = ClassSolver(gram, self._centre, own.total, own.shares, own.l2)
        else:
            self._solver = metric(own, gram, self._centre)

    def _solve(self, values: Array) -> Array:
        if self._solver is None:
            raise InternalError("second moments are missing")
        return self._solver.solve(values)

    def begin(self, message: LbfgsResiduals) -> None:
        self._basis.move(message.coefficients)

    def advance(self, gradient: Array) -> tuple[Array, Array]:
        own = self._configuration
        products = self._basis.renew(gradient / own.rows + own.l2 * self._basis.theta)
        return self._basis.preconditioned, products

    def probe(self, gradient: Array) -> Array:
        raise InternalError("lbfgs has no power rounds")

    def slope(self, gradient: Array) -> Array:
        return squares(self._configuration, self._basis.theta, gradient, self._solver)


CLIENT = ClientPart(LbfgsConfiguration, LbfgsStep)
