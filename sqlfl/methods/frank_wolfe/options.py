"""The options of block-coordinate Frank-Wolfe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sqlfl.options.entries import Defaults, MethodOptions, Setting, option
from sqlfl.options.types import choice, integer, number

CORRECTIVE, SEARCH, FIXED = "corrective", "search", "fixed"
MIN_SKETCH, MAX_SKETCH = 8, 1 << 16
"""Limits of the sketch's size. With fewer numbers, nothing remains of a column beside
the constant.
"""
SKETCH = 256
"""Numbers that a column is sent as where features are protected."""


def _sketch(setting: Setting) -> int | None:
    return SKETCH if setting.private else None


@dataclass(frozen=True, kw_only=True)
class FrankWolfeOptions(MethodOptions):
    usual: ClassVar[Defaults] = Defaults(
        epochs=200, tower_epochs=None, tolerance=1e-6, protected_epochs=8, sketched=True
    )

    # fmt: off
    radius: float | None = option(number(0, above=True), None,
        "r: maximum sum of the absolute weights of the encoded columns",
        default_text="none: it must be given")
    iterations: int | None = option(integer(1), None,
        "T: another word for epochs; each may add one column of every table",
        default_text="epochs")
    sample: int | None = option(integer(1), None,
        "encoded columns of each table that an iteration considers, drawn at random",
        default_text="all")
    sketch: int | None = option(integer(MIN_SKETCH, MAX_SKETCH), None,
        "m: numbers that a party sends of a chosen column, each a sum of values with random signs; "
        "without it, the column's values",
        chosen=_sketch, default_text=f"none; with PRIVACY {SKETCH}")
    step: str = option(choice(CORRECTIVE, SEARCH, FIXED), CORRECTIVE,
        "'corrective': best weights of all chosen columns; 'search': best step towards the new "
        "one; 'fixed': 2/(p t + 2), p the share of columns that are considered")
    # fmt: on

    @property
    def excluded(self) -> Mapping[str, str]:
        if self.sketch is None:
            return {}
        why = "of sketched columns no row's prediction is known in training"
        return {"validation_fraction": why}

    def conflict(self, kind: str) -> tuple[str, str, str | None] | None:
        if self.radius is None:
            hint = "radius = 10 lets the absolute weights of the encoded columns add up to 10"
            return "radius", "given with algorithm 'frank_wolfe'", hint
        return None


OPTIONS = FrankWolfeOptions
