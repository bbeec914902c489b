"""The client's part of gradient descent."""

from __future__ import annotations

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.methods.sgd.configuration import SgdConfiguration
from sqlfl.methods.sgd.messages import SgdResiduals
from sqlfl.models.optimizers import optimizer_of
from sqlfl.party.operator import BuildOperator, ClientPart
from sqlfl.party.steps import ClientStep, Engine, penalty


class SgdStep(ClientStep[SgdConfiguration]):
    """θ ← θ − η (X̃ᵀY / B + l2 θ), or the optimizer's step with that gradient.

    With `feedback`, Y lacks what the block's own scores add to it, c Σ w_j h_r over the joined rows
    of a row: the client adds that itself, from the scores that nothing noises. A row's part of the
    gradient is then still a function of the row, of θ and of what was sent, and clipped as one.
    """

    takes = (SgdResiduals,)

    def __init__(self, configuration: SgdConfiguration, engine: Engine, theta: Array) -> None:
        super().__init__(configuration, engine, theta)
        steps = configuration.steps
        self._optimizer = optimizer_of(steps.optimizer, steps.momentum)
        self._engine = engine
        self._scale = configuration.feedback * configuration.rows / configuration.total
        self._rate, self._divisor = 0.0, 1

    @property
    def completes(self) -> bool:
        return self._scale > 0.0

    def completed(self, values: Array, rows: Array | None) -> Array:
        counts = self._engine.counts if rows is None else self._engine.counts[rows]
        with np.errstate(over="ignore", invalid="ignore"):
            residuals = values + self._scale * counts[:, None] * self._engine.predict(
                self._theta, rows
            )
        # rows that are not finite count as 0, as in predictions: an error would disclose them
        whole: Array = np.where(np.isfinite(residuals).all(axis=1, keepdims=True), residuals, 0.0)
        return whole

    def begin(self, message: SgdResiduals) -> None:
        self._rate, self._divisor = message.rate, message.divisor

    def advance(self, gradient: Array) -> tuple[Array, Array]:
        slope = gradient / self._divisor + self._configuration.l2 * self._theta
        self._theta = self._optimizer.step(self._theta, slope, self._rate)
        return self._theta, penalty(self._theta, self._configuration)

    def probe(self, gradient: Array) -> Array:
        return gradient / self._configuration.rows


def _tower() -> BuildOperator:
    from sqlfl.methods.sgd.tower_client import SgdTower

    return SgdTower


CLIENT = ClientPart(SgdConfiguration, SgdStep, _tower)
