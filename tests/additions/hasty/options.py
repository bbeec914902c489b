"""The options of a method that there is not: one that others have too, and one of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sqlfl.options.entries import Defaults, MethodOptions, Needs, Setting, option, section
from sqlfl.options.types import BOOLEAN, integer, number


@dataclass(frozen=True, kw_only=True)
class Haste:
    # fmt: off
    haste: int = option(integer(1, 9), 2, "steps that are made at once",
        chosen=lambda setting: 1 if setting.private else 2)
    rest: bool = option(BOOLEAN, False, "rest between them; only with haste = 9",
        needs=Needs(("haste",), (9,)))
    # fmt: on


def _rate(setting: Setting) -> float:
    return 0.25 * int(str(setting.values["haste"]))


@dataclass(frozen=True, kw_only=True)
class HastyOptions(MethodOptions):
    usual: ClassVar[Defaults] = Defaults(
        epochs=7, tower_epochs=None, tolerance=0.5, exact="it looks at them too often"
    )

    # fmt: off
    told: Haste = section(Haste)
    learning_rate: float = option(number(0, above=True), 0.5, "of each of them", chosen=_rate,
        default_text="hasty: a quarter of haste")
    # fmt: on

    def conflict(self, kind: str) -> tuple[str, str, str | None] | None:
        if self.told.haste < 9 or kind != "logistic_regression":
            return None
        return "haste", "at most 8 for classes", "less haste"


OPTIONS = HastyOptions
