"""The client's part of sharing ADMM of a tower: mini-batch steps on the augmented objective."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.base.interrupts import checkpoint
from sqlfl.messages import ConsensusAverage, ConsensusPart, Message
from sqlfl.methods.admm.configuration import AdmmConfiguration
from sqlfl.methods.admm.messages import AdmmResiduals
from sqlfl.methods.admm.options import local_rounds
from sqlfl.models.optimizers import optimizer_of
from sqlfl.models.towers import Tower, TowerShape, Values, seed_of
from sqlfl.party.client import finite
from sqlfl.party.neural import TowerOperator, penalised
from sqlfl.party.release_guard import ReleaseGuard
from sqlfl.party.steps import Engine

if TYPE_CHECKING:
    from sqlfl.models.neural import Limit


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


MIN_STEPS = 100
"""Steps of a θ-update at least, where the client's rows are few."""
MIN_INNER_STEPS = 20
"""Minimum steps of an inner round. With fewer, the duals drift and consensus never settles."""


class LocalUpdate:
    """θ ← argmin 1/N Σ_r [V_r·(f_r − h_r) + ρr·cnt_r/2 ‖f_r − h_r‖²] + l2/2 ‖W‖² (eq. 11).

    h are the predictions before the update, V and ρr as in `client.AdmmStep`, f the tower, without
    an activation on its output. Adam on batches of `batch` of the client's own rows that
    count, `epochs` times all of them and `MIN_STEPS` steps at least; the step length falls from
    `rate` to 0 over an update or an inner round (half a cosine), so that it ends in a point.
    Adam's averages are kept from one update to the next.

    Several clients of the slot: consensus ADMM as in `client.AveragedAdmmStep` (eq. 22-24), with l2
    divided among the clients, and the passes among the inner rounds, each of at least
    `MIN_INNER_STEPS` steps. The metric D of ½‖θ − w + u‖² is ρr/Q times an estimate of the mean
    squared derivative of f by each parameter, from the parameters that all clients hold at the
    update's beginning. u is kept in units of D.

    Private (`guard` and `limit`): DP-SGD. Of N times the objective, each row's own part, the
    bracket above, has its gradient clipped to C; their sum over a batch is noised and divided by N.
    The penalty and the terms of consensus hold nothing of the rows. A row is in one batch of a
    pass, and the passes are those of `local_rounds` and no more: so many noised sums it is in.
    """

    def __init__(
        self,
        network: Tower,
        configuration: AdmmConfiguration,
        engine: Engine,
        seed: int,
        guard: ReleaseGuard | None = None,
        limit: Limit | None = None,
    ) -> None:
        self._network = network
        self._configuration = configuration
        self._guard, self._limit = guard, limit
        if configuration.local is None or configuration.tower is None:
            raise InternalError("local steps of no tower")
        self._options, self._drops = configuration.local, configuration.tower.dropout > 0.0
        self.rounds, self._passes = local_rounds(
            self._options.epochs, configuration.inner_rounds, configuration.clients
        )
        self._rows = np.flatnonzero(engine.counts > 0)
        self._taking = np.array(engine.counts)[:, None]
        self._counts = network.tensor(engine.counts)[:, None]
        self._centre = _frequencies(engine)
        self._seed = seed
        ridge = configuration.l2 / configuration.clients
        self._penalty = network.tensor(ridge * penalised(network.shape))
        self._optimizer = optimizer_of("adam")
        self._updates = 0
        """Number of minimisations so far: each shuffles its batches differently."""
        self._weight = 0.0
        self._values = self._anchor = network.tensor(np.zeros((0, configuration.outputs)))
        self._start = self._local = network.tensor(np.zeros(0))
        self._metric = self._dual = network.tensor(np.zeros(network.shape.size))

    def begin(self, parameters: Values, values: Values, weight: float) -> None:
        """An update from `parameters` (size,), with V (a, outputs) and ρr."""
        self._start = self._local = parameters
        self._values, self._weight = values, weight
        self._anchor = self._network.forward(parameters, None).outputs()

    def minimise(self) -> Values:
        """The new parameters (size,), at the only client of the slot."""
        return self._steps(self._start, MIN_STEPS, None)

    def part(self) -> Values:
        """The first inner round of an epoch: θ^q + u^q."""
        shape = self._network.shape
        arrays = shape.unpack(self._network.numpy(self._start))
        weight = self._weight / self._configuration.clients
        self._metric = self._network.tensor(weight * sensitivities(shape, arrays, self._centre))
        return self._inner(self._start)

    def average(self, mean: Values) -> Values:
        """u^q ← u^q + θ^q − w; the next θ^q + u^q."""
        self._dual = self._dual + self._metric * (self._local - mean)
        return self._inner(mean)

    def settle(self, mean: Values) -> None:
        """The last inner round: all clients take θ = w."""
        self._dual = self._dual + self._metric * (self._local - mean)

    def _inner(self, mean: Values) -> Values:
        self._local = self._steps(self._local, MIN_INNER_STEPS, mean)
        return self._local + self._dual / self._metric

    def _steps(self, start: Values, least: int, mean: Values | None) -> Values:
        options = self._options
        if not len(self._rows):
            if mean is None:
                return start
            return (self._metric * mean - self._dual) / (self._metric + self._penalty)
        self._updates += 1
        generator = np.random.default_rng([self._seed, self._updates])
        batches = math.ceil(len(self._rows) / options.batch)
        passes = self._passes
        if self._guard is None:
            passes = max(passes, math.ceil(least / batches))
        total = passes * batches
        parameters, batch = start, self._rows
        for step in range(total):
            checkpoint()
            if batches > 1:
                if step % batches == 0:
                    order = np.array_split(generator.permutation(self._rows), batches)
                batch = order[step % batches]
            draw = seed_of(self._seed, self._updates, step) if self._drops else None
            gradient = self._gradient(parameters, batch, draw)
            gradient = gradient + self._penalty * parameters
            if mean is not None:
                gradient = gradient + self._metric * (parameters - mean) + self._dual
            rate = 0.5 * options.rate * (1.0 + math.cos(math.pi * step / total))
            parameters = self._optimizer.step(parameters, gradient, rate)
        return parameters

    def _gradient(self, parameters: Values, batch: Array, draw: int | None) -> Values:
        """Estimate the gradient of the sum over the client's rows from a batch."""
        configuration = self._configuration
        rows = None if len(batch) == len(self._anchor) else batch
        forward = self._network.forward(parameters, rows, draw)
        chosen = slice(None) if rows is None else self._network.index(batch)
        moved = forward.outputs() - self._anchor[chosen]
        slopes = self._values[chosen] / configuration.rows
        slopes = slopes + (self._weight / configuration.total) * self._counts[chosen] * moved
        share = len(self._rows) / len(batch)
        if self._guard is None:
            return forward.backward(slopes * share)
        gradient = self._network.numpy(forward.backward(slopes * configuration.rows, self._limit))
        # the join decides whether a row takes part: its slope may be 0 because of its values
        noised = self._guard.gradient(gradient, self._taking[batch], batch)
        return self._network.tensor(noised * (share / configuration.rows))


