"""The client's part of L-BFGS."""

from __future__ import annotations

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.methods.lbfgs.basis import Basis
from sqlfl.methods.lbfgs.configuration import LbfgsConfiguration
from sqlfl.methods.lbfgs.messages import ExactLbfgsResiduals, LbfgsResiduals
from sqlfl.models.gram import GramMatrix
from sqlfl.models.solver import ClassSolver
from sqlfl.party.operator import ClientPart
from sqlfl.party.steps import ClientStep, Engine


class LbfgsStep(ClientStep[LbfgsConfiguration]):
    """θ ← θ + α d, then g and P g with P = (curvature/N X̃ᵀCX̃ + l2 I)⁻¹; see methods.lbfgs.basis."""

    takes = (LbfgsResiduals, ExactLbfgsResiduals)
    needs_gram = True

    def __init__(self, configuration: LbfgsConfiguration, engine: Engine, theta: Array) -> None:
        if configuration.privacy is not None:
            raise InternalError("lbfgs searches and multiplies exactly: it cannot be private")
        super().__init__(configuration, engine, theta)
        self._basis = Basis(theta, self._solve, configuration.memory)

    @property
    def theta(self) -> Array:
        return self._basis.theta

    def set_gram(self, gram: GramMatrix) -> None:
        """P; of several classes with a curvature of each."""
        options = self._configuration
        if options.shares:
            self._measure = ClassSolver(
                gram, self._centre, options.total, options.shares, options.l2
            )
        else:
            super().set_gram(gram)

    def restart(self, theta: Array, centre: Array) -> None:
        self._centre = centre
        self._basis.restart(theta)

    def _solve(self, values: Array) -> Array:
        if self._measure is None:
            raise InternalError("second moments are missing")
        return self._measure.solve(values)

    def begin(self, message: LbfgsResiduals) -> None:
        self.ends = bool(message.epoch)
        self._basis.move(message.coefficients)

    def advance(self, gradient: Array) -> tuple[Array, Array]:
        options = self._configuration
        products = self._basis.renew(gradient / options.rows + options.l2 * self._basis.theta)
        return self._basis.preconditioned, products


CLIENT = ClientPart(LbfgsConfiguration, LbfgsStep)
