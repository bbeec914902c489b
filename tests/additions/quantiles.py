"""A kind of message that sqlfl does not have: this module is all of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlfl.base.arrays import Array
from sqlfl.messages import Message
from sqlfl.messages.forms import array, integer, texts


@dataclass(frozen=True, eq=False)
class SendQuantiles(Message):
    """Coordinator to client: where do these shares of each column's values end?"""

    kind = "send_quantiles"
    words = "shares of the rows"
    shares: Array = field(metadata=array("float64", "shares", ascending=True, least=0, most=1))


@dataclass(frozen=True, eq=False)
class Quantiles(Message):
    """Client to coordinator."""

    kind = "quantiles"
    words = "quantiles of the columns"
    values: Array = field(metadata=array("float32", "shares", "columns"))
    names: tuple[str, ...] = field(metadata=texts("columns", distinct=True))
    rows: int = field(metadata=integer())

    def fault(self) -> str | None:
        if (self.values[1:] < self.values[:-1]).any():
            return "quantiles that fall"
        return None
