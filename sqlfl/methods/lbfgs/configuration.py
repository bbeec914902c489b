"""Configuration of L-BFGS that the coordinator sends to clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sqlfl.contract.configuration import NUMBER, Configuration, Extent
from sqlfl.methods.lbfgs.messages import MEMORY, coefficients_length, products_length


@dataclass(frozen=True, kw_only=True)
class LbfgsConfiguration(Configuration):
    method = "lbfgs"
    shares: tuple[float, ...] = ()
    """Of the classes of a softmax, by which blocks are preconditioned."""
    memory: int = MEMORY
    """Pairs that are kept."""

    @property
    def products(self) -> int:
        return products_length(self.memory)

    @property
    def metric(self) -> bool:
        return True

    @property
    def remembered(self) -> int:
        return 3 + 3 * self.memory

    def room(self, extent: Extent, most: int) -> Mapping[str, int]:
        parameters = math.prod(self.parameters(extent.width))
        rooms = dict(super().room(extent, most))
        rooms["memory"] = NUMBER * parameters * self.remembered
        rooms["shares"] = 4 * NUMBER * len(self.shares) ** 2
        return rooms

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"coefficients": coefficients_length(self.memory)}

    def fault(self) -> str | None:
        shares = self.shares
        if shares and (len(shares) != self.outputs or not all(0 < p < 1 for p in shares)):
            return f"shares of {self.outputs} classes are {shares!s:.60}"
        return None
