"""All that is computed of the joined rows of a problem: asked of their partitions, added up.

A few things are of the coordinator alone, in one thread: samples of rows, and sums of an array that
has a number for each joined row. Files that no other process can open are read by its threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.coordinator.executors.base import Executor, HeldPartitions
from sqlfl.coordinator.executors.division import divided
from sqlfl.coordinator.executors.in_process import InProcess
from sqlfl.coordinator.executors.partition import PartitionSums, Work
from sqlfl.coordinator.rounds.chunk import Scores
from sqlfl.coordinator.rounds.chunks import Chunks, StoredChunks
from sqlfl.coordinator.rounds.passes import (
    EVERY,
    MeasuredRows,
    Passes,
    PassResult,
    headline_of_none,
)
from sqlfl.models.losses import Loss
from sqlfl.models.metrics import Mean, Meter


class PartitionedRows:
    """Passes over the joined rows of a problem; `sqlfl.coordinator.rounds.passes` has their
    descriptions."""

    def __init__(
        self,
        source: Chunks,
        loss: Loss,
        executor: Executor,
        measured: MeasuredRows = EVERY,
        offset: Array | None = None,
    ) -> None:
        """Make the passes over `source`. `offset` (d_c, n): contributions of its last slot's rows
        to all scores. Only this class knows of that slot."""
        self.total = source.total
        self._offset = offset
        self._sizes = source.sizes if offset is None else source.sizes[:-1]
        self._source = source
        self._loss = loss
        self._own = InProcess() if isinstance(source, StoredChunks) else None
        self._executor = executor if self._own is None else self._own
        self._measured = measured
        self._whole = Passes(source, loss)
        self._held: HeldPartitions | None = None

    def close(self) -> None:
        """Let the executor forget the joined rows."""
        if self._held is not None:
            self._held.close()
            self._held = None
        if self._own is not None:
            self._own.close()

    def look(self, scores: Scores, *, sums: bool = True) -> PassResult:
        return self._looked(self._ask(Work("look", self._beside(scores), flag=sums)))

    def value(self, scores: Scores) -> float:
        return self.look(scores, sums=False).value

    def curvatures(self, scores: Scores, ways: Sequence[Array], *, sampled: bool = False) -> Array:
        along = tuple(ways)
        if self._offset is not None and along:
            along = (*along, np.zeros((0, *self._offset.shape)))
        work = Work("curvatures", self._beside(scores), along, flag=sampled)
        numbers = self._ask(work).numbers
        products, counted = numbers[:-1], float(numbers[-1])
        if sampled and not counted > 0.0:
            return self.curvatures(scores, ways)
        size = round(len(products) ** 0.5)
        square: Array = products.reshape(size, size) / (counted if counted > 0.0 else 1.0)
        return square

    def square(self, scores: Scores, *, sampled: bool = False) -> float:
        """Compute it without the offset, since changes of scores have none."""
        learnt = self._beside(scores, none=True)
        square, rows = self._ask(Work("square", learnt, flag=sampled)).numbers
        return float(square / rows)

    def mean_curvature(self, scores: Scores) -> float:
        total, counted = self._ask(Work("mean_curvature", self._beside(scores))).numbers
        return float(total / counted)

    def reach(self, scores: Scores) -> float:
        """Return the largest |H| of the rows that count, without the offset."""
        learnt = self._beside(scores, none=True)
        return self._looked(self._ask(Work("look", learnt))).largest

    def separates(self, scores: Scores) -> bool:
        """Use the learnt scores alone: no multiple of them moves the offset."""
        learnt = self._beside(scores, none=True)
        return not self._ask(Work("separates", learnt)).numbers.any()

    def slope_square(self, scores: Scores) -> float:
        """Return the mean of share · ‖∂ℓ/∂H_j‖²."""
        return float(self._ask(Work("slope_square", self._beside(scores))).numbers[0] / self.total)

    def slopes(self, scores: Scores) -> Array:
        return self._ask(Work("slopes", self._beside(scores))).of_rows()

    def rows(self, scores: Scores) -> Array:
        return self._ask(Work("rows", self._beside(scores))).of_rows().T

    def sums(self, vector: Sequence[Array]) -> list[Array]:
        learnt = self._beside(Scores(tuple(vector), np.zeros(1)), none=True)
        answer = self._ask(Work("sums", learnt))
        return list(answer.of_slots(self._source.sizes))[: len(self._sizes)]

    def set_dual(self, scores: Scores) -> None:
        """Set λ of every joined row to its slopes."""
        self._ask(Work("dual", self._beside(scores)))

    def proximal(self, scores: Scores, rho: float) -> PassResult:
        """Do the step with λ as the last step or `set_dual` has left it, or 0."""
        return self._looked(self._ask(Work("proximal", self._beside(scores), number=rho)))

    def headlines(self, scores: Scores) -> list[Mean]:
        """Return the metric of the history over the rows of training; with a split, also that over
        the rows for validation."""
        means = []
        for total, weight in self._ask(Work("headlines", self._beside(scores))).numbers.reshape(
            -1, 2
        ):
            mean = headline_of_none(self._loss)
            mean.total, mean.weight = float(total), float(weight)
            means.append(mean)
        return means

    def held_loss(self, scores: Scores) -> float:
        """Return Σ held ℓ(H_j; y_j) over the rows for validation."""
        return float(self._ask(Work("held_loss", self._beside(scores))).numbers[0])

    def meters(self, scores: Scores) -> list[Meter]:
        """Return all metrics, over the same rows as `headlines`."""
        rows = tuple(self._measured.rows(self.total))
        return list(self._ask(Work("meters", self._beside(scores), rows=rows)).meters)

    def added(self, values: Array) -> list[Array]:
        return self._whole.added(values)[: len(self._sizes)]

    def sample(self, slots: Sequence[Array], rows: int) -> list[Array]:
        return self._whole.sample(slots, rows)

    def _beside(self, scores: Scores, *, none: bool = False) -> Scores:
        """Add the offset to the scores; without one, return `none`."""
        if self._offset is None:
            return scores
        outputs = len(scores.constant)
        slots = scores.slots or tuple(np.zeros((outputs, size)) for size in self._sizes)
        offset = np.zeros((outputs, self._offset.shape[1])) if none else self._offset
        return Scores((*slots, offset), scores.constant)

    def _ask(self, work: Work) -> PartitionSums:
        if self._held is None:
            self._held = self._executor.hold(divided(self._source, self._loss, self._measured))
        return self._held.ask(work)

    def _looked(self, sums: PartitionSums) -> PassResult:
        (value, bend), total = sums.numbers[:2].tolist(), sums.numbers[2:]
        slots = sums.of_slots(self._source.sizes)[: len(self._sizes)] if sums.slots else ()
        largest, highest = sums.tops.tolist()
        mean = None if math.isnan(bend) else bend / self.total
        return PassResult(value / self.total, slots, total, largest, highest, mean)
