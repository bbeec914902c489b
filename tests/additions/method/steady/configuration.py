"""What clients are told."""

from __future__ import annotations

from dataclasses import dataclass

from sqlfl.contract.configuration import Configuration


@dataclass(frozen=True, kw_only=True)
class SteadyConfiguration(Configuration):
    method = "steady"
    rate: float
