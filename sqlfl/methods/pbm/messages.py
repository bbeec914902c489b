"""Messages of PBM-VFL: steps, and rows whose embeddings are summed securely."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlfl.messages.base import Message
from sqlfl.messages.forms import array, integer, real
from sqlfl.messages.training import Residuals, listing_fault

if TYPE_CHECKING:
    from sqlfl.base.arrays import Array


@dataclass(frozen=True, eq=False)
class PbmResiduals(Residuals):
    """Y of the rows that embeddings were last asked of, each once and ascending."""

    of_method = "pbm"
    rate: float = field(metadata=real(least=0))
    """η"""
    divisor: int = field(metadata=integer(least=1))
    """B, joined rows that the residuals are summed over."""
    last: int = field(metadata=integer(most=1))
    """1: an epoch is over with this step."""


@dataclass(frozen=True, eq=False)
class SendEmbeddings(Message):
    """Coordinator to client: rows whose embeddings the client adds to the sums of some joined rows,
    in order.

    All clients of all slots receive it at once. For each joined row, one client of each slot has
    the row; the others add only a mask.
    """

    kind = "send_embeddings"
    of_method = "pbm"
    words = "the client's row of each joined row of the sums that has one"
    joined: int = field(metadata=integer(least=1, most=2**31 - 1))
    """Number of joined rows in the sums."""
    training: int = field(metadata=integer(most=1))
    """1: residuals follow, and units are dropped where they are."""
    rows: Array = field(metadata=array("uint32", "listed"))
    """Active rows, one may stand here several times."""
    places: Array = field(metadata=array("uint32", "places", ascending=True))
    """The joined rows of these entries; empty if they are all of them."""

    def fault(self) -> str | None:
        return listing_fault(self.joined, self.rows, self.places)
