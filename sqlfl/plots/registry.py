"""What draws a result, by the name of its look: a value, so that it can travel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """Draws the rows of `look` OF MODEL `model`, or of TUNE and CHECK."""

    look: str
    model: str

    def __call__(self, table: pa.Table) -> Figure:
        from sqlfl.plots.results import PICTURES, check_figure, model_figure, quality_figure

        if self.look == "check":
            return check_figure(table)
        draw = model_figure if self.look in PICTURES else quality_figure
        return draw(self.look, self.model, table)
