"""Start of the rounds of training: the join, its targets, the problem to minimise, its metrics.

Metrics weight rows by the column of WEIGHT alone. The validation loss weights them as training
does, with class weights. So it is the objective's loss on rows that the model was not fitted to.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import ModelError
from sqlfl.base.progress import Progress
from sqlfl.base.sanitize import listed
from sqlfl.contract.transforms import CURVE_ROWS
from sqlfl.coordinator.executors.base import Executor
from sqlfl.coordinator.executors.in_process import InProcess
from sqlfl.coordinator.executors.joined_rows import PartitionedRows
from sqlfl.coordinator.findings import remark_on_features, remark_on_join
from sqlfl.coordinator.join.equal_rows import merge_equal_rows
from sqlfl.coordinator.join.factorised import Factorised
from sqlfl.coordinator.join.join_limits import check_memory, check_tables, is_written
from sqlfl.coordinator.join.row_mapping import Scratch
from sqlfl.coordinator.join.scatter_gather import SlotMembers
from sqlfl.coordinator.join.table_mapping import CountedMapping, SlotMapping, TableMapping
from sqlfl.coordinator.lasting import LastingJoin
from sqlfl.coordinator.preparation import (
    Joined,
    JoinedSlot,
    Targets,
    Weighting,
    prepare,
    with_offsets,
)
from sqlfl.coordinator.protection import RunProtection, protect
from sqlfl.coordinator.rounds.chunk import Scores
from sqlfl.coordinator.rounds.chunks import Chunks, chunks_of
from sqlfl.coordinator.rounds.passes import EVERY, MeasuredRows
from sqlfl.coordinator.rounds.problem import Offset, Problem, Units
from sqlfl.coordinator.rounds.stragglers import Lateness
from sqlfl.coordinator.separation import remark_on_separation
from sqlfl.coordinator.weighting import labels, weigh
from sqlfl.messages.checks import ReplyChannel as Line
from sqlfl.models.kinds import ANY_CLASSES, NUMBER, TWO_CLASSES, kind_of, other
from sqlfl.models.losses import Loss, loss_of
from sqlfl.models.metrics import Metrics
from sqlfl.planner.federated.method_spec import spec_of
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.query.ucq import CATEGORY
from sqlfl.store.registry import Model

if TYPE_CHECKING:
    pass


def measured_rows(weighting: Weighting | None) -> MeasuredRows:
    """Return the rows that metrics cover."""
    if weighting is None:
        return EVERY
    samples = None if np.all(weighting.samples == 1.0) else weighting.samples
    if not weighting.validation.any():
        return MeasuredRows(samples=samples)
    return MeasuredRows(weighting.validation, samples, weighting.held)


class Measures:
    """Measures of scores over the joined rows. The passes have their `measured_rows`."""

    def __init__(
        self, passes: PartitionedRows, loss: Loss, target: Targets, weighting: Weighting | None
    ) -> None:
        self._passes = passes
        self._loss = loss
        self._targets = target.values
        self._held = measured_rows(weighting).held
        rows = None if weighting is None else weighting.rows
        self.training_rows = passes.total if rows is None else int(rows.sum())
        self.validation_rows: int | None = None
        """Number of validation rows; None without a split."""
        if weighting is not None and self._held is not None:
            held = weighting.validation if rows is None else rows[weighting.validation]
            self.validation_rows = int(held.sum())
            self.training_rows -= self.validation_rows

    def epoch(self, scores: Scores | None) -> Metrics:
        """Return train_metric and, with a split, valid_loss and valid_metric. All are None if
        scores are unknown.
        """
        if scores is None:
            names = ("valid_loss", "valid_metric") if self._held is not None else ()
            return dict.fromkeys(("train_metric", *names))
        values = [mean.value for mean in self._passes.headlines(scores)]
        if self._held is None:
            return {"train_metric": values[0]}
        held = {"valid_loss": self._valid_loss(scores), "valid_metric": values[1]}
        return {"train_metric": values[0], **held}

    def final(self, scores: Scores | None) -> Metrics:
        """Return all metrics of the model's kind, with valid_<metric> for the validation rows.
        Return {} if scores are unknown.
        """
        if scores is None:
            return {}
        meters = self._passes.meters(scores)
        metrics = meters[0].metrics()
        if self._held is not None:
            metrics["valid_loss"] = self._valid_loss(scores)
            held = meters[1].metrics()
            metrics |= {f"valid_{name}": value for name, value in held.items()}
        return metrics

    def _valid_loss(self, scores: Scores) -> float | None:
        """Return the validation loss; None if only classes of weight 0 are held out."""
        held = self._held
        if held is None or not held.any():
            return None
        return self._passes.held_loss(scores) / float(held.sum()) + self._valid_floor

    @cached_property
    def _valid_floor(self) -> float:
        return self._loss.floor(self._targets, self._held)


MAX_DECIMAL_CLASSES = 50
"""Maximum number of values of a target with decimals that may be classes."""


@dataclass(frozen=True, eq=False)
class Begun:
    """The join and its targets."""

    joined: Joined
    target: Targets
    """Targets of the joined rows. If these may be counted, or are not written down, the targets
    belong to their slot's rows.
    """
    loss: Loss
    written: bool
    """True if joined rows are written down."""


def begin(
    plan: FederatedPlan,
    channel: Line,
    run: str,
    progress: Progress,
    remark: Callable[[str], None],
    executor: Executor | None,
    scratch: Scratch,
    lasting: LastingJoin | None = None,
) -> Begun:
    """Join the tables and get the targets. Raise ModelError for an empty join, unsuitable targets,
    and joins beyond memory.
    """
    joined = prepare(plan, channel, run, progress.stage, scratch, executor, lasting=lasting)
    if joined.total == 0:
        raise ModelError(
            "the join has no rows, so there is nothing to train on",
            hint="check the WHERE conditions, that the join keys of the tables do match, and that "
            "the target is not NULL in all rows: CHECK FROM ( query ) tells what does not match",
        )
    remark_on_join(plan, joined, remark)
    target = labels(plan, joined, channel, run, lasting)
    joined = with_offsets(plan, joined, channel, run)
    loss = _loss(plan, target)
    written = is_written(plan, joined.mapping)
    if written:
        head = 0 if plan.tower is None else plan.tower.outputs or 0
        check_memory(plan, joined.total, max(loss.outputs, head))
        target = target if _is_counted(plan) else target.spread(joined)
    else:
        sizes = zip(joined.mapping.slots, joined.mapping.sizes, strict=True)
        mapping = joined.mapping if isinstance(joined.mapping, Factorised) else None
        check_tables(plan, dict(sizes), loss.outputs, mapping)
    return Begun(joined, target, loss, written)


@dataclass(frozen=True, eq=False)
class PreparedProblem:
    """Everything that the rounds start with."""

    joined: Joined
    """Join of the slots with features, after equal rows were merged."""
    target: Targets
    protection: RunProtection | None
    problem: Problem
    every: Joined
    """Join of all slots."""


def prepared_for(
    plan: FederatedPlan,
    channel: Line,
    run: str,
    progress: Progress,
    start: Model | None,
    remark: Callable[[str], None],
    executor: Executor | None,
    scratch: Scratch,
    lasting: LastingJoin | None = None,
) -> PreparedProblem:
    warm = {item.warm[0] for s in plan.specifications.values() for item in s if item.warm}
    if warm != (set() if start is None else {start.run}):
        raise ModelError(
            f"model {plan.training.warm_start} has been replaced since this was planned",
            hint="run the statement again, to start from the new one",
        )
    begun = begin(plan, channel, run, progress, remark, executor, scratch, lasting)
    joined, target, loss, written = begun.joined, begun.target, begun.loss, begun.written
    if start is not None and start.classes != target.classes:
        raise ModelError(
            f"model {start.name} knows the classes {listed(start.classes or ())}, and target "
            f"{plan.ucq.target} has {listed(target.classes or ())}",
            hint="a warm start needs the same classes; leave warm_start out to begin anew",
        )
    joined = weigh(plan, joined, target, channel, run)
    remark_on_curves(plan, joined.trained, remark)
    progress.stage("encoding features")
    remark_on_features(plan, joined, channel, run, remark)
    remark_on_separation(plan, joined, target, channel, run, remark, written=written)
    protection = protect(plan, joined, target)
    every = joined
    if written:
        joined, target = merge_equal_rows(plan, joined, target, channel, run)
    data = written_data(plan, joined, target) if written else found_data(plan, joined, target)
    problem = problem_of(plan, joined, data, loss, run, start, protection, executor)
    return PreparedProblem(joined, target, protection, problem, every)


def problem_of(
    plan: FederatedPlan,
    joined: Joined,
    data: Data,
    loss: Loss,
    run: str,
    start: Model | None,
    protection: RunProtection | None,
    executor: Executor | None,
) -> Problem:
    return Problem(
        run=run,
        mapping=data.mapping,
        slots=tuple(
            SlotMembers(slot.slot, slot.addresses, slot.offsets, slot.virtual)
            for slot in _towers(plan, joined)
        ),
        loss=loss.fitted(data.targets, data.weights),
        targets=data.targets,
        pieces=data.pieces,
        offset=data.offset,
        outputs=loss.outputs,
        options=plan.training,
        weights=data.weights,
        warm=start is not None,
        seed=_seed(plan.training.seed),
        head=None if start is None else start.head,
        constant=None if start is None else start.intercept,
        privacy=None if protection is None else protection.calibration.training,
        trace=_trace(plan),
        centred=plan.privacy is None or plan.privacy.statistics == "none",
        measured=measured_rows(joined.weighting),
        executor=InProcess() if executor is None else executor,
        summed=spec_of(plan.algorithm).drawn,
        shrunken=_shrunken(plan, joined),
        units=_units(plan, joined),
        paired=_paired(plan, joined),
        crossings={slot.index: slot.crossings for slot in plan.ucq.slots},
        observed=joined.trained,
        lateness=_lateness(plan),
    )


def remark_on_curves(
    plan: FederatedPlan, trained: int, remark: Callable[[str], None], where: str = ""
) -> None:
    """Say that so few joined rows have no curves, `where` they are fewer."""
    if trained < CURVE_ROWS and any(slot.shrunken for slot in plan.ucq.slots):
        remark(
            f"TRANSFORM (auto) made no curves{where}: {trained:,} joined rows to train on are "
            f"fewer than {CURVE_ROWS}. Numbers are straight lines"
        )


def _shrunken(plan: FederatedPlan, joined: Joined) -> dict[int, str]:
    if joined.trained < CURVE_ROWS:
        return {}
    return {slot.index: slot.name for slot in plan.ucq.slots if slot.shrunken}


def _units(plan: FederatedPlan, joined: Joined) -> Units | None:
    if joined.units is None or not _shrunken(plan, joined):
        return None
    return Units(*joined.units_of(joined.units.slot))


def _paired(plan: FederatedPlan, joined: Joined) -> dict[int, int]:
    slots = plan.ucq.slots if joined.trained >= CURVE_ROWS else ()
    return {slot.index: slot.pairs for slot in slots if slot.pairs}


def _lateness(plan: FederatedPlan) -> Lateness | None:
    seconds = plan.training.method.waits
    return None if seconds is None else Lateness(seconds, len(plan.ucq.slots))


@dataclass(frozen=True, eq=False)
class Data:
    """Arrays of `Problem`, with the same meaning."""

    mapping: TableMapping
    targets: Array
    weights: Array | None
    pieces: Chunks | None = None
    offset: Offset | None = None


def written_data(plan: FederatedPlan, joined: Joined, target: Targets) -> Data:
    """Return arrays of all joined rows; `target` belongs to these."""
    slots = _towers(plan, joined)
    rows = tuple(slot.rows for slot in slots)
    weights = None if joined.weighting is None else joined.weighting.weights
    mapping = TableMapping(rows, tuple(int(slot.offsets[-1]) for slot in slots))
    return Data(mapping, target.values, weights, offset=_offset(joined, written=True))


def _offset(joined: Joined, *, written: bool) -> Offset | None:
    offsets = joined.offsets
    if offsets is None:
        return None
    rows = SlotMapping(joined.slots[offsets.slot].rows, len(offsets.values)) if written else None
    return Offset(offsets.values[None], rows)


def found_data(plan: FederatedPlan, joined: Joined, target: Targets) -> Data:
    """Return data without an array of joined rows; `target` belongs to the rows of its slot."""
    every, slots = joined.mapping, [slot.slot for slot in _towers(plan, joined)]
    often = [every.counts(slot).astype(np.int64, copy=False) for slot in slots]
    mapping = CountedMapping(joined.total, often)
    place = _target(plan)
    read = slots if joined.offsets is None else [*slots, joined.offsets.slot]
    pieces = chunks_of(every, read, place, target.values)
    counts = every.counts(place)
    weights = None if bool((counts == 1).all()) else counts.astype(np.float64)
    return Data(mapping, target.values, weights, pieces, _offset(joined, written=False))


def _towers(plan: FederatedPlan, joined: Joined) -> list[JoinedSlot]:
    return [joined.slots[slot.index] for slot in plan.ucq.slots if slot.features]


def _is_counted(plan: FederatedPlan) -> bool:
    """Return True if joined rows may be merged before any array of them is made."""
    return plan.merges and not plan.weighted


def _target(plan: FederatedPlan) -> int:
    return next(slot.index for slot in plan.ucq.slots if slot.target)


def _trace(plan: FederatedPlan) -> float:
    """Return a bound of the trace of X̃ᵀX̃/N: at most 1 for a number, and for all categories of a
    feature.
    """
    features = [feature for slot in plan.ucq.slots for feature in slot.features]
    return float(sum(1 if f.kind == CATEGORY else f.width for f in features))


def _seed(option: int | None) -> int:
    """Return the option, or a random seed."""
    return secrets.randbits(32) if option is None else option


def _loss(plan: FederatedPlan, target: Targets) -> Loss:
    if target.classes is None:
        return loss_of(plan.kind, 1, plan.training.listed())
    if len(target.classes) < 2:
        raise ModelError(
            f"target {plan.ucq.target} has one class only ({listed(target.classes)})",
            hint="a classifier needs rows of at least two classes",
        )
    name, type_ = plan.ucq.target, (plan.ucq.target_type or "").split("(")[0]
    if type_ in ("FLOAT", "DOUBLE", "DECIMAL") and len(target.classes) > MAX_DECIMAL_CLASSES:
        raise ModelError(
            f"target {name} is {type_} and has {len(target.classes)} different values, which are "
            "hardly classes",
            hint=f"for a number, USING {other(plan.kind, NUMBER)}; for classes, make it a "
            f"condition, as in {name} > 4, or text: CAST({name} AS VARCHAR)",
        )
    if kind_of(plan.kind).target == TWO_CLASSES and len(target.classes) > 2:
        raise ModelError(
            f"target {plan.ucq.target} has {len(target.classes)} classes; {plan.kind} takes two",
            hint=f"USING {other(plan.kind, ANY_CLASSES)}, or make the target a condition, as in "
            "rating >= 4",
        )
    return loss_of(plan.kind, len(target.classes))
