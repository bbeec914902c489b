"""What a statement may say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sqlfl.options.entries import Defaults, MethodOptions, option
from sqlfl.options.types import number


@dataclass(frozen=True, kw_only=True)
class SteadyOptions(MethodOptions):
    usual: ClassVar[Defaults] = Defaults(
        epochs=50,
        tower_epochs=None,
        tolerance=0.0,
        exact="its intercept is an exact function of predictions",
    )
    learning_rate: float = option(number(0, above=True), 0.1, "step length")


OPTIONS = SteadyOptions
