"""The options of PBM-VFL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sqlfl.methods.sgd.options import LEARNING_RATE, Steps
from sqlfl.models.kinds import NEURAL
from sqlfl.options.entries import DEPENDS, Defaults, MethodOptions, option, section
from sqlfl.options.types import BATCH, Batch, Usual, number


@dataclass(frozen=True, kw_only=True)
class PbmOptions(MethodOptions):
    usual: ClassVar[Defaults] = Defaults(
        epochs=20, tower_epochs=20, tolerance=0.0, head="linear", drawn=True
    )

    # fmt: off
    batch_size: Batch = option(BATCH, DEPENDS, "joined rows per step",
        chosen=lambda setting: Usual())
    learning_rate: float = option(number(0, above=True), LEARNING_RATE, "step length")
    steps: Steps = section(Steps)
    # fmt: on

    def conflict(self, kind: str) -> tuple[str, str, str | None] | None:
        if kind in NEURAL:
            return None
        hint = "algorithm = 'pbm' sums the outputs of towers: USING mlp_classifier or mlp_regressor"
        return "algorithm", f"another one for {kind}", hint


OPTIONS = PbmOptions
