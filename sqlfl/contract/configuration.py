"""Configuration of a slot's training, as the clients receive it. Each method has its own class.

It determines the coordinator's expected replies and the party's answers. Classes of methods are
apart from their messages, which the planner reads: this module loads numpy, for towers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from sqlfl.base.codec import LEFT_OUT, from_json, to_json
from sqlfl.base.errors import InternalError
from sqlfl.contract.privacy_specification import RoundNoise
from sqlfl.models.towers import TowerShape

Own = TypeVar("Own", bound="Configuration")

NUMBER = 8
"""Bytes of a number."""
PIECE = 1 << 16
"""Rows whose values of a tower's upper layers are in memory at once."""
PENALTY = 1
"""Numbers that a block's first client sends beside predictions, if a method asks for no more."""


@dataclass(frozen=True)
class Extent:
    """Size of the training data at a client."""

    rows: int
    """Active rows."""
    width: int
    """Encoded columns."""
    numeric: int
    """Encoded columns that are not one-hot."""


@dataclass(frozen=True, kw_only=True)
class TowerConfiguration:
    """Configuration of a slot whose block is a tower."""

    hidden: tuple[int, ...]
    """Widths of the hidden layers, at least one."""
    activation: str
    dropout: float = 0.0
    seed: int = 0
    """Seed of the first parameters, which all clients of the slot draw alike, of dropout and of
    local batches.
    """
    number: int = 0
    """Number of this client among those of the slot. Its dropout and local batches are its own."""
    device: str = "cpu"
    """'auto', 'cpu' or 'cuda'."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Configuration that travels as JSON in `Start`. A method adds its own fields, and overrides
    properties where its rounds differ from a step by the slot's summed gradient.
    """

    method: ClassVar[str]
    """Name of the method in `sqlfl.methods`."""
    outputs: int
    """d_c. For a tower the number of its outputs: d_c, or P before a head at the coordinator."""
    rows: int
    """N, joined rows: the divisor of sums of residuals, whose weights have a mean of 1."""
    total: float
    """N, or Σ of the weights: the divisor of the second moments, and the sum of all counts."""
    clients: int
    """Q_i, clients of the slot."""
    leader: bool
    """True if this client, the first of the slot, sends the block's scalars."""
    l2: float
    curvature: float
    """Curvature of the loss."""
    keep: int = 0
    """Epochs to which `Save` may go back."""
    tower: TowerConfiguration | None = None
    """Tower; None for a linear block."""
    privacy: RoundNoise | None = None
    """Clips and noise; None without them."""
    exempt: tuple[int, ...] = field(default=(), metadata=LEFT_OUT)
    """Active rows that a LEFT JOIN added, which hold nobody's data, if that matters."""

    @property
    def shared(self) -> bool:
        return self.clients > 1

    @property
    def averagings(self) -> int:
        """Return the inner rounds of a step, in which the slot's clients average their parameters;
        0 if they sum their gradients.
        """
        return 0

    @property
    def products(self) -> int:
        """Return how many numbers the block's first client sends beside the predictions after a
        step.
        """
        return PENALTY

    @property
    def metric(self) -> bool:
        """Return True if a client that is asked for the slope has, or makes, the second moments of
        the slot. It needs them without l2, because the norm alone then proves too little.
        """
        return not self.shared and self.l2 == 0.0

    @property
    def remembered(self) -> int:
        """Return the number of vectors as large as the block that a client holds."""
        return 1

    @property
    def gram(self) -> bool:
        """Return True if a client makes second moments of its block, or may be asked for results
        that need them.
        """
        return self.metric and self.tower is None

    @property
    def passes(self) -> int:
        """Return the passes over its own rows that a client makes for one request."""
        return 1

    def room(self, extent: Extent, most: int) -> Mapping[str, int]:
        """Return the approximate bytes that training takes at a client beside the encoded rows, by
        the option that determines them. `most` is how often its block may change. Options must be
        in range.
        """
        size = math.prod(self.parameters(extent.width))
        room = {
            # predictions and residuals, in more than one type of numbers
            "outputs": NUMBER * (3 * extent.rows * self.outputs + 2 * size),
            "keep": NUMBER * size * min(self.keep, most),
        }
        if self.gram:
            room["columns"] = 2 * NUMBER * extent.numeric * extent.width
        shape = self.shape(extent.width)
        if shape is not None:
            piece = min(extent.rows, PIECE) * sum(shape.hidden)
            # gradients, their averages, and the values passed from layer to layer and back
            passing = 3 * extent.rows * shape.hidden[0] + 4 * piece
            room["hidden"] = NUMBER * (6 * size + passing)
        return room

    @property
    def sizes(self) -> Mapping[str, int]:
        """Return further named sizes of the method's residuals, beside those of rows."""
        return {}

    def fault(self) -> str | None:
        """Return the fault in the method's own options, whose numbers are in range."""
        return None

    def shape(self, width: int) -> TowerShape | None:
        """Return the shape of the tower over `width` encoded columns; None for a linear block."""
        if self.tower is None:
            return None
        return TowerShape(width, self.tower.hidden, self.outputs, self.tower.activation)

    def parameters(self, width: int) -> tuple[int, int]:
        """Return the shape of a gradient."""
        shape = self.shape(width)
        return (width, self.outputs) if shape is None else (shape.size, 1)

    def to_json(self) -> str:
        return to_json(self)

    @classmethod
    def from_json(cls: type[Own], text: str) -> Own:
        """Return the configuration that `to_json` wrote. Raise InternalError for anything else."""
        try:
            return from_json(cls, text)
        except ValueError as error:
            raise InternalError(f"the options of training are none: {error}") from None
