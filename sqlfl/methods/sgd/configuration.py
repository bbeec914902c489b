from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from sqlfl.methods.configuration import Configuration
from sqlfl.methods.sgd.options import Steps

Stepping = TypeVar("Stepping", bound="StepConfiguration")


@dataclass(frozen=True, kw_only=True)
class StepConfiguration(Configuration):
    """Of methods whose blocks step along the slot's gradient."""

    steps: Steps = Steps()


@dataclass(frozen=True, kw_only=True)
class SgdConfiguration(StepConfiguration):
    method = "sgd"
