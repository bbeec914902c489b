"""What clients are told of the training of a slot, as all methods have it; each has its own class.

The coordinator expects replies by it, and the party answers by it.
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
"""Bytes."""
PIECE = 1 << 16
"""Rows of which the values of a tower's upper layers are there at once."""
PENALTY = 1
"""Numbers that a block's first client sends beside predictions, where a method asks for no more."""


@dataclass(frozen=True)
class Extent:
    """Of what is trained on at a client."""

    rows: int
    """Active ones."""
    width: int
    """Encoded columns."""
    numeric: int
    """Those that are not one-hot."""


@dataclass(frozen=True, kw_only=True)
class TowerConfiguration:
    """Of a slot whose block is a tower."""

    hidden: tuple[int, ...]
    """Widths of the hidden layers, at least one."""
    activation: str
    dropout: float = 0.0
    seed: int = 0
    """Of the first parameters, which all clients of the slot draw alike, of dropout and of local
    batches."""
    number: int = 0
    """Of this client among those of the slot: its dropout and local batches are its own."""
    device: str = "cpu"
    """'auto', 'cpu' or 'cuda'."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Travels as JSON in `Start`. A method adds its own fields, and says where its rounds differ
    from a step by the slot's summed gradient."""

    method: ClassVar[str]
    """Its name, as `sqlfl.methods` has it."""
    outputs: int
    """d_c; of a tower its own: d_c, or P where a head follows at the coordinator."""
    rows: int
    """N, joined rows: the divisor of sums of residuals, whose weights have a mean of 1."""
    total: float
    """N, or Σ of the weights: the divisor of the second moments, and what counts add up to."""
    clients: int
    """Q_i, clients of the slot."""
    leader: bool
    """This client sends the block's scalars: the first of the slot."""
    l2: float
    curvature: float
    """Of the loss."""
    keep: int = 0
    """Epochs to which `Save` may go back."""
    tower: TowerConfiguration | None = None
    """None for a linear block."""
    privacy: RoundNoise | None = None
    """What is clipped and noised; None where nothing is."""
    exempt: tuple[int, ...] = field(default=(), metadata=LEFT_OUT)
    """Active rows that a LEFT JOIN made up, which hold nobody's data, where that matters."""

    @property
    def shared(self) -> bool:
        return self.clients > 1

    @property
    def averagings(self) -> int:
        """Inner rounds of a step, in which the slot's clients average their parameters; 0 where
        they sum their gradients."""
        return 0

    @property
    def products(self) -> int:
        """Numbers that the block's first client sends beside the predictions after a step."""
        return PENALTY

    @property
    def metric(self) -> bool:
        """A client that is asked for the slope has the second moments of the slot, or makes them:
        where there is no l2 by which the norm alone would tell enough."""
        return not self.shared and self.l2 == 0.0

    @property
    def remembered(self) -> int:
        """Vectors as large as the block that a client holds."""
        return 1

    @property
    def gram(self) -> bool:
        """A client makes second moments of its block, or may be asked for what takes them."""
        return self.metric and self.tower is None

    @property
    def passes(self) -> int:
        """Over its own rows, that a client makes for one request."""
        return 1

    def room(self, extent: Extent, most: int) -> Mapping[str, int]:
        """About how many bytes training takes at a client beside the encoded rows, by the option
        that decides it; `most` is how often its block may change. Options are in range."""
        own = math.prod(self.parameters(extent.width))
        found = {
            # predictions and residuals, in more than one type of numbers
            "outputs": NUMBER * (3 * extent.rows * self.outputs + 2 * own),
            "keep": NUMBER * own * min(self.keep, most),
        }
        if self.gram:
            found["columns"] = 2 * NUMBER * extent.numeric * extent.width
        shape = self.shape(extent.width)
        if shape is not None:
            piece = min(extent.rows, PIECE) * sum(shape.hidden)
            # gradients, averages of these, and what is handed from layer to layer and back
            passing = 3 * extent.rows * shape.hidden[0] + 4 * piece
            found["hidden"] = NUMBER * (6 * own + passing)
        return found

    @property
    def sizes(self) -> Mapping[str, int]:
        """Of the method's residuals, beside those of rows: what names stand for."""
        return {}

    def fault(self) -> str | None:
        """What is wrong with the method's own options, whose numbers are in range."""
        return None

    def shape(self, width: int) -> TowerShape | None:
        """Of the tower over `width` encoded columns; None where the block is linear."""
        if self.tower is None:
            return None
        return TowerShape(width, self.tower.hidden, self.outputs, self.tower.activation)

    def parameters(self, width: int) -> tuple[int, int]:
        """The shape of a gradient."""
        shape = self.shape(width)
        return (width, self.outputs) if shape is None else (shape.size, 1)

    def to_json(self) -> str:
        return to_json(self)

    @classmethod
    def from_json(cls: type[Own], text: str) -> Own:
        """What `to_json` wrote. Raises InternalError for anything else."""
        try:
            return from_json(cls, text)
        except ValueError as error:
            raise InternalError(f"the options of training are none: {error}") from None
