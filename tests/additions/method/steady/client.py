"""Its steps at a client."""

from __future__ import annotations

from sqlfl.base.arrays import Array
from sqlfl.messages import Residuals
from sqlfl.party.operator import ClientPart
from sqlfl.party.steps import ClientStep, penalty
from steady.configuration import SteadyConfiguration


class SteadyStep(ClientStep[SteadyConfiguration]):
    takes = (Residuals,)

    def advance(self, gradient: Array) -> tuple[Array, Array]:
        own = self._configuration
        self._theta = self._theta - own.rate * (gradient / own.rows + own.l2 * self._theta)
        return self._theta, penalty(self._theta, own)


CLIENT = ClientPart(SteadyConfiguration, SteadyStep)
