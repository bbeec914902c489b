"""The client's part of training a neural tower: answers the coordinator's messages for one slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from sqlfl.arrays import Array
from sqlfl.errors import InternalError
from sqlfl.messages import (
    ConsensusAverage,
    ConsensusPart,
    Message,
    PartialGradient,
    Predictions,
    Residuals,
    SendPredictions,
    SendReleases,
    SumGradient,
)
from sqlfl.models.neural import Limit, Network, seed_of
from sqlfl.models.optimizers import optimizer_of
from sqlfl.models.perceptron import Perceptron, suits
from sqlfl.models.towers import Tower, TowerPass, TowerShape, first_parameters, weights_of
from sqlfl.party.client import finite, predictions_of
from sqlfl.party.first_layer import EngineLayer, make_layer
from sqlfl.party.guard import Guard, releases_of
from sqlfl.party.local import LocalUpdate, penalised
from sqlfl.party.requests import Held
from sqlfl.party.steps import ClientConfiguration, Engine
from sqlfl.privacy.randomness import Entropy, system


class NeuralOperator:
    """Training of one slot's tower at one client.

    `configuration` is the JSON of `Start`. The tower starts at `parameters` (W₁, b₁, …, W_out), or
    where all clients of the slot draw it alike. Raises InternalError for parameters of another
    shape, ModelError where the device is not there, or Opacus, where the run is private. `entropy`
    is for tests.

    sgd: a gradient is that of h·Y summed over the rows of the last predictions (eq. 14), and over
    the slot's clients (eq. 15); the optimizer's step is made from the sum, alike at each of them.
    admm: see `LocalUpdate`.

    In private runs each row's gradient by all parameters is clipped, the client's sum is noised
    before anything is made of it, and predictions of a row are clipped and noised each time: see
    `Guard`. Steps, penalties and partial gradients are functions of noised sums.
    """

    def __init__(
        self,
        engine: Engine,
        configuration: str,
        run: str,
        slot: int,
        parameters: Sequence[Array] | None = None,
        *,
        entropy: Entropy = system,
    ) -> None:
        self._configuration = own = ClientConfiguration.from_json(configuration)
        self._run, self._slot = run, slot
        self._held = Held.of(engine, own)
        shape = own.tower(engine.width)
        if shape is None:
            raise InternalError("a tower without hidden layers")
        self.shape: TowerShape = shape
        if parameters is None:
            parameters = first_parameters(self.shape, engine.numeric, own.seed, slot)
            if own.privacy is not None and own.privacy.prediction_clip:
                # outputs beyond the clip would count in scoring as they never did in training
                bound = min(1.0, own.privacy.prediction_clip)
                parameters = (*parameters[:-1], bound * parameters[-1])
        if tuple(p.shape for p in parameters) != self.shape.shapes:
            raise InternalError(
                f"a start of shapes {[p.shape for p in parameters]} for a tower of "
                f"{list(self.shape.shapes)}"
            )
        self._flat = self.shape.pack(parameters)[:, 0]
        self._penalised = penalised(self.shape)
        self._network: Tower
        self._guard: Guard | None = None
        self._limit: Limit | None = None
        if own.privacy is not None:
            from sqlfl.models.per_row import RowLimit  # loads opacus

            self._guard = Guard(own.privacy, engine.rows, entropy)
            network = torch_network(self.shape, engine, own)
            self._network, self._limit = network, RowLimit(network, self._guard.factors)
        else:
            self._network = network_of(self.shape, engine, own)
        self._optimizer = optimizer_of(own.optimizer, own.momentum)
        self._local: LocalUpdate | None = None
        match own.algorithm:
            case "admm":
                seed = seed_of(own.seed, slot, own.number, 1)
                self._local = LocalUpdate(
                    self._network, own, engine, seed, self._guard, self._limit
                )
            case "sgd":
                pass
            case _:
                raise InternalError(f"towers are not trained by {own.algorithm!r}")
        self._pass: TowerPass | None = None
        """Of the last predictions, whose residuals come next."""
        self._coefficients = np.zeros(3)
        self._next: Array | None = None
        self._draws = 0
        self._inner = 0
        self._kept: deque[Array] = deque(maxlen=own.keep + 1)
        """The parameters after each of the last epochs, where `keep` asks for it."""

    @property
    def parameters(self) -> tuple[Array, ...]:
        """W₁, b₁, …, W_out"""
        return self.shape.unpack(self._flat)

    @property
    def guard(self) -> Guard | None:
        """None where nothing is noised."""
        return self._guard

    def kept(self, back: int) -> tuple[Array, ...]:
        """The parameters as they were `back` epochs ago: InternalError for more than are kept."""
        flat = self._flat
        if back != 0:
            if not 0 < back < len(self._kept):
                raise InternalError(f"{back} epochs back, of {len(self._kept)} that are kept")
            flat = self._kept[-1 - back]
        return self.shape.unpack(flat.copy())

    def handle(self, message: Message) -> Message:
        """The reply to a training message; InternalError where it does not belong here, or is of
        other rows or parameters."""
        self._held.check(message, None if self._pass is None else self._pass.rows)
        match message:
            case SendPredictions():
                rows = None if message.whole else message.batch
                return self._predictions(rows, training=message.training == 1)
            case Residuals() if self._local is not None:
                return self._update(self._local, message)
            case Residuals():
                return self._residuals(message)
            case SumGradient() if self._local is None:
                return self._advance(np.asarray(message.values, np.float64)[:, 0])
            case ConsensusAverage() if self._local is not None and self._configuration.shared:
                return self._average(self._local, np.asarray(message.values, np.float64)[:, 0])
            case SendReleases():
                return releases_of(self._guard, self._run, self._slot)
        raise InternalError(f"message {message.kind} is no part of training a tower")

    # -- sgd --------------------------------------------------------------------------------------

    def _residuals(self, message: Residuals) -> Message:
        if self._pass is None:
            raise InternalError("residuals of a tower that has not predicted")
        self._coefficients = message.coefficients
        self._next = message.batch if message.coefficients[2] == 0.0 else None
        slopes = self._pass.backward(self._network.tensor(message.values), self._limit)
        gradient = self._network.numpy(slopes)
        if self._guard is not None:
            gradient = self._guard.gradient(gradient, message.values, self._pass.rows)
        if self._configuration.shared:
            return PartialGradient(self._run, self._slot, finite(gradient[:, None]))
        return self._advance(gradient)

    def _advance(self, gradient: Array) -> Message:
        """A step from the slot's gradient (size,); coefficients: η, B, all rows next."""
        rate, batch, _ = self._coefficients
        slope = gradient / batch + self._configuration.l2 * self._penalised * self._flat
        self._flat = self._optimizer.step(self._flat, slope, float(rate))
        # the next batch's residuals are of these predictions; after an epoch they are to be exact
        return self._predictions(self._next, training=self._next is not None, step=True)

    # -- admm -------------------------------------------------------------------------------------

    def _update(self, local: LocalUpdate, message: Residuals) -> Message:
        parameters = self._network.tensor(self._flat)
        values = self._network.tensor(message.values)
        local.begin(parameters, values, float(message.coefficients[0]))
        if self._configuration.shared:
            self._inner = 0
            return self._part(local.part())
        return self._settle(local.minimise())

    def _average(self, local: LocalUpdate, mean: Array) -> Message:
        self._inner += 1
        if self._inner < local.rounds:
            return self._part(local.average(self._network.tensor(mean)))
        local.settle(self._network.tensor(mean))
        self._flat = mean
        return self._predictions(None, training=False, step=True)

    def _part(self, values: Any) -> ConsensusPart:
        return ConsensusPart(self._run, self._slot, finite(self._network.numpy(values))[:, None])

    def _settle(self, parameters: Any) -> Message:
        self._flat = self._network.numpy(parameters)
        return self._predictions(None, training=False, step=True)

    # -- both -------------------------------------------------------------------------------------

    def _predictions(
        self, rows: Array | None, *, training: bool, step: bool = False
    ) -> Predictions:
        """An epoch ends with the `step` after which all rows are predicted."""
        own = self._configuration
        if step and rows is None and own.keep:
            self._kept.append(self._flat)
        draw = None
        if training and own.dropout > 0.0:
            self._draws += 1
            draw = seed_of(own.seed, self._slot, own.number, 2, self._draws)
        self._pass = self._network.forward(self._network.tensor(self._flat), rows, draw)
        found = self._network.numpy(self._pass.outputs())
        if self._guard is not None:
            found = self._guard.predictions(found, rows)
        values = predictions_of(found)
        weights = weights_of(self.parameters)
        penalty = 0.5 * own.l2 * sum(float(np.vdot(w, w)) for w in weights)
        products = np.array([penalty]) if own.leader else np.zeros(0)
        return Predictions(self._run, self._slot, values, finite(products))


def network_of(shape: TowerShape, engine: Engine, configuration: ClientConfiguration) -> Tower:
    """In numpy where that is faster, else by torch. Raises ModelError where the device is not
    there."""
    network = torch_network(shape, engine, configuration)
    on_device = not isinstance(network.layer, EngineLayer)
    if on_device or configuration.dropout > 0.0 or not suits(shape, engine.rows):
        return network
    return Perceptron(shape, engine)


def torch_network(shape: TowerShape, engine: Engine, configuration: ClientConfiguration) -> Network:
    own = configuration
    layer = make_layer(engine, own.device, private=own.privacy is not None)
    return Network(shape, layer, own.dropout)
