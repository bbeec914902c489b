"""TRAIN: rounds of the chosen algorithm until it has converged, has reached its limit, or is
interrupted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, ModelError
from sqlfl.base.interrupts import noted
from sqlfl.base.progress import Progress
from sqlfl.contract import stopping
from sqlfl.contract.request import checkpoint_of
from sqlfl.contract.stopping import Ending
from sqlfl.coordinator.executors.base import Executor
from sqlfl.coordinator.join.row_mapping import Scratch
from sqlfl.coordinator.lasting import LastingJoin
from sqlfl.coordinator.preparation import Joined
from sqlfl.coordinator.problems import Measures, PreparedProblem, prepared_for
from sqlfl.coordinator.protection import Watched, check_run, remark_on_worth
from sqlfl.coordinator.rounds.chunk import Scores
from sqlfl.coordinator.rounds.convergence import check_kept
from sqlfl.coordinator.rounds.problem import Algorithm, Problem, Step, coordinator_of
from sqlfl.coordinator.secure_channel import SecureChannel
from sqlfl.messages import Save, Saved
from sqlfl.messages.checks import Expected, ask
from sqlfl.messages.checks import ReplyChannel as Line
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.store.registry import Model
from sqlfl.transport.base import Channel

if TYPE_CHECKING:
    from sqlfl.privacy.calibration import NoiseCalibration
from sqlfl.base.sanitize import listed
from sqlfl.coordinator.findings import leaking
from sqlfl.coordinator.rounds.warm import best_constant
from sqlfl.models.kinds import kind_of
from sqlfl.models.metrics import Metrics

HISTORY = pa.schema(
    [
        ("epoch", pa.int64()),
        ("rounds", pa.int64()),
        ("train_loss", pa.float64()),
        ("train_metric", pa.float64()),
        ("valid_loss", pa.float64()),
        ("valid_metric", pa.float64()),
        ("bytes_up", pa.int64()),
        ("bytes_down", pa.int64()),
        ("comm_seconds", pa.float64()),
        ("seconds", pa.float64()),
        ("gradient_norm", pa.float64()),
        ("duality_gap", pa.float64()),
        ("late", pa.int64()),
    ]
)


ROUNDED = 1e-6
"""Maximum relative change of the scores' spread, or of the loss, by 4-byte scores."""
ROUNDING_SHARE = 1e-9
"""Share of the squared spread of the target. A smaller loss is 0 up to rounding."""
STEPS = "leave the step options (learning_rate, rho) at their defaults, or use algorithm = 'lbfgs'"


@dataclass(frozen=True, eq=False)
class Trained:
    """The coordinator's part of a trained model; the blocks stay with the clients."""

    intercept: Array
    """float64 (d_c,)"""
    head: Array | None
    """float64 (P, d_c): W₀ of a linear head; None without one."""
    classes: tuple[str, ...] | None
    history: pa.Table
    """A row for each epoch, with the columns of `HISTORY`.

    `train_loss` is the objective, including the penalty. `valid_loss` is the mean loss of the
    validation rows, without penalty. `gradient_norm` and `duality_gap` are NULL if they were not
    measured. `late` counts replies that steps of the epoch have gone on without (option
    stragglers).
    """
    metrics: dict[str, float | int | None]
    """Metrics: `rows`, null_targets, unjoined, and unjoined_<table> of each LEFT JOIN.

    Further ones are `dropped` with max_fan_out, objective and loss of the training rows, and the
    metrics of the model's kind. With a split there are `valid_rows`, `valid_loss` and
    valid_<metric>.
    """
    interrupted: bool
    ending: Ending
    stopped_early: bool
    """True if the option patience ended the training."""
    epoch: int
    """Epoch whose model is kept: the last, or with patience the one of the least valid_loss."""
    calibration: NoiseCalibration | None = None
    """Calibration of the noise; None if features are not protected."""
    dropped: int = 0
    """Joined rows that max_fan_out left out."""
    exact: bool = False
    """True if rounding the blocks' scores to 4 bytes would change the loss or predictions
    visibly.
    """


