"""TUNE: candidates compared over folds of one join, and the best one trained on all rows.

Snapshot, keys, join, labels, encoding and equal rows are those of one TRAIN. A fold's rows have
weight 0 in its fits. Features stay encoded by all rows, as in one model; but those of slots with
curves are encoded by the training rows of each fit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, ModelError
from sqlfl.base.progress import Progress
from sqlfl.base.sanitize import line
from sqlfl.contract.transforms import CURVE_ROWS
from sqlfl.coordinator import expected
from sqlfl.coordinator.executors.base import Executor
from sqlfl.coordinator.executors.joined_rows import PartitionedRows
from sqlfl.coordinator.findings import remark_on_features
from sqlfl.coordinator.join.equal_rows import EqualRowGroups, merge_equal_rows, numbered, with_rows
from sqlfl.coordinator.join.row_mapping import Scratch
from sqlfl.coordinator.lasting import LastingJoin
from sqlfl.coordinator.preparation import Joined, Targets, Weighting
from sqlfl.coordinator.problems import (
    Begun,
    PreparedProblem,
    begin,
    problem_of,
    remark_on_curves,
    written_data,
)
from sqlfl.coordinator.rounds.chunk import Scores
from sqlfl.coordinator.rounds.chunks import WrittenChunks
from sqlfl.coordinator.rounds.convergence import check_kept
from sqlfl.coordinator.rounds.passes import MeasuredRows
from sqlfl.coordinator.rounds.problem import Problem, Step, coordinator_of
from sqlfl.coordinator.training import STEPS, Trained, run_rounds
from sqlfl.coordinator.weighting import class_shares, reweigh, weigh, weighting_of
from sqlfl.messages import SendFolds
from sqlfl.messages.checks import ask
from sqlfl.models.folds import deal, merge_folds, strata_of
from sqlfl.options.tuning import Candidate, Tuning
from sqlfl.planner.federated.method_spec import spec_of
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.query.ucq import Slot
from sqlfl.transport.base import Channel

MAX_NAMED_CLASSES = 5
"""Maximum number of classes that a message names."""


@dataclass(frozen=True, eq=False)
class CandidateScore:
    """Results of a candidate on the rows of each fold."""

    candidate: Candidate
    folds: tuple[float | None, ...]
    """Metric of each fold; None if the fit failed, or if the metric is undefined for these rows."""
    epochs: int
    """Epochs over all folds."""
    seconds: float
    fault: str = ""
    """Reason why it failed."""

    @property
    def mean(self) -> float | None:
        values = [value for value in self.folds if value is not None]
        return float(np.mean(values)) if len(values) == len(self.folds) else None

    @property
    def deviation(self) -> float | None:
        """Return the standard deviation over the folds; None for one fold."""
        values = [value for value in self.folds if value is not None]
        return float(np.std(values, ddof=1)) if 1 < len(values) == len(self.folds) else None


@dataclass(frozen=True, eq=False)
class Tuned:
    trained: Trained
    """The best candidate, trained on all rows."""
    best: Candidate
    scores: tuple[CandidateScore, ...]
    """Scores in the order of the candidates."""


def tune(
    plan: FederatedPlan,
    channel: Channel,
    run: str,
    progress: Progress,
    remark: Callable[[str], None] = lambda _: None,
    executor: Executor | None = None,
    lasting: LastingJoin | None = None,
) -> Tuned:
    """Train the best candidate as `train` does. Of equal means the first one wins.

    Ctrl-C ends it without a model, except in the last fit. Raise ModelError as `train` does, for a
    fold without rows or without a class that it needs, and if no candidate could be compared.
    """
    if plan.tuning is None:
        raise InternalError("nothing to tune")
    started = time.perf_counter()
    with Scratch() as scratch:
        begun = begin(plan, channel, run, progress, remark, executor, scratch, lasting)
        rows = _rows(plan, begun, channel, run, progress, remark)
        _remark_on_folds(plan, rows, remark)
        scores = _compared(plan, plan.tuning, begun, rows, channel, run, progress, executor)
        for score in scores:
            if score.fault:
                remark(f"{_told(score.candidate)} could not be compared: {score.fault}")
        best = _best(plan.tuning, scores)
        progress.stage(f"training on all rows with {_told(best)}")
        final = replace(plan, options=best.options)
        chosen = np.ones(len(rows.folds), bool)
        every = rows.counts(chosen)
        weighting = weighting_of(final, every, np.zeros(rows.number, bool), rows.target)
        weighting = replace(weighting, weighty=rows.weighty_of(chosen))
        problem = _problem(final, begun, rows, weighting, channel, run, executor)
        weighed = replace(rows.joined, weighting=weighting)
        prepared = PreparedProblem(weighed, rows.target, None, problem, begun.joined)
        with closing(problem.passes):
            trained = run_rounds(final, prepared, channel, channel, run, progress, started)
    return Tuned(trained, best, scores)


def _told(candidate: Candidate) -> str:
    return ", ".join(f"{name} = {value}" for name, value in candidate.values.items()) or "it"


# -- rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of all fits. Merged joined rows differ in a class or in the label. In each fold, some of
    them count for training, some for comparison, or both.
    """

    joined: Joined
    target: Targets
    group: Array
    """int (N,): the row that each joined row counts for. These N joined rows may also differ only
    in the fold.
    """
    folds: Array
    """int (N,): the fold of each joined row."""
    samples: Array
    """float64 (N,): weights of the column of WEIGHT, or the number of joined rows that each stands
    for.
    """
    weighty: Array
    """int (N,): rows of the query with a weight above 0 that each stands for."""

    @property
    def number(self) -> int:
        return len(self.target.values)

    def of(self, some: Array) -> _Rows:
        """Return only some of the rows. No joined row counts for them any more."""
        rows = {n: (slot.rows[some], slot.offsets) for n, slot in self.joined.slots.items()}
        none = np.zeros(0, np.int64)
        joined = with_rows(self.joined, rows)
        return _Rows(joined, self.target.of(some), none, none, np.zeros(0), none)

    def counts(self, chosen: Array) -> Array:
        """Return the weights of the rows from the chosen joined rows (N,): float64 (rows,)."""
        totals: Array = np.bincount(self.group, np.where(chosen, self.samples, 0.0), self.number)
        return totals

    def weighty_of(self, chosen: Array) -> Array:
        """Return how many of the chosen joined rows (N,) have a weight above 0: int (rows,)."""
        rows = np.where(chosen, self.weighty, 0)
        totals: Array = np.bincount(self.group, rows, self.number).astype(np.int64)
        return totals


