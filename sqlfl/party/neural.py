"""Client's part of training a neural tower, common to all methods."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract.configuration import Own, TowerConfiguration
from sqlfl.messages import Message, Predictions, SendPredictions, SendReleases
from sqlfl.models.towers import (
    Perceptron,
    Tower,
    TowerPass,
    TowerShape,
    first_parameters,
    seed_of,
    small,
    suits,
    weights_of,
)
from sqlfl.party.client import finite, predictions_of
from sqlfl.party.release_guard import ReleaseGuard, releases_of
from sqlfl.party.requests import SlotExpectations
from sqlfl.party.steps import Engine
from sqlfl.party.torch_loading import torch_network
from sqlfl.privacy.samplers import Entropy, system

if TYPE_CHECKING:
    from sqlfl.models.neural import Limit


class TowerOperator(Generic[Own]):
    """Training of one slot's tower at one client. A method's subclass answers its messages.

    The tower starts at `parameters` (W₁, b₁, …, W_out), or at the draw that all clients of the slot
    share. Raise InternalError for parameters of another shape. Raise ModelError if the device, or
    Opacus in a private run, is missing. `entropy` is for tests.

    In private runs each row's gradient by all parameters is clipped, and the client's sum is noised
    before any use. Predictions of a row are clipped and noised each time: see `ReleaseGuard`.
    Steps, penalties and partial gradients are functions of noised sums.
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
        self._configuration = settings = configuration
        self._run, self._slot = run, slot
        self._held = SlotExpectations.of(engine, settings)
        shape = settings.shape(engine.width)
        if shape is None or settings.tower is None:
            raise InternalError("a tower without hidden layers")
        self.shape: TowerShape = shape
        self._options = settings.tower
        if parameters is None:
            parameters = first_parameters(self.shape, engine.numeric, settings.tower.seed, slot)
            if settings.privacy is not None and settings.privacy.prediction_clip:
                # outputs beyond the clip would count in scoring as they never did in training
                bound = min(1.0, settings.privacy.prediction_clip)
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
        if settings.privacy is not None:
            self._guard = ReleaseGuard(settings.privacy, engine.rows, entropy)
        if self._guard is not None and self._guard.privacy.clip:
            from sqlfl.models.per_row import RowLimit  # loads opacus

            network = torch_network(self.shape, engine, settings.tower, private=True)
            self._network, self._limit = network, RowLimit(network, self._guard.factors)
        else:
            self._network = network_of(self.shape, engine, settings.tower)
        self._pass: TowerPass | None = None
        """Pass of the last predictions, whose residuals come next."""
        self._draws = 0
        self._kept: deque[Array] = deque(maxlen=settings.keep + 1)
        """Parameters after each of the last epochs, if `keep` asks for it."""
        self._prepare(engine)

    def _prepare(self, engine: Engine) -> None:
        """Prepare the method's own state."""

    @property
    def parameters(self) -> tuple[Array, ...]:
        """Return W₁, b₁, …, W_out."""
        return self.shape.unpack(self._flat)

    @property
    def guard(self) -> ReleaseGuard | None:
        """Return the guard; None without noise."""
        return self._guard

    def kept(self, back: int) -> tuple[Array, ...]:
        """Return the parameters of `back` epochs ago. Raise InternalError if not so many are
        kept.
        """
        flat = self._flat
        if back != 0:
            if not 0 < back < len(self._kept):
                raise InternalError(f"{back} epochs back, of {len(self._kept)} that are kept")
            flat = self._kept[-1 - back]
        return self.shape.unpack(flat.copy())

    def handle(self, message: Message) -> Message:
        """Return the reply to a training message. Raise InternalError if it does not belong here,
        or has other rows or parameters.
        """
        self._held.check(message, None if self._pass is None else self._pass.rows)
        match message:
            case SendPredictions():
                rows = None if message.whole else message.batch
                return self._predictions(rows, training=message.training == 1)
            case SendReleases():
                return releases_of(self._guard, self._run, self._slot)
        return self._answer(message)

    def _answer(self, message: Message) -> Message:
        """Return the reply to a message of the method."""
        raise InternalError(f"message {message.kind} is no part of training a tower")

    def _predictions(
        self, rows: Array | None, *, training: bool, step: bool = False
    ) -> Predictions:
        """Return predictions. An epoch ends with a `step` whose predictions cover all rows."""
        settings, options = self._configuration, self._options
        if step and rows is None and settings.keep:
            self._kept.append(self._flat)
        draw = None
        if training and options.dropout > 0.0:
            self._draws += 1
            draw = seed_of(options.seed, self._slot, options.number, 2, self._draws)
        self._pass = self._network.forward(self._network.tensor(self._flat), rows, draw)
        outputs = self._network.numpy(self._pass.outputs())
        if self._guard is not None:
            outputs = self._guard.predictions(outputs, rows)
        values = predictions_of(outputs)
        weights = weights_of(self.parameters)
        penalty = 0.5 * settings.l2 * sum(float(np.vdot(w, w)) for w in weights)
        products = np.array([penalty]) if settings.leader else np.zeros(0)
        return Predictions(self._run, self._slot, values, finite(products))


def network_of(shape: TowerShape, engine: Engine, options: TowerConfiguration) -> Tower:
    """Return the network, in numpy if that is faster, else in torch. Raise ModelError if torch or
    the device is missing.
    """
    if options.device == "cuda" or options.dropout > 0.0 or not suits(shape):
        return torch_network(shape, engine, options)
    if options.device == "auto" and not small(shape, engine.rows):
        network = torch_network(shape, engine, options)
        if network.layer.device.type != "cpu":
            return network
    return Perceptron(shape, engine)


def penalised(shape: TowerShape) -> Array:
    """Return 1 for weights, 0 for biases: (size,)."""
    return shape.pack([np.full(s, float(len(s) == 2)) for s in shape.shapes])[:, 0]