def sensitivities(shape: TowerShape, parameters: Sequence[Array], centre: Array) -> Array:
    """Return (size,), positive: about the mean of ‖∂f/∂θ_k‖² over rows, for every parameter k.

    It assumes independent units, half of them active: a layer's inputs then have their variance, or
    ½ for a unit. `centre` (d,) is that of the one-hot columns.
    """
    variance = np.where(centre > 0, centre * (1.0 - centre), 1.0)
    squares = [p.reshape(-1, p.shape[-1]) ** 2 for p in parameters]
    derivatives: list[Array] = [np.full(shape.shapes[-1], 0.5)]
    after = squares[-1].sum(axis=1)
    for layer in range(len(shape.hidden) - 1, -1, -1):
        biases = _floored(0.5 * after)
        inputs = _floored(variance) if layer == 0 else np.full(shape.hidden[layer - 1], 0.5)
        derivatives = [np.outer(inputs, biases), biases, *derivatives]
        after = squares[2 * layer] @ biases
    return shape.pack(derivatives)[:, 0]


def _frequencies(engine: Engine) -> Array:
    """Return (d,): frequencies of one-hot columns, 0 for numeric ones. Categories without a centre
    count as equally frequent, `other` included, because nothing may be known about their rows.
    """
    frequencies = np.array(engine.centre)
    for start, end in pairwise(engine.offsets):
        if not frequencies[start:end].any():
            frequencies[start:end] = 1.0 / (end - start + 1)
    return frequencies


def _floored(values: Array) -> Array:
    """Raise small values to a share of the largest, so that division by them is safe."""
    floored: Array = np.maximum(values, max(1e-3 * values.max(initial=0.0), 1e-6))
    return floored