def _rows(
    plan: FederatedPlan,
    begun: Begun,
    channel: Channel,
    run: str,
    progress: Progress,
    remark: Callable[[str], None],
) -> _Rows:
    if not begun.written:
        raise ModelError(
            f"the {begun.joined.total:,} joined rows are too many to be written down in memory, "
            "and TUNE is not built for such joins",
            hint="choose on a sample of the rows, or raise memory_limit; then TRAIN on all",
        )
    joined = weigh(plan, begun.joined, begun.target, channel, run)
    target = begun.target
    if plan.tuning is not None and plan.tuning.groups is not None:
        target = target.spread(joined)
    folds = _folds(plan, joined, target, channel, run)
    _check_classes(plan, joined, target, folds, remark)
    progress.stage("encoding features")
    remark_on_features(plan, joined, channel, run, remark)
    if joined.weighting is not None:
        # class weights follow from each fit's own rows
        samples_of_rows = joined.weighting.samples
        none = np.zeros(len(samples_of_rows))
        joined = replace(
            joined, weighting=Weighting(samples_of_rows, samples_of_rows, none.astype(bool), none)
        )
    labels, distinct = _numbered(target)
    parts = int(folds.max(initial=0)) + 1
    tagged = replace(target, values=labels * parts + folds, classes=None)
    joined, tagged = merge_equal_rows(_merging(plan), joined, tagged, channel, run)
    labels, folds = np.divmod(tagged.values.astype(np.int64), parts)
    samples = np.ones(len(labels)) if joined.weighting is None else joined.weighting.samples
    weighting = joined.weighting
    weighty = (samples > 0.0).astype(np.int64)
    if weighting is not None and weighting.weighty is not None:
        weighty = weighting.weighty.astype(np.int64)
    group = np.arange(len(labels))
    if joined.weighting is not None and joined.weighting.rows is not None:
        joined, group, heads = _apart_from_folds(joined, labels, len(distinct))
        labels = labels[heads]
    targets = Targets(distinct[labels], begun.target.classes)
    return _Rows(replace(joined, weighting=None), targets, group, folds, samples, weighty)


