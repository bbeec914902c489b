"""L-BFGS has no options of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sqlfl.options.entries import Defaults, MethodOptions


@dataclass(frozen=True, kw_only=True)
class LbfgsOptions(MethodOptions):
    usual: ClassVar[Defaults] = Defaults(
        epochs=100,
        tower_epochs=None,
        tolerance=1e-11,
        unprotected="its line search and its inner products are exact functions of the rows",
    )


OPTIONS = LbfgsOptions
