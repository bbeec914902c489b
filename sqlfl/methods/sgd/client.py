"""The client's part of gradient descent."""

from __future__ import annotations

from sqlfl.arrays import Array
from sqlfl.methods.sgd.configuration import SgdConfiguration
from sqlfl.methods.sgd.messages import SgdResiduals
from sqlfl.models.gram import GramMatrix
from sqlfl.models.optimizers import optimizer_of
from sqlfl.party.operator import BuildTower, ClientPart
from sqlfl.party.steps import Engine, Metric, metric, penalty, squares


class SgdStep:
    """θ ← θ − η (X̃ᵀY / B + l2 θ), or the optimizer's step with that gradient."""

    takes = (SgdResiduals,)
    needs_gram = False

    def __init__(self, configuration: SgdConfiguration, engine: Engine, theta: Array) -> None:
        self._configuration = configuration
        self._theta = theta
        self._centre = engine.centre
        self._solver: Metric | None = None
        self._optimizer = optimizer_of(configuration.optimizer, configuration.momentum)
        self._rate, self._divisor = 0.0, 1

    @property
    def theta(self) -> Array:
        return self._theta

    def set_gram(self, gram: GramMatrix) -> None:
        """For the slope alone."""
        self._solver = metric(self._configuration, gram, self._centre)

    def begin(self, message: SgdResiduals) -> None:
        self._rate, self._divisor = message.rate, message.divisor

    def advance(self, gradient: Array) -> tuple[Array, Array]:
        slope = gradient / self._divisor + self._configuration.l2 * self._theta
        self._theta = self._optimizer.step(self._theta, slope, self._rate)
        return self._theta, penalty(self._theta, self._configuration)

    def probe(self, gradient: Array) -> Array:
        return gradient / self._configuration.rows

    def slope(self, gradient: Array) -> Array:
        return squares(self._configuration, self._theta, gradient, self._solver)


def _tower() -> BuildTower:
    from sqlfl.methods.sgd.tower_client import SgdTower  # loads torch

    return SgdTower


CLIENT = ClientPart(SgdConfiguration, SgdStep, _tower)
