"""The client's part of sharing ADMM of a tower."""

from __future__ import annotations

from typing import Any

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.messages import ConsensusAverage, ConsensusPart, Message
from sqlfl.methods.admm.configuration import AdmmConfiguration
from sqlfl.methods.admm.local import LocalUpdate
from sqlfl.methods.admm.messages import AdmmResiduals
from sqlfl.models.neural import seed_of
from sqlfl.party.client import finite
from sqlfl.party.neural import TowerOperator
from sqlfl.party.steps import Engine


class AdmmTower(TowerOperator[AdmmConfiguration]):
    """A tower that trains by local steps: see `LocalUpdate`."""

    def _prepare(self, engine: Engine) -> None:
        configuration, options = self._configuration, self._options
        seed = seed_of(options.seed, self._slot, options.number, 1)
        self._local = LocalUpdate(
            self._network, configuration, engine, seed, self._guard, self._limit
        )
        self._inner = 0

    def _answer(self, message: Message) -> Message:
        match message:
            case AdmmResiduals():
                return self._update(message)
            case ConsensusAverage() if self._configuration.shared:
                return self._average(np.asarray(message.values, np.float64)[:, 0])
        return super()._answer(message)

    def _update(self, message: AdmmResiduals) -> Message:
        parameters = self._network.tensor(self._flat)
        self._local.begin(parameters, self._network.tensor(message.values), message.weight)
        if self._configuration.shared:
            self._inner = 0
            return self._part(self._local.part())
        return self._settle(self._network.numpy(self._local.minimise()))

    def _average(self, mean: Array) -> Message:
        self._inner += 1
        if self._inner < self._local.rounds:
            return self._part(self._local.average(self._network.tensor(mean)))
        self._local.settle(self._network.tensor(mean))
        return self._settle(mean)

    def _part(self, values: Any) -> ConsensusPart:
        return ConsensusPart(self._run, self._slot, finite(self._network.numpy(values))[:, None])

    def _settle(self, parameters: Array) -> Message:
        self._flat = parameters
        return self._predictions(None, training=False, step=True)
