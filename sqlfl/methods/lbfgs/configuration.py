"""What clients are told of L-BFGS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlfl.methods.configuration import Configuration
from sqlfl.methods.lbfgs.lengths import MEMORY, coefficients_length, products_length


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

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"coefficients": coefficients_length(self.memory)}

    def fault(self) -> str | None:
        shares = self.shares
        if shares and (len(shares) != self.outputs or not all(0 < p < 1 for p in shares)):
            return f"shares of {self.outputs} classes are {shares!s:.60}"
        return None
