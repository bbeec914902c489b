"""What is to be minimised, and what the coordinator's part of every method is like."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.contract.methods import part_of
from sqlfl.contract.privacy_specification import RoundNoise, RunNoise
from sqlfl.contract.stopping import Ending
from sqlfl.coordinator.executors.base import Executor
from sqlfl.coordinator.executors.in_process import InProcess
from sqlfl.coordinator.executors.joined_rows import PartitionedRows
from sqlfl.coordinator.join.mapping import SlotMapping, TableMapping
from sqlfl.coordinator.join.slot_members import SlotMembers
from sqlfl.coordinator.rounds.chunks import Chunks, WrittenPieces
from sqlfl.coordinator.rounds.lateness import Lateness
from sqlfl.coordinator.rounds.measured import EVERY, MeasuredRows
from sqlfl.coordinator.rounds.scores import Scores
from sqlfl.messages.replies import ReplyChannel
from sqlfl.models.losses import Loss
from sqlfl.options.training import TowerOptions, TrainingOptions


@dataclass(frozen=True, eq=False)
class Offset:
    """What is added to the scores of joined rows, and learnt by nobody."""

    values: Array
    """float64 (1, n): of the rows of a slot."""
    rows: SlotMapping | None
    """The row of each joined row; None where joined rows are not written down: their pieces have
    it, as that of a slot behind all others."""


@dataclass(frozen=True, eq=False)
class Problem:
    """What is to be minimised: Σ w_j ℓ(H_j; y_j) / Σ w_j + l2/2 Σ‖θ_i‖².

    A weight of 2 is the row twice. A row of weight 0, as all rows for validation are, takes part in
    no sum; its scores are kept up to date.
    """

    run: str
    mapping: TableMapping
    """An entry per slot with features, in the order of `slots`."""
    slots: tuple[SlotMembers, ...]
    loss: Loss
    targets: Array
    """(N,): numbers, or class codes; where joined rows are not written down those of the rows of
    their slot, whose `weights` are what they count in the join."""
    outputs: int
    """d_c"""
    options: TrainingOptions
    weights: Array | None = None
    """w, of the targets: not negative, some of them positive; None for 1 of each row."""
    pieces: Chunks | None = None
    """The joined rows, where they are not written down."""
    offset: Offset | None = None
    warm: bool = False
    """The clients' blocks start from those of a model, not from 0."""
    seed: int = 0
    """Of batches, of power rounds and of the first parameters of towers and of a head."""
    head: Array | None = None
    """W₀ (P, d_c) of the model of a warm start, where that has a linear head."""
    constant: Array | None = None
    """b (d_c,) of that model; None where there is none."""
    privacy: RunNoise | None = None
    """None where features are not protected."""
    trace: float = 0.0
    """Where they are, a bound of Σ share ‖x̃‖²/N over all slots, from names and types alone."""
    centred: bool = True
    """The encoded columns have the mean 0 over the joined rows."""
    summed: bool = False
    """Scores are known of joined rows, not of the rows of slots."""
    measured: MeasuredRows = EVERY
    """What metrics are of."""
    proved: bool = True
    """In the end clients are asked how large the gradient is."""
    executor: Executor = field(default_factory=InProcess)
    """Computes on the joined rows."""
    shrunken: Mapping[int, str] = field(default_factory=dict)
    """Slots whose columns have strengths of their own, which are found in training, and their
    names."""
    observed: int = 0
    """Rows of training, where these are needed: those that are merged count each."""
    lateness: Lateness | None = None
    """Steps go on without clients that are late; None where they wait for all. To be closed."""

    @property
    def parameters_only(self) -> bool:
        """Predictions are exact, and the parameters alone promised to hide them: nothing that is
        seen in the scores may decide what becomes of these, or whether there are any."""
        return self.privacy is not None and self.privacy.intercept_clip > 0.0

    @cached_property
    def noise(self) -> float:
        """Standard deviation of the noise in each number of E; 0 where predictions are exact."""
        rounds = {} if self.privacy is None else self.privacy.rounds
        return float(np.linalg.norm([_noise(own) for own in rounds.values()]))

    @property
    def l2(self) -> float:
        return self.options.l2

    @property
    def tower(self) -> TowerOptions | None:
        """None where blocks are linear."""
        return self.options.tower

    @property
    def embedding(self) -> int:
        """Values that a client sends per row: d_c, or P where a linear head follows."""
        found = None if self.tower is None else self.tower.outputs
        return self.outputs if found is None else found

    @property
    def linear_head(self) -> bool:
        return self.tower is not None and self.tower.outputs is not None

    @property
    def dropout(self) -> float:
        return 0.0 if self.tower is None else self.tower.dropout

    @cached_property
    def total(self) -> float:
        """Σ w: what the clients' counts, and so their second moments, add up to."""
        return float(self.mapping.total if self.weights is None else self.weights.sum())

    @cached_property
    def shares(self) -> Array | None:
        """w scaled to a mean of 1, as sums over rows carry it: their divisor is N for any scale."""
        if self.weights is None:
            return None
        largest = self.weights.max()
        scaled = self.weights / largest
        shares: Array = scaled * (len(scaled) / scaled.sum())
        return shares

    @cached_property
    def training(self) -> Array | None:
        """The joined rows that weigh something; None for all."""
        return None if self.shares is None else np.flatnonzero(self.shares)

    @cached_property
    def reach(self) -> float:
        return self.loss.reach(self.targets)

    @cached_property
    def class_shares(self) -> tuple[float, ...]:
        """Probabilities of the best constant scores of a softmax over several classes; () of other
        losses."""
        if self.outputs < 2:
            return ()
        constant = self.loss.initial_intercept(self.targets, self.shares)
        return tuple(float(p) for p in self.loss.predict(constant[None, :])[0])

    @cached_property
    def passes(self) -> PartitionedRows:
        """What is computed of all joined rows; to be closed in the end."""
        mapping = self.mapping
        if self.summed:
            total = mapping.total
            mapping = TableMapping((np.arange(total, dtype=np.int32),), (total,))
        if self.offset is not None and self.offset.rows is not None:
            mapping = mapping.beside(self.offset.rows)
        pieces = self.pieces or WrittenPieces(mapping, self.targets, self.shares)
        values = None if self.offset is None else self.offset.values
        return PartitionedRows(pieces, self.loss, self.executor, self.measured, values)

    @cached_property
    def counted(self) -> list[Array]:
        """Σ share of each slot's rows over the joined rows: (n_i,) each."""
        mapping, shares = self.mapping, self.shares
        if shares is None or self.pieces is not None:
            return [mapping.counts(n) for n in range(len(mapping))]
        return [np.bincount(slot.rows, shares, slot.size) for slot in mapping.slots]

    def weighted(self, values: Array) -> Array:
        """Each joined row of (N, c) times its share."""
        return values if self.shares is None else values * self.shares[:, None]

    def batch_shares(self, joined: Array) -> Array | None:
        """Of a batch's joined rows (B,), with a mean of 1 in it; None without weights."""
        if self.shares is None:
            return None
        own = self.shares[joined]
        found: Array = own * (len(joined) / own.sum())
        return found

    def norm(self, values: Array) -> float:
        """√ Σ share ‖values_j‖², of (N, c)."""
        if self.shares is None:
            return float(np.linalg.norm(values))
        return float(np.sqrt(self.shares @ np.einsum("nc,nc->n", values, values)))


