"""The client's part of gradient descent of a tower."""

from __future__ import annotations

import numpy as np

from sqlfl.arrays import Array
from sqlfl.errors import InternalError
from sqlfl.messages import Message, PartialGradient, SumGradient
from sqlfl.methods.sgd.configuration import SgdConfiguration
from sqlfl.methods.sgd.messages import SgdResiduals
from sqlfl.models.optimizers import optimizer_of
from sqlfl.party.client import finite
from sqlfl.party.neural import TowerOperator
from sqlfl.party.steps import Engine


class SgdTower(TowerOperator[SgdConfiguration]):
    """A gradient is that of h·Y summed over the rows of the last predictions (eq. 14), and over the
    slot's clients (eq. 15); the optimizer's step is made from the sum, alike at each of them."""

    def _prepare(self, engine: Engine) -> None:
        own = self._configuration.steps
        self._optimizer = optimizer_of(own.optimizer, own.momentum)
        self._rate, self._divisor = 0.0, 1
        self._next: Array | None = None

    def _answer(self, message: Message) -> Message:
        match message:
            case SgdResiduals():
                return self._residuals(message)
            case SumGradient():
                return self._advance(np.asarray(message.values, np.float64)[:, 0])
        return super()._answer(message)

    def _residuals(self, message: SgdResiduals) -> Message:
        if self._pass is None:
            raise InternalError("residuals of a tower that has not predicted")
        self._rate, self._divisor = message.rate, message.divisor
        self._next = message.following
        slopes = self._pass.backward(self._network.tensor(message.values), self._limit)
        gradient = self._network.numpy(slopes)
        if self._guard is not None:
            gradient = self._guard.gradient(gradient, message.values, self._pass.rows)
        if self._configuration.shared:
            return PartialGradient(self._run, self._slot, finite(gradient[:, None]))
        return self._advance(gradient)

    def _advance(self, gradient: Array) -> Message:
        """A step from the slot's gradient (size,)."""
        own = self._configuration
        slope = gradient / self._divisor + own.l2 * self._penalised * self._flat
        self._flat = self._optimizer.step(self._flat, slope, self._rate)
        # the next batch's residuals are of these predictions; after an epoch they are to be exact
        return self._predictions(self._next, training=self._next is not None, step=True)
