"""The options of L-BFGS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sqlfl.contract.transforms import ROWS, TABLE
from sqlfl.options.entries import Defaults, MethodOptions, option
from sqlfl.options.steps import EXACT, SECRET, SECURE, UNION, summing
from sqlfl.options.types import choice


@dataclass(frozen=True, kw_only=True)
class LbfgsOptions(MethodOptions):
    usual: ClassVar[Defaults] = Defaults(
        epochs=100,
        tower_epochs=None,
        tolerance=1e-11,
        usual_rounds=(8, 30),
        unprotected="its line search and its inner products are exact functions of the rows",
    )

    # fmt: off
    union: str = option(UNION, EXACT, SECRET)
    unit: str = option(choice(TABLE, ROWS), TABLE,
        "rows for which TRANSFORM (auto) chooses its strengths: 'table', new rows of each table; "
        "'rows', new joined rows of the existing rows")
    # fmt: on

    @property
    def secure(self) -> bool:
        return self.union == SECURE

    def conflict(self, kind: str) -> tuple[str, str, str | None] | None:
        return summing(self.union, "lbfgs")


OPTIONS = LbfgsOptions
