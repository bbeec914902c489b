"""Messages of a step of gradient descent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from sqlfl.messages.forms import array, integer, real
from sqlfl.messages.training import Residuals, no_rows

if TYPE_CHECKING:
    from sqlfl.base.arrays import Array


@dataclass(frozen=True, eq=False)
class SgdResiduals(Residuals):
    of_method = "sgd"
    rate: float = field(metadata=real(least=0))
    """η"""
    divisor: int = field(metadata=integer(least=1))
    """B, joined rows that the residuals are summed over."""
    whole: int = field(metadata=integer(most=1))
    """1: all active rows are predicted next, an epoch being over."""
    batch: Array = field(default_factory=no_rows, metadata=array("uint32", "batch", ascending=True))
    """Else the rows of the next batch."""

    @property
    def following(self) -> Array | None:
        return None if self.whole else self.batch

    def towards(self, following: Array | None) -> Self:
        batch = no_rows() if following is None else following
        return replace(self, whole=int(following is None), batch=batch)