def _noise(own: RoundNoise) -> float:
    """Of a slot's predictions, or of what is estimated from draws of them."""
    return 0.5 / (own.theta * own.bins**0.5) if own.bins else own.prediction_noise


@dataclass(frozen=True)
class Step:
    """One epoch (lbfgs: one iteration)."""

    epoch: int
    """From 1."""
    objective: float
    """Mean loss and penalty at the parameters that the clients hold now."""
    loss: float
    """Mean loss."""
    gradient: float | None = None
    """‖∂objective/∂θ‖ over all blocks, where the method has it."""
    ending: Ending | None = None
    """Of the last step: why there is no further one."""
    gap: float | None = None
    """The duality gap, where the method has it: the objective is above its minimum by no more, as
    far as the method knows all slopes."""
    late: int = 0
    """Answers that its steps have gone on without."""
    stale: bool = False
    """A client may hold another block by now than these figures are of."""
    estimates: Mapping[str, float] = field(default_factory=dict)
    """Metrics that the method has of the model, where no scores are known."""
    warnings: tuple[str, ...] = ()
    """Warnings for the model's card."""

    @property
    def converged(self) -> bool:
        """The gradient proves that this is the optimum."""
        return self.ending is not None and self.ending.converged


class Algorithm(Protocol):
    """The coordinator's part of one method.

    `steps` yields after each epoch, at most `epochs` times; it may be closed in between. Intercept
    (d_c,), head and scores belong to the parameters that the clients hold.
    """

    @property
    def intercept(self) -> Array: ...

    @property
    def head(self) -> Array | None:
        """W₀ (P, d_c) of a linear head; None without."""
        ...

    @property
    def scores(self) -> Scores | None:
        """None where the coordinator knows of no joined row what it is predicted to be."""
        ...

    @property
    def first(self) -> float:
        """The objective before the first step, once `steps` has begun."""
        ...

    def start(self) -> None: ...

    def steps(self) -> Iterator[Step]: ...


def coordinator_of(method: str) -> Callable[[Problem, ReplyChannel], Algorithm]:
    """What runs the method's rounds. Raises InternalError for a method that is not known."""
    part: Callable[[Problem, ReplyChannel], Algorithm] = part_of(method, "coordinator")
    return part
