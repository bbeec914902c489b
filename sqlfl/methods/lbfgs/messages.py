"""Messages of a step of L-BFGS."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlfl.messages.forms import array, integer
from sqlfl.messages.training import Residuals

if TYPE_CHECKING:
    from sqlfl.base.arrays import Array


@dataclass(frozen=True, eq=False)
class LbfgsResiduals(Residuals):
    of_method = "lbfgs"
    coefficients: Array = field(metadata=array("float64", "coefficients"))
    """The step, in the block's basis: of P g, of the m s and of the m P y."""
    epoch: int = field(metadata=integer(most=1))
    """0 where nothing moves, and the gradient is asked for anew."""


@dataclass(frozen=True, eq=False)
class ExactLbfgsResiduals(LbfgsResiduals):
    """The same in 8-byte numbers, where columns of several tables nearly cancel."""

    kind = "exact_residuals"
    words = f"{LbfgsResiduals.words}, in 8 bytes"
    exact = True
    values: Array = field(metadata=array("float64", "rows", "outputs", finite=False))


MEMORY = 10
"""m, pairs (s, y) that are kept."""


def products_length(memory: int = MEMORY) -> int:
    """Numbers in the products of one message: 6 newest vectors with the whole basis."""
    return 6 * (3 + 3 * memory)


def coefficients_length(memory: int = MEMORY) -> int:
    """Numbers that describe a step: of P g, of the m s and of the m P y."""
    return 1 + 2 * memory
