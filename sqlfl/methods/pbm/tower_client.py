"""The client's part of PBM-VFL (Tran et al., 2025, algorithm 2) of a tower."""

from __future__ import annotations

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.messages import Embeddings, Message, Ready, SendPredictions
from sqlfl.methods.pbm.configuration import PbmConfiguration
from sqlfl.methods.pbm.messages import PbmResiduals, SendEmbeddings
from sqlfl.methods.pbm.numbers import LEVELS, quantised
from sqlfl.methods.sgd.tower_client import GradientTower
from sqlfl.models.towers import seed_of
from sqlfl.party.client import finite
from sqlfl.party.steps import Engine


class PbmTower(GradientTower[PbmConfiguration]):
    """A tower that embeds each requested row once; draws are fresh for each joined row.

    Masks cover its output on the way out (sqlfl.party.masked_run). Residuals belong to the rows of
    the latest request for embeddings in training.
    """

    def _prepare(self, engine: Engine) -> None:
        super()._prepare(engine)
        self._last, self._width = False, engine.width

    def handle(self, message: Message) -> Message:
        if isinstance(message, SendPredictions):
            raise InternalError("predictions of 'pbm' leave in sums alone")
        return super().handle(message)

    def _answer(self, message: Message) -> Message:
        match message:
            case SendEmbeddings():
                return self._embeddings(message)
            case PbmResiduals():
                self._last = message.last == 1
                return self._descend(message.values, message.rate, message.divisor)
        return super()._answer(message)

    def _embeddings(self, message: SendEmbeddings) -> Embeddings:
        known = self._configuration.rows
        if message.joined > known:
            raise InternalError(f"{message.kind} is of {message.joined} joined rows, of {known}")
        distinct, where = np.unique(message.rows, return_inverse=True)
        if distinct.size and int(distinct[-1]) >= self._held.active:
            raise InternalError(f"{message.kind} names row {distinct[-1]} of {self._held.active}")
        dropped = None
        if message.training and self._options.dropout > 0.0:
            self._draws += 1
            options = self._options
            dropped = seed_of(options.seed, self._slot, options.number, 2, self._draws)
        made = self._network.forward(self._network.tensor(self._flat), distinct, dropped)
        if message.training:
            self._pass = made
        numbers, most = self._numbers(self._network.numpy(made.outputs())[where], message.rows)
        values = np.zeros((message.joined, self.shape.outputs), numbers.dtype)
        places = message.places if len(message.places) else slice(None)
        if len(numbers):
            values[places] = numbers
        flat = values.reshape(-1)
        return Embeddings(self._run, self._slot, flat, most, self._configuration.slots)

    def _numbers(self, outputs: Array, rows: Array) -> tuple[Array, int]:
        """Unsigned integers for the outputs (n, P) of `rows`, and the largest that there may be."""
        guard = self._guard
        if guard is None or not guard.privacy.bins:
            return quantised(finite(outputs)), LEVELS
        return guard.embeddings(outputs, rows), guard.privacy.bins

    def _stepped(self) -> Message:
        if self._last and self._configuration.keep:
            self._kept.append(self._flat)
        return Ready(self._run, self._slot, self._width)
