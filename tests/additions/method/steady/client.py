"""Its steps at a client."""

from __future__ import annotations

from sqlfl.arrays import Array
from sqlfl.errors import InternalError
from sqlfl.messages import Residuals
from sqlfl.models.gram import GramMatrix
from sqlfl.party.operator import ClientPart
from sqlfl.party.steps import Engine, Metric, metric, penalty, squares
from steady.configuration import SteadyConfiguration


class SteadyStep:
    takes = (Residuals,)
    needs_gram = False

    def __init__(self, configuration: SteadyConfiguration, engine: Engine, theta: Array) -> None:
        self._configuration, self._centre = configuration, engine.centre
        self.theta = theta
        self._solver: Metric | None = None

    def set_gram(self, gram: GramMatrix) -> None:
        self._solver = metric(self._configuration, gram, self._centre)

    def begin(self, message: Residuals) -> None:
        """There is nothing to be told."""

    def advance(self, gradient: Array) -> tuple[Array, Array]:
        own = self._configuration
        self.theta = self.theta - own.rate * (gradient / own.rows + own.l2 * self.theta)
        return self.theta, penalty(self.theta, own)

    def probe(self, gradient: Array) -> Array:
        raise InternalError("steady has no power rounds")

    def slope(self, gradient: Array) -> Array:
        return squares(self._configuration, self.theta, gradient, self._solver)


CLIENT = ClientPart(SteadyConfiguration, SteadyStep)