def _apart_from_folds(joined: Joined, labels: Array, number: int) -> tuple[Joined, Array, Array]:
    """Merge rows that differ only in the fold. Return the merged join, the merged row of each row,
    and one row of each merged row.
    """
    digits = [(slot.rows, int(slot.offsets[-1])) for slot in joined.slots.values()]
    groups = EqualRowGroups.of([*digits, (labels, number)])
    place = np.full(groups.size, -1, np.int64)
    place[groups.key[groups.heads]] = np.arange(len(groups.heads))
    rows = {n: (slot.rows[groups.heads], slot.offsets) for n, slot in joined.slots.items()}
    return with_rows(joined, rows), place[groups.key], groups.heads


def _merging(plan: FederatedPlan) -> FederatedPlan:
    """Return the plan with options that merge joined rows only if all candidates allow it."""
    assert plan.tuning is not None
    spec = spec_of(plan.algorithm)
    every = [candidate.options for candidate in plan.tuning.candidates]
    strict = next((o for o in every if not spec.whole(o, 1 << 62)), every[0])
    return replace(plan, options=strict)


def _folds(
    plan: FederatedPlan, joined: Joined, target: Targets, channel: Channel, run: str
) -> Array:
    """Return the fold of each target's row: int64."""
    tuning, slot = plan.tuning, _drawn_slot(plan)
    assert tuning is not None
    joined_slot = joined.slots[slot.index]
    classes = np.zeros(len(target.values), np.uint8) if target.classes is None else target.values
    if slot.units:
        units, number = joined.units_of(slot.index)
        return _drawn(tuning, units, number, classes, plan.training.seed)
    requests = {a: SendFolds(run, slot.index) for a in joined_slot.addresses}
    replies = ask(
        channel, requests, lambda a: expected.folds(joined_slot.active[a], max(tuning.splits, 2))
    )
    folds = [replies[address].folds for address in joined_slot.addresses]
    strata = np.zeros(joined_slot.offsets[-1], classes.dtype)
    strata[slice(None) if target.slot is not None else joined_slot.rows] = classes
    parts = [
        part if len(slot.of(client)) == 1 else None
        for client, part in zip(
            slot.clients, np.split(strata, joined_slot.offsets[1:-1]), strict=True
        )
    ]
    drawn = merge_folds(folds, parts, tuning.splits, tuning.share, onward=True)
    numbers: Array = np.concatenate(drawn).astype(np.int64)
    return numbers if target.slot is not None else numbers[joined_slot.rows]


def _drawn_slot(plan: FederatedPlan) -> Slot:
    """Return the slot whose rows are drawn into folds, by its clients or by the coordinator."""
    return next(slot for slot in plan.ucq.slots if slot.split or slot.units)


def _drawn(tuning: Tuning, units: Array, number: int, classes: Array, seed: int | None) -> Array:
    """Draw a fold for each unit, numbered below `number`, and return those of the joined rows,
    int64 (N,). Each fold has as many units of each class as can be."""
    there = np.bincount(units, minlength=number) > 0  # a virtual row is no unit
    groups = (np.cumsum(there) - 1)[units]
    strata, classes_of = strata_of(groups, classes)
    chance = np.random.default_rng(seed).permutation(len(strata))
    # The first ones of a share are held out, so their order must be random.
    order = np.lexsort((chance, classes_of > 1)) if tuning.splits > 1 else np.argsort(chance)
    folds = np.empty(len(strata), np.int64)
    folds[order] = deal(strata[order], tuning.splits, tuning.share)
    (merged,) = merge_folds([folds], [strata], tuning.splits, tuning.share, onward=True)
    drawn: Array = merged[groups]
    return drawn


