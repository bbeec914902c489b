"""The client's part of training a neural tower, as all methods have it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract.configuration import Own, TowerConfiguration
from sqlfl.messages import Message, Predictions, SendPredictions, SendReleases
from sqlfl.models.neural import Limit, TowerNetwork, seed_of
from sqlfl.models.perceptron import Perceptron, suits
from sqlfl.models.towers import Tower, TowerPass, TowerShape, first_parameters, weights_of
from sqlfl.party.client import finite, predictions_of
from sqlfl.party.first_layer import EngineLayer, make_layer
from sqlfl.party.guard import ReleaseGuard, releases_of
from sqlfl.party.requests import SlotExpectations
from sqlfl.party.steps import Engine
from sqlfl.privacy.randomness import Entropy, system


class TowerOperator(Generic[Own]):
    """Training of one slot's tower at one client; a method's own says how it answers its messages.

    The tower starts at `parameters` (W₁, b₁, …, W_out), or where all clients of the slot draw it
    alike. Raises InternalError for parameters of another shape, ModelError where the device is not
    there, or Opacus, where the run is private. `entropy` is for tests.

    In private runs each row's gradient by all parameters is clipped, the client's sum is noised
    before anything is made of it, and predictions of a row are clipped and noised each time: see
    `Guard`. Steps, penalties and partial gradients are functions of noised sums.
    """

    def __init__(
        self,
        engine: Engine,
        configuration: Own,
        run: str,
        slot: int,
        parameters: Sequence[Array] | None = None,
        *,
        entropy: Entropy = system,
    ) -> None:
        self._configuration = own = configuration
        self._run, self._slot = run, slot
        self._held = SlotExpectations.of(engine, own)
        shape = own.shape(engine.width)
        if shape is None or own.tower is None:
            raise InternalError("a tower without hidden layers")
        self.shape: TowerShape = shape
        self._options = own.tower
        if parameters is None:
            parameters = first_parameters(self.shape, engine.numeric, own.tower.seed, slot)
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
        self._guard: ReleaseGuard | None = None
        self._limit: Limit | None = None
        if own.privacy is not None:
            self._guard = ReleaseGuard(own.privacy, engine.rows, entropy)
        if self._guard is not None and self._guard.privacy.clip:
            from sqlfl.models.per_row import RowLimit  # loads opacus

            network = torch_network(self.shape, engine, own.tower, private=True)
            self._network, self._limit = network, RowLimit(network, self._guard.factors)
        else:
            self._network = network_of(self.shape, engine, own.tower)
        self._pass: TowerPass | None = None
        """Of the last predictions, whose residuals come next."""
        self._draws = 0
        self._kept: deque[Array] = deque(maxlen=own.keep + 1)
        """The parameters after each of the last epochs, where `keep` asks for it."""
        self._prepare(engine)

    def _prepare(self, engine: Engine) -> None:
        """What the method holds beside."""

    @property
    def parameters(self) -> tuple[Array, ...]:
        """W₁, b₁, …, W_out"""
        return self.shape.unpack(self._flat)

    @property
    def guard(self) -> ReleaseGuard | None:
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
            case SendReleases():
                return releases_of(self._guard, self._run, self._slot)
        return self._answer(message)

    def _answer(self, message: Message) -> Message:
        """To the messages of the method."""
        raise InternalError(f"message {message.kind} is no part of training a tower")

    def _predictions(
        self, rows: Array | None, *, training: bool, step: bool = False
    ) -> Predictions:
        """An epoch ends with the `step` after which all rows are predicted."""
        own, options = self._configuration, self._options
        if step and rows is None and own.keep:
            self._kept.append(self._flat)
        draw = None
        if training and options.dropout > 0.0:
            self._draws += 1
            draw = seed_of(options.seed, self._slot, options.number, 2, self._draws)
        self._pass = self._network.forward(self._network.tensor(self._flat), rows, draw)
        found = self._network.numpy(self._pass.outputs())
        if self._guard is not None:
            found = self._guard.predictions(found, rows)
        values = predictions_of(found)
        weights = weights_of(self.parameters)
        penalty = 0.5 * own.l2 * sum(float(np.vdot(w, w)) for w in weights)
        products = np.array([penalty]) if own.leader else np.zeros(0)
        return Predictions(self._run, self._slot, values, finite(products))


def network_of(shape: TowerShape, engine: Engine, options: TowerConfiguration) -> Tower:
    """In numpy where that is faster, else by torch. Raises ModelError where the device is not
    there."""
    network = torch_network(shape, engine, options)
    on_device = not isinstance(network.layer, EngineLayer)
    if on_device or options.dropout > 0.0 or not suits(shape, engine.rows):
        return network
    return Perceptron(shape, engine)


def torch_network(
    shape: TowerShape, engine: Engine, options: TowerConfiguration, *, private: bool = False
) -> TowerNetwork:
    return TowerNetwork(shape, make_layer(engine, options.device, private=private), options.dropout)


def penalised(shape: TowerShape) -> Array:
    """(size,): 1 for weights, 0 for biases."""
    return shape.pack([np.full(s, float(len(s) == 2)) for s in shape.shapes])[:, 0]
