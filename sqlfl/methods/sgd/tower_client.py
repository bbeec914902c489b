"""The client's part of gradient descent of a tower."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.messages import Message, PartialGradient, SumGradient
from sqlfl.methods.sgd.configuration import SgdConfiguration, Stepping
from sqlfl.methods.sgd.messages import SgdResiduals
from sqlfl.models.optimizers import optimizer_of
from sqlfl.party.client import finite
from sqlfl.party.neural import TowerOperator
from sqlfl.party.steps import Engine


class GradientTower(TowerOperator[Stepping], ABC):
    """A tower that steps along its gradient: h·Y summed over the rows of the last pass (eq. 14),
    and over the slot's clients (eq. 15). Each client makes the same step from the sum.
    """

    def _prepare(self, engine: Engine) -> None:
        steps = self._configuration.steps
        self._optimizer = optimizer_of(steps.optimizer, steps.momentum)
        self._rate, self._divisor = 0.0, 1

    def _answer(self, message: Message) -> Message:
        if isinstance(message, SumGradient):
            return self._advance(np.asarray(message.values, np.float64)[:, 0])
        return super()._answer(message)

    def _descend(self, residuals: Array, rate: float, divisor: int) -> Message:
        """Step along Y of the last pass's rows. Return the reply, or the client's part of the
        slot's gradient.
        """
        if self._pass is None:
            raise InternalError("residuals of a tower of which no rows were asked")
        self._rate, self._divisor = rate, divisor
        slopes = self._pass.backward(self._network.tensor(residuals), self._limit)
        gradient = self._network.numpy(slopes)
        if self._guard is not None:
            gradient = self._guard.gradient(gradient, residuals, self._pass.rows)
        if self._configuration.shared:
            return PartialGradient(self._run, self._slot, finite(gradient[:, None]))
        return self._advance(gradient)

    def _advance(self, gradient: Array) -> Message:
        """A step from the slot's gradient (size,)."""
        configuration = self._configuration
        slope = gradient / self._divisor + configuration.l2 * self._penalised * self._flat
        self._flat = self._optimizer.step(self._flat, slope, self._rate)
        return self._stepped()

    @abstractmethod
    def _stepped(self) -> Message:
        """Return the reply to a step."""


class SgdTower(GradientTower[SgdConfiguration]):
    """Predicts after each step, with units dropped where a batch follows."""

    def _prepare(self, engine: Engine) -> None:
        super()._prepare(engine)
        self._next: Array | None = None

    def _answer(self, message: Message) -> Message:
        if isinstance(message, SgdResiduals):
            self._next = message.following
            return self._descend(message.values, message.rate, message.divisor)
        return super()._answer(message)

    def _stepped(self) -> Message:
        # the next batch's residuals belong to these predictions; after an epoch they are exact
        return self._predictions(self._next, training=self._next is not None, step=True)