@dataclass(frozen=True, eq=False)
class ModelCandidate:
    """Model that may be kept: its coordinator's part after an epoch."""

    step: Step
    intercept: Array
    head: Array | None
    scores: Scores | None
    valid_loss: float | None

    @classmethod
    def of(cls, algorithm: Algorithm, step: Step, valid_loss: float | None) -> ModelCandidate:
        intercept = np.array(algorithm.intercept, np.float64)
        return cls(step, intercept, algorithm.head, algorithm.scores, valid_loss)

    def is_beaten_by(self, valid_loss: float | None) -> bool:
        return valid_loss is not None and (self.valid_loss is None or valid_loss < self.valid_loss)


Checkpoint: TypeAlias = Callable[[Trained, str], None]
"""Keeps the model trained so far. The clients hold its blocks under this name."""


def train(
    plan: FederatedPlan,
    channel: Channel,
    run: str,
    progress: Progress,
    start: Model | None = None,
    remark: Callable[[str], None] = lambda _: None,
    executor: Executor | None = None,
    checkpoint: Checkpoint | None = None,
    lasting: LastingJoin | None = None,
) -> Trained:
    """Run `plan` and leave each block saved at its clients under the name `run`.

    start: the model of a warm start, whose run the plan names. remark: takes warnings about the
    join and the features, before the first round. executor: computes on the joined rows; by default
    threads that end with this call. checkpoint: called as often as the option says, or never.
    lasting: the join that lasts whose rows the plan uses.

    In the rounds, Ctrl-C ends the training after the current one, and the model so far is kept.

    Raise ModelError for an empty join, and for invalid weights (`weigh`). Raise it also for a
    target with fewer than two classes, or with other classes than `start`. Raise PrivacyError
    before any round if a budget cannot be met over this join. Raise PartyError for a client that
    fails or has not noised as planned; then nothing is saved.
    """
    started = time.perf_counter()
    line: Line = channel
    if plan.training.method.secure:
        line = SecureChannel(channel, run, plan.specifications)
    with Scratch() as scratch:
        prepared = prepared_for(
            plan, line, run, progress, start, remark, executor, scratch, lasting
        )
        problem = prepared.problem
        late = nullcontext() if problem.lateness is None else closing(problem.lateness)
        with closing(problem.passes), late:
            told = progress, started, checkpoint, remark
            return run_rounds(plan, prepared, line, channel, run, *told)


def run_rounds(
    plan: FederatedPlan,
    prepared: PreparedProblem,
    line: Line,
    channel: Channel,
    run: str,
    progress: Progress,
    started: float,
    checkpoint: Checkpoint | None = None,
    remark: Callable[[str], None] = lambda _: None,
) -> Trained:
    problem = prepared.problem
    watched = Watched(line)
    algorithm = coordinator_of(plan.algorithm)(problem, watched)
    every = plan.training.checkpoint if checkpoint is not None else None
    rounds = _Rounds(plan, prepared, line, run, every)
    patience = plan.training.patience or 0
    step: Step | None = None
    kept: ModelCandidate | None = None
    algorithm.start()
    made = 0
    with noted() as interrupt:
        rounds.wait_for_all(1, ends=False)
        for step in algorithm.steps():
            measured = rounds.measures.epoch(algorithm.scores)
            rounds.history.append(_history_row(step, rounds.floor, measured, channel, started))
            progress.epoch(step.epoch, step.objective + rounds.floor)
            valid_loss = measured.get("valid_loss")
            _check_losses(plan, step, valid_loss)
            if not patience or kept is None or kept.is_beaten_by(valid_loss):
                kept = ModelCandidate.of(algorithm, step, valid_loss)
            rounds.stopped = step.ending is None and 0 < patience <= step.epoch - kept.step.epoch
            ends = rounds.stopped or interrupt.is_set()
            if ends and not step.stale:
                break
            rounds.wait_for_all(step.epoch + 1, ends=ends)
            if checkpoint is not None and rounds.is_checkpoint(step.epoch) and not step.ending:
                made += 1
                name = checkpoint_of(run, made)
                so_far = rounds.trained(kept, stopping.so_far(step.epoch), interrupted=True)
                rounds.save(name, step.epoch - kept.step.epoch)
                checkpoint(so_far, name)
        if step is None or kept is None:
            raise InternalError(f"{plan.algorithm} made no step")
        # an interrupt during the last step is too late to end the run
        interrupted = interrupt.is_set() and step.ending is None
        if not interrupted:
            worse = check_kept(problem, kept.step.objective, algorithm.first, STEPS)
            if worse is not None:
                remark(worse)
        check_run(plan, prepared.every, prepared.protection, line, run, watched.told)
        ending = _ending(step, kept.step, interrupted)
        for text in kept.step.warnings:
            remark(text)
        # before anything is saved, as a worker may be gone
        result = rounds.trained(kept, ending, interrupted=interrupted)
        rounds.save(run, step.epoch - kept.step.epoch)
    remark_on_worth(problem, kept.scores, kept.step.loss, remark)
    remark_on_leaks(plan, problem, kept.scores, kept.step.loss, remark)
    return result


