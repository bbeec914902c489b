"""The options of L-BFGS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sqlfl.contract.transforms import ROWS, TABLE
from sqlfl.options.entries import Defaults, MethodOptions, option
from sqlfl.options.training import EXACT, SECRET, SECURE, UNION, summing
from sqlfl.options.types import OptionType


def _read_unit(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    return value.lower() if value.lower() in (TABLE, ROWS) else value


_UNIT = OptionType(
    "'table', 'rows', or an expression over columns of one table, as 't.customer_id'",
    _read_unit,
    brief="'table', 'rows', or an expression: 't.customer_id'",
)


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
    unit: str = option(_UNIT, TABLE,
        "new rows for which curves of TRANSFORM (auto) should hold: 'table', of each table; "
        "'rows', joined rows of existing rows; an expression, new values of it. Validation rows "
        "and folds are then drawn by its values")
    # fmt: on

    @property
    def secure(self) -> bool:
        return self.union == SECURE

    @property
    def unit_expression(self) -> str | None:
        return None if self.unit in (TABLE, ROWS) else self.unit

    def conflict(self, kind: str) -> tuple[str, str, str | None] | None:
        return summing(self.union, "lbfgs")


OPTIONS = LbfgsOptions
