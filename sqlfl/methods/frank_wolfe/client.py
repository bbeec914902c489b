"""The client's part of block-coordinate Frank-Wolfe (Lou and Cheung, 2018, algorithm 2).

With protected features, clipping bounds a row's part in a slope: its column's value and its part
v_r of the direction. The guard noises choices, and each sent column, as a sketch. Slopes never
leave.

Only linear blocks have an operator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from scipy import sparse

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.messages import Message, PartialGradient, Ready, SendReleases, SumGradient
from sqlfl.methods.frank_wolfe.configuration import FrankWolfeConfiguration
from sqlfl.methods.frank_wolfe.messages import (
    ColumnDirection,
    ColumnResiduals,
    ColumnWeights,
    SetSketch,
    SteepestColumn,
)
from sqlfl.methods.frank_wolfe.sketch import Sketch
from sqlfl.models.towers import TowerShape
from sqlfl.party.client import finite, predictions_of
from sqlfl.party.operator import ClientPart
from sqlfl.party.release_guard import ReleaseGuard, releases_of
from sqlfl.party.requests import SlotExpectations
from sqlfl.party.steps import Engine
from sqlfl.privacy.block_moments import cut_level
from sqlfl.privacy.samplers import Entropy, system

NONE = np.zeros(0)
GUMBEL_DEVIATION = 1.28
"""Standard deviation of Gumbel noise of scale 1, π/√6."""


class FrankWolfeOperator:
    """Operator of one slot's linear block at one client. θ starts at 0, and is 0 for columns that
    were not sent.

    Raises InternalError for a block to start from, for features that are to be protected without a
    sketch or where the slot has several clients, and for options out of range.
    """

    shape: TowerShape | None = None

    def __init__(
        self,
        engine: Engine,
        configuration: FrankWolfeConfiguration,
        run: str,
        slot: int,
        parameters: Sequence[Array] | None = None,
        *,
        entropy: Entropy = system,
    ) -> None:
        options = configuration
        if parameters is not None:
            raise InternalError("Frank-Wolfe starts from weights of 0")
        self._engine, self._configuration = engine, options
        self._run, self._slot = run, slot
        self._held = SlotExpectations.of(engine, options)
        self._theta = np.zeros((engine.width, 1))
        self._told: list[int] = []
        """Columns, in the order in which they were sent."""
        self._kept: deque[Array] = deque(maxlen=options.keep + 1)
        self._questions = 0
        self._rows: sparse.csr_array | None = None
        """(J A)ᵀ"""
        self._columns: ActiveColumns = EngineColumns(engine)
        self._guard: ReleaseGuard | None = None
        self._protected: _Protected | None = None
        if options.privacy is not None:
            if not options.sketch or options.shared:
                raise InternalError("protected columns are told by one client, as sketches")
            clipped = ClippedColumns(engine, options.privacy.column_bound)
            self._columns = clipped
            self._guard = ReleaseGuard(options.privacy, engine.rows, entropy)
            self._protected = _Protected(self._guard, clipped.change)

    @property
    def parameters(self) -> tuple[Array, ...]:
        return (self._theta,)

    @property
    def guard(self) -> ReleaseGuard | None:
        return self._guard

    def kept(self, back: int) -> tuple[Array, ...]:
        """Return the parameters of `back` epochs ago. Raise InternalError if they are no longer
        stored.
        """
        if back == 0:
            return (np.array(self._theta),)
        if not 0 < back < len(self._kept):
            raise InternalError(f"{back} epochs back, of {len(self._kept)} that are kept")
        return (self._kept[-1 - back],)

    def handle(self, message: Message) -> Message:
        """Return the reply to a training message. Raise InternalError for a message that does not
        belong here, or has other rows or columns.
        """
        self._held.check(message, None)
        match message:
            case SetSketch():
                return self._gather(message)
            case ColumnResiduals() if not self._configuration.sketch:
                self._set(message.weights)
                return self._asked(np.asarray(message.values, np.float64)[:, 0])
            case ColumnDirection():
                self._set(message.weights)
                return self._asked(self._toward(message.values))
            case SumGradient() if self._configuration.shared:
                return self._choose(np.asarray(message.values, np.float64)[:, 0])
            case ColumnWeights():
                self._set(message.weights)
                return self._ready()
            case SendReleases():
                return releases_of(self._guard, self._run, self._slot)
        raise InternalError(f"message {message.kind} is no part of training by Frank-Wolfe")

    def _ready(self) -> Message:
        return Ready(self._run, self._slot, self._engine.width)

    def _gather(self, message: SetSketch) -> Message:
        size, active = self._configuration.sketch, self._engine.rows
        if not size or self._rows is not None:
            raise InternalError("a sketch is set once, where columns are told as sketches")
        if message.joined != self._configuration.rows:
            raise InternalError(f"{message.joined} joined rows of {self._configuration.rows}")
        if message.rows.size and int(message.rows.max()) >= active:
            raise InternalError(f"{message.kind} names row {message.rows.max()} of {active}")
        sketch = Sketch(size, message.joined, message.seed)
        self._rows = sketch.gathered(message.rows, message.places, active)
        if self._protected is not None:
            self._protected.bound(self._rows, np.bincount(message.rows, minlength=active))
        return self._ready()

    def _set(self, weights: Array) -> None:
        """Set θ from the weights of the sent columns."""
        if len(weights) != len(self._told):
            raise InternalError(f"{len(weights)} weights of {len(self._told)} columns")
        if not np.isfinite(weights).all():
            raise InternalError("weights that are not finite")
        self._theta = np.zeros_like(self._theta)
        self._theta[self._told, 0] = weights
        if self._questions:
            self._kept.append(self._theta)

    def _toward(self, direction: Array) -> Array:
        """v_r = Σ_{j ∈ G(r)} J_·jᵀ u of every row."""
        if self._rows is None or len(direction) != self._configuration.sketch:
            raise InternalError(f"a direction of {len(direction)} numbers, without such a sketch")
        toward: Array = self._rows @ np.asarray(direction, np.float64)
        return toward if self._protected is None else self._protected.clipped(toward)

    def _asked(self, values: Array) -> Message:
        slopes = self._columns.slopes(values)
        if not self._configuration.shared:
            return self._choose(slopes)
        return PartialGradient(self._run, self._slot, finite(slopes[:, None]))

    def _choose(self, slopes: Array) -> Message:
        """Return the column with the steepest of the slot's slopes N g, among those considered."""
        self._questions += 1
        looked = self._looked()
        if not len(looked):
            return SteepestColumn(self._run, self._slot, 0, 0, NONE.astype(np.float32))
        seen = slopes[looked]
        if self._protected is None:
            best = int(np.argmax(np.abs(seen)))
            rising = seen[best] < 0.0
        else:
            choice = self._protected.choose(np.concatenate([-seen, seen]))
            best, rising = choice % len(looked), choice < len(looked)
        number = int(looked[best])
        told = number in self._told
        values = NONE if told else self._tell(number)
        noise = 0.0 if told or self._protected is None else self._protected.noise
        return SteepestColumn(
            self._run, self._slot, number, int(rising), predictions_of(values), noise
        )

    def _looked(self) -> Array:
        configuration, width = self._configuration, self._engine.width
        if not configuration.sample or configuration.sample >= width:
            return np.arange(width)
        generator = np.random.default_rng([configuration.seed, self._slot, self._questions])
        return np.sort(generator.choice(width, configuration.sample, replace=False))

    def _tell(self, number: int) -> Array:
        self._told.append(number)
        values = self._columns.column(number)
        if self._rows is None:
            return values
        sketch: Array = self._rows.T @ values
        return sketch if self._protected is None else self._protected.told(sketch)