class _Rounds:
    """Rounds of one training: its history, and the models that are kept of it.

    every : epochs from one checkpoint to the next; None without checkpoints.
    """

    def __init__(
        self,
        plan: FederatedPlan,
        prepared: PreparedProblem,
        line: Line,
        run: str,
        every: int | None,
    ) -> None:
        self._plan, self._prepared, self._line, self._run = plan, prepared, line, run
        self._every = every
        problem, weighting = prepared.problem, prepared.joined.weighting
        self.measures = Measures(problem.passes, problem.loss, prepared.target, weighting)
        self.floor = problem.loss.floor(problem.targets, problem.shares)
        self.history: list[dict[str, float | int | None]] = []
        self.stopped = False
        """True once `patience` has ended it."""

    def is_checkpoint(self, epoch: int) -> bool:
        return self._every is not None and epoch % self._every == 0

    def wait_for_all(self, epoch: int, *, ends: bool) -> None:
        """Wait for all clients in this epoch if its result is of all of them."""
        problem = self._prepared.problem
        if problem.lateness is not None:
            is_kept = self.is_checkpoint(epoch) or epoch == problem.options.epochs
            problem.lateness.everyone = ends or is_kept

    def save(self, name: str, back: int) -> None:
        """Let the clients keep their blocks of `back` epochs ago under this name."""
        saving = {
            address: Save(self._run, slot.index, name, self._plan.name, back)
            for slot in self._plan.ucq.slots
            if slot.features
            for address in self._prepared.joined.slots[slot.index].addresses
        }
        ask(self._line, saving, lambda address: Expected(Saved))

    def trained(self, candidate: ModelCandidate, ending: Ending, *, interrupted: bool) -> Trained:
        prepared = self._prepared
        return Trained(
            intercept=candidate.intercept,
            head=candidate.head,
            classes=prepared.target.classes,
            history=pa.Table.from_pylist(self.history, schema=HISTORY),
            metrics={
                **_counts(self._plan, prepared.joined, self.measures),
                "objective": candidate.step.objective + self.floor,
                "loss": candidate.step.loss + self.floor,
                **self.measures.final(candidate.scores),
                **candidate.step.estimates,
            },
            interrupted=interrupted,
            ending=ending,
            stopped_early=self.stopped,
            epoch=candidate.step.epoch,
            calibration=None if prepared.protection is None else prepared.protection.calibration,
            dropped=prepared.joined.dropped,
            exact=_is_exact(self._plan, prepared.problem, candidate),
        )


def _history_row(
    step: Step,
    floor: float,
    measured: Metrics,
    channel: Channel,
    started: float,
) -> dict[str, float | int | None]:
    return {
        "epoch": step.epoch,
        "rounds": channel.rounds,
        "train_loss": step.objective + floor,
        **measured,
        "bytes_up": channel.bytes_up,
        "bytes_down": channel.bytes_down,
        "comm_seconds": channel.comm_seconds,
        "seconds": time.perf_counter() - started,
        "gradient_norm": step.gradient,
        "duality_gap": step.gap,
        "late": step.late,
    }