def _check_classes(
    plan: FederatedPlan,
    joined: Joined,
    target: Targets,
    folds: Array,
    remark: Callable[[str], None],
) -> None:
    """Warn of classes that some fold lacks. Raise ModelError if no candidate could be compared
    without them.
    """
    tuning, classes = plan.tuning, target.classes
    if tuning is None or classes is None:
        return
    if tuning.metric == "auc" and len(classes) > 2:
        raise ModelError(
            f"no candidate has the metric auc, which is of two classes: target {plan.ucq.target} "
            f"has {len(classes)}",
            hint="metric = 'log_loss' or 'accuracy'; or make the target a condition, as in n > 4",
        )
    number = max(tuning.splits, 2)
    rows, codes = np.arange(len(folds)), target.values.astype(np.int64)
    slot = _drawn_slot(plan)
    if target.slot is None:
        rows = joined.slots[slot.index].rows
    ways = ["take more rows of such a class"]
    if joined.weighting is not None and not joined.weighting.samples.all():
        some = np.flatnonzero(joined.weighting.samples)
        rows, codes, folds = rows[some], codes[some], folds[some]
        ways.append(f"leave rows of weight 0 out (WHERE {plan.ucq.weight} > 0)")
    there = np.bincount(codes * number + folds, minlength=len(classes) * number) > 0
    there = there.reshape(-1, number)
    often = np.count_nonzero(there, axis=1)
    few = np.flatnonzero(often < number).tolist()
    if not few:
        return
    told = "; ".join(
        line(f"class {classes[k]}, with {_rows_of(slot, rows[codes == k], number)}, is ")
        + (f"in {often[k]} of the {number} folds" if tuning.splits > 1 else "on one side only")
        for k in few[:MAX_NAMED_CLASSES]
    )
    told += f"; {len(few) - MAX_NAMED_CLASSES} more classes are too rare" * (
        len(few) > MAX_NAMED_CLASSES
    )
    if tuning.splits > 1 and often.min() > 1:
        ways.append(f"folds = {often.min()}")
    untrained = often < 2 if tuning.splits > 1 else ~there[:, 0]
    if len(classes) == 2 and untrained.any():
        raise ModelError(
            f"a class cannot be held out and trained on: {told}", hint=", or ".join(ways)
        )
    if tuning.metric == "auc":
        raise ModelError(
            f"no candidate has the metric auc on all rows that are held out: {told}",
            hint=", or ".join([*ways, "a metric that one class is enough for, as 'log_loss'"]),
        )
    where = "a fold without a class compares candidates by the other classes"
    remark(f"{told}: {where}; {', or '.join(ways)}")


def _rows_of(slot: Slot, rows: Array, parts: int) -> str:
    number = len(np.unique(rows))
    equal = " (equal ones are in one fold)" if slot.split and number >= parts else ""
    return f"{number:,} row{'s' * (number != 1)} of {slot.name}{equal}"


def _numbered(target: Targets) -> tuple[Array, Array]:
    """Return each target's number among the distinct values, and the distinct values."""
    if target.classes is not None:
        return target.values.astype(np.int64), np.arange(len(target.classes))
    numbers, distinct = numbered(target.values)
    return numbers.astype(np.int64), distinct


# -- fits -----------------------------------------------------------------------------------------


def _compared(
    plan: FederatedPlan,
    tuning: Tuning,
    begun: Begun,
    rows: _Rows,
    channel: Channel,
    run: str,
    progress: Progress,
    executor: Executor | None,
) -> tuple[CandidateScore, ...]:
    candidates = tuning.candidates
    values: list[list[float | None]] = [[] for _ in candidates]
    epochs, seconds = [0] * len(candidates), [0.0] * len(candidates)
    faults = [""] * len(candidates)
    parts = _parts(tuning)
    for place, fold in enumerate(parts, 1):
        with closing(_split(plan, begun, rows, fold, channel, run, executor)) as split:
            for number, candidate in enumerate(candidates):
                progress.stage(
                    f"fold {place} of {len(parts)}, candidate {number + 1} of {len(candidates)}"
                )
                began = time.perf_counter()
                try:
                    value, steps = split.fit(candidate, tuning.metric, channel)
                except ModelError as error:
                    value, steps, faults[number] = None, 0, error.message
                values[number].append(value)
                epochs[number] += steps
                seconds[number] += time.perf_counter() - began
    return tuple(
        CandidateScore(*parts)
        for parts in zip(candidates, map(tuple, values), epochs, seconds, faults, strict=True)
    )


def _parts(tuning: Tuning) -> list[int]:
    """Return the folds that are held out."""
    return [1] if tuning.splits == 1 else list(range(tuning.splits))


def _remark_on_folds(plan: FederatedPlan, rows: _Rows, remark: Callable[[str], None]) -> None:
    """Say where few rows to train on have no curves."""
    assert plan.tuning is not None
    every = int(rows.weighty.sum())
    held = [int(rows.weighty[rows.folds == fold].sum()) for fold in _parts(plan.tuning)]
    if every < CURVE_ROWS:
        remark_on_curves(plan, every, remark)
    else:
        few = every - max(held)
        remark_on_curves(plan, few, remark, " while folds are held out")


