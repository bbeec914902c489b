"""The problem of training, and the interface of the coordinator's part of a method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from sqlfl.coordinator.join.scatter_gather import SlotMembers
from sqlfl.coordinator.join.table_mapping import SlotMapping, TableMapping
from sqlfl.coordinator.rounds.chunk import Scores
from sqlfl.coordinator.rounds.chunks import Chunks, WrittenChunks
from sqlfl.coordinator.rounds.passes import EVERY, MeasuredRows
from sqlfl.coordinator.rounds.stragglers import Lateness
from sqlfl.messages.checks import ReplyChannel
from sqlfl.models.head import Head
from sqlfl.models.losses import Loss
from sqlfl.models.optimizers import Optimizer, PlainSteps
from sqlfl.options.training import TowerOptions, TrainingOptions


@dataclass(frozen=True, eq=False)
class Offset:
    """Offsets (N,) of the scores of joined rows, which nobody learns."""

    values: Array
    """float64 (1, n): of the rows of a slot."""
    rows: SlotMapping | None
    """The row of each joined row; None where joined rows are not written down: their pieces have
    it, as that of a slot behind all others."""


@dataclass(frozen=True, eq=False)
class Units:
    """Units that joined rows belong to, of which the model should hold for new ones."""

    groups: Array
    """int64 (N,): numbers from 0."""
    number: int

    def excess(self, slopes: Array, shares: Array | None) -> float:
        """Return Σ_u w_u² τ² / Σ w, summed over outputs: what slopes (d_c, N) that are alike within
        units add to the mean square of sums over units. w are the shares with the mean 1, and τ² is
        the variance between units by a one-way analysis of variance (Searle, Casella and McCulloch
        1992, section 3.6); 0 where each row is a unit."""
        rows = slice(None) if shares is None else np.flatnonzero(shares)
        groups, slopes = self.groups[rows], slopes[:, rows]
        weights = np.ones(len(groups)) if shares is None else shares[rows]
        weights = weights / weights.mean()
        sizes = np.bincount(groups, weights, self.number)
        known, total = np.count_nonzero(sizes), float(len(groups))
        if not 1 < known < total:
            return 0.0
        square = float(sizes @ sizes)
        excess = 0.0
        for slope in slopes:
            sums = np.bincount(groups, weights * slope, self.number)
            means = np.divide(sums, sizes, out=np.zeros(self.number), where=sizes > 0.0)
            between = float(sizes @ (means - sums.sum() / total) ** 2) / (known - 1)
            within = float(weights @ (slope - means[groups]) ** 2) / (total - known)
            size = (total - square / total) / (known - 1)
            excess += max(0.0, (between - within) / size) * square / total
        return excess


@dataclass(frozen=True, eq=False)
class Problem:
    """The problem to minimise: Σ w_j ℓ(H_j; y_j) / Σ w_j + l2/2 Σ‖θ_i‖².

    A weight of 2 counts the row twice. A row of weight 0 takes part in no sum, but its scores are
    kept up to date. All validation rows have weight 0.
    """

    run: str
    mapping: TableMapping
    """Mapping with an entry for each slot with features, in the order of `slots`."""
    slots: tuple[SlotMembers, ...]
    loss: Loss
    targets: Array
    """(N,): numbers or class codes. If joined rows are not written down, these belong to the rows
    of their slot, and `weights` says how much each counts in the join.
    """
    outputs: int
    """d_c"""
    options: TrainingOptions
    weights: Array | None = None
    """w of the targets: non-negative, some of them positive; None if each row has weight 1."""
    pieces: Chunks | None = None
    """The joined rows, where they are not written down."""
    offset: Offset | None = None
    warm: bool = False
    """True if the clients' blocks start from those of a model, not from 0."""
    seed: int = 0
    """Seed of batches, of power rounds, and of the first parameters of towers and of a head."""
    head: Array | None = None
    """W₀ (P, d_c) of the model of a warm start, if it has a linear head."""
    constant: Array | None = None
    """b (d_c,) of that model; None without one."""
    privacy: RunNoise | None = None
    """Noise of the run; None if features are not protected."""
    trace: float = 0.0
    """Bound of Σ share ‖x̃‖²/N over all slots, from names and types alone, if features are
    protected.
    """
    centred: bool = True
    """True if the encoded columns have mean 0 over the joined rows."""
    summed: bool = False
    """True if scores belong to joined rows, not to the rows of slots."""
    measured: MeasuredRows = EVERY
    """Rows that metrics cover."""
    proved: bool = True
    """True if clients are asked for the size of the gradient at the end."""
    executor: Executor = field(default_factory=InProcess)
    """Computes on the joined rows."""
    shrunken: Mapping[int, str] = field(default_factory=dict)
    """Slots whose columns have strengths of their own, which are found in training, and their
    names."""
    units: Units | None = None
    """Units by which strengths are found; None where they are rows."""
    paired: Mapping[int, int] = field(default_factory=dict)
    """Slots to which pairs of features are added, and the maximum number of pairs."""
    crossings: Mapping[int, int] = field(default_factory=dict)
    """Number of pairs that the features of each of these slots have."""
    observed: int = 0
    """Rows of training, where these are needed: those that are merged count each."""
    lateness: Lateness | None = None
    """Time limit after which steps go on without late clients; None if they wait for all. The owner
    must close it.
    """

    @property
    def parameters_only(self) -> bool:
        """Return True if predictions are exact and only the promised parameters hide the features.
        The scores may then decide neither the parameters nor whether there is a model.
        """
        return self.privacy is not None and self.privacy.intercept_clip > 0.0

    @cached_property
    def noise(self) -> float:
        """Return the standard deviation of the noise in each number of E; 0 if it is exact."""
        rounds = {} if self.privacy is None else self.privacy.rounds
        return float(np.linalg.norm([_noise(slot_noise) for slot_noise in rounds.values()]))

    @property
    def l2(self) -> float:
        return self.options.l2

    @property
    def tower(self) -> TowerOptions | None:
        """Return the tower's options; None for linear blocks."""
        return self.options.tower

    @property
    def embedding(self) -> int:
        """Return how many values a client sends per row: d_c, or P before a linear head."""
        width = None if self.tower is None else self.tower.outputs
        return self.outputs if width is None else width

    @property
    def linear_head(self) -> bool:
        return self.tower is not None and self.tower.outputs is not None

    @property
    def dropout(self) -> float:
        return 0.0 if self.tower is None else self.tower.dropout

    @cached_property
    def total(self) -> float:
        """Return Σ w, which the clients' counts, and so their second moments, add up to."""
        return float(self.mapping.total if self.weights is None else self.weights.sum())

    @cached_property
    def shares(self) -> Array | None:
        """Return w scaled to a mean of 1. Sums over rows use these shares, so that their divisor is
        N at any scale of w.
        """
        if self.weights is None:
            return None
        largest = self.weights.max()
        scaled = self.weights / largest
        shares: Array = scaled * (len(scaled) / scaled.sum())
        return shares

    @cached_property
    def training(self) -> Array | None:
        """Return the joined rows with a positive weight; None for all."""
        return None if self.shares is None else np.flatnonzero(self.shares)

    @cached_property
    def reach(self) -> float:
        return self.loss.reach(self.targets)

    @cached_property
    def class_shares(self) -> tuple[float, ...]:
        """Return the class probabilities of the best constant scores of a softmax. Return () for
        other losses.
        """
        if self.outputs < 2:
            return ()
        constant = self.loss.initial_intercept(self.targets, self.shares)
        return tuple(float(p) for p in self.loss.predict(constant[None, :])[0])

    @cached_property
    def passes(self) -> PartitionedRows:
        """Return the computations over all joined rows. The caller must close them in the end."""
        mapping = self.mapping
        if self.summed:
            total = mapping.total
            mapping = TableMapping((np.arange(total, dtype=np.int32),), (total,))
        if self.offset is not None and self.offset.rows is not None:
            mapping = mapping.beside(self.offset.rows)
        pieces = self.pieces or WrittenChunks(mapping, self.targets, self.shares)
        values = None if self.offset is None else self.offset.values
        return PartitionedRows(pieces, self.loss, self.executor, self.measured, values)

    @cached_property
    def counted(self) -> list[Array]:
        """Return Σ share of each slot's rows over the joined rows: (n_i,) each."""
        mapping, shares = self.mapping, self.shares
        if shares is None or self.pieces is not None:
            return [mapping.counts(n) for n in range(len(mapping))]
        return [np.bincount(slot.rows, shares, slot.size) for slot in mapping.slots]

    def weighted(self, values: Array) -> Array:
        """Return each joined row of (N, c) times its share."""
        return values if self.shares is None else values * self.shares[:, None]

    def batch_shares(self, joined: Array) -> Array | None:
        """Return the shares of a batch's joined rows (B,), scaled to a mean of 1 in the batch; None
        without weights.
        """
        if self.shares is None:
            return None
        batch = self.shares[joined]
        scaled: Array = batch * (len(joined) / batch.sum())
        return scaled

    def norm(self, values: Array) -> float:
        """Return √ Σ share ‖values_j‖² of (N, c)."""
        if self.shares is None:
            return float(np.linalg.norm(values))
        return float(np.sqrt(self.shares @ np.einsum("nc,nc->n", values, values)))


