"""Messages of Frank-Wolfe: the direction of descent, and the best column for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlfl.messages.base import Message
from sqlfl.messages.forms import array, integer, real
from sqlfl.messages.training import Residuals, listing_fault

if TYPE_CHECKING:
    from sqlfl.base.arrays import Array


@dataclass(frozen=True, eq=False)
class SetSketch(Message):
    """Coordinator to client: which of its rows is in which joined row, for the sketch J of these.

    J has a column for each joined row; `sqlfl.methods.frank_wolfe.sketch` makes it from the seed.
    Joined rows are numbered by chance.
    """

    kind = "set_sketch"
    of_method = "frank_wolfe"
    words = "the client's row of each joined row that has one, and the seed of the sketch"
    seed: int = field(metadata=integer())
    joined: int = field(metadata=integer(least=1, most=2**31 - 1))
    """N"""
    rows: Array = field(metadata=array("uint32", "listed"))
    """Active rows, one may stand here several times."""
    places: Array = field(metadata=array("uint32", "places", ascending=True))
    """The joined rows of these entries; empty if they are all of them."""

    def fault(self) -> str | None:
        return listing_fault(self.joined, self.rows, self.places)


@dataclass(frozen=True, eq=False)
class ColumnResiduals(Residuals):
    """Coordinator to client: Y of all active rows at these weights; requests the next column."""

    of_method = "frank_wolfe"
    words = f"{Residuals.words}; weights of the columns that were chosen"
    weights: Array = field(metadata=array("float64", "weights"))
    """Weights of the block's sent columns, in the order in which they were sent; others are 0."""


@dataclass(frozen=True, eq=False)
class ColumnDirection(Message):
    """Coordinator to client: the same request by a sketch, J times the residuals of the joined
    rows."""

    kind = "direction"
    residual = True
    of_method = "frank_wolfe"
    words = "the sketch of the residuals; weights of the columns that were chosen"
    values: Array = field(metadata=array("float32", "sketch"))
    weights: Array = field(metadata=array("float64", "weights"))


@dataclass(frozen=True, eq=False)
class ColumnWeights(Message):
    """Coordinator to client: the last weights, when no further answer is needed."""

    kind = "column_weights"
    of_method = "frank_wolfe"
    words = "weights of the columns that were chosen"
    weights: Array = field(metadata=array("float64", "weights"))


@dataclass(frozen=True, eq=False)
class SteepestColumn(Message):
    """Client to coordinator: the column along which the objective falls fastest.

    The first time, its values over the joined rows follow.
    """

    kind = "column"
    words = "which feature lowers the loss fastest; at first also its values, row by row"
    of_method = "frank_wolfe"
    column: int = field(metadata=integer(most=2**31 - 1))
    """Its number among the block's encoded columns."""
    rising: int = field(metadata=integer(most=1))
    """1: the objective falls as its weight rises; 0: as it sinks."""
    values: Array = field(metadata=array("float32", "part"))
    """x̃ of the active rows, or J A x̃ (m,); empty if sent before."""
    noise: float = field(default=0.0, metadata=real(least=0))
    """Standard deviation of the noise in each value; it follows from the join alone."""