@dataclass(frozen=True, eq=False)
class _Split:
    """Split into a held-out fold and the other rows."""

    problem: Problem
    """Problem of the other rows."""
    held: PartitionedRows
    """The fold's rows, with the same slots."""
    targets: Array
    weights: Array
    """Weights of the fold's rows in the loss, including class weights."""

    def fit(self, candidate: Candidate, metric: str, channel: Channel) -> tuple[float | None, int]:
        """Return the metric on the fold's rows, and the number of epochs."""
        problem = replace(self.problem, options=candidate.options)
        algorithm = problem.options.algorithm
        with closing(problem.passes):
            fit = coordinator_of(algorithm)(problem, channel)
            fit.start()
            step: Step | None = None
            for step in fit.steps():
                if not math.isfinite(step.objective):
                    raise ModelError(f"training with {algorithm} diverged in epoch {step.epoch}")
            if step is None or fit.scores is None:
                raise InternalError(f"{algorithm} made no step, or tells no scores")
            check_kept(problem, step.objective, fit.first, STEPS)
        value = self._measured(fit.scores, metric)
        return None if value is None or not math.isfinite(value) else float(value), step.epoch

    def _measured(self, scores: Scores, metric: str) -> float | int | None:
        if metric != "loss":
            return self.held.meters(scores)[0].metrics().get(metric)
        if not self.weights.any():
            return None
        floor = self.problem.loss.floor(self.targets, self.weights)
        return self.held.held_loss(scores) / float(self.weights.sum()) + floor

    def close(self) -> None:
        self.held.close()


def _split(
    plan: FederatedPlan,
    begun: Begun,
    rows: _Rows,
    fold: int,
    channel: Channel,
    run: str,
    executor: Executor | None,
) -> _Split:
    """Return the split, and send clients the weights of their rows without the fold."""
    chosen = rows.folds == fold
    trained, held = rows.counts(~chosen), rows.counts(chosen)
    try:
        if not held.any():
            raise ModelError("nothing that weighs anything is held out")
        places = np.flatnonzero(trained)
        kept, trained = rows.of(places), trained[places]
        weighting = weighting_of(plan, trained, np.zeros(len(trained), bool), kept.target)
        weighting = replace(weighting, weighty=rows.weighty_of(~chosen)[places])
        problem = _problem(plan, begun, kept, weighting, channel, run, executor)
    except ModelError as error:
        raise ModelError(
            f"fold {fold + 1}, with {held.sum():g} of {rows.samples.sum():g} joined rows (or "
            f"weights), cannot be held out: {error.message}",
            hint="take more rows, or fewer folds",
        ) from error
    # Encoded columns have mean 0 over all rows, not over the rows of this training.
    problem = replace(problem, centred=False, proved=False)
    other = rows.of(np.flatnonzero(held))
    held = held[held > 0.0]
    shares = class_shares(plan, trained, kept.target)
    lost = held if shares is None else held * shares[other.target.values]
    data = written_data(plan, other.joined, other.target)
    mapping, offset = data.mapping, data.offset
    if offset is not None and offset.rows is not None:
        mapping = mapping.beside(offset.rows)
    measured = MeasuredRows(samples=held, held=lost)
    pieces = WrittenChunks(mapping, other.target.values, None)
    values = None if offset is None else offset.values
    passes = PartitionedRows(pieces, problem.loss, problem.executor, measured, values)
    return _Split(problem, passes, other.target.values, lost)


def _problem(
    plan: FederatedPlan,
    begun: Begun,
    rows: _Rows,
    weighting: Weighting,
    channel: Channel,
    run: str,
    executor: Executor | None,
) -> Problem:
    """Send clients their rows' new weights, and return the problem."""
    # class weights are no part of the encoding
    samples = None if plan.training.class_weight is None else weighting.samples
    reweigh(plan, rows.joined, weighting, channel, run, samples)
    joined = replace(rows.joined, weighting=weighting)
    data = written_data(plan, joined, rows.target)
    return problem_of(plan, joined, data, begun.loss, run, None, None, executor)


def _best(tuning: Tuning, scores: Sequence[CandidateScore]) -> Candidate:
    known = [(score.mean, score.candidate) for score in scores if score.mean is not None]
    if not known:
        why = next((score.fault for score in scores if score.fault), "")
        raise ModelError(
            f"no candidate has the metric {tuning.metric} on all rows that were held out"
            + (f": {why}" if why else ""),
            hint="take more rows, fewer folds, or another metric",
        )
    sign = -1.0 if tuning.greater else 1.0
    return min(known, key=lambda pair: sign * pair[0])[1]