def _noise(noise: RoundNoise) -> float:
    """Return the noise of a slot's predictions, or of an estimate from draws of them."""
    return 0.5 / (noise.theta * noise.bins**0.5) if noise.bins else noise.prediction_noise


@dataclass(frozen=True)
class Step:
    """One epoch (for lbfgs: one iteration)."""

    epoch: int
    """Number of the epoch, from 1."""
    objective: float
    """Mean loss and penalty at the parameters that the clients hold now."""
    loss: float
    """Mean loss."""
    gradient: float | None = None
    """‖∂objective/∂θ‖ over all blocks, if the method has it."""
    ending: Ending | None = None
    """Reason why the last step is the last; None for earlier steps."""
    gap: float | None = None
    """Duality gap, if the method has it. It bounds the objective minus its minimum, as far as the
    method knows all slopes.
    """
    late: int = 0
    """Number of replies that the epoch's steps have gone on without."""
    stale: bool = False
    """True if a client may by now hold another block than the one that these figures belong to."""
    estimates: Mapping[str, float] = field(default_factory=dict)
    """Metrics that the method estimates for the model, if no scores are known."""
    warnings: tuple[str, ...] = ()
    """Warnings for the model's card."""

    @property
    def converged(self) -> bool:
        """Return True if the gradient proves that this is the optimum."""
        return self.ending is not None and self.ending.converged