class _Protected:
    """Bounds of a row's part in choices and sketches, computed by the client itself."""

    def __init__(self, guard: ReleaseGuard, change: float) -> None:
        self._guard = guard
        self._change = change
        self._limits = NONE
        self._level = 0.0
        self._length = 0.0

    def bound(self, rows: sparse.csr_array, counts: Array) -> None:
        """rows: (J A)ᵀ; counts: joined rows of each row. N v_r is at most cnt_r R."""
        self._limits = counts * self._guard.privacy.residual_bound
        self._length = float(np.sqrt(rows.multiply(rows).sum(axis=1)).max(initial=0.0))

    def clipped(self, toward: Array) -> Array:
        """Return N v_r of each row, cut at a level, for the scores of the next choice.

        They follow from the join graph, labels and earlier releases: so may the level. It has the
        least of what is cut and of noise.
        """
        found = np.clip(np.nan_to_num(toward), -self._limits, self._limits)
        noise = GUMBEL_DEVIATION * self._guard.privacy.selection_noise * self._change
        self._level = cut_level(np.abs(found), 1, noise)
        cut: Array = np.clip(found, -self._level, self._level)
        return cut

    def choose(self, scores: Array) -> int:
        """Return the place of the largest score, of rows that `clipped` has cut."""
        return self._guard.choose(scores, self._change * self._level)

    @property
    def noise(self) -> float:
        """Standard deviation of that in each number of a sketch."""
        return self._guard.privacy.sketch_noise * self._change * self._length

    def told(self, sketch: Array) -> Array:
        return self._guard.sketch(sketch, self._change * self._length)


class ActiveColumns(Protocol):
    """x̃ of the active rows."""

    def slopes(self, values: Array) -> Array:
        """X̃ᵀ v: (rows,) -> (d,)."""
        ...

    def column(self, number: int) -> Array:
        """x̃ of every row: (rows,)."""
        ...


class EngineColumns:
    """Columns without changes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def slopes(self, values: Array) -> Array:
        return self._engine.gradient(values[:, None])[:, 0]

    def column(self, number: int) -> Array:
        unit = np.zeros((self._engine.width, 1))
        unit[number] = 1.0
        return self._engine.predict(unit)[:, 0]


class ClippedColumns:
    """Clipped columns: numeric ones to [−B, B], where a row's value changes by at most 2B.

    Values of one-hot columns, centred by public or noised numbers, change by at most 1.
    """

    def __init__(self, engine: Engine, bound: float) -> None:
        numeric, self._onehot = engine.columns()
        finite = np.nan_to_num(numeric, nan=0.0)
        self._numeric = np.clip(finite, -bound, bound)
        self._centre = engine.centre[engine.numeric :]
        changes = [2.0 * bound] * (engine.numeric > 0) + [1.0] * (engine.width > engine.numeric)
        self.change = max(changes, default=0.0)
        """Maximum change of one row's value in a column."""

    def slopes(self, values: Array) -> Array:
        onehot = self._onehot.T @ values - self._centre * values.sum()
        return np.concatenate([self._numeric.T @ values, onehot])

    def column(self, number: int) -> Array:
        p = self._numeric.shape[1]
        if number < p:
            values: Array = self._numeric[:, number]
            return values
        place = number - p
        values = self._onehot[:, [place]].toarray()[:, 0] - self._centre[place]
        return values


CLIENT = ClientPart(FrankWolfeConfiguration, linear=FrankWolfeOperator)
