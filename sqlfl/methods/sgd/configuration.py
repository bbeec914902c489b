"""What clients are told of gradient descent."""

from __future__ import annotations

from dataclasses import dataclass

from sqlfl.methods.configuration import Configuration


@dataclass(frozen=True, kw_only=True)
class SgdConfiguration(Configuration):
    method = "sgd"
    optimizer: str = "plain"
    """'plain', 'momentum' or 'adam'."""
    momentum: float = 0.9
    """Of the optimizer 'momentum'."""