def _check_losses(plan: FederatedPlan, step: Step, valid_loss: float | None) -> None:
    """Raise ModelError if training diverged, or if patience has no loss to go by."""
    if not math.isfinite(step.objective):
        raise ModelError(
            f"training with {plan.algorithm} diverged in epoch {step.epoch}",
            hint=STEPS,
        )
    if plan.training.patience and valid_loss is None:
        raise ModelError(
            "the rows for validation are all of classes of weight 0, so patience has nothing to go "
            "by",
            hint="leave patience out, or give these classes a class_weight above 0",
        )


def _is_exact(plan: FederatedPlan, problem: Problem, kept: ModelCandidate) -> bool:
    """Return True if rounding the blocks' scores to 4 bytes changes the loss, or the scores, by
    more than ROUNDED.
    """
    scores = kept.scores
    if scores is None or plan.tower is not None or plan.privacy is not None:
        return False
    with np.errstate(over="ignore"):
        slots = tuple(values.astype(np.float32).astype(np.float64) for values in scores.slots)
    none = np.zeros_like(scores.constant)
    change = Scores(tuple(a - b for a, b in zip(slots, scores.slots, strict=True)), none)
    spread = problem.loss.spread(problem.targets)
    if problem.passes.square(change, sampled=True) > (ROUNDED * spread) ** 2:
        return True
    loss = kept.step.loss
    rounded = problem.passes.look(Scores(slots, scores.constant), sums=False).value
    return abs(rounded - loss) > ROUNDED * max(loss, ROUNDING_SHARE * spread**2)


def _counts(
    plan: FederatedPlan, joined: Joined, measures: Measures
) -> dict[str, float | int | None]:
    held_out = measures.validation_rows
    return {
        "rows": measures.training_rows,
        **({} if held_out is None else {"valid_rows": held_out}),
        # counted over fragments, of which several may have one row
        **(
            {}
            if plan.ucq.parted
            else {"null_targets": joined.null_targets, "unjoined": joined.unjoined}
        ),
        **{f"unjoined_{plan.ucq.slots[slot].name}": n for slot, n in joined.unmatched.items()},
        **({} if not _limited(plan) else {"dropped": joined.dropped}),
    }


def _ending(last: Step, kept: Step, interrupted: bool) -> Ending:
    """Return the ending of the run with this `last` step."""
    if last.ending is not None:
        return last.ending if last is kept else stopping.kept_earlier(last.ending, kept.epoch)
    if interrupted:
        return stopping.untold(stopping.INTERRUPTED, stopping.INTERRUPTED_REASON)
    return stopping.untold(stopping.EARLY, stopping.EARLY_REASON)


def _limited(plan: FederatedPlan) -> bool:
    return plan.privacy is not None and plan.privacy.max_fan_out is not None


# Warning of a table that alone explains the target. It probably has a feature made of the
# target.

NUMBERS = 0.99
"""Share of a constant's loss that one table removes, from which it is reported."""
CLASSES = 0.9
"""The same share for classes: a feature that is right in 99 of 100 rows removes as much."""
NAMED = 5
"""Maximum number of features in the warning."""


def remark_on_leaks(
    plan: FederatedPlan,
    problem: Problem,
    scores: Scores | None,
    loss: float,
    remark: Callable[[str], None],
) -> None:
    """Warn of tables whose block alone predicts the target. It sends no message.

    loss: the loss of the model with these scores.
    """
    if scores is None or plan.tower is not None or plan.privacy is not None:
        return
    least = CLASSES if kind_of(plan.kind).classifies else NUMBERS
    none = tuple(np.zeros_like(values) for values in scores.slots)
    start = best_constant(problem)
    constant = problem.passes.look(Scores(none, start), sums=False).value
    if not constant > 0.0 or 1.0 - loss / constant < least:
        return
    towers = [slot for slot in plan.ucq.slots if slot.features]
    for place, slot in enumerate(towers):
        alone = (*none[:place], scores.slots[place], *none[place + 1 :])
        value = problem.passes.look(Scores(alone, scores.constant), sums=False).value
        share = 1.0 - value / constant
        if share >= least:
            names = [feature.name for feature in slot.features]
            name = f"feature {names[0]} (of {slot.name})"
            if len(names) > 1:
                more = ", ..." if len(names) > NAMED else ""
                name = f"{slot.name}, with features {listed(names[:NAMED])}{more},"
            remark(leaking(name, plan.ucq.target or "", share))
