"""The options of the solution by noised moments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sqlfl.options.entries import Defaults, MethodOptions, option
from sqlfl.options.union import EXACT, SECRET, SECURE, UNION, summing

_ONCE = "the model is solved once, from moments that each table releases once"
_NO_SCORES = (
    "no row's prediction is known in training; EVALUATE ... PRIVACY (label_epsilon = ...) measures "
    "a model over noised labels"
)


@dataclass(frozen=True, kw_only=True)
class MomentsOptions(MethodOptions):
    usual: ClassVar[Defaults] = Defaults(epochs=1, tower_epochs=None, tolerance=0.0, solved=True)

    # fmt: off
    union: str = option(UNION, EXACT, SECRET)
    # fmt: on

    @property
    def secure(self) -> bool:
        return self.union == SECURE

    @property
    def excluded(self) -> Mapping[str, str]:
        return {
            "epochs": _ONCE,
            "tolerance": _ONCE,
            "patience": _ONCE,
            "validation_fraction": _NO_SCORES,
        }

    def conflict(self, kind: str) -> tuple[str, str, str | None] | None:
        return summing(self.union, "moments")


OPTIONS = MomentsOptions