class Algorithm(Protocol):
    """Coordinator's part of one method.

    `steps` yields after each epoch, at most `epochs` times, and may be closed early. Intercept
    (d_c,), head and scores belong to the parameters that the clients hold.
    """

    @property
    def intercept(self) -> Array: ...

    @property
    def head(self) -> Array | None:
        """Return W₀ (P, d_c) of a linear head; None without one."""
        ...

    @property
    def scores(self) -> Scores | None:
        """Return the scores; None if the coordinator knows no joined row's prediction."""
        ...

    @property
    def first(self) -> float:
        """Return the objective before the first step, once `steps` has begun."""
        ...

    def start(self) -> None: ...

    def steps(self) -> Iterator[Step]: ...


def coordinator_of(method: str) -> Callable[[Problem, ReplyChannel], Algorithm]:
    """Return the coordinator's part of a method. Raise InternalError for an unknown method."""
    part: Callable[[Problem, ReplyChannel], Algorithm] = part_of(method, "coordinator")
    return part


# Base of the algorithms that have a head at the coordinator.


class Headed:
    """Base of an algorithm with a head: its parameters, and its steps.

    optimizer: makes an optimizer for each of the head's parameters.
    """

    def __init__(self, head: Head, optimizer: Callable[[], Optimizer] = PlainSteps) -> None:
        self._head = head
        self._optimizers = [optimizer() for _ in head.parameters]

    @property
    def intercept(self) -> Array:
        return self._head.intercept.copy()

    @property
    def head(self) -> Array | None:
        return None if self._head.weights is None else self._head.weights.copy()

    def _step_head(self, gradient: Sequence[Array], rate: float) -> None:
        """Step each of the head's parameters along its gradient."""
        pairs = zip(self._optimizers, self._head.parameters, gradient, strict=True)
        stepped = [optimizer.step(parameter, slope, rate) for optimizer, parameter, slope in pairs]
        self._head = self._head.replaced(stepped)
