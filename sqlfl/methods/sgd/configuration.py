"""What clients are told of gradient descent."""

from __future__ import annotations

from dataclasses import dataclass

from sqlfl.methods.configuration import Configuration
from sqlfl.methods.sgd.options import Steps


@dataclass(frozen=True, kw_only=True)
class SgdConfiguration(Configuration):
    method = "sgd"
    steps: Steps = Steps()
