"""The options of the solution by noised moments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from sqlfl.base.errors import OptionError
from sqlfl.options.entries import Defaults, MethodOptions, option
from sqlfl.options.training import EXACT, SECRET, SECURE, UNION, summing
from sqlfl.options.types import integer

MIN_TWO_ROUND_EPSILON = 4.0
"""ε from which a second round pays."""
MAX_TWO_ROUND_TABLES = 3
"""Tables with features up to which it does."""
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
    rounds: int | None = option(integer(1, 2), None,
        "1: columns of different tables are taken as uncorrelated given the target; 2: noised fits "
        "and one noised sum of each other table measure this correlation",
        default_text="2 with epsilon from 4 up, if two or three tables have features, the "
        "target's among them; else 1")
    """None until the query's tables are known."""
    # fmt: on

    @property
    def secure(self) -> bool:
        return self.union == SECURE

    def with_tables(self, tables: int, labelled: bool, epsilon: float | None) -> MomentsOptions:
        if self.rounds == 2 and tables < 2:
            message = f"option rounds must be 1 where features are of {tables} table, got 2"
            raise OptionError(message, hint="leave rounds out")
        if self.rounds is not None:
            return self
        pays = (
            labelled
            and 2 <= tables <= MAX_TWO_ROUND_TABLES
            and (epsilon or 0.0) >= MIN_TWO_ROUND_EPSILON
        )
        return replace(self, rounds=2 if pays else 1)

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
